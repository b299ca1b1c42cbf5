//! A Redis server and a network in the memory of the test, on tokio's paused clock: hours pass in seconds, and all faults come
//! from a seed.
//!
//! How the library reacts to time and loss is tested here. The scripts are the real ones, and run in the interpreter that Redis
//! uses. The commands that they call are imitated (`data.rs`), and what real servers do is tested with real servers. The
//! server reports no changed keys: clients use it as one that cannot.
//!
//! `turmoil` and `madsim` were considered. Both simulate hosts: a runtime and a clock for each, and a network that delays, drops or
//! partitions. What a client has to survive here are the faults of single connections: replies that are lost, connections
//! that are half open, requests that arrive after their callers have left. That is the smaller part of a network, and needs neither
//! hosts nor another build of tokio.

mod data;
mod network;
mod reply;
mod seeds;
mod server;

pub use network::{Faults, RequestFault, Simulation};
pub use seeds::{assert_repeats, for_each_seed};

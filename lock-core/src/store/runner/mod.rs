//! Runs the requests of stores whose requests are asynchronous functions.
//!
//! Such a store implements [`AsyncClient`], and opens with [`AsyncBackend::open`].
//!
//! A caller may drop its future at any time, and the connections of a store belong to a runtime. So each request runs in a task
//! of its own, on a thread of the client that does nothing else, or on the first runtime that calls the store. It goes on if
//! its caller drops the future. A release waits for the acquires of its owner: otherwise it could come first.

mod backend;
mod caller_runtime;
mod client;
mod in_flight;
mod inspection;
mod locks;
mod pattern;
mod requests;
mod started;
mod stored;
mod thread;
mod wake_ups;
mod watches;

pub use self::backend::AsyncBackend;
pub use self::client::{AsyncClient, LeaseRequest, Owned, RunEndRequest, RunStartRequest};
pub use self::requests::RunsOn;
pub use self::stored::{LeasePage, LeaseScan, StoredLease};
pub use self::wake_ups::WakeUps;

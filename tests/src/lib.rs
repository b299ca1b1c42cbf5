//! The test harness: real servers, and real processes that hold locks.
//!
//! Every process that the harness starts is killed by its process id when its handle is dropped,
//! even if the test panics.

#![forbid(unsafe_code)]
// The harness reports every failure by a panic.
#![allow(clippy::missing_panics_doc)]

mod clock_shim;
mod cluster;
pub mod controls;
mod database_server;
mod etcd;
mod helper;
mod history;
mod kinds;
mod log;
mod lost_host;
mod peer_network;
mod pooler;
mod ports;
mod proxy;
mod quorum;
mod recorder;
mod sentinel_process;
mod sentinels;
mod server;
mod shim;
#[cfg(feature = "simulation")]
pub mod simulation;
mod soak;
mod split_network;
mod split_sentinels;
mod stalls;
mod store_faults;
pub mod support;
mod suspension;
mod tested_store;
mod tls;
pub mod workload;
mod workload_processes;

pub use cluster::{Cluster, NODE_TIMEOUT, SlotMove};
pub use database_server::{DatabaseServer, with_unusual_settings};
pub use etcd::{EtcdCluster, EtcdOptions};
pub use helper::Helper;
pub use history::{Expected, History, Violation};
pub use kinds::{TestedHold, TestedKind, left_of_locks};
pub use log::CapturedLog;
pub use lost_host::LostHost;
pub use pooler::Pooler;
pub use proxy::{Proxy, Toward};
pub use quorum::Quorum;
pub use recorder::{EventKind, HoldEvent, Recorder, boot_nanos};
pub use sentinel_process::{DOWN_AFTER, SentinelProcess};
pub use sentinels::Sentinels;
pub use server::RedisServer;
pub use soak::SoakRun;
pub use split_network::{Relay, Side, SplitNetwork};
pub use split_sentinels::SplitSentinels;
pub use stalls::{running_time, running_time_between, within};
pub use store_faults::{FaultyRun, StoreFaults};
pub use tested_store::TestedStore;
pub use tls::{Authority, ServerIdentity, Validity};
pub use workload_processes::{ProcessPlan, WorkloadProcesses, sibling_program};

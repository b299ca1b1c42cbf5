//! Stores that the program implements.

mod backend;
mod caller_runtime;
mod contract;
mod handle;
mod in_flight;
mod inspector;
mod pattern;
mod shared;
mod started;
mod stored;
mod thread;
mod waiting;
mod wake_ups;

pub use self::backend::OpenStore;
pub use self::contract::{
    FenceRequest, FencingOutcome, LeaseOutcome, LeaseRequest, ReleaseOutcome, ReleaseRequest,
    RenewOutcome, Store,
};
pub use self::stored::{LeasePage, LeaseScan, StoredLease};
pub use self::wake_ups::WakeUps;

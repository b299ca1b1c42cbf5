//! The files of the target `suites`.

#[path = "../suites/cancellation.rs"]
mod cancellation;
#[path = "../suites/fencing.rs"]
mod fencing;
#[path = "../suites/fixed_lease.rs"]
mod fixed_lease;
#[path = "../suites/holders.rs"]
mod holders;
#[path = "../suites/hostile_keys.rs"]
mod hostile_keys;
#[path = "../suites/leadership.rs"]
mod leadership;
#[path = "../suites/measurements.rs"]
mod measurements;
#[path = "../suites/options.rs"]
mod options;
#[path = "../suites/periodic.rs"]
mod periodic;
#[path = "../suites/read_write.rs"]
mod read_write;
#[path = "../suites/reentrancy.rs"]
mod reentrancy;
#[path = "../suites/semantics.rs"]
mod semantics;
#[path = "../suites/semaphore.rs"]
mod semaphore;
#[path = "../suites/sets.rs"]
mod sets;
#[path = "../suites/waits.rs"]
pub(crate) mod waits;

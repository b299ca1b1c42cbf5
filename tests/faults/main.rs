//! The fault suite: the promises of the lock under the faults of a real deployment.
//!
//! Each file covers one source of faults. Most tests have a control in `controls.rs`: the same test
//! in a process without the safeguard in question, where the test must fail.

mod background_releases;
mod bodies;
mod callers;
mod cancellation;
#[cfg(lock_controls)]
mod controls;
mod credentials;
mod fair;
mod fairness;
mod foreign;
mod holders;
mod kinds;
mod leadership;
mod linger;
mod many_releases;
mod outages;
mod periodic;
mod processes;
mod quarantine;
mod questions;
mod queue;
mod read_write;
mod readiness;
mod renewals;
mod replies;
mod secrets;
mod semaphore;
mod server;
mod sets;
#[cfg(feature = "simulation")]
mod simulated;
mod support;
mod tls;
mod topologies;
mod tracking;
mod unpolled;
mod waits;
mod wake_ups;

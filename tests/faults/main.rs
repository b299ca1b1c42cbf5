//! The fault suite: what a real deployment meets, and what the promises are worth then.
//!
//! Each file is one place where things go wrong. Each test has a control in `controls.rs`: the same
//! test in a process that runs without the protection in question, where it has to fail.

mod bodies;
mod cancellation;
#[cfg(lock_controls)]
mod controls;
mod foreign;
mod processes;
mod renewals;
mod replies;
mod requests;
mod secrets;
mod server;
mod support;
mod wake_ups;

//! The store in etcd, with real servers.

mod basics;
mod conformance;
#[cfg(lock_controls)]
mod controls;
mod faults;
mod inputs;
mod joined;
mod members;
mod partitions;
mod presences;
mod support;

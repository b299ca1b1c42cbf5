//! The store in etcd, with real servers.

mod basics;
mod conformance;
mod support;

//! The suites that share a process. Each file is one promise or one part of the product.

mod attribute;
mod cancellation;
mod connect;
mod cost;
mod errors;
mod exclusion;
mod fencing;
mod fixed_lease;
mod formats;
mod functions;
mod keys;
mod loss;
mod options;
mod reentrancy;
mod runtimes;
mod scale;
mod semantics;
mod support;
mod takeover;
mod watchdog;

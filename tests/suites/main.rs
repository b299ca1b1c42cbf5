//! The test suites that share one process. Each file covers one promise or one part of the library.

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
mod leadership;
mod loss;
mod options;
mod reentrancy;
mod renewal;
mod runtimes;
mod scale;
mod semantics;
mod sets;
mod support;
mod takeover;
mod tls;

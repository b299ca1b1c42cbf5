//! What the suites need: real servers, and real processes that hold locks.
//!
//! Everything that is started here is ended by its process id, also when a test panics.

// A harness fails its test by panicking, everywhere.
#![allow(clippy::missing_panics_doc)]

pub mod controls;
mod diary;
mod helper;
mod history;
mod log;
mod proxy;
mod server;
pub mod support;
pub mod worker;

pub use diary::{Diary, Event, What, boot_nanos};
pub use helper::Helper;
pub use history::{Expected, History, Violation};
pub use log::Log;
pub use proxy::{Proxy, Toward};
pub use server::RedisServer;

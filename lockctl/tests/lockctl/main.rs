//! `lockctl` against real servers.

#![cfg(unix)]

mod asking;
mod failures;
mod output;
mod run;
#[cfg(feature = "serve")]
mod serve;
mod stored;
mod support;
mod terminal;
mod tools;

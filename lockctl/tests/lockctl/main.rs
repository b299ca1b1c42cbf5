//! `lockctl` against real servers.

#![cfg(unix)]

mod asking;
mod failures;
mod output;
mod run;
mod stalls;
mod stored;
mod support;
mod terminal;
mod tools;

//! `lockctl` against real servers.

#![cfg(unix)]

mod failures;
mod run;
mod support;

//! `lockctl` against real servers.

#![cfg(unix)]

mod asking;
mod doctor;
mod documentation;
#[cfg(feature = "etcd")]
mod etcd_runs;
mod failures;
#[cfg(target_os = "linux")]
mod jobs;
#[cfg(feature = "postgres")]
mod migrate;
mod output;
#[cfg(feature = "postgres")]
mod postgres_runs;
mod run;
#[cfg(feature = "serve")]
mod serve;
mod stored;
mod support;
mod terminal;
mod tools;
#[cfg(any(feature = "etcd", feature = "postgres"))]
mod unasked;

//! `lockctl run`.

mod codes;
mod environment;
mod loss;
mod signals;
mod start;

use std::process::Command;

use lock_tests::RedisServer;

use crate::support::{RunningProcess, Witness, lease, lockctl};

/// A loop of a shell that handles signals between its turns.
const FOREVER: &str = "while :; do sleep 0.01; done";

/// A `lockctl run` with the usual lease, unless an option changes it, that is to be started.
fn run(server: &RedisServer, options: &[&str], command: &[&str]) -> Command {
    let lease = lease();
    let usual = ["--lease", &lease];
    let usual = if options.contains(&"--lease") { &[] } else { &usual[..] };
    lockctl(&server.url(), &[&["run"], usual, options, command].concat())
}

/// Starts a script under the lock `k`, and waits until it says "started".
fn started(server: &RedisServer, options: &[&str], script: &str) -> (RunningProcess, Witness) {
    let mut witness = Witness::new();
    let script = witness.script(script);
    let running = RunningProcess::start(run(server, options, &["k", "sh", "-c", &script]));
    witness.started();
    (running, witness)
}

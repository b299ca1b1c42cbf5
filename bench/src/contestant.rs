//! Who takes part.

use std::ffi::OsString;
use std::path::Path;
use std::process::Command;

use anyhow::Result;

/// What a contestant is there for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    /// What no lock can beat.
    Limit,
    Ours,
    Peer,
}

/// What its locks reach.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reach {
    Process,
    Server,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Contestant {
    pub(crate) name: &'static str,
    pub(crate) role: Role,
    pub(crate) reach: Reach,
    /// Whether it can wait for a lock that is taken.
    pub(crate) waits: bool,
    /// The folder of `peers/`; `None` if it is in this program.
    pub(crate) language: Option<&'static str>,
    /// Whether it takes part when nobody names it.
    pub(crate) by_default: bool,
}

const RUST: Contestant = Contestant {
    name: "",
    role: Role::Peer,
    reach: Reach::Server,
    waits: true,
    language: None,
    by_default: true,
};

const fn peer(language: &'static str, name: &'static str) -> Contestant {
    Contestant { name, language: Some(language), ..RUST }
}

pub(crate) const ALL: [Contestant; 14] = [
    Contestant { name: "raw", role: Role::Limit, waits: false, ..RUST },
    Contestant { name: "tokio-mutex", role: Role::Limit, reach: Reach::Process, ..RUST },
    Contestant { name: "ours-memory", role: Role::Ours, reach: Reach::Process, ..RUST },
    Contestant { name: "ours", role: Role::Ours, ..RUST },
    Contestant { name: "rslock", ..RUST },
    Contestant { name: "async-redis-lock", ..RUST },
    Contestant { name: "distkit", ..RUST },
    peer("java", "redisson"),
    peer("go", "redsync"),
    peer("go", "rueidislock"),
    peer("node", "redlock"),
    peer("python", "redis-py"),
    // They wait as others here do.
    Contestant { by_default: false, ..peer("go", "bsm") },
    Contestant { by_default: false, ..peer("node", "semaphore") },
];

impl Contestant {
    /// How to start it.
    pub(crate) fn command(&self, peers: &Path, url: &str) -> Result<Command> {
        let (program, words): (OsString, Vec<&str>) = match self.language {
            None => (std::env::current_exe()?.into(), vec!["contestant", self.name, url]),
            Some(language) => (peers.join("run").into(), vec![language, self.name, url]),
        };
        let mut command = Command::new(program);
        command.args(words);
        Ok(command)
    }
}

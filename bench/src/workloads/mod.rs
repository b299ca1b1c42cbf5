//! What is measured: one file for each workload.

mod held;
mod hot;
mod idle;
mod reentrant;
mod run;
mod uncontended;
mod waiters;
mod zipf;

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result};

use crate::column::{self as c, Column};
use crate::contestant::{Contestant, Reach, Role};
use crate::process::Process;
use crate::results::Measurement;
use crate::server::Server;

/// What all workloads need.
pub(crate) struct Bench {
    pub(crate) server: Server,
    pub(crate) peers: PathBuf,
    pub(crate) files: tempfile::TempDir,
    pub(crate) quick: bool,
    pub(crate) long: bool,
    /// How long one measurement of a rate takes.
    pub(crate) time: Duration,
    /// The median round trip to the idle server in this round, in nanoseconds.
    pub(crate) round_trip: f64,
}

impl Bench {
    pub(crate) fn start(&self, contestant: &Contestant) -> Result<Process> {
        Process::start(contestant, &self.peers, &self.server.url())
    }

    fn start_several(&self, contestant: &Contestant, count: usize) -> Result<Vec<Process>> {
        (0..count).map(|_| self.start(contestant)).collect()
    }

    /// A file for the records of a process.
    fn file(&self, process: usize) -> Result<(PathBuf, String)> {
        let path = self.files.path().join(format!("records-{process}"));
        let name = path.to_str().context("the temporary directory has a strange name")?.to_owned();
        Ok((path, name))
    }
}

/// One workload.
pub(crate) struct Workload {
    pub(crate) name: &'static str,
    pub(crate) title: &'static str,
    pub(crate) columns: &'static [Column],
    /// What the main figure is related to.
    pub(crate) limit: Option<&'static str>,
    /// How often it is measured, quickly and otherwise.
    pub(crate) rounds: (usize, usize),
    pub(crate) takes: fn(&Contestant) -> bool,
    /// Measures one contestant in all shapes.
    pub(crate) measure: fn(&mut Bench, &Contestant, usize) -> Result<Vec<Measurement>>,
}

fn waits(contestant: &Contestant) -> bool {
    contestant.waits
}

fn waits_at_the_server(contestant: &Contestant) -> bool {
    contestant.waits && contestant.reach == Reach::Server
}

pub(crate) const ALL: [Workload; 8] = [
    Workload {
        name: "uncontended",
        title: "Uncontended: tasks on distinct keys, one process",
        columns: &[c::GRANTS, c::OF_LIMIT, c::PAIR_P50, c::PAIR_P99, c::PROCESSOR],
        limit: Some("raw"),
        rounds: (1, 3),
        takes: |contestant| contestant.reach == Reach::Server,
        measure: uncontended::measure,
    },
    Workload {
        name: "hot",
        title: "A hot key in one process",
        columns: &[
            c::GRANTS,
            c::OF_LIMIT,
            c::COMMANDS,
            c::WAIT_P50,
            c::WAIT_P99,
            c::JAIN_TASKS,
            c::STARVED,
            c::PROCESSOR,
        ],
        limit: Some("tokio-mutex"),
        rounds: (1, 3),
        takes: waits,
        measure: hot::one_process,
    },
    Workload {
        name: "processes",
        title: "A hot key, several processes of 16 tasks each",
        columns: &[
            c::GRANTS,
            c::JAIN_PROCESSES,
            c::JAIN_TASKS,
            c::COMMANDS,
            c::CROSSING_P50,
            c::CROSSING_TRIPS,
            c::CROSSING_SHARE,
            c::WAIT_P99,
        ],
        limit: None,
        rounds: (1, 3),
        takes: waits_at_the_server,
        measure: hot::processes,
    },
    Workload {
        name: "waiters",
        title: "Many waiters on one key of another process",
        columns: &[
            c::DRAIN,
            c::COMMANDS,
            c::PER_WAITER,
            c::CONNECTIONS,
            c::SUBSCRIBERS,
            c::HAND_OVER_P50,
        ],
        limit: None,
        rounds: (1, 2),
        takes: waits,
        measure: waiters::measure,
    },
    Workload {
        name: "zipf",
        title: "1,000 keys drawn by Zipf's law, 4,000 tasks in one process",
        columns: &[c::GRANTS, c::WAIT_P50, c::WAIT_P99, c::STARVED],
        limit: None,
        rounds: (1, 3),
        takes: waits,
        measure: zipf::measure,
    },
    Workload {
        name: "held",
        title: "Many locks that are held and renewed",
        columns: &[c::LATEST, c::LEASE, c::TRAFFIC, c::PROCESSOR, c::PER_LOCK, c::TAKE],
        limit: None,
        rounds: (1, 1),
        takes: |contestant| contestant.reach == Reach::Server && contestant.role != Role::Limit,
        measure: held::measure,
    },
    Workload {
        name: "idle",
        title: "From a release to the next grant, to one waiter that sleeps",
        columns: &[c::IDLE_P50, c::IDLE_P99, c::IDLE_TRIPS],
        limit: None,
        rounds: (1, 2),
        takes: waits,
        measure: idle::measure,
    },
    Workload {
        name: "re-entrant",
        title: "A nested call on a key that is held around it",
        columns: &[c::CALL],
        limit: None,
        rounds: (1, 3),
        takes: |contestant| ["tokio-mutex", "ours-memory"].contains(&contestant.name),
        measure: reentrant::measure,
    },
];

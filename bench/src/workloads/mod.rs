//! The workloads, one file each.

mod clients;
mod far;
mod held;
mod hot;
mod idle;
pub(crate) mod kinds;
pub(crate) mod repeated;
pub(crate) mod run;
mod uncontended;
mod waiters;
mod zipf;

use std::time::Duration;

use anyhow::Result;

use crate::contestant::{Contestant, LockKind, Program, Programs, Reach, Role};
use crate::metric::{self as m, Metric};
use crate::process::ContestantProcess;
use crate::record::RecordFiles;
use crate::results::Measurement;
use crate::server::Server;

/// The environment of all workloads.
pub(crate) struct Bench {
    pub(crate) server: Server,
    pub(crate) programs: Programs,
    pub(crate) files: RecordFiles,
    pub(crate) quick: bool,
    pub(crate) long: bool,
    /// The numbers of clients in the workload `clients`.
    pub(crate) clients: Vec<u32>,
    /// The duration of one rate measurement.
    pub(crate) time: Duration,
    /// The median round trip to the idle server in this round, in nanoseconds.
    pub(crate) round_trip: f64,
}

impl Bench {
    pub(crate) fn start(&self, contestant: &Contestant) -> Result<ContestantProcess> {
        ContestantProcess::start(contestant, &self.programs, &self.server.url())
    }

    fn start_several(
        &self,
        contestant: &Contestant,
        count: usize,
    ) -> Result<Vec<ContestantProcess>> {
        (0..count).map(|_| self.start(contestant)).collect()
    }
}

/// One workload.
pub(crate) struct Workload {
    pub(crate) name: &'static str,
    pub(crate) title: &'static str,
    pub(crate) metrics: &'static [Metric],
    /// The contestant that is the limit for the main metric.
    pub(crate) limit: Option<&'static str>,
    /// The number of rounds of a quick and of a full run.
    pub(crate) rounds: (usize, usize),
    pub(crate) runs_on_cluster: bool,
    /// Whether a contestant takes part.
    pub(crate) takes: fn(&Contestant) -> bool,
    /// Measures one contestant in all shapes of one round.
    pub(crate) measure: fn(&mut Bench, &Contestant, usize) -> Result<Vec<Measurement>>,
}

fn waits(contestant: &Contestant) -> bool {
    contestant.waits
}

fn waits_at_the_server(contestant: &Contestant) -> bool {
    contestant.waits && contestant.reach == Reach::Server
}

/// Whether a process of the contestant can have several clients.
fn has_many_clients(contestant: &Contestant) -> bool {
    waits_at_the_server(contestant) && !matches!(contestant.program, Program::Peer(_))
}

pub(crate) const ALL: [Workload; 13] = [
    Workload {
        name: "uncontended",
        title: "Uncontended: tasks on distinct keys, one process",
        metrics: &[m::GRANTS, m::OF_LIMIT, m::PAIR_P50, m::PAIR_P99, m::PROCESSOR],
        limit: Some("raw"),
        rounds: (1, 3),
        runs_on_cluster: true,
        takes: |contestant| contestant.reach == Reach::Server,
        measure: uncontended::measure,
    },
    Workload {
        name: "far",
        title: "One task, 1,000 keys drawn by Zipf's law, a delay of 1 ms in each direction",
        metrics: &[m::GRANTS, m::PAIR_P50, m::PAIR_TRIPS],
        limit: None,
        rounds: (1, 3),
        runs_on_cluster: false,
        takes: |contestant| contestant.reach == Reach::Server,
        measure: far::measure,
    },
    Workload {
        name: "hot",
        title: "A hot key in one process",
        metrics: &[
            m::GRANTS,
            m::OF_LIMIT,
            m::COMMANDS,
            m::WAIT_P50,
            m::WAIT_P99,
            m::JAIN_TASKS,
            m::STARVED,
            m::PROCESSOR,
        ],
        limit: Some("tokio-mutex"),
        rounds: (1, 3),
        runs_on_cluster: false,
        takes: waits,
        measure: hot::one_process,
    },
    Workload {
        name: "processes",
        title: "A hot key, several processes of 16 tasks each",
        metrics: &[
            m::GRANTS,
            m::JAIN_PROCESSES,
            m::JAIN_TASKS,
            m::COMMANDS,
            m::CROSSING_P50,
            m::CROSSING_TRIPS,
            m::CROSSING_SHARE,
            m::WAIT_P99,
        ],
        limit: None,
        rounds: (1, 3),
        runs_on_cluster: false,
        takes: waits_at_the_server,
        measure: hot::processes,
    },
    Workload {
        name: "clients",
        title: "A hot key, clients with connections of their own, up to 4 processes",
        metrics: &[
            m::GRANTS,
            m::COMMANDS,
            m::ALL_COMMANDS,
            m::HANDOFF_P50,
            m::JAIN_CLIENTS,
            m::LONGEST_WAIT,
            m::STARVED,
            m::PROCESSOR,
        ],
        limit: None,
        rounds: (1, 2),
        runs_on_cluster: false,
        takes: has_many_clients,
        measure: clients::measure,
    },
    Workload {
        name: "waiters",
        title: "Many waiters for one key that another process holds",
        metrics: &[
            m::DRAIN,
            m::COMMANDS,
            m::PER_WAITER,
            m::CONNECTIONS,
            m::SUBSCRIBERS,
            m::HANDOFF_P50,
        ],
        limit: None,
        rounds: (1, 2),
        runs_on_cluster: false,
        takes: waits,
        measure: waiters::measure,
    },
    Workload {
        name: "zipf",
        title: "1,000 keys drawn by Zipf's law, 4,000 tasks in one process",
        metrics: &[m::GRANTS, m::WAIT_P50, m::WAIT_P99, m::STARVED],
        limit: None,
        rounds: (1, 3),
        runs_on_cluster: false,
        takes: waits,
        measure: zipf::measure,
    },
    Workload {
        name: "held",
        title: "Many held and renewed locks",
        metrics: &[m::LATEST, m::LEASE, m::TRAFFIC, m::PROCESSOR, m::PER_LOCK, m::TAKE],
        limit: None,
        rounds: (1, 1),
        runs_on_cluster: false,
        takes: |contestant| contestant.reach == Reach::Server && contestant.role != Role::Limit,
        measure: held::measure,
    },
    Workload {
        name: "idle",
        title: "From a release to the grant of one sleeping waiter",
        metrics: &[m::IDLE_P50, m::IDLE_P99, m::IDLE_TRIPS],
        limit: None,
        rounds: (1, 2),
        runs_on_cluster: false,
        takes: waits,
        measure: idle::measure,
    },
    Workload {
        name: "sets",
        title: "Several keys that are locked together, 64 tasks on distinct keys",
        metrics: &[m::GRANTS, m::OF_SINGLE, m::COMMANDS, m::PAIR_P50],
        limit: None,
        rounds: (1, 3),
        runs_on_cluster: false,
        takes: |contestant| contestant.of_kind(LockKind::Keys(2)).is_some(),
        measure: kinds::sets,
    },
    Workload {
        name: "read-write",
        title: "Readers and writers",
        metrics: &[
            m::GRANTS,
            m::OF_SINGLE,
            m::COMMANDS,
            m::PAIR_P50,
            m::WAIT_P99,
            m::LONGEST_OF_TURN,
        ],
        limit: None,
        rounds: (1, 3),
        runs_on_cluster: false,
        takes: |contestant| contestant.of_kind(LockKind::ReadWrite).is_some(),
        measure: kinds::readers_and_writers,
    },
    Workload {
        name: "permits",
        title: "Permits of semaphores",
        metrics: &[m::GRANTS, m::OF_SINGLE, m::COMMANDS, m::PAIR_P50, m::WAIT_P99],
        limit: None,
        rounds: (1, 3),
        runs_on_cluster: false,
        takes: |contestant| contestant.of_kind(LockKind::Permits).is_some(),
        measure: kinds::permits,
    },
    Workload {
        name: "repeated",
        title: "One call after the other on one key, in one task",
        metrics: &[m::CALL, m::OF_UNCONTENDED],
        limit: None,
        rounds: (1, 3),
        runs_on_cluster: false,
        takes: |contestant| ["tokio-mutex", "ours-memory", "ours"].contains(&contestant.name),
        measure: repeated::measure,
    },
];

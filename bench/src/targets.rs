//! The targets of the benchmark.

use crate::contestant::ServerKind;
use crate::metric::{self as m, Metric};
use crate::results::Results;

/// A target and the measured value.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Target {
    pub(crate) what: String,
    pub(crate) wanted: String,
    /// `None` if the value was not measured or does not count.
    pub(crate) measured: Option<f64>,
    pub(crate) written: String,
    pub(crate) is_met: bool,
}

/// A figure of this library, and its target.
struct Figure {
    what: &'static str,
    workload: &'static str,
    shape: &'static str,
    metric: Metric,
    wanted: Wanted,
}

#[derive(Clone, Copy)]
enum Wanted {
    AtLeast(f64),
    AtMost(f64),
    /// At most this much more than the same tasks with tokio's mutex.
    AtMostBeyondTokio(f64),
    /// At least this many times better than the best peer.
    Leads(f64),
}

use Wanted::{AtLeast, AtMost, AtMostBeyondTokio, Leads};

const fn figure(
    what: &'static str,
    workload: &'static str,
    shape: &'static str,
    metric: Metric,
    wanted: Wanted,
) -> Figure {
    Figure { what, workload, shape, metric, wanted }
}

const FIGURES: [Figure; 18] = [
    figure(
        "1 ms of delay in each direction, release in the background: call in round trips",
        "far",
        "release in the background",
        m::PAIR_TRIPS,
        AtMost(1.1),
    ),
    figure(
        "uncontended, 64 tasks: of the raw limit",
        "uncontended",
        "64 tasks",
        m::OF_LIMIT,
        AtLeast(0.9),
    ),
    figure(
        "uncontended, 1 task: against the best peer",
        "uncontended",
        "1 task",
        m::GRANTS,
        Leads(1.0),
    ),
    figure(
        "uncontended, 64 tasks: against the best peer",
        "uncontended",
        "64 tasks",
        m::GRANTS,
        Leads(1.0),
    ),
    figure(
        "uncontended, 1,024 tasks: against the best peer",
        "uncontended",
        "1,024 tasks",
        m::GRANTS,
        Leads(1.0),
    ),
    figure(
        "hot key, 2 tasks: grants/s",
        "hot",
        "2 tasks, empty body",
        m::GRANTS,
        AtLeast(300_000.0),
    ),
    figure(
        "hot key, 64 tasks: grants/s",
        "hot",
        "64 tasks, empty body",
        m::GRANTS,
        AtLeast(300_000.0),
    ),
    figure(
        "hot key, 1,024 tasks: grants/s",
        "hot",
        "1,024 tasks, empty body",
        m::GRANTS,
        AtLeast(300_000.0),
    ),
    figure(
        "hot key, 64 tasks: commands per grant",
        "hot",
        "64 tasks, empty body",
        m::COMMANDS,
        AtMost(0.1),
    ),
    figure(
        "hot key, 2 tasks: against the best peer",
        "hot",
        "2 tasks, empty body",
        m::GRANTS,
        Leads(20.0),
    ),
    figure(
        "hot key, 64 tasks: against the best peer",
        "hot",
        "64 tasks, empty body",
        m::GRANTS,
        Leads(20.0),
    ),
    figure(
        "hot key, 1,024 tasks: against the best peer",
        "hot",
        "1,024 tasks, empty body",
        m::GRANTS,
        Leads(20.0),
    ),
    figure(
        "hot key, 4 processes: against the best peer",
        "processes",
        "4 processes",
        m::GRANTS,
        Leads(1.0),
    ),
    figure(
        "hot key, 4 processes: Jain across processes",
        "processes",
        "4 processes",
        m::JAIN_PROCESSES,
        AtLeast(0.9),
    ),
    figure("10,000 waiters: subscribers", "waiters", "10,000 waiters", m::SUBSCRIBERS, AtMost(1.0)),
    figure(
        "10,000 waiters: commands per hand-off",
        "waiters",
        "10,000 waiters",
        m::COMMANDS,
        AtMost(5.0),
    ),
    figure(
        "10,000 waiters: memory per waiter, beyond that of the task",
        "waiters",
        "10,000 waiters",
        m::PER_WAITER,
        AtMostBeyondTokio(1024.0),
    ),
    figure(
        "100,000 held locks: latest renewal, of the lease",
        "held",
        "100,000 locks",
        m::LATEST,
        AtMost(0.5),
    ),
];

const TLS_FIGURES: [Figure; 1] = [figure(
    "uncontended over TLS, 64 tasks: of the raw limit",
    "uncontended",
    "64 tasks",
    m::OF_LIMIT,
    AtLeast(0.9),
)];

const CLUSTER_FIGURES: [Figure; 4] = [
    figure(
        "uncontended on a cluster, 64 tasks: of the raw limit",
        "uncontended",
        "64 tasks",
        m::OF_LIMIT,
        AtLeast(0.95),
    ),
    figure(
        "uncontended on a cluster, 1 task: against redis-rs's cluster client",
        "uncontended",
        "1 task",
        m::GRANTS,
        Leads(1.2),
    ),
    figure(
        "uncontended on a cluster, 64 tasks: against redis-rs's cluster client",
        "uncontended",
        "64 tasks",
        m::GRANTS,
        Leads(1.2),
    ),
    figure(
        "uncontended on a cluster, 1,024 tasks: against redis-rs's cluster client",
        "uncontended",
        "1,024 tasks",
        m::GRANTS,
        Leads(1.2),
    ),
];

/// Compares the results with the targets.
pub(crate) fn targets(servers: ServerKind, results: &[Results]) -> Vec<Target> {
    let figures: &[Figure] = match servers {
        ServerKind::Plain => &FIGURES,
        ServerKind::Tls => &TLS_FIGURES,
        ServerKind::Cluster => &CLUSTER_FIGURES,
    };
    figures.iter().map(|figure| figure.target(results)).collect()
}

impl Figure {
    fn target(&self, results: &[Results]) -> Target {
        let results = results.iter().find(|results| results.workload == self.workload);
        let (wanted, measured, written, is_met) = match self.wanted {
            Leads(times) => {
                let lead = results.and_then(|r| r.lead(self.shape, "ours", self.metric));
                let written = lead.map(|(peer, lead)| format!("{lead:.2} × {peer}"));
                let wanted = format!("≥ {times} ×");
                (wanted, lead.map(|(_, lead)| lead), written, lead.is_some_and(|(_, l)| l >= times))
            }
            AtLeast(bound) => {
                let value = self.counted(results);
                let is_met = value.is_some_and(|value| value >= bound);
                (format!("≥ {}", self.metric.write(bound)), value, self.write(value), is_met)
            }
            AtMostBeyondTokio(bound) => {
                let task = results.and_then(|r| r.counted(self.shape, "tokio-mutex", self.metric));
                let value = self.counted(results).zip(task).map(|(all, task)| all - task);
                let is_met = value.is_some_and(|value| value <= bound);
                (format!("≤ {}", self.metric.write(bound)), value, self.write(value), is_met)
            }
            AtMost(bound) => {
                let value = self.counted(results);
                let is_met = value.is_some_and(|value| value <= bound);
                (format!("≤ {}", self.metric.write(bound)), value, self.write(value), is_met)
            }
        };
        let written = written.unwrap_or_else(|| "not measured".to_owned());
        Target { what: self.what.to_owned(), wanted, measured, written, is_met }
    }

    fn counted(&self, results: Option<&Results>) -> Option<f64> {
        results?.counted(self.shape, "ours", self.metric)
    }

    fn write(&self, value: Option<f64>) -> Option<String> {
        value.map(|value| self.metric.write(value))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::contestant;
    use crate::results::Measurement;

    fn measured(jain: f64, overlaps: u64) -> Target {
        let mut results = Results::new("processes", &[m::GRANTS]);
        let mut measurement = Measurement::new("4 processes", &contestant::ALL[3], 0);
        measurement.set(m::JAIN_PROCESSES, jain);
        measurement.overlaps = overlaps;
        results.add(measurement);
        let targets = targets(ServerKind::Plain, &[results]);
        targets.into_iter().find(|target| target.what.ends_with("Jain across processes")).unwrap()
    }

    #[test]
    fn a_target_is_met_missed_or_does_not_count() {
        assert!(measured(0.95, 0).is_met);
        assert!(!measured(0.85, 0).is_met);
        let overlapped = measured(0.95, 1);
        assert!(!overlapped.is_met && overlapped.measured.is_none());
    }

    #[test]
    fn what_was_not_measured_is_not_met() {
        for servers in [ServerKind::Plain, ServerKind::Tls, ServerKind::Cluster] {
            assert!(targets(servers, &[]).iter().all(|target| !target.is_met));
        }
    }
}

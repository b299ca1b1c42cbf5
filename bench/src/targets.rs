//! The targets of the benchmark.

use crate::contestant::ServerKind;
use crate::metric::{self as m, Metric};
use crate::results::Results;
use crate::workloads::kinds::{
    CONTENDED, ONE_KEY, OWN_KEYS, READERS, SHARED, WITH_WRITER, WRITERS,
};
use crate::workloads::repeated::LINGERS;

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
    /// At least this many times the figure of another shape.
    AtLeastOf(f64, &'static str),
    /// At most this many times the figure of another shape.
    AtMostOf(f64, &'static str),
    /// At least this in each shape whose name ends with that of the figure.
    EachAtLeast(f64),
    /// At most this in each shape whose name ends with that of the figure.
    EachAtMost(f64),
}

use Wanted::{
    AtLeast, AtLeastOf, AtMost, AtMostBeyondTokio, AtMostOf, EachAtLeast, EachAtMost, Leads,
};

const fn figure(
    what: &'static str,
    workload: &'static str,
    shape: &'static str,
    metric: Metric,
    wanted: Wanted,
) -> Figure {
    Figure { what, workload, shape, metric, wanted }
}

const FIGURES: [Figure; 37] = [
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
        AtLeast(1.0),
    ),
    figure(
        "uncontended, 1 task: of the raw limit",
        "uncontended",
        "1 task",
        m::OF_LIMIT,
        AtLeast(0.95),
    ),
    figure(
        "uncontended, 1,024 tasks: of the raw limit",
        "uncontended",
        "1,024 tasks",
        m::OF_LIMIT,
        AtLeast(1.0),
    ),
    figure(
        "uncontended, 1 task: against the best peer",
        "uncontended",
        "1 task",
        m::GRANTS,
        Leads(1.0),
    ),
    figure(
        "uncontended, 8 tasks: against the best peer",
        "uncontended",
        "8 tasks",
        m::GRANTS,
        Leads(1.15),
    ),
    figure(
        "uncontended, 64 tasks: against the best peer",
        "uncontended",
        "64 tasks",
        m::GRANTS,
        Leads(1.15),
    ),
    figure(
        "uncontended, 1,024 tasks: against the best peer",
        "uncontended",
        "1,024 tasks",
        m::GRANTS,
        Leads(1.15),
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
    figure(
        "clients of their own, any number: commands per grant",
        "clients",
        "",
        m::COMMANDS,
        EachAtMost(4.0),
    ),
    figure(
        "1,000 clients of their own: commands with those of scripts, against 2 clients",
        "clients",
        "1,000 clients, 1 ms body",
        m::ALL_COMMANDS,
        AtMostOf(1.2, "2 clients, 1 ms body"),
    ),
    figure(
        "256 clients of their own: grants/s, against 2 clients",
        "clients",
        "256 clients, 1 ms body",
        m::GRANTS,
        AtLeastOf(0.8, "2 clients, 1 ms body"),
    ),
    figure(
        "256 clients of their own: hand-off p50, against 2 clients",
        "clients",
        "256 clients, 1 ms body",
        m::HANDOFF_P50,
        AtMostOf(1.5, "2 clients, 1 ms body"),
    ),
    figure(
        "clients of their own, any number: Jain across clients",
        "clients",
        "",
        m::JAIN_CLIENTS,
        EachAtLeast(0.98),
    ),
    figure(
        "clients of their own, any number, 1 ms body: longest wait, of the fair share",
        "clients",
        " 1 ms body",
        m::LONGEST_WAIT,
        EachAtMost(3.0),
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
    figure("one sleeping waiter: p50, against the best peer", "idle", "", m::IDLE_P50, Leads(1.0)),
    figure("8 keys together: commands per grant", "sets", "8 keys", m::COMMANDS, AtMost(2.1)),
    figure("64 writers: of a single lock", "read-write", WRITERS, m::OF_SINGLE, AtLeast(0.7)),
    figure("64 readers: of a single lock", "read-write", READERS, m::OF_SINGLE, AtLeast(0.7)),
    figure(
        "64 readers of one key: commands per grant",
        "read-write",
        SHARED,
        m::COMMANDS,
        AtMost(0.1),
    ),
    figure(
        "64 readers and a writer, 4 processes: longest wait, of a turn",
        "read-write",
        WITH_WRITER,
        m::LONGEST_OF_TURN,
        AtMost(3.0),
    ),
    figure("1 of 10 permits: of a single lock", "permits", OWN_KEYS, m::OF_SINGLE, AtLeast(0.7)),
    figure(
        "64 holders of one key: of a single lock",
        "permits",
        ONE_KEY,
        m::OF_SINGLE,
        AtLeast(0.5),
    ),
    figure(
        "64 tasks for 8 permits: commands per grant",
        "permits",
        CONTENDED,
        m::COMMANDS,
        AtMost(1.0),
    ),
    figure(
        "a call on a lock that lingers: of an uncontended call in memory",
        "repeated",
        LINGERS,
        m::OF_UNCONTENDED,
        AtMost(1.3),
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
                let (written, lead) =
                    (lead.map(|lead| lead.to_string()), lead.map(|lead| lead.times));
                let wanted = format!("≥ {times} ×");
                (wanted, lead, written, lead.is_some_and(|lead| lead >= times))
            }
            AtLeastOf(times, other) | AtMostOf(times, other) => {
                let values = self.counted(results).zip(self.counted_in(results, other));
                let ratio = values.map(|(value, base)| value / base);
                let is_least = matches!(self.wanted, AtLeastOf(..));
                let is_met = |ratio| if is_least { ratio >= times } else { ratio <= times };
                let written = values.map(|(value, base)| {
                    let (value_of, base_of) = (self.metric.write(value), self.metric.write(base));
                    format!("{:.2} × ({value_of} against {base_of})", value / base)
                });
                let wanted = format!("{} {times} ×", if is_least { "≥" } else { "≤" });
                (wanted, ratio, written, ratio.is_some_and(is_met))
            }
            EachAtLeast(bound) | EachAtMost(bound) => {
                let is_least = matches!(self.wanted, EachAtLeast(_));
                let worst = self.worst(results, is_least);
                let value = worst.map(|(_, value)| value);
                let is_met = |value| if is_least { value >= bound } else { value <= bound };
                let written =
                    worst.map(|(shape, value)| format!("{} ({shape})", self.metric.write(value)));
                let wanted =
                    format!("{} {}", if is_least { "≥" } else { "≤" }, self.metric.write(bound));
                (wanted, value, written, value.is_some_and(is_met))
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
        self.counted_in(results, self.shape)
    }

    fn counted_in(&self, results: Option<&Results>, shape: &str) -> Option<f64> {
        results?.counted(shape, "ours", self.metric)
    }

    /// The lowest or highest value of the shapes whose names end with that of the figure, and its
    /// shape. `None` if one of the values does not count.
    fn worst<'a>(&self, results: Option<&'a Results>, is_lowest: bool) -> Option<(&'a str, f64)> {
        let shapes = results?.shapes().into_iter().filter(|shape| shape.ends_with(self.shape));
        let values: Option<Vec<(&str, f64)>> =
            shapes.map(|shape| Some((shape, self.counted_in(results, shape)?))).collect();
        values?.into_iter().reduce(|worst, next| {
            let is_worse = if is_lowest { next.1 < worst.1 } else { next.1 > worst.1 };
            if is_worse { next } else { worst }
        })
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
        let mut measurement = Measurement::new("4 processes", &contestant::OURS, 0);
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

    fn of_clients(metric: Metric, values: &[(&str, f64)]) -> Vec<Target> {
        let mut results = Results::new("clients", &[m::GRANTS]);
        for (shape, value) in values {
            let mut measurement = Measurement::new(*shape, &contestant::OURS, 0);
            measurement.set(metric, *value);
            results.add(measurement);
        }
        let figures = FIGURES.iter().filter(|f| f.workload == "clients" && f.metric == metric);
        figures.map(|figure| figure.target(std::slice::from_ref(&results))).collect()
    }

    #[test]
    fn a_figure_is_compared_with_that_of_another_shape() {
        let is_met = |few, many| {
            let (few, many) = (("2 clients, 1 ms body", few), ("256 clients, 1 ms body", many));
            of_clients(m::GRANTS, &[few, many])[0].is_met
        };
        assert!(is_met(100.0, 81.0));
        assert!(!is_met(100.0, 79.0));
        assert!(!of_clients(m::GRANTS, &[("256 clients, 1 ms body", 81.0)])[0].is_met);
    }

    #[test]
    fn the_worst_of_several_shapes_decides() {
        let shapes = [("2 clients, empty body", 9.0), ("2 clients, 1 ms body", 2.0)];
        let targets = of_clients(m::LONGEST_WAIT, &shapes);
        assert!(targets[0].is_met, "only the 1 ms body counts");
        let targets = of_clients(m::COMMANDS, &shapes);
        assert!(!targets[0].is_met);
        assert_eq!(targets[0].written, "9 (2 clients, empty body)");
    }

    #[test]
    fn what_was_not_measured_is_not_met() {
        for servers in [ServerKind::Plain, ServerKind::Tls, ServerKind::Cluster] {
            assert!(targets(servers, &[]).iter().all(|target| !target.is_met));
        }
    }
}

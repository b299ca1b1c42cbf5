//! The metrics, and how their values are formatted.

use std::time::Duration;

/// The name of a metric, and its unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Metric {
    pub(crate) name: &'static str,
    pub(crate) unit: Unit,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Unit {
    /// A rate; more is better.
    PerSecond,
    /// Nanoseconds; less is better.
    Time,
    /// Bytes; less is better.
    Memory,
    Number,
    Ratio,
    Share,
}

const fn metric(name: &'static str, unit: Unit) -> Metric {
    Metric { name, unit }
}

pub(crate) const GRANTS: Metric = metric("grants/s", Unit::PerSecond);
pub(crate) const OF_LIMIT: Metric = metric("of the limit", Unit::Ratio);
pub(crate) const PAIR_P50: Metric = metric("pair p50", Unit::Time);
pub(crate) const PAIR_TRIPS: Metric = metric("pair in round trips", Unit::Number);
pub(crate) const PAIR_P99: Metric = metric("pair p99", Unit::Time);
pub(crate) const WAIT_P50: Metric = metric("wait p50", Unit::Time);
pub(crate) const WAIT_P99: Metric = metric("wait p99", Unit::Time);
pub(crate) const COMMANDS: Metric = metric("commands per grant", Unit::Number);
pub(crate) const ALL_COMMANDS: Metric = metric("with those of scripts", Unit::Number);
pub(crate) const JAIN_TASKS: Metric = metric("Jain, tasks", Unit::Ratio);
pub(crate) const JAIN_PROCESSES: Metric = metric("Jain, processes", Unit::Ratio);
pub(crate) const JAIN_CLIENTS: Metric = metric("Jain, clients", Unit::Ratio);
pub(crate) const LONGEST_WAIT: Metric = metric("longest wait, of the fair share", Unit::Ratio);
/// A turn of the readers, or the writers, of one process while others wait: 50 ms.
pub(crate) const LONGEST_OF_TURN: Metric = metric("longest wait, of a turn", Unit::Ratio);
pub(crate) const STARVED: Metric = metric("tasks without a grant", Unit::Share);
pub(crate) const HANDOFF_P50: Metric = metric("hand-off p50", Unit::Time);
pub(crate) const CROSSING_P50: Metric = metric("to another process p50", Unit::Time);
pub(crate) const CROSSING_TRIPS: Metric = metric("in round trips", Unit::Number);
pub(crate) const CROSSING_SHARE: Metric = metric("of all hand-offs", Unit::Share);
pub(crate) const PROCESSOR: Metric = metric("client CPU", Unit::Share);
pub(crate) const DRAIN: Metric = metric("time to drain", Unit::Time);
pub(crate) const PER_WAITER: Metric = metric("memory per waiter", Unit::Memory);
pub(crate) const PER_LOCK: Metric = metric("memory per lock", Unit::Memory);
pub(crate) const CONNECTIONS: Metric = metric("connections", Unit::Number);
pub(crate) const SUBSCRIBERS: Metric = metric("subscribers", Unit::Number);
pub(crate) const TAKE: Metric = metric("time to take all", Unit::Time);
pub(crate) const TRAFFIC: Metric = metric("commands/s", Unit::Number);
pub(crate) const LATEST: Metric = metric("latest renewal, of the lease", Unit::Share);
pub(crate) const LEASE: Metric = metric("lease", Unit::Time);
pub(crate) const IDLE_P50: Metric = metric("p50", Unit::Time);
pub(crate) const IDLE_P99: Metric = metric("p99", Unit::Time);
pub(crate) const IDLE_TRIPS: Metric = metric("p50 in round trips", Unit::Number);
pub(crate) const GAP: Metric = metric("longest time without a grant", Unit::Time);
pub(crate) const TASK_GAP: Metric = metric("of one task", Unit::Time);
pub(crate) const AWAY: Metric = metric("until the server answers again", Unit::Time);
pub(crate) const FAILED: Metric = metric("failed calls", Unit::Number);
pub(crate) const CALL: Metric = metric("per call", Unit::Time);
pub(crate) const OF_SINGLE: Metric = metric("of a single lock", Unit::Ratio);
pub(crate) const OF_UNCONTENDED: Metric = metric("of an uncontended call in memory", Unit::Ratio);

impl Metric {
    /// Whether a higher value is better.
    pub(crate) fn rises(&self) -> bool {
        self.unit == Unit::PerSecond
    }

    pub(crate) fn write(&self, value: f64) -> String {
        match self.unit {
            Unit::PerSecond => whole(value),
            Unit::Time => time(value),
            Unit::Memory if value >= 1e6 => format!("{:.1} MB", value / 1e6),
            Unit::Memory => format!("{} B", whole(value)),
            Unit::Share => format!("{:.0} %", value * 100.0),
            Unit::Ratio if value < 0.1 => format!("{value:.3}"),
            Unit::Number if value >= 1000.0 => whole(value),
            Unit::Number if value >= 100.0 => format!("{value:.0}"),
            Unit::Number if value >= 10.0 => format!("{value:.1}"),
            Unit::Number if value.fract() == 0.0 => format!("{value:.0}"),
            Unit::Ratio | Unit::Number => format!("{value:.2}"),
        }
    }
}

/// Formats a whole number with commas as thousands separators.
fn whole(value: f64) -> String {
    let digits = format!("{:.0}", value.abs());
    let mut written = String::from(if value < 0.0 { "-" } else { "" });
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            written.push(',');
        }
        written.push(digit);
    }
    written
}

fn time(nanos: f64) -> String {
    let time = Duration::from_nanos(nanos.max(0.0) as u64);
    match nanos {
        ..1e3 => format!("{nanos:.0} ns"),
        1e3..1e6 => format!("{:.1} µs", nanos / 1e3),
        1e6..1e9 => format!("{:.1} ms", nanos / 1e6),
        _ => format!("{:.1} s", time.as_secs_f64()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thousands_have_commas() {
        assert_eq!(GRANTS.write(999.4), "999");
        assert_eq!(GRANTS.write(1_234_567.0), "1,234,567");
        assert_eq!(GRANTS.write(-1234.0), "-1,234");
    }

    #[test]
    fn times_have_the_unit_that_fits() {
        assert_eq!(CALL.write(37.2), "37 ns");
        assert_eq!(CALL.write(1500.0), "1.5 µs");
        assert_eq!(CALL.write(2.5e9), "2.5 s");
    }
}

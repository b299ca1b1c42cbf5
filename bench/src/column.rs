//! What is measured, and how it is written.

use std::time::Duration;

/// A figure's name and how it is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Column {
    pub(crate) name: &'static str,
    pub(crate) unit: Unit,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Unit {
    /// More is better.
    PerSecond,
    /// Nanoseconds; less is better.
    Time,
    /// Bytes; less is better.
    Memory,
    Number,
    Ratio,
    Share,
}

const fn column(name: &'static str, unit: Unit) -> Column {
    Column { name, unit }
}

pub(crate) const GRANTS: Column = column("grants/s", Unit::PerSecond);
pub(crate) const OF_LIMIT: Column = column("of the limit", Unit::Ratio);
pub(crate) const PAIR_P50: Column = column("pair p50", Unit::Time);
pub(crate) const PAIR_P99: Column = column("pair p99", Unit::Time);
pub(crate) const WAIT_P50: Column = column("wait p50", Unit::Time);
pub(crate) const WAIT_P99: Column = column("wait p99", Unit::Time);
pub(crate) const COMMANDS: Column = column("commands per grant", Unit::Number);
pub(crate) const JAIN_TASKS: Column = column("Jain, tasks", Unit::Ratio);
pub(crate) const JAIN_PROCESSES: Column = column("Jain, processes", Unit::Ratio);
pub(crate) const STARVED: Column = column("tasks without a grant", Unit::Share);
pub(crate) const HAND_OVER_P50: Column = column("hand-over p50", Unit::Time);
pub(crate) const CROSSING_P50: Column = column("to another process p50", Unit::Time);
pub(crate) const CROSSING_TRIPS: Column = column("in round trips", Unit::Number);
pub(crate) const CROSSING_SHARE: Column = column("of all hand-overs", Unit::Share);
pub(crate) const PROCESSOR: Column = column("client CPU", Unit::Share);
pub(crate) const DRAIN: Column = column("time to drain", Unit::Time);
pub(crate) const PER_WAITER: Column = column("memory per waiter", Unit::Memory);
pub(crate) const PER_LOCK: Column = column("memory per lock", Unit::Memory);
pub(crate) const CONNECTIONS: Column = column("connections", Unit::Number);
pub(crate) const SUBSCRIBERS: Column = column("subscribers", Unit::Number);
pub(crate) const TAKE: Column = column("time to take all", Unit::Time);
pub(crate) const TRAFFIC: Column = column("commands/s", Unit::Number);
pub(crate) const LATEST: Column = column("latest renewal, of the lease", Unit::Share);
pub(crate) const LEASE: Column = column("lease", Unit::Time);
pub(crate) const IDLE_P50: Column = column("p50", Unit::Time);
pub(crate) const IDLE_P99: Column = column("p99", Unit::Time);
pub(crate) const IDLE_TRIPS: Column = column("p50 in round trips", Unit::Number);
pub(crate) const CALL: Column = column("per call", Unit::Time);

impl Column {
    /// Whether more of it is better.
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

/// A whole number with commas between the thousands.
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

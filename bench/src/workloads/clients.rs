//! One hot key: many clients, each with connections of its own and with one task.
//!
//! The contestants in Rust take part, because each of their libraries can have any number of
//! clients in a process. `ours` has three connections per client, and the peers have one, so 1,000
//! clients stay below the server's limit of connections. The programs of the other languages have
//! one client per process, so they do not take part.

use std::ops::Range;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::Result;

use super::Bench;
use super::run::used;
use crate::contestant::Contestant;
use crate::figures::{Durations, GrantHistory, ProcessGrant, jain, longest_wait};
use crate::metric as m;
use crate::process::{Answer, ContestantProcess};
use crate::record::{self, Record};
use crate::results::Measurement;
use crate::server::Monitor;

/// The clients are distributed over this many processes.
const PROCESSES: u32 = 4;
/// How long the clients may take to connect, or to stop.
const TIMEOUT: Duration = Duration::from_secs(60);
/// How long the measurement waits until each client has had the lock: this time, and a part of it
/// for each client. Some clients of a library that polls may not get the lock at all.
const SETTLE: Duration = Duration::from_secs(2);
const SETTLE_PER_CLIENT: Duration = Duration::from_millis(10);
/// How long the measurement takes for each client: several grants with a body of 1 ms.
const TIME_PER_CLIENT: Duration = Duration::from_millis(12);
/// How long the commands of clients and of scripts are counted separately, at least.
const SAMPLE: Duration = Duration::from_millis(300);

/// The number of grants per client from which on the longest wait is a figure.
const FAIR_SHARES: usize = 4;

/// The parameters of one measurement.
struct ClientsLoad {
    clients: u32,
    work: Duration,
}

/// What was measured while all clients competed.
struct Outcome {
    /// The grants in the whole competition. Clients are numbered across the processes.
    grants: Vec<ProcessGrant>,
    /// The time of the measurement, on the clock of the records.
    period: Range<u64>,
    /// The number of commands in the period, including those of scripts.
    commands: u64,
    /// The share of these commands that clients have sent.
    share: f64,
    /// The processor time that the clients used, in seconds.
    processor: f64,
}

pub(super) fn measure(
    bench: &mut Bench,
    contestant: &Contestant,
    round: usize,
) -> Result<Vec<Measurement>> {
    let mut measurements = Vec::new();
    for (work, body) in [(Duration::ZERO, "empty body"), (Duration::from_millis(1), "1 ms body")] {
        for clients in bench.clients.clone() {
            bench.server.clear()?;
            let shape = format!("{} clients, {body}", m::GRANTS.write(f64::from(clients)));
            measurements.push(match compete(bench, contestant, &ClientsLoad { clients, work }) {
                Ok(outcome) => {
                    let mut measurement = Measurement::new(shape, contestant, round);
                    outcome.write(clients, &mut measurement);
                    measurement
                }
                Err(error) => Measurement::failed(&shape, contestant, round, &error),
            });
        }
    }
    Ok(measurements)
}

/// Starts the processes anew, so that no client is left from another measurement.
fn compete(bench: &mut Bench, contestant: &Contestant, load: &ClientsLoad) -> Result<Outcome> {
    let count = load.clients.min(PROCESSES);
    let mut processes = bench.start_several(contestant, count as usize)?;
    let numbers: Vec<u32> =
        (0..count).map(|at| load.clients / count + u32::from(at < load.clients % count)).collect();

    let commands = numbers.iter().map(|number| format!("clients {number}"));
    ask_all(&mut processes, commands)?;
    let command = format!("compete hot {}", load.work.as_micros());
    let settled = Instant::now() + SETTLE + SETTLE_PER_CLIENT * load.clients;
    let mut tickets = Vec::new();
    for process in &mut processes {
        tickets.push(process.tell(&command)?);
    }
    for (process, ticket) in processes.iter().zip(tickets) {
        match process.answer(ticket, settled.saturating_duration_since(Instant::now()))? {
            Answer::Ok | Answer::Late => {}
            Answer::Unsupported => anyhow::bail!("one client per process"),
        }
    }

    let time = bench.time.max(TIME_PER_CLIENT * load.clients);
    let monitor = Monitor::start(&bench.server)?;
    sleep(SAMPLE.max(time / 5));
    let share = monitor.stop()?.share();
    let processor = used(&processes)?;
    let (begin, commands) = (record::now(), bench.server.commands()?);
    sleep(time);
    let (end, commands) = (record::now(), bench.server.commands_since(commands)?);
    let processor = used(&processes)? - processor;

    let files: Vec<_> =
        (0..processes.len()).map(|process| bench.files.file(process)).collect::<Result<_>>()?;
    ask_all(&mut processes, files.iter().map(|(_, file)| format!("stop {file}")))?;
    let mut grants = Vec::new();
    let mut first = 0;
    for (process, ((path, _), number)) in files.iter().zip(numbers).enumerate() {
        let records = record::read(path)?.into_iter();
        let numbered = records.map(|record| Record { task: first + record.task, ..record });
        grants.extend(numbered.map(|record| ProcessGrant { process, record }));
        first += number;
    }
    Ok(Outcome { grants, period: begin..end, commands, share, processor })
}

/// Sends a command to each process, and waits until all have succeeded.
fn ask_all(
    processes: &mut [ContestantProcess],
    commands: impl Iterator<Item = String>,
) -> Result<()> {
    let mut tickets = Vec::new();
    for (process, command) in processes.iter_mut().zip(commands) {
        tickets.push(process.tell(&command)?);
    }
    for (process, ticket) in processes.iter().zip(tickets) {
        process.done(ticket, TIMEOUT)?;
    }
    Ok(())
}

impl Outcome {
    /// Computes the figures. Only grants in the period count, except for overlaps.
    fn write(mut self, clients: u32, measurement: &mut Measurement) {
        let seconds = (self.period.end - self.period.start) as f64 / 1e9;
        measurement.overlaps = GrantHistory::of(&mut self.grants).overlaps;
        let records: Vec<Record> = self.grants.iter().map(|grant| grant.record).collect();
        self.grants.retain(|grant| self.period.contains(&grant.record.granted));
        let mut per_client = vec![0; clients as usize];
        for grant in &self.grants {
            per_client[grant.record.task as usize] += 1;
        }
        let grants = self.grants.len() as f64;
        let starved = per_client.iter().filter(|grants| **grants == 0).count();
        measurement.set(m::GRANTS, grants / seconds);
        measurement.set(m::STARVED, starved as f64 / f64::from(clients));
        measurement.set(m::PROCESSOR, self.processor / seconds);
        if self.grants.is_empty() {
            return;
        }
        measurement.set(m::COMMANDS, self.commands as f64 * self.share / grants);
        measurement.set(m::ALL_COMMANDS, self.commands as f64 / grants);
        let handoffs = GrantHistory::of(&mut self.grants).handoffs;
        let handoffs: Durations = handoffs.iter().map(|handoff| handoff.nanos).collect();
        measurement.set_nanos(m::HANDOFF_P50, handoffs.median());
        measurement.set(m::JAIN_CLIENTS, jain(&per_client));
        // In a shorter period, the longest wait would be cut off.
        if self.grants.len() >= FAIR_SHARES * per_client.len() {
            let fair_share = f64::from(clients) * seconds * 1e9 / grants;
            let longest = longest_wait(&records, per_client.len(), &self.period);
            measurement.set(m::LONGEST_WAIT, longest as f64 / fair_share);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::contestant;

    /// Grants that follow each other, with a hand-off of 10 ns and a hold of 90 ns, to these clients
    /// in turn.
    fn measured(turns: &[u32], clients: u32) -> Measurement {
        let grant = |(at, task): (u64, &u32)| {
            let granted = 1_000 + 100 * at;
            let record =
                Record { requested: 0, granted, released: granted + 90, task: *task, key: 0 };
            ProcessGrant { process: 0, record }
        };
        let grants: Vec<ProcessGrant> = (0..).zip(turns).map(grant).collect();
        let period = 1_000..1_000 + 100 * turns.len() as u64;
        let outcome = Outcome { grants, period, commands: 80, share: 0.25, processor: 0.0 };
        let mut measurement = Measurement::new("", &contestant::OURS, 0);
        outcome.write(clients, &mut measurement);
        measurement
    }

    #[track_caller]
    fn assert_figure(measurement: &Measurement, metric: m::Metric, expected: f64) {
        let figure = measurement.figures[&metric];
        assert!((figure - expected).abs() < 1e-6 * expected, "{figure}, not {expected}");
    }

    #[test]
    fn the_figures_are_those_of_the_period() {
        let measurement = measured(&[0, 1, 0, 1, 0, 1, 0, 1], 2);
        assert_figure(&measurement, m::GRANTS, 1e7);
        assert_figure(&measurement, m::COMMANDS, 2.5);
        assert_figure(&measurement, m::ALL_COMMANDS, 10.0);
        assert_figure(&measurement, m::HANDOFF_P50, 10.0);
        assert_figure(&measurement, m::JAIN_CLIENTS, 1.0);
        // All requests are at 0. The last grant is at 1,700 ns, and the fair share is 200 ns.
        assert_figure(&measurement, m::LONGEST_WAIT, 8.5);
    }

    #[test]
    fn a_starved_client_lowers_the_index() {
        let measurement = measured(&[0, 0, 0, 0], 2);
        assert_figure(&measurement, m::JAIN_CLIENTS, 0.5);
        assert_figure(&measurement, m::STARVED, 0.5);
        let is_cut_off = !measurement.figures.contains_key(&m::LONGEST_WAIT);
        assert!(is_cut_off, "two grants per client are too few");
    }

    #[test]
    fn without_a_grant_there_are_no_figures_per_grant() {
        let measurement = measured(&[], 2);
        assert!(!measurement.figures.contains_key(&m::COMMANDS));
    }
}

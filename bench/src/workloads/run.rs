//! Tasks that loop, and what their grants say.

use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::Result;

use super::Bench;
use crate::column as c;
use crate::figures::{Grant, History, jain, percentile};
use crate::process::Process;
use crate::record;
use crate::results::Measurement;
use crate::server::{Monitor, Seen};

/// How long a contestant warms up, which is also how its commands are told from those of scripts.
const WARM_UP: Duration = Duration::from_millis(300);
/// How much longer than its time a run may take: for tasks that wait, and for writing.
const PATIENCE: Duration = Duration::from_secs(30);

/// The loops of one measurement.
pub(super) struct Load<'a> {
    pub(super) tasks: usize,
    pub(super) work: Duration,
    /// The keys, as the protocol has them.
    pub(super) keys: &'a str,
}

/// What happened.
pub(super) struct Outcome {
    pub(super) grants: Vec<Grant>,
    pub(super) history: History,
    /// Those in the time in which all processes ran.
    counted: Vec<Grant>,
    seconds: f64,
    tasks: usize,
    processes: usize,
    /// Commands that clients sent in the whole run.
    commands: f64,
    /// How many processors the clients kept busy, in the whole run.
    processor: f64,
}

/// How long what was under way at the end of a run has to arrive, so that it leaves no key behind.
const SETTLE: Duration = Duration::from_millis(50);

/// Warms the processes up, then measures.
pub(super) fn run(bench: &mut Bench, processes: &mut [Process], load: &Load) -> Result<Outcome> {
    let sample = warm_up(bench, processes, load)?;
    sleep(SETTLE);
    bench.server.clear()?;
    let processor = used(processes)?;
    let commands = bench.server.commands()?;
    let started = Instant::now();
    start(bench, processes, load, bench.time)?;
    // The second look counts itself.
    let commands = bench.server.commands()? - commands - 1;
    let processor = (used(processes)? - processor) / started.elapsed().as_secs_f64();

    let mut grants = Vec::new();
    for process in 0..processes.len() {
        let records = record::read(&bench.file(process)?.0)?;
        grants.extend(records.into_iter().map(|record| Grant { process, record }));
    }
    let history = History::of(&mut grants);
    let first =
        |process| grants.iter().filter(|g| g.process == process).map(|g| g.record.asked).min();
    let begin = (0..processes.len()).filter_map(first).max().unwrap_or_default();
    let end = begin + bench.time.as_nanos() as u64;
    let is_counted = |grant: &&Grant| (begin..end).contains(&grant.record.granted);
    Ok(Outcome {
        counted: grants.iter().filter(is_counted).copied().collect(),
        grants,
        history,
        seconds: bench.time.as_secs_f64(),
        tasks: load.tasks,
        processes: processes.len(),
        commands: commands as f64 * sample.share(),
        processor,
    })
}

fn warm_up(bench: &mut Bench, processes: &mut [Process], load: &Load) -> Result<Seen> {
    sleep(SETTLE);
    bench.server.clear()?;
    let monitor = Monitor::start(&bench.server)?;
    start(bench, processes, load, WARM_UP)?;
    monitor.stop()
}

/// Runs all processes at once and waits for them.
fn start(bench: &Bench, processes: &mut [Process], load: &Load, time: Duration) -> Result<()> {
    let mut tickets = Vec::new();
    for (at, process) in processes.iter_mut().enumerate() {
        let (_, file) = bench.file(at)?;
        let (tasks, work) = (load.tasks, load.work.as_micros());
        let command = format!("run {file} {tasks} {} {work} {}", time.as_millis(), load.keys);
        tickets.push(process.tell(&command)?);
    }
    for (process, ticket) in processes.iter().zip(tickets) {
        process.done(ticket, time + PATIENCE)?;
    }
    Ok(())
}

fn used(processes: &[Process]) -> Result<f64> {
    processes.iter().map(Process::processor).sum()
}

impl Outcome {
    /// The rate, and what it cost the processors.
    pub(super) fn rate(&self, measurement: &mut Measurement) {
        measurement.overlaps = self.history.overlaps;
        measurement.set(c::GRANTS, self.counted.len() as f64 / self.seconds);
        measurement.set(c::PROCESSOR, self.processor);
    }

    pub(super) fn commands(&self, measurement: &mut Measurement) {
        if !self.grants.is_empty() {
            measurement.set(c::COMMANDS, self.commands / self.grants.len() as f64);
        }
    }

    pub(super) fn waits(&self, measurement: &mut Measurement) {
        let wait = |grant: &Grant| grant.record.granted - grant.record.asked;
        let mut waits: Vec<u64> = self.counted.iter().map(wait).collect();
        measurement.set_nanos(c::WAIT_P50, percentile(&mut waits, 0.5));
        measurement.set_nanos(c::WAIT_P99, percentile(&mut waits, 0.99));
    }

    /// From asking for a lock until asking for its release, which takes one round trip more.
    pub(super) fn pairs(&self, measurement: &mut Measurement) {
        // A task's next asking follows its release at once.
        let mut sorted: Vec<&Grant> = self.counted.iter().collect();
        sorted.sort_unstable_by_key(|grant| (grant.process, grant.record.task, grant.record.asked));
        let same = |pair: &&[&Grant]| {
            (pair[0].process, pair[0].record.task) == (pair[1].process, pair[1].record.task)
        };
        let length = |pair: &[&Grant]| pair[1].record.asked - pair[0].record.asked;
        let mut pairs: Vec<u64> = sorted.windows(2).filter(same).map(length).collect();
        measurement.set_nanos(c::PAIR_P50, percentile(&mut pairs, 0.5));
        measurement.set_nanos(c::PAIR_P99, percentile(&mut pairs, 0.99));
    }

    pub(super) fn fairness(&self, measurement: &mut Measurement) {
        let mut tasks = vec![0; self.processes * self.tasks];
        let mut processes = vec![0; self.processes];
        for grant in &self.counted {
            if let Some(task) =
                tasks.get_mut(grant.process * self.tasks + grant.record.task as usize)
            {
                *task += 1;
            }
            processes[grant.process] += 1;
        }
        let starved = tasks.iter().filter(|grants| **grants == 0).count();
        // With fewer grants than tasks nobody can be fair.
        if self.counted.len() >= tasks.len() {
            measurement.set(c::JAIN_TASKS, jain(&tasks));
        }
        measurement.set(c::JAIN_PROCESSES, jain(&processes));
        measurement.set(c::STARVED, starved as f64 / tasks.len() as f64);
    }

    /// What it takes from a release in one process to the next grant in another.
    pub(super) fn crossings(&self, measurement: &mut Measurement, round_trip: f64) {
        let all = &self.history.hand_overs;
        let crossings = all.iter().filter(|hand_over| hand_over.crosses);
        let mut nanos: Vec<u64> = crossings.map(|hand_over| hand_over.nanos).collect();
        if !all.is_empty() {
            measurement.set(c::CROSSING_SHARE, nanos.len() as f64 / all.len() as f64);
        }
        if let Some(median) = percentile(&mut nanos, 0.5) {
            measurement.set(c::CROSSING_P50, median as f64);
            measurement.set(c::CROSSING_TRIPS, median as f64 / round_trip);
        }
    }
}

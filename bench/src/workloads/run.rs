//! Runs of looping tasks, and the figures of their grants.

use std::ops::Range;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::Result;

use super::Bench;
use crate::figures::{Durations, GrantHistory, ProcessGrant, jain, longest_wait};
use crate::metric as m;
use crate::process::ContestantProcess;
use crate::record::{self, Record, RecordFiles};
use crate::results::Measurement;
use crate::server::{Monitor, Seen};

/// The duration of the warm-up, during which the commands of clients and of scripts are counted
/// separately.
pub(crate) const WARM_UP: Duration = Duration::from_millis(300);
/// The time that a run may take beyond its duration, for waiting tasks and for writing the records.
const TIMEOUT: Duration = Duration::from_secs(30);

/// The time after which the tasks of one process let those of others have the lock.
const TURN: Duration = Duration::from_millis(50);

/// The parameters of one run.
pub(crate) struct Load<'a> {
    pub(crate) tasks: usize,
    pub(crate) work: Duration,
    /// The keys, in the syntax of the line protocol.
    pub(crate) keys: &'a str,
    /// The key of a further task in the first process.
    pub(crate) one_more: Option<&'a str>,
}

/// The outcome of a run.
pub(crate) struct ProgramOutcome {
    pub(crate) grants: Vec<ProcessGrant>,
    pub(crate) history: GrantHistory,
    /// The grants during the time in which all processes ran.
    counted: Vec<ProcessGrant>,
    /// That time.
    pub(crate) period: Range<u64>,
    seconds: f64,
    /// The tasks of each process, without the further one.
    tasks: usize,
    has_one_more: bool,
    processes: usize,
    /// The number of commands that clients sent during the whole run.
    commands: f64,
    /// The number of processors that the clients used, averaged over the whole run.
    processor: f64,
}

/// The time for requests in flight at the end of a run to arrive, so that they leave no keys.
const SETTLE: Duration = Duration::from_millis(50);

/// Warms up the processes, and measures.
pub(crate) fn run(
    bench: &mut Bench,
    processes: &mut [ContestantProcess],
    load: &Load,
) -> Result<ProgramOutcome> {
    let sample = warm_up(bench, processes, load)?;
    sleep(SETTLE);
    bench.server.clear()?;
    let commands = bench.server.commands()?;
    let outcome = measure(&bench.files, processes, load, bench.time)?;
    let commands = bench.server.commands_since(commands)?;
    Ok(ProgramOutcome { commands: commands as f64 * sample.share(), ..outcome })
}

/// Measures for `time`. Counts no commands.
pub(crate) fn measure(
    files: &RecordFiles,
    processes: &mut [ContestantProcess],
    load: &Load,
    time: Duration,
) -> Result<ProgramOutcome> {
    let processor = used(processes)?;
    let started = Instant::now();
    start(files, processes, load, time)?;
    let processor = (used(processes)? - processor) / started.elapsed().as_secs_f64();

    let mut grants = Vec::new();
    for process in 0..processes.len() {
        let records = record::read(&files.file(process)?.0)?;
        grants.extend(records.into_iter().map(|record| ProcessGrant { process, record }));
    }
    let history = GrantHistory::of(&mut grants);
    let first =
        |process| grants.iter().filter(|g| g.process == process).map(|g| g.record.requested).min();
    let begin = (0..processes.len()).filter_map(first).max().unwrap_or_default();
    let period = begin..begin + time.as_nanos() as u64;
    let is_counted = |grant: &&ProcessGrant| period.contains(&grant.record.granted);
    Ok(ProgramOutcome {
        counted: grants.iter().filter(is_counted).copied().collect(),
        period,
        grants,
        history,
        seconds: time.as_secs_f64(),
        tasks: load.tasks,
        has_one_more: load.one_more.is_some(),
        processes: processes.len(),
        commands: 0.0,
        processor,
    })
}

fn warm_up(bench: &mut Bench, processes: &mut [ContestantProcess], load: &Load) -> Result<Seen> {
    sleep(SETTLE);
    bench.server.clear()?;
    let monitor = Monitor::start(&bench.server)?;
    start(&bench.files, processes, load, WARM_UP)?;
    monitor.stop()
}

/// Runs all processes at the same time, and waits for them.
fn start(
    files: &RecordFiles,
    processes: &mut [ContestantProcess],
    load: &Load,
    time: Duration,
) -> Result<()> {
    let mut tickets = Vec::new();
    for (at, process) in processes.iter_mut().enumerate() {
        let (_, file) = files.file(at)?;
        let one_more = load.one_more.filter(|_| at == 0);
        let (tasks, work) = (load.tasks + one_more.iter().len(), load.work.as_micros());
        let (time, keys) = (time.as_millis(), load.keys);
        let command =
            format!("run {file} {tasks} {time} {work} {keys} {}", one_more.unwrap_or_default());
        tickets.push(process.tell(&command)?);
    }
    for (process, ticket) in processes.iter().zip(tickets) {
        process.done(ticket, time + TIMEOUT)?;
    }
    Ok(())
}

/// The user and system time of all processes, in seconds.
pub(super) fn used(processes: &[ContestantProcess]) -> Result<f64> {
    processes.iter().map(ContestantProcess::processor).sum()
}

impl ProgramOutcome {
    /// Sets the rate and the processor usage.
    pub(crate) fn rate(&self, measurement: &mut Measurement) {
        measurement.overlaps = self.history.overlaps;
        measurement.set(m::GRANTS, self.counted.len() as f64 / self.seconds);
        measurement.set(m::PROCESSOR, self.processor);
    }

    pub(super) fn commands(&self, measurement: &mut Measurement) {
        if !self.grants.is_empty() {
            measurement.set(m::COMMANDS, self.commands / self.grants.len() as f64);
        }
    }

    pub(crate) fn waits(&self, measurement: &mut Measurement) {
        let wait = |grant: &ProcessGrant| grant.record.granted - grant.record.requested;
        let waits: Durations = self.counted.iter().map(wait).collect();
        measurement.set_nanos(m::WAIT_P50, waits.median());
        measurement.set_nanos(m::WAIT_P99, waits.quantile(0.99));
    }

    /// Sets the longest wait.
    pub(super) fn longest_wait(&self, measurement: &mut Measurement) {
        // Tasks are numbered within their process.
        let first = |process| process * self.tasks + usize::from(self.has_one_more && process > 0);
        let number = |grant: &ProcessGrant| Record {
            task: first(grant.process) as u32 + grant.record.task,
            ..grant.record
        };
        let records: Vec<Record> = self.grants.iter().map(number).collect();
        let longest = longest_wait(&records, first(self.processes), &self.period);
        measurement.set(m::LONGEST_OF_TURN, longest as f64 / TURN.as_nanos() as f64);
    }

    /// The durations of pairs: an acquisition and its release.
    fn pair_durations(&self) -> Durations {
        // A task asks for its next lock right after its release, so a pair ends with the next
        // request.
        let mut sorted: Vec<&ProcessGrant> = self.counted.iter().collect();
        sorted.sort_unstable_by_key(|grant| {
            (grant.process, grant.record.task, grant.record.requested)
        });
        let same = |pair: &&[&ProcessGrant]| {
            (pair[0].process, pair[0].record.task) == (pair[1].process, pair[1].record.task)
        };
        let length = |pair: &[&ProcessGrant]| pair[1].record.requested - pair[0].record.requested;
        sorted.windows(2).filter(same).map(length).collect()
    }

    /// Sets the times of pairs.
    pub(crate) fn pairs(&self, measurement: &mut Measurement) {
        let pairs = self.pair_durations();
        measurement.set_nanos(m::PAIR_P50, pairs.median());
        measurement.set_nanos(m::PAIR_P99, pairs.quantile(0.99));
    }

    /// The median of the pairs.
    pub(super) fn median_pair_nanos(&self) -> Option<u64> {
        self.pair_durations().median()
    }

    pub(crate) fn fairness(&self, measurement: &mut Measurement) {
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
        // The index means little if there are fewer grants than tasks.
        if self.counted.len() >= tasks.len() {
            measurement.set(m::JAIN_TASKS, jain(&tasks));
        }
        measurement.set(m::JAIN_PROCESSES, jain(&processes));
        measurement.set(m::STARVED, starved as f64 / tasks.len() as f64);
    }

    /// Sets the time from a release in one process to the next grant in another process.
    pub(super) fn crossings(&self, measurement: &mut Measurement, round_trip: f64) {
        let all = &self.history.handoffs;
        let crossings = all.iter().filter(|handoff| handoff.crosses);
        let nanos: Durations = crossings.map(|handoff| handoff.nanos).collect();
        if !all.is_empty() {
            measurement.set(m::CROSSING_SHARE, nanos.count() as f64 / all.len() as f64);
        }
        if let Some(median) = nanos.median() {
            measurement.set(m::CROSSING_P50, median as f64);
            measurement.set(m::CROSSING_TRIPS, median as f64 / round_trip);
        }
    }
}

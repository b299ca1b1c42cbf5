//! The measurements of one contestant with one store.

use std::thread::sleep;
use std::time::Duration;

use anyhow::Result;

use super::servers::StoreServers;
use crate::contestant::{Contestant, Programs, StoreKind};
use crate::figures::gaps;
use crate::metric as m;
use crate::process::ContestantProcess;
use crate::record::{self, RecordFiles};
use crate::results::Measurement;
use crate::workloads::run::{Load, ProgramOutcome, WARM_UP, measure};

/// The tasks of each process that want one hot key.
const HOT_TASKS: usize = 16;
/// The tasks of the loop that meets the fault.
const FAILOVER_TASKS: usize = 8;
/// How long the loop runs before the fault.
const BEFORE_FAULT: Duration = Duration::from_secs(1);
/// How much longer than a run the answer may take.
const TIMEOUT: Duration = Duration::from_secs(30);

/// The environment of all measurements with one store.
pub(super) struct StoreBench {
    pub(super) store: StoreKind,
    pub(super) servers: StoreServers,
    pub(super) programs: Programs,
    pub(super) files: RecordFiles,
    /// The duration of one rate measurement of a hot key. Those without contention take half as long, and are repeated.
    pub(super) time: Duration,
    /// The duration of the loop that meets the fault.
    pub(super) failover_time: Duration,
    /// The number of runs so far. Each has keys of its own, so that nothing that an earlier run has left can delay it.
    pub(super) runs: usize,
}

impl StoreBench {
    pub(super) fn start(&self, contestant: &Contestant) -> Result<ContestantProcess> {
        ContestantProcess::start(contestant, &self.programs, &self.servers.url())
    }

    fn measurement(&self, contestant: &Contestant, round: usize) -> Measurement {
        Measurement::new(self.store.title(), contestant, round)
    }

    /// Keys that no other run has used.
    fn keys(&mut self, count: usize) -> String {
        self.runs += 1;
        let run = self.runs;
        (0..count).map(|key| format!("r{run}k{key}")).collect::<Vec<_>>().join(" ")
    }

    /// Warms the processes up, and measures for this time.
    fn run(
        &mut self,
        processes: &mut [ContestantProcess],
        tasks: usize,
        keys: usize,
        time: Duration,
    ) -> Result<ProgramOutcome> {
        let (warm, keys) = (self.keys(keys), self.keys(keys));
        let load = |keys| Load { tasks, work: Duration::ZERO, keys, one_more: None };
        measure(&self.files, processes, &load(&warm), WARM_UP)?;
        measure(&self.files, processes, &load(&keys), time)
    }

    /// Tasks on distinct keys, in one process.
    pub(super) fn uncontended(
        &mut self,
        contestant: &Contestant,
        round: usize,
        tasks: usize,
    ) -> Result<Measurement> {
        let outcome = self.run(&mut [self.start(contestant)?], tasks, tasks, self.time / 2)?;
        let mut measurement = self.measurement(contestant, round);
        outcome.rate(&mut measurement);
        outcome.pairs(&mut measurement);
        Ok(measurement)
    }

    /// One key, for the tasks of two processes.
    pub(super) fn hot(&mut self, contestant: &Contestant, round: usize) -> Result<Measurement> {
        let mut processes = [self.start(contestant)?, self.start(contestant)?];
        let outcome = self.run(&mut processes, HOT_TASKS, 1, self.time)?;
        let mut measurement = self.measurement(contestant, round);
        outcome.rate(&mut measurement);
        outcome.waits(&mut measurement);
        outcome.fairness(&mut measurement);
        Ok(measurement)
    }

    /// A server is killed while tasks on distinct keys lock and release.
    pub(super) fn failover(
        &mut self,
        contestant: &Contestant,
        round: usize,
    ) -> Result<Measurement> {
        let mut process = self.start(contestant)?;
        let (path, file) = self.files.file(0)?;
        let (time, keys) = (self.failover_time, self.keys(FAILOVER_TASKS));
        let command = format!("run {file} {FAILOVER_TASKS} {} 0 {keys}", time.as_millis());
        // What an earlier run has left would count if this one fails.
        let _ = std::fs::remove_file(&path);
        let begin = record::now();
        let ticket = process.tell(&command)?;
        sleep(BEFORE_FAULT);
        let away = self.servers.fail();
        let done = process.done(ticket, time + TIMEOUT);
        drop(process);
        self.servers.recover();

        let records = match record::read(&path) {
            // The reason for the missing records is in the answer.
            Err(_) if done.is_err() => return Err(done.expect_err("checked above")),
            records => records?,
        };
        let mut measurement = self.measurement(contestant, round);
        if let Some(away) = away {
            measurement.set(m::AWAY, away.as_nanos() as f64);
        }
        // The loop continues after a failure, and tells at its end how many there were.
        let failed = match done {
            Ok(()) => 0.0,
            Err(error) => {
                let text = format!("{error:#}");
                let count = text.split(' ').find_map(|word| word.parse().ok());
                eprintln!("  {}: {:.200}", contestant.name, text);
                count.ok_or(error)?
            }
        };
        measurement.set(m::FAILED, failed);
        let gaps = gaps(&records, FAILOVER_TASKS, &(begin..begin + time.as_nanos() as u64));
        measurement.set(m::GAP, gaps.of_all as f64);
        measurement.set(m::TASK_GAP, gaps.of_a_task as f64);
        Ok(measurement)
    }
}

//! Very many waiters on one key.

use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::Result;

use super::Bench;
use crate::contestant::{Contestant, Reach};
use crate::figures::{Durations, GrantHistory, ProcessGrant};
use crate::metric as m;
use crate::process::Answer;
use crate::record;
use crate::results::Measurement;
use crate::server::Monitor;

/// The lease of the holder in milliseconds, for libraries that do not renew locks.
const LEASE: u64 = 120_000;
/// How long the waiters may take to queue.
const QUEUE_TIMEOUT: Duration = Duration::from_secs(20);
/// How long the waiters may take to drain.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(10);
/// How long the commands of clients and of scripts are counted separately. Doing so for the whole
/// drain would slow down the server.
const SAMPLE: Duration = Duration::from_millis(300);

pub(super) fn measure(
    bench: &mut Bench,
    contestant: &Contestant,
    round: usize,
) -> Result<Vec<Measurement>> {
    let count = if bench.quick { 1_000 } else { 10_000 };
    let mut measurement = Measurement::new(
        format!("{} waiters", m::GRANTS.write(f64::from(count))),
        contestant,
        round,
    );
    bench.server.clear()?;
    let before = bench.server.clients()?;
    // A contestant with locks inside one process holds the key in the process of the waiters.
    let mut holder = match contestant.reach {
        Reach::Server => Some(bench.start(contestant)?),
        Reach::Process => None,
    };
    let with_holder = bench.server.clients()?;
    let mut waiting = bench.start(contestant)?;
    let holding = holder.as_mut().unwrap_or(&mut waiting);
    let acquired = holding.tell("acquire hot 5000 0")?;
    if holding.answer(acquired, QUEUE_TIMEOUT)? != Answer::Ok {
        holding.ask(&format!("acquire hot 5000 {LEASE}"), QUEUE_TIMEOUT)?;
    }

    sleep(Duration::from_millis(200));
    let memory = waiting.memory()?;
    waiting.ask(&format!("waiters hot {count}"), QUEUE_TIMEOUT)?;
    sleep(Duration::from_millis(500));
    measurement.set(m::PER_WAITER, (waiting.memory()? - memory) / f64::from(count));
    let clients = bench.server.clients()?;
    measurement.set(m::CONNECTIONS, clients.connections as f64 - with_holder.connections as f64);
    measurement.set(m::SUBSCRIBERS, clients.subscribers as f64 - before.subscribers as f64);

    let commands = bench.server.commands()?;
    let monitor = Monitor::start(&bench.server)?;
    let start = Instant::now();
    let (path, file) = bench.files.file(0)?;
    let release = holder.as_mut().unwrap_or(&mut waiting).tell("release hot")?;
    let drain = waiting.tell(&format!("drain {file}"))?;
    let drained = match waiting.answer(drain, SAMPLE)? {
        Answer::Late => None,
        answer => Some(answer),
    };
    let sample = monitor.stop()?;
    let drained = match drained {
        Some(answer) => answer,
        None => waiting.answer(drain, DRAIN_TIMEOUT.saturating_sub(start.elapsed()))?,
    };
    if drained != Answer::Ok {
        measurement.note = Some(format!("not drained after {DRAIN_TIMEOUT:?}"));
        return Ok(vec![measurement]);
    }
    let commands = bench.server.commands_since(commands)?;
    holder.as_ref().unwrap_or(&waiting).done(release, DRAIN_TIMEOUT)?;

    let records = record::read(&path)?;
    let mut grants: Vec<ProcessGrant> =
        records.into_iter().map(|record| ProcessGrant { process: 0, record }).collect();
    let history = GrantHistory::of(&mut grants);
    measurement.overlaps = history.overlaps;
    measurement.set(m::COMMANDS, commands as f64 * sample.share() / f64::from(count));
    let handoffs: Durations = history.handoffs.iter().map(|handoff| handoff.nanos).collect();
    measurement.set_nanos(m::HANDOFF_P50, handoffs.median());
    let granted = grants.iter().map(|grant| grant.record.granted);
    if let (Some(first), Some(last)) = (granted.clone().min(), granted.max()) {
        measurement.set(m::DRAIN, (last - first) as f64);
    }
    Ok(vec![measurement])
}

//! The comparison of stores: each store of this library in one run, and the peers that use the same servers.

mod measure;
mod report;
mod servers;

use std::time::{Duration, Instant};

use anyhow::{Result, bail};

use self::measure::StoreBench;
use self::report::StoreReport;
use self::servers::StoreServers;
use crate::contestant::{self, Contestant, StoreKind};
use crate::metric::{self as m, Metric};
use crate::options::StoreOptions;
use crate::record::RecordFiles;
use crate::results::{Measurement, Results};

/// What is measured with each store. The stores are the shapes of its results.
struct StoreWorkload {
    name: &'static str,
    title: &'static str,
    metrics: &'static [Metric],
    /// Whether a round has several turns, because the machine is not equally fast all the time.
    has_turns: bool,
    takes: fn(&Contestant) -> bool,
    measure: fn(&mut StoreBench, &Contestant, usize) -> Result<Measurement>,
}

const WORKLOADS: [StoreWorkload; 4] = [
    StoreWorkload {
        name: "1 task",
        title: "Uncontended, 1 task",
        metrics: &[m::GRANTS, m::PAIR_P50, m::PAIR_P99],
        has_turns: true,
        takes: |_| true,
        measure: |bench, contestant, round| bench.uncontended(contestant, round, 1),
    },
    StoreWorkload {
        name: "64 tasks",
        title: "Uncontended, 64 tasks on distinct keys in one process",
        metrics: &[m::GRANTS, m::PAIR_P50, m::PAIR_P99, m::PROCESSOR],
        has_turns: true,
        takes: |_| true,
        measure: |bench, contestant, round| bench.uncontended(contestant, round, 64),
    },
    StoreWorkload {
        name: "hot key",
        title: "A hot key, 2 processes of 16 tasks each",
        metrics: &[
            m::GRANTS,
            m::WAIT_P50,
            m::WAIT_P99,
            m::JAIN_PROCESSES,
            m::JAIN_TASKS,
            m::STARVED,
        ],
        has_turns: false,
        takes: |contestant| contestant.waits,
        measure: StoreBench::hot,
    },
    StoreWorkload {
        name: "failover",
        title: "A server is killed while 8 tasks lock and release distinct keys",
        metrics: &[m::GAP, m::TASK_GAP, m::AWAY, m::FAILED],
        has_turns: false,
        takes: |contestant| contestant.waits,
        measure: StoreBench::failover,
    },
];

/// Measures the stores that the options name, and writes the report.
pub(crate) fn run(options: &StoreOptions) -> Result<()> {
    let started = Instant::now();
    let mut report = StoreReport::new();
    let mut all =
        WORKLOADS.each_ref().map(|workload| Results::new(workload.name, workload.metrics));
    for store in options.stores() {
        measure(options, store, &mut report, &mut all)?;
    }
    let titles = WORKLOADS.each_ref().map(|workload| workload.title);
    let text = report.write(options, started.elapsed(), titles.into_iter().zip(&all))?;
    println!("{text}");
    let file = options.out.join("STORES.md");
    std::fs::write(&file, text)?;
    println!("Wrote {}.", file.display());
    Ok(())
}

/// Runs all rounds of one store. In each round, the contestants run one after the other, and each round begins with another
/// one.
fn measure(
    options: &StoreOptions,
    store: StoreKind,
    report: &mut StoreReport,
    all: &mut [Results],
) -> Result<()> {
    let servers = StoreServers::start(store)?;
    let about = servers.about()?;
    println!("{}: {about}", store.title());
    report.servers.push((store, about));
    let mut bench = StoreBench {
        store,
        servers,
        programs: options.programs(),
        files: RecordFiles::new()?,
        time: options.time(),
        failover_time: Duration::from_secs(if options.quick { 4 } else { 8 }),
        runs: 0,
    };
    let mut present = Vec::new();
    for contestant in contestant::ALL.iter().filter(|one| one.stores.contains(&store)) {
        match bench.start(contestant) {
            Ok(process) => {
                report.settings.push((store, contestant.name, process.about.clone()));
                present.push(contestant);
            }
            Err(error) if !contestant.may_be_absent() || options.require_peers => {
                return Err(error);
            }
            Err(error) => {
                println!("  {}: LEFT OUT: {error:#}; build it with `peers/build`", contestant.name);
                report.absent.push((store, contestant.name, format!("{error:#}")));
            }
        }
    }
    for round in 0..options.rounds() {
        for (workload, results) in WORKLOADS.iter().zip(&mut *all) {
            let turns = if workload.has_turns { options.turns() } else { 1 };
            for turn in (0..turns).map(|turn| round * turns + turn) {
                for contestant in present.iter().filter(|contestant| (workload.takes)(contestant)) {
                    let measured = (workload.measure)(&mut bench, contestant, turn);
                    let measurement = measured.unwrap_or_else(|error| {
                        Measurement::failed(store.title(), contestant, turn, &error)
                    });
                    let (name, figure) = (workload.name, measurement.brief(results.main_metric()));
                    println!("  {name} {}: {:>16}: {figure}", turn + 1, contestant.name);
                    results.add(measurement);
                }
            }
        }
        present.rotate_left(1);
    }
    if all.iter().all(|results| results.shapes().is_empty()) {
        bail!("nothing was measured");
    }
    Ok(())
}

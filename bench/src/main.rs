//! Benchmarks of lock libraries; see `bench/README.md`.

#![forbid(unsafe_code)]
// Figures are floating-point numbers that are computed from counts, and no count comes near 2^52.
#![allow(clippy::cast_possible_truncation, clippy::cast_precision_loss, clippy::cast_sign_loss)]

mod contestant;
mod figures;
mod metric;
mod options;
mod picture;
mod plot;
mod process;
mod program;
mod record;
mod report;
mod results;
mod server;
mod stores;
mod targets;
mod workloads;

use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use clap::Parser;

use contestant::{Contestant, ServerKind};
use metric::{CROSSING_P50, HANDOFF_P50, WAIT_P99};
use options::Options;
use record::RecordFiles;
use report::RunInfo;
use results::{Measurement, Results};
use server::Server;
use workloads::{Bench, Workload};

fn main() -> ExitCode {
    let options = Options::parse();
    let done = match &options.command {
        Some(options::Command::Contestant { name, url }) => program::start(name, url),
        Some(options::Command::Stores(options)) => stores::run(options),
        Some(options::Command::Picture { file }) => draw_picture(&options, file),
        None => drive(&options),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error:#}");
            ExitCode::FAILURE
        }
    }
}

fn draw_picture(options: &Options, file: &Path) -> Result<()> {
    picture::draw(&mut bench(options, Duration::from_millis(800))?, file)
}

fn bench(options: &Options, time: Duration) -> Result<Bench> {
    Ok(Bench {
        server: Server::start(options.servers()),
        programs: options.programs(),
        files: RecordFiles::new()?,
        quick: options.quick,
        long: options.long,
        clients: options.clients(),
        time,
        round_trip: 0.0,
    })
}

fn drive(options: &Options) -> Result<()> {
    let start = Instant::now();
    let time = options.millis.unwrap_or(if options.quick { 300 } else { 800 });
    let time = Duration::from_millis(time);
    let mut bench = bench(options, time)?;
    let mut run = probe(&bench, options)?;
    let mut present = options.contestants();
    present.retain(|contestant| run.settings.iter().any(|(name, _)| *name == contestant.name));

    let mut all = Vec::new();
    for workload in workloads::ALL.iter().filter(|workload| options.wants(workload)) {
        let results = measure(&mut bench, options, workload, &present);
        println!("\n{}", report::tables(workload, &results)?);
        all.push((workload, results));
    }
    let mut redis = bench.server.version()?;
    redis.push_str(match options.servers() {
        ServerKind::Plain => "",
        ServerKind::Tls => " with TLS",
        ServerKind::Cluster => " (a cluster of three masters and three replicas)",
    });
    run.about = about(&redis, options, time, start.elapsed());
    finish(options, &run, all)
}

/// Starts each contestant once, to find out which ones can take part.
fn probe(bench: &Bench, options: &Options) -> Result<RunInfo> {
    let mut run = RunInfo { about: String::new(), settings: Vec::new(), absent: Vec::new() };
    println!("Contestants:");
    for contestant in &options.contestants() {
        match bench.start(contestant) {
            Ok(process) => {
                println!("  {}", process.about);
                run.settings.push((contestant.name, process.about.clone()));
            }
            Err(error) if !contestant.may_be_absent() => return Err(error),
            Err(error) => {
                println!("  {}: LEFT OUT: {error:#}", contestant.name);
                run.absent.push((contestant.name, format!("{error:#}")));
            }
        }
    }
    if !run.absent.is_empty() {
        println!("The peers above do not start and are left out. Build them with `peers/build`.");
        if options.require_peers {
            bail!("{} peers do not start, and --require-peers is set", run.absent.len());
        }
    }
    Ok(run)
}

/// Runs all rounds of a workload. In each round, the contestants run one after the other.
fn measure(
    bench: &mut Bench,
    options: &Options,
    workload: &Workload,
    present: &[Contestant],
) -> Results {
    let (quick, full) = workload.rounds;
    let rounds = options.rounds.unwrap_or(if options.quick { quick } else { full });
    let mut results = Results::new(workload.name, workload.metrics);
    // Contestants that failed are left out of later rounds, because they would only take time.
    let mut failed: Vec<&str> = Vec::new();
    for round in 0..rounds {
        match bench.server.round_trip() {
            Ok(nanos) => bench.round_trip = nanos,
            Err(error) => eprintln!("the server does not answer: {error:#}"),
        }
        results.round_trips.push(bench.round_trip);
        for contestant in present.iter().filter(|contestant| options.includes(contestant, workload))
        {
            if failed.contains(&contestant.name) {
                continue;
            }
            let start = Instant::now();
            let measured = (workload.measure)(bench, contestant, round).unwrap_or_else(|error| {
                // The contestant failed before the first shape.
                vec![Measurement::failed("", contestant, round, &error)]
            });
            let main_metric = results.main_metric();
            let figures: Vec<String> = measured.iter().map(|m| m.brief(main_metric)).collect();
            if figures.is_empty() {
                continue;
            }
            println!(
                "{} {}/{rounds} {:>16}: {} [{:.1} s]",
                workload.name,
                round + 1,
                contestant.name,
                figures.join(", "),
                start.elapsed().as_secs_f64(),
            );
            if measured.iter().any(|measurement| measurement.note.is_some()) {
                failed.push(contestant.name);
            }
            for measurement in measured {
                results.add(measurement);
            }
        }
        if let Some(limit) = workload.limit {
            results.relate(limit, round);
        }
    }
    results
}

/// Writes the results, and prints whether the targets are met.
fn finish(options: &Options, run: &RunInfo, all: Vec<(&Workload, Results)>) -> Result<()> {
    let plots = options.out.join("plots");
    std::fs::create_dir_all(&plots).context("cannot create the directory for the plots")?;
    let mut drawn = Vec::new();
    for (workload, results) in &all {
        let metrics = [results.main_metric(), WAIT_P99, CROSSING_P50, HANDOFF_P50];
        let has = |metric: &&metric::Metric| results.metrics.contains(metric);
        for (at, metric) in metrics.iter().filter(has).enumerate() {
            let suffix = if at == 0 { String::new() } else { format!("-{at}") };
            let file = format!("{}{suffix}.svg", workload.name);
            if plot::plot(&plots.join(&file), workload.title, results, *metric)? {
                drawn.push((workload.name.to_owned(), file));
            }
        }
    }
    let (workloads, results): (Vec<&Workload>, Vec<Results>) = all.into_iter().unzip();
    let targets = report::target_table(options.servers(), &results)?;
    println!("{targets}");
    let pairs: Vec<(&Workload, &Results)> = workloads.into_iter().zip(&results).collect();
    let document = report::document(run, &pairs, &targets, &drawn)?;
    let file = options.out.join("RESULTS.md");
    report::write(&file, &document)?;
    println!("Wrote {} and {} plots.", file.display(), drawn.len());
    Ok(())
}

fn about(redis: &str, options: &Options, time: Duration, took: Duration) -> String {
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    let kind = if options.quick { "A quick run" } else { "A run" };
    format!(
        "{kind} of {:.0} minutes on {cores} cores, redis-server {redis} on the same machine; rates \
         over {time:?}, medians over the rounds; in each round, the contestants run one after the \
         other. Compare only figures of one run.",
        (took.as_secs_f64() / 60.0).ceil(),
    )
}

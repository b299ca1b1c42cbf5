//! Benchmarks; see the README beside this folder.

// Figures are floating-point numbers made of counts, and no count here comes near 2^52.
#![allow(clippy::cast_possible_truncation, clippy::cast_precision_loss, clippy::cast_sign_loss)]

mod column;
mod contestant;
mod figures;
mod options;
mod plot;
mod process;
mod program;
mod record;
mod report;
mod results;
mod server;
mod targets;
mod workloads;

use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use column::{CROSSING_P50, HAND_OVER_P50, WAIT_P99};
use contestant::Contestant;
use options::{HELP, Options};
use report::Run;
use results::{Measurement, Results};
use server::Server;
use workloads::{Bench, Workload};

fn main() -> ExitCode {
    let mut words = std::env::args().skip(1).peekable();
    let done = if words.peek().is_some_and(|word| word == "contestant") {
        words.next();
        match (words.next(), words.next()) {
            (Some(name), Some(url)) => program::be(&name, &url),
            _ => Err(anyhow::anyhow!("contestant NAME URL")),
        }
    } else {
        drive(words)
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error:#}");
            ExitCode::FAILURE
        }
    }
}

fn drive(words: impl Iterator<Item = String>) -> Result<()> {
    let Some(options) = Options::parse(words)? else {
        println!("{HELP}");
        return Ok(());
    };
    let start = Instant::now();
    let time = options.time.unwrap_or(Duration::from_millis(if options.quick { 300 } else { 800 }));
    let mut bench = Bench {
        server: Server::start(),
        peers: options.peers.clone(),
        files: tempfile::tempdir()?,
        quick: options.quick,
        long: options.long,
        time,
        round_trip: 0.0,
    };
    let mut run = muster(&bench, &options)?;
    let present: Vec<Contestant> = options
        .contestants
        .iter()
        .filter(|contestant| run.settings.iter().any(|(name, _)| *name == contestant.name))
        .copied()
        .collect();

    let mut all = Vec::new();
    for workload in workloads::ALL.iter().filter(|workload| options.wants(workload.name)) {
        let results = measure(&mut bench, &options, workload, &present);
        println!("\n{}", report::tables(workload, &results)?);
        all.push((workload, results));
    }
    let redis = bench.server.version()?;
    run.about = about(&redis, &options, time, start.elapsed());
    finish(&options, &run, all)
}

/// Starts each contestant once, to see who can take part.
fn muster(bench: &Bench, options: &Options) -> Result<Run> {
    let mut run = Run { about: String::new(), settings: Vec::new(), absent: Vec::new() };
    println!("Contestants:");
    for contestant in &options.contestants {
        let can_run = contestant.language.is_none() || bench.peers.join("run").exists();
        let started = if can_run {
            bench.start(contestant)
        } else {
            Err(anyhow::anyhow!("there is no `peers/run`"))
        };
        match started {
            Ok(process) => {
                println!("  {}", process.about);
                run.settings.push((contestant.name, process.about.clone()));
            }
            Err(error) if contestant.language.is_none() => return Err(error),
            Err(error) => {
                println!("  {}: LEFT OUT: {error:#}", contestant.name);
                run.absent.push((contestant.name, format!("{error:#}")));
            }
        }
    }
    if !run.absent.is_empty() {
        println!("Peers are left out because they do not start. `peers/build` builds them.");
        if options.require_peers {
            bail!("--require-peers, and {} peers do not start", run.absent.len());
        }
    }
    Ok(run)
}

/// All rounds of a workload; in each, one contestant after the other.
fn measure(
    bench: &mut Bench,
    options: &Options,
    workload: &Workload,
    present: &[Contestant],
) -> Results {
    let (quick, full) = workload.rounds;
    let rounds = options.rounds.unwrap_or(if options.quick { quick } else { full });
    let mut results = Results::new(workload.name, workload.columns);
    // Who is not able to, and would only take time in further rounds.
    let mut gave_up: Vec<&str> = Vec::new();
    for round in 0..rounds {
        match bench.server.round_trip() {
            Ok(nanos) => bench.round_trip = nanos,
            Err(error) => eprintln!("the server does not answer: {error:#}"),
        }
        results.round_trips.push(bench.round_trip);
        for contestant in present.iter().filter(|contestant| (workload.takes)(contestant)) {
            if gave_up.contains(&contestant.name) {
                continue;
            }
            let start = Instant::now();
            let measured = (workload.measure)(bench, contestant, round).unwrap_or_else(|error| {
                // It did not get as far as the first shape.
                vec![Measurement::failed("", contestant, round, &error)]
            });
            let main_column = results.main_column();
            let figures: Vec<String> = measured.iter().map(|m| m.brief(main_column)).collect();
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
                gave_up.push(contestant.name);
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

/// Writes the results, and says whether the targets are met.
fn finish(options: &Options, run: &Run, all: Vec<(&Workload, Results)>) -> Result<()> {
    let plots = options.out.join("plots");
    std::fs::create_dir_all(&plots).context("cannot make the folder for the plots")?;
    let mut drawn = Vec::new();
    for (workload, results) in &all {
        let columns = [results.main_column(), WAIT_P99, CROSSING_P50, HAND_OVER_P50];
        let has = |column: &&column::Column| results.columns.contains(column);
        for (at, column) in columns.iter().filter(has).enumerate() {
            let suffix = if at == 0 { String::new() } else { format!("-{at}") };
            let file = format!("{}{suffix}.svg", workload.name);
            if plot::plot(&plots.join(&file), workload.title, results, *column)? {
                drawn.push((workload.name.to_owned(), file));
            }
        }
    }
    let (workloads, results): (Vec<&Workload>, Vec<Results>) = all.into_iter().unzip();
    let targets = report::target_table(&results)?;
    println!("{targets}");
    let pairs: Vec<(&Workload, &Results)> = workloads.into_iter().zip(&results).collect();
    let document = report::document(run, &pairs, &targets, &drawn)?;
    let file = options.out.join("RESULTS.md");
    report::write(&file, &document)?;
    println!("Written: {} and {} plots beside it.", file.display(), drawn.len());
    Ok(())
}

fn about(redis: &str, options: &Options, time: Duration, took: Duration) -> String {
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    let kind = if options.quick { "A quick run" } else { "A run" };
    format!(
        "{kind} of {:.0} minutes on {cores} cores, redis-server {redis} on the same machine; rates over \
         {time:?}, medians over the rounds, contestants in turn in each round. Compare figures of one \
         run only.",
        (took.as_secs_f64() / 60.0).ceil(),
    )
}

//! Measures `lockctl ls` with many keys, processes and locks; see `bench/README.md`.

use std::io::{BufRead, BufReader, Read, Write};
use std::path::PathBuf;
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use clap::{Parser, Subcommand};
use hdrhistogram::Histogram;
use lock_runtime::LockClient;
use lock_tests::RedisServer;

/// The namespace of the locks.
const NAMESPACE: &str = "scale";

/// Longer than the whole measurement. Such a lease is fixed, so no renewal disturbs.
const LEASE: Duration = Duration::from_secs(3600);

/// The time of the measurement before the scan.
const BEFORE: Duration = Duration::from_secs(5);

/// The pause between two requests of the client whose latency is measured.
const PAUSE: Duration = Duration::from_millis(1);

#[derive(Debug, Parser)]
struct ScaleOptions {
    /// The program [default: `lockctl` in the directory of this one]
    #[arg(long)]
    lockctl: Option<PathBuf>,
    /// The number of keys of the server that is scanned
    #[arg(long, default_value_t = 1_000_000)]
    keys: usize,
    #[command(subcommand)]
    command: Option<HolderCommand>,
}

/// What the measurement starts.
#[derive(Debug, Subcommand)]
enum HolderCommand {
    /// Holds locks until the input ends
    #[command(hide = true)]
    Hold { url: String, name: String, count: usize },
}

fn main() -> ExitCode {
    let options = ScaleOptions::parse();
    let done = match &options.command {
        Some(HolderCommand::Hold { url, name, count }) => hold(url, name, *count),
        None => measure(&options),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error:#}");
            ExitCode::FAILURE
        }
    }
}

fn measure(options: &ScaleOptions) -> Result<()> {
    let program = match &options.lockctl {
        Some(program) => program.clone(),
        None => std::env::current_exe()?.with_file_name("lockctl"),
    };
    scan(&program, options.keys)?;
    let small = list(&program, 50, 1_000)?;
    let large = list(&program, 20, 5_000)?;
    println!("twice as many locks take {:.1} times as long", large / small);
    Ok(())
}

/// Scans a server with many keys, and measures what another client notices.
fn scan(program: &PathBuf, keys: usize) -> Result<()> {
    let server = RedisServer::start();
    fill(&server, keys)?;
    let _holder = start_holder(&server, "scanned", 1_000)?;
    let stop = AtomicBool::new(false);
    let during = |time: Option<Duration>| latency(&server, &stop, time);
    let before = during(Some(BEFORE))?;
    let (scanned, during) = std::thread::scope(|scope| {
        let measured = scope.spawn(|| during(None));
        let scanned = ls(program, &server, &["--scan", "-o", "ndjson"]);
        stop.store(true, Ordering::Relaxed);
        (scanned, measured.join().expect("it does not panic"))
    });
    let ((took, rows), during) = (scanned?, during?);
    ensure!(rows == 1_000, "{rows} locks were found instead of 1,000");
    let p99 = |times: &Histogram<u64>| {
        Duration::from_nanos(times.value_at_quantile(0.99)).as_secs_f64() * 1e3
    };
    let (before, during) = (p99(&before), p99(&during));
    println!("a scan of {keys} keys took {:.1} s", took.as_secs_f64());
    println!(
        "p99 of another client: {before:.3} ms before, {during:.3} ms during the scan: {:+.3} ms, {:.2} times",
        during - before,
        during / before,
    );
    Ok(())
}

fn fill(server: &RedisServer, keys: usize) -> Result<()> {
    let mut connection = redis::Client::open(server.plain_url())?.get_connection()?;
    for first in (0..keys).step_by(10_000) {
        let mut pipe = redis::pipe();
        for key in first..keys.min(first + 10_000) {
            pipe.cmd("SET").arg(format!("data:{key}")).arg("some text").ignore();
        }
        pipe.exec(&mut connection)?;
    }
    Ok(())
}

/// The latencies of single requests, in nanoseconds, for this time or until the stop.
fn latency(
    server: &RedisServer,
    stop: &AtomicBool,
    time: Option<Duration>,
) -> Result<Histogram<u64>> {
    let mut connection = redis::Client::open(server.plain_url())?.get_connection()?;
    let (mut times, began) = (Histogram::new(3)?, Instant::now());
    while time.is_none_or(|time| began.elapsed() < time) && !stop.load(Ordering::Relaxed) {
        let start = Instant::now();
        redis::cmd("GET").arg("data:0").exec(&mut connection)?;
        times.record(u64::try_from(start.elapsed().as_nanos())?)?;
        std::thread::sleep(PAUSE);
    }
    Ok(times)
}

/// Lists the locks of processes. Returns the seconds that the table took.
fn list(program: &PathBuf, processes: usize, locks: usize) -> Result<f64> {
    let server = RedisServer::start();
    let names = (0..processes).map(|number| format!("p{number}"));
    let holders = names.map(|name| start_holder(&server, &name, locks));
    let _holders: Vec<HolderProcess> = holders.collect::<Result<_>>()?;
    let total = processes * locks;
    let mut table = Duration::MAX;
    for (format, header) in [("table", 1), ("ndjson", 0), ("json", 0)] {
        // The fastest of three, because other processes of this machine disturb.
        let mut best = Duration::MAX;
        for _ in 0..3 {
            let (took, rows) = ls(program, &server, &["-o", format, "--answer-timeout", "60s"])?;
            let expected = if format == "json" { 1 } else { total + header };
            ensure!(rows == expected, "{rows} lines instead of {expected}");
            best = best.min(took);
        }
        let seconds = best.as_secs_f64();
        println!("{total} locks of {processes} processes, {format}: {seconds:.3} s");
        table = table.min(if format == "table" { best } else { Duration::MAX });
    }
    Ok(table.as_secs_f64())
}

/// Runs `lockctl ls`. Returns its time, and the number of lines.
fn ls(program: &PathBuf, server: &RedisServer, words: &[&str]) -> Result<(Duration, usize)> {
    let mut command = Command::new(program);
    command.env("LOCK_URL", server.url()).args(["--namespace", NAMESPACE, "ls"]).args(words);
    let began = Instant::now();
    let ended = command.output().context("cannot start lockctl")?;
    let took = began.elapsed();
    let errors = String::from_utf8_lossy(&ended.stderr);
    ensure!(ended.status.success() && errors.is_empty(), "lockctl has failed: {errors}");
    Ok((took, ended.stdout.split(|byte| *byte == b'\n').count() - 1))
}

/// A process that holds locks. Ends when dropped.
struct HolderProcess(Child);

impl Drop for HolderProcess {
    fn drop(&mut self) {
        // Both calls fail if the process has already ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn start_holder(server: &RedisServer, name: &str, count: usize) -> Result<HolderProcess> {
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["hold", &server.url(), name, &count.to_string()]);
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut holder = HolderProcess(command.spawn()?);
    let output = holder.0.stdout.take().context("piped")?;
    let mut line = String::new();
    BufReader::new(output).read_line(&mut line)?;
    ensure!(line == "held\n", "a process does not hold its locks");
    Ok(holder)
}

/// What a process does that holds locks.
#[tokio::main(flavor = "current_thread")]
async fn hold(url: &str, name: &str, count: usize) -> Result<()> {
    let client = LockClient::builder().url(url).namespace(NAMESPACE).connect().await?;
    let mut guards = Vec::with_capacity(count);
    for number in 0..count {
        guards.push(client.lock(format!("{name}:{number}")).lease(LEASE).acquire().await?);
    }
    println!("held");
    std::io::stdout().flush()?;
    // The process answers questions while a thread waits for the end of the input.
    tokio::task::spawn_blocking(|| std::io::stdin().read_to_end(&mut Vec::new())).await??;
    Ok(())
}

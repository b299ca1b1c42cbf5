//! A process that uses locks, for tests that need several processes.
//!
//! ```text
//! lock-helper hold URL KEY LEASE_MS [FORMAT]
//!     Holds the lock, with renewal, and prints "held". FORMAT is "Token", "Redisson" or
//!     "Timestamp".
//! lock-helper wait URL KEY LEASE_MS CALLS
//!     Makes so many fair calls at once, each of which holds the lock for ever.
//! lock-helper mode URL KEY LEASE_MS MODE
//!     Holds the read-write lock, with renewal, and prints "held". MODE is "read" or "write".
//! lock-helper share URL REGISTER KEY LEASE_MS RECORDING
//!     Reads and writes under the read-write lock for ever, with several tasks. Writers write to the
//!     register at the second URL. Prints "shares". Records the holds to RECORDING.
//! lock-helper permits URL KEY LEASE_MS COUNT LIMIT
//!     Holds permits of the semaphore, with renewal. Prints "held", and the outcome at the end.
//! lock-helper share-permits URL KEY LEASE_MS RECORDING
//!     Acquires 1 to 3 of 4 permits of the semaphore for ever, with several tasks. Prints "shares".
//!     Records the holds to RECORDING.
//! lock-helper hold-all URL KEY,KEY,… LEASE_MS
//!     Runs a body under all of these locks that prints "held". Prints the outcome at the end.
//! lock-helper under URL KIND LEASE_MS
//!     Runs a body under a lock of this kind that prints "held" and reads a line. Prints "ended" at its end,
//!     or "dropped".
//! lock-helper exit URL KEY LEASE_MS
//!     Prints "held" in a body, and then exits.
//! lock-helper body URL KEY LEASE_MS
//!     Runs a body that prints "poll" repeatedly. Prints the outcome at the end.
//! lock-helper spin URL KEY LEASE_MS HOW
//!     Polls a future that wakes itself in every poll. If HOW is "guarded", the future is a body;
//!     if HOW is "unguarded", it only holds a guard. Prints how many polls began after the end of
//!     the lease.
//! lock-helper keep URL REGISTER KEY LEASE_MS RECORDING
//!     Holds the lock, with renewal, and writes to the register at the second URL all the time.
//!     Prints "held", and the outcome at the end. Records the hold to the file RECORDING.
//! lock-helper lead URL REGISTER KEY LEASE_MS RECORDING
//!     Campaigns for the leadership of the key for ever. In each term, prints "leads" and the term, and
//!     writes to the register at the second URL all the time. Records the terms to RECORDING.
//! lock-helper periodic URL REGISTER KEY LEASE_MS EVERY_MS HOW
//!     Runs work with this period for ever. HOW is "once", "retried" if failed runs are repeated, or
//!     "recipe" for an annotated function that is called eight times in each period.
//!     Increments the keys "begun:N" and "done:N" at the URL REGISTER, where N is the number of the period.
//! lock-helper logging URL LOCKS LEASE_MS HOW
//!     Runs bodies under LOCKS locks, with renewal. The log subscriber fails at its first event: if
//!     HOW is "blocks", it blocks forever; if HOW is "panics", it panics at each event. Prints
//!     "held", and "holding N lost N" for each line of input. When all bodies have ended, prints
//!     "late N": the longest time in milliseconds from a deadline to the end of its body.
//! lock-helper work URL REGISTER LEASE_MS KEYS TASKS WORK_MS WAIT_MS RECORDING SETTING
//!     Runs the workload; see `workload.rs`. Prints its outcomes at the end.
//! lock-helper count URL COUNTER KEY TASKS HOW
//!     Increments the key "n" at the URL COUNTER with TASKS tasks, each with a GET and a SET. HOW is the kind
//!     of lock: "plain", "fair", "write", "permits" or "set", or "none".
//! lock-helper stand-still
//!     Prints "ready", and after a line of input the milliseconds since then, and those in which the machine did not
//!     stand still.
//! ```
//!
//! The process ends when it reads "release", or at the end of its input.

#![forbid(unsafe_code)]

use std::error::Error;
use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::Poll;
use std::time::{Duration, Instant, SystemTime};

use lock_runtime::{
    Holder, HolderKind, Lock, LockClient, LockError, LockGuard, Replicas, Wait, WireFormat,
    distributed_lock,
};
use lock_tests::workload::{self, Plan, Register, WorkloadHolder};
use lock_tests::{Recorder, TestedKind, boot_nanos, running_time};
use redis::aio::MultiplexedConnection;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::task::JoinSet;

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    match args[..] {
        ["hold", url, key, lease] => hold(client(url, lease).await?.lock(key)).await,
        ["hold", url, key, lease, wire_format] => {
            hold(client(url, lease).await?.lock(key).wire_format(parse(wire_format)?)).await
        }
        ["wait", url, key, lease, calls] => {
            let lock = client(url, lease).await?.lock(key).fair().wait(Wait::Forever);
            let calls = (0..calls.parse()?).map(|_| tokio::spawn(lock.acquire()));
            let _calls: Vec<_> = calls.collect();
            read_input().await;
            Ok(())
        }
        ["hold-all", url, keys, lease] => hold_all(&client(url, lease).await?, keys).await,
        ["under", url, kind, lease] => {
            let kind = TestedKind::named(kind).ok_or("there is no such kind")?;
            under(kind, client(url, lease).await?).await
        }
        ["exit", url, key, lease] => {
            let ending = async {
                println!("held");
                std::process::exit(0)
            };
            Ok(client(url, lease).await?.lock(key).run(ending).await?)
        }
        ["body", url, key, lease] => body(&client(url, lease).await?, key, lease.parse()?).await,
        ["spin", url, key, lease, how] => {
            spin(&client(url, lease).await?, key, lease.parse()?, how == "guarded").await
        }
        ["keep", url, register, key, lease, recording] => {
            let recorder = Recorder::in_file(recording.as_ref())?;
            keep(&client(url, lease).await?, register, key, &recorder).await
        }
        ["mode", url, key, lease, mode] => {
            let lock = client(url, lease).await?.read_write(key);
            hold(if mode == "read" { lock.read() } else { lock.write() }.wait(Wait::Forever)).await
        }
        ["permits", url, key, lease, count, limit] => {
            let semaphore = client(url, lease).await?.semaphore(key, limit.parse()?);
            hold(semaphore.permits(count.parse()?).wait(Wait::Forever)).await
        }
        ["share-permits", url, key, lease, recording] => {
            let recorder = Recorder::in_file(recording.as_ref())?;
            share_permits(&client(url, lease).await?, key, &recorder).await
        }
        ["share", url, register, key, lease, recording] => {
            let recorder = Recorder::in_file(recording.as_ref())?;
            share(&client(url, lease).await?, register, key, &recorder).await
        }
        ["lead", url, register, key, lease, recording] => {
            let recorder = Recorder::in_file(recording.as_ref())?;
            lead(&client(url, lease).await?, register, key, &recorder).await
        }
        ["periodic", url, register, key, lease, every, how] => {
            let every = Duration::from_millis(every.parse()?);
            periodic(&client(url, lease).await?, register, key, every, how).await
        }
        ["logging", url, locks, lease, how] => {
            tracing::subscriber::set_global_default(FailingSubscriber { panics: how == "panics" })?;
            let client = client(url, lease).await?;
            logging(&client, locks.parse()?, Duration::from_millis(lease.parse()?)).await
        }
        ["work", url, register, lease, keys, tasks, work, wait, recording, setting] => {
            let milliseconds = |text: &str| text.parse().map(Duration::from_millis);
            let plan = Plan {
                keys: keys.parse()?,
                tasks: tasks.parse()?,
                work: milliseconds(work)?,
                wait: milliseconds(wait)?,
                faulty_bodies: true,
            };
            let lease = milliseconds(lease)?;
            let builder = LockClient::builder().url(url).lease(lease).wait(plan.wait);
            let builder = match setting {
                "plain" => builder,
                "acknowledged" => builder.acknowledged_by(Replicas::All),
                "quarantine" => builder.quarantine(lease * 2),
                other => return Err(format!("there is no setting {other}").into()),
            };
            // The server may be unreachable when this process starts.
            let client = loop {
                match builder.clone().connect().await {
                    Err(LockError::Unavailable { .. }) => {
                        tokio::time::sleep(Duration::from_millis(20)).await;
                    }
                    connected => break connected?,
                }
            };
            quiet_planned_panics();
            work_on(client, register, plan, Recorder::in_file(recording.as_ref())?).await
        }
        ["count", url, counter, key, tasks, how] => {
            count(url, counter, key, tasks.parse()?, how).await
        }
        ["stand-still"] => stand_still().await,
        _ => Err("usage: see the top of lock_helper.rs".into()),
    }
}

async fn stand_still() -> Result<(), Box<dyn Error>> {
    // Begins to measure.
    let _ = running_time(Instant::now());
    let ready = Instant::now();
    println!("ready");
    read_input().await;
    let running = running_time(ready);
    println!("{} {}", ready.elapsed().as_millis(), running.as_millis());
    Ok(())
}

async fn client(url: &str, lease: &str) -> Result<LockClient, Box<dyn Error>> {
    let lease = Duration::from_millis(lease.parse()?);
    Ok(LockClient::builder().url(url).lease(lease).connect().await?)
}

/// Reads one line of input. Returns `None` at the end of the input.
async fn read_input() -> Option<String> {
    BufReader::new(tokio::io::stdin()).lines().next_line().await.ok().flatten()
}

fn parse(name: &str) -> Result<WireFormat, String> {
    let formats = [WireFormat::Token, WireFormat::Redisson, WireFormat::Timestamp];
    let named = formats.into_iter().find(|known| format!("{known:?}") == name);
    named.ok_or_else(|| format!("there is no wire format {name}"))
}

async fn hold(lock: Lock) -> Result<(), Box<dyn Error>> {
    let guard = lock.acquire().await?;
    println!("held");
    if read_input().await.is_some() {
        guard.release().await?;
        println!("released");
    }
    Ok(())
}

async fn hold_all(client: &LockClient, keys: &str) -> Result<(), Box<dyn Error>> {
    let body = async {
        println!("held");
        read_input().await;
    };
    match client.lock_all(keys.split(',')).run(body).await {
        Err(LockError::Lost { key, reason, .. }) => println!("lost {key} {reason:?}"),
        other => println!("{other:?}"),
    }
    read_input().await;
    Ok(())
}

/// Prints "dropped".
struct PrintsDrop;

impl Drop for PrintsDrop {
    fn drop(&mut self) {
        println!("dropped");
    }
}

async fn under(kind: TestedKind, client: LockClient) -> Result<(), Box<dyn Error>> {
    let body = async {
        let dropped = PrintsDrop;
        let mut input = pin!(read_input());
        let mut has_polled = false;
        poll_fn(|cx| {
            let line = input.as_mut().poll(cx);
            if !has_polled {
                has_polled = true;
                // A process that is suspended now is not in the middle of reading.
                println!("held");
            }
            line
        })
        .await;
        std::mem::forget(dropped);
        println!("ended");
    };
    let _ = kind.run(client, kind.name(), body).await;
    read_input().await;
    Ok(())
}

async fn body(client: &LockClient, key: &str, lease: u64) -> Result<(), Box<dyn Error>> {
    let polls = async {
        let mut ticks = tokio::time::interval(Duration::from_millis((lease / 20).max(1)));
        loop {
            println!("poll");
            ticks.tick().await;
        }
    };
    let outcome: Result<(), LockError> = client.lock(key).run(polls).await;
    match outcome {
        Err(LockError::Lost { reason, .. }) => println!("lost {reason:?}"),
        other => println!("{other:?}"),
    }
    read_input().await;
    Ok(())
}

async fn spin(
    client: &LockClient,
    key: &str,
    lease: u64,
    guarded: bool,
) -> Result<(), Box<dyn Error>> {
    let lease = Duration::from_millis(lease);
    let lock = client.lock(key).lease(lease);
    let late = AtomicU64::new(0);
    // `guard` is the only guard, or a nested one that shares the hold of the enclosing body.
    let polls = |guard: LockGuard| {
        println!("held");
        let late = &late;
        poll_fn(move |cx| {
            late.fetch_add(u64::from(!guard.is_held()), Ordering::Relaxed);
            cx.waker().wake_by_ref();
            Poll::<()>::Pending
        })
    };
    if guarded {
        let body = async { polls(lock.acquire().await.expect("shared")).await };
        let outcome = lock.run(body).await;
        assert!(matches!(outcome, Err(LockError::Lost { .. })), "{outcome:?}");
    } else {
        let body = polls(lock.acquire().await?);
        // Nothing stops the future at the deadline.
        let _ = tokio::time::timeout(lease * 4, body).await;
    }
    println!("late {}", late.into_inner());
    read_input().await;
    Ok(())
}

async fn keep(
    client: &LockClient,
    register: &str,
    key: &str,
    recorder: &Recorder,
) -> Result<(), Box<dyn Error>> {
    let register = Register::open(register).await?;
    let body = async |holder: &WorkloadHolder| -> Result<(), Box<dyn Error>> {
        let token = holder.fence().await?;
        println!("held {token}");
        loop {
            if !holder.write(&register, token).await? {
                println!("refused");
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    match workload::run(client, key, recorder, body).await {
        Err(LockError::Lost { reason, .. }) => println!("lost {reason:?}"),
        other => println!("{other:?}"),
    }
    read_input().await;
    Ok(())
}

/// Readers and writers, whose bodies are short or long.
async fn share(
    client: &LockClient,
    register: &str,
    key: &str,
    recorder: &Recorder,
) -> Result<(), Box<dyn Error>> {
    let register = Register::open(register).await?;
    let mut tasks = JoinSet::new();
    for task in 0..6 {
        let lock = client.read_write(key);
        let lock = if task < 4 { lock.read() } else { lock.write() }.wait(Wait::Forever);
        let (recorder, register) = (recorder.clone(), register.clone());
        tasks.spawn(async move {
            loop {
                let body = async |holder: &WorkloadHolder| {
                    if task >= 4
                        && let Ok(token) = holder.fence().await
                    {
                        let _ = holder.write(&register, token).await;
                    }
                    tokio::time::sleep(Duration::from_millis(fastrand::u64(0..8))).await;
                };
                match workload::run_under(&lock, &recorder, body).await {
                    // The process was suspended during a body or a request.
                    Ok(()) | Err(LockError::Lost { .. } | LockError::Unavailable { .. }) => {}
                    Err(other) => panic!("{other}"),
                }
                tokio::time::sleep(Duration::from_millis(fastrand::u64(0..4))).await;
            }
        });
    }
    println!("shares");
    tasks.join_next().await.map_or(Ok(()), |ended| Ok(ended?))
}

/// Holders of permits, whose bodies are short or long.
async fn share_permits(
    client: &LockClient,
    key: &str,
    recorder: &Recorder,
) -> Result<(), Box<dyn Error>> {
    let mut tasks = JoinSet::new();
    for task in 0..6 {
        let lock = client.semaphore(key, 4).permits(1 + task % 3).wait(Wait::Forever);
        let recorder = recorder.clone();
        tasks.spawn(async move {
            loop {
                let body = async |_: &WorkloadHolder| {
                    tokio::time::sleep(Duration::from_millis(fastrand::u64(0..8))).await;
                };
                match workload::run_under(&lock, &recorder, body).await {
                    // The process was suspended during a body or a request.
                    Ok(()) | Err(LockError::Lost { .. } | LockError::Unavailable { .. }) => {}
                    Err(other) => panic!("{other}"),
                }
                tokio::time::sleep(Duration::from_millis(fastrand::u64(0..4))).await;
            }
        });
    }
    println!("shares");
    tasks.join_next().await.map_or(Ok(()), |ended| Ok(ended?))
}

async fn lead(
    client: &LockClient,
    register: &str,
    key: &str,
    recorder: &Recorder,
) -> Result<(), Box<dyn Error>> {
    let register = Register::open(register).await?;
    let body = async |holder: &WorkloadHolder| -> Result<(), Box<dyn Error>> {
        let token = holder.fence().await?;
        println!("leads {token}");
        loop {
            holder.write(&register, token).await?;
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    workload::lead(client, key, recorder, body).await?
}

async fn periodic(
    client: &LockClient,
    register: &str,
    key: &str,
    every: Duration,
    how: &str,
) -> Result<(), Box<dyn Error>> {
    let register = workload::patient_connection(register).await?;
    let increment = async |counter: String| {
        let mut register = register.clone();
        redis::cmd("INCR").arg(counter).query_async::<u64>(&mut register).await
    };
    let work = client.periodic(key, every).wait(Wait::Forever);
    let work = if how == "retried" { work.retry_failed() } else { work };
    loop {
        let body = async {
            // The period in which the store has begun the run.
            let Ok(Some(run)) = client.last_run(key).await else { return Ok(()) };
            let began = run.began.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
            let period = began.as_millis() / every.as_millis();
            increment(format!("begun:{period}")).await?;
            tokio::time::sleep(every / 8).await;
            increment(format!("done:{period}")).await.map(drop)
        };
        if how == "recipe" {
            recipe(client, key, every, body).await?;
            tokio::time::sleep(every / 8).await;
            continue;
        }
        match work.run_fallible(body).await {
            Ok(result) => result?,
            Err(LockError::Lost { .. }) => {}
            Err(LockError::Busy {
                holder: Holder { kind: HolderKind::NextPeriod, lease_left: Some(left), .. },
                ..
            }) => {
                tokio::time::sleep(left).await;
            }
            Err(error) => return Err(error.into()),
        }
    }
}

#[distributed_lock(key = key, every = every, wait = "0s", on_busy = Ok(()), client = client)]
async fn recipe(
    client: &LockClient,
    key: &str,
    every: Duration,
    body: impl Future<Output = Result<(), redis::RedisError>>,
) -> Result<(), Box<dyn Error>> {
    Ok(body.await?)
}

/// A subscriber that blocks or panics in each event.
struct FailingSubscriber {
    panics: bool,
}

impl tracing::Subscriber for FailingSubscriber {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        metadata.target().starts_with("lock_runtime") && *metadata.level() <= tracing::Level::INFO
    }

    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }

    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}

    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}

    fn event(&self, _: &tracing::Event<'_>) {
        assert!(!self.panics, "{}", workload::PLANNED_PANIC);
        loop {
            std::thread::park();
        }
    }

    fn enter(&self, _: &tracing::span::Id) {}

    fn exit(&self, _: &tracing::span::Id) {}
}

async fn logging(client: &LockClient, locks: usize, lease: Duration) -> Result<(), Box<dyn Error>> {
    quiet_planned_panics();
    // Without the safeguard this process may hang, and with it the test that reads its output.
    std::thread::spawn(move || {
        std::thread::sleep(lease * 20);
        std::process::exit(1);
    });
    let mut bodies = JoinSet::new();
    let held = Arc::new(tokio::sync::Barrier::new(locks + 1));
    for n in 0..locks {
        let (lock, held) = (client.lock(format!("k{n}")), Arc::clone(&held));
        bodies.spawn(async move {
            let deadline = AtomicU64::new(0);
            let body = async {
                // A nested guard shares the hold, and therefore the deadline.
                let guard = lock.acquire().await.expect("shared");
                held.wait().await;
                loop {
                    let left =
                        u64::try_from(guard.remaining().as_nanos()).expect("less than 500 years");
                    deadline.store(boot_nanos() + left, Ordering::Relaxed);
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
            };
            let outcome: Result<(), LockError> = lock.run(body).await;
            assert!(matches!(outcome, Err(LockError::Lost { .. })), "{outcome:?}");
            boot_nanos().saturating_sub(deadline.into_inner())
        });
    }
    held.wait().await;
    println!("held");
    let mut input = BufReader::new(tokio::io::stdin()).lines();
    let mut late = 0;
    loop {
        tokio::select! {
            line = input.next_line() => {
                if line?.is_none() {
                    return Ok(());
                }
                let stats = client.stats();
                println!("holding {} lost {}", stats.held, stats.lost);
            }
            ended = bodies.join_next() => match ended {
                Some(ended) => late = late.max(ended?),
                None => break,
            }
        }
    }
    println!("late {}", late / 1_000_000);
    Ok(())
}

/// Suppresses the messages of planned panics.
fn quiet_planned_panics() {
    let usual = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        let payload = panic.payload();
        let message = payload.downcast_ref::<String>().map(String::as_str);
        if message.or(payload.downcast_ref::<&str>().copied()) != Some(workload::PLANNED_PANIC) {
            usual(panic);
        }
    }));
}

async fn work_on(
    client: LockClient,
    register: &str,
    plan: Plan,
    recorder: Recorder,
) -> Result<(), Box<dyn Error>> {
    let register = Register::open(register).await?;
    let stop = Arc::new(AtomicBool::new(false));
    println!("working");
    let working = workload::work(client.clone(), register, recorder, plan, Arc::clone(&stop));
    let working = tokio::spawn(working);
    read_input().await;
    stop.store(true, Ordering::Relaxed);
    let outcomes = working.await?;
    client.shutdown().await?;
    println!("{outcomes}");
    Ok(())
}

type Added = Result<(), Box<dyn Error + Send + Sync>>;

#[distributed_lock(key = "<key>", wait = "5m")]
async fn add_one_locked(key: &str, server: &mut MultiplexedConnection) -> Added {
    add_one(server).await
}

#[distributed_lock(key = "<key>", fair = true, wait = "5m")]
async fn add_one_in_order(key: &str, server: &mut MultiplexedConnection) -> Added {
    add_one(server).await
}

#[distributed_lock(key = "<key>", mode = "write", wait = "5m")]
async fn add_one_as_writer(key: &str, server: &mut MultiplexedConnection) -> Added {
    add_one(server).await
}

#[distributed_lock(key = "<key>", permits = 1, wait = "5m")]
async fn add_one_with_permit(key: &str, server: &mut MultiplexedConnection) -> Added {
    add_one(server).await
}

#[distributed_lock(keys = ["<key>", "other:<key>"], wait = "5m")]
async fn add_one_with_set(key: &str, server: &mut MultiplexedConnection) -> Added {
    add_one(server).await
}

async fn add_one(server: &mut MultiplexedConnection) -> Added {
    let n: Option<u64> = redis::cmd("GET").arg("n").query_async(server).await?;
    let next = n.unwrap_or(0) + 1;
    redis::cmd("SET").arg("n").arg(next).query_async::<()>(server).await?;
    Ok(())
}

async fn count(
    url: &str,
    counter: &str,
    key: &str,
    tasks: usize,
    how: &str,
) -> Result<(), Box<dyn Error>> {
    LockClient::connect(url).await?.install()?;
    let server = workload::patient_connection(counter).await?;
    println!("ready");
    read_input().await;
    let mut running = JoinSet::new();
    for _ in 0..tasks {
        let (mut server, key, how) = (server.clone(), key.to_owned(), how.to_owned());
        running.spawn(async move {
            match how.as_str() {
                "plain" => add_one_locked(&key, &mut server).await,
                "fair" => add_one_in_order(&key, &mut server).await,
                "write" => add_one_as_writer(&key, &mut server).await,
                "permits" => add_one_with_permit(&key, &mut server).await,
                "set" => add_one_with_set(&key, &mut server).await,
                _ => add_one(&mut server).await,
            }
        });
    }
    while let Some(added) = running.join_next().await {
        added?.map_err(|error| error.to_string())?;
    }
    lock_runtime::global()?.shutdown().await?;
    println!("done");
    Ok(())
}

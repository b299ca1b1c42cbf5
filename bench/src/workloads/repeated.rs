//! One call after the other on one key, measured inside this process.

use std::hint::black_box;
use std::time::{Duration, Instant};

use anyhow::Result;
use lock_runtime::{Lock, LockClient, LockError};
use tokio::sync::Mutex;

use super::Bench;
use crate::contestant::{Contestant, Reach, Role};
use crate::metric as m;
use crate::results::Measurement;

const CALLS: u32 = 200_000;

/// How long the locks linger.
const LINGER: Duration = Duration::from_millis(20);

/// The shape of the calls on a lock that lingers.
pub(crate) const LINGERS: &str = "the lock lingers";

pub(super) fn measure(
    bench: &mut Bench,
    contestant: &Contestant,
    round: usize,
) -> Result<Vec<Measurement>> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let url = bench.server.url();
    // A task, because the future of `block_on` has no worker thread to itself.
    let calls = runtime.block_on(runtime.spawn(by_shape(*contestant, url)))??;
    let memory = calls[0].1;
    let measurement = |(shape, time): &(&str, Duration)| {
        let mut measurement = Measurement::new(*shape, contestant, round);
        measurement.set(m::CALL, time.as_nanos() as f64 / f64::from(CALLS));
        measurement.set(m::OF_UNCONTENDED, time.as_secs_f64() / memory.as_secs_f64());
        measurement
    };
    // Of this library on Redis, only what Redis changes.
    let own = if contestant.reach == Reach::Server { &calls[1..] } else { &calls[..] };
    Ok(own.iter().map(measurement).collect())
}

/// The time of all calls in each shape. The first one is that of uncontended calls in memory.
async fn by_shape(contestant: Contestant, url: String) -> Result<Vec<(&'static str, Duration)>> {
    if contestant.role == Role::Limit {
        return Ok(vec![("uncontended", mutex().await)]);
    }
    let client = LockClient::memory();
    let uncontended = ("uncontended", calls(|| client.lock("order:7")).await?);
    if contestant.reach == Reach::Process {
        let lock = client.lock("order:7");
        let nested = lock.run(calls(|| client.lock("order:7"))).await??;
        return Ok(vec![uncontended, ("nested", nested)]);
    }
    let client = LockClient::connect(&url).await?;
    let lingering = calls(|| client.lock("order:7").linger(LINGER)).await?;
    client.shutdown().await?;
    Ok(vec![uncontended, (LINGERS, lingering)])
}

async fn mutex() -> Duration {
    let mutex = Mutex::new(0_u32);
    let start = Instant::now();
    for call in 0..CALLS {
        *mutex.lock().await = black_box(call);
    }
    start.elapsed()
}

async fn calls(lock: impl Fn() -> Lock) -> Result<Duration, LockError> {
    let start = Instant::now();
    for call in 0..CALLS {
        lock().run(async { black_box(call) }).await?;
    }
    Ok(start.elapsed())
}

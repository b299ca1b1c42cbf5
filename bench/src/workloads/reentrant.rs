//! A nested call, measured inside this process without a server.

use std::hint::black_box;
use std::time::{Duration, Instant};

use anyhow::Result;
use lock_runtime::{LockClient, LockError};
use tokio::sync::Mutex;

use super::Bench;
use crate::contestant::Contestant;
use crate::metric as m;
use crate::results::Measurement;

const CALLS: u32 = 200_000;

pub(super) fn measure(
    _bench: &mut Bench,
    contestant: &Contestant,
    round: usize,
) -> Result<Vec<Measurement>> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let calls: Vec<(&str, Duration)> = runtime.block_on(async {
        if contestant.name == "tokio-mutex" {
            return Ok(vec![("uncontended", mutex().await)]);
        }
        let client = LockClient::memory();
        let lock = client.lock("order:7");
        let uncontended = calls(&client).await?;
        let nested = lock.run(calls(&client)).await??;
        Ok::<_, LockError>(vec![("uncontended", uncontended), ("nested", nested)])
    })?;
    let measurement = |(shape, time): (&str, Duration)| {
        let mut measurement = Measurement::new(shape, contestant, round);
        measurement.set(m::CALL, time.as_nanos() as f64 / f64::from(CALLS));
        measurement
    };
    Ok(calls.into_iter().map(measurement).collect())
}

async fn mutex() -> Duration {
    let mutex = Mutex::new(0_u32);
    let start = Instant::now();
    for call in 0..CALLS {
        *mutex.lock().await = black_box(call);
    }
    start.elapsed()
}

async fn calls(client: &LockClient) -> Result<Duration, LockError> {
    let start = Instant::now();
    for call in 0..CALLS {
        client.lock("order:7").run(async { black_box(call) }).await?;
    }
    Ok(start.elapsed())
}

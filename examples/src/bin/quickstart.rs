//! Shows in three seconds what an annotated function does.
//!
//! ```text
//! cargo run -p lock-examples --bin quickstart
//! LOCK_URL=redis://127.0.0.1:6379 cargo run -p lock-examples --bin quickstart
//! ```
//!
//! With a URL, start two processes at the same time: they take turns.

#![forbid(unsafe_code)]

use std::error::Error;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use lock_runtime::{LockClient, LockError, distributed_lock};
use tokio::time::sleep;

/// A short lease makes the renewals visible. A service should keep the default of 30 s.
const LEASE: Duration = Duration::from_millis(600);

/// Prints events with the time since the start.
#[derive(Clone, Copy)]
struct Story(Instant);

impl Story {
    fn tell(self, who: &str, what: &str) {
        println!("{:>5.2} s  {who:<9} {what}", self.0.elapsed().as_secs_f64());
    }
}

#[distributed_lock(key = "order:<order>", wait = "10s")]
async fn pay(story: Story, who: &str, order: u64) -> Result<(), LockError> {
    story.tell(who, &format!("acquired order:{order}; the payment takes half a second"));
    sleep(Duration::from_millis(500)).await;
    story.tell(who, &format!("finished the payment, releasing order:{order}"));
    Ok(())
}

#[distributed_lock(key = "order:<order>", wait = "300ms")]
async fn cancel(story: Story, who: &str, order: u64) -> Result<(), LockError> {
    story.tell(who, &format!("acquired order:{order} to cancel it"));
    Ok(())
}

#[distributed_lock(key = "report:<day>")]
async fn report(story: Story, who: &str, day: u32) -> Result<(), LockError> {
    story.tell(who, &format!("acquired report:{day} with a {LEASE:?} lease, works for 3 leases"));
    // A nested acquisition shares the held lock without a request. Here it provides the guard.
    let guard = lock_runtime::global()?.lock(format!("report:{day}")).acquire().await?;
    let (end, mut last, mut renewals) = (Instant::now() + LEASE * 3, guard.remaining(), 0);
    while Instant::now() < end {
        sleep(LEASE / 20).await;
        let left = guard.remaining();
        if left > last {
            renewals += 1;
        }
        if left > last && renewals <= 3 {
            let (from, to) = (last.as_millis(), left.as_millis());
            story.tell("watchdog", &format!("renewed the lease from {from} ms to {to} ms"));
        }
        last = left;
    }
    story.tell(who, &format!("finished after {renewals} renewals without losing the lock"));
    Ok(())
}

async fn run() -> Result<(), Box<dyn Error>> {
    let url = std::env::var("LOCK_URL").unwrap_or_else(|_| "memory:".into());
    LockClient::builder().url(&url).lease(LEASE).connect().await?.install()?;
    if url.starts_with("memory:") {
        println!("Locks are stored in memory. Set LOCK_URL=redis://… to store them in Redis.\n");
    } else {
        println!("Locks are stored where LOCK_URL says.\n");
    }
    let story = Story(Instant::now());

    story.tell("", "Ada and Bob both want to pay order 7. One of them has to wait.");
    if !url.starts_with("memory:") {
        story.tell("", "If another process holds the lock, both have to wait.");
    }
    let [ada, bob] = ["Ada", "Bob"].map(|who| tokio::spawn(pay(story, who, 7)));
    ada.await??;
    bob.await??;

    story.tell("", "Dan's report takes longer than the lease. The watchdog renews the lock.");
    story.tell("", "Eve pays order 7 again. Cleo wants to cancel it and waits at most 300 ms.");
    let impatient = async move {
        sleep(Duration::from_millis(50)).await;
        match cancel(story, "Cleo", 7).await {
            Err(error @ LockError::Busy { .. }) => {
                story.tell("Cleo", &format!("gave up: {error}"));
                Ok(())
            }
            other => other,
        }
    };
    let dan = tokio::spawn(report(story, "Dan", 1));
    let eve = tokio::spawn(pay(story, "Eve", 7));
    let cleo = tokio::spawn(impatient);
    for call in [dan, eve, cleo] {
        call.await??;
    }

    lock_runtime::global()?.shutdown().await?;
    story.tell("", "All locks are released.");
    Ok(())
}

#[tokio::main]
async fn main() -> ExitCode {
    match run().await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("quickstart: {error}");
            ExitCode::FAILURE
        }
    }
}

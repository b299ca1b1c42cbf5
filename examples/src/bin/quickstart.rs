//! What an annotated function does, in three seconds.
//!
//! ```text
//! cargo run -p lock-examples --bin quickstart
//! LOCK_URL=redis://127.0.0.1:6379 cargo run -p lock-examples --bin quickstart
//! ```
//!
//! With a URL, start it twice at the same time: the two processes take turns.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use lock_runtime::{LockClient, LockError, distributed_lock};
use tokio::time::sleep;

/// Short, so that renewals can be watched. A service keeps the default of 30 s.
const LEASE: Duration = Duration::from_millis(600);

/// Says what happens, and when.
#[derive(Clone, Copy)]
struct Story(Instant);

impl Story {
    fn tell(self, who: &str, what: &str) {
        println!("{:>5.2} s  {who:<9} {what}", self.0.elapsed().as_secs_f64());
    }
}

#[distributed_lock(key = "order:<order>", wait = "10s")]
async fn pay(story: Story, who: &str, order: u64) -> Result<(), LockError> {
    story.tell(who, &format!("has order:{order}: pays, which takes half a second"));
    sleep(Duration::from_millis(500)).await;
    story.tell(who, &format!("is done: order:{order} is released"));
    Ok(())
}

#[distributed_lock(key = "order:<order>", wait = "300ms")]
async fn cancel(story: Story, who: &str, order: u64) -> Result<(), LockError> {
    story.tell(who, &format!("has order:{order}: cancels"));
    Ok(())
}

#[distributed_lock(key = "report:<day>")]
async fn report(story: Story, who: &str, day: u32) -> Result<(), LockError> {
    story
        .tell(who, &format!("has report:{day}, with a lease of {LEASE:?}: works for three leases"));
    // The same key again shares the lock that is held, at no cost. It is taken for its guard here.
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
            story.tell("watchdog", &format!("renewed it: {from} ms left became {to} ms"));
        }
        last = left;
    }
    story.tell(who, &format!("is done, after {renewals} renewals, and never lost it"));
    Ok(())
}

async fn run() -> Result<(), LockError> {
    let url = std::env::var("LOCK_URL").unwrap_or_else(|_| "memory:".into());
    LockClient::builder().url(&url).watchdog(LEASE).connect().await?.install()?;
    if url.starts_with("memory:") {
        println!("Locks are kept in memory. Set LOCK_URL=redis://… to share them.\n");
    } else {
        println!("Locks are kept in Redis.\n");
    }
    let story = Story(Instant::now());

    story.tell("", "Ada and Bob both want to pay order 7. One of them has to wait.");
    if !url.starts_with("memory:") {
        story.tell("", "If another process has it, both have to.");
    }
    let (ada, bob) = tokio::join!(pay(story, "Ada", 7), pay(story, "Bob", 7));
    ada.and(bob)?;

    story.tell(
        "",
        "Dan's report takes longer than its lease. The watchdog renews its lock meanwhile.",
    );
    story
        .tell("", "Eve pays order 7 again. Cleo wants to cancel it, and waits for 300 ms at most.");
    let impatient = async {
        sleep(Duration::from_millis(50)).await;
        match cancel(story, "Cleo", 7).await {
            Err(error @ LockError::Busy { .. }) => {
                story.tell("Cleo", &format!("gives up: {error}"));
                Ok(())
            }
            other => other,
        }
    };
    let (dan, eve, cleo) = tokio::join!(report(story, "Dan", 1), pay(story, "Eve", 7), impatient);
    dan.and(eve).and(cleo)?;

    lock_runtime::global()?.shutdown().await?;
    story.tell("", "Everything is released. That was it.");
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

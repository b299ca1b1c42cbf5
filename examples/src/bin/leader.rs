//! One of several processes leads. Kill the leader, and another one takes over.
//!
//! ```text
//! cargo run -p lock-examples --bin leader
//! LOCK_URL=redis://127.0.0.1:6379 cargo run -p lock-examples --bin leader
//! ```
//!
//! Start the second command in two terminals, and end the process that leads with `kill -9`. The
//! other one leads as soon as the lease has ended. Ctrl-C resigns, so the other one leads at once.
//! Without a server, the candidates are two tasks that take turns.

#![forbid(unsafe_code)]

use std::process::ExitCode;
use std::time::{Duration, Instant};

use lock_runtime::{LeaderObserver, LockClient, LockError};
use tokio::time::sleep;

/// A short lease, so that a candidate leads soon after the leader was killed.
const LEASE: Duration = Duration::from_secs(2);

/// The work of the leader. It is dropped at once if the leadership is lost.
async fn lead(name: String, term: u64) {
    println!("{name} leads in term {term}");
    loop {
        // Work for which there must be only one process. Send the term with every write.
        sleep(Duration::from_secs(1)).await;
    }
}

/// Campaigns again and again, until the process is told to end.
async fn campaign(client: &LockClient, name: &str) -> Result<(), LockError> {
    let leadership = client.leadership("reports").named(name);
    tokio::select! {
        // The future of the leadership is dropped first, which resigns.
        never = leadership.run(|term| lead(name.to_owned(), term)) => never,
        _ = tokio::signal::ctrl_c() => Ok(()),
    }
}

/// Prints each change, until the process ends.
async fn observe(mut leaders: LeaderObserver) -> Result<(), LockError> {
    let started = Instant::now();
    loop {
        let leader = leaders.next().await?;
        let name = leader.map_or("nobody".to_owned(), |leader| leader.name);
        println!("{:>4.1} s  the leader is {name}", started.elapsed().as_secs_f64());
    }
}

/// Two candidates in one process, each of which leads for a moment.
async fn take_turns(client: &LockClient) -> Result<(), LockError> {
    for _ in 0..2 {
        for name in ["ada", "bob"] {
            let leader = client.leadership("reports").named(name).campaign().await?;
            println!("{name} leads in term {}", leader.term());
            sleep(Duration::from_millis(1500)).await;
            leader.resign().await?;
        }
    }
    Ok(())
}

async fn run() -> Result<(), LockError> {
    let url = std::env::var("LOCK_URL").ok();
    let builder = LockClient::builder().url(url.clone().unwrap_or_else(|| "memory:".to_owned()));
    let client = builder.lease(LEASE).connect().await?;
    let observer = tokio::spawn(observe(client.leadership("reports").observe()));
    match url {
        Some(_) => campaign(&client, &format!("process {}", std::process::id())).await?,
        None => take_turns(&client).await?,
    }
    observer.abort();
    client.shutdown().await
}

#[tokio::main]
async fn main() -> ExitCode {
    match run().await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("leader: {error}");
            ExitCode::FAILURE
        }
    }
}

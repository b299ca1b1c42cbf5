//! Clients that compete for one key, each with connections of its own.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;
use tokio::task::coop::consume_budget;

use super::library::Library;
use super::run::hold_once;
use crate::record::{Record, now};

/// How many clients connect at a time.
const AT_ONCE: usize = 16;

/// Connects this many clients.
pub(super) async fn connect<L: Library>(url: &str, count: usize) -> Result<Vec<L>> {
    let url: Arc<str> = url.into();
    let mut connecting = JoinSet::new();
    let mut clients = Vec::with_capacity(count);
    for _ in 0..count {
        if connecting.len() == AT_ONCE
            && let Some(client) = connecting.join_next().await
        {
            clients.push(client??);
        }
        let url = Arc::clone(&url);
        connecting.spawn(async move { L::connect(&url).await });
    }
    while let Some(client) = connecting.join_next().await {
        clients.push(client??);
    }
    Ok(clients)
}

/// Clients that acquire, hold and release one key until they are stopped.
pub(super) struct Competition {
    /// Ends all tasks when it is dropped.
    stop: watch::Sender<()>,
    tasks: JoinSet<Result<Vec<Record>>>,
    /// Has a permit for each task that has released the lock at least once.
    granted: Arc<Semaphore>,
}

impl Competition {
    /// Starts a task for each client.
    pub(super) fn start<L: Library>(clients: &[L], key: &str, work: Duration) -> Self {
        let (stop, _) = watch::channel(());
        let granted = Arc::new(Semaphore::new(0));
        let mut tasks = JoinSet::new();
        for (task, client) in (0..).zip(clients) {
            let (lock, granted, mut stopped) =
                (client.lock(key), Arc::clone(&granted), stop.subscribe());
            tasks.spawn(async move {
                let mut records = Vec::with_capacity(1024);
                tokio::select! {
                    failed = repeat::<L>(&lock, task, work, |record| {
                        if records.is_empty() {
                            granted.add_permits(1);
                        }
                        records.push(record);
                    }) => failed?,
                    // Gives up an acquisition or a hold. The process ends soon.
                    _ = stopped.changed() => {}
                }
                Ok(records)
            });
        }
        Self { stop, tasks, granted }
    }

    /// Waits until each client has had the lock. Does not end if a client starves or fails.
    pub(super) fn all_granted(&self) -> impl Future<Output = ()> + use<> {
        let (granted, count) = (Arc::clone(&self.granted), self.tasks.len());
        async move {
            let count = u32::try_from(count).unwrap_or(u32::MAX);
            // The semaphore is never closed.
            let _ = granted.acquire_many(count).await;
        }
    }

    /// Stops all tasks.
    pub(super) async fn stop(self) -> Result<Vec<Record>> {
        let Self { stop, mut tasks, .. } = self;
        drop(stop);
        let mut records = Vec::new();
        while let Some(task) = tasks.join_next().await {
            records.append(&mut task?.context("a client failed")?);
        }
        Ok(records)
    }
}

/// Returns only if the library fails.
async fn repeat<L: Library>(
    lock: &L::Lock,
    task: u32,
    work: Duration,
    mut record: impl FnMut(Record),
) -> Result<()> {
    loop {
        // As in a run.
        consume_budget().await;
        let requested = now();
        let (granted, released, release) = hold_once::<L>(lock, work).await?;
        record(Record { requested, granted, released, task, key: 0 });
        release?;
    }
}

//! The keeper thread: renewals, background releases and wake-ups, out of the callers' way.
//!
//! One operating-system thread per client with a runtime of its own, so that a body which blocks
//! its executor, or a runtime that is overloaded or gone, loses no lock. The thread sleeps until
//! something is due. Nothing it starts is awaited in its loop: each batch of renewals and each
//! release is a task of its own, so that one slow answer holds up no other.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use tokio::sync::Notify;

use super::lease::Lease;
use super::releaser::{Cause, Release, Releaser};
use super::watchdog::{Watchdog, retry_pause};
use crate::clock::BootInstant;
use crate::error::LostReason;
use crate::store::{LockStore, Renewal, Renewed, StoreError};

/// How many leases one renewal request carries: enough to make the requests few, few enough that
/// the store is not kept busy for long by any of them.
const BATCH: usize = 100;

/// How long the thread of a client that was dropped without a shutdown goes on releasing.
const LAST_RELEASES: Duration = Duration::from_secs(5);

/// The handle to the thread; the thread ends once this is dropped.
#[derive(Debug)]
pub(crate) struct Keeper {
    shared: Arc<Shared>,
    /// Why there is no thread.
    failure: Option<String>,
}

struct Shared {
    store: Arc<dyn LockStore>,
    watchdog: Watchdog,
    releaser: Releaser,
    /// Told when there is something to do sooner than planned.
    wake: Notify,
    /// Told when a lease has ended or a release is done.
    progress: Notify,
    /// The client is gone: release what is left, then end.
    closing: AtomicBool,
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Keeper")
            .field("held", &self.watchdog.len())
            .field("releasing", &self.releaser.open())
            .finish_non_exhaustive()
    }
}

impl Keeper {
    /// Starts the thread. If the system gives none, [`failure`](Self::failure) says so.
    pub(crate) fn start(store: Arc<dyn LockStore>) -> Self {
        let shared = Arc::new(Shared {
            store,
            watchdog: Watchdog::default(),
            releaser: Releaser::default(),
            wake: Notify::new(),
            progress: Notify::new(),
            closing: AtomicBool::new(false),
        });
        let failure = spawn(&shared).err().map(|error| error.to_string());
        Self { shared, failure }
    }

    /// Why there is no thread, if there is none.
    pub(crate) fn failure(&self) -> Option<&str> {
        self.failure.as_deref()
    }

    /// Takes up a granted lease.
    pub(crate) fn watch(&self, lease: &Arc<Lease>) {
        if self.shared.watchdog.watch(lease) {
            self.shared.wake.notify_one();
        }
    }

    /// A lease has ended, or is about to be released by its caller.
    pub(crate) fn forget(&self, lease: &Arc<Lease>) {
        self.shared.watchdog.forget(lease);
        self.shared.progress.notify_waiters();
    }

    /// The term of a lease has changed.
    pub(crate) fn replan(&self, lease: &Arc<Lease>) {
        if self.shared.watchdog.replan(lease) {
            self.shared.wake.notify_one();
        }
    }

    /// Ends a lease against its holders' will, and cleans up after it.
    pub(crate) fn lose(&self, lease: &Arc<Lease>, reason: LostReason) {
        self.shared.lose(lease, reason);
        self.shared.wake.notify_one();
    }

    /// Releases something in the background. Never blocks, on any thread.
    pub(crate) fn release(&self, release: Release) {
        self.shared.releaser.push(release);
        self.shared.wake.notify_one();
    }

    /// All leases that are held.
    pub(crate) fn held(&self) -> Vec<Arc<Lease>> {
        self.shared.watchdog.held()
    }

    /// How many releases are queued or under way.
    pub(crate) fn releasing(&self) -> usize {
        self.shared.releaser.open()
    }

    /// Waits, for so long at the most, until no lease is held (`held`) or no release is open.
    /// Returns whether it came to that.
    pub(crate) async fn settled(&self, what: Settled, patience: Duration) -> bool {
        let shared = &self.shared;
        let is_settled = || match what {
            Settled::Leases => shared.watchdog.len() == 0,
            Settled::Releases => shared.releaser.open() == 0,
        };
        let settled = async {
            loop {
                let progress = shared.progress.notified();
                if is_settled() {
                    return;
                }
                progress.await;
            }
        };
        tokio::time::timeout(patience, settled).await.is_ok()
    }
}

/// What to wait for before the end.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Settled {
    Leases,
    Releases,
}

impl Drop for Keeper {
    fn drop(&mut self) {
        self.shared.closing.store(true, Ordering::Release);
        self.shared.wake.notify_one();
    }
}

fn spawn(shared: &Arc<Shared>) -> std::io::Result<()> {
    let (started, outcome) = mpsc::sync_channel(1);
    let shared = Arc::clone(shared);
    std::thread::Builder::new().name("lock-keeper".into()).spawn(move || {
        // Built here, because a runtime must not be dropped on a caller's.
        match tokio::runtime::Builder::new_current_thread().enable_all().build() {
            // Nobody listens any more only if the starter was unwound.
            Ok(runtime) => {
                shared.store.adopt(runtime.handle());
                let _ = started.send(Ok(()));
                runtime.block_on(run(shared));
            }
            Err(error) => {
                let _ = started.send(Err(error));
            }
        }
    })?;
    outcome.recv().unwrap_or_else(|gone| Err(std::io::Error::other(gone)))
}

async fn run(shared: Arc<Shared>) {
    let mut last_releases_end = None;
    loop {
        let due = shared.watchdog.due(BootInstant::now());
        for lease in &due.expired {
            shared.lose(lease, lease.overdue());
        }
        for batch in due.renew.chunks(BATCH) {
            tokio::spawn(renew(Arc::clone(&shared), batch.to_vec()));
        }
        for release in shared.releaser.take() {
            let shared = Arc::clone(&shared);
            tokio::spawn(async move {
                release.carry_out(&*shared.store).await;
                shared.releaser.done();
                shared.progress.notify_waiters();
                // The loop may be waiting for this to end.
                shared.wake.notify_one();
            });
        }

        let now = BootInstant::now();
        let mut next = due.next;
        if shared.closing.load(Ordering::Acquire) {
            let end = *last_releases_end.get_or_insert_with(|| now.after(LAST_RELEASES));
            if shared.releaser.open() == 0 || now >= end {
                return;
            }
            next = Some(next.map_or(end, |next| next.min(end)));
        }
        let Some(next) = next else {
            shared.wake.notified().await;
            continue;
        };
        tokio::select! {
            () = shared.wake.notified() => {}
            () = tokio::time::sleep(next.since(now)) => {}
        }
    }
}

/// Renews some leases, each on its own, and plans what each of them needs next.
async fn renew(shared: Arc<Shared>, mut leases: Vec<Arc<Lease>>) {
    let sent = BootInstant::now();
    let mut terms = Vec::with_capacity(leases.len());
    // Ended ones are left out: nothing may extend what is being released.
    leases.retain(|lease| {
        let term = lease.about_to_extend(sent, None);
        terms.extend(term);
        term.is_some()
    });
    let renewals = leases.iter().zip(terms);
    let batch: Vec<Renewal<'_>> = renewals
        .map(|(lease, term)| Renewal { key: lease.key(), token: lease.token(), lease: term })
        .collect();
    let answers = shared.store.renew(&batch).await;
    for (lease, answer) in leases.iter().zip(answers) {
        match answer {
            Ok(Renewed::Extended) => {
                let failures = lease.extended(sent, None);
                if failures > 0 {
                    tracing::info!(key = lease.key(), failures, "renewal works again");
                }
                shared.watchdog.replan(lease);
            }
            Ok(Renewed::Gone) => shared.lose(lease, LostReason::Gone),
            Ok(Renewed::Taken) | Err(StoreError::WrongFormat { .. }) => {
                shared.lose(lease, LostReason::Taken);
            }
            Err(error) => {
                let failures = lease.failed();
                let left = lease.deadline().since(BootInstant::now());
                tracing::warn!(key = lease.key(), %error, failures, ?left, "renewal failed");
                shared.watchdog.retry(lease, retry_pause(lease.term(), failures));
            }
        }
    }
    // The loop sleeps by the plan of before.
    shared.wake.notify_one();
}

impl Shared {
    fn lose(&self, lease: &Arc<Lease>, reason: LostReason) {
        if !lease.lose(reason) {
            return;
        }
        self.watchdog.forget(lease);
        tracing::warn!(key = lease.key(), %reason, "lock lost");
        // Where the key may still be ours, it is freed for others. One that is gone or taken
        // could only become ours again by a renewal on its way, which finds another token.
        if !matches!(reason, LostReason::Gone | LostReason::Taken) {
            self.releaser.push(Release {
                key: Arc::clone(lease.shared_key()),
                token: lease.token().clone(),
                gone_by: lease.gone_by(),
                kept_until: lease.kept_until(),
                cause: Cause::Ended,
                pass: None,
            });
            self.wake.notify_one();
        }
        self.progress.notify_waiters();
    }
}

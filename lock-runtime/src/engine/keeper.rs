//! The keeper thread: renewals, background releases and wake-ups, out of the callers' way.
//!
//! One operating-system thread per client with a runtime of its own, so that a body which blocks
//! its executor, or a runtime that is overloaded or gone, loses no lock. The thread sleeps until
//! something is due. Nothing it starts is awaited in its loop: each batch of renewals and each
//! release is a task of its own, so that one slow answer holds up no other.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tokio::sync::Semaphore;

use super::lease::{Lease, Loss};
use super::releaser::{Release, Releaser};
use super::watchdog::{Watchdog, retry_pause};
use crate::clock::BootInstant;
use crate::error::LostReason;
use crate::protection::Protection;
use crate::store::{Background, LockStore, Renewal, Renewed, StoreError};
use crate::sync::atomic::{AtomicBool, Ordering};
use crate::sync::{Notify, spawn_task, time};

/// How many leases one renewal request carries: enough to make the requests few, few enough that
/// the store is not kept busy for long by any of them.
const BATCH: usize = 100;

/// How many of these requests may be under way: those of a hundred thousand locks that were taken
/// together are not to stand in the way of everything else.
const BATCHES_AT_ONCE: usize = 16;

/// How long the thread of a client that was dropped without a shutdown goes on releasing.
const LAST_RELEASES: Duration = Duration::from_secs(5);

/// The handle to the thread; the thread ends once this is dropped.
#[derive(Debug)]
pub(crate) struct Keeper {
    shared: Arc<Shared>,
}

struct Shared {
    store: Arc<dyn LockStore>,
    watchdog: Watchdog,
    releaser: Releaser,
    /// Of the batches of renewals that may be under way.
    renewing: Semaphore,
    /// Told when there is something to do sooner than planned.
    wake: Notify,
    /// Why there is no thread, or none any more.
    failure: OnceLock<String>,
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
            renewing: Semaphore::new(BATCHES_AT_ONCE),
            wake: Notify::new(),
            failure: OnceLock::new(),
            closing: AtomicBool::new(false),
        });
        if let Err(error) = spawn(&shared) {
            shared.fail(format!(
                "the system gave no thread, or no runtime for it, to renew locks on: {error}"
            ));
        }
        Self { shared }
    }

    /// Why there is no thread, if there is none.
    pub(crate) fn failure(&self) -> Option<&str> {
        self.shared.failure.get().map(String::as_str)
    }

    /// Takes up a granted lease.
    pub(crate) fn watch(&self, lease: &Arc<Lease>) {
        if self.shared.watchdog.watch(lease) {
            self.shared.wake.notify_one();
        }
    }

    /// A lease has ended, or is about to be released by its caller.
    pub(crate) fn forget(&self, lease: &Arc<Lease>) {
        if !Protection::ReleaseEndsRenewal.is_on() {
            return;
        }
        self.shared.watchdog.forget(lease);
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
        // Looked at behind the push, so that a thread which fails meanwhile leaves nothing queued.
        if self.failure().is_some() {
            self.shared.leave_to_expire();
        }
        self.shared.wake.notify_one();
    }

    /// All leases that are held.
    pub(crate) fn held(&self) -> Vec<Arc<Lease>> {
        self.shared.watchdog.held()
    }

    /// How many leases are held.
    pub(crate) fn holding(&self) -> usize {
        self.shared.watchdog.len()
    }

    /// How many releases are queued or under way.
    pub(crate) fn releasing(&self) -> usize {
        self.shared.releaser.open()
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        self.shared.closing.store(true, Ordering::Release);
        self.shared.wake.notify_one();
    }
}

#[cfg(not(all(test, lock_shuttle)))]
fn spawn(shared: &Arc<Shared>) -> std::io::Result<()> {
    let (started, outcome) = std::sync::mpsc::sync_channel(1);
    let shared = Arc::clone(shared);
    if !Protection::KeeperThread.is_on() {
        let here = tokio::runtime::Handle::current();
        shared.store.adopt(&Background { renewals: here.clone(), wake_ups: here });
        tokio::spawn(run(shared));
        return Ok(());
    }
    std::thread::Builder::new().name("lock-keeper".into()).spawn(move || {
        // Built here, because a runtime must not be dropped on a caller's.
        match tokio::runtime::Builder::new_current_thread().enable_all().build() {
            // Nobody listens any more only if the starter was unwound.
            Ok(runtime) => {
                let here = runtime.handle().clone();
                shared.store.adopt(&Background { renewals: here.clone(), wake_ups: here });
                let _ = started.send(Ok(()));
                let watch = Watch(&shared);
                runtime.block_on(run(Arc::clone(&shared)));
                std::mem::forget(watch);
            }
            Err(error) => {
                let _ = started.send(Err(error));
            }
        }
    })?;
    outcome.recv().unwrap_or_else(|gone| Err(std::io::Error::other(gone)))
}

/// In a model the thread is a task.
#[cfg(all(test, lock_shuttle))]
#[expect(clippy::unnecessary_wraps, reason = "as for the thread")]
fn spawn(shared: &Arc<Shared>) -> std::io::Result<()> {
    let here = tokio::runtime::Handle::current();
    shared.store.adopt(&Background { renewals: here.clone(), wake_ups: here });
    spawn_task(run(Arc::clone(shared)));
    Ok(())
}

/// Sees to it that nobody relies on a thread which has ended in a panic.
#[cfg(not(all(test, lock_shuttle)))]
struct Watch<'a>(&'a Arc<Shared>);

#[cfg(not(all(test, lock_shuttle)))]
impl Drop for Watch<'_> {
    fn drop(&mut self) {
        self.0.fail("the thread that renews locks has panicked".into());
    }
}

/// A release under way; counted until it ends in whatever way.
struct Open(Arc<Shared>);

impl Drop for Open {
    fn drop(&mut self) {
        self.0.releaser.done();
        // The loop may be waiting for this to end.
        self.0.wake.notify_one();
    }
}

async fn run(shared: Arc<Shared>) {
    let mut last_releases_end = None;
    loop {
        let mut due = shared.watchdog.due(BootInstant::now());
        for lease in &due.expired {
            shared.expire(lease);
        }
        due.renew.sort_by_key(|lease| lease.format());
        for of_one_format in due.renew.chunk_by(|one, next| one.format() == next.format()) {
            for batch in of_one_format.chunks(BATCH) {
                spawn_task(renew(Arc::clone(&shared), batch.to_vec()));
            }
        }
        for release in shared.releaser.take() {
            let open = Open(Arc::clone(&shared));
            spawn_task(async move { release.carry_out(&*open.0.store, &open.0.releaser).await });
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
            // Whichever comes first in this order: no arm takes anything from another.
            biased;
            () = shared.wake.notified() => {}
            () = time::sleep(next.since(now)) => {}
        }
    }
}

/// Renews some leases, each on its own, and plans what each of them needs next.
async fn renew(shared: Arc<Shared>, mut leases: Vec<Arc<Lease>>) {
    // Never closed, so there is nothing to be refused.
    let _slot = shared.renewing.acquire().await;
    let sent = BootInstant::now();
    let mut terms = Vec::with_capacity(leases.len());
    // Ended ones are left out: nothing may extend what is being released.
    leases.retain(|lease| {
        let term = lease.about_to_renew(sent);
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
                if failures == 1 {
                    tracing::warn!(key = lease.key(), %error, ?left, "renewal failed, trying again");
                } else {
                    tracing::debug!(key = lease.key(), %error, failures, ?left, "renewal failed");
                }
                if Protection::RenewalRetry.is_on() {
                    shared.watchdog.retry(lease, retry_pause(lease.term(), failures));
                }
            }
        }
    }
    // The loop sleeps by the plan of before.
    shared.wake.notify_one();
}

impl Shared {
    fn lose(&self, lease: &Arc<Lease>, reason: LostReason) {
        if let Some(loss) = lease.lose(reason, || self.releaser.begin()) {
            self.clean_up(lease, loss);
            self.releaser.done();
        }
    }

    /// The deadline of a lease that is watched no more was found passed.
    fn expire(&self, lease: &Arc<Lease>) {
        if let Some(loss) = lease.expire(|| self.releaser.begin()) {
            self.clean_up(lease, loss);
            self.releaser.done();
        } else if self.watchdog.watch_again(lease) {
            self.wake.notify_one();
        }
    }

    fn clean_up(&self, lease: &Arc<Lease>, Loss { reason, held }: Loss) {
        if held {
            tracing::warn!(key = lease.key(), %reason, "lock lost");
        } else {
            tracing::debug!(key = lease.key(), %reason, "lock lost on its way to the next holder");
        }
        // Its holders are being told; the last of them has it released. Until then nobody else gets
        // it, for its lease is still good.
        if held && reason == LostReason::ShutDown {
            return;
        }
        self.watchdog.forget(lease);
        // Where the key may still be ours, it is freed for others. One that is gone or taken could
        // only become ours again by a renewal on its way, which finds another token, or by a request
        // of its acquisition that comes late.
        let gone = matches!(reason, LostReason::Gone | LostReason::Taken);
        if !gone || lease.doubt().is_some() {
            self.releaser.push(Release::of(lease, None));
            self.wake.notify_one();
        }
        lease.give_back_pass();
    }

    /// Nothing is renewed from here on, so nothing may be relied on.
    fn fail(&self, cause: String) {
        tracing::error!(%cause, "locks are not to be had any more");
        // Only the first cause counts.
        let _ = self.failure.set(cause);
        for lease in self.watchdog.held() {
            self.lose(&lease, LostReason::RenewalFailed);
        }
        self.leave_to_expire();
    }

    /// What is queued ends with its lease; whoever waits behind it hears of the failure.
    fn leave_to_expire(&self) {
        for release in self.releaser.take() {
            drop(release);
            self.releaser.done();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::pin::Pin;
    use std::task::{Context, Poll, Waker};

    use super::super::gate::{Entry, Gates, Pass, Ticket, Turn};
    use super::super::lease::{Hold, Terms};
    use super::super::releaser::Cause;
    use super::*;
    use crate::error::LockError;
    use crate::store::faulty::{Fault, FaultyStore};
    use crate::store::{MemoryStore, Token};

    const TERM: Duration = Duration::from_secs(10);

    /// Does nothing by itself.
    fn without_a_thread(store: FaultyStore) -> Keeper {
        let shared = Arc::new(Shared {
            store: Arc::new(store),
            watchdog: Watchdog::default(),
            releaser: Releaser::default(),
            renewing: Semaphore::new(BATCHES_AT_ONCE),
            wake: Notify::new(),
            failure: OnceLock::new(),
            closing: AtomicBool::new(false),
        });
        Keeper { shared }
    }

    /// The pass of a key, and one who waits for it.
    fn pass_and_waiter(key: &Arc<str>) -> (Pass, Ticket) {
        let gates = Arc::new(Gates::default());
        let Entry::Open(pass) = gates.enter(key, false) else { panic!("free") };
        let Entry::Queued(waiter) = gates.enter(key, false) else { panic!("taken") };
        (pass, waiter)
    }

    #[test]
    fn a_release_that_comes_after_the_thread_has_died_holds_up_nobody() {
        let keeper = without_a_thread(FaultyStore::new(MemoryStore::new()));
        keeper.shared.fail("it has died".into());
        let key: Arc<str> = Arc::from("k");
        let (pass, mut waiter) = pass_and_waiter(&key);
        keeper.release(Release {
            key,
            token: Token::random().expect("randomness"),
            gone_by: BootInstant::now().after(TERM),
            kept_until: BootInstant::PAST,
            cause: Cause::Ended,
            pass: Some(pass),
        });
        assert_eq!(keeper.releasing(), 0);
        let turn = Pin::new(&mut waiter).poll(&mut Context::from_waker(Waker::noop()));
        assert!(matches!(turn, Poll::Ready(Some(Turn::Free(_)))), "{turn:?}");
    }

    #[tokio::test]
    async fn a_renewal_that_finds_something_else_than_the_lock_is_a_loss() {
        let store = FaultyStore::new(MemoryStore::new());
        store.next_renewals([Fault::WrongFormat]);
        let keeper = without_a_thread(store);
        let token = Token::random().expect("randomness");
        let terms = Terms { term: TERM, renewed: true, max_hold: None, min_hold: Duration::ZERO };
        let hold = Hold::new("k".into(), token, &terms, BootInstant::now(), None, None, false);
        keeper.watch(hold.lease());
        renew(Arc::clone(&keeper.shared), vec![Arc::clone(hold.lease())]).await;
        match hold.loss() {
            Some(LockError::Lost { reason, .. }) => assert_eq!(reason, LostReason::Taken),
            other => panic!("{other:?}"),
        }
        assert_eq!((keeper.holding(), keeper.releasing()), (0, 0), "the key is left alone");
    }
}

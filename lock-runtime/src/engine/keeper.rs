//! The keeper thread: renewals, deadlines and background releases, out of the callers' way.
//!
//! One operating-system thread per client with a runtime of its own, so that a body which blocks
//! its executor, or a runtime that is overloaded or gone, loses no lock. The thread sleeps until
//! something is due. Nothing it starts is awaited in its loop: each batch of renewals or releases is
//! a task of its own, so that one slow answer holds up no other.
//!
//! Nothing on this thread calls foreign code. The wakers of callers are called by the
//! [`Notifier`], which has a thread of its own, and the log is written by [`events`].

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tokio::runtime;
use tokio::sync::Semaphore;
use tracing::Level;

use super::gate::Gates;
use super::lease::{Lease, Loss};
use super::notifier::{Notice, Notifier};
use super::releaser::{Release, Releaser};
use super::watchdog::{Watchdog, retry_pause};
use crate::clock::BootInstant;
use crate::error::LostReason;
use crate::events;
use crate::protection::Protection;
use crate::store::{Background, Lane, LockStore, Renewal, Renewed, StoreError};
use crate::sync::atomic::{AtomicBool, AtomicU64, Ordering};
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
    notifier: Arc<Notifier>,
    /// Of the batches of renewals that may be under way.
    renewing: Semaphore,
    /// Where a store that wakes callers by itself is asked to release.
    wake_ups: OnceLock<runtime::Handle>,
    /// Told when there is something to do sooner than planned.
    wake: Notify,
    /// Locks that were lost while they were held, since the start.
    lost: AtomicU64,
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
    pub(crate) fn start(store: Arc<dyn LockStore>, gates: Arc<Gates>) -> Self {
        let shared = Shared::new(store, Notifier::new(gates));
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
            self.shared.releaser.clear();
        }
        self.shared.wake.notify_one();
    }

    /// A holder has found out by its release that the lock had been lost before.
    pub(crate) fn found_lost(&self) {
        self.shared.lost.fetch_add(1, Ordering::Relaxed);
    }

    /// How many locks were lost while they were held.
    pub(crate) fn lost(&self) -> u64 {
        self.shared.lost.load(Ordering::Relaxed) + self.shared.releaser.found_lost()
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
        if self.failure().is_some() {
            self.shared.notifier.close();
        }
    }
}

#[cfg(not(all(test, lock_shuttle)))]
fn spawn(shared: &Arc<Shared>) -> std::io::Result<()> {
    let own_thread = Protection::KeeperThread.is_on();
    let notifier = Arc::clone(&shared.notifier);
    let wake_ups = start_thread("lock-notifier", move |runtime| {
        // What calls foreign code contains it; this is for what nobody has thought of.
        while catch_unwind(AssertUnwindSafe(|| runtime.block_on(notifier.run()))).is_err() {}
    })?;
    let _ = shared.wake_ups.set(wake_ups.clone());
    if !own_thread {
        let renewals = runtime::Handle::current();
        shared.store.adopt(&Background { renewals, wake_ups });
        tokio::spawn(run(Arc::clone(shared)));
        return Ok(());
    }
    let keeper = Arc::clone(shared);
    let (begin, started) = std::sync::mpsc::sync_channel::<()>(1);
    let renewals = start_thread("lock-keeper", move |runtime| {
        // Not before the store knows this runtime. It fails only if the starter was unwound.
        if started.recv().is_ok() {
            let watch = Watch(&keeper);
            runtime.block_on(run(Arc::clone(&keeper)));
            std::mem::forget(watch);
        }
        keeper.notifier.close();
    });
    let renewals = renewals.inspect_err(|_| shared.notifier.close())?;
    shared.store.adopt(&Background { renewals, wake_ups });
    // Its thread waits for it.
    let _ = begin.send(());
    Ok(())
}

/// Starts a thread with a runtime, and returns a handle to that.
#[cfg(not(all(test, lock_shuttle)))]
fn start_thread(
    name: &str,
    work: impl FnOnce(&runtime::Runtime) + Send + 'static,
) -> std::io::Result<runtime::Handle> {
    let (started, outcome) = std::sync::mpsc::sync_channel(1);
    std::thread::Builder::new().name(name.into()).spawn(move || {
        // Built here, because a runtime must not be dropped on a caller's.
        match runtime::Builder::new_current_thread().enable_all().build() {
            // Nobody listens any more only if the starter was unwound.
            Ok(runtime) => {
                let _ = started.send(Ok(runtime.handle().clone()));
                work(&runtime);
            }
            Err(error) => {
                let _ = started.send(Err(error));
            }
        }
    })?;
    outcome.recv().unwrap_or_else(|gone| Err(std::io::Error::other(gone)))
}

/// In a model the threads are tasks.
#[cfg(all(test, lock_shuttle))]
#[expect(clippy::unnecessary_wraps, reason = "as for the thread")]
fn spawn(shared: &Arc<Shared>) -> std::io::Result<()> {
    let here = runtime::Handle::current();
    shared.store.adopt(&Background { renewals: here.clone(), wake_ups: here });
    let notifier = Arc::clone(&shared.notifier);
    spawn_task(async move { notifier.run().await });
    let keeper = Arc::clone(shared);
    spawn_task(async move {
        run(Arc::clone(&keeper)).await;
        keeper.notifier.close();
    });
    Ok(())
}

/// Sees to it that nobody relies on a thread which has ended in a panic.
#[cfg(not(all(test, lock_shuttle)))]
struct Watch<'a>(&'a Arc<Shared>);

#[cfg(not(all(test, lock_shuttle)))]
impl Drop for Watch<'_> {
    fn drop(&mut self) {
        // This runs while the thread unwinds: another panic would end the process.
        let fail = || self.0.fail("the thread that renews locks has panicked".into());
        let _ = catch_unwind(AssertUnwindSafe(fail));
    }
}

/// A batch of releases under way.
struct Open(Arc<Shared>);

impl Drop for Open {
    fn drop(&mut self) {
        // The loop may be waiting for this to end, or for its place.
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
        for lease in &due.over {
            shared.give_back_pass(lease);
        }
        while let Some(batch) = shared.releaser.next(BootInstant::now()) {
            let open = Open(Arc::clone(&shared));
            let release = async move { batch.carry_out(&*open.0.store, &open.0.releaser).await };
            match shared.wake_ups.get().filter(|_| shared.store.is_immediate()) {
                // It wakes those who wait as it is asked.
                Some(wake_ups) => {
                    wake_ups.spawn(release);
                }
                None => {
                    spawn_task(release);
                }
            }
        }

        let now = BootInstant::now();
        let mut next = due.next.into_iter().chain(shared.releaser.next_later()).min();
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
async fn renew(shared: Arc<Shared>, leases: Vec<Arc<Lease>>) {
    // However this ends, each of them is tried again unless it was planned before.
    let mut unplanned = Unplanned { shared: &shared, leases };
    // Never closed, so there is nothing to be refused.
    let _slot = shared.renewing.acquire().await;
    let sent = BootInstant::now();
    let mut terms = Vec::with_capacity(unplanned.leases.len());
    // Ended ones are left out: nothing may extend what is being released.
    unplanned.leases.retain(|lease| {
        let term = lease.about_to_renew(sent);
        terms.extend(term);
        term.is_some()
    });
    let renewals = unplanned.leases.iter().zip(terms);
    let batch: Vec<Renewal<'_>> = renewals
        .map(|(lease, term)| Renewal { key: lease.key(), token: lease.token(), lease: term })
        .collect();
    let answers = shared.store.renew(&batch, Lane::Keeper).await;
    // The first answer is that of the last one here.
    unplanned.leases.reverse();
    for answer in answers {
        let Some(lease) = unplanned.leases.pop() else { break };
        let planned = catch_unwind(AssertUnwindSafe(|| shared.renewed(&lease, sent, answer)));
        if planned.is_err() {
            unplanned.leases.insert(0, lease);
        }
    }
}

/// Leases that are being renewed.
struct Unplanned<'a> {
    shared: &'a Shared,
    leases: Vec<Arc<Lease>>,
}

impl Drop for Unplanned<'_> {
    fn drop(&mut self) {
        for lease in &self.leases {
            let failures = lease.failed();
            self.shared.watchdog.retry(lease, retry_pause(lease.term(), failures));
        }
        // The loop sleeps by the plan of before.
        self.shared.wake.notify_one();
    }
}

impl Shared {
    fn new(store: Arc<dyn LockStore>, notifier: Arc<Notifier>) -> Arc<Self> {
        Arc::new(Self {
            store,
            watchdog: Watchdog::default(),
            releaser: Releaser::new(Arc::clone(&notifier)),
            notifier,
            renewing: Semaphore::new(BATCHES_AT_ONCE),
            wake_ups: OnceLock::new(),
            wake: Notify::new(),
            lost: AtomicU64::new(0),
            failure: OnceLock::new(),
            closing: AtomicBool::new(false),
        })
    }

    /// A renewal that was sent at `sent` has an answer.
    fn renewed(&self, lease: &Arc<Lease>, sent: BootInstant, answer: Result<Renewed, StoreError>) {
        match answer {
            Ok(Renewed::Extended) => {
                let failures = lease.extended(sent, None);
                if failures > 0 {
                    let key = Arc::clone(lease.shared_key());
                    events::emit(Level::INFO, move || {
                        tracing::info!(key = &*key, failures, "renewal works again");
                    });
                }
                self.watchdog.replan(lease);
            }
            Ok(Renewed::Gone) => self.lose(lease, LostReason::Gone),
            Ok(Renewed::Taken) | Err(StoreError::WrongFormat { .. }) => {
                self.lose(lease, LostReason::Taken);
            }
            Err(error) => {
                let failures = lease.failed();
                log_failure(lease, error, failures);
                if Protection::RenewalRetry.is_on() {
                    self.watchdog.retry(lease, retry_pause(lease.term(), failures));
                }
            }
        }
    }

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

    fn clean_up(&self, lease: &Arc<Lease>, loss: Loss) {
        self.notifier.leave(Notice::Lost(Arc::clone(lease)));
        let Loss { reason, held } = loss;
        if held {
            self.lost.fetch_add(1, Ordering::Relaxed);
        }
        log_loss(lease, loss);
        if loss.leaves_the_key() {
            // Its holders are being told; the last of them has it released. One that the client is
            // shut down under is waited for, however long it takes.
            if reason == LostReason::ShutDown {
                self.watchdog.forget(lease);
            } else if self.watchdog.leave(lease) {
                self.wake.notify_one();
            }
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
        self.give_back_pass(lease);
    }

    fn give_back_pass(&self, lease: &Lease) {
        if let Some(pass) = lease.take_pass() {
            self.notifier.leave(Notice::Free(pass));
        }
    }

    /// Nothing is renewed from here on, so nothing may be relied on.
    fn fail(&self, cause: String) {
        let text = cause.clone();
        events::emit(Level::ERROR, move || {
            tracing::error!(cause = text, "locks are not to be had any more");
        });
        // Only the first cause counts.
        let _ = self.failure.set(cause);
        for lease in self.watchdog.held() {
            self.lose(&lease, LostReason::RenewalFailed);
            // Nobody comes back to it.
            self.give_back_pass(&lease);
        }
        // What is queued ends with its lease; whoever waits behind it hears of the failure.
        self.releaser.clear();
    }
}

fn log_failure(lease: &Arc<Lease>, error: StoreError, failures: u32) {
    let (key, left) = (Arc::clone(lease.shared_key()), lease.deadline().since(BootInstant::now()));
    if failures == 1 {
        events::emit(Level::WARN, move || {
            tracing::warn!(key = &*key, %error, ?left, "renewal failed, trying again");
        });
    } else {
        events::emit(Level::DEBUG, move || {
            tracing::debug!(key = &*key, %error, failures, ?left, "renewal failed");
        });
    }
}

fn log_loss(lease: &Arc<Lease>, Loss { reason, held }: Loss) {
    let key = Arc::clone(lease.shared_key());
    if held {
        events::emit(Level::WARN, move || tracing::warn!(key = &*key, %reason, "lock lost"));
    } else {
        events::emit(Level::DEBUG, move || {
            tracing::debug!(key = &*key, %reason, "lock lost on its way to the next holder");
        });
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
    fn without_threads(store: FaultyStore, gates: &Arc<Gates>) -> Keeper {
        Keeper { shared: Shared::new(Arc::new(store), Notifier::new(Arc::clone(gates))) }
    }

    /// Does what the notifier's thread does, until it is closed.
    async fn tell(keeper: &Keeper) {
        keeper.shared.notifier.close();
        keeper.shared.notifier.run().await;
    }

    /// The pass of a key, and one who waits for it.
    fn pass_and_waiter(gates: &Arc<Gates>, key: &Arc<str>) -> (Pass, Ticket) {
        let Entry::Open(pass) = gates.enter(key, false) else { panic!("free") };
        let Entry::Queued(waiter) = gates.enter(key, false) else { panic!("taken") };
        (pass, waiter)
    }

    #[tokio::test]
    async fn a_release_that_comes_after_the_thread_has_died_holds_up_nobody() {
        let gates = Arc::new(Gates::default());
        let keeper = without_threads(FaultyStore::new(MemoryStore::new()), &gates);
        keeper.shared.fail("it has died".into());
        let key: Arc<str> = Arc::from("k");
        let (pass, mut waiter) = pass_and_waiter(&gates, &key);
        keeper.release(Release {
            key,
            token: Token::random().expect("randomness"),
            gone_by: BootInstant::now().after(TERM),
            kept_until: BootInstant::PAST,
            valid_until: BootInstant::PAST,
            cause: Cause::Ended,
            pass: Some(pass),
        });
        assert_eq!(keeper.releasing(), 0);
        tell(&keeper).await;
        let turn = Pin::new(&mut waiter).poll(&mut Context::from_waker(Waker::noop()));
        assert!(matches!(turn, Poll::Ready(Some(Turn::Free(_)))), "{turn:?}");
    }

    #[tokio::test]
    async fn a_renewal_that_finds_something_else_than_the_lock_is_a_loss() {
        let store = FaultyStore::new(MemoryStore::new());
        store.next_renewals([Fault::WrongFormat]);
        let keeper = without_threads(store, &Arc::default());
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
        assert_eq!(keeper.lost(), 1);
    }

    /// Whatever goes wrong in one of them, or in the request for all.
    #[tokio::test]
    async fn a_renewal_that_panics_is_tried_again() {
        let store = FaultyStore::new(MemoryStore::new());
        store.next_renewals([Fault::Panic]);
        let keeper = without_threads(store, &Arc::default());
        let terms = Terms { term: TERM, renewed: true, max_hold: None, min_hold: Duration::ZERO };
        let sent = BootInstant::now();
        let leases: Vec<Arc<Lease>> = (0..3)
            .map(|n| {
                let (key, token) = (format!("k{n}").into(), Token::random().expect("randomness"));
                let hold = Hold::new(key, token, &terms, sent, None, None, false);
                keeper.watch(hold.lease());
                Arc::clone(hold.lease())
            })
            .collect();
        // As the keeper does when they are due.
        assert_eq!(keeper.shared.watchdog.due(sent.after(TERM / 2)).renew.len(), leases.len());
        let renewing = tokio::spawn(renew(Arc::clone(&keeper.shared), leases.clone()));
        assert!(renewing.await.is_err_and(|error| error.is_panic()));
        let again = keeper.shared.watchdog.due(BootInstant::now().after(TERM / 2)).renew;
        assert_eq!(again.len(), leases.len(), "and none waits for its deadline");
    }
}

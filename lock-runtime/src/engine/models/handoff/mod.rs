//! The races of a lock that is handed off between tasks of a process, or goes to another process.
//!
//! Each task that has the lock enters a [`CriticalSection`] with its hold. The critical section
//! asserts that at most one task with a valid hold is inside. While a task is inside, and at the
//! end of each model, the content of the store is checked as well.

mod drop_against_handoff;
mod linger_against_calls;
mod loss_against_handoff;
mod renewal_against_drop;
mod renewal_against_handoff;
mod shared_locks;
mod shutdown_against_handoff;
mod stale_guards;
mod waiter_count_against_handoff;

use shuttle::future::JoinHandle;

use super::*;
use crate::guard::LockGuard;
use crate::telemetry::AcquiredBy;

/// Accepts a lock that was handed off, as an acquisition of the engine does.
async fn accept(engine: &TestEngine, handoff: Handoff, request: &Request) -> Result<Hold, ()> {
    match handoff.accept((engine.store(), Mode::Exclusive), &request.terms) {
        Ok(hold) => Ok(hold),
        Err(handoff) => {
            match handoff.renew((engine.store(), Mode::Exclusive), &request.terms).await {
                Ok(hold) => Ok(hold),
                Err((lease, permit)) => {
                    if lease.close() {
                        drop(engine.free(&lease, permit).await);
                    }
                    Err(())
                }
            }
        }
    }
}

/// What the lock protects.
#[derive(Default)]
struct CriticalSection {
    inside: StdMutex<Vec<(u64, Hold)>>,
    record: StdMutex<SectionRecord>,
}

/// The history of a critical section.
#[derive(Default)]
struct SectionRecord {
    /// The number of entries so far.
    entries: u64,
    /// The owner of the lease of the last counted hold.
    lease: Option<OwnerId>,
    /// The holds of that lease that began while another process waited and no release was in
    /// progress. A release may count the waiters, so holds during a release are not counted.
    overtime: u32,
    /// The releases in progress.
    releases: u32,
}

/// An entry into the critical section, with its number. Dropping it is the exit.
struct SectionEntry<'a>(&'a CriticalSection, u64);

impl CriticalSection {
    fn enter(&self, hold: &Hold) -> SectionEntry<'_> {
        let number = {
            let mut record = lock(&self.record);
            record.entries += 1;
            record.entries
        };
        lock(&self.inside).push((number, hold.clone()));
        // Checked with nothing locked, because the check has scheduling points.
        let inside = lock(&self.inside).clone();
        let mut others = inside.iter().filter(|(other, _)| *other != number);
        let now = BootInstant::now();
        // A task whose own hold was lost before this check does nothing inside.
        let is_alone = !others.any(|(_, other)| other.is_valid(now)) || !hold.is_valid(now);
        assert!(is_alone, "two tasks are inside");
        SectionEntry(self, number)
    }
}

impl Drop for SectionEntry<'_> {
    fn drop(&mut self) {
        lock(&self.0.inside).retain(|(number, _)| *number != self.1);
    }
}

/// A process, and the critical section that it may share with other processes.
#[derive(Clone)]
struct HandoffFixture {
    process: Process,
    section: Arc<CriticalSection>,
}

/// An acquisition with the given terms; `None` if it fails.
type Take = fn(TestEngine, Request) -> MaybeReady<'static, Option<Hold>>;

/// The acquisition of the engine.
fn take(engine: TestEngine, request: Request) -> MaybeReady<'static, Option<Hold>> {
    MaybeReady::pending(async move { acquire(&engine, request).await.ok() })
}

impl HandoffFixture {
    fn new() -> Self {
        Self { process: Process::start(), section: Arc::default() }
    }

    fn engine(&self) -> &TestEngine {
        &self.process.engine
    }

    fn guard(&self, hold: Hold) -> LockGuard {
        LockGuard::new(Arc::clone(self.engine()), hold, AcquiredBy::Store)
    }

    /// Stays in the critical section for a while, and asserts that the hold keeps its key.
    async fn stay_inside(&self, guard: &LockGuard) {
        let _entry = self.section.enter(guard.hold());
        for _ in 0..thread_rng().gen_range(1..4) {
            self.process.network.assert_owns_key_in_store(guard.hold());
            yield_now().await;
        }
    }

    /// Ends a hold in one of the possible ways, chosen at random.
    async fn end_hold(&self, guard: LockGuard) {
        match thread_rng().gen_range(0..3) {
            0 => drop(guard),
            1 => drop(guard.release().await),
            // The release is dropped before its end.
            _ => tokio::select! {
                biased;
                _ = guard.release() => {}
                () = yield_randomly(4) => {}
            },
        }
    }

    /// Acquires the lock, stays in the critical section and ends the hold. Returns whether the
    /// acquisition succeeded.
    async fn hold_once(self, take: Take, request: Request) -> bool {
        let Some(hold) = take(self.engine().clone(), request).await else { return false };
        let guard = self.guard(hold);
        self.stay_inside(&guard).await;
        self.end_hold(guard).await;
        true
    }

    /// Waits until the local queue has this number of waiters.
    async fn wait_for_queued(&self, waiters: usize) {
        while self.engine().queues().queued() < waiters {
            yield_now().await;
        }
    }
}

/// The request with a lease that is twice as long.
fn longer(request: Request) -> Request {
    Request { terms: Terms { term: request.terms.term * 2, ..request.terms }, ..request }
}

/// A request for one of the possible leases, chosen at random.
fn random_request() -> Request {
    [request, fixed, || longer(fixed()), || longer(request())][thread_rng().gen_range(0..4)]()
}

/// Queues for a key. Returns the offer, or `None` if the key is free.
async fn offer(engine: &TestEngine, key: &Arc<str>) -> Option<Offer> {
    match engine.queues().enter(key, false) {
        Entered::Queued(waiter) => waiter.await,
        _ => None,
    }
}

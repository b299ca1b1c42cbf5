//! Releases that nobody awaits: of guards that were dropped, of releases that failed, and the
//! undoing of requests whose answer was never seen.
//!
//! Each is a compare-and-delete of one token, so it can be repeated freely and can never touch a
//! successor's hold. It is tried until the store gives a definite answer, or until the key must
//! have expired by itself; soon after that nothing is sent.
//!
//! An undo must not overtake what it undoes. It is sent on two lanes at once: on that of the
//! original request, and on the keeper's, which works even if the original lane is dead or its
//! runtime blocked. Where the first went over the very connection of the original, it was served
//! behind it, and that is the end. Where it did not, the original may still be held up somewhere,
//! even if something was freed: that may have been another try of the same acquisition, or its
//! hold. So the undo is sent once more after a while; what arrives even later ends with its lease.
//!
//! However many there are, they are sent in batches, of which few are under way on each lane. So a
//! burst of them takes neither the store nor the keeper's connection from the renewals.
//!
//! Keeps the promises that nothing leaks, and that what is unknown is cleaned up.

use std::collections::{BTreeMap, VecDeque};
use std::num::NonZeroU64;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use tokio::runtime;
use tracing::Level;

use super::backoff::Backoff;
use super::gate::Pass;
use super::lease::Lease;
use super::notifier::{Notice, Notifier};
use crate::clock::BootInstant;
use crate::error::LostReason;
use crate::events;
use crate::store::{self, Lane, LockStore, Released, StoreError, Token};
use crate::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use crate::sync::{Mutex, MutexGuard};

/// The first and the longest pause between two tries.
const PAUSES: (Duration, Duration) = (Duration::from_millis(25), Duration::from_secs(1));

/// How long after its lease a key may still be there, because its request took so long to arrive.
const LATE: Duration = Duration::from_secs(5);

/// How many releases go into one request.
const BATCH: usize = 100;

/// How many such requests may be under way on one lane.
const BATCHES_PER_LANE: usize = 4;

/// One thing to release.
#[derive(Debug)]
pub(crate) struct Release {
    pub(crate) key: Arc<str>,
    pub(crate) token: Token,
    /// When the key has expired by itself.
    pub(crate) gone_by: BootInstant,
    /// Until when the key is to stay, so that it is left to expire instead.
    pub(crate) kept_until: BootInstant,
    /// Until when the hold was valid as far as its holder knew: a key that is gone before that was
    /// lost. `PAST` if nothing can be told from it.
    pub(crate) valid_until: BootInstant,
    pub(crate) cause: Cause,
    /// Given back after the first answer to the keeper, whatever it is: from then on others of this
    /// process can do no worse by trying for themselves.
    pub(crate) pass: Option<Pass>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Cause {
    /// A hold has ended.
    Ended,
    /// A request may have taken effect unseen.
    Unanswered(Option<Origin>),
}

/// Where a request was sent from whose answer was never seen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Origin {
    pub(crate) runtime: runtime::Id,
    /// The connection over which it went; `None` if there were several, or that is not known.
    pub(crate) connection: Option<NonZeroU64>,
}

/// A release on one lane, until that is done.
#[derive(Debug)]
struct Job {
    release: Release,
    lane: Lane,
    /// What its answer is worth.
    step: Step,
    failures: u32,
    backoff: Backoff,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    /// Any definite answer is the end.
    Last,
    /// Another one is to be sent after a while.
    First,
    /// Only one that came over this connection is the end; else another is to be sent.
    Behind(Option<NonZeroU64>),
}

/// The releases of one client.
#[derive(Debug)]
pub(crate) struct Releaser {
    notifier: Arc<Notifier>,
    jobs: Mutex<Jobs>,
    /// Queued or under way.
    open: AtomicUsize,
    /// Locks that were found lost by a release.
    found_lost: AtomicU64,
}

#[derive(Debug, Default)]
struct Jobs {
    /// What is to be sent, by lane. There are few lanes.
    ready: Vec<Queue>,
    /// What is to be sent later; the number tells apart those of one instant.
    later: BTreeMap<(BootInstant, u64), Job>,
    number: u64,
}

#[derive(Debug)]
struct Queue {
    lane: Lane,
    jobs: VecDeque<Job>,
    /// Batches that are under way.
    under_way: usize,
}

/// Some releases of one lane and one format, to be sent together.
#[derive(Debug)]
pub(crate) struct Batch {
    lane: Lane,
    jobs: Vec<Job>,
}

impl Jobs {
    fn queue(&mut self, lane: Lane) -> &mut Queue {
        let at = self.ready.iter().position(|queue| queue.lane == lane).unwrap_or_else(|| {
            // Those of runtimes that are gone, for instance.
            self.ready.retain(|queue| queue.under_way > 0 || !queue.jobs.is_empty());
            self.ready.push(Queue { lane, jobs: VecDeque::new(), under_way: 0 });
            self.ready.len() - 1
        });
        &mut self.ready[at]
    }

    fn later(&mut self, at: BootInstant, job: Job) {
        self.number += 1;
        self.later.insert((at, self.number), job);
    }
}

impl Releaser {
    pub(crate) fn new(notifier: Arc<Notifier>) -> Self {
        let (open, found_lost) = (AtomicUsize::new(0), AtomicU64::new(0));
        Self { notifier, jobs: Mutex::default(), open, found_lost }
    }

    /// There will be something to release; to be reported by [`done`](Self::done).
    pub(crate) fn begin(&self) {
        self.open.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn push(&self, release: Release) {
        let job = |release, lane, step| {
            self.begin();
            Job { release, lane, step, failures: 0, backoff: Backoff::new(PAUSES.0, PAUSES.1) }
        };
        let mut jobs = self.jobs();
        let step = match release.cause {
            Cause::Ended => Step::Last,
            Cause::Unanswered(None) => Step::First,
            Cause::Unanswered(Some(origin)) => {
                let behind = release.behind();
                let lane = Lane::Runtime(origin.runtime);
                let behind = job(behind, lane, Step::Behind(origin.connection));
                jobs.queue(lane).jobs.push_back(behind);
                // The other one has the second try, where one is needed.
                Step::Last
            }
        };
        jobs.queue(Lane::Keeper).jobs.push_back(job(release, Lane::Keeper, step));
    }

    /// The next batch that can be sent, to be [carried out](Batch::carry_out).
    pub(crate) fn next(&self, now: BootInstant) -> Option<Batch> {
        let (mut over, mut batch) = (Vec::new(), None);
        {
            let mut jobs = self.jobs();
            while let Some(first) = jobs.later.first_entry()
                && first.key().0 <= now
            {
                let job = first.remove();
                jobs.queue(job.lane).jobs.push_back(job);
            }
            for queue in &mut jobs.ready {
                let mut taken: Vec<Job> = Vec::new();
                while taken.len() < BATCH && queue.under_way < BATCHES_PER_LANE {
                    let Some(job) = queue.jobs.pop_front() else { break };
                    if job.is_over(now) {
                        over.push(job);
                        continue;
                    }
                    let format = job.release.token.format();
                    if taken.last().is_some_and(|last| last.release.token.format() != format) {
                        queue.jobs.push_front(job);
                        break;
                    }
                    taken.push(job);
                }
                if queue.jobs.capacity() > BATCH.max(queue.jobs.len() * 8) {
                    queue.jobs.shrink_to(queue.jobs.len() * 2);
                }
                if !taken.is_empty() {
                    queue.under_way += 1;
                    batch = Some(Batch { lane: queue.lane, jobs: taken });
                    break;
                }
            }
        }
        // The keys are gone by themselves.
        for job in over {
            self.end(job);
        }
        batch
    }

    /// When there is something to send that has to wait until then.
    pub(crate) fn next_later(&self) -> Option<BootInstant> {
        self.jobs().later.first_key_value().map(|((at, _), _)| *at)
    }

    /// Drops all that is queued.
    pub(crate) fn clear(&self) {
        let jobs = std::mem::take(&mut *self.jobs());
        let ready = jobs.ready.into_iter().flat_map(|queue| queue.jobs);
        for job in ready.chain(jobs.later.into_values()) {
            self.end(job);
        }
    }

    pub(crate) fn done(&self) {
        self.open.fetch_sub(1, Ordering::Relaxed);
    }

    /// How many are queued or under way.
    pub(crate) fn open(&self) -> usize {
        self.open.load(Ordering::Relaxed)
    }

    /// How many locks were found lost by a release that nobody awaited.
    pub(crate) fn found_lost(&self) -> u64 {
        self.found_lost.load(Ordering::Relaxed)
    }

    /// Counted as done only when all of it is. The pass is not dropped here, because that calls
    /// foreign code.
    fn end(&self, mut job: Job) {
        if let Some(pass) = job.release.pass.take() {
            self.notifier.leave(Notice::Free(pass));
        }
        self.done();
    }

    fn jobs(&self) -> MutexGuard<'_, Jobs> {
        self.jobs.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Release {
    /// Of a hold that has ended. If a request of its acquisition may still take effect, that would
    /// take the key once more, so it is undone as well.
    pub(crate) fn of(lease: &Lease, pass: Option<Pass>) -> Self {
        Self {
            key: Arc::clone(lease.shared_key()),
            token: lease.token().clone(),
            gone_by: lease.gone_by(),
            kept_until: lease.kept_until(),
            valid_until: BootInstant::PAST,
            cause: lease.doubt().map_or(Cause::Ended, |origin| Cause::Unanswered(Some(origin))),
            pass,
        }
    }

    /// The same on another lane, without the pass.
    fn behind(&self) -> Self {
        let (key, token) = (Arc::clone(&self.key), self.token.clone());
        let Self { gone_by, kept_until, valid_until: _, cause, pass: _, .. } = *self;
        Self { key, token, gone_by, kept_until, valid_until: BootInstant::PAST, cause, pass: None }
    }
}

impl Batch {
    /// Sends it, and plans what each of them needs next. Runs on one of the background runtimes.
    pub(crate) async fn carry_out(self, store: &dyn LockStore, releaser: &Releaser) {
        // However this ends, nothing is forgotten.
        let mut unplanned = Unplanned { releaser, batch: self };
        let sent = BootInstant::now();
        let answered = {
            let requests: Vec<store::Release<'_>> =
                unplanned.batch.jobs.iter().map(|job| job.release.request(sent)).collect();
            store.release_all(&requests, unplanned.batch.lane).await
        };
        let jobs = std::mem::take(&mut unplanned.batch.jobs);
        let mut answers = answered.answers.into_iter();
        for mut job in jobs {
            let short = || Err(StoreError::Unknown("fewer answers than releases".into()));
            let answer = answers.next().unwrap_or_else(short);
            if job.lane == Lane::Keeper {
                job.give_back_pass(&answer, &releaser.notifier);
            }
            job.report(&answer, sent, releaser);
            releaser.plan(job, answer.is_ok(), answered.connection);
        }
    }
}

impl Releaser {
    fn plan(&self, mut job: Job, answered: bool, connection: Option<NonZeroU64>) {
        let now = BootInstant::now();
        let is_behind = |before: Option<NonZeroU64>| before.is_some() && before == connection;
        let pause = match (job.step, answered) {
            (Step::Last, true) => return self.end(job),
            (Step::Behind(before), true) if is_behind(before) => return self.end(job),
            (Step::First | Step::Behind(_), true) | (Step::Behind(_), false) => {
                // The keeper's lane is as good as any by then.
                (job.step, job.lane) = (Step::Last, Lane::Keeper);
                PAUSES.1
            }
            (Step::Last | Step::First, false) => job.backoff.pause(),
        };
        let left = job.release.gone_by.since(now);
        if left.is_zero() {
            return self.end(job);
        }
        self.jobs().later(now.after(pause.min(left)), job);
    }

    /// A batch of a lane has ended in whatever way.
    fn is_back(&self, lane: Lane) {
        let mut jobs = self.jobs();
        let queue = jobs.queue(lane);
        queue.under_way = queue.under_way.saturating_sub(1);
    }
}

/// A batch under way. Whatever ends it, its jobs are tried again unless they were planned before.
struct Unplanned<'a> {
    releaser: &'a Releaser,
    batch: Batch,
}

impl Drop for Unplanned<'_> {
    fn drop(&mut self) {
        self.releaser.is_back(self.batch.lane);
        for mut job in self.batch.jobs.drain(..) {
            job.give_back_pass(&Err(StoreError::Unknown(String::new())), &self.releaser.notifier);
            self.releaser.plan(job, false, None);
        }
    }
}

impl Release {
    fn request(&self, now: BootInstant) -> store::Release<'_> {
        store::Release { key: &self.key, token: &self.token, keep: self.kept_until.since(now) }
    }
}

impl Job {
    /// Whether the key is gone by itself. A hold is released once whatever the time is: there are no
    /// more of these than there were holds.
    fn is_over(&self, now: BootInstant) -> bool {
        let was_sent = self.failures > 0 || self.release.cause != Cause::Ended;
        was_sent && self.release.gone_by.after(LATE) <= now
    }

    fn give_back_pass(&mut self, answer: &Result<Released, StoreError>, notifier: &Notifier) {
        let Some(mut pass) = self.release.pass.take() else { return };
        if let Ok(Released::Freed { others }) = answer {
            pass.freed(*others);
        }
        notifier.leave(Notice::Free(pass));
    }

    /// Logs what is worth knowing, and counts a loss.
    fn report(&mut self, answer: &Result<Released, StoreError>, sent: BootInstant, to: &Releaser) {
        let (key, failures) = (Arc::clone(&self.release.key), self.failures);
        let lost = answer.as_ref().ok().and_then(|released| released.loss());
        match (answer, lost) {
            (Ok(_), Some(reason)) if failures == 0 && sent < self.release.valid_until => {
                to.found_lost.fetch_add(1, Ordering::Relaxed);
                log_loss(key, reason);
            }
            (Ok(_), _) if failures > 0 => events::emit(Level::INFO, move || {
                tracing::info!(key = &*key, failures, "background release works again");
            }),
            (Ok(_), _) => {}
            // The lane of a request is tried for good measure, and mostly gone if it fails.
            (Err(_), _) if self.lane != Lane::Keeper => {}
            (Err(error), _) => {
                self.failures = failures.saturating_add(1);
                log_failure(key, error.clone(), self.failures);
            }
        }
        // A second answer would be about what the first try did.
        self.release.valid_until = BootInstant::PAST;
    }
}

fn log_failure(key: Arc<str>, error: StoreError, failures: u32) {
    match error {
        StoreError::Denied(cause) if failures == 1 => events::emit(Level::ERROR, move || {
            tracing::error!(
                key = &*key,
                %cause,
                "may not release, trying again until the lease is over"
            );
        }),
        error if failures == 1 => events::emit(Level::WARN, move || {
            tracing::warn!(
                key = &*key,
                %error,
                "could not release in the background, trying again until the lease is over"
            );
        }),
        error => events::emit(Level::DEBUG, move || {
            tracing::debug!(key = &*key, %error, failures, "could not release");
        }),
    }
}

/// A loss that was noticed only by the release.
pub(super) fn log_loss(key: Arc<str>, reason: LostReason) {
    events::emit(Level::WARN, move || {
        tracing::warn!(key = &*key, %reason, "lock lost, which its release has found out");
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::gate::{Entry, Gates};
    use crate::store::faulty::{Fault, FaultyStore};
    use crate::store::{Attempt, Claim, MemoryStore, Patience, Trace};
    use crate::sync::time;

    const LEASE: Duration = Duration::from_secs(10);

    fn release(token: &Token, cause: Cause) -> Release {
        let (gone_by, past) = (BootInstant::now().after(LEASE), BootInstant::PAST);
        let (key, token) = (Arc::from("k"), token.clone());
        Release { key, token, gone_by, kept_until: past, valid_until: past, cause, pass: None }
    }

    fn releaser() -> Releaser {
        Releaser::new(Notifier::new(Arc::default()))
    }

    async fn acquire(store: &dyn LockStore, token: &Token) -> Result<Attempt, StoreError> {
        let claim = Claim { key: "k", token, lease: LEASE, fresh: true };
        store.try_acquire(claim, Patience::of(LEASE), &Trace::default()).await
    }

    /// Does what the keeper does, until nothing is left.
    async fn carry_out(store: &dyn LockStore, releaser: &Releaser) {
        while releaser.open() > 0 {
            while let Some(batch) = releaser.next(BootInstant::now()) {
                batch.carry_out(store, releaser).await;
            }
            if let Some(at) = releaser.next_later() {
                time::sleep(at.since(BootInstant::now())).await;
            }
        }
    }

    fn store() -> (FaultyStore, Token) {
        (FaultyStore::new(MemoryStore::new()), Token::random().expect("random"))
    }

    #[tokio::test]
    async fn it_is_tried_until_the_store_answers() {
        let ((store, token), releaser) = (store(), releaser());
        acquire(&store, &token).await.expect("free");
        store.next_releases([Fault::Refuse, Fault::Refuse]);
        releaser.push(release(&token, Cause::Ended));
        carry_out(&store, &releaser).await;
        let other = Token::random().expect("random");
        assert_eq!(acquire(&store, &other).await, Ok(Attempt::Granted));
    }

    #[tokio::test]
    async fn a_successor_is_left_alone() {
        let ((store, stale), releaser) = (store(), releaser());
        let holder = Token::random().expect("random");
        acquire(&store, &holder).await.expect("free");
        releaser.push(release(&stale, Cause::Ended));
        carry_out(&store, &releaser).await;
        let other = Token::random().expect("random");
        assert!(matches!(acquire(&store, &other).await, Ok(Attempt::Busy(_))));
    }

    /// Undoes a request that arrives while that is under way, and sees to it that the key is free.
    async fn undo_against_a_late_try(store: &FaultyStore, token: &Token, origin: Option<Origin>) {
        let releaser = releaser();
        releaser.push(release(token, Cause::Unanswered(origin)));
        let late = async {
            tokio::task::yield_now().await;
            acquire(store, token).await.expect("free");
        };
        tokio::join!(carry_out(store, &releaser), late);
        let other = Token::random().expect("random");
        assert_eq!(acquire(store, &other).await, Ok(Attempt::Granted));
    }

    #[tokio::test]
    async fn an_undo_catches_what_arrives_after_it() {
        let (store, token) = store();
        undo_against_a_late_try(&store, &token, None).await;
    }

    #[tokio::test]
    async fn an_undo_that_freed_one_try_catches_another_that_comes_late() {
        let (store, token) = store();
        acquire(&store, &token).await.expect("free");
        undo_against_a_late_try(&store, &token, None).await;
    }

    #[test]
    fn releases_of_one_instant_are_all_kept() {
        let (releaser, token) = (releaser(), Token::random().expect("random"));
        let at = BootInstant::now();
        for _ in 0..2 {
            releaser.push(release(&token, Cause::Ended));
            let job = releaser.jobs().queue(Lane::Keeper).jobs.pop_front().expect("pushed");
            releaser.jobs().later(at, job);
        }
        let batch = releaser.next(at).expect("both are due");
        assert_eq!(batch.jobs.len(), 2);
        assert!(releaser.next_later().is_none());
    }

    #[test]
    fn lanes_are_forgotten_once_nothing_is_left_of_theirs() {
        let (releaser, token) = (releaser(), Token::random().expect("random"));
        let lanes = [(); 4].map(|()| {
            let runtime = runtime::Builder::new_current_thread().build().expect("a runtime");
            runtime.handle().id()
        });
        for runtime in [lanes[0], lanes[1]] {
            let origin = Origin { runtime, connection: None };
            releaser.push(release(&token, Cause::Unanswered(Some(origin))));
        }
        let batches: Vec<_> = std::iter::from_fn(|| releaser.next(BootInstant::now())).collect();
        assert_eq!((batches.len(), lanes_of(&releaser).len()), (3, 3), "the keeper's and theirs");
        // Nothing is queued, and something is under way on each.
        releaser.jobs().queue(Lane::Runtime(lanes[2]));
        assert_eq!(lanes_of(&releaser).len(), 4);
        for runtime in [lanes[0], lanes[1]] {
            releaser.jobs().queue(Lane::Runtime(runtime)).under_way = 0;
        }
        releaser.jobs().queue(Lane::Runtime(lanes[3]));
        assert_eq!(lanes_of(&releaser), [Lane::Keeper, Lane::Runtime(lanes[3])]);
    }

    fn lanes_of(releaser: &Releaser) -> Vec<Lane> {
        releaser.jobs().ready.iter().map(|queue| queue.lane).collect()
    }

    fn over(connection: u64) -> Origin {
        let runtime = runtime::Handle::current().id();
        Origin { runtime, connection: NonZeroU64::new(connection) }
    }

    #[tokio::test]
    async fn an_undo_over_another_connection_is_sent_once_more() {
        // The one that the store has now is the first.
        for connection in [0, 2] {
            let (store, token) = store();
            undo_against_a_late_try(&store, &token, Some(over(connection))).await;
        }
    }

    #[tokio::test]
    async fn an_undo_behind_its_request_is_the_last() {
        let ((store, token), releaser) = (store(), releaser());
        acquire(&store, &token).await.expect("free");
        releaser.push(release(&token, Cause::Unanswered(Some(over(1)))));
        assert_eq!(releaser.open(), 2, "on both lanes");
        let start = BootInstant::now();
        carry_out(&store, &releaser).await;
        assert!(BootInstant::now().since(start) < PAUSES.1 / 2, "nothing is sent once more");
        let other = Token::random().expect("random");
        assert_eq!(acquire(&store, &other).await, Ok(Attempt::Granted));
    }

    #[tokio::test]
    async fn it_ends_with_the_lease_at_the_latest() {
        let ((store, token), releaser) = (store(), releaser());
        store.next_releases(std::iter::repeat_n(Fault::Refuse, 1000));
        let mut release = release(&token, Cause::Ended);
        release.gone_by = BootInstant::now().after(Duration::from_millis(100));
        let end = release.gone_by;
        releaser.push(release);
        carry_out(&store, &releaser).await;
        assert!(BootInstant::now() >= end);
    }

    #[tokio::test]
    async fn nothing_is_sent_once_the_key_is_gone_by_itself() {
        let ((store, token), gates) = (store(), Arc::new(Gates::default()));
        let notifier = Notifier::new(Arc::clone(&gates));
        let releaser = Releaser::new(Arc::clone(&notifier));
        let Entry::Open(pass) = gates.enter(&Arc::from("k"), false) else { panic!("free") };
        let release = release(&token, Cause::Unanswered(None));
        let gone_by = BootInstant::from_nanos(1);
        releaser.push(Release { gone_by, pass: Some(pass), ..release });
        carry_out(&store, &releaser).await;
        assert_eq!(store.most_releases_at_once(), 0);
        notifier.close();
        notifier.run().await;
        assert_eq!(gates.keys(), 0, "and the pass is back");
    }

    #[tokio::test]
    async fn many_go_together_and_few_at_a_time() {
        let ((store, _), releaser) = (store(), releaser());
        for _ in 0..10 * BATCH {
            releaser.push(release(&Token::random().expect("random"), Cause::Ended));
        }
        let now = BootInstant::now();
        let batches: Vec<Batch> = std::iter::from_fn(|| releaser.next(now)).collect();
        assert_eq!(batches.len(), BATCHES_PER_LANE);
        assert!(batches.iter().all(|batch| batch.jobs.len() == BATCH));
        for batch in batches {
            batch.carry_out(&store, &releaser).await;
            assert!(releaser.next(now).is_some(), "the next one's place");
        }
    }

    #[tokio::test]
    async fn a_lane_that_stands_still_holds_up_no_other() {
        let ((store, token), releaser) = (store(), releaser());
        let stuck: Vec<Batch> = (0..10 * BATCH)
            .map(|_| releaser.push(release(&token, Cause::Unanswered(Some(over(1))))))
            .map_while(|()| releaser.next(BootInstant::now()))
            .filter(|batch| batch.lane != Lane::Keeper)
            .collect();
        assert!(stuck.len() <= BATCHES_PER_LANE);
        while let Some(batch) = releaser.next(BootInstant::now()) {
            assert_eq!(batch.lane, Lane::Keeper);
            batch.carry_out(&store, &releaser).await;
        }
    }

    #[tokio::test]
    async fn a_batch_that_is_dropped_half_way_is_sent_again() {
        let ((store, token), releaser) = (store(), releaser());
        acquire(&store, &token).await.expect("free");
        store.next_releases([Fault::Hang]);
        releaser.push(release(&token, Cause::Ended));
        let batch = releaser.next(BootInstant::now()).expect("there is one");
        let cut = tokio::time::timeout(LEASE / 100, batch.carry_out(&store, &releaser)).await;
        assert!(cut.is_err());
        carry_out(&store, &releaser).await;
        let other = Token::random().expect("random");
        assert_eq!(acquire(&store, &other).await, Ok(Attempt::Granted));
    }

    #[tokio::test]
    async fn a_key_that_is_gone_too_early_is_a_loss() {
        for (valid_until, lost) in [(BootInstant::now().after(LEASE), 1), (BootInstant::PAST, 0)] {
            let ((store, token), releaser) = (store(), releaser());
            releaser.push(Release { valid_until, ..release(&token, Cause::Ended) });
            carry_out(&store, &releaser).await;
            assert_eq!(releaser.found_lost(), lost);
        }
    }
}

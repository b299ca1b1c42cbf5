//! A store that misbehaves as told, around one that does not; for unit tests.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::num::NonZeroU64;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::task::Poll;
use std::time::Duration;

use super::{
    Attempt, Background, Claim, Fenced, Lane, LockStore, Patience, Release, Released,
    ReleasedBatch, Renewal, Renewed, StoreError, Subscription, Token, Trace,
};
use crate::eventually::Eventually;
use crate::format::WireFormat;

/// What happens to one request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    /// Nothing: for the requests before the one that is meant.
    None,
    /// The store says no before it does anything.
    Refuse,
    /// It is done, and the answer is lost.
    LoseReply,
    /// It is done, and the answer never comes.
    HangAfter,
    /// It is not done, and no answer ever comes.
    Hang,
    /// It is done after a while.
    Slow(Duration),
    /// The store finds something else than a lock.
    WrongFormat,
    /// Whoever asks panics.
    Panic,
}

pub(crate) struct FaultyStore {
    inner: Arc<dyn LockStore>,
    acquires: Mutex<VecDeque<Fault>>,
    renewals: Mutex<VecDeque<Fault>>,
    releases: Mutex<VecDeque<Fault>>,
    fences: Mutex<VecDeque<Fault>>,
    questions: Mutex<VecDeque<Fault>>,
    /// The next question that no request is made for is answered by a panic.
    panics: AtomicBool,
    /// Releases that are under way, and the most that ever were.
    releasing: Mutex<(usize, usize)>,
}

impl FaultyStore {
    pub(crate) fn new(inner: Arc<dyn LockStore>) -> Self {
        Self {
            inner,
            acquires: Mutex::default(),
            renewals: Mutex::default(),
            releases: Mutex::default(),
            fences: Mutex::default(),
            questions: Mutex::default(),
            panics: AtomicBool::new(false),
            releasing: Mutex::default(),
        }
    }

    /// The faults of the next acquire requests, one each.
    pub(crate) fn next_acquires(&self, faults: impl IntoIterator<Item = Fault>) {
        self.acquires.lock().expect("test").extend(faults);
    }

    /// The faults of the next renewals, one per batch.
    pub(crate) fn next_renewals(&self, faults: impl IntoIterator<Item = Fault>) {
        self.renewals.lock().expect("test").extend(faults);
    }

    /// How many releases were under way at one time.
    pub(crate) fn most_releases_at_once(&self) -> usize {
        self.releasing.lock().expect("test").1
    }

    /// The faults of the next requests for a fencing token, one each.
    pub(crate) fn next_fences(&self, faults: impl IntoIterator<Item = Fault>) {
        self.fences.lock().expect("test").extend(faults);
    }

    /// The faults of the next questions who else waits, one each.
    pub(crate) fn next_questions(&self, faults: impl IntoIterator<Item = Fault>) {
        self.questions.lock().expect("test").extend(faults);
    }

    /// The next who asks whether this needs time panics.
    pub(crate) fn panic_once(&self) {
        self.panics.store(true, Ordering::Relaxed);
    }

    /// The faults of the next releases, one each.
    pub(crate) fn next_releases(&self, faults: impl IntoIterator<Item = Fault>) {
        self.releases.lock().expect("test").extend(faults);
    }
}

fn refused() -> StoreError {
    StoreError::Refused("told to refuse".into())
}

fn wrong_format() -> StoreError {
    StoreError::WrongFormat { key: "k".into(), expected: "string", found: "list".into() }
}

fn unanswered() -> StoreError {
    StoreError::Unknown("told to lose the reply".into())
}

async fn meet<'a, T>(
    fault: Option<Fault>,
    // Not the future itself: a store may act as soon as it is asked.
    request: impl FnOnce() -> Eventually<'a, Result<T, StoreError>>,
) -> Result<T, StoreError>
where
    Result<T, StoreError>: Unpin + 'a,
{
    match fault {
        None | Some(Fault::None) => request().await,
        Some(Fault::Refuse) => Err(refused()),
        Some(Fault::Panic) => panic!("as planned"),
        Some(Fault::WrongFormat) => Err(wrong_format()),
        Some(Fault::LoseReply) => request().await.and(Err(unanswered())),
        Some(Fault::HangAfter) => {
            let _ = request().await;
            std::future::pending().await
        }
        Some(Fault::Hang) => std::future::pending().await,
        Some(Fault::Slow(pause)) => {
            tokio::time::sleep(pause).await;
            request().await
        }
    }
}

impl LockStore for FaultyStore {
    fn try_acquire<'a>(
        &'a self,
        claim: Claim<'a>,
        patience: Patience,
        trace: &'a Trace,
    ) -> Eventually<'a, Result<Attempt, StoreError>> {
        let fault = self.acquires.lock().expect("test").pop_front();
        Eventually::pending(async move {
            let answer = meet(fault, || self.inner.try_acquire(claim, patience, trace));
            let within = patience.answer.min(patience.total);
            // What hangs is stuck on a connection that nothing else goes over any more.
            trace.sent(if fault == Some(Fault::Hang) { 2 } else { 1 });
            tokio::time::timeout(within, answer).await.unwrap_or_else(|_| Err(unanswered()))
        })
    }

    fn renew<'a>(
        &'a self,
        batch: &'a [Renewal<'a>],
        lane: Lane,
    ) -> Eventually<'a, Vec<Result<Renewed, StoreError>>> {
        let fault = self.renewals.lock().expect("test").pop_front();
        Eventually::pending(async move {
            match fault {
                None | Some(Fault::None) => self.inner.renew(batch, lane).await,
                Some(Fault::Refuse) => batch.iter().map(|_| Err(refused())).collect(),
                Some(Fault::Panic) => panic!("as planned"),
                Some(Fault::WrongFormat) => batch.iter().map(|_| Err(wrong_format())).collect(),
                Some(Fault::LoseReply) => {
                    self.inner.renew(batch, lane).await;
                    batch.iter().map(|_| Err(unanswered())).collect()
                }
                Some(Fault::HangAfter | Fault::Hang) => std::future::pending().await,
                Some(Fault::Slow(pause)) => {
                    tokio::time::sleep(pause).await;
                    self.inner.renew(batch, lane).await
                }
            }
        })
    }

    fn release<'a>(
        &'a self,
        key: &'a str,
        token: &'a Token,
        keep: Duration,
        lane: Lane,
    ) -> Eventually<'a, Result<Released, StoreError>> {
        let fault = self.releases.lock().expect("test").pop_front();
        Eventually::pending(async move {
            {
                let mut releasing = self.releasing.lock().expect("test");
                releasing.0 += 1;
                releasing.1 = releasing.1.max(releasing.0);
            }
            let answer = meet(fault, || self.inner.release(key, token, keep, lane)).await;
            self.releasing.lock().expect("test").0 -= 1;
            answer
        })
    }

    /// Each meets a fault of its own.
    fn release_all<'a>(
        &'a self,
        batch: &'a [Release<'a>],
        lane: Lane,
    ) -> Eventually<'a, ReleasedBatch> {
        Eventually::pending(async move {
            let mut releases: Vec<_> = batch
                .iter()
                .map(|release| (self.release(release.key, release.token, release.keep, lane), None))
                .collect();
            poll_fn(|cx| {
                for (release, answer) in releases.iter_mut().filter(|(_, answer)| answer.is_none())
                {
                    if let Poll::Ready(given) = Pin::new(release).poll(cx) {
                        *answer = Some(given);
                    }
                }
                let all = releases.iter().all(|(_, answer)| answer.is_some());
                if all { Poll::Ready(()) } else { Poll::Pending }
            })
            .await;
            let answers = releases.into_iter().filter_map(|(_, answer)| answer).collect();
            ReleasedBatch { connection: NonZeroU64::new(1), answers }
        })
    }

    fn fence<'a>(
        &'a self,
        key: &'a str,
        token: &'a Token,
    ) -> Eventually<'a, Result<Fenced, StoreError>> {
        let fault = self.fences.lock().expect("test").pop_front();
        Eventually::pending(meet(fault, move || self.inner.fence(key, token)))
    }

    fn others<'a>(
        &'a self,
        key: &'a str,
        format: WireFormat,
    ) -> Eventually<'a, Result<usize, StoreError>> {
        let fault = self.questions.lock().expect("test").pop_front();
        Eventually::pending(meet(fault, move || self.inner.others(key, format)))
    }

    fn subscribe(&self, key: &str, format: WireFormat) -> Subscription {
        self.inner.subscribe(key, format)
    }

    fn is_immediate(&self) -> bool {
        let is_planned = std::thread::current().name() == Some("lock-keeper")
            && self.panics.swap(false, Ordering::Relaxed);
        assert!(!is_planned, "as planned");
        false
    }

    fn adopt(&self, background: &Background) {
        self.inner.adopt(background);
    }
}

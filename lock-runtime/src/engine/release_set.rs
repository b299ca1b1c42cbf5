//! The end of several holds at once.

use std::sync::Arc;

use super::awaited_release::AwaitedRelease;
use super::batching::take_batch;
use super::core::Engine;
use super::driven::SharedWork;
use super::handoff::{Handoff, Hold};
use super::release::{AfterLeave, KeyRelease, Releasing};
use super::waiter_count::WaiterCount;
use crate::clock::BootInstant;
use crate::error::LockError;
use crate::join::join_all;
use crate::maybe_ready::MaybeReady;
use crate::runtime;
use crate::store::contract::Lane;
use crate::sync::yield_now;

impl Engine {
    /// Ends a holder's share of each of these holds. The keys that have to be freed are freed together.
    /// Fails with a loss, or else with the first error.
    ///
    /// Cancel safe: a release that is dropped, or that gets no answer, continues in the background.
    pub(crate) fn release_set(
        self: &Arc<Self>,
        holds: Vec<Hold>,
        may_hand_off: bool,
    ) -> Releasing<'static> {
        let Some(first) = holds.first() else { return MaybeReady::ready(Ok(())) };
        let (began, key) = (BootInstant::now(), Arc::clone(first.key()));
        let mut rest = SetRelease::of(self);
        for hold in holds {
            rest.leave(hold, may_hand_off);
        }
        let handoffs = rest.handoffs.iter().filter_map(|(handoff, _)| handoff.position(0));
        let releases = rest.releases.iter().filter_map(KeyRelease::position);
        let mut positions: Vec<_> = releases.chain(handoffs).collect();
        match (positions.pop(), runtime::here()) {
            (Some(position), Ok(here)) => {
                let positions = (position, positions.into());
                let (work, release) = (AwaitedRelease { key, began }, Box::pin(rest.finish()));
                MaybeReady::Driven(SharedWork::driven_with(work, positions, here, release))
            }
            _ => MaybeReady::pending(rest.finish()),
        }
    }
}

/// The result of two releases: the first loss, or else the first error.
pub(crate) fn both(
    one: Result<(), Box<LockError>>,
    other: Result<(), Box<LockError>>,
) -> Result<(), Box<LockError>> {
    let is_loss = |result: &Result<(), Box<LockError>>| {
        result.as_ref().is_err_and(|error| matches!(**error, LockError::Lost { .. }))
    };
    if one.is_ok() || is_loss(&other) && !is_loss(&one) { other } else { one }
}

/// What remains to be done after the holds of a set have ended.
struct SetRelease {
    engine: Arc<Engine>,
    result: Result<(), Box<LockError>>,
    releases: Vec<KeyRelease>,
    /// Locks that were handed off, and that no task has taken yet.
    handoffs: Vec<(Handoff, Hold)>,
    counts: Vec<(WaiterCount, Hold)>,
}

impl SetRelease {
    fn of(engine: &Arc<Engine>) -> Self {
        let (releases, handoffs, counts) = (Vec::new(), Vec::new(), Vec::new());
        Self { engine: Arc::clone(engine), result: Ok(()), releases, handoffs, counts }
    }

    fn leave(&mut self, hold: Hold, may_hand_off: bool) {
        let (lost, left) = self.engine.leave(&hold, may_hand_off, BootInstant::now());
        let is_lost = lost.is_some();
        self.add(lost.map_or(Ok(()), Err));
        match left {
            AfterLeave::Nothing => {}
            AfterLeave::Count(count) => self.counts.push((count, hold)),
            AfterLeave::OfferAgain(handoff) => self.handoffs.push((handoff, hold)),
            // The caller of a lost lock does not wait for its release.
            AfterLeave::Free(permit) if is_lost => {
                self.engine.free_later(hold.lease(), permit, BootInstant::PAST);
            }
            AfterLeave::Free(permit) => {
                self.releases.push(self.engine.begin(hold.lease(), permit));
            }
        }
    }

    fn add(&mut self, result: Result<(), Box<LockError>>) {
        let before = std::mem::replace(&mut self.result, Ok(()));
        self.result = both(before, result);
    }

    async fn finish(mut self) -> Result<(), Box<LockError>> {
        if !self.handoffs.is_empty() {
            // Tasks that had the locks before may be about to acquire them again.
            yield_now().await;
            for (handoff, hold) in std::mem::take(&mut self.handoffs) {
                if let Some(permit) = handoff.offer()
                    && hold.lease().close()
                {
                    self.releases.push(self.engine.begin(hold.lease(), Some(permit)));
                }
            }
        }
        while !self.releases.is_empty() {
            self.free_batch().await;
        }
        let counts = std::mem::take(&mut self.counts);
        let counted = counts.into_iter().map(|(count, hold)| async move { count.ask(&hold).await });
        for result in join_all(counted).await {
            self.add(result);
        }
        self.result
    }

    /// Frees the first key, and others with the same request.
    async fn free_batch(&mut self) {
        let began = BootInstant::now();
        let Some(first) = self.releases.first() else { return };
        let store = Arc::clone(first.store());
        let mut here = take_batch(&mut self.releases, &*store, |release| release.key());
        let answers = {
            let batch: Vec<_> = here.iter().map(KeyRelease::request).collect();
            store.release_all(&batch, Lane::Caller).await.answers
        };
        for (release, answer) in here.iter_mut().zip(answers) {
            release.answered(&answer);
            let outcome = self.engine.outcome(release.lease(), began, answer);
            self.add(outcome);
        }
    }
}

//! The end of several holds at once.

use std::sync::Arc;

use super::core::Engine;
use super::handoff::Hold;
use super::release::{AfterLeave, KeyRelease, offer_again};
use crate::clock::BootInstant;
use crate::error::LockError;
use crate::store::contract::Lane;

impl Engine {
    /// Ends a holder's share of each of these holds. The future frees the keys that have to be freed,
    /// with one request for each place, and returns the first error.
    ///
    /// Cancel safe: a release that is dropped, or that gets no answer, continues in the background.
    pub(crate) fn release_set(
        self: &Arc<Self>,
        holds: Vec<Hold>,
        may_hand_off: bool,
    ) -> impl Future<Output = Result<(), Box<LockError>>> + Send + use<> {
        let (mut result, mut releases, mut later) = (Ok(()), Vec::new(), Vec::new());
        for hold in holds {
            let (lost, left) = self.leave(&hold, may_hand_off);
            let is_lost = lost.is_some();
            result = result.and(lost.map_or(Ok(()), Err));
            match left {
                AfterLeave::Nothing => {}
                AfterLeave::Free(permit) if is_lost => {
                    // The caller of a lost lock does not wait for its release.
                    self.free_later(hold.lease(), permit, BootInstant::PAST);
                }
                AfterLeave::Free(permit) => releases.push(self.begin(hold.lease(), permit)),
                left => later.push((hold, left)),
            }
        }
        let engine = Arc::clone(self);
        async move {
            while !releases.is_empty() {
                result = result.and(engine.free_place(&mut releases).await);
            }
            for (hold, left) in later {
                result = result.and(match left {
                    AfterLeave::Count(count) => count.ask(&hold).await,
                    AfterLeave::OfferAgain(handoff) => {
                        offer_again(Arc::clone(&engine), handoff, hold.clone()).await
                    }
                    AfterLeave::Nothing | AfterLeave::Free(_) => Ok(()),
                });
            }
            result
        }
    }

    /// Frees all keys that are in the same place as the first one.
    async fn free_place(
        self: &Arc<Self>,
        releases: &mut Vec<KeyRelease>,
    ) -> Result<(), Box<LockError>> {
        let began = BootInstant::now();
        let Some(first) = releases.first() else { return Ok(()) };
        let store = Arc::clone(first.store());
        let place = store.place(first.key());
        let (mut here, elsewhere): (Vec<_>, Vec<_>) =
            releases.drain(..).partition(|release| store.place(release.key()) == place);
        *releases = elsewhere;
        let answers = {
            let batch: Vec<_> = here.iter().map(KeyRelease::request).collect();
            store.release_all(&batch, Lane::Caller).await.answers
        };
        let mut result = Ok(());
        for (release, answer) in here.iter_mut().zip(answers) {
            release.answered(&answer);
            result = result.and(self.outcome(release.lease(), began, answer));
        }
        result
    }
}

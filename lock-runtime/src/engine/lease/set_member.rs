//! A hold that is one of several, which one call acquires together.

use super::{Hold, Lease, Terms};
use crate::clock::BootInstant;

impl<P> Lease<P> {
    /// Calls `act` with the permit; `None` without one.
    pub(crate) fn with_permit<T>(&self, act: impl FnOnce(&P) -> T) -> Option<T> {
        self.read(|state| state.permit().map(act))
    }
}

impl<P> Hold<P> {
    /// See [`State::limit`](super::state::State::limit).
    pub(crate) fn limit(&self, until: BootInstant) -> bool {
        let times = (until, BootInstant::now());
        self.lease().change(|state| state.limit(self.number, times))
    }

    /// See [`State::settle`](super::state::State::settle).
    pub(crate) fn settle(&self, terms: &Terms, sent: BootInstant) -> bool {
        let times = (sent, BootInstant::now());
        self.lease().change(|state| state.settle(self.number, terms, times))
    }

    /// See [`State::claim`](super::state::State::claim). The hold is measured from now on.
    pub(crate) fn claim(&self, terms: &Terms, since: Option<BootInstant>) -> bool {
        let times = (since, BootInstant::now());
        self.lease().change(|state| {
            let is_held = state.claim(self.number, terms, times);
            if is_held {
                terms.site.hold_begun();
            }
            is_held
        })
    }

    /// See [`State::raise_fence`](super::state::State::raise_fence).
    pub(crate) fn raise_fence(&self, token: u64) {
        self.lease().change(|state| state.raise_fence(self.number, token));
    }
}

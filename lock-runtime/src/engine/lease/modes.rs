//! Holds of locks that have modes.

use std::sync::Arc;

use super::hold_mode::{Joined, MayChange};
use super::state::State;
use super::terms::Terms;
use super::{Hold, Lease};
use crate::clock::BootInstant;
use crate::engine::fairness::limit::HandoffLimit;
use crate::store::contract::{Mode, Renewed};

impl<P> Lease<P> {
    /// What a renewal that was sent at `sent` means. A writer that the store takes for a reader has lost
    /// the lock, unless it has become a reader since.
    pub(crate) fn meaning_of(&self, renewed: Renewed, sent: BootInstant) -> Renewed {
        match renewed {
            Renewed::AsReader if self.read(|state| state.is_writer_since(sent)) => Renewed::Taken,
            Renewed::AsReader => Renewed::Extended,
            other => other,
        }
    }

    /// Whether the lease is renewed, and not fixed.
    pub(crate) fn is_renewed(&self) -> bool {
        self.read(State::is_renewed)
    }

    /// The mode of the lease, which may change.
    pub(crate) fn mode(&self) -> Mode {
        // The mode of other locks never changes.
        match self.locked.mode {
            mode @ (Mode::Exclusive | Mode::Permits(_)) => mode,
            Mode::Read | Mode::Write => self.read(State::mode),
        }
    }
}

impl<P> Hold<P> {
    /// See [`State::share`].
    pub(crate) fn share(&self, waiting: usize) -> bool {
        self.lease.change(|state| state.share(self.number, waiting, BootInstant::now()))
    }

    /// See [`State::join_as_reader`].
    pub(crate) fn join_as_reader(
        &self,
        terms: (&Terms, &HandoffLimit),
        has_waited: bool,
    ) -> Joined {
        let now = BootInstant::now();
        self.lease.change(|state| state.join_as_reader(self.number, (terms, has_waited), now))
    }

    /// See [`State::about_to_change`]. If it is possible, the change ends when the value is dropped.
    pub(crate) fn about_to_change(&self, to: Mode) -> Result<ChangingHold<'_, P>, MayChange> {
        match self.lease.change(|state| state.about_to_change(self.number, to)) {
            MayChange::Yes => {
                Ok(ChangingHold { hold: self, to, is_done: false, is_certain: false })
            }
            other => Err(other),
        }
    }

    /// See [`State::replace_permit`].
    pub(crate) fn replace_permit(&self, permit: P) -> Option<P> {
        self.lease.change(|state| state.replace_permit(permit))
    }

    /// Whether the hold has a permit, and `is_it` is true for it.
    pub(crate) fn has_permit(&self, is_it: impl FnOnce(&P) -> bool) -> bool {
        self.lease.read(|state| state.has_permit(is_it))
    }

    /// Whether the two are the same hold.
    pub(crate) fn is(&self, other: &Self) -> bool {
        self.number == other.number && Arc::ptr_eq(&self.lease, &other.lease)
    }
}

/// A change of the mode of a hold. Dropping it ends the change.
pub(crate) struct ChangingHold<'a, P> {
    hold: &'a Hold<P>,
    to: Mode,
    /// Whether the hold has the mode now.
    pub(crate) is_done: bool,
    /// Whether all requests were answered, so that none can take effect later.
    pub(crate) is_certain: bool,
}

impl<P> Drop for ChangingHold<'_, P> {
    fn drop(&mut self) {
        let outcome = (self.is_done, self.is_certain);
        self.hold.change(|state| state.changed(self.to, outcome));
    }
}

//! The effects of the events of a lease.

use std::time::Duration;

use crate::clock::BootInstant;
use crate::error::LostReason;
use crate::safeguard::Safeguard;

/// How a hold was lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Lost {
    pub(super) reason: LostReason,
    pub(super) held_for: Duration,
}

/// A holder has left.
#[derive(Debug)]
pub(super) struct Departure<P> {
    /// How the hold had been lost, if it had.
    pub(super) lost: Option<Lost>,
    /// The reason of the loss, if the loss had not been noticed before.
    pub(super) unnoticed: Option<LostReason>,
    /// How long the hold lasted, if this was its end.
    pub(super) held_for: Option<Duration>,
    /// Whether the lock is freed because hand-offs have reached their limit.
    pub(super) at_limit: bool,
    pub(super) ending: Ending<P>,
}

impl<P> Departure<P> {
    /// The hold goes on without the holder, or had ended before.
    pub(super) fn nothing(lost: Option<Lost>) -> Self {
        let (unnoticed, held_for, at_limit, ending) = (None, None, false, Ending::None);
        Self { lost, unnoticed, held_for, at_limit, ending }
    }
}

/// The next step after a holder has left.
#[derive(Debug)]
pub(crate) enum Ending<P> {
    /// Do nothing: other holders share the hold, or the hold had ended before.
    None,
    /// The last holder has left. Free the key, then give the permit back.
    Free(Option<P>),
    /// The last holder has left. Offer the lock to waiters of this process.
    HandOff {
        permit: P,
        /// Whether to request the number of waiting processes as well.
        count_waiters: bool,
        /// Whether the deadline has changed.
        reschedule: bool,
        /// How long the lock is kept for the next call if no call waits; zero if it is not kept.
        linger: Duration,
    },
}

/// A lease has ended against the will of its holders.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Loss {
    pub(crate) reason: LostReason,
    /// How long the hold lasted; `None` if the lease was handed off and had no holder.
    pub(crate) held_for: Option<Duration>,
}

impl Loss {
    /// Whether the key stays taken until the holders have left or the lease ends in the store. In
    /// this case the key still has their owner, and destructors of their bodies may not have run
    /// yet.
    pub(crate) fn leaves_the_key(self) -> bool {
        self.held_for.is_some()
            && !self.reason.is_over_in_store()
            && Safeguard::KeyOutlivesBody.is_on()
    }
}

/// The state of one hold at one instant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Standing {
    /// Valid until this deadline, which may be extended.
    Until(BootInstant),
    Lost(Lost),
    /// Released, or handed off.
    Over,
}

//! The terms of a lease, and the deadline that follows from them.

use std::time::Duration;

use crate::clock::BootInstant;
use crate::replicas::RequiredReplicas;
use crate::telemetry::SiteMetrics;

/// The terms on which a caller requests a lease.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Terms {
    /// The length of one grant or renewal.
    pub(crate) term: Duration,
    /// Whether the lease is renewed until its hold ends. Otherwise it is fixed.
    pub(crate) renewed: bool,
    /// The time after which the hold ends, although the lease could be renewed.
    pub(crate) max_hold: Option<Duration>,
    /// The time for which the key stays in the store, even if the hold ends before. Counts from
    /// just before the granting request was sent.
    pub(crate) min_hold: Duration,
    /// The replicas that have to acknowledge the grant and each renewal.
    pub(crate) acknowledged_by: RequiredReplicas,
    /// How long the process keeps the lock after the hold, for its next call.
    pub(crate) linger: Duration,
    /// Where the hold is measured.
    pub(crate) site: &'static SiteMetrics,
}

impl Terms {
    /// Whether several readers of this process may have one hold with these terms.
    pub(crate) fn can_be_shared(&self) -> bool {
        self.renewed && self.max_hold.is_none() && self.min_hold.is_zero()
    }

    /// The term that is requested from the store. It includes `min_hold`, because the key has to
    /// stay for that time even if this process ends.
    pub(crate) fn in_store(&self) -> Duration {
        self.term.max(self.min_hold)
    }

    /// The deadline of a grant whose request was sent at `sent`.
    pub(crate) fn deadline(&self, sent: BootInstant) -> BootInstant {
        capped(deadline(sent, self.term), self.max_hold_until(sent))
    }

    /// The end of `max_hold` for a hold that began at `since`.
    pub(super) fn max_hold_until(&self, since: BootInstant) -> Option<BootInstant> {
        self.max_hold.map(|max_hold| since.after(max_hold))
    }
}

/// The deadline of a hold whose lease ends at `granted_until`, and whose `max_hold` ends at
/// `max_hold_until`.
pub(super) fn capped(
    granted_until: BootInstant,
    max_hold_until: Option<BootInstant>,
) -> BootInstant {
    max_hold_until.map_or(granted_until, |max_hold_until| granted_until.min(max_hold_until))
}

/// The deadline of a lease of `term` whose request was sent at `sent`; see [`BootInstant::deadline_of`].
pub(crate) fn deadline(sent: BootInstant, term: Duration) -> BootInstant {
    sent.deadline_of(term)
}

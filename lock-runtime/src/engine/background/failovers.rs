//! The failovers of the store: its data has moved to another server, which may lack a part of it.

use crate::clock::BootInstant;
use crate::error::LostReason;
use crate::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// The failovers of one client's store.
#[derive(Debug)]
pub(crate) struct Failovers {
    /// When the data last moved; `PAST` if it never has.
    moved_at: AtomicU64,
    /// Set when the data has moved and the held leases have not been verified since.
    to_verify: AtomicBool,
}

impl Default for Failovers {
    fn default() -> Self {
        let moved_at = AtomicU64::new(BootInstant::PAST.as_nanos());
        Self { moved_at, to_verify: AtomicBool::new(false) }
    }
}

impl Failovers {
    /// Records that the data has moved.
    pub(super) fn moved(&self) {
        self.moved_at.store(BootInstant::now().as_nanos(), Ordering::Release);
        self.to_verify.store(true, Ordering::Release);
    }

    /// Whether the data has moved since the last call.
    pub(super) fn take(&self) -> bool {
        self.to_verify.load(Ordering::Relaxed) && self.to_verify.swap(false, Ordering::AcqRel)
    }

    /// Whether the data has moved since `confirmed`, when the last successful request for a lease
    /// was sent. If the data has never moved, `confirmed` is not called.
    pub(super) fn is_after(&self, confirmed: impl FnOnce() -> BootInstant) -> bool {
        let moved_at = BootInstant::from_nanos(self.moved_at.load(Ordering::Acquire));
        moved_at > BootInstant::PAST && confirmed() < moved_at
    }

    /// The reason of a loss that an answer of the store has shown, for a lease whose last successful
    /// request was sent at `confirmed`.
    pub(super) fn reason(
        &self,
        confirmed: impl FnOnce() -> BootInstant,
        answer: LostReason,
    ) -> LostReason {
        let may_be_a_failover = matches!(answer, LostReason::Gone | LostReason::Taken);
        if may_be_a_failover && self.is_after(confirmed) { LostReason::Failover } else { answer }
    }
}

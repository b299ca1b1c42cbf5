//! The ends of holds and leases.

use std::time::Duration;

use super::{Phase, State};
use crate::clock::BootInstant;
use crate::engine::fairness::limit::{Decision, HandoffLimit};
use crate::engine::lease::effects::{Departure, Ending, Loss, Lost, Standing};
use crate::error::LostReason;

impl<P> State<P> {
    /// The reason of the loss when the deadline has passed.
    pub(in crate::engine::lease) fn overdue(&self, now: BootInstant) -> LostReason {
        if self.max_hold_until.is_some_and(|max_hold_until| now >= max_hold_until) {
            LostReason::MaxHold
        } else if self.renewed {
            LostReason::RenewalFailed
        } else {
            LostReason::LeaseOver
        }
    }

    /// Removes a holder. With a `limit`, other calls of this process may get the lock, if there are
    /// any or if the lock lingers. `is_waited_for` says whether calls wait.
    pub(in crate::engine::lease) fn leave(
        &mut self,
        number: u64,
        (limit, is_waited_for): (Option<&HandoffLimit>, bool),
        now: BootInstant,
    ) -> Departure<P> {
        if self.hold != number {
            return Departure::nothing(None);
        }
        let lost = match self.standing(number, now) {
            Standing::Lost(lost) => Some(lost),
            Standing::Until(_) | Standing::Over => None,
        };
        let unnoticed = lost.filter(|_| self.phase == Phase::Held).map(|lost| lost.reason);
        self.holders = self.holders.saturating_sub(1);
        if self.holders > 0 {
            // The background thread notices the loss, or the remaining holders do when they leave.
            return Departure::nothing(lost);
        }
        let held_for = (self.phase == Phase::Held).then(|| now.since(self.granted));
        let (ending, at_limit) = match self.phase {
            Phase::Held => {
                let limit = limit.filter(|_| lost.is_none());
                // Holds of a lock that lingers are short, and must not lead to many requests.
                let linger = self.tenure.longest_linger(now).min(self.linger);
                let lingering =
                    limit.filter(|_| !linger.is_zero()).map(HandoffLimit::of_any_number);
                match lingering {
                    Some(limit) => self.end(Some(&limit), linger, now),
                    None => self.end(limit.filter(|_| is_waited_for), Duration::ZERO, now),
                }
            }
            // The key was left to the holders.
            Phase::Lost(lost) if !lost.reason.is_over_in_store() => {
                (Ending::Free(self.permit.take()), false)
            }
            Phase::Lost(_) | Phase::Released | Phase::HandedOff => (Ending::None, false),
        };
        Departure { lost, unnoticed, held_for, at_limit, ending }
    }

    /// A transaction verifies the hold.
    #[cfg(feature = "postgres")]
    pub(in crate::engine::lease) fn is_verified(&mut self) {
        self.verified = true;
    }

    /// The last holder has left. The lock lingers for this time if it is handed off to nobody. Returns
    /// whether the limit of hand-offs has ended them as well.
    fn end(
        &mut self,
        limit: Option<&HandoffLimit>,
        linger: Duration,
        now: BootInstant,
    ) -> (Ending<P>, bool) {
        let mut at_limit = false;
        if let Some(limit) = limit.filter(|_| self.can_be_handed_off(now)) {
            let decision = self.tenure.next(limit, now);
            at_limit = decision == Decision::Free && limit.allows_any();
            if let Some(permit) = self.permit.take_if(|_| decision != Decision::Free) {
                // The limit was that of the hold, and not of the lease.
                let reschedule = self.max_hold_until.take().is_some();
                self.phase = Phase::HandedOff;
                self.handed_off = now;
                self.hold += 1;
                let count_waiters = decision == Decision::HandOffAndCount;
                let ending = Ending::HandOff { permit, count_waiters, reschedule, linger };
                return (ending, false);
            }
        }
        self.phase = Phase::Released;
        (Ending::Free(self.permit.take()), at_limit)
    }

    /// Ends a lease that was handed off and that no waiter takes. False if the lease was not handed
    /// off, or has ended.
    pub(in crate::engine::lease) fn close(&mut self) -> bool {
        let is_handed_off = self.phase == Phase::HandedOff;
        if is_handed_off {
            self.phase = Phase::Released;
        }
        is_handed_off
    }

    /// Ends the lease for the reason that `why` returns. Calls `first` before the change, because
    /// after it another thread may give the permit back. `None` if the lease had ended before, or
    /// if `why` returns no reason.
    pub(in crate::engine::lease) fn lose(
        &mut self,
        now: BootInstant,
        why: impl FnOnce(&Self) -> Option<LostReason>,
        first: impl FnOnce(),
    ) -> Option<Loss> {
        if !self.phase.is_open() {
            return None;
        }
        let reason = why(self)?;
        let is_held = self.phase == Phase::Held;
        first();
        let held_for = now.since(self.granted);
        self.phase = Phase::Lost(Lost { reason, held_for });
        Some(Loss { reason, held_for: is_held.then_some(held_for) })
    }

    /// The state of the hold with this number. A passed deadline is a loss, whether or not the
    /// background thread has noticed it.
    pub(in crate::engine::lease) fn standing(&self, number: u64, now: BootInstant) -> Standing {
        match self.phase {
            _ if self.hold != number => Standing::Over,
            Phase::Lost(lost) => Standing::Lost(lost),
            Phase::Held if now < self.deadline() => Standing::Until(self.deadline()),
            Phase::Held => Standing::Lost(Lost {
                reason: self.overdue(now),
                held_for: now.since(self.granted),
            }),
            Phase::HandedOff | Phase::Released => Standing::Over,
        }
    }
}

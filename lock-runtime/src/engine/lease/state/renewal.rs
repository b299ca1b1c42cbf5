//! The events of a lease's renewals.

use std::time::Duration;

use super::{PARTS, Phase, State};
use crate::clock::BootInstant;
use crate::engine::lease::terms::deadline;
use crate::replicas::RequiredReplicas;
use crate::safeguard::Safeguard;

/// The term that is requested when a fixed lease is verified: so short that the request changes
/// nothing, because no request shortens a lease.
const SHORTEST_TERM: Duration = Duration::from_millis(1);

impl<P> State<P> {
    /// Records that a request is about to be sent that may extend the lease. Returns the term to
    /// request: `term`, or the term of the lease, and at least `min_hold`. `None` if the lease has
    /// ended.
    pub(in crate::engine::lease) fn about_to_extend(
        &mut self,
        now: BootInstant,
        term: Option<Duration>,
        min_hold: Duration,
    ) -> Option<Duration> {
        if !self.phase.is_open() {
            return None;
        }
        let stay = self.kept_until.since(now).max(min_hold);
        let term = term.unwrap_or(self.term).max(stay);
        self.gone_by = self.gone_by.max(now.after(term));
        Some(term)
    }

    /// Records that the background thread is about to renew the lease. Returns the term to request,
    /// which is very short for a fixed lease that has to be verified. `None` if the lease has
    /// ended or is fixed, or if it was handed off and no waiter takes it.
    pub(in crate::engine::lease) fn about_to_renew(
        &mut self,
        now: BootInstant,
    ) -> Option<Duration> {
        let is_abandoned = now.since(self.handed_off) >= self.term / 3 || !self.linger.is_zero();
        self.skipped_renewal |= self.phase == Phase::HandedOff && is_abandoned;
        if self.skipped_renewal {
            return None;
        }
        if self.renewed {
            return self.about_to_extend(now, None, Duration::ZERO);
        }
        let is_wanted = self.to_verify && self.phase.is_open() && self.gone_by > now;
        is_wanted.then_some(SHORTEST_TERM)
    }

    /// Records that a request that was sent at `sent` has extended the lease, to its own term or to
    /// `term`. Returns the number of failures before.
    pub(in crate::engine::lease) fn extended(
        &mut self,
        sent: BootInstant,
        term: Option<Duration>,
    ) -> u32 {
        self.to_verify = false;
        let is_current = term.is_some() || sent > self.term_since;
        if !self.renewed && term.is_none() {
            self.extended = self.extended.max(sent);
        } else if self.phase.is_open() && is_current {
            let until = deadline(sent, term.unwrap_or(self.term));
            self.term = term.map_or(self.term, |term| term.max(self.term));
            (self.last_term, self.parts) = (self.term, PARTS);
            self.extended = self.extended.max(sent);
            // Answers may arrive in another order than the requests were served. No request
            // shortens a lease, so the latest deadline is the valid one.
            self.granted_until = self.granted_until.max(until);
        }
        std::mem::take(&mut self.failures)
    }

    /// Records that these replicas have acknowledged a request that was sent at `sent` and has set
    /// the lease to `term`. They then have to acknowledge each later renewal as well. Returns
    /// whether that is new. The deadline may then be earlier, because they may not have what other
    /// renewals have set meanwhile.
    pub(in crate::engine::lease) fn acknowledged(
        &mut self,
        by: RequiredReplicas,
        (sent, term): (BootInstant, Duration),
        now: BootInstant,
    ) -> bool {
        let both = self.acknowledged_by.and(by);
        let is_new = both != self.acknowledged_by;
        if is_new {
            self.acknowledged_by = both;
            self.term_since = now;
            self.granted_until = self.granted_until.min(deadline(sent, term));
        }
        is_new
    }

    /// Records a failed renewal. Returns the number of consecutive failures.
    pub(in crate::engine::lease) fn failed(&mut self) -> u32 {
        self.failures = self.failures.saturating_add(1);
        self.failures
    }

    /// Requests a renewal although none is due, to find out whether the store still has the lease.
    /// False if the lease has ended.
    pub(in crate::engine::lease) fn verify(&mut self) -> bool {
        self.to_verify = self.phase.is_open();
        self.to_verify
    }

    /// Whether a renewal would extend the hold.
    pub(in crate::engine::lease) fn can_be_renewed(&self) -> bool {
        self.renewed
            && Safeguard::Renewal.is_on()
            && self.max_hold_until.is_none_or(|max_hold_until| self.deadline() < max_hold_until)
    }
}

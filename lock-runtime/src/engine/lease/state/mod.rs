//! The state of a lease, as plain data. Each method that changes the state is an event, and returns
//! its effect.
//!
//! A lease ends once: it is released or lost. Before that, it may go from one hold to the next within
//! this process. Holds are numbered, so that the holders of an earlier hold cannot act on a later one.

mod ending;
mod modes;
mod renewal;
mod sets;

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::OnceCell;

use super::effects::Lost;
use super::hold_mode::HoldMode;
use super::terms::{Terms, capped, deadline};
use crate::clock::BootInstant;
use crate::engine::fairness::limit::Tenure;
use crate::replicas::RequiredReplicas;
use crate::safeguard::Safeguard;
use crate::store::contract::{Grant, Mode};
use crate::telemetry::{FormerSpan, SiteMetrics, SlowHold};

/// A renewal is due after a third of the grant or renewal before it.
const PARTS: u32 = 3;

/// A lease that the store has given to a claim counts from before the grant, so a third may have
/// passed already. Its first renewal is due after one half, because most holds have ended by then.
const PARTS_OF_TRANSFER: u32 = 2;

/// The first renewal is due after this part of the lease if the store begins to watch the key with it.
/// Most holds have ended by then.
const PARTS_BEFORE_WATCH: u32 = 15;

#[derive(Debug)]
#[expect(clippy::struct_excessive_bools, reason = "each is one independent fact")]
pub(super) struct State<P> {
    phase: Phase,
    /// The number of the current hold, or of the next one while the lease is handed off.
    hold: u64,
    mode: HoldMode,
    /// The guards and bodies that share the hold: one, and one more for each re-entry.
    holders: usize,
    /// When the hold began.
    granted: BootInstant,
    /// When the previous hold ended.
    handed_off: BootInstant,
    /// How long the lock is kept for the next call after the hold.
    linger: Duration,
    /// Whether a renewal was skipped since then, because no waiter took the lease.
    skipped_renewal: bool,
    /// When the hold ends although the lease could be renewed.
    max_hold_until: Option<BootInstant>,
    /// The fencing token of the hold, as soon as a holder has requested it.
    fence: Option<Arc<OnceCell<u64>>>,
    /// The length of one grant or renewal.
    term: Duration,
    /// The length of the last one, which is shorter after a transfer.
    last_term: Duration,
    /// The number of parts of the last one, after the first of which the next renewal is due.
    parts: u32,
    /// Whether the lease is renewed until it ends. Otherwise it is fixed.
    renewed: bool,
    /// The replicas that have to acknowledge each renewal.
    acknowledged_by: RequiredReplicas,
    /// When the term or the required replicas were changed; `PAST` if they are the original ones.
    /// Renewals that were sent before that do not count.
    term_since: BootInstant,
    /// When the last successful request was sent.
    extended: BootInstant,
    /// The end of the lease in the store, less the margin.
    granted_until: BootInstant,
    /// The instant by which the key has expired, even if all requests that were sent took effect.
    gone_by: BootInstant,
    /// The end of `min_hold`: the key stays in the store until then, even if the hold ends before.
    kept_until: BootInstant,
    /// Whether a transaction may be open that has verified the hold. Only the store knows when it ends, so the lease ends
    /// with the hold.
    verified: bool,
    /// The number of consecutive failed renewals.
    failures: u32,
    /// Whether the store may not have the lease any more, and has to be asked.
    to_verify: bool,
    tenure: Tenure,
    /// Where the current hold is measured.
    site: &'static SiteMetrics,
    /// The span of the current hold, or of the previous one, while a subscriber wants it.
    trace: Option<Box<(u64, FormerSpan)>>,
    /// Whether the log has warned that the current hold is long.
    is_slow: bool,
    /// The permit of the key, which is given back when the hold ends.
    permit: Option<P>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Held,
    /// Between two holds.
    HandedOff,
    Released,
    Lost(Lost),
}

impl Phase {
    /// Whether the lease has not ended.
    fn is_open(self) -> bool {
        matches!(self, Self::Held | Self::HandedOff)
    }
}

impl<P> State<P> {
    pub(super) fn new(
        (terms, mode): (&Terms, Mode),
        grant: Grant,
        (sent, granted): (BootInstant, BootInstant),
        permit: Option<P>,
        tenure: Tenure,
    ) -> Self {
        let (in_store, last_term) = if grant.is_transfer {
            (grant.term, grant.term)
        } else {
            (terms.in_store().max(grant.term), terms.term)
        };
        Self {
            phase: Phase::Held,
            hold: 0,
            mode: HoldMode::of(mode),
            holders: 1,
            granted,
            handed_off: BootInstant::PAST,
            linger: terms.linger,
            skipped_renewal: false,
            max_hold_until: terms.max_hold_until(granted),
            fence: grant.fence.map(|fence| Arc::new(OnceCell::new_with(Some(fence)))),
            term: terms.term,
            last_term,
            parts: if grant.is_transfer { PARTS_OF_TRANSFER } else { PARTS },
            renewed: terms.renewed,
            acknowledged_by: terms.acknowledged_by,
            term_since: BootInstant::PAST,
            extended: sent,
            granted_until: deadline(sent, last_term),
            gone_by: granted.after(in_store),
            kept_until: granted.after(terms.min_hold),
            verified: false,
            failures: 0,
            to_verify: false,
            tenure,
            site: terms.site,
            trace: None,
            is_slow: false,
            permit,
        }
    }

    /// The deadline of the hold; `PAST` once the lease has ended.
    pub(super) fn deadline(&self) -> BootInstant {
        if self.phase.is_open() {
            capped(self.granted_until, self.max_hold_until)
        } else {
            BootInstant::PAST
        }
    }

    pub(super) fn hold(&self) -> u64 {
        self.hold
    }

    pub(super) fn term(&self) -> Duration {
        self.term
    }

    pub(super) fn is_renewed(&self) -> bool {
        self.renewed
    }

    /// The replicas that have to acknowledge each renewal.
    pub(super) fn acknowledged_by(&self) -> RequiredReplicas {
        self.acknowledged_by
    }

    pub(super) fn granted(&self) -> BootInstant {
        self.granted
    }

    /// Whether the lease has a holder.
    pub(super) fn is_held(&self) -> bool {
        self.phase == Phase::Held
    }

    /// Where the current hold is measured.
    pub(super) fn site(&self) -> &'static SiteMetrics {
        self.site
    }

    pub(super) fn gone_by(&self) -> BootInstant {
        self.gone_by
    }

    pub(super) fn kept_until(&self) -> BootInstant {
        self.kept_until
    }

    /// When the last successful request was sent.
    pub(super) fn confirmed(&self) -> BootInstant {
        self.extended
    }

    /// When the next renewal is due. The first one is due early if the store begins to watch the key
    /// with it.
    pub(super) fn renewal_due(&self, begins_watch: bool) -> BootInstant {
        let is_first = begins_watch && self.is_unconfirmed();
        let parts = if is_first { PARTS_BEFORE_WATCH } else { self.parts };
        self.extended.after(self.last_term / parts)
    }

    /// Whether there was no renewal yet, and the lease was not given to a claim in a queue.
    pub(super) fn is_unconfirmed(&self) -> bool {
        self.extended == self.granted
    }

    /// The length of the last grant or renewal.
    pub(super) fn last_term(&self) -> Duration {
        self.last_term
    }

    /// The longest time that the hold may last, if it is limited.
    pub(super) fn max_hold(&self) -> Option<Duration> {
        self.max_hold_until.map(|max_hold_until| max_hold_until.since(self.granted))
    }

    /// Whether the lease can have another hold: its `min_hold` is over, no transaction has verified the hold, and no
    /// renewal is overdue.
    fn can_be_handed_off(&self, now: BootInstant) -> bool {
        let left = self.granted_until.since(now);
        let enough = if self.renewed { self.last_term / 2 } else { Duration::ZERO };
        !self.verified && self.kept_until <= now && left > enough
    }

    /// Begins a hold with one holder.
    fn begin(&mut self, terms: &Terms, since: BootInstant, permit: Option<P>) {
        self.phase = Phase::Held;
        self.mode.is_shared = false;
        self.holders = 1;
        self.granted = since;
        self.max_hold_until = terms.max_hold_until(since);
        self.kept_until = since.after(terms.min_hold);
        self.linger = terms.linger;
        self.site = terms.site;
        self.is_slow = false;
        self.fence = None;
        self.permit = permit;
    }

    /// Begins the hold of a waiter with `terms` on a lease that was handed off, without a request.
    /// Returns whether the background thread has to reschedule the lease; `None` if the lease does
    /// not match `terms`.
    pub(super) fn accept(
        &mut self,
        terms: &Terms,
        permit: &mut Option<P>,
        now: BootInstant,
    ) -> Option<bool> {
        let same = self.renewed && terms.renewed && self.term == terms.term;
        // The last request may have been acknowledged by fewer replicas, or may not need to be.
        let same_replicas = self.acknowledged_by == terms.acknowledged_by;
        if self.phase != Phase::HandedOff
            || !same
            || !same_replicas
            || !terms.min_hold.is_zero()
            || self.to_verify
            || !self.can_be_handed_off(now)
            || self.gone_by.since(now) > terms.term
        {
            return None;
        }
        let reschedule = std::mem::take(&mut self.skipped_renewal) || terms.max_hold.is_some();
        self.begin(terms, now, permit.take());
        if !Safeguard::HandoffKeepsDeadline.is_on() {
            (self.extended, self.granted_until) = (now, deadline(now, self.term));
        }
        Some(reschedule)
    }

    /// Records that a request is about to be sent that renews a lease that was handed off to
    /// `terms`. Returns the term to request. `None` if the key may last longer than the terms
    /// allow, if the lease cannot have another hold, or if it has ended.
    pub(super) fn about_to_renew_for(
        &mut self,
        terms: &Terms,
        now: BootInstant,
    ) -> Option<Duration> {
        let term = terms.in_store();
        if self.phase != Phase::HandedOff
            || !self.can_be_handed_off(now)
            || self.gone_by.since(now) > term
        {
            return None;
        }
        self.gone_by = now.after(term);
        Some(term)
    }

    /// Begins a hold after the request of [`about_to_renew_for`](Self::about_to_renew_for), which
    /// was sent at `sent`, has succeeded. False if the answer came too late.
    pub(super) fn renewed_for(
        &mut self,
        terms: &Terms,
        sent: BootInstant,
        permit: &mut Option<P>,
        now: BootInstant,
    ) -> bool {
        if self.phase != Phase::HandedOff || terms.deadline(sent) <= now {
            return false;
        }
        self.begin(terms, sent, permit.take());
        (self.term, self.renewed, self.extended) = (terms.term, terms.renewed, sent);
        (self.last_term, self.parts) = (terms.term, PARTS);
        self.granted_until = deadline(sent, terms.term);
        self.acknowledged_by = terms.acknowledged_by;
        self.term_since = now;
        (self.skipped_renewal, self.to_verify) = (false, false);
        self.failures = 0;
        true
    }

    /// Since when this process has had the key without asking whether others wait.
    pub(super) fn tenure_since(&self) -> BootInstant {
        self.tenure.began()
    }

    pub(super) fn tenure(&mut self) -> &mut Tenure {
        &mut self.tenure
    }

    /// Keeps the key in the store for `min_hold` from `since`, even if the hold ends before.
    pub(super) fn keep_for(&mut self, since: BootInstant, min_hold: Duration) {
        self.kept_until = self.kept_until.max(since.after(min_hold));
    }

    /// Ends the `min_hold` and the `linger`: the key does not have to stay after the hold.
    pub(super) fn keep_no_longer(&mut self) {
        (self.kept_until, self.linger) = (BootInstant::PAST, Duration::ZERO);
    }

    /// The fencing token of the hold, if it is known.
    pub(super) fn known_fence(&self, number: u64) -> Option<u64> {
        self.fence.as_ref().filter(|_| self.hold == number)?.get().copied()
    }

    /// Keeps the span of the current hold. Returns the last one that was kept, and whether it is that of the
    /// previous hold.
    pub(super) fn traces(&mut self, span: FormerSpan) -> Option<(FormerSpan, bool)> {
        let (number, former) = *self.trace.replace(Box::new((self.hold, span)))?;
        Some((former, number + 1 == self.hold))
    }

    /// The last span, if the lease has ended.
    pub(super) fn end_trace(&mut self) -> Option<FormerSpan> {
        self.trace.take_if(|_| !self.phase.is_open()).map(|former| former.1)
    }

    /// The current hold, if it has become longer than its threshold, and the log has not said so yet: this one,
    /// or half of its `max_hold`.
    pub(super) fn slow_hold(
        &mut self,
        now: BootInstant,
        threshold: Option<Duration>,
    ) -> Option<SlowHold> {
        let threshold = threshold.or(self.max_hold().map(|max_hold| max_hold / 2))?;
        let held_for = now.since(self.granted);
        if self.is_slow || self.phase != Phase::Held || held_for < threshold {
            return None;
        }
        self.is_slow = true;
        Some(SlowHold { held_for, threshold, label: self.site.label() })
    }

    /// The same for the last holder of the hold with this number, who is about to leave.
    pub(super) fn slow_hold_of_last(
        &mut self,
        number: u64,
        now: BootInstant,
        threshold: Option<Duration>,
    ) -> Option<SlowHold> {
        let is_last = self.hold == number && self.holders == 1;
        if is_last { self.slow_hold(now, threshold) } else { None }
    }

    /// The cell for the fencing token of the hold.
    pub(super) fn fence(&mut self, number: u64) -> Arc<OnceCell<u64>> {
        if self.hold != number {
            return Arc::default();
        }
        Arc::clone(self.fence.get_or_insert_default())
    }

    pub(super) fn take_permit(&mut self) -> Option<P> {
        self.permit.take()
    }
}

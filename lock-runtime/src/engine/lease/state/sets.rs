//! The events of a hold that is one of several, which one call acquires together.
//!
//! Until the call has all of them, the hold is provisional: it is renewed, and it ends unless the call
//! shows again and again that it continues.

use std::sync::Arc;

use tokio::sync::OnceCell;

use super::{PARTS, Phase, State};
use crate::clock::BootInstant;
use crate::engine::lease::terms::{Terms, deadline};

impl<P> State<P> {
    fn is_held_by(&self, number: u64, now: BootInstant) -> bool {
        self.hold == number && self.phase == Phase::Held && now < self.deadline()
    }

    pub(in crate::engine::lease) fn permit(&self) -> Option<&P> {
        self.permit.as_ref()
    }

    /// Lets a hold last until this time at most. False if it has ended.
    pub(in crate::engine::lease) fn limit(
        &mut self,
        number: u64,
        (until, now): (BootInstant, BootInstant),
    ) -> bool {
        let is_held = self.is_held_by(number, now);
        if is_held {
            self.max_hold_until = Some(until);
        }
        is_held
    }

    /// Sets the lease of a hold to `terms`, which a request that was sent at `sent` has set it to. The
    /// hold counts from then on, and is still limited. False if it has ended.
    pub(in crate::engine::lease) fn settle(
        &mut self,
        number: u64,
        terms: &Terms,
        (sent, now): (BootInstant, BootInstant),
    ) -> bool {
        if !self.is_held_by(number, now) || deadline(sent, terms.term) <= now {
            return false;
        }
        self.granted = sent;
        self.keep_for(sent, terms.min_hold);
        (self.term, self.extended) = (terms.term, sent);
        (self.last_term, self.parts) = (terms.term, PARTS);
        self.granted_until = deadline(sent, terms.term);
        self.term_since = now;
        (self.to_verify, self.failures) = (false, 0);
        true
    }

    /// Gives a hold its terms, because the call has all of its locks. It counts from `since`, or from
    /// its grant. False if it has ended.
    pub(in crate::engine::lease) fn claim(
        &mut self,
        number: u64,
        terms: &Terms,
        (since, now): (Option<BootInstant>, BootInstant),
    ) -> bool {
        if !self.is_held_by(number, now) {
            return false;
        }
        self.granted = since.unwrap_or(self.granted);
        self.renewed = terms.renewed;
        self.max_hold_until = terms.max_hold_until(self.granted);
        self.linger = terms.linger;
        let is_held = now < self.deadline();
        if is_held {
            self.site = terms.site;
        }
        is_held
    }

    /// Sets the fencing token of the hold, unless it has a higher one.
    pub(in crate::engine::lease) fn raise_fence(&mut self, number: u64, token: u64) {
        let known = self.fence.as_ref().and_then(|fence| fence.get().copied());
        if self.hold == number && known.is_none_or(|known| known < token) {
            self.fence = Some(Arc::new(OnceCell::new_with(Some(token))));
        }
    }
}

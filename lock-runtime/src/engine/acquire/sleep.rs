//! The sleep of an acquisition, and its wake-ups.

use std::time::Duration;

use super::call::AcquireRequest;
use crate::backoff::between;
use crate::clock::BootInstant;
use crate::engine::fairness::yielding::Yield;
use crate::safeguard::Safeguard;
use crate::store::contract::Left;
use crate::store::subscriptions::Subscription;
use crate::sync::time;
use crate::timeout::LONGEST_WAIT;

/// The longest sleep of an acquisition that no message would wake.
const SAFETY_POLL: Duration = Duration::from_secs(1);

/// The longest time for which an acquisition with a live subscription sleeps without an answer to
/// an attempt or a result of a check. It is reached only if the store stops checking.
const LONGEST_SLEEP: Duration = Duration::from_secs(10);

/// The longest random time that is added to the remaining lease of a holder, so that the
/// acquisitions of several processes do not all make an attempt when the lease ends.
const SPREAD: Duration = Duration::from_millis(30);

/// The length of a sleep.
#[derive(Debug, Clone, Copy)]
pub(super) enum Sleep {
    /// A pause after an attempt without an answer.
    Pause(Duration),
    /// Until the holder's lease must have ended. The rest of the lease was learned at that instant.
    Holder(Left, BootInstant),
}

impl Sleep {
    /// The time from now to the end of the sleep. `is_woken` says whether a release of the key
    /// would wake the acquisition.
    pub(super) fn remaining(self, is_woken: bool) -> Duration {
        let (left, at) = match self {
            Self::Pause(pause) => return pause,
            Self::Holder(left, at) => (left, at),
        };
        if !Safeguard::SafetyPoll.is_on() {
            return LONGEST_WAIT;
        }
        let longest = if is_woken {
            between(LONGEST_SLEEP, LONGEST_SLEEP * 5 / 4)
        } else {
            between(SAFETY_POLL * 3 / 4, SAFETY_POLL)
        };
        let sleep = match left {
            // The store expires keys with a resolution of a millisecond.
            Left::Time(left) => {
                let spread = between(Duration::ZERO, SPREAD).min(left / 4);
                longest.min(left + Duration::from_millis(1) + spread)
            }
            Left::Forever => longest,
            // Long enough for the subscription to become live, but short, because the server may
            // not permit it.
            Left::Unknown => longest.min(SAFETY_POLL) / 10,
        };
        sleep.saturating_sub(BootInstant::now().since(at))
    }
}

/// The wake-ups of an acquisition, as soon as it has subscribed.
#[derive(Debug, Default)]
pub(super) struct WakeSource {
    subscription: Option<Subscription>,
    /// Whether the acquisition has made an attempt since the subscription became live. A release
    /// before that may have been missed.
    tried_since_live: bool,
    /// The yield that the acquisition has to complete before its attempt.
    pending_yield: Option<PendingYield>,
}

/// A yield to other processes. The acquisition makes its attempt after a number of their releases,
/// or when none of them releases the key for a while.
#[derive(Debug)]
struct PendingYield {
    /// The number of releases when the yield began.
    from: u64,
    /// The number of releases at which the yield ends.
    until: u64,
    /// The longest wait for the next release.
    pause: Duration,
}

impl WakeSource {
    pub(super) fn subscribe(&mut self, request: &AcquireRequest) {
        if self.subscription.is_none() {
            self.subscription = Some(request.store.subscribe(request.resource()));
        }
    }

    /// Subscribes because of an attempt by another caller of this process.
    pub(super) fn subscribe_after_attempt(&mut self, request: &AcquireRequest) {
        self.subscribe(request);
        self.tried_since_live = self.is_live();
    }

    pub(super) fn yield_to_others(&mut self, request: &AcquireRequest, due: Yield) {
        self.subscribe_after_attempt(request);
        let from = self.subscription.as_ref().map_or(0, Subscription::releases);
        let until = from + due.releases as u64;
        self.pending_yield = Some(PendingYield { from, until, pause: due.pause });
    }

    /// Whether another process took the key during the yield; `None` if there was no yield.
    /// `answered` is when the key was last found taken.
    pub(super) fn was_taken(&self, answered: BootInstant) -> Option<bool> {
        let (pending, subscription) = (self.pending_yield.as_ref()?, self.subscription.as_ref()?);
        Some(answered != BootInstant::PAST || subscription.releases() > pending.from)
    }

    /// Resolves when all other processes have had the key, or none has released it for the pause.
    pub(super) async fn yielded(&self) {
        let (Some(pending), Some(subscription)) = (&self.pending_yield, &self.subscription) else {
            return;
        };
        while subscription.releases() < pending.until {
            tokio::select! {
                biased;
                () = subscription.woken() => {}
                () = time::sleep(pending.pause) => return,
            }
        }
    }

    pub(super) fn is_live(&self) -> bool {
        self.subscription.as_ref().is_some_and(Subscription::is_live)
    }

    /// The result and the time of the store's last check of the key.
    pub(super) fn last_check(&self) -> Option<(Left, BootInstant)> {
        self.subscription.as_ref().and_then(Subscription::last_check)
    }

    /// A longer sleep, if the store has checked the key since the sleep began and found no reason
    /// for an attempt.
    pub(super) fn checked_since(&self, sleep: Sleep) -> Option<Sleep> {
        let Sleep::Holder(_, answered) = sleep else { return None };
        let (left, at) = self.last_check()?;
        let later = Sleep::Holder(left, at);
        (at > answered && self.is_live() && !later.remaining(true).is_zero()).then_some(later)
    }

    /// Resolves when there is a reason for an attempt; never without a subscription.
    pub(super) async fn woken(&mut self) {
        let Some(subscription) = &self.subscription else { return std::future::pending().await };
        tokio::select! {
            // The order does not matter: no branch takes anything from another one.
            biased;
            () = subscription.woken() => self.yielded().await,
            () = subscription.live(), if !self.tried_since_live => self.tried_since_live = true,
        }
    }
}

#[cfg(all(test, not(lock_shuttle)))]
mod tests;

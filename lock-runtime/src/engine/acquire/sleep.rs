//! The sleep of an acquisition, and its wake-ups.

use std::time::Duration;

use super::call::AcquireRequest;
use crate::backoff::between;
use crate::clock::BootInstant;
use crate::engine::fairness::yielding::Yield;
use crate::safeguard::Safeguard;
use crate::store::contract::{Extension, Left, Queued, Queueing};
use crate::store::owner::OwnerId;
use crate::store::queueing::QueueEntries;
use crate::store::subscriptions::{LockTransfer, Subscription};
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

/// How often the first claim in a queue makes an attempt, if no message would wake it. The next ones
/// do so less often.
const POLL_BY_PLACE: Duration = Duration::from_millis(100);

/// How much later than the claim before it a claim in a queue notices the death of a holder.
const DELAY_BY_PLACE: Duration = Duration::from_millis(50);

/// How long the first claim in a queue sleeps before the store is asked to report changes of its key.
/// Most sleeps in busy queues are over by then.
const WATCH_AFTER: Duration = Duration::from_millis(50);

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
    /// would wake the acquisition, and `ahead` how many claims come before it in a queue.
    pub(super) fn remaining(self, is_woken: bool, ahead: Option<usize>) -> Duration {
        let (left, at) = match self {
            Self::Pause(pause) => return pause,
            Self::Holder(left, at) => (left, at),
        };
        if !Safeguard::SafetyPoll.is_on() {
            return LONGEST_WAIT;
        }
        let longest = match ahead {
            _ if is_woken => between(LONGEST_SLEEP, LONGEST_SLEEP * 5 / 4),
            // The store may give the key to the claim at any time, and nobody else has it then.
            Some(ahead) => {
                let places = u32::try_from(ahead).unwrap_or(u32::MAX).saturating_add(1);
                let longest = POLL_BY_PLACE.saturating_mul(places).min(SAFETY_POLL);
                between(longest * 3 / 4, longest)
            }
            None => between(SAFETY_POLL * 3 / 4, SAFETY_POLL),
        };
        let sleep = match left {
            // The store expires keys with a resolution of a millisecond.
            Left::Time(left) => {
                let spread = between(Duration::ZERO, SPREAD).min(left / 4);
                // If the holder has died, the first claim is the first to notice it.
                let later = DELAY_BY_PLACE * u32::try_from(ahead.unwrap_or(0)).unwrap_or(u32::MAX);
                longest.min(left + Duration::from_millis(1) + spread + later.min(SAFETY_POLL))
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
    /// The end of the pause before the next attempt, if the store has requested one.
    pause_until: Option<BootInstant>,
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
    /// The wake-ups of a claim that an earlier call has left.
    pub(super) fn of_place(entries: QueueEntries, subscription: Option<Subscription>) -> Self {
        let is_live = subscription.as_ref().is_some_and(Subscription::is_live);
        let tried_since_live = is_live && entries.is_woken();
        Self { subscription, tried_since_live, ..Self::default() }
    }

    pub(super) fn take_subscription(&mut self) -> Option<Subscription> {
        self.subscription.take()
    }

    pub(super) fn subscribe(&mut self, request: &AcquireRequest, owner: OwnerId) {
        let subscribe =
            || request.store.subscribe(request.resource(), owner, request.terms.in_store());
        self.subscription.get_or_insert_with(subscribe);
    }

    /// Subscribes because of an attempt by another caller of this process.
    pub(super) fn subscribe_after_attempt(&mut self, request: &AcquireRequest, owner: OwnerId) {
        self.subscribe(request, owner);
        self.tried_since_live = self.is_live();
    }

    pub(super) fn yield_to_others(&mut self, request: &AcquireRequest, owner: OwnerId, due: Yield) {
        self.subscribe_after_attempt(request, owner);
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

    /// Resolves when the pause before the next attempt is over, or when there is a newer message.
    async fn paused(&mut self) {
        if let (Some(until), Some(subscription)) = (self.pause_until, &self.subscription) {
            tokio::select! {
                // The order does not matter: no branch takes anything from another one.
                biased;
                () = subscription.woken() => {}
                () = time::sleep(until.since(BootInstant::now())) => {}
            }
        }
        self.pause_until = None;
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
        let is_later = !later.remaining(true, self.ahead()).is_zero();
        (at > answered && self.is_live() && is_later).then_some(later)
    }

    /// How the next claim is to wait.
    pub(super) fn queueing(&mut self, request: &AcquireRequest) -> Queueing {
        match &self.subscription {
            Some(_) if !request.store.has(Extension::Queues) => Queueing::None,
            Some(subscription) if subscription.is_live() => {
                self.tried_since_live = true;
                Queueing::Woken
            }
            Some(_) => Queueing::Polling,
            None => Queueing::None,
        }
    }

    /// Records that the claim stands in the queue, by an attempt that was sent at `sent`.
    pub(super) fn queued(&self, queued: Queued, sent: BootInstant) {
        if let Some(subscription) = &self.subscription {
            subscription.queued(queued, sent);
        }
    }

    /// The time from now until the store is asked to report changes of the key; `None` if it is not.
    pub(super) fn before_watch(&self, pause: Duration) -> Option<Duration> {
        let can_be_watched = self.subscription.as_ref().is_some_and(Subscription::can_be_watched);
        (can_be_watched && pause > WATCH_AFTER).then_some(WATCH_AFTER)
    }

    /// Asks the store to report changes of the key.
    pub(super) fn watch(&self) {
        if let Some(subscription) = &self.subscription {
            subscription.watch();
        }
    }

    /// The number of claims that come first, if the claim stands in a queue.
    pub(super) fn ahead(&self) -> Option<usize> {
        self.subscription.as_ref().and_then(Subscription::ahead)
    }

    /// Takes the message that the store has given the key to the claim.
    pub(super) fn take_transfer(&self) -> Option<LockTransfer> {
        self.subscription.as_ref()?.take_transfer()
    }

    /// Resolves when there is a reason for an attempt; never without a subscription.
    pub(super) async fn woken(&mut self) {
        if self.pause_until.is_some() {
            // This future was dropped during the pause.
            return self.paused().await;
        }
        let Some(subscription) = &self.subscription else { return std::future::pending().await };
        tokio::select! {
            // The order does not matter: no branch takes anything from another one.
            biased;
            () = subscription.woken() => self.pause_until = subscription.take_pause(),
            () = subscription.live(), if !self.tried_since_live => {
                self.tried_since_live = true;
                return;
            }
        }
        self.paused().await;
        self.yielded().await;
    }
}

#[cfg(all(test, not(lock_shuttle)))]
mod tests;

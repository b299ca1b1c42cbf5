//! An acquisition: the only task that sends requests to acquire a key with one permit of a local queue.
//!
//! The acquisition has the permit of the key. It makes one attempt, which is usually enough. If the key
//! is busy, it subscribes and makes another attempt, and then sleeps until it is woken or the holder's
//! lease must have ended. A remote store checks the keys of its subscribers, and the result of a check
//! counts like an answer. After an attempt without an answer, it makes the next one after a pause with
//! jitter. All of this together takes no longer than the caller's timeout.
//!
//! * With a store that has queues, the second attempt puts the claim into the queue. When its turn comes,
//!   the store gives it the key and sends a message, and the lease begins without another attempt. Without
//!   a live subscription, the claim makes attempts as well, the more often the fewer claims come first. A
//!   call that gives up leaves its place to the next one.
//! * With other stores, the subscription is to the key's releases, and the second attempt is made in case
//!   one was missed. Each release wakes the acquisition for an attempt; without a live subscription, it
//!   makes one a second. If a release by this process has woken others, it yields to them first.
//!
//! The undo is armed before a request is sent and disarmed by a definite answer, so a key that may have
//! been taken is freed wherever this future is dropped. All attempts use one owner id, to which the store
//! grants a key again, so a lost answer costs one more attempt.

use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Id;

use super::attempt::{Attempt, PendingRequest, claim, new_owner, undo};
use super::call::{AcquireRequest, PendingCall};
use super::failure::{answered, failed, is_long_outage, refused_in_outage};
use super::sleep::{Sleep, WakeSource};
use super::so_far::AttemptsSoFar;
use crate::clock::BootInstant;
use crate::engine::core::Engine;
use crate::engine::fairness::yielding::Yield;
use crate::engine::handoff::{Hold, Permit, QueuePosition};
use crate::engine::lease::Locked;
use crate::engine::local_queue::KeyStatus;
use crate::engine::receivers::{Receiver, offered};
use crate::error::LockError;
use crate::safeguard::Safeguard;
use crate::store::contract::{
    Acquired, Extension, Grant, Left, Origin, Queueing, SendTrace, StoreError,
};
use crate::store::owner::OwnerId;
use crate::store::queueing::QueueEntries;
use crate::store::subscriptions::LockTransfer;
use crate::sync::time;
use crate::timeout::Timeout;

pub(super) struct Acquisition {
    pub(super) engine: Arc<Engine>,
    /// The runtime that sends the requests.
    runtime: Id,
    pub(super) request: AcquireRequest,
    owner: OwnerId,
    /// Moves into the lease when the lock is granted.
    pub(super) permit: Option<Permit>,
    /// The origin of the unanswered requests, which may have taken effect, or may still do so.
    pub(super) unanswered: Option<Origin>,
    /// The entries that the claim may have in a queue of the store. It may also have been given the key.
    pub(super) entries: QueueEntries,
    pub(super) wake_source: WakeSource,
    /// Whether other processes are known to want the key.
    contended: bool,
    /// Whether the next attempt is the first one.
    first: bool,
    /// Takes over permits that other calls of this process leave.
    pub(super) receiver: Option<Receiver>,
}

impl Acquisition {
    /// `follows` says whether an earlier call may have left its place in a queue of the store.
    pub(super) fn new(
        call: &PendingCall,
        permit: Option<Permit>,
        follows: bool,
    ) -> Result<Self, Box<LockError>> {
        let left = permit.as_ref().filter(|_| follows).and_then(Permit::take_left);
        let (place, permits) = left.map_or_else(Default::default, |it| (it.place, it.permits));
        let term = call.request.terms.in_store();
        let kind = (&call.request.store, call.request.mode);
        let (owner, entries, subscription) = match place.and_then(|it| it.take_over(kind, term)) {
            Some((owner, entries, subscription)) => (owner, entries, Some(subscription)),
            None => {
                let (key, waited) = (&call.request.key, call.request.timeout.elapsed());
                let owner = new_owner().map_err(|error| error.of_call(Some(key), waited))?;
                (owner, QueueEntries::default(), None)
            }
        };
        let mut acquisition = Self {
            engine: Arc::clone(&call.engine),
            runtime: call.runtime,
            owner,
            request: call.request.clone(),
            permit,
            unanswered: None,
            entries,
            wake_source: WakeSource::of_place(entries, subscription),
            contended: false,
            first: true,
            receiver: None,
        };
        if !permits.is_empty() {
            acquisition.receive_from_now_on(permits);
        }
        Ok(acquisition)
    }

    /// See [`Permit::position`](crate::engine::local_queue::Permit::position).
    pub(super) fn position(&self, number: u64) -> Option<QueuePosition> {
        self.permit.as_ref().map(|permit| permit.position(number))
    }

    /// Acquires the lock. The first attempt is usually enough, unless it has already been made, or
    /// is known to be in vain.
    pub(super) fn run(
        mut self,
        timeout: Timeout,
        known: Option<KeyStatus>,
        yield_due: Option<Yield>,
        mut first: Option<Attempt>,
    ) -> impl Future<Output = Result<Hold, Box<LockError>>> {
        let contends = known.is_some() || yield_due.is_some() || first.is_some();
        let contends = contends || self.receiver.is_some();
        // A block, because the future of an async function has room for its arguments twice.
        async move {
            if let Some(error) = refused_in_outage(&timeout, &self.engine, &self.request) {
                return Err(Box::new(error));
            }
            if !contends && self.entries.is_empty() && !self.others_wait(&timeout) {
                // The cheapest request does not look at the queue.
                let fresh = !self.request.is_fair;
                let attempt = self.attempt((fresh, Queueing::None), &timeout).await;
                if let Some(grant) = attempt.granted {
                    return Ok(self.granted(grant, (attempt.sent, attempt.known)));
                }
                first = Some(attempt);
            }
            // Boxed separately, because this future is large and rarely needed.
            Box::pin(self.contend(timeout, known, yield_due, first)).await.map_err(Box::new)
        }
    }

    /// Makes attempts until the lock is granted or the timeout ends. `known` is the status of the
    /// key that earlier callers in the queue have left; `first` is an attempt of this acquisition.
    async fn contend(
        mut self,
        timeout: Timeout,
        known: Option<KeyStatus>,
        yield_due: Option<Yield>,
        mut first: Option<Attempt>,
    ) -> Result<Hold, LockError> {
        if let Some(hold) = self.receive() {
            return Ok(hold);
        }
        let has_queues = self.request.store.has(Extension::Queues);
        let mut seems_free = true;
        let mut so_far = AttemptsSoFar::new(timeout, known);
        if let Some(due) = yield_due {
            self.yield_to_others(due, &timeout).await?;
        }
        let others_wait = || so_far.held_elsewhere().is_some() || self.others_wait(&timeout);
        if has_queues && self.entries.is_empty() && first.is_none() && others_wait() {
            (seems_free, self.contended) = (false, true);
            self.wake_source.subscribe(&self.request, self.owner);
        } else if let Some((left, at)) = so_far.held_elsewhere() {
            // The previous caller got this answer and gave up. The answer counts here as well.
            (seems_free, self.contended) = (false, true);
            so_far.answered = at;
            self.wake_source.subscribe_after_attempt(&self.request, self.owner);
            if let Some(hold) = self.sleep_until_given(&so_far, Sleep::Holder(left, at)).await? {
                return Ok(hold);
            }
        }
        loop {
            let fresh = std::mem::take(&mut seems_free)
                && self.unanswered.is_none()
                && self.entries.is_empty();
            let attempt = match first.take() {
                Some(attempt) => attempt,
                None => {
                    let queueing = if timeout.is_single_attempt() {
                        Queueing::None
                    } else {
                        self.wake_source.queueing(&self.request)
                    };
                    self.attempt((fresh, queueing), &timeout).await
                }
            };
            let (sent, known) = (attempt.sent, attempt.known);
            if let Some(grant) = attempt.granted {
                if let Some(taken) = self.wake_source.was_taken(so_far.answered) {
                    self.engine.queues().yielded(&self.request.key, taken);
                }
                return Ok(self.granted(grant, (sent, known)));
            }
            if attempt.answer.is_ok() {
                answered(&self.engine, &self.request);
            }
            let sleep = match attempt.answer {
                Ok(Acquired::Busy(left)) => {
                    self.contended = true;
                    let sleep = so_far.busy(left);
                    if left == Left::Unknown && so_far.asks_again() {
                        // A second request returns the rest of the holder's lease, and whether the
                        // key holds a lock at all.
                        continue;
                    }
                    if !timeout.is_single_attempt() {
                        self.wake_source.subscribe(&self.request, self.owner);
                    }
                    sleep
                }
                Ok(Acquired::Queued(queued)) => {
                    self.contended = true;
                    self.wake_source.queued(queued, sent);
                    so_far.busy(queued.left)
                }
                Err(StoreError::Unknown(_)) if !Safeguard::UnknownIsNotHeld.is_on() => {
                    let grant = Grant::of(self.request.terms.in_store());
                    return Ok(self.granted(grant, (sent, known)));
                }
                _ => {
                    let last_check = self.wake_source.last_check();
                    match so_far.failed(attempt, last_check, &self.engine, &self.request.terms)? {
                        Some(sleep) => sleep,
                        None => continue,
                    }
                }
            };
            let gives_up = is_long_outage(&self.engine, &self.request, so_far.known.as_ref());
            if let (Some(status), Some(permit)) = (&so_far.known, &self.permit) {
                permit.set_status(status);
            }
            if gives_up || timeout.is_single_attempt() {
                return Err(self.gives_up(&so_far));
            }
            if let Some(hold) = self.sleep_until_given(&so_far, sleep).await? {
                return Ok(hold);
            }
        }
    }

    /// Sleeps until there is a reason for another attempt, or until this claim was given the key. Fails
    /// if the timeout ends first.
    async fn sleep_until_given(
        &mut self,
        so_far: &AttemptsSoFar,
        sleep: Sleep,
    ) -> Result<Option<Hold>, LockError> {
        if let Some(hold) = self.take_over() {
            return Ok(Some(hold));
        }
        // The message may have woken the call that had the place before.
        let mut given = self.transferred();
        if given.is_none() {
            if !self.sleep(&so_far.timeout, sleep).await {
                return Err(self.gives_up(so_far));
            }
            self.engine.admit(&self.request.key)?;
            if let Some(hold) = self.take_over() {
                return Ok(Some(hold));
            }
            given = self.transferred();
        }
        Ok(given.map(|(grant, not_before)| self.granted(grant, (not_before, BootInstant::now()))))
    }

    fn gives_up(&self, so_far: &AttemptsSoFar) -> LockError {
        let status = so_far.known.clone().unwrap_or(KeyStatus::Acquiring(BootInstant::PAST));
        failed(&so_far.timeout, &self.engine, &self.request, status)
    }

    /// The grant of a key that the store has given to this claim, and an instant before it. `None`
    /// if there is none, or if an attempt is necessary: to get the whole term at once, or because
    /// the claim has not heard from the store for long.
    fn transferred(&self) -> Option<(Grant, BootInstant)> {
        let LockTransfer { not_before, term } = self.wake_source.take_transfer()?;
        let (terms, now) = (&self.request.terms, BootInstant::now());
        let on = Safeguard::TransfersCountFromConfirmation.is_on();
        let not_before = if on { not_before } else { now };
        let needs_attempt = !terms.renewed
            || !terms.min_hold.is_zero()
            || !terms.acknowledged_by.is_none()
            || self.request.store.capabilities().verifies_transfers
            || now >= not_before.after(term / 2);
        let term = term.min(terms.term);
        (!needs_attempt).then_some((Grant { is_transfer: true, ..Grant::of(term) }, not_before))
    }

    /// Yields to the processes that the last release has woken.
    async fn yield_to_others(&mut self, due: Yield, timeout: &Timeout) -> Result<(), LockError> {
        self.contended = true;
        if let Some(permit) = &self.permit {
            permit.set_status(&KeyStatus::Yielded);
        }
        self.wake_source.yield_to_others(&self.request, self.owner, due);
        let yielded = async {
            tokio::select! {
                biased;
                () = self.wake_source.yielded() => {}
                () = self.engine.closing() => {}
            }
        };
        // There is at least one attempt, even if the timeout ends here.
        timeout.limit(yielded).await;
        self.engine.admit(&self.request.key)
    }

    /// The yield to other processes that is due, as far as the timeout leaves time for it.
    pub(super) fn yield_due(&self, timeout: &Timeout) -> Option<Yield> {
        if timeout.is_single_attempt() {
            return None;
        }
        let due = self.engine.queues().yield_due(&self.request.key)?;
        if self.request.store.has(Extension::Queues) {
            return None;
        }
        let pause = timeout.remaining().map_or(due.pause, |left| due.pause.min(left / 4));
        Some(Yield { pause, ..due })
    }

    /// Whether other claims may wait in the store, so that an attempt without a place would be in vain.
    fn others_wait(&self, timeout: &Timeout) -> bool {
        let may_wait =
            || self.request.is_fair || self.engine.queues().is_contended(&self.request.key);
        !timeout.is_single_attempt() && may_wait() && self.request.store.has(Extension::Queues)
    }

    /// Sends one request to a store that answers immediately.
    pub(super) fn try_immediately(&mut self, timeout: &Timeout) -> Option<Attempt> {
        let first = std::mem::take(&mut self.first);
        let timeout = timeout.for_request(self.engine.config().response_timeout, first);
        let claim = claim(&self.request, self.owner, (true, Queueing::None));
        let trace = SendTrace::default();
        let answer = self.request.store.try_acquire(claim, timeout, &trace).known()?;
        Some(self.evaluate(&trace, timeout.total, answer))
    }

    /// Sends one request. If the request is dropped or not answered, its effect is undone later.
    async fn attempt(&mut self, kind: (bool, Queueing), timeout: &Timeout) -> Attempt {
        let (trace, first) = (SendTrace::default(), std::mem::take(&mut self.first));
        let needs_owner = !first && self.request.store.capabilities().owner_per_attempt;
        if needs_owner || !Safeguard::OneOwnerId.is_on() {
            match new_owner() {
                Ok(owner) => self.owner = owner,
                Err(error) => return self.evaluate(&trace, Duration::ZERO, Err(error)),
            }
        }
        let timeout = timeout.for_request(self.engine.config().response_timeout, first);
        let mut pending = PendingRequest {
            trace: &trace,
            runtime: self.runtime,
            unanswered: &mut self.unanswered,
            is_over: false,
        };
        let mut claim = claim(&self.request, self.owner, kind);
        let before = self.entries;
        claim.queued_before = before.replaced_by(kind.1);
        self.entries = before.and(kind.1);
        let answer = self.request.store.try_acquire(claim, timeout, &trace).await;
        pending.is_over = !answer.as_ref().is_err_and(StoreError::may_have_run);
        drop(pending);
        match &answer {
            Ok(Acquired::Queued(_)) => self.entries = QueueEntries::only(kind.1),
            Err(error) if !error.may_have_run() => self.entries = before,
            _ => {}
        }
        self.evaluate(&trace, timeout.total, answer)
    }

    fn evaluate(
        &mut self,
        trace: &SendTrace,
        within: Duration,
        answer: Result<Acquired, StoreError>,
    ) -> Attempt {
        let attempt = Attempt::new(trace, within, answer, &self.request.terms);
        if attempt.is_late() {
            // The key has to be freed.
            self.unanswered.get_or_insert(Origin { runtime: self.runtime, connection: None });
        }
        attempt
    }

    /// Sleeps until there is a reason for another attempt. False if the timeout ends first.
    async fn sleep(&mut self, timeout: &Timeout, mut sleep: Sleep) -> bool {
        let (wake_source, engine) = (&mut self.wake_source, &self.engine);
        let receiver = self.receiver.as_ref();
        let reason = async {
            let mut is_watched = false;
            loop {
                let pause = sleep.remaining(wake_source.is_live(), wake_source.ahead());
                let before_watch = wake_source.before_watch(pause).filter(|_| !is_watched);
                let pause = before_watch.unwrap_or(pause);
                tokio::select! {
                    // The order does not matter: no branch takes anything from another one.
                    biased;
                    () = wake_source.woken() => return,
                    () = engine.closing() => return,
                    () = offered(receiver) => return,
                    () = time::sleep(pause) => {}
                }
                if before_watch.is_some() {
                    wake_source.watch();
                    is_watched = true;
                    continue;
                }
                match wake_source.checked_since(sleep) {
                    // A check has found that the lease was renewed, so another attempt would be in
                    // vain.
                    Some(later) => sleep = later,
                    None => return,
                }
            }
        };
        timeout.limit(reason).await.is_some() && !timeout.is_over()
    }

    /// Makes a lease of a grant: by a request that was sent at this time, and known since this one. From here on,
    /// the lease is responsible for the key.
    pub(super) fn granted(&mut self, grant: Grant, times: (BootInstant, BootInstant)) -> Hold {
        answered(&self.engine, &self.request);
        let doubt = self.unanswered.take();
        let locked = self.locked(doubt);
        self.entries = QueueEntries::default();
        self.leave_to_next();
        if let Some(permit) = &self.permit {
            permit.granted();
        }
        let permit = self.permit.take();
        let hold = Hold::new(locked, &self.request.terms, (grant, times), permit, self.contended);
        self.engine.background().watch(hold.lease());
        hold
    }

    pub(super) fn locked(&self, doubt: Option<Origin>) -> Locked {
        let (key, store) = (Arc::clone(&self.request.key), Arc::clone(&self.request.store));
        let (owner, mode, term) = (self.owner, self.request.mode, self.request.terms.in_store());
        Locked { key, mode, owner, store, doubt, term, queued: !self.entries.is_empty() }
    }
}

impl Drop for Acquisition {
    fn drop(&mut self) {
        if self.unanswered.is_some() && Safeguard::Undo.is_on() {
            let (locked, permit) = (self.locked(self.unanswered), self.permit.take());
            undo(&self.engine, locked, permit);
        } else {
            self.leave_to_next();
        }
    }
}

//! An acquisition: the only task of this process that sends requests to acquire a key.
//!
//! The acquisition has the permit of the key. It makes one attempt, which is usually enough. If a
//! release by this process has woken other processes, the acquisition yields to them first. If the
//! key is busy, the acquisition subscribes to the key's releases, makes another attempt in case it
//! missed a release, and then sleeps until it is woken or the holder's lease must have ended. A
//! remote store checks the keys of its subscribers, and the result of a check counts like an
//! answer. While the subscription is not live, the acquisition makes an attempt once a second.
//! After an attempt without an answer, it makes the next one after a pause with jitter. All of this
//! together takes no longer than the caller's timeout.
//!
//! The undo is armed before a request is sent, and disarmed by a definite answer. Wherever this
//! future is dropped, a key that may have been taken is therefore freed again. All attempts of an
//! acquisition use one owner id, and the store grants a key again to its owner. A lost answer
//! therefore costs one more attempt.

use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Id;

use super::call::{AcquireRequest, PendingCall};
use super::sleep::{Sleep, WakeSource};
use crate::backoff::Backoff;
use crate::clock::BootInstant;
use crate::engine::background::cleanup::{Cleanup, CleanupReason};
use crate::engine::core::Engine;
use crate::engine::fairness::yielding::Yield;
use crate::engine::handoff::{Hold, Permit, QueuePosition};
use crate::engine::lease::Locked;
use crate::engine::local_queue::KeyStatus;
use crate::error::{Holder, LockError};
use crate::runtime::Caller;
use crate::safeguard::Safeguard;
use crate::store::contract::{Acquired, Claim, Grant, Left, Origin, SendTrace, StoreError};
use crate::store::owner::OwnerId;
use crate::sync::time;
use crate::timeout::Timeout;

/// The first and the longest pause after an attempt that the store did not answer.
pub(in crate::engine) const PAUSES: (Duration, Duration) =
    (Duration::from_millis(20), Duration::from_millis(500));

/// One attempt, and its result.
pub(super) struct Attempt {
    pub(super) sent: BootInstant,
    /// The total timeout of the attempt.
    pub(super) within: Duration,
    /// The grant, if the lock was granted and the lease is still valid.
    pub(super) granted: Option<Grant>,
    pub(super) answer: Result<Acquired, StoreError>,
}

pub(super) struct Acquisition {
    engine: Arc<Engine>,
    /// The runtime that sends the requests.
    runtime: Id,
    request: AcquireRequest,
    owner: OwnerId,
    /// Moves into the lease when the lock is granted.
    permit: Option<Permit>,
    /// The origin of the unanswered requests, which may have taken effect, or may still do so.
    unanswered: Option<Origin>,
    /// Whether other processes are known to want the key.
    contended: bool,
    /// Whether the next attempt is the first one.
    first: bool,
}

impl Acquisition {
    pub(super) fn new(call: &PendingCall, permit: Option<Permit>) -> Result<Self, Box<LockError>> {
        let owner = OwnerId::random().map_err(|error| LockError::Unavailable {
            key: Some(call.request.key.as_ref().to_owned()),
            waited: call.timeout.elapsed(),
            cause: format!("the operating system returned no random numbers: {error}"),
        })?;
        Ok(Self {
            engine: Arc::clone(&call.engine),
            runtime: call.runtime,
            owner,
            request: call.request.clone(),
            permit,
            unanswered: None,
            contended: false,
            first: true,
        })
    }

    /// See [`Permit::position`](crate::engine::local_queue::Permit::position).
    pub(super) fn position(&self, number: u64) -> Option<QueuePosition> {
        self.permit.as_ref().map(|permit| permit.position(number))
    }

    /// Acquires the lock. The first attempt is usually enough, unless it has already been made, or
    /// is known to be in vain.
    pub(super) async fn run(
        mut self,
        timeout: Timeout,
        known: Option<KeyStatus>,
        yield_due: Option<Yield>,
        mut first: Option<Attempt>,
    ) -> Result<Hold, Box<LockError>> {
        if known.is_none() && yield_due.is_none() && first.is_none() {
            let attempt = self.attempt(true, &timeout).await;
            if let Some(grant) = attempt.granted {
                return Ok(self.granted(grant, attempt.sent));
            }
            first = Some(attempt);
        }
        // Boxed separately, because this future is large and rarely needed.
        Box::pin(self.contend(timeout, known, yield_due, first)).await.map_err(Box::new)
    }

    /// Makes attempts until the lock is granted or the timeout ends. `known` is the status of the
    /// key that earlier callers in the queue have left; `first` is an attempt of this acquisition.
    async fn contend(
        mut self,
        timeout: Timeout,
        mut known: Option<KeyStatus>,
        yield_due: Option<Yield>,
        mut first: Option<Attempt>,
    ) -> Result<Hold, LockError> {
        let response_timeout = self.engine.config().response_timeout;
        let mut wake_source = WakeSource::default();
        let mut seems_free = true;
        let mut answered = BootInstant::PAST;
        let mut backoff = Backoff::new(PAUSES.0, PAUSES.1);
        if let Some(due) = yield_due {
            self.yield_to_others(due, &timeout, &mut wake_source).await?;
        }
        if let Some(KeyStatus::HeldElsewhere(left, at)) = known {
            // The previous caller got this answer and gave up. The answer counts here as well.
            seems_free = false;
            self.contended = true;
            answered = at;
            wake_source.subscribe_after_attempt(&self.request);
            if !self.sleep(&timeout, &mut wake_source, Sleep::Holder(left, at)).await {
                let status = KeyStatus::HeldElsewhere(left, at);
                return Err(failed(&timeout, &self.engine, &self.request, status));
            }
            self.engine.admit(&self.request.key)?;
        }
        loop {
            let fresh = std::mem::take(&mut seems_free) && self.unanswered.is_none();
            let attempt = match first.take() {
                Some(attempt) => attempt,
                None => self.attempt(fresh, &timeout).await,
            };
            let Attempt { sent, within, granted, answer } = attempt;
            if let Some(grant) = granted {
                if let Some(taken) = wake_source.was_taken(answered) {
                    self.engine.queues().yielded(&self.request.key, taken);
                }
                return Ok(self.granted(grant, sent));
            }
            let now = BootInstant::now();
            let sleep = match answer {
                Ok(Acquired::Granted(_)) => {
                    // Granted, but no time is left in the lease.
                    let term = self.request.terms.term;
                    let cause = format!("the answer took longer than the lease of {term:?}");
                    known = Some(KeyStatus::Unreachable(cause));
                    Sleep::Pause(backoff.pause())
                }
                Ok(Acquired::Busy(left)) => {
                    backoff.reset();
                    answered = now;
                    self.contended = true;
                    known = Some(KeyStatus::HeldElsewhere(left, now));
                    if timeout.is_single_attempt() && left == Left::Unknown {
                        // A second request returns the rest of the holder's lease, and whether the
                        // key holds a lock at all.
                        continue;
                    }
                    wake_source.subscribe(&self.request);
                    Sleep::Holder(left, now)
                }
                // The first request of the single attempt was answered: the lock is busy. Only the
                // details are missing.
                Err(StoreError::Refused(_) | StoreError::Unknown(_))
                    if timeout.is_single_attempt()
                        && matches!(known, Some(KeyStatus::HeldElsewhere(..))) =>
                {
                    Sleep::Pause(Duration::ZERO)
                }
                Err(StoreError::Refused(cause)) => {
                    // If there was no time for a connection, the previous error of the store
                    // counts.
                    if !timeout.is_over() || !matches!(known, Some(KeyStatus::Unreachable(_))) {
                        known = Some(KeyStatus::Unreachable(cause));
                    }
                    Sleep::Pause(backoff.pause())
                }
                Err(StoreError::Unknown(_)) if !Safeguard::UnknownIsNotHeld.is_on() => {
                    let grant = Grant::of(self.request.terms.in_store());
                    return Ok(self.granted(grant, sent));
                }
                Err(StoreError::Unknown(cause)) => {
                    // An attempt that the caller's timeout has cut short does not outweigh a recent
                    // answer, or a previous error of the store.
                    let cut_short = within < response_timeout || timeout.is_over();
                    let last_check = wake_source.last_check();
                    let answered = last_check.map_or(answered, |(_, at)| answered.max(at));
                    let recent =
                        answered >= timeout.began() && now.since(answered) <= response_timeout;
                    let outweighs = recent || matches!(known, Some(KeyStatus::Unreachable(_)));
                    if !cut_short || !outweighs {
                        known = Some(KeyStatus::Unreachable(cause));
                    }
                    Sleep::Pause(backoff.pause())
                }
                Err(StoreError::Denied(cause)) => return Err(LockError::Denied { cause }),
                Err(StoreError::Config { option, problem }) => {
                    return Err(LockError::Config { option, problem });
                }
                Err(StoreError::WrongFormat { key, expected, found }) => {
                    return Err(self.engine.wrong_format(key, expected, found));
                }
            };
            if let (Some(status), Some(permit)) = (&known, &self.permit) {
                permit.set_status(status);
            }
            if timeout.is_single_attempt() || !self.sleep(&timeout, &mut wake_source, sleep).await {
                let status = known.unwrap_or(KeyStatus::Acquiring(BootInstant::PAST));
                return Err(failed(&timeout, &self.engine, &self.request, status));
            }
            self.engine.admit(&self.request.key)?;
        }
    }

    /// Yields to the processes that the last release has woken.
    async fn yield_to_others(
        &mut self,
        due: Yield,
        timeout: &Timeout,
        wake_source: &mut WakeSource,
    ) -> Result<(), LockError> {
        self.contended = true;
        if let Some(permit) = &self.permit {
            permit.set_status(&KeyStatus::Yielded);
        }
        wake_source.yield_to_others(&self.request, due);
        let yielded = async {
            tokio::select! {
                // The order does not matter: no branch takes anything from another one.
                biased;
                () = wake_source.yielded() => {}
                () = self.engine.closing() => {}
            }
        };
        // There is at least one attempt, even if the timeout ends here.
        timeout.limit(yielded).await;
        self.engine.admit(&self.request.key)
    }

    /// The yield to other processes that is due, as far as the timeout leaves time for it.
    pub(super) fn yield_due(&self, timeout: &Timeout) -> Option<Yield> {
        if timeout.is_single_attempt() || !Safeguard::Yielding.is_on() {
            return None;
        }
        let due = self.engine.queues().yield_due(&self.request.key)?;
        let pause = timeout.remaining().map_or(due.pause, |left| due.pause.min(left / 4));
        Some(Yield { pause, ..due })
    }

    /// Sends one request to a store that answers immediately.
    pub(super) fn try_immediately(&mut self, timeout: &Timeout) -> Option<Attempt> {
        let first = std::mem::take(&mut self.first);
        let timeout = timeout.for_request(self.engine.config().response_timeout, first);
        let claim = claim(&self.request, self.owner, true);
        let trace = SendTrace::default();
        let answer = self.request.store.try_acquire(claim, timeout, &trace).known()?;
        Some(self.evaluate(&trace, timeout.total, answer))
    }

    /// Sends one request. If the request is dropped or not answered, its effect is undone later.
    async fn attempt(&mut self, fresh: bool, timeout: &Timeout) -> Attempt {
        if !Safeguard::OneOwnerId.is_on() {
            self.owner = OwnerId::random().unwrap_or(self.owner);
        }
        let (trace, first) = (SendTrace::default(), std::mem::take(&mut self.first));
        let timeout = timeout.for_request(self.engine.config().response_timeout, first);
        let mut pending = PendingRequest {
            trace: &trace,
            runtime: self.runtime,
            unanswered: &mut self.unanswered,
            is_over: false,
        };
        let claim = claim(&self.request, self.owner, fresh);
        let answer = self.request.store.try_acquire(claim, timeout, &trace).await;
        pending.is_over = !answer.as_ref().is_err_and(StoreError::may_have_run);
        drop(pending);
        self.evaluate(&trace, timeout.total, answer)
    }

    fn evaluate(
        &mut self,
        trace: &SendTrace,
        within: Duration,
        answer: Result<Acquired, StoreError>,
    ) -> Attempt {
        let now = BootInstant::now();
        let on = Safeguard::DeadlineFromSending.is_on();
        let sent = trace.sent_at().unwrap_or(BootInstant::PAST);
        let sent = if on { sent } else { now };
        let mut granted = match answer {
            Ok(Acquired::Granted(grant)) => Some(grant),
            _ => None,
        };
        if granted.take_if(|_| now >= self.request.terms.deadline(sent)).is_some() {
            // The answer came after the deadline of the lease, so the key has to be freed.
            let origin = Origin { runtime: self.runtime, connection: None };
            self.unanswered.get_or_insert(origin);
        }
        Attempt { sent, within, granted, answer }
    }

    /// Sleeps until there is a reason for another attempt. False if the timeout ends first.
    async fn sleep(
        &self,
        timeout: &Timeout,
        wake_source: &mut WakeSource,
        mut sleep: Sleep,
    ) -> bool {
        let reason = async {
            loop {
                let pause = sleep.remaining(wake_source.is_live());
                tokio::select! {
                    // The order does not matter: no branch takes anything from another one.
                    biased;
                    () = wake_source.woken() => return,
                    () = self.engine.closing() => return,
                    () = time::sleep(pause) => {}
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

    /// Makes a lease of a grant. From here on, the lease is responsible for the key.
    pub(super) fn granted(mut self, grant: Grant, sent: BootInstant) -> Hold {
        let doubt = self.unanswered.take();
        if let Some(permit) = &self.permit {
            permit.granted();
        }
        let locked = self.locked(doubt);
        let permit = self.permit.take();
        let hold = Hold::new(locked, &self.request.terms, (grant, sent), permit, self.contended);
        self.engine.background().watch(hold.lease());
        hold
    }

    fn locked(&self, doubt: Option<Origin>) -> Locked {
        let (key, store) = (Arc::clone(&self.request.key), Arc::clone(&self.request.store));
        Locked { key, owner: self.owner, store, doubt }
    }
}

impl Drop for Acquisition {
    fn drop(&mut self) {
        if self.unanswered.is_some() && Safeguard::Undo.is_on() {
            self.engine.background().clean_up(Cleanup {
                locked: self.locked(self.unanswered),
                gone_by: BootInstant::now().after(self.request.terms.in_store()),
                // The lock was never granted.
                kept_until: BootInstant::PAST,
                valid_until: BootInstant::PAST,
                confirmed: BootInstant::PAST,
                reason: CleanupReason::Unanswered,
                permit: self.permit.take(),
            });
        }
    }
}

fn claim(request: &AcquireRequest, owner: OwnerId, fresh: bool) -> Claim<'_> {
    let (resource, terms) = (request.resource(), &request.terms);
    let acknowledged_by = terms.acknowledged_by;
    Claim { resource, owner, term: terms.in_store(), fresh, acknowledged_by }
}

/// A request that may be dropped before its answer.
struct PendingRequest<'a> {
    trace: &'a SendTrace,
    runtime: Id,
    unanswered: &'a mut Option<Origin>,
    is_over: bool,
}

impl Drop for PendingRequest<'_> {
    fn drop(&mut self) {
        // A request that was not sent needs no undo.
        let Some(connection) = self.trace.connection().filter(|_| !self.is_over) else { return };
        // An undo is certain to arrive after all requests only if one connection carried them all.
        let connection = match &*self.unanswered {
            None => Some(connection),
            Some(before) => before.connection.filter(|before| *before == connection),
        };
        *self.unanswered = Some(Origin { runtime: self.runtime, connection });
    }
}

/// The error of a call whose timeout has ended, which depends on the status of the key.
pub(super) fn failed(
    timeout: &Timeout,
    engine: &Engine,
    request: &AcquireRequest,
    status: KeyStatus,
) -> LockError {
    let (key, waited) = (request.key.as_ref().to_owned(), timeout.elapsed());
    let status = match (status, request.store.last_check(request.resource())) {
        // The store has checked the key since the last attempt.
        (KeyStatus::HeldElsewhere(_, asked), Some((left, at))) if at > asked => {
            KeyStatus::HeldElsewhere(left, at)
        }
        (status, _) => status,
    };
    let holder = match status {
        KeyStatus::HeldHere(holder) if holder == Caller::here() => Holder::ThisTask,
        KeyStatus::HeldHere(_) => Holder::ThisProcess,
        KeyStatus::HeldElsewhere(Left::Time(left), at) => {
            Holder::Elsewhere(Some(left.saturating_sub(BootInstant::now().since(at))))
        }
        KeyStatus::HeldElsewhere(Left::Unknown, _) | KeyStatus::Yielded => Holder::Elsewhere(None),
        KeyStatus::HeldElsewhere(Left::Forever, _) => Holder::NoExpiry,
        KeyStatus::Acquiring(since) => {
            let asking = BootInstant::now().since(since);
            if asking < engine.config().response_timeout / 4 {
                Holder::ThisProcess
            } else {
                let cause = "the store has not answered yet".to_owned();
                return LockError::Unavailable { key: Some(key), waited, cause };
            }
        }
        KeyStatus::Unreachable(_) if !Safeguard::UnavailableIsNotBusy.is_on() => {
            Holder::Elsewhere(None)
        }
        KeyStatus::Unreachable(cause) => {
            return LockError::Unavailable { key: Some(key), waited, cause };
        }
    };
    LockError::Busy { key, waited, holder }
}

//! Acquiring a lock: from a call to a hold.
//!
//! A call enters the local queue of its key. A call that gets the permit becomes an
//! [`Acquisition`], which sends requests to the store. A call that gets a lock by hand-off only
//! accepts the lock. A caller may stop polling at any point; see [`driven`](super::driven).

mod acquisition;
mod attempt;
mod call;
mod failure;
mod permits;
mod readers;
#[cfg(all(test, not(lock_shuttle)))]
mod scripted_store;
mod sleep;
mod so_far;
#[cfg(all(test, not(lock_shuttle)))]
mod tests;
mod together;

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use tokio::runtime::Handle;

use self::acquisition::Acquisition;
use self::attempt::Attempt;
pub(crate) use self::call::AcquireRequest;
use self::call::PendingCall;
use self::failure::failed;
use self::readers::Readers;
pub(super) use self::so_far::PAUSES;
pub(crate) use self::together::{SetRequest, Together, acquire_together};
use super::core::Engine;
use super::driven::{Boxed, Settled, SharedWork, Work};
use super::handoff::{Handoff, Hold, Offer, Permit, QueuePosition, Waiter};
use super::local_queue::{Entered, KeyStatus, Requeued};
use crate::clock::BootInstant;
use crate::error::LockError;
use crate::maybe_ready::MaybeReady;
use crate::runtime;
use crate::store::contract::Mode;
use crate::telemetry::AcquiredBy;
use crate::timeout::{Timeout, Wait};

/// An acquisition's result. Its error is boxed, because every annotated function's future contains
/// it.
type AcquireResult<T> = MaybeReady<'static, Result<T, Box<LockError>>>;

/// Acquires the lock. `make` turns the hold, and how the call has got it, into the result.
///
/// The call takes a place in the queue, so call this function when the surrounding future is first
/// polled.
///
/// Cancel safe: if the future is dropped, a key that may have been taken is freed again.
pub(crate) fn acquire<T: Send + Unpin + 'static>(
    engine: Arc<Engine>,
    request: AcquireRequest,
    make: fn(Arc<Engine>, Hold, AcquiredBy) -> T,
) -> AcquireResult<T> {
    let error = |error: LockError| MaybeReady::ready(Err(Box::new(error)));
    let here = match runtime::checked() {
        Ok(here) => here,
        Err(missing) => return error(missing),
    };
    if let Err(refused) = engine.admit(&request.key) {
        return error(refused);
    }
    let readers = engine.join_readers(&request, false);
    if let Readers::Joined(hold) = readers {
        return joined(engine, hold, make);
    }
    let differs = matches!(readers, Readers::Differ);
    let is_single_attempt = request.timeout.is_single_attempt();
    let entered = match request.mode {
        // Readers need not wait for the attempt of another one that may be in progress.
        Mode::Read if !is_single_attempt && !differs && request.terms.can_be_shared() => {
            engine.queues().enter_as_reader(&request.key)
        }
        Mode::Write => enter_once_released(is_single_attempt, |once| {
            engine.queues().enter_as_writer(&request.key, once)
        }),
        Mode::Permits(_) => {
            return PendingCall { engine, runtime: here.id(), request }.acquire_permits(here, make);
        }
        Mode::Exclusive if !request.is_fair => {
            enter_once_released(is_single_attempt, |once| engine.queues().enter(&request.key, once))
        }
        _ => engine.queues().enter_alone(&request.key).map_or(Entered::Closed, Entered::Permit),
    };
    PendingCall { engine, runtime: here.id(), request }.enter(entered, here, make)
}

/// What a call gets from a queue. A single attempt waits for the answer to a release of this process, which may be that of its
/// own caller: the key is not known to be busy.
fn enter_once_released(once: bool, enter: impl Fn(bool) -> Entered<Handoff>) -> Entered<Handoff> {
    match enter(once) {
        Entered::Busy(KeyStatus::Releasing(_)) => enter(false),
        entered => entered,
    }
}

impl PendingCall {
    /// Continues with what the call has got from a local queue.
    fn enter<T: Send + Unpin + 'static>(
        self,
        entered: Entered<Handoff>,
        here: Handle,
        make: fn(Arc<Engine>, Hold, AcquiredBy) -> T,
    ) -> AcquireResult<T> {
        let error = |error: LockError| MaybeReady::ready(Err(Box::new(error)));
        match entered {
            Entered::Permit(permit) => self.try_acquire(permit, None, (0, false), here, make),
            Entered::Closed => error(LockError::ShutDown),
            Entered::Offered(offer, number) => self.begin(offer, None, number, here, make),
            // This call has not asked the store. It tells that the store does not answer only if another one waits for long.
            Entered::Busy(KeyStatus::Acquiring(since))
                if BootInstant::now().since(since) < self.engine.config().response_timeout / 2 =>
            {
                error(self.error(KeyStatus::Acquiring(BootInstant::now())))
            }
            Entered::Busy(status) => error(self.error(status)),
            // There may be thousands of waiters, so the future that follows the wait in the queue is
            // boxed separately.
            Entered::Queued(mut waiter) => MaybeReady::pending(async move {
                let turn = self.wait_for_turn(&mut waiter).await?;
                let number = waiter.number();
                drop(waiter);
                match turn {
                    Turn::Offered(offer, known) => {
                        self.begin(offer, known, number, here, make).await
                    }
                    Turn::Joined(hold) => joined(self.engine, hold, make).await,
                }
            }),
        }
    }

    /// Waits in the queue.
    async fn wait_for_turn(&self, waiter: &mut Waiter) -> Result<Turn, Box<LockError>> {
        let joined = || match self.engine.join_readers(&self.request, true) {
            Readers::Joined(hold) => Some(hold),
            Readers::Differ | Readers::None => None,
        };
        let turn = poll_fn(|cx| match Pin::new(&mut *waiter).poll(cx) {
            Poll::Ready(offer) => Poll::Ready(Ok(offer)),
            // Readers are also woken when there is a hold to join.
            Poll::Pending => joined().map_or(Poll::Pending, |hold| Poll::Ready(Err(hold))),
        });
        let mut patience = self.request.timeout;
        if patience.is_single_attempt() {
            // Until the answer to a release.
            patience = Timeout::new(Wait::For(self.engine.config().response_timeout / 2));
        }
        let taken = patience.limit(turn).await;
        let status = || waiter.status();
        match taken {
            Some(Err(hold)) => Ok(Turn::Joined(hold)),
            // A single attempt may use its permit even after its timeout.
            Some(Ok(Some(Offer::Permit(permit))))
                if self.request.timeout.is_single_attempt() || !self.request.timeout.is_over() =>
            {
                Ok(Turn::Offered(Offer::Permit(permit), Some(status())))
            }
            Some(Ok(Some(Offer::Handoff(handoff)))) => {
                Ok(Turn::Offered(Offer::Handoff(handoff), None))
            }
            Some(Ok(None)) => Err(LockError::ShutDown.into()),
            // There is a permit, but no time to use it.
            Some(Ok(Some(Offer::Permit(_)))) | None => Err(self.error(status()).into()),
        }
    }

    /// Continues with an offer.
    fn begin<T: Send + Unpin + 'static>(
        self,
        offer: Offer,
        known: Option<KeyStatus>,
        number: u64,
        here: Handle,
        make: fn(Arc<Engine>, Hold, AcquiredBy) -> T,
    ) -> AcquireResult<T> {
        let handoff = match offer {
            Offer::Permit(permit) => {
                return self.try_acquire(permit, known, (number, true), here, make);
            }
            Offer::Handoff(handoff) => handoff,
        };
        match self.accept(handoff) {
            Ok(Ok(hold)) => MaybeReady::ready(admitted(self.engine, hold, make)),
            Ok(Err(error)) => MaybeReady::ready(Err(error)),
            Err(handoff) => {
                let (position, call) = (handoff.position(number), self.clone());
                self.drive(position, here, Box::pin(call.renew(handoff)), make)
            }
        }
    }

    /// Begins an acquisition with the permit, at place `number` of the queue. `follows` says whether
    /// an earlier call had the permit.
    fn try_acquire<T: Send + Unpin + 'static>(
        self,
        permit: Permit,
        known: Option<KeyStatus>,
        (number, follows): (u64, bool),
        here: Handle,
        make: fn(Arc<Engine>, Hold, AcquiredBy) -> T,
    ) -> AcquireResult<T> {
        if let Readers::Joined(hold) = self.engine.join_readers(&self.request, true) {
            // The next reader in the queue joins as well.
            drop(permit);
            return joined(self.engine, hold, make);
        }
        let mut acquisition = match Acquisition::new(&self, Some(permit), follows) {
            Ok(acquisition) => acquisition,
            Err(error) => return MaybeReady::ready(Err(error)),
        };
        let (yield_due, mut first) = (acquisition.yield_due(&self.request.timeout), None);
        let goes_first = known.is_none() && yield_due.is_none() && acquisition.receiver.is_none();
        if goes_first && self.request.store.is_immediate() {
            first = acquisition.try_immediately(&self.request.timeout);
            if let Some(Attempt { sent, known, granted: Some(grant), .. }) = first {
                let hold = acquisition.granted(grant, (sent, known));
                return MaybeReady::ready(admitted(self.engine, hold, make));
            }
        }
        let position = acquisition.position(number);
        let running = Box::pin(acquisition.run(self.request.timeout, known, yield_due, first));
        self.drive(position, here, running, make)
    }

    /// Makes a future that the notifier thread polls if the caller does not. `running` has the
    /// permit of `position`.
    fn drive<T: Send + Unpin + 'static>(
        self,
        position: Option<QueuePosition>,
        here: Handle,
        running: Boxed<Result<Hold, Box<LockError>>>,
        make: fn(Arc<Engine>, Hold, AcquiredBy) -> T,
    ) -> AcquireResult<T> {
        match position {
            Some(position) => {
                let work = AwaitedCall { call: self, make };
                MaybeReady::Driven(SharedWork::driven(work, position, here, running))
            }
            // Another part of the engine has the permit.
            None => MaybeReady::pending(async move { admitted(self.engine, running.await?, make) }),
        }
    }

    /// Takes a lock that was handed off, without a request. Returns the lock if it does not match
    /// the call.
    fn accept(&self, handoff: Handoff) -> Result<Result<Hold, Box<LockError>>, Handoff> {
        if let Err(refused) = self.engine.admit(&self.request.key) {
            return Ok(Err(refused.into()));
        }
        handoff.accept((&self.request.store, self.request.mode), &self.request.terms).map(Ok)
    }

    /// Renews a lock that was handed off to the terms of the call. If this is not possible, frees
    /// the lock and acquires it anew.
    async fn renew(self, handoff: Handoff) -> Result<Hold, Box<LockError>> {
        let renewing = KeyStatus::Acquiring(handoff.renewing_since());
        let AcquireRequest { store, mode, terms, .. } = &self.request;
        let renewed_or_freed = async {
            let (lease, permit) = match handoff.renew((store, *mode), terms).await {
                Ok(hold) => return Ok(hold),
                Err(refused) => refused,
            };
            if !lease.close() {
                return Err(permit);
            }
            let mut permit = self.engine.free(&lease, permit).await.1;
            permit.iter_mut().for_each(Permit::keep_after_release);
            Err(permit)
        };
        match self.request.timeout.limit(renewed_or_freed).await {
            Some(Ok(hold)) => Ok(hold),
            Some(Err(permit)) => self.ask_store(permit, None).await,
            // Not the current status: the lock has since gone to other callers, or is being freed.
            None => Err(self.error(renewing).into()),
        }
    }

    /// Acquires the lock from the store. `permit` is `None` if another part of the engine has the
    /// permit.
    async fn ask_store(
        &self,
        permit: Option<Permit>,
        known: Option<KeyStatus>,
    ) -> Result<Hold, Box<LockError>> {
        if let Readers::Joined(hold) = self.engine.join_readers(&self.request, true) {
            return Ok(hold);
        }
        let acquisition = Acquisition::new(self, permit, true)?;
        let yield_due = acquisition.yield_due(&self.request.timeout);
        acquisition.run(self.request.timeout, known, yield_due, None).await
    }

    /// The error of this call after its timeout.
    fn error(&self, status: KeyStatus) -> LockError {
        failed(&self.request.timeout, &self.engine, &self.request, status)
    }
}

/// What a call in the queue gets.
enum Turn {
    /// An offer, and the status of the key at that time.
    Offered(Offer, Option<KeyStatus>),
    /// The hold of other readers.
    Joined(Hold),
}

/// A call that has the permit, and that the notifier thread may poll.
struct AwaitedCall<T> {
    call: PendingCall,
    make: fn(Arc<Engine>, Hold, AcquiredBy) -> T,
}

impl<T: Send + Unpin + 'static> AwaitedCall<T> {
    /// The state of a call that is back in the queue.
    fn queued(&self, mut waiter: Waiter) -> Settled<Self> {
        let call = self.call.clone();
        Settled::Queued(Box::pin(async move {
            match call.wait_for_turn(&mut waiter).await.map_err(Err)? {
                Turn::Offered(offer, known) => Ok((offer, known)),
                Turn::Joined(hold) => Err(Ok(hold)),
            }
        }))
    }
}

impl<T: Send + Unpin + 'static> Work for AwaitedCall<T> {
    type Outcome = Result<Hold, Box<LockError>>;
    type Resumed = (Offer, Option<KeyStatus>);
    type Value = Result<T, Box<LockError>>;

    fn finish(&self, outcome: Self::Outcome) -> Self::Value {
        admitted(Arc::clone(&self.call.engine), outcome?, self.make)
    }

    fn settle(&self, outcome: Self::Outcome, position: &QueuePosition) -> Settled<Self> {
        if outcome.is_err() {
            return Settled::Done(outcome);
        }
        // A lock is not kept for a caller that does not poll. The caller is requeued before the
        // lock is offered, so that it keeps its place.
        let requeued = position.requeue();
        // A place that was left behind could be given permits that no call of this process uses.
        drop(position.take_left());
        self.abandon(outcome);
        match requeued {
            Requeued::Queued(waiter) => self.queued(waiter),
            Requeued::Closed => Settled::Done(Err(LockError::ShutDown.into())),
            Requeued::Over => Settled::Done(self.failed("the lock was lost before it was used")),
        }
    }

    fn revoke(&self, position: &QueuePosition) -> Option<Settled<Self>> {
        match position.requeue() {
            Requeued::Queued(waiter) => Some(self.queued(waiter)),
            Requeued::Closed => Some(Settled::Done(Err(LockError::ShutDown.into()))),
            Requeued::Over => None,
        }
    }

    fn longest_delay(&self) -> Duration {
        self.call.request.terms.term / 4
    }

    fn failed(&self, cause: &str) -> Self::Outcome {
        Err(Box::new(LockError::unavailable(
            Some(self.call.request.key.as_ref().to_owned()),
            self.call.request.timeout.elapsed(),
            cause,
        )))
    }

    fn resume(&self, (offer, known): Self::Resumed) -> (u64, Boxed<Self::Outcome>) {
        let call = self.call.clone();
        let grant = offer.grant();
        let running = Box::pin(async move {
            match offer {
                Offer::Permit(permit) => call.ask_store(Some(permit), known).await,
                Offer::Handoff(handoff) => match call.accept(handoff) {
                    Ok(accepted) => accepted,
                    Err(handoff) => call.renew(handoff).await,
                },
            }
        });
        (grant, running)
    }

    fn abandon(&self, outcome: Self::Outcome) {
        if let Ok(hold) = outcome {
            // Nothing has run under the lock, so there is no reason to keep the key.
            hold.keep_no_longer();
            self.call.engine.release_in_background(&hold, true);
        }
    }
}

/// Makes the result, unless the engine is closed. A shutdown that begins after this check ends the
/// lease.
fn admitted<T>(
    engine: Arc<Engine>,
    hold: Hold,
    make: fn(Arc<Engine>, Hold, AcquiredBy) -> T,
) -> Result<T, Box<LockError>> {
    admit(&engine, &hold)?;
    engine.share_with_readers(&hold);
    engine.pass_turn_on(&hold);
    let by = acquired_by(&hold);
    Ok(make(engine, hold, by))
}

/// How a call has got a hold of its own.
fn acquired_by(hold: &Hold) -> AcquiredBy {
    if hold.was_handed_off() { AcquiredBy::Handover } else { AcquiredBy::Store }
}

/// Releases the lock if the engine is closed.
fn admit(engine: &Arc<Engine>, hold: &Hold) -> Result<(), Box<LockError>> {
    let admitted = engine.admit(hold.key());
    if admitted.is_err() {
        // Nothing will run under the lock, so there is no reason to keep the key.
        hold.keep_no_longer();
        engine.release_in_background(hold, true);
    }
    admitted.map_err(Box::new)
}

/// The result of a reader that has joined the hold of others.
fn joined<T: Send + Unpin + 'static>(
    engine: Arc<Engine>,
    hold: Hold,
    make: fn(Arc<Engine>, Hold, AcquiredBy) -> T,
) -> AcquireResult<T> {
    MaybeReady::ready(admit(&engine, &hold).map(|()| make(engine, hold, AcquiredBy::Sharing)))
}

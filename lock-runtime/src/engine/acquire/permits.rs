//! Acquiring permits of a semaphore.
//!
//! Several calls of this process may hold permits at a time, so a call does not wait in the local queue
//! before its first attempt. If that attempt finds too few permits, the call enters the local queue. The
//! first call in that queue has the turn of this process and waits in the queue of the store, where a
//! process has one place at a time. It gets permits from there, or from another call of this process that
//! leaves as many; see [`receivers`](crate::engine::receivers). When its caller has them, the turn goes to
//! the next call. While calls wait in the local queue, later ones enter it at once.

use std::collections::VecDeque;
use std::sync::Arc;

use tokio::runtime::Handle;

use super::AcquireResult;
use super::acquisition::Acquisition;
use super::call::{AcquireRequest, PendingCall};
use crate::engine::core::Engine;
use crate::engine::handoff::{Handoff, Hold, LeftToNext};
use crate::engine::local_queue::{HandedOff, KeyStatus, OthersWait};
use crate::engine::queue_place::QueuePlace;
use crate::engine::receivers::Receiver;
use crate::error::LockError;
use crate::maybe_ready::MaybeReady;
use crate::store::contract::Mode;
use crate::telemetry::AcquiredBy;
use crate::timeout::{Timeout, Wait};

impl PendingCall {
    /// Makes an attempt at once, unless calls of this process wait already. If that is in vain, the call
    /// waits behind them.
    pub(super) fn acquire_permits<T: Send + Unpin + 'static>(
        self,
        here: Handle,
        make: fn(Arc<Engine>, Hold, AcquiredBy) -> T,
    ) -> AcquireResult<T> {
        let (key, queues) = (&self.request.key, self.engine.queues());
        let is_single_attempt = self.request.timeout.is_single_attempt();
        let alone = match queues.enter_for_first_attempt(key, is_single_attempt) {
            Ok(alone) => alone,
            Err(OthersWait::Yes) => return self.wait_for_permits(here, make),
            Err(OthersWait::Closed) => return MaybeReady::ready(Err(LockError::ShutDown.into())),
        };
        if is_single_attempt {
            return self.try_acquire(alone, None, (0, false), here, make);
        }
        let mut once = self.clone();
        once.request.timeout = Timeout::new(Wait::ONCE);
        let attempt = once.try_acquire(alone, None, (0, false), here.clone(), make);
        match attempt {
            MaybeReady::Ready(Some(Err(error))) if self.goes_on_after(&error) => {
                self.wait_for_permits(here, make)
            }
            ready @ MaybeReady::Ready(_) => ready,
            attempt => MaybeReady::pending(async move {
                match self.request.timeout.limit_first(attempt).await {
                    Some(Err(error)) if self.goes_on_after(&error) => {
                        self.wait_for_permits(here, make).await
                    }
                    Some(outcome) => outcome,
                    None => {
                        let cause = "the store has not answered yet".to_owned();
                        Err(self.error(KeyStatus::Unreachable(cause)).into())
                    }
                }
            }),
        }
    }

    /// Whether the call goes on although its first attempt has failed like this.
    fn goes_on_after(&self, error: &LockError) -> bool {
        let can_wait = matches!(error, LockError::Busy { .. } | LockError::Unavailable { .. });
        can_wait && !self.request.timeout.is_over()
    }

    /// Waits behind the other calls of this process.
    fn wait_for_permits<T: Send + Unpin + 'static>(
        self,
        here: Handle,
        make: fn(Arc<Engine>, Hold, AcquiredBy) -> T,
    ) -> AcquireResult<T> {
        let entered = self.engine.queues().enter_for_permits(&self.request.key);
        self.enter(entered, here, make)
    }
}

impl Acquisition {
    /// Lets the call take over permits from now on, if it has the turn. Returns them if there are some.
    pub(super) fn receive(&mut self) -> Option<Hold> {
        if self.receiver.is_none() {
            self.receive_from_now_on(VecDeque::new());
        }
        self.take_over()
    }

    /// The same, with those that the call before was `offered`.
    pub(super) fn receive_from_now_on(&mut self, offered: VecDeque<Handoff>) {
        let AcquireRequest { key, mode, store, terms, .. } = &self.request;
        let has_turn = self.permit.as_ref().is_some_and(|permit| !permit.is_alone());
        if has_turn && matches!(mode, Mode::Permits(_)) && terms.renewed && terms.min_hold.is_zero()
        {
            let receivers = self.engine.receivers();
            self.receiver = Some(receivers.register(key, (store, *mode), terms, offered));
        }
    }

    /// Takes over permits that another call of this process has left. The turn goes along with the hold,
    /// until its caller has it.
    pub(super) fn take_over(&mut self) -> Option<Hold> {
        let kind = (&self.request.store, self.request.mode);
        let hold = loop {
            match self.receiver.as_ref()?.take()?.accept(kind, &self.request.terms) {
                Ok(hold) => break hold,
                // Its lease has changed or ended meanwhile.
                Err(handoff) => handoff.decline(),
            }
        };
        self.leave_to_next();
        if let Some(turn) = self.permit.take() {
            drop(hold.replace_permit(turn));
        }
        Some(hold)
    }

    /// Leaves the place in the queue of the store, unless a request is unanswered, and the permits that the
    /// call was offered to the call of this process that has the turn next. If there is none, gives them up.
    pub(super) fn leave_to_next(&mut self) {
        let permits = self.receiver.take().map(Receiver::into_offered).unwrap_or_default();
        let has_place = !self.entries.is_empty() && self.unanswered.is_none();
        let subscription = has_place.then(|| self.wake_source.take_subscription()).flatten();
        let place = subscription.map(|subscription| {
            let (keeper, locked) = (Arc::clone(&self.engine), self.locked(None));
            let entries = std::mem::take(&mut self.entries);
            QueuePlace::new(keeper, locked, entries, subscription)
        });
        if place.is_none() && permits.is_empty() {
            return;
        }
        let left = Box::new(LeftToNext { place, permits });
        match &self.permit {
            Some(permit) => drop(permit.leave_to_next(left)),
            None => drop(left),
        }
    }
}

impl Engine {
    /// Gives the turn to the next call, because the caller of this one has its permits now.
    pub(super) fn pass_turn_on(&self, hold: &Hold) {
        let has_turn = matches!(hold.lease().locked().mode, Mode::Permits(_))
            && hold.has_permit(|permit| !permit.is_alone());
        if has_turn && let Some(alone) = self.queues().enter_alone(hold.key()) {
            alone.granted();
            drop(hold.replace_permit(alone));
        }
    }
}

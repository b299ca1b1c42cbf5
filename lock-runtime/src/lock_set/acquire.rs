//! Acquiring all locks of a set, or none of them.
//!
//! 1. All at once. If a key is busy:
//! 2. Wait for this key alone, and take all others at once. If one of them is busy, give the first key
//!    back, and continue with that one. A call that waits holds no lock, so it blocks nobody.
//! 3. After [`ATTEMPTS`] failures, or a quarter of the wait: one after the other, in sorted order. A
//!    call that waits holds only locks whose keys sort before the one that it waits for, so there is no
//!    cycle of calls. Step 2 alone would starve a call whose keys are often busy, and step 3 alone makes
//!    chains of calls that wait.
//!
//! The locks are provisional until the call has all of them: they are renewed, whatever its terms, and
//! they are lost if the call does not continue, as on a runtime that is blocked. If the call fails,
//! they are freed at once, whatever its `min_hold` and `linger`. In the end, they get their terms
//! ([`Engine::settle`], [`Engine::claim`]).

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use crate::backoff::Backoff;
use crate::clock::BootInstant;
use crate::engine::acquire::{self, AcquireRequest, SetRequest, Together};
use crate::engine::handoff::Hold;
use crate::engine::{Engine, PermitHolder};
use crate::error::LockError;
use crate::guard::LockGuard;
use crate::holder::{Holder, HolderKind};
use crate::store::contract::Mode;
use crate::sync::{Mutex, lock, time};
use crate::telemetry::AcquiredBy;
use crate::timeout::{Timeout, Wait};

/// The attempts that wait for one key only.
const ATTEMPTS: u32 = 3;
/// The first and the longest pause after a request without an answer.
const PAUSES: (Duration, Duration) = (Duration::from_millis(20), Duration::from_millis(500));

/// A call that acquires the locks of several keys.
pub(super) struct SetCall {
    engine: Arc<Engine>,
    request: SetRequest,
    timeout: Timeout,
    /// The provisional holds.
    provisional: Mutex<Vec<Hold>>,
}

/// Locks of a call that it has acquired. They are freed in the reverse order, and no key stays taken,
/// because nothing has run under the locks.
#[derive(Default)]
pub(super) struct Collected(Vec<LockGuard>);

impl Collected {
    pub(super) fn new(guards: Vec<LockGuard>) -> Self {
        Self(guards)
    }

    /// The locks, for the caller.
    pub(super) fn take(&mut self) -> Vec<LockGuard> {
        std::mem::take(&mut self.0)
    }
}

impl Drop for Collected {
    fn drop(&mut self) {
        while let Some(guard) = self.0.pop() {
            guard.hold().keep_no_longer();
        }
    }
}

/// All locks of a call, which are still provisional.
pub(super) struct Provisional {
    guards: Collected,
    /// When their terms begin; `None` if that is when they were granted.
    since: Option<BootInstant>,
}

/// Whoever has a part in the call's permits, if its caller's runtime does not run.
pub(super) type Overseer = Option<Arc<dyn PermitHolder>>;

impl SetCall {
    pub(super) fn new(engine: Arc<Engine>, request: SetRequest, timeout: Timeout) -> Self {
        Self { engine, request, timeout, provisional: Mutex::new(Vec::new()) }
    }

    pub(super) fn timeout(&self) -> &Timeout {
        &self.timeout
    }

    /// The first key.
    pub(super) fn key(&self) -> Option<String> {
        self.request.keys.first().map(|key| (**key).to_owned())
    }

    pub(super) fn engine(&self) -> &Engine {
        &self.engine
    }

    pub(super) fn is_immediate(&self) -> bool {
        self.request.store.is_immediate()
    }

    /// The length of one lease.
    pub(super) fn term(&self) -> Duration {
        self.request.terms.term
    }

    /// Acquires all locks with one request for each slot, if all keys are free.
    pub(super) async fn acquire_at_once(&self) -> Option<Vec<LockGuard>> {
        let Together::Granted(guards, is_handed_off) = self.together(None, None).await else {
            return None;
        };
        let provisional = self.complete(Collected(guards), !is_handed_off).await.ok()??;
        self.claim(provisional)
    }

    /// Acquires all locks, and keeps those that it has while it waits for others.
    pub(super) async fn acquire(&self, overseer: Overseer) -> Result<Provisional, Box<LockError>> {
        let acquired = tokio::select! {
            // The order does not matter: the second branch never ends.
            biased;
            acquired = self.acquire_all(overseer) => acquired,
            never = self.keep_provisional() => match never {},
        };
        lock(&self.provisional).clear();
        acquired
    }

    /// Gives the locks their terms; `None` if one of them was lost. Call it for the caller.
    pub(super) fn claim(
        &self,
        Provisional { mut guards, since }: Provisional,
    ) -> Option<Vec<LockGuard>> {
        let claim = |guard: &LockGuard| self.engine.claim(guard.hold(), &self.request.terms, since);
        guards.0.iter().all(claim).then(|| guards.take())
    }

    async fn acquire_all(&self, overseer: Overseer) -> Result<Provisional, Box<LockError>> {
        loop {
            lock(&self.provisional).clear();
            let (guards, at_once) = self.collect(overseer.clone()).await?;
            if let Some(provisional) = self.complete(guards, at_once).await? {
                return Ok(provisional);
            }
            if self.timeout.is_over() {
                let cause = "a lock was lost before the call had all of them";
                return Err(Box::new(self.unavailable(0, cause)));
            }
        }
    }

    /// Lets the provisional holds continue for as long as this future is polled.
    async fn keep_provisional(&self) -> Infallible {
        let term = self.term();
        loop {
            time::sleep(term / 3).await;
            let until = BootInstant::now().after(term);
            for hold in lock(&self.provisional).iter() {
                self.engine.keep_provisional(hold, until);
            }
        }
    }

    /// Acquires all locks. Returns whether they were granted at once, in one step of the store.
    async fn collect(&self, overseer: Overseer) -> Result<(Collected, bool), Box<LockError>> {
        let is_single = self.timeout.is_single_attempt();
        let mut busy = match self.together(None, overseer.clone()).await {
            Together::Granted(guards, is_handed_off) => {
                return Ok((Collected(guards), !is_handed_off && self.is_one_slot()));
            }
            Together::Busy(index) => Some(index),
            Together::Unknown(Some(error @ LockError::Unavailable { .. })) if is_single => {
                return Err(Box::new(error));
            }
            Together::Unknown(_) => None,
        };
        let mut attempts = 0;
        while let Some(index) =
            busy.filter(|_| attempts < ATTEMPTS && (is_single || !self.is_urgent()))
        {
            attempts += 1;
            let first = self.one(index).await?;
            busy = match self.together(Some(index), overseer.clone()).await {
                Together::Granted(mut guards, _) => {
                    guards.insert(index.min(guards.len()), first);
                    return Ok((Collected(guards), false));
                }
                Together::Busy(other) => Some(other),
                Together::Unknown(_) => None,
            };
        }
        match busy {
            // A single attempt does not take the other keys for nothing.
            Some(index) if is_single => {
                let (key, waited) = (self.request.keys[index].as_ref(), self.timeout.elapsed());
                let (key, holder) = (key.to_owned(), Holder::new(HolderKind::Elsewhere));
                Err(Box::new(LockError::busy(key, waited, holder)))
            }
            _ => Ok((self.in_order().await?, false)),
        }
    }

    /// Whether a quarter of the wait is over.
    fn is_urgent(&self) -> bool {
        let (elapsed, left) = (self.timeout.elapsed(), self.timeout.remaining());
        left.is_some_and(|left| elapsed > left / 3)
    }

    /// Whether all keys are in one slot.
    fn is_one_slot(&self) -> bool {
        let store = &self.request.store;
        let mut slots = self.request.keys.iter().map(|key| store.slot(key));
        let first = slots.next();
        slots.all(|slot| Some(slot) == first)
    }

    async fn together(&self, without: Option<usize>, overseer: Overseer) -> Together<LockGuard> {
        if !self.request.terms.acknowledged_by.is_none() {
            return Together::Unknown(None);
        }
        let Self { engine, request, timeout, .. } = self;
        let acquired =
            acquire::acquire_together(engine, (request, without), (timeout, overseer), guard).await;
        if let Together::Granted(guards, _) = &acquired {
            lock(&self.provisional).extend(guards.iter().map(|guard| guard.hold().clone()));
        }
        acquired
    }

    /// Acquires the locks one after the other.
    async fn in_order(&self) -> Result<Collected, Box<LockError>> {
        let mut guards = Collected::default();
        for index in 0..self.request.keys.len() {
            guards.0.push(self.one(index).await?);
        }
        Ok(guards)
    }

    /// Acquires one lock.
    async fn one(&self, index: usize) -> Result<LockGuard, Box<LockError>> {
        let wait = match self.timeout.remaining() {
            None => Wait::Forever,
            Some(_) if self.timeout.is_single_attempt() => Wait::For(Duration::ZERO),
            Some(left) if left.is_zero() => {
                let cause = "the wait ended before the locks of all keys were requested";
                return Err(Box::new(self.unavailable(index, cause)));
            }
            Some(left) => Wait::For(left),
        };
        let SetRequest { keys, store, .. } = &self.request;
        let (key, store) = (Arc::clone(&keys[index]), Arc::clone(store));
        let terms = self.request.provisional_terms();
        let (mode, timeout) = (Mode::Exclusive, Timeout::new(wait));
        let request = AcquireRequest { key, mode, store, timeout, terms, is_fair: false };
        let acquired = acquire::acquire(Arc::clone(&self.engine), request, guard).await;
        if let Ok(guard) = &acquired {
            lock(&self.provisional).push(guard.hold().clone());
        }
        acquired.map_err(|error| Box::new(self.in_total(*error)))
    }

    /// Sets the leases of all locks to the terms, as far as that takes a request. `None` if one of them
    /// was lost.
    async fn complete(
        &self,
        guards: Collected,
        at_once: bool,
    ) -> Result<Option<Provisional>, Box<LockError>> {
        let terms = &self.request.terms;
        if terms.min_hold.is_zero() && (terms.renewed || at_once) {
            let since = (!at_once).then(BootInstant::now);
            return Ok(Some(Provisional { guards, since }));
        }
        let holds: Vec<Hold> = guards.0.iter().map(|guard| guard.hold().clone()).collect();
        let mut backoff = Backoff::new(PAUSES.0, PAUSES.1);
        loop {
            match self.timeout.limit_first(self.engine.settle(&holds, terms)).await {
                Some(Ok(())) => return Ok(Some(Provisional { guards, since: None })),
                Some(Err(LockError::Lost { .. })) => return Ok(None),
                Some(Err(error @ LockError::Unavailable { .. })) => {
                    let pause = backoff.pause();
                    if self.timeout.is_single_attempt() || self.timeout.ends_within(pause) {
                        return Err(Box::new(self.in_total(error)));
                    }
                    time::sleep(pause).await;
                }
                Some(Err(error)) => return Err(Box::new(error)),
                None => {
                    let cause = "the store has not answered yet";
                    return Err(Box::new(self.unavailable(0, cause)));
                }
            }
        }
    }

    fn unavailable(&self, index: usize, cause: &str) -> LockError {
        let key = self.request.keys.get(index).map(|key| (**key).to_owned());
        let waited = self.timeout.elapsed();
        LockError::unavailable(key, waited, cause)
    }

    /// The error with the time that the whole call took.
    fn in_total(&self, mut error: LockError) -> LockError {
        if let LockError::Busy { waited, .. } | LockError::Unavailable { waited, .. } = &mut error {
            *waited = self.timeout.elapsed();
        }
        error
    }
}

fn guard(engine: Arc<Engine>, hold: Hold, by: AcquiredBy) -> LockGuard {
    LockGuard::new(engine, hold, by)
}

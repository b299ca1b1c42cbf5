//! Acquiring all locks of a set, or none of them.
//!
//! 1. All at once. If a key is busy:
//! 2. Wait for this key alone, and take all others at once. If one of them is busy, give the first key
//!    back, and continue with that one. A call waits with nothing in its hands, so it blocks nobody.
//! 3. After [`ATTEMPTS`] failures, or a quarter of the wait: one after the other, in sorted order. A
//!    call waits with lesser keys in its hands only, so there is no cycle of calls. Step 2 alone would
//!    pass over a call whose keys are often busy, and step 3 alone makes chains of calls that wait.
//!
//! While a call of step 3 collects the locks, they are renewed, whatever the terms say. When it has
//! all, they get their terms ([`Engine::settle`]).

use std::sync::Arc;
use std::time::Duration;

use crate::engine::Engine;
use crate::engine::acquire::{self, AcquireRequest, SetRequest, Together};
use crate::engine::handoff::Hold;
use crate::engine::lease::Terms;
use crate::error::LockError;
use crate::guard::LockGuard;
use crate::safeguard::Safeguard;
use crate::timeout::{Timeout, Wait};

/// The attempts that wait for one key only.
const ATTEMPTS: u32 = 3;

/// A call that acquires the locks of several keys.
pub(super) struct SetCall {
    pub(super) engine: Arc<Engine>,
    pub(super) request: SetRequest,
    pub(super) timeout: Timeout,
}

impl SetCall {
    /// Acquires all locks with one request for each slot, if all keys are free.
    pub(super) async fn acquire_at_once(&self) -> Option<Vec<LockGuard>> {
        match self.together(None).await {
            Together::Granted(guards) => Some(guards),
            Together::Busy(_) | Together::Unknown => None,
        }
    }

    /// Acquires all locks.
    pub(super) async fn acquire(&self) -> Result<Vec<LockGuard>, Box<LockError>> {
        let mut busy = match self.together(None).await {
            Together::Granted(guards) => return Ok(guards),
            Together::Busy(index) => Some(index),
            Together::Unknown => None,
        };
        let mut attempts = 0;
        while let Some(index) = busy.filter(|_| attempts < ATTEMPTS && !self.is_urgent()) {
            attempts += 1;
            let first = self.one(index, &self.request.terms).await?;
            busy = match self.together(Some(index)).await {
                Together::Granted(mut guards) => {
                    guards.insert(index.min(guards.len()), first);
                    return Ok(guards);
                }
                Together::Busy(other) => Some(other),
                Together::Unknown => None,
            };
        }
        self.in_order().await
    }

    /// Whether a quarter of the wait is over.
    fn is_urgent(&self) -> bool {
        let (elapsed, left) = (self.timeout.elapsed(), self.timeout.remaining());
        left.is_some_and(|left| elapsed > left / 3)
    }

    async fn together(&self, without: Option<usize>) -> Together<LockGuard> {
        if !self.request.terms.acknowledged_by.is_none() {
            return Together::Unknown;
        }
        let Self { engine, request, timeout } = self;
        acquire::acquire_together(engine, request, without, timeout, guard).await
    }

    /// Acquires the locks one after the other.
    async fn in_order(&self) -> Result<Vec<LockGuard>, Box<LockError>> {
        let terms = self.request.terms;
        let no_time = Duration::ZERO;
        let collecting =
            Terms { renewed: true, max_hold: None, min_hold: no_time, linger: no_time, ..terms };
        let is_plain = terms.renewed && terms.max_hold.is_none() && terms.min_hold.is_zero();
        loop {
            let mut guards = Vec::with_capacity(self.request.keys.len());
            for index in self.order() {
                let terms = if is_plain { &terms } else { &collecting };
                guards.push(self.one(index, terms).await?);
            }
            let holds: Vec<&Hold> = guards.iter().map(LockGuard::hold).collect();
            let settled = if is_plain {
                holds.iter().find_map(|hold| hold.loss()).map_or(Ok(()), Err)
            } else {
                self.engine.settle(&holds, &terms).await
            };
            match settled {
                Ok(()) => return Ok(guards),
                Err(LockError::Lost { .. }) if !self.timeout.is_over() => {}
                Err(error) => return Err(Box::new(self.in_total(error))),
            }
        }
    }

    /// The indexes of the keys in the order in which they are taken.
    fn order(&self) -> Vec<usize> {
        let mut order: Vec<usize> = (0..self.request.keys.len()).collect();
        if !Safeguard::SetsAreSorted.is_on() {
            fastrand::shuffle(&mut order);
        }
        order
    }

    /// Acquires one lock.
    async fn one(&self, index: usize, terms: &Terms) -> Result<LockGuard, Box<LockError>> {
        let wait = match self.timeout.remaining() {
            None => Wait::Forever,
            Some(_) if self.timeout.is_single_attempt() => Wait::For(Duration::ZERO),
            Some(left) => Wait::For(left),
        };
        let SetRequest { keys, store, .. } = &self.request;
        let (key, store) = (Arc::clone(&keys[index]), Arc::clone(store));
        let request = AcquireRequest { key, store, wait, terms: *terms };
        let acquired = acquire::acquire(Arc::clone(&self.engine), request, guard).await;
        acquired.map_err(|error| Box::new(self.in_total(*error)))
    }

    /// The error with the time that the whole call took.
    fn in_total(&self, mut error: LockError) -> LockError {
        if let LockError::Busy { waited, .. } | LockError::Unavailable { waited, .. } = &mut error {
            *waited = self.timeout.elapsed();
        }
        error
    }
}

fn guard(engine: Arc<Engine>, hold: Hold) -> LockGuard {
    LockGuard::new(engine, hold, false)
}

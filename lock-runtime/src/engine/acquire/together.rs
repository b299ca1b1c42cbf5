//! Taking several locks at once: one request for all keys of a slot, and none of them if one is busy.
//!
//! The attempt takes the permits of all keys without waiting for one, and then sends its requests,
//! one slot after the other. Whatever was taken is freed wherever the attempt ends before the last
//! answer.

use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Id;

use super::attempt::{Attempt, PendingRequest, may_repeat, undo};
use crate::engine::core::Engine;
use crate::engine::handoff::{Hold, Offer, Permit};
use crate::engine::lease::{Locked, Terms};
use crate::engine::local_queue::{Entered, PermitHolder};
use crate::error::LockError;
use crate::runtime;
use crate::safeguard::Safeguard;
use crate::store::contract::{
    Acquired, Extension, Grant, LockStore, Mode, Origin, SendTrace, SetAcquired, SetClaim, Slot,
    StoreError,
};
use crate::store::owner::OwnerId;
use crate::telemetry::{AcquiredBy, SiteMetrics};
use crate::timeout::{RequestTimeout, Timeout};

/// The locks of one call, in the order of their keys.
pub(crate) struct SetRequest {
    /// The checked keys, including the namespace, sorted and without duplicates.
    pub(crate) keys: Vec<Arc<str>>,
    pub(crate) store: Arc<dyn LockStore>,
    /// The checked terms.
    pub(crate) terms: Terms,
}

impl SetRequest {
    /// The terms of each lock until the call has all of them; see [`Engine::settle`]. The holds are measured
    /// from then on.
    pub(crate) fn provisional_terms(&self) -> Terms {
        /// Nobody reads it.
        static UNREAD: SiteMetrics = SiteMetrics::new();
        let (max_hold, none) = (Some(self.terms.term), Duration::ZERO);
        let site = &UNREAD;
        Terms { renewed: true, max_hold, min_hold: none, linger: none, site, ..self.terms }
    }
}

/// The result of an attempt.
pub(crate) enum Together<T> {
    /// The locks in the order of their keys, and whether one of them was handed off within the process,
    /// so that its lease has begun before.
    Granted(Vec<T>, bool),
    /// The key with this index is busy, in this process or elsewhere. Nothing was taken.
    Busy(usize),
    /// There was no definite answer, for this reason, or these locks cannot be taken at once. What may
    /// have been taken is freed.
    Unknown(Option<LockError>),
}

/// Makes one attempt to take all locks of `request`, except the one with the index `without`. The locks
/// are provisional. `make` turns a hold into a value that releases the lock when it is dropped. If the
/// caller's runtime does not run, `holder` can drop the future.
///
/// Cancel safe, like [`acquire`](super::acquire).
pub(crate) async fn acquire_together<T>(
    engine: &Arc<Engine>,
    (request, without): (&SetRequest, Option<usize>),
    (timeout, holder): (&Timeout, Option<Arc<dyn PermitHolder>>),
    make: fn(Arc<Engine>, Hold, AcquiredBy) -> T,
) -> Together<T> {
    let unknown = || Together::Unknown(None);
    let (Ok(here), Ok(owner)) = (runtime::here(), OwnerId::new()) else { return unknown() };
    if !request.store.has(Extension::SeveralKeys) {
        return unknown();
    }
    let terms = request.provisional_terms();
    let mut taken: Vec<(usize, T)> = Vec::with_capacity(request.keys.len());
    let mut slots: Vec<PendingClaim<'_>> = Vec::new();
    for (index, key) in request.keys.iter().enumerate().filter(|(at, _)| Some(*at) != without) {
        let slot = request.store.slot(key);
        if engine.admit(key).is_err() {
            return unknown();
        }
        let permit = match engine.queues().enter(key, true) {
            Entered::Permit(permit) | Entered::Offered(Offer::Permit(permit), _) => permit,
            Entered::Offered(Offer::Handoff(handoff), _) => {
                match handoff.accept((&request.store, Mode::Exclusive), &terms) {
                    Ok(hold) => {
                        taken.push((index, make(Arc::clone(engine), hold, AcquiredBy::Handover)));
                    }
                    // It has to be renewed first.
                    Err(_) => return Together::Busy(index),
                }
                continue;
            }
            Entered::Busy(_) => return Together::Busy(index),
            Entered::Queued(_) | Entered::Closed => return unknown(),
        };
        if let Some(holder) = &holder {
            permit.position(0).register(Arc::clone(holder));
        }
        let lock = ClaimedLock { index, key, permit: Some(permit) };
        match slots.iter_mut().find(|claim| claim.slot == slot) {
            Some(claim) => claim.locks.push(lock),
            None => slots.push(PendingClaim {
                engine,
                store: &request.store,
                terms,
                owner,
                runtime: here.id(),
                slot,
                locks: vec![lock],
                unanswered: None,
            }),
        }
    }
    let is_handed_off = !taken.is_empty();
    for claim in slots {
        match claim.acquire(timeout).await {
            SlotAnswer::Granted(holds) => {
                let by = AcquiredBy::Store;
                let make = |(index, hold)| (index, make(Arc::clone(engine), hold, by));
                taken.extend(holds.into_iter().map(make));
            }
            SlotAnswer::Busy(index) => return Together::Busy(index),
            SlotAnswer::Unknown(error) => return Together::Unknown(error),
        }
    }
    // A shutdown that begins after this check ends the leases.
    if request.keys.iter().any(|key| engine.admit(key).is_err()) {
        return unknown();
    }
    taken.sort_unstable_by_key(|(index, _)| *index);
    Together::Granted(taken.into_iter().map(|(_, taken)| taken).collect(), is_handed_off)
}

/// One lock of a claim.
struct ClaimedLock<'a> {
    /// The index of its key.
    index: usize,
    key: &'a Arc<str>,
    permit: Option<Permit>,
}

/// The claim to all keys of one slot.
struct PendingClaim<'a> {
    engine: &'a Arc<Engine>,
    store: &'a Arc<dyn LockStore>,
    terms: Terms,
    owner: OwnerId,
    /// The runtime that sends the request.
    runtime: Id,
    slot: Slot,
    locks: Vec<ClaimedLock<'a>>,
    /// The origin of the request while there is no definite answer. The claim is then undone when it
    /// is dropped.
    unanswered: Option<Origin>,
}

/// The answer to a claim.
enum SlotAnswer {
    /// The holds, with the indexes of their keys.
    Granted(Vec<(usize, Hold)>),
    /// The key with this index is busy.
    Busy(usize),
    Unknown(Option<LockError>),
}

impl PendingClaim<'_> {
    async fn acquire(mut self, timeout: &Timeout) -> SlotAnswer {
        let mut trace = SendTrace::default();
        let response_timeout = self.engine.config().response_timeout;
        let mut request = timeout.for_request(response_timeout, true);
        let mut answer = self.ask(request, &trace).await;
        // As for a single lock, the next request has another connection.
        let is_unanswered = matches!(answer, Err(StoreError::Unknown(_)));
        if is_unanswered && may_repeat(timeout, response_timeout) {
            trace = SendTrace::default();
            request = timeout.for_request(response_timeout, false);
            answer = self.ask(request, &trace).await;
        }
        let terms = self.terms;
        let grant = match answer {
            Ok(SetAcquired::Granted) => Grant::of(terms.in_store()),
            Ok(SetAcquired::Busy(at)) => {
                let lock = self.locks.get(at);
                return lock.map_or(SlotAnswer::Unknown(None), |lock| SlotAnswer::Busy(lock.index));
            }
            Err(error) => {
                let key = self.locks.first().map_or("", |lock| &**lock.key);
                return SlotAnswer::Unknown(Some(error.about(key)));
            }
        };
        let attempt = Attempt::new(&trace, request.total, Ok(Acquired::Granted(grant)), &terms);
        let Some(grant) = attempt.granted else {
            // Too late for this lease, so the keys have to be freed.
            self.unanswered = Some(Origin { runtime: self.runtime, connection: None });
            return SlotAnswer::Unknown(None);
        };
        let mut holds = Vec::with_capacity(self.locks.len());
        for lock in std::mem::take(&mut self.locks) {
            let locked = self.locked(lock.key);
            if let Some(permit) = &lock.permit {
                permit.granted();
            }
            let hold = Hold::new(
                locked,
                &terms,
                (grant, (attempt.sent, attempt.known)),
                lock.permit,
                false,
            );
            self.engine.background().watch(hold.lease());
            holds.push((lock.index, hold));
        }
        SlotAnswer::Granted(holds)
    }

    /// Sends one request.
    async fn ask(
        &mut self,
        timeout: RequestTimeout,
        trace: &SendTrace,
    ) -> Result<SetAcquired, StoreError> {
        let mut pending = PendingRequest {
            trace,
            runtime: self.runtime,
            unanswered: &mut self.unanswered,
            is_over: false,
        };
        let keys: Vec<&str> = self.locks.iter().map(|lock| &**lock.key).collect();
        let claim = SetClaim { keys: &keys, owner: self.owner, term: self.terms.in_store() };
        let answer = self.store.try_acquire_all(claim, timeout, trace).await;
        pending.is_over = !answer.as_ref().is_err_and(StoreError::may_have_run);
        answer
    }

    fn locked(&self, key: &Arc<str>) -> Locked {
        let (store, term) = (Arc::clone(self.store), self.terms.in_store());
        let (doubt, owner) = (self.unanswered, self.owner);
        let (key, mode) = (Arc::clone(key), Mode::Exclusive);
        Locked { key, mode, owner, store, doubt, term, queued: false }
    }
}

impl Drop for PendingClaim<'_> {
    fn drop(&mut self) {
        if self.unanswered.is_none() || !Safeguard::Undo.is_on() {
            return;
        }
        for mut lock in std::mem::take(&mut self.locks) {
            undo(self.engine, self.locked(lock.key), lock.permit.take());
        }
    }
}

//! Handing a lock off from its holder to the next task of this process, without the store.
//!
//! The lease stays in the store unchanged, and the background thread continues to renew it. Only
//! the hold is new. Between the two holds, the lock is a [`Handoff`], which is on offer to the
//! waiters. Wherever a [`Handoff`] is dropped, the lock is offered again, or the key is freed if no
//! waiter is left. A waiter that gives up between the offer and the next hold therefore blocks no
//! other waiter.
//!
//! A waiter with the same terms as the previous holder takes the lease unchanged. A waiter with
//! other terms renews the lease first. If the key would then last longer than the terms of the
//! waiter allow, or if the lease is in another layout, the lease is released and acquired anew.
//!
//! `lease/state/ending.rs` decides whether a lock is handed off when its hold ends.
//!
//! Keeps the promises that nothing leaks, and that a guard acts on its own hold only: each grant is
//! a separate hold, and the guards of the previous hold have ended.

use std::collections::VecDeque;
use std::sync::Arc;

use super::lease::{self, Terms};
use super::local_queue::{self, HandedOff, KeyStatus};
use super::queue_place::QueuePlace;
use crate::clock::BootInstant;
use crate::safeguard::Safeguard;
use crate::store::contract::{Lane, LockStore, Mode, Renewal, Renewed, is_same};

pub(crate) type LocalQueues = local_queue::LocalQueues<Handoff>;
pub(crate) type Permit = local_queue::Permit<Handoff>;
pub(crate) type Offer = local_queue::Offer<Handoff>;
pub(crate) type Waiter = local_queue::Waiter<Handoff>;
pub(crate) type QueuePosition = local_queue::QueuePosition<Handoff>;
pub(crate) type Lease = lease::Lease<Permit>;
pub(crate) type Hold = lease::Hold<Permit>;
pub(crate) type Ending = lease::Ending<Permit>;

/// Takes care of a lease between two holds.
pub(crate) trait LeaseKeeper: Send + Sync {
    /// Frees the key of a lease that has ended.
    fn free_in_background(self: Arc<Self>, lease: &Arc<Lease>, permit: Option<Permit>);

    /// Schedules a lease anew, because its deadline has changed.
    fn reschedule(&self, lease: &Arc<Lease>);

    /// Offers permits of a semaphore to the calls of this process that wait for them. Returns them if they
    /// fit none, or if there are enough for all.
    fn pass_permits_on(&self, handoff: Handoff) -> Result<(), Handoff>;
}

/// A lock between two holds.
pub(crate) struct Handoff {
    keeper: Arc<dyn LeaseKeeper>,
    lease: Arc<Lease>,
    /// `None` once another part of the engine has it.
    permit: Option<Permit>,
    /// When the first request was sent that renews the lease for a waiter, since the last hold.
    renewing_since: Option<BootInstant>,
}

/// What a call leaves to the call of this process that has the permit next. Dropping it gives the place
/// up, and frees the locks.
#[derive(Debug)]
pub(crate) struct LeftToNext {
    /// Its place in a queue of the store.
    pub(crate) place: Option<QueuePlace>,
    /// Permits of a semaphore that others have left, and that fit the terms of the call that leaves them.
    pub(crate) permits: VecDeque<Handoff>,
}

impl std::fmt::Debug for Handoff {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Handoff").field("key", self.lease.key()).finish_non_exhaustive()
    }
}

impl Handoff {
    pub(crate) fn new(keeper: Arc<dyn LeaseKeeper>, lease: &Arc<Lease>, permit: Permit) -> Self {
        Self { keeper, lease: Arc::clone(lease), permit: Some(permit), renewing_since: None }
    }

    /// See [`Permit::position`](local_queue::Permit::position); `None` without the permit.
    pub(crate) fn position(&self, number: u64) -> Option<QueuePosition> {
        self.permit.as_ref().map(|permit| permit.position(number))
    }

    /// When the first request was sent that renews the lease; now, if none was sent.
    pub(crate) fn renewing_since(&self) -> BootInstant {
        self.renewing_since.unwrap_or_else(BootInstant::now)
    }

    /// Offers the lock to the waiters. Returns the permit if no waiter is awake.
    pub(crate) fn offer(mut self) -> Option<Permit> {
        if let Mode::Permits(_) = self.lease.locked().mode {
            let keeper = Arc::clone(&self.keeper);
            self = keeper.pass_permits_on(self).err()?;
        }
        let permit = self.permit.take()?;
        let refused = permit.offer(|permit| {
            self.permit = Some(permit);
            self
        });
        refused.err().and_then(|mut handoff| handoff.permit.take())
    }

    pub(crate) fn lease(&self) -> &Arc<Lease> {
        &self.lease
    }

    /// Leaves the lock on offer until this time, for the next call of this process. Returns whether it
    /// is the first time since the store granted the lock, or the lock if it must not linger.
    pub(crate) fn linger(mut self, until: BootInstant) -> Result<bool, Self> {
        let Some(permit) = self.permit.take() else { return Err(self) };
        permit.linger(until, |permit| {
            self.permit = Some(permit);
            self
        })
    }

    /// The permit alone; `None` if another part of the engine has it.
    pub(crate) fn into_permit(mut self) -> Option<Permit> {
        self.permit.take()
    }

    /// Begins a hold with `terms` in the layout of `store` and in this mode. Returns `self` if the
    /// lease does not match.
    pub(crate) fn accept(
        mut self,
        (store, mode): (&Arc<dyn LockStore>, Mode),
        terms: &Terms,
    ) -> Result<Hold, Self> {
        if !self.fits(store, mode) {
            return Err(self);
        }
        let position = self.position(0).filter(|_| self.renewing_since.is_some());
        let Some((hold, reschedule)) = self.lease.accept(terms, &mut self.permit) else {
            return Err(self);
        };
        if let Some(position) = position {
            position.granted();
        }
        if reschedule {
            self.keeper.reschedule(&self.lease);
        }
        Ok(hold)
    }

    /// Renews the lease to `terms`, and begins a hold as [`accept`](Self::accept) does. Costs one round
    /// trip. Returns the lease and the permit if the lease has to be released instead.
    ///
    /// Cancel safe: if the future is dropped, the lock is offered to the next waiter.
    pub(crate) async fn renew(
        mut self,
        (store, mode): (&Arc<dyn LockStore>, Mode),
        terms: &Terms,
    ) -> Result<Hold, (Arc<Lease>, Option<Permit>)> {
        let can_renew =
            store.capabilities().renews_to_any_length || self.lease.term() == terms.in_store();
        if can_renew
            && self.fits(store, mode)
            && let Some(hold) = self.renew_for(terms).await
        {
            self.keeper.reschedule(&self.lease);
            return Ok(hold);
        }
        Err((Arc::clone(&self.lease), self.permit.take()))
    }

    fn fits(&self, store: &Arc<dyn LockStore>, mode: Mode) -> bool {
        is_same(self.lease.store(), store) && self.lease.locked().mode.can_become(mode)
    }

    async fn renew_for(&mut self, terms: &Terms) -> Option<Hold> {
        let sent = BootInstant::now();
        let term = self.lease.about_to_renew_for(terms, sent)?;
        self.renewing_since.get_or_insert(sent);
        if let Some(permit) = &self.permit {
            permit.set_status(&KeyStatus::Acquiring(sent));
        }
        let acknowledged_by = terms.acknowledged_by;
        let renewal = [Renewal { acknowledged_by, ..self.lease.renewal(term) }];
        let answer = self.lease.store().renew(&renewal, Lane::Caller).await.into_iter().next();
        if !matches!(answer, Some(Ok(Renewed::Extended))) {
            return None;
        }
        let position = self.position(0);
        let hold = self.lease.renewed_for(terms, sent, &mut self.permit)?;
        if let Some(position) = position {
            position.granted();
        }
        Some(hold)
    }

    /// Frees the key, and offers the permit alone to the waiters.
    fn free(mut self) {
        let permit = self.permit.take();
        if self.lease.close() {
            Arc::clone(&self.keeper).free_in_background(&self.lease, permit);
        }
    }
}

impl HandedOff for Handoff {
    type ToNext = LeftToNext;

    fn set_grant(&mut self, grant: u64) {
        if let Some(permit) = &mut self.permit {
            permit.set_grant(grant);
        }
    }

    fn grant(&self) -> u64 {
        self.permit.as_ref().map_or(0, local_queue::Permit::grant)
    }

    fn decline(self) {
        self.free();
    }
}

impl Drop for Handoff {
    fn drop(&mut self) {
        let Some(permit) = self.permit.take() else { return };
        if !Safeguard::HandoffContinues.is_on() {
            return;
        }
        let mut again = Self::new(Arc::clone(&self.keeper), &self.lease, permit);
        again.renewing_since = self.renewing_since;
        let Some(permit) = again.offer() else { return };
        if self.lease.close() {
            Arc::clone(&self.keeper).free_in_background(&self.lease, Some(permit));
        }
    }
}

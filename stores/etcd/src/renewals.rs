//! Renewals: the leases are extended, and then the keys are verified.
//!
//! A lease that was extended says nothing about a key that an operator has deleted, and an extension counts only if a later
//! transaction confirms it. So a call costs one message for each lease, which is nearly always one, and one transaction for
//! each 64 keys. If that fails for some of them (a key has another lease than expected, its lease is missing or too short, or the
//! leader has changed meanwhile), those are tried again.

use std::collections::HashMap;
use std::time::Duration;

use super::client::EtcdClient;
use super::errors::EtcdFailure;
use super::holds::KeyLease;
use super::leases::{Attachable, Extended, seconds};
use super::transactions::{Owned, SeenKey, TxnAnswer};
use super::watcher::WatchCommand;
use lock_core::clock::BootInstant;
use lock_core::join::join_all;
use lock_core::store::contract::Renewed;
use lock_core::store::store_error::StoreError;
use lock_core::sync::lock;

/// The number of keys in one transaction, with two comparisons each. etcd accepts 128 by default.
const BATCH: usize = 64;

/// How often a renewal is tried.
const ROUNDS: usize = 3;

/// A lease to renew.
struct KeyRenewal {
    owned: Owned,
    term: Duration,
    /// `None` if it is not known.
    lease: Option<KeyLease>,
    /// Whether the lease lasts long enough as it is, so that only the key is verified.
    lasts: bool,
    outcome: Option<Result<Renewed, StoreError>>,
}

/// What a lease is after a request to extend it.
type Extensions = HashMap<i64, Result<Extended, EtcdFailure>>;

impl EtcdClient {
    /// Extends the leases of these keys to these terms from now, for those that their owners have.
    pub(super) async fn extend(
        &self,
        all: &[(Owned, Duration)],
    ) -> Vec<Result<Renewed, StoreError>> {
        let began = BootInstant::now();
        let mut renewals: Vec<KeyRenewal> = {
            let mut holds = lock(&self.holds);
            let renewal = |(owned, term): &(Owned, Duration)| {
                let (until, hold) = (began.after(*term), holds.get(owned));
                let lease = hold.map(|hold| hold.lease);
                let lasts = hold.is_some_and(|hold| hold.lasts(until));
                let lives = holds.renew(owned, until);
                let outcome = (!lives).then_some(Ok(Renewed::Gone));
                KeyRenewal { owned: owned.clone(), term: *term, lease, lasts, outcome }
            };
            all.iter().map(renewal).collect()
        };
        for _ in 0..ROUNDS {
            let mut open = still_open(renewals.iter_mut());
            if open.is_empty() {
                break;
            }
            self.extend_all(&mut open, began).await;
        }
        let end = |one: KeyRenewal| {
            match (&one.outcome, one.lease) {
                (Some(Ok(Renewed::Gone | Renewed::Taken)), _) => self.is_lost(&one.owned),
                (Some(Ok(Renewed::Extended)), Some(lease)) => {
                    lock(&self.holds).lasts(&one.owned, lease, began.after(one.term));
                }
                _ => {}
            }
            one.outcome.unwrap_or_else(|| {
                Err(StoreError::Unknown("the leader of etcd changes too often".to_owned()))
            })
        };
        renewals.into_iter().map(end).collect()
    }

    fn is_lost(&self, owned: &Owned) {
        if lock(&self.holds).was_lost(owned) {
            self.tell_watcher(WatchCommand::NoHold { key: owned.key.clone() });
        }
    }

    /// Tries to extend these leases once.
    async fn extend_all(&self, open: &mut [&mut KeyRenewal], began: BootInstant) {
        for batch in open.chunks_mut(BATCH) {
            if let Err(failure) = self.find_leases(batch).await {
                fail(batch, &failure.into_error());
            }
        }
        let mut open = still_open(open.iter_mut().map(|one| &mut **one));
        let to_extend = open.iter().filter(|one| !one.lasts);
        let mut leases: Vec<i64> = to_extend.filter_map(|one| Some(one.lease?.id)).collect();
        leases.sort_unstable();
        leases.dedup();
        let requests = leases.iter().map(|id| self.members.extend_lease(*id));
        let extended = join_all(requests).await;
        let extensions: Extensions = leases.into_iter().zip(extended).collect();
        for one in &mut open {
            let Some(lease) = one.lease else { continue };
            match extensions.get(&lease.id) {
                // Another key of the lease may be the one that the user may not write.
                Some(Err(failure)) if failure.is_missing_permission() && lease.is_shared => {}
                Some(Err(failure)) => one.outcome = Some(Err(StoreError::Unknown(failure.text()))),
                _ => {}
            }
        }
        let mut rest = still_open(open.into_iter());
        for batch in rest.chunks_mut(BATCH) {
            if let Err(failure) = self.extend_batch(batch, &extensions, began).await {
                fail(batch, &failure.into_error());
            }
        }
    }

    /// Verifies the keys of a batch, and decides what has become of their leases.
    async fn extend_batch(
        &self,
        batch: &mut [&mut KeyRenewal],
        extensions: &Extensions,
        began: BootInstant,
    ) -> Result<(), EtcdFailure> {
        let lease_of = |one: &KeyRenewal| one.lease.map_or(0, |lease| lease.id);
        let keys: Vec<_> = batch.iter().map(|one| (&one.owned, lease_of(one))).collect();
        let seen = match self.members.verify(&keys).await {
            // One key that the user has no permission for must not affect the others, and a server that accepts fewer
            // comparisons still gets them one by one.
            Err(EtcdFailure::Refused(StoreError::Denied(_) | StoreError::Config { .. }))
                if keys.len() > 1 =>
            {
                let alone = batch.iter_mut().map(|one| self.extend_alone(one, extensions, began));
                join_all(alone).await;
                return Ok(());
            }
            seen => seen?,
        };
        for (one, what) in batch.iter_mut().zip(seen.what) {
            self.extend_one(one, (what, seen.raft_term), extensions, began).await;
        }
        Ok(())
    }

    /// Verifies one key, and decides what has become of its lease.
    async fn extend_alone(
        &self,
        one: &mut KeyRenewal,
        extensions: &Extensions,
        began: BootInstant,
    ) {
        let Some(lease) = one.lease else { return };
        match self.members.verify(&[(&one.owned, lease.id)]).await {
            Ok(TxnAnswer { what, raft_term, .. }) => {
                let seen = what.first().copied().unwrap_or(SeenKey::Gone);
                self.extend_one(one, (seen, raft_term), extensions, began).await;
            }
            Err(failure) => one.outcome = Some(Err(failure.into_error())),
        }
    }

    /// Looks up leases that are not known.
    async fn find_leases(&self, open: &mut [&mut KeyRenewal]) -> Result<(), EtcdFailure> {
        let unknown: Vec<&Owned> =
            open.iter().filter(|one| one.lease.is_none()).map(|one| &one.owned).collect();
        if unknown.is_empty() {
            return Ok(());
        }
        let seen = self.members.look(&unknown).await?.what;
        let unknown = open.iter_mut().filter(|one| one.lease.is_none());
        for (one, seen) in unknown.zip(seen) {
            match seen {
                SeenKey::Own { lease: id } => one.lease = Some(KeyLease { id, is_shared: false }),
                SeenKey::Gone => one.outcome = Some(Ok(Renewed::Gone)),
                SeenKey::Taken { .. } => one.outcome = Some(Ok(Renewed::Taken)),
            }
        }
        Ok(())
    }

    /// Decides what has become of a lease. Leaves it open if it has to be tried again.
    async fn extend_one(
        &self,
        one: &mut KeyRenewal,
        (seen, raft_term): (SeenKey, u64),
        extensions: &Extensions,
        began: BootInstant,
    ) {
        let Some(lease) = one.lease else { return };
        let found = match seen {
            SeenKey::Gone => return one.outcome = Some(Ok(Renewed::Gone)),
            SeenKey::Taken { .. } => return one.outcome = Some(Ok(Renewed::Taken)),
            SeenKey::Own { lease } => lease,
        };
        if found != lease.id {
            // An earlier request has given it another lease.
            one.lease = Some(KeyLease { id: found, ..lease });
            one.lasts = false;
            return lock(&self.holds).moved(&one.owned, KeyLease { id: found, ..lease });
        }
        if one.lasts {
            return one.outcome = Some(Ok(Renewed::Extended));
        }
        match extensions.get(&lease.id) {
            // An earlier request has given the key a lease that ends in a moment.
            Some(Ok(Extended::Alive(_))) if self.leases.is_being_revoked(lease.id) => {}
            Some(Ok(Extended::Alive(extension))) => {
                if !extension.is_confirmed_in(raft_term) {
                    return;
                }
                if lease.is_shared {
                    self.leases.confirmed(lease.id, *extension);
                }
                if extension.until >= began.after(one.term) {
                    one.outcome = Some(Ok(Renewed::Extended));
                    return;
                }
            }
            Some(Ok(Extended::Missing)) => self.leases.missing(lease.id),
            // New versions extend a lease only for a user who may write all its keys. The keys that the user may write get
            // another lease, and this one ends with the others.
            Some(Err(_)) => {
                self.leases.retire(lease.id);
                self.cleanup.notify_one();
            }
            None => return,
        }
        if let Err(failure) = self.move_to_another(one, lease, began).await {
            one.outcome = Some(Err(StoreError::Unknown(failure.text())));
        }
    }

    /// Gives a key another lease, because its own one is missing or too short.
    async fn move_to_another(
        &self,
        one: &mut KeyRenewal,
        lease: KeyLease,
        began: BootInstant,
    ) -> Result<(), EtcdFailure> {
        let target = if lease.is_shared {
            self.leases.lasting(&self.members, one.term, began.after(one.term)).await?
        } else {
            let (id, _) = self.members.grant_lease(seconds(one.term)).await?;
            Attachable::new(id)
        };
        lock(&self.holds).moving(&one.owned);
        let attached = match self.members.attach(&one.owned, (lease.id, target.id)).await {
            Err(EtcdFailure::LeaseGone) => {
                self.leases.missing(target.id);
                return Ok(());
            }
            attached => attached?,
        };
        match attached.what {
            SeenKey::Gone => one.outcome = Some(Ok(Renewed::Gone)),
            SeenKey::Taken { .. } => one.outcome = Some(Ok(Renewed::Taken)),
            SeenKey::Own { lease: found } if found != target.id => {
                // Another request was faster. The next round extends the lease that the key has.
                self.drop_own(KeyLease { id: target.id, ..lease });
                let moved = KeyLease { id: found, ..lease };
                one.lease = Some(moved);
                lock(&self.holds).moved(&one.owned, moved);
            }
            SeenKey::Own { .. } => {
                let moved = KeyLease { id: target.id, ..lease };
                one.lease = Some(moved);
                lock(&self.holds).moved(&one.owned, moved);
                self.drop_own(lease);
                let lasts = self.leases.lasts(&target, attached.raft_term);
                // Otherwise the next round extends it. From now on, the lease counts as used.
                if lasts && !self.leases.is_being_revoked(target.id) {
                    one.outcome = Some(Ok(Renewed::Extended));
                }
            }
        }
        Ok(())
    }
}

/// Those that have no outcome yet.
fn still_open<'a>(renewals: impl Iterator<Item = &'a mut KeyRenewal>) -> Vec<&'a mut KeyRenewal> {
    renewals.filter(|one| one.outcome.is_none()).collect()
}

/// The request about these has failed.
fn fail(renewals: &mut [&mut KeyRenewal], error: &StoreError) {
    for one in renewals.iter_mut().filter(|one| one.outcome.is_none()) {
        one.outcome = Some(Err(error.clone()));
    }
}

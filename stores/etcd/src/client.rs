//! What the tasks of a store share, and its requests about one key.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tokio::sync::{Notify, mpsc, oneshot};
use tracing::Level;

use super::errors::EtcdFailure;
use super::holds::{KeyHolds, KeyLease};
use super::leases::{Attachable, SharedLeases, seconds};
use super::members::Members;
use super::transactions::{Claimed, Owned, SeenKey, TxnAnswer};
use super::watcher::WatchCommand;
use lock_core::clock::BootInstant;
use lock_core::events;
use lock_core::safeguard::Safeguard;
use lock_core::store::contract::{Acquired, Grant, Left, Released, Renewed};
use lock_core::store::patience::answer_within;
use lock_core::store::runner::LeaseRequest;
use lock_core::store::settings::Settings;
use lock_core::sync::{Mutex, lock};

/// How often an acquire is tried with another lease, because the last one has ended.
const ROUNDS: usize = 3;

/// How long a busy answer waits for the rest of the holder's lease.
const REST: Duration = Duration::from_millis(300);

/// The number of keys whose last busy answers are remembered.
const REMEMBERED: usize = 10_000;

/// Leases below that leave little time for the election of a leader.
const SHORT_LEASE: Duration = Duration::from_secs(3);

/// What the tasks of a store share.
pub(super) struct EtcdClient {
    /// That of locks that do not specify one.
    pub(super) lease: Duration,
    pub(super) namespace: String,
    pub(super) members: Arc<Members>,
    pub(super) leases: Arc<SharedLeases>,
    pub(super) holds: Mutex<KeyHolds>,
    /// The revisions at which keys were found taken.
    busy: Mutex<HashMap<String, i64>>,
    /// Commands to the task that watches keys, from `connect` on.
    pub(super) watcher: OnceLock<mpsc::UnboundedSender<WatchCommand>>,
    /// Notified when there is something to clean up.
    pub(super) cleanup: Arc<Notify>,
    /// Notified when a key was granted.
    pub(super) granted: Arc<Notify>,
    has_warned: AtomicBool,
}

/// An acquire in flight. If it is dropped without an answer, its request may still arrive.
struct UnansweredClaim<'a> {
    client: &'a EtcdClient,
    owned: &'a Owned,
    lease: KeyLease,
    is_over: bool,
}

impl Drop for UnansweredClaim<'_> {
    fn drop(&mut self) {
        if !self.is_over {
            lock(&self.client.holds).doubted(self.owned, self.lease);
            self.client.left_behind(self.lease);
        }
    }
}

/// A release in flight. If it is dropped without an answer, the key is deleted later.
struct UnansweredRelease<'a> {
    client: &'a EtcdClient,
    owned: &'a Owned,
    lease: Option<KeyLease>,
    keep: Duration,
    is_over: bool,
}

impl Drop for UnansweredRelease<'_> {
    fn drop(&mut self) {
        if !self.is_over {
            lock(&self.client.holds).not_released(self.owned, BootInstant::now(), self.keep);
            if let Some(lease) = self.lease {
                self.client.left_behind(lease);
            }
        }
    }
}

impl EtcdClient {
    pub(super) fn new(members: Members, settings: &Settings) -> Self {
        Self {
            lease: settings.lease,
            namespace: settings.namespace.clone(),
            members: Arc::new(members),
            leases: Arc::default(),
            holds: Mutex::default(),
            busy: Mutex::default(),
            watcher: OnceLock::new(),
            cleanup: Arc::default(),
            granted: Arc::default(),
            has_warned: AtomicBool::new(false),
        }
    }

    /// A key may have been left with this lease.
    fn left_behind(&self, lease: KeyLease) {
        if lease.is_shared && Safeguard::LeftoversAreFreed.is_on() {
            self.leases.retire(lease.id);
        }
        self.cleanup.notify_one();
    }

    pub(super) fn tell_watcher(&self, command: WatchCommand) {
        if let Some(watcher) = self.watcher.get() {
            // The task ends only with the store.
            let _ = watcher.send(command);
        }
    }

    /// Warns once that a lease is short.
    pub(super) fn check_lease(&self, lease: Duration) {
        if lease >= SHORT_LEASE || self.has_warned.swap(true, Ordering::Relaxed) {
            return;
        }
        events::emit(Level::WARN, move || {
            tracing::warn!(
                target: "lock_runtime::store::etcd",
                ?lease,
                "the lease is shorter than the election of a leader of etcd may take; use 10 s or more"
            );
        });
    }

    /// Takes a key if it is free, or if the owner already has it.
    pub(super) async fn take(&self, request: LeaseRequest) -> Result<Acquired, EtcdFailure> {
        let until = BootInstant::now().after(request.term);
        let owned = &request.owned;
        if request.renewed {
            self.check_lease(request.term);
        }
        for _ in 0..ROUNDS {
            let is_marked = !request.fresh;
            let of_mark = if is_marked { self.leases.of_mark(&self.members).await } else { None };
            let lease = if request.renewed {
                self.leases.lasting(&self.members, request.term, until).await?
            } else {
                // A waiting call makes several attempts, and each lease is two writes.
                let answer = self.members.look_at(owned).await?;
                if let SeenKey::Taken { lease } = answer.what {
                    if let Some(of_mark) = of_mark {
                        // If it fails, the holder does not leave the lock to this call when it releases it.
                        let _ = self.members.mark_wanted(owned, of_mark).await;
                    }
                    return Ok(self.is_busy(owned, lease, answer.revision).await);
                }
                let (id, _) = self.members.grant_lease(seconds(request.term)).await?;
                Attachable::new(id)
            };
            let key_lease = KeyLease { id: lease.id, is_shared: request.renewed };
            let Some(mut claim) = self.claim(owned, key_lease, until)? else { continue };
            let claimed = self.members.claim(owned, lease.id, of_mark).await;
            match claimed {
                Ok(answer) => {
                    claim.is_over = true;
                    drop(claim);
                    return self.claimed(owned, request.term, (lease, key_lease), answer).await;
                }
                // The claim stays in doubt.
                Err(failure @ EtcdFailure::Unknown(_)) => return Err(failure),
                Err(failure) => {
                    claim.is_over = true;
                    lock(&self.holds).declined(owned, key_lease);
                    if failure == EtcdFailure::LeaseGone {
                        self.leases.missing(lease.id);
                        continue;
                    }
                    self.drop_own(key_lease);
                    return Err(failure);
                }
            }
        }
        Err(EtcdFailure::NotHere("the leases that etcd has granted have ended at once".to_owned()))
    }

    /// Registers a claim. `None` if its lease is retired since.
    fn claim<'a>(
        &'a self,
        owned: &'a Owned,
        lease: KeyLease,
        until: BootInstant,
    ) -> Result<Option<UnansweredClaim<'a>>, EtcdFailure> {
        {
            let mut holds = lock(&self.holds);
            if holds.wake_cleaner() {
                self.cleanup.notify_one();
            }
            if !holds.claim(owned, lease, until) {
                return Err(EtcdFailure::NotHere("the owner was released".to_owned()));
            }
        }
        // From now on, the lease is not revoked, unless it was to be revoked before.
        if lease.is_shared && self.leases.is_retired(lease.id) {
            lock(&self.holds).declined(owned, lease);
            return Ok(None);
        }
        Ok(Some(UnansweredClaim { client: self, owned, lease, is_over: false }))
    }

    async fn claimed(
        &self,
        owned: &Owned,
        term: Duration,
        (lease, key_lease): (Attachable, KeyLease),
        answer: TxnAnswer<Claimed>,
    ) -> Result<Acquired, EtcdFailure> {
        // Any transaction confirms an extension, also one that has found the key taken.
        let lasts = self.leases.lasts(&lease, answer.raft_term);
        match answer.what {
            Claimed::Busy { lease } => {
                lock(&self.holds).declined(owned, key_lease);
                self.drop_own(key_lease);
                Ok(self.is_busy(owned, lease, answer.revision).await)
            }
            Claimed::Granted { lease: found, fence } => {
                let is_expected = found == lease.id;
                let found = if is_expected {
                    key_lease
                } else {
                    // An earlier request of this owner has taken the key.
                    self.drop_own(key_lease);
                    KeyLease { id: found, is_shared: key_lease.is_shared }
                };
                if !lock(&self.holds).granted(owned, (key_lease, found), answer.revision) {
                    self.cleanup.notify_one();
                }
                lock(&self.busy).remove(&owned.key);
                self.granted.notify_one();
                let granted = Acquired::Granted(Grant { fence: Some(fence), ..Grant::of(term) });
                if is_expected && lasts {
                    return Ok(granted);
                }
                let extended = self.extend(&[(owned.clone(), term)]).await.pop();
                match extended {
                    Some(Ok(Renewed::Extended)) => Ok(granted),
                    Some(Err(error)) => Err(EtcdFailure::Unknown(error.to_string())),
                    _ => Err(EtcdFailure::Unknown("the key was deleted at once".to_owned())),
                }
            }
        }
    }

    /// Another owner has the key, with this lease.
    async fn is_busy(&self, owned: &Owned, lease: i64, revision: i64) -> Acquired {
        {
            let mut busy = lock(&self.busy);
            if busy.len() >= REMEMBERED {
                busy.clear();
            }
            busy.insert(owned.key.clone(), revision);
        }
        let rest = answer_within(REST, self.members.rest_of_lease(lease));
        let left = rest.await.and_then(Result::ok).flatten();
        Acquired::Busy(left.map_or(Left::Unknown, Left::Time))
    }

    /// Ends a lease that no other key has. It would also end by itself.
    pub(super) fn drop_own(&self, lease: KeyLease) {
        if !lease.is_shared && lease.id != 0 {
            let members = Arc::clone(&self.members);
            tokio::spawn(async move { members.revoke_lease(lease.id).await });
        }
    }

    /// Frees a key if the owner has it. With a `keep` above zero, it stays taken for that time instead.
    pub(super) async fn free(
        &self,
        owned: &Owned,
        keep: Duration,
    ) -> Result<Released, EtcdFailure> {
        let hold = lock(&self.holds).releasing(owned, BootInstant::now());
        if hold.is_some_and(|hold| hold.was_watched) {
            self.tell_watcher(WatchCommand::NoHold { key: owned.key.clone() });
        }
        let lease = hold.map(|hold| hold.lease);
        let mut release = UnansweredRelease { client: self, owned, lease, keep, is_over: false };
        let (answer, was_wanted) = if keep.is_zero() {
            self.members.delete(owned).await?
        } else {
            let (kept, _) = self.members.grant_lease(seconds(keep)).await?;
            (self.members.keep(owned, kept).await?, false)
        };
        release.is_over = true;
        let had_it = matches!(answer.what, SeenKey::Own { .. });
        if !lock(&self.holds).released(owned, had_it, BootInstant::now()) {
            self.cleanup.notify_one();
        }
        if let Some(lease) = lease {
            self.drop_own(lease);
        }
        Ok(match answer.what {
            SeenKey::Own { .. } => Released::Freed { woken: usize::from(was_wanted) },
            SeenKey::Gone => Released::Gone,
            SeenKey::Taken { .. } => Released::Taken,
        })
    }

    /// Watches a key from the last answer that said that it is taken.
    pub(super) async fn watch_released(&self, key: &str) -> Result<(), EtcdFailure> {
        let from = lock(&self.busy).remove(key).map_or(0, |revision| revision + 1);
        let (watched, answer) = oneshot::channel();
        self.tell_watcher(WatchCommand::Wait { key: key.to_owned(), from, watched });
        let lost = |_| EtcdFailure::Unknown("the stream of watches has ended".to_owned());
        answer.await.map_err(lost)
    }
}

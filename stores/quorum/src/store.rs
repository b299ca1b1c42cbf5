//! The locks of a quorum: the store that the engine uses.

use std::sync::Arc;
use std::sync::OnceLock;
use std::time::Duration;

use tokio::runtime::Handle;

use super::member::QuorumMember;
use super::membership::Membership;
use super::relay::WakeUpRelay;
use super::restored_votes::VoteRestorer;
use super::tally::left_of_majority;
use lock_core::clock::BootInstant;
use lock_core::maybe_ready::MaybeReady;
use lock_core::store::announcements::{Announced, Announcement};
use lock_core::store::contract::{
    Acquired, Capabilities, Claim, Extension, Fenced, Lane, Layout, Left, LockStore, Release,
    Released, ReleasedBatch, Renewal, Renewed, Resource, SendTrace, StoreAnswer, StoreError,
};
use lock_core::store::owner::OwnerId;
use lock_core::store::subscriptions::{Subscription, Subscriptions};
use lock_core::sync::atomic::{AtomicU64, Ordering};
use lock_core::timeout::{LONGEST_DELAY, RequestTimeout};

/// What errors call the store.
pub(super) const SHOWN: &str = "a quorum";

/// The shortest lease of a lock, as for clients. A shorter one would often end before a majority has answered.
pub(super) const SHORTEST_LEASE: Duration = Duration::from_millis(100);

/// Exclusive locks that a majority of stores has to grant.
pub(super) struct QuorumStore {
    pub(super) members: Arc<[Arc<QuorumMember>]>,
    pub(super) membership: Arc<Membership>,
    /// The timeout of a request to one store.
    pub(super) server_timeout: Duration,
    pub(super) restorer: VoteRestorer,
    /// The longest term of a lease so far, in nanoseconds.
    longest: AtomicU64,
    subscriptions: Arc<Subscriptions>,
    /// The runtime of the wake-ups, as soon as there is one.
    wake_ups: OnceLock<Handle>,
}

impl QuorumStore {
    pub(super) fn new(
        members: Arc<[Arc<QuorumMember>]>,
        membership: Arc<Membership>,
        server_timeout: Duration,
    ) -> Arc<Self> {
        let (longest, subscriptions) = (AtomicU64::new(0), Subscriptions::relayed());
        let (wake_ups, restorer) =
            (OnceLock::new(), VoteRestorer::new(Arc::clone(&members), server_timeout));
        Arc::new(Self {
            members,
            membership,
            server_timeout,
            restorer,
            longest,
            subscriptions,
            wake_ups,
        })
    }

    /// From now on, tasks of this runtime forward wake-ups.
    pub(super) fn wake_on(&self, runtime: Handle) {
        let _ = self.wake_ups.set(runtime);
    }

    /// Notes the length of a lease that begins.
    pub(super) fn note_term(&self, term: Duration) {
        let nanos = u64::try_from(term.as_nanos()).unwrap_or(u64::MAX);
        if self.longest.load(Ordering::Relaxed) < nanos {
            self.longest.fetch_max(nanos, Ordering::Relaxed);
        }
    }

    /// When all leases have ended that have begun until now, although their requests may arrive late.
    pub(super) fn latest_expiry(&self, now: BootInstant) -> BootInstant {
        now.after(Duration::from_nanos(self.longest.load(Ordering::Relaxed)) + LONGEST_DELAY)
    }
}

impl LockStore for QuorumStore {
    fn try_acquire<'a>(
        &'a self,
        claim: Claim<'a>,
        timeout: RequestTimeout,
        trace: &'a SendTrace,
    ) -> StoreAnswer<'a, Acquired> {
        MaybeReady::pending(self.claim(claim, timeout, trace))
    }

    fn renew<'a>(
        &'a self,
        batch: &'a [Renewal<'a>],
        lane: Lane,
    ) -> MaybeReady<'a, Vec<Result<Renewed, StoreError>>> {
        MaybeReady::pending(self.renew_batch(batch, lane))
    }

    fn release<'a>(&'a self, release: Release<'a>, lane: Lane) -> StoreAnswer<'a, Released> {
        MaybeReady::pending(async move {
            let released = self.release_batch(&[release], lane).await.pop();
            released.unwrap_or_else(|| Err(StoreError::Unknown("an answer is missing".to_owned())))
        })
    }

    fn release_all<'a>(
        &'a self,
        batch: &'a [Release<'a>],
        lane: Lane,
    ) -> MaybeReady<'a, ReleasedBatch> {
        MaybeReady::pending(async move {
            // Several connections have carried it.
            ReleasedBatch { connection: None, answers: self.release_batch(batch, lane).await }
        })
    }

    fn fence<'a>(
        &'a self,
        resource: Resource<'a>,
        owner: OwnerId,
        at_least: u64,
    ) -> StoreAnswer<'a, Fenced> {
        MaybeReady::pending(self.issue_token(resource.key, owner, at_least))
    }

    fn announce<'a>(&'a self, announcement: Announcement<'a>) -> StoreAnswer<'a, Announced> {
        MaybeReady::pending(self.announce_holder(announcement))
    }

    fn announced<'a>(&'a self, key: &'a str) -> StoreAnswer<'a, Option<(String, Left)>> {
        MaybeReady::pending(self.announced_holder(key))
    }

    fn count_waiters<'a>(&'a self, resource: Resource<'a>, lane: Lane) -> StoreAnswer<'a, usize> {
        MaybeReady::pending(self.waiting(resource.key, lane))
    }

    fn subscribe(&self, resource: Resource<'_>, owner: OwnerId, term: Duration) -> Subscription {
        let (subscription, listener) = self.subscriptions.relay(resource.key, Layout::TOKEN, owner);
        let Some(runtime) = self.wake_ups.get() else { return subscription };
        let stores = self.members.iter();
        let stores = stores.map(|member| member.store.subscribe(resource, owner, term)).collect();
        let relay = WakeUpRelay::new(Arc::clone(&self.subscriptions), listener, stores);
        subscription.kept_up_by(runtime.spawn(relay.run()).abort_handle())
    }

    /// The time until a majority is free, by the latest checks of the stores.
    fn last_check(&self, resource: Resource<'_>) -> Option<(Left, BootInstant)> {
        let checks = self.members.iter().map(|member| member.store.last_check(resource));
        let checks: Vec<_> = checks.flatten().collect();
        // The key is free at the others, as far as is known.
        let others = vec![Some(Duration::ZERO); self.members.len() - checks.len()];
        let oldest = checks.iter().map(|(_, at)| *at).min()?;
        let left = |(left, at): &(Left, BootInstant)| match left {
            Left::Time(left) => Some(*left + at.since(oldest)),
            Left::Forever | Left::Unknown => None,
        };
        let leases = checks.iter().map(left).chain(others).collect();
        match left_of_majority(leases, self.members.len()) {
            Left::Time(Duration::ZERO) => None,
            left => Some((left, oldest)),
        }
    }

    fn capabilities(&self) -> Capabilities {
        let members = self.members.iter().map(|member| member.store.capabilities());
        let own = Capabilities {
            counts_waiters: true,
            owner_per_attempt: true,
            shortest_lease: SHORTEST_LEASE,
            ..Capabilities::with(&[
                Extension::KeptKeys,
                Extension::Announcements,
                Extension::Tokens,
            ])
        };
        members.fold(own, |all, one| Capabilities {
            extensions: all.extensions.intersection(one.extensions),
            renews_to_any_length: all.renews_to_any_length && one.renews_to_any_length,
            counts_waiters: all.counts_waiters && one.counts_waiters,
            ..all
        })
    }

    fn shown(&self) -> String {
        SHOWN.to_owned()
    }

    fn layout(&self) -> &'static str {
        Layout::TOKEN.value()
    }
}

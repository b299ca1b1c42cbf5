//! What operators see of a custom store.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use super::contract::{ReleaseOutcome, ReleaseRequest, Store};
use super::pattern::KeyGlob;
use super::shared::CustomStore;
use super::stored::{LeaseScan, StoredLease};
use crate::clock::unix_time;
use crate::lock_state::{Deletion, LockState, StoredHolder, StoredLayout};
use crate::maybe_ready::MaybeReady;
use crate::store::contract::{KeyInspector, StoreAnswer, StoreError};
use crate::store::owner::ClientTag;
use crate::store::scanning::{ScanPage, ScanPosition};

/// The locks of a custom store, as operators see them.
pub(super) struct LeaseInspector<S> {
    pub(super) shared: Arc<CustomStore<S>>,
}

impl<S: Store> LeaseInspector<S> {
    fn request<'a, T: Send + 'static>(
        &self,
        request: impl Future<Output = Result<T, StoreError>> + Send + 'static,
    ) -> StoreAnswer<'a, T> {
        MaybeReady::pending(self.shared.thread.request(self.shared.response_timeout, request))
    }
}

/// A lease as an operator sees it, who is not told yet who its client is.
fn state(lease: StoredLease) -> LockState {
    let StoredLease { key, owner, left } = lease;
    let now = SystemTime::UNIX_EPOCH + unix_time();
    let client = owner.as_deref().map(ClientTag::of_owner);
    let layout = if client == Some(None) { StoredLayout::OtherToken } else { StoredLayout::Token };
    let (tag, began) = client.flatten().map(|(tag, owner)| (tag, owner.began())).unzip();
    let is_released = owner.is_none();
    let mut holder = StoredHolder::new(owner.unwrap_or_default(), left);
    holder.is_released = is_released;
    holder.client.id = tag.map(ClientTag::to_text);
    // The clock of the holder may be ahead.
    holder.held_for = began.and_then(|began| now.duration_since(began).ok());
    LockState::new(key, layout, vec![holder])
}

impl<S: Store> KeyInspector for LeaseInspector<S> {
    fn read_lock<'a>(&'a self, key: &'a str) -> StoreAnswer<'a, Option<LockState>> {
        let (shared, key) = (Arc::clone(&self.shared), key.to_owned());
        self.request(async move { Ok(shared.store.inspect(&key).await?.map(state)) })
    }

    fn name_holders<'a>(&'a self, locks: &'a mut [LockState]) -> StoreAnswer<'a, ()> {
        let holders = locks.iter().flat_map(|lock| &lock.holders);
        let mut ids: Vec<String> = holders.filter_map(|holder| holder.client.id.clone()).collect();
        ids.sort_unstable();
        ids.dedup();
        if ids.is_empty() {
            return MaybeReady::ready(Ok(()));
        }
        let shared = Arc::clone(&self.shared);
        let named = self.request(async move {
            let mut named = shared.store.clients(&ids).await?;
            named.push(shared.own.clone());
            Ok(named)
        });
        MaybeReady::pending(async move {
            // Without their names, the holders are known by their ids.
            let named = named.await.unwrap_or_default().into_iter();
            let by_id: HashMap<_, _> = named.map(|client| (client.id.clone(), client)).collect();
            for holder in locks.iter_mut().flat_map(|lock| &mut lock.holders) {
                if let Some(client) = by_id.get(&holder.client.id) {
                    holder.client.clone_from(client);
                }
            }
            Ok(())
        })
    }

    fn delete<'a>(&'a self, key: &'a str, token: &'a str) -> StoreAnswer<'a, Deletion> {
        if token.is_empty() {
            let problem = "a key that stays taken after its release has no token; it is free when its `min_hold` is over";
            let problem = problem.to_owned();
            return MaybeReady::ready(Err(StoreError::Config { option: "token", problem }));
        }
        let (shared, key) = (Arc::clone(&self.shared), key.to_owned());
        let owner = token.to_owned();
        self.request(async move {
            let release = ReleaseRequest { key: &key, owner: &owner, keep: Duration::ZERO };
            Ok(match shared.store.release(release).await? {
                ReleaseOutcome::Freed { .. } => Deletion::Deleted,
                ReleaseOutcome::Taken => Deletion::Changed,
                ReleaseOutcome::Gone => Deletion::Gone,
            })
        })
    }

    fn scan<'a>(
        &'a self,
        position: ScanPosition,
        pattern: &'a str,
        limit: u32,
    ) -> StoreAnswer<'a, ScanPage> {
        let (shared, glob) = (Arc::clone(&self.shared), KeyGlob::new(pattern));
        let from = match position {
            ScanPosition::Index(from) => Some(from),
            _ => None,
        };
        let limit = usize::try_from(limit).unwrap_or(usize::MAX);
        self.request(async move {
            let prefix = glob.prefix();
            let scan = LeaseScan { prefix: &prefix, from: from.as_deref(), limit };
            let page = shared.store.scan(scan).await?;
            let leases = page.leases.into_iter().filter(|lease| glob.matches(&lease.key));
            let next = page.next.map(ScanPosition::Index);
            Ok(ScanPage { locks: leases.map(state).collect(), next, ..ScanPage::default() })
        })
    }
}

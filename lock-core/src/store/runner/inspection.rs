//! What operators see of a store.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use super::client::{AsyncClient, Owned};
use super::pattern::KeyGlob;
use super::requests::RequestRunner;
use super::stored::{LeaseScan, StoredLease};
use super::thread::within;
use crate::client_info::ClientInfo;
use crate::clock::unix_time;
use crate::lock_mode::LockMode;
use crate::lock_state::{Deletion, LockState, StoredHolder, StoredLayout};
use crate::maybe_ready::MaybeReady;
use crate::store::contract::{KeyInspector, Lane, Mode, Released, StoreAnswer, StoreError};
use crate::store::key_holder::KeyHolder;
use crate::store::owner::ClientTag;
use crate::store::scanning::{ScanPage, ScanPosition};

/// The leases of a store, as operators see them.
pub(super) struct LeaseInspector<L> {
    leases: Arc<L>,
    runner: Arc<RequestRunner>,
    /// What the client tells about itself, and its id.
    own: ClientInfo,
    tag: ClientTag,
}

impl<L: AsyncClient> LeaseInspector<L> {
    /// `told` is what the client with this tag tells about itself.
    pub(super) fn new(
        leases: Arc<L>,
        runner: Arc<RequestRunner>,
        told: Option<ClientInfo>,
        tag: ClientTag,
    ) -> Self {
        let own = told.unwrap_or_default().with_id(tag.to_text());
        Self { leases, runner, own, tag }
    }

    fn request<'a, T: Send + 'static>(
        &self,
        request: impl Future<Output = Result<T, StoreError>> + Send + 'static,
    ) -> StoreAnswer<'a, T> {
        self.runner.request(Lane::Background, request)
    }

    /// Who has a key.
    pub(super) fn holder(&self, key: &str) -> StoreAnswer<'static, Option<KeyHolder>> {
        let (leases, key) = (Arc::clone(&self.leases), key.to_owned());
        let (own, own_tag, timeout) = (self.own.clone(), self.tag, self.runner.response_timeout());
        self.request(async move {
            let stored = known(&*leases, &key).await?;
            let owner = stored.into_iter().find_map(|lease| lease.owner);
            let Some(owner) = owner else { return Ok(None) };
            let Some((tag, id)) = ClientTag::of_owner(&owner) else {
                return Ok(Some(KeyHolder::default()));
            };
            let is_own = tag == own_tag;
            let client = if is_own { own } else { named(&*leases, tag, timeout / 2).await };
            Ok(Some(KeyHolder { client, is_own, ..KeyHolder::of(Some(id)) }))
        })
    }
}

/// What is stored about a key; nothing if the store does not tell.
async fn known<L: AsyncClient>(leases: &L, key: &str) -> Result<Vec<StoredLease>, StoreError> {
    match leases.inspect(key).await {
        Err(StoreError::Config { option: "store", .. }) => Ok(Vec::new()),
        leases => leases,
    }
}

/// What is known about the client with this tag. An unavailable store is not an error: the id is known.
async fn named<L: AsyncClient>(leases: &L, tag: ClientTag, limit: Duration) -> ClientInfo {
    let id = tag.to_text();
    let known = leases.clients(std::slice::from_ref(&id));
    let known = within(limit, known).await.unwrap_or_default();
    let known = known.into_iter().find(|client| client.id.as_ref() == Some(&id));
    known.unwrap_or_else(|| ClientInfo::default().with_id(id))
}

/// A key as an operator sees it, who is not told yet who the clients of its holders are. None if there are no leases.
fn state(leases: Vec<StoredLease>) -> Option<LockState> {
    let first = leases.first()?;
    let client = first.owner.as_deref().map(ClientTag::of_owner);
    let layout = match first.mode {
        Mode::Exclusive if client == Some(None) => StoredLayout::OtherToken,
        Mode::Exclusive => StoredLayout::Token,
        Mode::Read | Mode::Write => StoredLayout::ReadWrite,
        Mode::Permits(_) => StoredLayout::Semaphore,
    };
    let key = first.key.clone();
    Some(LockState::new(key, layout, leases.into_iter().map(holder).collect()))
}

/// The holder of a lease.
fn holder(lease: StoredLease) -> StoredHolder {
    let StoredLease { owner, left, mode, .. } = lease;
    let now = SystemTime::UNIX_EPOCH + unix_time();
    let client = owner.as_deref().and_then(ClientTag::of_owner);
    let (tag, began) = client.map(|(tag, owner)| (tag, owner.began())).unzip();
    let is_released = owner.is_none();
    let mut holder = StoredHolder::new(owner.unwrap_or_default(), left);
    holder.is_released = is_released;
    holder.client.id = tag.map(ClientTag::to_text);
    // The clock of the holder may be ahead.
    holder.held_for = began.and_then(|began| now.duration_since(began).ok());
    match mode {
        Mode::Exclusive => {}
        Mode::Read => holder.mode = Some(LockMode::Read),
        Mode::Write => holder.mode = Some(LockMode::Write),
        Mode::Permits(permits) => holder.permits = Some(permits),
    }
    holder
}

/// Those of each key, in their order.
fn by_key(leases: impl Iterator<Item = StoredLease>) -> Vec<Vec<StoredLease>> {
    let mut all: Vec<Vec<StoredLease>> = Vec::new();
    for lease in leases {
        match all.last_mut() {
            Some(of_key) if of_key[0].key == lease.key => of_key.push(lease),
            _ => all.push(vec![lease]),
        }
    }
    all
}

impl<L: AsyncClient> KeyInspector for LeaseInspector<L> {
    fn read_lock<'a>(&'a self, key: &'a str) -> StoreAnswer<'a, Option<LockState>> {
        let (leases, key) = (Arc::clone(&self.leases), key.to_owned());
        self.request(async move { Ok(state(leases.inspect(&key).await?)) })
    }

    fn name_holders<'a>(&'a self, locks: &'a mut [LockState]) -> StoreAnswer<'a, ()> {
        let holders = locks.iter().flat_map(|lock| &lock.holders);
        let mut ids: Vec<String> = holders.filter_map(|holder| holder.client.id.clone()).collect();
        ids.sort_unstable();
        ids.dedup();
        if ids.is_empty() {
            return MaybeReady::ready(Ok(()));
        }
        let (leases, own) = (Arc::clone(&self.leases), self.own.clone());
        let named = self.request(async move {
            let mut named = leases.clients(&ids).await?;
            named.push(own);
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
        let owned = Owned::new(key, token);
        let leases = Arc::clone(&self.leases);
        self.request(async move {
            let stored = known(&*leases, &owned.key).await?;
            let lease = stored.into_iter().find(|lease| lease.owner.as_ref() == Some(&owned.owner));
            let mode = lease.map_or(Mode::Exclusive, |lease| lease.mode);
            let owned = owned.in_mode(mode);
            Ok(match leases.release(&owned, Duration::ZERO).await? {
                Released::Freed { .. } => Deletion::Deleted,
                Released::Taken => Deletion::Changed,
                Released::Gone => Deletion::Gone,
            })
        })
    }

    fn scan<'a>(
        &'a self,
        position: ScanPosition,
        pattern: &'a str,
        limit: u32,
    ) -> StoreAnswer<'a, ScanPage> {
        let (leases, glob) = (Arc::clone(&self.leases), KeyGlob::new(pattern));
        let from = match position {
            ScanPosition::Index(from) => Some(from),
            _ => None,
        };
        let limit = usize::try_from(limit).unwrap_or(usize::MAX);
        self.request(async move {
            let prefix = glob.prefix();
            let scan = LeaseScan { prefix: &prefix, from: from.as_deref(), limit };
            let page = leases.scan(scan).await?;
            let leases = page.leases.into_iter().filter(|lease| glob.matches(&lease.key));
            let next = page.next.map(ScanPosition::Index);
            let locks = by_key(leases).into_iter().filter_map(state).collect();
            Ok(ScanPage { locks, next, ..ScanPage::default() })
        })
    }
}

//! Asking the store who holds a lock that was busy for a whole wait.
//!
//! Many calls may give up at the same time. Calls for the same key share one look-up, and its result for a
//! second, so that waiting stays cheap for the store.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tokio::sync::OnceCell;

use crate::clock::{BootInstant, unix_time};
use crate::error::LockError;
use crate::store::contract::Backend;
use crate::store::key_holder::KeyHolder;
use crate::sync::{Mutex, lock, time};

/// The limit of a look-up after a short wait.
const SHORTEST_LIMIT: Duration = Duration::from_millis(250);

/// How long calls share a result.
const SHARED_FOR: Duration = Duration::from_secs(1);

/// The number of look-ups at which old ones are first removed.
const FIRST_PURGE: usize = 64;

/// The look-ups of a client.
#[derive(Debug, Default)]
pub(crate) struct HolderLookups {
    recent: Mutex<RecentLookups>,
}

#[derive(Debug, Default)]
struct RecentLookups {
    by_key: HashMap<String, Arc<HolderLookup>>,
    /// The number of look-ups at which old ones are removed.
    purge_at: usize,
}

#[derive(Debug)]
struct HolderLookup {
    began: BootInstant,
    /// `None` if the store has not answered in time, or nobody has the key any more.
    found: OnceCell<Option<KeyHolder>>,
}

impl HolderLookups {
    /// The look-up for a key that this call shares.
    fn of(&self, key: &str) -> Arc<HolderLookup> {
        let now = BootInstant::now();
        let is_recent = |lookup: &Arc<HolderLookup>| now.since(lookup.began) < SHARED_FOR;
        let mut recent = lock(&self.recent);
        if let Some(known) = recent.by_key.get(key).filter(|lookup| is_recent(lookup)) {
            return Arc::clone(known);
        }
        // Not at each insertion, because calls for many keys may give up at once.
        if recent.by_key.len() >= recent.purge_at {
            recent.by_key.retain(|_, lookup| is_recent(lookup));
            recent.purge_at = FIRST_PURGE.max(recent.by_key.len() * 2);
        }
        let lookup = Arc::new(HolderLookup { began: now, found: OnceCell::new() });
        recent.by_key.insert(key.to_owned(), Arc::clone(&lookup));
        lookup
    }

    /// Adds to a `Busy` error who holds the lock. Leaves the error as it is if the store does not tell within
    /// this time, or within the time that the call has waited.
    ///
    /// Cancel safe: another call that shares the look-up asks again.
    pub(crate) async fn complete(
        &self,
        mut error: Box<LockError>,
        backend: &dyn Backend,
        within: Duration,
    ) -> Box<LockError> {
        let LockError::Busy { key, waited, holder, .. } = &mut *error else { return error };
        let end = time::Instant::now() + within.min(SHORTEST_LIMIT.max(*waited));
        let ask = async { time::timeout_at(end, backend.holder(key)).await.ok()?.ok()? };
        let lookup = self.of(key);
        // With a limit for each call: the one that asks may not be polled.
        let found = time::timeout_at(end, lookup.found.get_or_init(|| ask)).await;
        if let Ok(Some(found)) = found {
            found.clone().tell(holder, SystemTime::UNIX_EPOCH + unix_time());
        }
        error
    }
}

#[cfg(all(test, not(lock_shuttle)))]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;
    use crate::client_info::ClientInfo;
    use crate::holder::{Holder, HolderKind};
    use crate::maybe_ready::MaybeReady;
    use crate::store::contract::{BackgroundRuntimes, Layout, LockStore, StoreAnswer, StoreError};
    use crate::store::hold_reports::HoldReports;

    const WITHIN: Duration = Duration::from_secs(1);

    /// A store that answers after some time, or not at all.
    struct SlowBackend {
        delay: Option<Duration>,
        asked: AtomicU32,
    }

    impl SlowBackend {
        fn new(delay: Option<Duration>) -> Self {
            Self { delay, asked: AtomicU32::new(0) }
        }
    }

    impl Backend for SlowBackend {
        fn adopt(&self, _: &BackgroundRuntimes, _: HoldReports) {}

        fn handle(&self, _: Layout) -> Result<Arc<dyn LockStore>, StoreError> {
            unreachable!("it has no locks")
        }

        fn holder<'a>(&'a self, key: &'a str) -> StoreAnswer<'a, Option<KeyHolder>> {
            self.asked.fetch_add(1, Ordering::Relaxed);
            MaybeReady::pending(async move {
                match self.delay {
                    Some(delay) => time::sleep(delay).await,
                    None => std::future::pending().await,
                }
                let mut client = ClientInfo::default();
                client.name = Some(key.to_owned());
                Ok(Some(KeyHolder { client, ..KeyHolder::default() }))
            })
        }
    }

    fn busy(key: &str) -> LockError {
        let holder = Holder::new(HolderKind::Elsewhere);
        LockError::busy(key.to_owned(), WITHIN, holder)
    }

    fn name(error: &LockError) -> Option<&str> {
        match error {
            LockError::Busy { holder, .. } => holder.client.as_ref()?.name.as_deref(),
            other => panic!("{other:?}"),
        }
    }

    #[tokio::test(start_paused = true)]
    async fn calls_for_the_same_key_ask_once() {
        let (lookups, backend) = (HolderLookups::default(), SlowBackend::new(Some(WITHIN / 2)));
        let complete = |key| lookups.complete(Box::new(busy(key)), &backend, WITHIN);
        let (one, two, other) = tokio::join!(complete("k"), complete("k"), complete("other"));
        assert_eq!([name(&one), name(&two), name(&other)], [Some("k"), Some("k"), Some("other")]);
        assert_eq!(backend.asked.load(Ordering::Relaxed), 2);
    }

    #[tokio::test(start_paused = true)]
    async fn a_call_that_is_dropped_leaves_the_question_to_others() {
        let (lookups, backend) = (HolderLookups::default(), SlowBackend::new(Some(WITHIN / 2)));
        let mut first = Box::pin(lookups.complete(Box::new(busy("k")), &backend, WITHIN));
        assert!(time::timeout(WITHIN / 4, &mut first).await.is_err());
        let second = lookups.complete(Box::new(busy("k")), &backend, WITHIN);
        drop(first);
        let second = second.await;
        assert_eq!(name(&second), Some("k"));
        assert_eq!(backend.asked.load(Ordering::Relaxed), 2);
    }

    /// It neither sends its question nor notices the end of its time.
    #[tokio::test(start_paused = true)]
    async fn a_call_that_is_not_polled_holds_up_no_other_one() {
        let (lookups, backend) = (HolderLookups::default(), SlowBackend::new(Some(WITHIN / 2)));
        let mut unpolled = Box::pin(lookups.complete(Box::new(busy("k")), &backend, WITHIN));
        assert!(time::timeout(WITHIN / 4, &mut unpolled).await.is_err());
        let started = time::Instant::now();
        let second = lookups.complete(Box::new(busy("k")), &backend, WITHIN).await;
        assert_eq!((name(&second), started.elapsed()), (None, WITHIN));
        drop(unpolled);
    }

    #[tokio::test(start_paused = true)]
    async fn a_store_that_does_not_answer_leaves_the_error_as_it_is() {
        let (lookups, backend) = (HolderLookups::default(), SlowBackend::new(None));
        let started = time::Instant::now();
        let error = lookups.complete(Box::new(busy("k")), &backend, WITHIN).await;
        assert_eq!(*error, busy("k"));
        assert_eq!(started.elapsed(), WITHIN);
        lookups.complete(Box::new(busy("k")), &backend, WITHIN).await;
        assert_eq!(backend.asked.load(Ordering::Relaxed), 1, "shared for a second");
    }

    #[tokio::test(start_paused = true)]
    async fn old_look_ups_are_removed() {
        let lookups = HolderLookups::default();
        for key in 0..FIRST_PURGE * 10 {
            drop(lookups.of(&key.to_string()));
            if key == FIRST_PURGE * 5 {
                crate::clock::sleep_through(SHARED_FOR);
            }
        }
        assert!(lock(&lookups.recent).by_key.len() < FIRST_PURGE * 10);
        crate::clock::sleep_through(SHARED_FOR);
        lock(&lookups.recent).purge_at = 0;
        drop(lookups.of("last"));
        assert_eq!(lock(&lookups.recent).by_key.len(), 1);
    }
}

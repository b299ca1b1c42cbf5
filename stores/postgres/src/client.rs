//! The requests of a client.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use tokio::time::sleep;
use tokio_postgres::Row;

use super::answers::{acquired, released, renewed};
use super::claims::{self, SharesAsked};
use super::connector::DatabaseConnector;
use super::joined::{JoinedRequests, KeyRequest};
use super::listener::ReleaseListener;
use super::pool::{ConnectionPool, SqlValue};
use super::statements::{self, LockStatement};
use super::{inspection, records, table};
use lock_core::client_info::ClientInfo;
use lock_core::store::announcements::Announced;
use lock_core::store::contract::{
    Acquired, Extension, Extensions, Fenced, Layout, Left, ModeChanged, Released, Renewed,
    StoreError,
};
use lock_core::store::different_limits::DifferentLimits;
use lock_core::store::per_runtime::PerRuntime;
use lock_core::store::periods::{RunEnded, RunRecord, RunStarted};
use lock_core::store::runner::{
    AsyncClient, LeasePage, LeaseRequest, LeaseScan, Owned, RunEndRequest, RunStartRequest,
    StoredLease, WakeUps,
};

/// The pause before a renewal of a row that others have locked, such as to mark it as wanted, and how often it is repeated.
const LOCKED_PAUSE: Duration = Duration::from_millis(20);
const LOCKED_REPEATS: usize = 10;

/// A client of the table.
pub(super) struct PostgresClient {
    connector: DatabaseConnector,
    /// For requests about one lock. One of them may have to wait for another transaction.
    requests: PerRuntime<Arc<JoinedRequests>>,
    /// Renewals, and what is not about one lock.
    renewals: Arc<ConnectionPool>,
    /// Whether notifications arrive.
    is_live: Arc<AtomicBool>,
    limits: DifferentLimits,
}

fn request(owned: &Owned, term: Duration) -> KeyRequest {
    KeyRequest::new(&owned.key, &owned.owner, term)
}

impl PostgresClient {
    pub(super) fn new(connector: DatabaseConnector) -> Self {
        let renewals = Arc::new(ConnectionPool::new(connector.clone(), 1));
        let (requests, is_live) = (PerRuntime::default(), Arc::default());
        Self { connector, requests, renewals, is_live, limits: DifferentLimits::default() }
    }

    /// Whether notifications arrive.
    pub(super) fn is_live(&self) -> &Arc<AtomicBool> {
        &self.is_live
    }

    /// The requests of the current runtime.
    fn requests(&self) -> Arc<JoinedRequests> {
        self.requests.here(|| Arc::new(JoinedRequests::new(self.connector.clone())))
    }

    /// The outcomes of renewals, in their order; `None` if another transaction has locked the row.
    async fn renew_unlocked(
        &self,
        leases: &[&(Owned, Duration)],
    ) -> Vec<Result<Option<Renewed>, StoreError>> {
        // All of them are locks of one kind.
        if leases.first().is_some_and(|(owned, _)| SharesAsked::of(owned.mode).is_some()) {
            return claims::renew_claims(&self.renewals, leases).await;
        }
        let keys: Vec<_> = leases.iter().map(|(owned, _)| owned.key.as_bytes()).collect();
        let owners: Vec<_> = leases.iter().map(|(owned, _)| &*owned.owner).collect();
        let terms: Vec<_> = leases.iter().map(|(_, term)| term.as_secs_f64()).collect();
        let values: [SqlValue<'_>; 3] = [&keys, &owners, &terms];
        let outcome = |row: &Row| match (row.get(0), row.get(1), row.get(2)) {
            (true, _, _) => Some(Renewed::Extended),
            (false, true, _) => Some(Renewed::Taken),
            (false, false, true) => None,
            (false, false, false) => Some(Renewed::Gone),
        };
        renewed(&self.renewals, LockStatement::Renew, (&values, leases.len()), outcome).await
    }

    /// The next token, if the owner has the key.
    async fn issue(&self, owned: &Owned) -> Result<Fenced, StoreError> {
        if SharesAsked::of(owned.mode).is_some() {
            return claims::fence_writer(&self.requests().pool, owned).await;
        }
        let values: [SqlValue<'_>; 2] = [&owned.key.as_bytes(), &owned.owner];
        let row = self.requests().pool.row(LockStatement::Fence, &values).await?;
        let token: Option<i64> = row.get(0);
        Ok(match (token.and_then(|token| u64::try_from(token).ok()), row.get(1)) {
            (Some(token), _) => Fenced::With(token),
            (None, true) => Fenced::Taken,
            (None, false) => Fenced::Gone,
        })
    }
}

impl AsyncClient for PostgresClient {
    async fn connect(self: &Arc<Self>, wake_ups: WakeUps) -> Result<(), StoreError> {
        self.check().await?;
        let listener = ReleaseListener {
            connector: self.connector.clone(),
            pool: Arc::clone(&self.renewals),
            wake_ups,
            is_live: Arc::clone(&self.is_live),
        };
        tokio::spawn(listener.run());
        Ok(())
    }

    async fn check(&self) -> Result<(), StoreError> {
        table::check(&self.renewals).await
    }

    /// If the key seems to be free, a cheaper statement comes first.
    async fn acquire(&self, lease: LeaseRequest) -> Result<Acquired, StoreError> {
        if let Some(shares) = SharesAsked::of(lease.owned.mode) {
            return claims::claim(&self.requests().pool, &self.limits, &lease, shares).await;
        }
        let (requests, LeaseRequest { owned, term, fresh, waits, .. }) = (self.requests(), lease);
        if fresh && let Some(outcome) = requests.acquire_free(request(&owned, term)).await? {
            return Ok(outcome);
        }
        let (key, seconds) = (owned.key.as_bytes(), term.as_secs_f64());
        let values: [SqlValue<'_>; 4] = [&key, &owned.owner, &seconds, &waits];
        let row = requests.pool.row(LockStatement::Acquire, &values).await?;
        acquired(&row, &owned.key, term, Layout::TOKEN)
    }

    /// A row that others have locked for a moment is tried again.
    async fn renew(&self, leases: &[(Owned, Duration)]) -> Vec<Result<Renewed, StoreError>> {
        let all: Vec<_> = leases.iter().collect();
        let mut outcomes = self.renew_unlocked(&all).await;
        for _ in 0..LOCKED_REPEATS {
            let locked: Vec<usize> =
                (0..leases.len()).filter(|&lease| matches!(outcomes[lease], Ok(None))).collect();
            if locked.is_empty() {
                break;
            }
            sleep(LOCKED_PAUSE).await;
            let again: Vec<_> = locked.iter().map(|&lease| &leases[lease]).collect();
            for (lease, outcome) in locked.into_iter().zip(self.renew_unlocked(&again).await) {
                outcomes[lease] = outcome;
            }
        }
        let is_locked =
            || Err(StoreError::Refused("another transaction has locked its row".into()));
        outcomes.into_iter().map(|outcome| outcome?.map_or_else(is_locked, Ok)).collect()
    }

    async fn release(&self, owned: &Owned, keep: Duration) -> Result<Released, StoreError> {
        if let Some(shares) = SharesAsked::of(owned.mode) {
            return claims::leave(&self.requests().pool, owned, keep, shares).await;
        }
        let requests = self.requests();
        if keep.is_zero()
            && let Some(outcome) = requests.release_idle(request(owned, keep)).await?
        {
            return Ok(outcome);
        }
        let (key, seconds) = (owned.key.as_bytes(), keep.as_secs_f64());
        let values: [SqlValue<'_>; 3] = [&key, &owned.owner, &seconds];
        released(&requests.pool.row(LockStatement::Release, &values).await?)
    }

    async fn fence(&self, owned: &Owned, at_least: u64) -> Result<Fenced, StoreError> {
        match self.issue(owned).await? {
            Fenced::With(token) if token < at_least => {}
            issued => return Ok(issued),
        }
        // All tokens come from one sequence, which is behind one of its own only if it has been set back in the meantime.
        let raised = i64::try_from(at_least).unwrap_or(i64::MAX);
        self.requests().pool.execute(&statements::raise_fences(raised)).await?;
        match self.issue(owned).await? {
            Fenced::With(token) if token < at_least => Err(StoreError::Refused(
                "the sequence `distributed_lock_fences` was set back; run `lockctl migrate`"
                    .to_owned(),
            )),
            issued => Ok(issued),
        }
    }

    fn extensions(&self) -> Extensions {
        Extensions::of(&[
            Extension::KeptKeys,
            Extension::Tokens,
            Extension::Queues,
            Extension::Runs,
            Extension::Announcements,
        ])
    }

    fn counted(&self) -> Option<Extensions> {
        Some(self.extensions())
    }

    async fn announce(
        &self,
        owned: &Owned,
        text: &str,
        keep: Duration,
    ) -> Result<Announced, StoreError> {
        records::announce(&self.requests().pool, owned, text, keep).await
    }

    async fn announced(&self, key: &str) -> Result<Option<(String, Left)>, StoreError> {
        records::announced(&self.requests().pool, key).await
    }

    async fn start_run(
        &self,
        owned: &Owned,
        run: RunStartRequest,
    ) -> Result<RunStarted, StoreError> {
        records::start_run(&self.requests().pool, owned, &run).await
    }

    async fn end_run(&self, owned: &Owned, run: RunEndRequest) -> Result<RunEnded, StoreError> {
        records::end_run(&self.requests().pool, owned, &run).await
    }

    async fn last_run(&self, key: &str) -> Result<Option<RunRecord>, StoreError> {
        records::last_run(&self.requests().pool, key).await
    }

    async fn change_mode(&self, owned: &Owned) -> Result<ModeChanged, StoreError> {
        claims::change(&self.requests().pool, owned).await
    }

    fn name_in_transactions(&self, token: String) -> Option<String> {
        Some(token)
    }

    async fn watch(&self, _: &str) -> Result<(), StoreError> {
        if self.is_live.load(Relaxed) {
            return Ok(());
        }
        Err(StoreError::Refused("notifications do not arrive now".to_owned()))
    }

    fn poll_interval(&self) -> Duration {
        if self.is_live.load(Relaxed) { Duration::from_secs(1) } else { Duration::from_millis(250) }
    }

    async fn inspect(&self, key: &str) -> Result<Vec<StoredLease>, StoreError> {
        inspection::inspect(&self.requests().pool, key).await
    }

    async fn scan(&self, scan: LeaseScan<'_>) -> Result<LeasePage, StoreError> {
        inspection::scan(&self.requests().pool, scan).await
    }

    async fn clients(&self, ids: &[String]) -> Result<Vec<ClientInfo>, StoreError> {
        inspection::clients(&self.requests().pool, ids).await
    }
}

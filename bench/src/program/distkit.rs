//! `distkit`.

use std::sync::Arc;

use anyhow::{Result, anyhow};
use distkit::DistkitRedisKey;
use distkit::lock::{LockOptions, Mutex, MutexGuard};
use redis::aio::ConnectionManager;

use super::library::{LEASE, Library, RETRY};

#[derive(Clone)]
pub(super) struct Distkit(ConnectionManager);

impl Library for Distkit {
    // One mutex per task, because the mutex contains the id of the owner.
    type Lock = Arc<Mutex>;
    type Guard = MutexGuard;

    const RENEWS: bool = true;

    fn settings(&self) -> (String, String) {
        let settings = format!("Mutex, ttl 30 s, renewed at a third, retry_interval {RETRY:?}");
        ("0.7".to_owned(), settings)
    }

    async fn connect(url: &str) -> Result<Self> {
        let client = redis::Client::open(url)?;
        Ok(Self(client.get_connection_manager().await?))
    }

    fn lock(&self, key: &str) -> Arc<Mutex> {
        let key = DistkitRedisKey::new_or_panic(key.to_owned());
        let options = LockOptions::builder(key, self.0.clone()).ttl(LEASE).retry_interval(RETRY);
        Mutex::new(options.build())
    }

    async fn acquire(lock: &Arc<Mutex>) -> Result<MutexGuard> {
        lock.lock().await.map_err(|error| anyhow!("{error}"))
    }

    async fn release(guard: MutexGuard) -> Result<()> {
        guard.release().await.map(drop).map_err(|error| anyhow!("{error}"))
    }
}

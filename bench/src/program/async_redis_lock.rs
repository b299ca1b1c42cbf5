//! `async-redis-lock`.

use std::sync::Arc;

use anyhow::Result;
use async_redis_lock::{Lock, Locker, Options};

use super::library::{LEASE, Library, RETRY};

#[derive(Clone)]
pub(super) struct AsyncRedisLock(Locker);

pub(super) struct AsyncRedisKey {
    locker: Locker,
    options: Options,
    name: Arc<str>,
}

impl Library for AsyncRedisLock {
    type Lock = AsyncRedisKey;
    type Guard = Lock;

    const RENEWS: bool = true;

    fn settings(&self) -> (String, String) {
        let settings = format!("ttl 30 s, extended at a third, retry {RETRY:?}, no timeout");
        ("0.4".to_owned(), settings)
    }

    async fn connect(url: &str) -> Result<Self> {
        Ok(Self(Locker::from_redis_url(url).await?))
    }

    fn lock(&self, key: &str) -> AsyncRedisKey {
        let options = Options::new().retry(RETRY).timeout(None).ttl(LEASE).extend(LEASE / 3);
        AsyncRedisKey { locker: self.0.clone(), options, name: key.into() }
    }

    async fn acquire(key: &AsyncRedisKey) -> Result<Lock> {
        Ok(key.locker.acquire_with_options(&key.options, &*key.name).await?)
    }

    async fn release(guard: Lock) -> Result<()> {
        Ok(guard.release().await?)
    }
}

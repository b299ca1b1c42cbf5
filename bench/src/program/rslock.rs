//! `rslock`: Redlock, with one server or several.

use std::sync::Arc;

use anyhow::Result;
use rslock::{LockGuard, LockManager};

use super::library::{LEASE, Library, RETRY};

#[derive(Clone)]
pub(super) struct Rslock {
    manager: LockManager,
    servers: usize,
}

pub(super) struct RslockKey {
    manager: LockManager,
    name: Arc<[u8]>,
}

impl Library for Rslock {
    type Lock = RslockKey;
    type Guard = LockGuard;

    const RENEWS: bool = false;

    fn settings(&self) -> (String, String) {
        let servers = self.servers;
        let settings = format!("acquire, servers: {servers}, ttl 30 s, retry 0 to {:?}", RETRY * 2);
        ("0.10".to_owned(), settings)
    }

    /// The library connects with the first request.
    async fn connect(url: &str) -> Result<Self> {
        let urls = match url.strip_prefix("redis+redlock://") {
            Some(servers) => servers.split(',').map(|server| format!("redis://{server}")).collect(),
            None => vec![url.to_owned()],
        };
        let servers = urls.len();
        let mut manager = LockManager::new(urls);
        // The library sleeps for a random time up to this value.
        manager.set_retry(u32::MAX, RETRY * 2);
        Ok(Self { manager, servers })
    }

    fn lock(&self, key: &str) -> RslockKey {
        RslockKey { manager: self.manager.clone(), name: key.as_bytes().into() }
    }

    async fn acquire(key: &RslockKey) -> Result<LockGuard> {
        Ok(key.manager.acquire(&*key.name, LEASE).await?)
    }

    async fn release(guard: LockGuard) -> Result<()> {
        guard.release().await;
        Ok(())
    }
}

//! `lock-runtime`, on Redis or on the memory store.

use anyhow::Result;
use lock_runtime::{Lock, LockClient, LockGuard, LockSet, LockSetGuard, Wait};

use super::library::Library;

#[derive(Clone)]
pub(super) struct Ours(LockClient);

impl Ours {
    pub(super) fn new(client: LockClient) -> Self {
        Self(client)
    }
}

impl Library for Ours {
    type Lock = Lock;
    type Guard = LockGuard;

    const RENEWS: bool = true;

    fn settings(&self) -> (String, String) {
        let settings = "default settings: 30 s lease, renewed at a third; unlimited wait";
        (env!("CARGO_PKG_VERSION").to_owned(), settings.to_owned())
    }

    async fn connect(url: &str) -> Result<Self> {
        Ok(Self(LockClient::connect(url).await?))
    }

    fn lock(&self, key: &str) -> Lock {
        self.0.lock(key).wait(Wait::Forever)
    }

    async fn acquire(lock: &Lock) -> Result<LockGuard> {
        Ok(lock.acquire().await?)
    }

    async fn release(guard: LockGuard) -> Result<()> {
        Ok(guard.release().await?)
    }
}

/// The same, with this number of keys that are locked together.
#[derive(Clone)]
pub(super) struct KeySets(pub(super) LockClient, pub(super) usize);

impl Library for KeySets {
    type Lock = LockSet;
    type Guard = LockSetGuard;

    const RENEWS: bool = true;

    fn settings(&self) -> (String, String) {
        (env!("CARGO_PKG_VERSION").to_owned(), format!("{} keys together", self.1))
    }

    fn lock(&self, key: &str) -> LockSet {
        self.0.lock_all((0..self.1).map(|n| format!("{key}:{n}"))).wait(Wait::Forever)
    }

    async fn acquire(lock: &LockSet) -> Result<LockSetGuard> {
        Ok(lock.acquire().await?)
    }

    async fn release(guard: LockSetGuard) -> Result<()> {
        Ok(guard.release().await?)
    }
}

/// The same, with read-write locks: the keys `read:k` and `write:k` are those of the lock `k`.
#[derive(Clone)]
pub(super) struct ReadWrite(pub(super) LockClient);

impl Library for ReadWrite {
    type Lock = Lock;
    type Guard = LockGuard;

    const RENEWS: bool = true;

    fn settings(&self) -> (String, String) {
        (env!("CARGO_PKG_VERSION").to_owned(), "read-write locks".to_owned())
    }

    fn lock(&self, key: &str) -> Lock {
        let (mode, key) = key.split_once(':').unwrap_or(("write", key));
        let lock = self.0.read_write(key);
        if mode == "read" { lock.read() } else { lock.write() }.wait(Wait::Forever)
    }

    async fn acquire(lock: &Lock) -> Result<LockGuard> {
        Ok(lock.acquire().await?)
    }

    async fn release(guard: LockGuard) -> Result<()> {
        Ok(guard.release().await?)
    }
}

/// The same, with permits of semaphores: the key `2/10:k` is that of 2 of 10 permits of the semaphore `k`.
#[derive(Clone)]
pub(super) struct PermitLibrary(pub(super) LockClient);

impl Library for PermitLibrary {
    type Lock = Lock;
    type Guard = LockGuard;

    const RENEWS: bool = true;

    fn settings(&self) -> (String, String) {
        (env!("CARGO_PKG_VERSION").to_owned(), "semaphores".to_owned())
    }

    fn lock(&self, key: &str) -> Lock {
        let parts = key.split_once(':').and_then(|(permits, key)| {
            let (count, limit) = permits.split_once('/')?;
            Some((key, count.parse().ok()?, limit.parse().ok()?))
        });
        let (key, count, limit) = parts.unwrap_or((key, 1, 1));
        self.0.semaphore(key, limit).permits(count).wait(Wait::Forever)
    }

    async fn acquire(lock: &Lock) -> Result<LockGuard> {
        Ok(lock.acquire().await?)
    }

    async fn release(guard: LockGuard) -> Result<()> {
        Ok(guard.release().await?)
    }
}

/// The same, with releases that nobody awaits.
#[derive(Clone)]
pub(super) struct InBackground(pub(super) LockClient);

impl Library for InBackground {
    type Lock = Lock;
    type Guard = LockGuard;

    const RENEWS: bool = true;

    fn settings(&self) -> (String, String) {
        (
            env!("CARGO_PKG_VERSION").to_owned(),
            "guards are dropped, as by calls with `release = \"background\"`".to_owned(),
        )
    }

    fn lock(&self, key: &str) -> Lock {
        self.0.lock(key).wait(Wait::Forever)
    }

    async fn acquire(lock: &Lock) -> Result<LockGuard> {
        Ok(lock.acquire().await?)
    }

    async fn release(guard: LockGuard) -> Result<()> {
        drop(guard);
        Ok(())
    }
}

//! The limit for a hot key inside one process: a mutex without a server and without a lease.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::Result;
use tokio::sync::OwnedMutexGuard;

use super::library::Library;

#[derive(Clone, Default)]
pub(super) struct Mutexes(Arc<Mutex<HashMap<String, Arc<tokio::sync::Mutex<()>>>>>);

impl Library for Mutexes {
    type Lock = Arc<tokio::sync::Mutex<()>>;
    type Guard = OwnedMutexGuard<()>;

    const RENEWS: bool = false;

    fn settings(&self) -> (String, String) {
        ("1".to_owned(), "tokio::sync::Mutex in one process; no server".to_owned())
    }

    fn lock(&self, key: &str) -> Self::Lock {
        let mut mutexes = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(mutexes.entry(key.to_owned()).or_default())
    }

    async fn acquire(lock: &Self::Lock) -> Result<Self::Guard> {
        Ok(Arc::clone(lock).lock_owned().await)
    }

    async fn release(guard: Self::Guard) -> Result<()> {
        drop(guard);
        Ok(())
    }
}

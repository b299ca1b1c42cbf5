//! The limits of semaphores, about which their users may disagree.

use std::collections::HashSet;

use tracing::Level;

use crate::events;
use crate::sync::{Mutex, lock};

/// The largest number of keys whose limits are compared with what was logged.
const MOST_KEYS: usize = 100;

/// The keys whose users were seen to disagree about the limit.
#[derive(Debug, Default)]
pub struct DifferentLimits {
    logged: Mutex<HashSet<Box<str>>>,
}

impl DifferentLimits {
    /// A call with this limit has found a holder with another one. Logs that once for each key.
    pub fn found(&self, key: &str, limit: u32, other: u32) {
        let mut logged = lock(&self.logged);
        if logged.contains(key) || logged.len() >= MOST_KEYS {
            return;
        }
        logged.insert(key.into());
        drop(logged);
        let key = key.to_owned();
        events::emit(Level::WARN, move || {
            tracing::warn!(
                target: "lock_runtime::store",
                key,
                limit,
                other,
                "the users of a semaphore have different limits: each call counts by its own"
            );
        });
    }
}

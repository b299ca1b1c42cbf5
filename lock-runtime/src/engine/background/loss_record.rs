//! The last losses of a client, for those who ask.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use crate::clock::unix_time;
use crate::error::LostReason;
use crate::sync::{Mutex, lock};
use crate::telemetry::SiteLabel;

/// The most losses that are remembered.
const MOST_LOSSES: usize = 1000;

/// A lock that was lost while it was held.
#[derive(Debug, Clone)]
pub(crate) struct LossRecord {
    pub(crate) at: SystemTime,
    pub(crate) key: Arc<str>,
    /// Where it was acquired, if that is known.
    pub(crate) label: Option<SiteLabel>,
    pub(crate) reason: LostReason,
    /// `None` if a background release has noticed the loss.
    pub(crate) held_for: Option<Duration>,
}

/// The last losses, the oldest first.
#[derive(Debug, Default)]
pub(crate) struct RecentLosses(Mutex<VecDeque<LossRecord>>);

impl RecentLosses {
    pub(crate) fn add(
        &self,
        key: &Arc<str>,
        label: Option<SiteLabel>,
        (reason, held_for): (LostReason, Option<Duration>),
    ) {
        let at = SystemTime::UNIX_EPOCH + unix_time();
        let mut losses = lock(&self.0);
        if losses.len() == MOST_LOSSES {
            losses.pop_front();
        }
        losses.push_back(LossRecord { at, key: Arc::clone(key), label, reason, held_for });
    }

    /// All of them, the latest first.
    pub(super) fn latest_first(&self) -> Vec<LossRecord> {
        lock(&self.0).iter().rev().cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_losses_are_remembered() {
        let losses = RecentLosses::default();
        for key in 0..MOST_LOSSES + 5 {
            losses.add(&Arc::from(key.to_string()), None, (LostReason::Gone, None));
        }
        let latest = losses.latest_first();
        let keys: Vec<_> = latest.iter().map(|loss| &*loss.key).collect();
        assert_eq!((keys.len(), keys[0], keys[MOST_LOSSES - 1]), (MOST_LOSSES, "1004", "5"));
    }
}

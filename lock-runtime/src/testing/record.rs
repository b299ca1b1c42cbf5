//! A record of what was locked.

use std::time::Duration;

use crate::error::LostReason;
use crate::sync::{Mutex, lock};
use crate::telemetry::{HoldEnd, SiteLabel};

/// A lock that was taken.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Taken {
    /// The key in the store, including the namespace.
    pub key: String,
    /// The template, or `(none)`.
    pub template: &'static str,
    /// The path of the annotated function.
    pub function: Option<&'static str>,
    /// How long the call waited.
    pub waited: Duration,
    /// How the hold ended; `None` while it lasts.
    pub end: Option<TakenEnd>,
}

/// How a hold ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum TakenEnd {
    /// The lock was released after this time.
    Released(Duration),
    /// The lock was lost.
    Lost(LostReason),
}

#[derive(Debug, Default)]
pub(super) struct HoldRecord(Mutex<Vec<Taken>>);

impl HoldRecord {
    pub(super) fn taken(&self) -> Vec<Taken> {
        lock(&self.0).clone()
    }

    pub(super) fn began(&self, key: &str, label: SiteLabel, waited: Duration) {
        let SiteLabel { template, function } = label;
        let taken = Taken { key: key.to_owned(), template, function, waited, end: None };
        lock(&self.0).push(taken);
    }

    /// The first hold of the key that lasts has ended. Holds of one key that last at the same time, of readers
    /// and of permits, cannot be told apart.
    pub(super) fn ended(&self, key: &str, end: HoldEnd) {
        let end = match end {
            HoldEnd::Released(held_for) => TakenEnd::Released(held_for),
            HoldEnd::Lost(reason) => TakenEnd::Lost(reason),
        };
        let mut all = lock(&self.0);
        let open = all.iter_mut().find(|taken| taken.key == key && taken.end.is_none());
        if let Some(taken) = open {
            taken.end = Some(end);
        }
    }
}

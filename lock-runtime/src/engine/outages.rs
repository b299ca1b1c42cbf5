//! Outages of the store, after which calls fail early.
//!
//! Without a limit, a call tries again until its wait ends. With one (`unavailable_after`), the calls for keys of a
//! place fail as soon as the place has given no useful answer for that long. One call makes an attempt every
//! [`ATTEMPT_INTERVAL`], to find out when the store works again; the others fail without a request.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::clock::BootInstant;
use crate::store::contract::Place;
use crate::sync::atomic::{AtomicBool, Ordering};
use crate::sync::{Mutex, lock};

/// How long calls fail without a request after the last attempt.
const ATTEMPT_INTERVAL: Duration = Duration::from_millis(500);

/// The outages of a store.
#[derive(Debug)]
pub(crate) struct Outages {
    /// The longest outage that calls tolerate; `None` if they try again until their waits end.
    tolerated: Option<Duration>,
    /// Whether there is any.
    any: AtomicBool,
    places: Mutex<BTreeMap<Place, Outage>>,
}

#[derive(Debug)]
struct Outage {
    /// When the first attempt failed.
    since: BootInstant,
    /// When the last attempt failed.
    last: BootInstant,
    cause: String,
}

impl Outages {
    pub(crate) fn new(tolerated: Option<Duration>) -> Self {
        Self { tolerated, any: AtomicBool::new(false), places: Mutex::default() }
    }

    /// An attempt was answered.
    #[inline]
    pub(super) fn answered(&self, place: impl FnOnce() -> Place) {
        if self.any.load(Ordering::Relaxed) {
            let mut places = lock(&self.places);
            places.remove(&place());
            self.any.store(!places.is_empty(), Ordering::Relaxed);
        }
    }

    /// An attempt has failed. Returns whether the outage is longer than calls tolerate.
    pub(super) fn failed(&self, place: Place, cause: &str, now: BootInstant) -> bool {
        let Some(tolerated) = self.tolerated else { return false };
        let mut places = lock(&self.places);
        self.any.store(true, Ordering::Relaxed);
        let outage = places.entry(place).or_insert_with(|| Outage {
            since: now,
            last: now,
            cause: String::new(),
        });
        outage.last = outage.last.max(now);
        cause.clone_into(&mut outage.cause);
        now.since(outage.since) >= tolerated
    }

    /// The cause for which a call fails without an attempt.
    #[inline]
    pub(super) fn refuses(&self, place: impl FnOnce() -> Place) -> Option<String> {
        self.any.load(Ordering::Relaxed).then(|| self.refuses_at(place(), BootInstant::now()))?
    }

    fn refuses_at(&self, place: Place, now: BootInstant) -> Option<String> {
        let tolerated = self.tolerated?;
        let mut places = lock(&self.places);
        let outage = places.get_mut(&place)?;
        let is_long = outage.last.since(outage.since) >= tolerated;
        if !is_long || now.since(outage.last) >= ATTEMPT_INTERVAL {
            if is_long {
                // Only this call makes an attempt.
                outage.last = outage.last.max(now);
            }
            return None;
        }
        Some(outage.cause.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TOLERATED: Duration = Duration::from_secs(3);

    fn at(seconds: f64) -> BootInstant {
        BootInstant::from_nanos(1).after(Duration::from_secs_f64(seconds))
    }

    #[test]
    fn calls_fail_when_an_outage_is_longer_than_tolerated() {
        let outages = Outages::new(Some(TOLERATED));
        assert!(!outages.failed(Place::ONLY, "first", at(0.0)));
        assert!(!outages.failed(Place::ONLY, "second", at(2.9)));
        assert_eq!(outages.refuses_at(Place::ONLY, at(2.9)), None);
        assert!(outages.failed(Place::ONLY, "third", at(3.0)));
        assert_eq!(outages.refuses_at(Place::ONLY, at(3.1)).as_deref(), Some("third"));
    }

    #[test]
    fn one_call_makes_an_attempt_now_and_then() {
        let outages = Outages::new(Some(TOLERATED));
        outages.failed(Place::ONLY, "down", at(0.0));
        outages.failed(Place::ONLY, "down", at(3.0));
        assert!(outages.refuses_at(Place::ONLY, at(3.4)).is_some());
        assert!(outages.refuses_at(Place::ONLY, at(3.6)).is_none(), "it makes an attempt");
        assert!(outages.refuses_at(Place::ONLY, at(3.7)).is_some(), "the others do not");
        outages.answered(|| Place::ONLY);
        assert!(outages.refuses_at(Place::ONLY, at(3.7)).is_none());
        assert!(!outages.failed(Place::ONLY, "another outage", at(9.0)));
    }

    #[test]
    fn without_a_limit_nothing_fails_early() {
        let outages = Outages::new(None);
        assert!(!outages.failed(Place::ONLY, "down", at(0.0)));
        assert!(!outages.failed(Place::ONLY, "down", at(1e6)));
        assert_eq!(outages.refuses_at(Place::ONLY, at(1e6)), None);
    }

    #[cfg(any(test, feature = "redis"))]
    #[test]
    fn an_outage_of_one_place_fails_no_call_of_another_one() {
        let outages = Outages::new(Some(TOLERATED));
        let other = Place::numbered(1);
        outages.failed(Place::ONLY, "down", at(0.0));
        assert!(outages.failed(Place::ONLY, "down", at(3.0)));
        assert!(outages.refuses_at(other, at(3.0)).is_none());
        assert!(!outages.failed(other, "down as well", at(3.0)));
        outages.answered(|| other);
        assert!(outages.refuses_at(Place::ONLY, at(3.1)).is_some());
    }
}

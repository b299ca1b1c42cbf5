//! What the connections of a client know of the quarantines of its servers: how long they are, and when they began.
//!
//! The servers of a quorum share the longest quarantine that a client has used there. A server that has lost its data
//! may have lost the lock of a client with a longer lease, and the record of that length with it. The other servers have
//! the record.
//!
//! A quarantine that this client has seen begin is measured by the clock of this process as well, so that it does not
//! end early when the clock of the server is set forward.

use std::collections::HashMap;
use std::time::Duration;

use crate::clock::BootInstant;
use crate::sync::atomic::{AtomicU64, Ordering};
use crate::sync::{Mutex, lock};

/// The longest quarantine. A marker that names a longer one was not written by a client.
const LONGEST: Duration = Duration::from_secs(7 * 24 * 60 * 60);

/// No quarantine is as long. The beginnings of quarantines are moved by this time, because they may lie before the
/// start of the clock.
const SHIFT: Duration = Duration::from_secs(30 * 24 * 60 * 60);

/// The largest number of terms that are kept.
const MOST: usize = 1024;

/// When a quarantine began.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct QuarantineBegin(u64);

impl QuarantineBegin {
    /// A quarantine that began this long before `now`.
    pub fn before(now: BootInstant, age: Duration) -> Self {
        Self(now.after(SHIFT.saturating_sub(age)).as_nanos())
    }

    pub const fn from_nanos(nanos: u64) -> Self {
        Self(nanos)
    }

    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// The time that is left of a quarantine of this length.
    pub fn left(self, length: Duration, now: BootInstant) -> Duration {
        BootInstant::from_nanos(self.0).after(length).since(now.after(SHIFT))
    }
}

/// The quarantines of the servers of a client.
#[derive(Debug)]
pub struct QuarantineTerms {
    /// The quarantine of this client.
    length: Duration,
    /// The longest one that these servers are known to have, in nanoseconds.
    longest: AtomicU64,
    /// Whether the longest one counts, because the servers vote.
    are_shared: bool,
    /// When the quarantine of each term of a server began.
    begun: Mutex<HashMap<String, QuarantineBegin>>,
}

impl QuarantineTerms {
    /// For servers that do not vote.
    pub fn new(length: Duration) -> Self {
        Self::of(length, false)
    }

    /// For the servers of a quorum.
    pub fn of_quorum(length: Duration) -> Self {
        Self::of(length, true)
    }

    fn of(length: Duration, are_shared: bool) -> Self {
        let longest = AtomicU64::new(nanos(length));
        Self { length, longest, are_shared, begun: Mutex::default() }
    }

    /// The quarantine of this client.
    pub fn own(&self) -> Duration {
        self.length
    }

    /// The quarantine of the servers.
    pub fn longest(&self) -> Duration {
        Duration::from_nanos(self.longest.load(Ordering::Acquire))
    }

    /// A client has used one of the servers with a quarantine of this length.
    pub fn has_been_used_with(&self, length: Duration) {
        if self.are_shared {
            self.longest.fetch_max(nanos(length.min(LONGEST)), Ordering::AcqRel);
        }
    }

    /// The quarantine of a term of a server began then, by the clock of the server. Returns when it began at the
    /// earliest, also by the clock of this process.
    pub fn began(&self, term: &str, begin: QuarantineBegin) -> QuarantineBegin {
        let mut terms = lock(&self.begun);
        if let Some(known) = terms.get_mut(term) {
            *known = begin.max(*known);
            return *known;
        }
        if terms.len() >= MOST {
            let (longest, now) = (self.longest(), BootInstant::now());
            terms.retain(|_, begin| !begin.left(longest, now).is_zero());
        }
        terms.insert(term.to_owned(), begin);
        begin
    }
}

fn nanos(length: Duration) -> u64 {
    u64::try_from(length.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn a_quarantine_does_not_end_earlier_when_the_clock_of_its_server_is_set() {
        let (terms, now) = (QuarantineTerms::new(SECOND * 10), BootInstant::now());
        let left = |age, now| {
            let begin = terms.began("term", QuarantineBegin::before(now, age));
            begin.left(terms.longest(), now)
        };
        assert_eq!(left(SECOND, now), SECOND * 9);
        let later = now.after(SECOND * 2);
        assert_eq!(left(SECOND * 1000, later), SECOND * 7, "the clock was set forward");
        assert_eq!(left(SECOND, later), SECOND * 9, "the clock was set back");
    }

    #[test]
    fn a_quarantine_that_began_long_ago_is_over_also_just_after_the_start_of_the_machine() {
        let now = BootInstant::from_nanos(5);
        let begin = QuarantineBegin::before(now, SECOND * 1_000_000_000);
        assert_eq!(begin.left(LONGEST, now), Duration::ZERO);
        assert_eq!(QuarantineBegin::before(now, SECOND * 3).left(SECOND * 4, now), SECOND);
    }

    #[test]
    fn servers_of_a_quorum_have_the_longest_quarantine_of_any_client() {
        let (alone, shared) = (QuarantineTerms::new(SECOND), QuarantineTerms::of_quorum(SECOND));
        for length in [SECOND * 3, SECOND * 2] {
            alone.has_been_used_with(length);
            shared.has_been_used_with(length);
        }
        assert_eq!((alone.longest(), shared.longest()), (SECOND, SECOND * 3));
        shared.has_been_used_with(LONGEST * 2);
        assert_eq!((shared.longest(), shared.own()), (LONGEST, SECOND));
    }
}

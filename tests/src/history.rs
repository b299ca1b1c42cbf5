//! Checks what lock holders did against the promises of the lock.
//!
//! Every holder records events with a [`Recorder`](crate::Recorder): when the hold began, each poll
//! of the body with the deadline that was known, each write to the guarded registers, and when the
//! hold ended. The records of all holders form a history, which is checked for these properties:
//!
//! * **Exclusion.** The intervals in which holders of one key believe that they hold it do not
//!   overlap, except those of readers of a read-write lock. Holders of permits may overlap as far as
//!   all of them together are within the limit of the last one. An interval ends with the hold or with its last known deadline, whichever comes
//!   first. A process that was suspended believes nothing after its deadline, because it checks the
//!   deadline first when it resumes.
//! * **No late poll.** No poll begins after its deadline. A process can be stopped between the
//!   check of the clock and the poll, which no lease can prevent. One late poll is therefore
//!   allowed, as the last one.
//! * **Rising tokens.** Fencing tokens rise from holder to holder.
//! * **No stale write is accepted** by a register that compares tokens.
//! * **No stale write** reaches a register that does not compare tokens, if the injected faults
//!   leave this to the lock.
//!
//! Exclusion and the absence of stale writes depend on assumptions, and are checked where these
//! hold. The other three properties must hold in every history.

use std::collections::HashMap;
use std::fmt;

use crate::{EventKind, HoldEvent};

/// The properties that are checked in addition to those of every history.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Expected {
    /// Exclusion. Requires that the server kept its data and its clock.
    pub exclusion: bool,
    /// No stale write. Requires also that no process was stopped during a poll.
    pub no_stale_write: bool,
}

impl Expected {
    /// All properties.
    pub const EVERYTHING: Self = Self { exclusion: true, no_stale_write: true };
    /// Only the properties of every history.
    pub const THE_LEAST: Self = Self { exclusion: false, no_stale_write: false };
}

/// A violated property.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Violation {
    /// Two holders of a key at the same time.
    Overlap {
        /// The key.
        key: String,
        /// Process and number of the earlier and of the later hold.
        holds: [(u32, u64); 2],
        /// How long both believed that they held the key, in nanoseconds.
        nanos: u64,
    },
    /// More permits than the limit of the last holder.
    TooManyPermits {
        /// The key.
        key: String,
        /// Process and number of the hold that was one too many.
        hold: (u32, u64),
        /// The number of permits that were held, with its own.
        held: u64,
    },
    /// More polls began after the deadline than the one that no lease can prevent.
    LatePolls {
        /// Process and number of the hold.
        hold: (u32, u64),
        /// The number of late polls.
        polls: usize,
    },
    /// A later holder got a token that is not higher.
    TokenDidNotRise {
        /// The key.
        key: String,
        /// The earlier and the later token.
        tokens: [u64; 2],
    },
    /// The register that compares tokens accepted a lower token after a higher one.
    StaleWriteAccepted {
        /// The key.
        key: String,
        /// The earlier and the later token.
        tokens: [u64; 2],
    },
    /// A write arrived after a write of a later holder.
    StaleWrite {
        /// The key.
        key: String,
        /// Process and number of the hold that wrote late.
        hold: (u32, u64),
    },
    /// A key without a holder still existed after its lease had ended.
    Leaked {
        /// The key.
        key: String,
    },
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Overlap { key, holds, nanos } => {
                write!(f, "two holders of {key:?} at once, {holds:?}, for {nanos} ns")
            }
            Self::TooManyPermits { key, hold, held } => {
                write!(f, "{held} permits of {key:?} are held at once, with those of {hold:?}")
            }
            Self::LatePolls { hold, polls } => {
                write!(f, "{polls} polls of {hold:?} began after its deadline")
            }
            Self::TokenDidNotRise { key, tokens } => {
                write!(f, "the fencing tokens of {key:?} do not rise: {tokens:?}")
            }
            Self::StaleWriteAccepted { key, tokens } => {
                write!(f, "a stale write to {key:?} was accepted: {tokens:?}")
            }
            Self::StaleWrite { key, hold } => write!(f, "a stale write of {hold:?} to {key:?}"),
            Self::Leaked { key } => write!(f, "{key:?} was not freed"),
        }
    }
}

/// The events of all holders.
#[derive(Debug, Default)]
pub struct History {
    events: Vec<HoldEvent>,
}

/// One hold, reconstructed from its events.
#[derive(Debug)]
struct RecordedHold {
    id: (u32, u64),
    key: String,
    is_reader: bool,
    /// The number of permits, and their limit.
    permits: Option<(u64, u64)>,
    acquired: u64,
    /// The latest known deadline.
    deadline: u64,
    /// When the hold ended or its process was killed.
    ended: Option<u64>,
    polls: Vec<(u64, u64)>,
    token: Option<u64>,
}

impl RecordedHold {
    /// When the holder stopped believing that it held the key.
    fn until(&self) -> u64 {
        self.ended.map_or(self.deadline, |ended| ended.min(self.deadline))
    }
}

impl History {
    /// A history of these events, which may be in any order.
    #[must_use]
    pub fn new(mut events: Vec<HoldEvent>) -> Self {
        events.sort_by_key(|event| event.at);
        Self { events }
    }

    /// The number of holds.
    #[must_use]
    pub fn grants(&self) -> usize {
        self.events.iter().filter(|event| matches!(event.kind, EventKind::Acquired { .. })).count()
    }

    /// The number of polls of bodies.
    #[must_use]
    pub fn polls(&self) -> usize {
        self.events.iter().filter(|event| matches!(event.kind, EventKind::Poll { .. })).count()
    }

    /// The sorted times in nanoseconds from the end of each hold to the beginning of the next hold
    /// of its key. Overlapping holds are left out.
    #[must_use]
    pub fn handoffs(&self) -> Vec<u64> {
        let mut pauses = Vec::new();
        for holds in self.by_key().values() {
            let pairs = holds.windows(2);
            pauses.extend(pairs.filter_map(|pair| pair[1].acquired.checked_sub(pair[0].until())));
        }
        pauses.sort_unstable();
        pauses
    }

    /// The numbers of overlaps and of stale writes, whether or not they are expected.
    #[must_use]
    pub fn overlaps_and_stale_writes(&self) -> (u64, u64) {
        let everything = self.violations(Expected::EVERYTHING);
        let count = |what: fn(&Violation) -> bool| {
            u64::try_from(everything.iter().filter(|violation| what(violation)).count())
                .expect("few")
        };
        let overlaps = count(|violation| matches!(violation, Violation::Overlap { .. }));
        let stale = count(|violation| matches!(violation, Violation::StaleWrite { .. }));
        (overlaps, stale)
    }

    /// All violations of the expected properties.
    #[must_use]
    pub fn violations(&self, expected: Expected) -> Vec<Violation> {
        let mut found = Vec::new();
        for (key, holds) in self.by_key() {
            if expected.exclusion {
                overlaps(&key, &holds, &mut found);
                excesses(&key, &holds, &mut found);
            }
            for hold in &holds {
                let late = hold.polls.iter().filter(|(at, deadline)| at > deadline).count();
                let last_is = hold.polls.last().is_some_and(|(at, deadline)| at > deadline);
                if late > usize::from(last_is) {
                    found.push(Violation::LatePolls { hold: hold.id, polls: late });
                }
            }
            let tokens: Vec<u64> = holds.iter().filter_map(|hold| hold.token).collect();
            for pair in tokens.windows(2).filter(|pair| pair[1] <= pair[0]) {
                let tokens = [pair[0], pair[1]];
                found.push(Violation::TokenDidNotRise { key: key.clone(), tokens });
            }
            self.accepted(&key, &mut found);
            if expected.no_stale_write {
                self.stale(&key, &holds, &mut found);
            }
        }
        found
    }

    /// The holds of each key, ordered by their beginning.
    fn by_key(&self) -> HashMap<String, Vec<RecordedHold>> {
        let mut holds: HashMap<(u32, u64, &str), RecordedHold> = HashMap::new();
        for event in &self.events {
            if event.kind == EventKind::Killed {
                let of_process = holds.values_mut().filter(|hold| hold.id.0 == event.process);
                for hold in of_process {
                    hold.ended.get_or_insert(event.at);
                }
                continue;
            }
            let id = (event.process, event.hold);
            let hold =
                holds.entry((event.process, event.hold, &event.key)).or_insert(RecordedHold {
                    id,
                    key: event.key.clone(),
                    is_reader: false,
                    permits: None,
                    acquired: event.at,
                    deadline: 0,
                    ended: None,
                    polls: Vec::new(),
                    token: None,
                });
            match event.kind {
                EventKind::Acquired { deadline } | EventKind::Held { deadline } => {
                    hold.deadline = hold.deadline.max(deadline);
                }
                EventKind::Poll { deadline } => {
                    hold.deadline = hold.deadline.max(deadline);
                    hold.polls.push((event.at, deadline));
                }
                EventKind::Fenced { token } => hold.token = Some(token),
                EventKind::Reads => hold.is_reader = true,
                EventKind::HasPermits { count, limit } => hold.permits = Some((count, limit)),
                EventKind::Ended => {
                    hold.ended.get_or_insert(event.at);
                }
                EventKind::Wrote { .. } | EventKind::Accepted { .. } | EventKind::Killed => {}
            }
        }
        let mut by_key: HashMap<String, Vec<RecordedHold>> = HashMap::new();
        for hold in holds.into_values() {
            by_key.entry(hold.key.clone()).or_default().push(hold);
        }
        for holds in by_key.values_mut() {
            holds.sort_by_key(|hold| (hold.acquired, hold.id));
        }
        by_key
    }

    fn accepted(&self, key: &str, found: &mut Vec<Violation>) {
        let mut accepted: Vec<(u64, u64)> = self
            .of_key(key)
            .filter_map(|event| match event.kind {
                EventKind::Accepted { order, token } => Some((order, token)),
                _ => None,
            })
            .collect();
        accepted.sort_unstable();
        for pair in accepted.windows(2).filter(|pair| pair[1].1 < pair[0].1) {
            let tokens = [pair[0].1, pair[1].1];
            found.push(Violation::StaleWriteAccepted { key: key.to_owned(), tokens });
        }
    }

    fn stale(&self, key: &str, holds: &[RecordedHold], found: &mut Vec<Violation>) {
        let rank: HashMap<(u32, u64), usize> =
            holds.iter().enumerate().map(|(rank, hold)| (hold.id, rank)).collect();
        let mut writes: Vec<(u64, (u32, u64))> = self
            .of_key(key)
            .filter_map(|event| match event.kind {
                EventKind::Wrote { order } => Some((order, (event.process, event.hold))),
                _ => None,
            })
            .collect();
        writes.sort_unstable();
        let mut highest = 0;
        for (_, hold) in writes {
            if rank[&hold] < highest {
                found.push(Violation::StaleWrite { key: key.to_owned(), hold });
            }
            highest = highest.max(rank[&hold]);
        }
    }

    fn of_key<'a>(&'a self, key: &'a str) -> impl Iterator<Item = &'a HoldEvent> {
        self.events.iter().filter(move |event| event.key == key)
    }
}

fn overlaps(key: &str, holds: &[RecordedHold], found: &mut Vec<Violation>) {
    // The holds that end last, of readers and of others.
    let (mut readers, mut others): (Option<&RecordedHold>, Option<&RecordedHold>) = (None, None);
    for hold in holds.iter().filter(|hold| hold.permits.is_none()) {
        let excluded = others.into_iter().chain(readers.filter(|_| !hold.is_reader));
        for before in excluded.filter(|before| before.until() > hold.acquired) {
            found.push(Violation::Overlap {
                key: key.to_owned(),
                holds: [before.id, hold.id],
                nanos: before.until().min(hold.until()).saturating_sub(hold.acquired),
            });
        }
        let latest = if hold.is_reader { &mut readers } else { &mut others };
        if latest.is_none_or(|before| before.until() < hold.until()) {
            *latest = Some(hold);
        }
    }
}

fn excesses(key: &str, holds: &[RecordedHold], found: &mut Vec<Violation>) {
    // The holds of permits that have not ended before the last one began.
    let mut current: Vec<&RecordedHold> = Vec::new();
    for hold in holds {
        let Some((_, limit)) = hold.permits else { continue };
        current.retain(|before| before.until() > hold.acquired);
        current.push(hold);
        let held = current.iter().filter_map(|hold| hold.permits).map(|(count, _)| count).sum();
        if held > limit {
            found.push(Violation::TooManyPermits { key: key.to_owned(), hold: hold.id, held });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(at: u64, process: u32, kind: EventKind) -> HoldEvent {
        HoldEvent { at, process, key: "k".into(), hold: 1, kind }
    }

    /// A hold of `process` from one instant to another, with one poll before its deadline.
    fn hold(process: u32, from: u64, to: u64) -> Vec<HoldEvent> {
        let deadline = to + 100;
        vec![
            event(from, process, EventKind::Acquired { deadline }),
            event(from + 1, process, EventKind::Poll { deadline }),
            event(to, process, EventKind::Ended),
        ]
    }

    fn violations(events: Vec<HoldEvent>) -> Vec<Violation> {
        History::new(events).violations(Expected::EVERYTHING)
    }

    #[test]
    fn consecutive_holds_are_no_violation() {
        let mut events = hold(1, 10, 20);
        events.extend(hold(2, 20, 30));
        assert_eq!(violations(events), []);
    }

    #[test]
    fn overlapping_holds_are_a_violation() {
        let mut events = hold(1, 10, 20);
        events.extend(hold(2, 15, 30));
        let holds = [(1, 1), (2, 1)];
        assert_eq!(violations(events), [Violation::Overlap { key: "k".into(), holds, nanos: 5 }]);
    }

    #[test]
    fn each_hold_inside_a_longer_hold_is_a_violation() {
        let mut events = hold(1, 10, 100);
        events.extend(hold(2, 20, 30));
        events.extend(hold(3, 50, 60));
        assert_eq!(violations(events).len(), 2);
    }

    #[test]
    fn a_writer_beside_a_reader_is_a_violation_and_readers_are_none() {
        let reader = |process, from, until| {
            let mut events = hold(process, from, until);
            events.push(event(from, process, EventKind::Reads));
            events
        };
        let mut events = reader(1, 10, 50);
        events.extend(reader(2, 20, 60));
        events.extend(hold(3, 60, 70));
        events.extend(reader(4, 70, 80));
        assert_eq!(violations(events.clone()), []);
        events.extend(hold(5, 75, 90));
        let holds = [(4, 1), (5, 1)];
        assert_eq!(violations(events), [Violation::Overlap { key: "k".into(), holds, nanos: 5 }]);
    }

    #[test]
    fn permits_beyond_the_limit_of_the_last_holder_are_a_violation() {
        let permits = |process, from, until, (count, limit)| {
            let mut events = hold(process, from, until);
            events.push(event(from, process, EventKind::HasPermits { count, limit }));
            events
        };
        let mut events = permits(1, 10, 50, (1, 3));
        events.extend(permits(2, 20, 30, (2, 3)));
        events.extend(permits(3, 30, 60, (2, 3)));
        events.extend(permits(4, 40, 60, (1, 10)));
        assert_eq!(violations(events.clone()), []);
        events.extend(permits(5, 49, 60, (1, 4)));
        let excess = Violation::TooManyPermits { key: "k".into(), hold: (5, 1), held: 5 };
        assert_eq!(violations(events), [excess]);
    }

    #[test]
    fn a_suspended_holder_holds_nothing_after_its_deadline() {
        let mut events = vec![
            event(10, 1, EventKind::Acquired { deadline: 50 }),
            event(11, 1, EventKind::Poll { deadline: 50 }),
            // Recorded after the process resumed.
            event(90, 1, EventKind::Ended),
        ];
        events.extend(hold(2, 50, 60));
        assert_eq!(violations(events.clone()), []);
        // The process knew a later deadline.
        events.insert(2, event(12, 1, EventKind::Poll { deadline: 55 }));
        assert_eq!(violations(events).len(), 1);
    }

    #[test]
    fn a_renewed_hold_without_polls_lasts_until_its_end() {
        let mut events = vec![
            event(10, 1, EventKind::Acquired { deadline: 50 }),
            event(90, 1, EventKind::Held { deadline: 130 }),
            event(90, 1, EventKind::Ended),
        ];
        events.extend(hold(2, 60, 100));
        assert_eq!(violations(events).len(), 1);
    }

    #[test]
    fn a_killed_process_holds_nothing() {
        let mut events = vec![event(10, 1, EventKind::Acquired { deadline: 50 })];
        events.extend(hold(2, 40, 60));
        assert_eq!(violations(events.clone()).len(), 1, "as far as its records show");
        events.push(event(30, 1, EventKind::Killed));
        assert_eq!(violations(events), []);
    }

    #[test]
    fn holds_of_different_keys_may_overlap() {
        let mut events = hold(1, 10, 20);
        events.extend(
            hold(2, 15, 30).into_iter().map(|event| HoldEvent { key: "l".into(), ..event }),
        );
        assert_eq!(violations(events), []);
    }

    #[test]
    fn one_late_poll_is_allowed_as_the_last_poll() {
        let late = event(60, 1, EventKind::Poll { deadline: 50 });
        let mut events = vec![event(10, 1, EventKind::Acquired { deadline: 50 }), late.clone()];
        assert_eq!(violations(events.clone()), []);
        events.push(HoldEvent { at: 61, ..late });
        assert_eq!(violations(events), [Violation::LatePolls { hold: (1, 1), polls: 2 }]);

        let events = vec![
            event(10, 1, EventKind::Acquired { deadline: 50 }),
            event(60, 1, EventKind::Poll { deadline: 50 }),
            event(61, 1, EventKind::Poll { deadline: 90 }),
        ];
        assert_eq!(violations(events), [Violation::LatePolls { hold: (1, 1), polls: 1 }]);
    }

    #[test]
    fn tokens_must_rise_in_the_order_of_the_holds() {
        let mut events = hold(1, 10, 20);
        events.extend(hold(2, 20, 30));
        events.push(event(12, 1, EventKind::Fenced { token: 7 }));
        let mut right = events.clone();
        right.push(event(22, 2, EventKind::Fenced { token: 8 }));
        assert_eq!(violations(right), []);
        for token in [7, 6] {
            let mut wrong = events.clone();
            wrong.push(event(22, 2, EventKind::Fenced { token }));
            let tokens = [7, token];
            assert_eq!(violations(wrong), [Violation::TokenDidNotRise { key: "k".into(), tokens }]);
        }
    }

    #[test]
    fn a_stale_write_that_was_accepted_is_a_violation() {
        let mut events = hold(1, 10, 20);
        events.extend(hold(2, 20, 30));
        for (order, token) in [(1, 7), (2, 7), (4, 7), (3, 8)] {
            events.push(event(25, 1, EventKind::Accepted { order, token }));
        }
        let history = History::new(events);
        assert_eq!(
            history.violations(Expected::THE_LEAST),
            [Violation::StaleWriteAccepted { key: "k".into(), tokens: [8, 7] }],
            "checked in every history"
        );
    }

    #[test]
    fn a_write_after_a_write_of_a_later_holder_is_stale() {
        let mut events = hold(1, 10, 20);
        events.extend(hold(2, 20, 30));
        events.push(event(15, 1, EventKind::Wrote { order: 1 }));
        events.push(event(25, 2, EventKind::Wrote { order: 2 }));
        assert_eq!(violations(events.clone()), []);
        events.push(event(26, 1, EventKind::Wrote { order: 3 }));
        let history = History::new(events);
        let stale = Violation::StaleWrite { key: "k".into(), hold: (1, 1) };
        assert_eq!(history.violations(Expected::EVERYTHING), [stale]);
        assert_eq!(history.violations(Expected::THE_LEAST), [], "not promised");
    }

    #[test]
    fn exclusion_is_checked_only_if_it_is_expected() {
        let mut events = hold(1, 10, 20);
        events.extend(hold(2, 15, 30));
        assert_eq!(History::new(events).violations(Expected::THE_LEAST), []);
    }

    #[test]
    fn hand_offs_are_measured_from_the_end_of_a_hold_to_the_next_hold() {
        let mut events = hold(1, 10, 20);
        events.extend(hold(2, 25, 30));
        events.extend(hold(3, 31, 40));
        assert_eq!(History::new(events).handoffs(), [1, 5]);
    }
}

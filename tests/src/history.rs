//! What holders of locks have done, and whether they were allowed to.
//!
//! Every holder writes a [`Diary`](crate::Diary): when it began, each poll of its body with the
//! deadline that it knew of, each write to the guarded register, when it ended. Put together the
//! diaries are a history, which is then held against the promises:
//!
//! * **Exclusion.** The intervals in which holders of one key believed to hold it never overlap. Such
//!   an interval ends with the hold or with its last known deadline, whichever is first: a process
//!   that was frozen believes nothing after its deadline, because it looks before it goes on.
//! * **No late poll.** No poll begins after its deadline. A process may be stopped between the look at
//!   the clock and the poll, which no lease can prevent; so there may be one late poll, the last one.
//! * **Rising tokens.** Fencing tokens rise from holder to holder.
//! * **No stale write is accepted** by a register that looks at the tokens.
//! * **No stale write** reaches a register that does not, where the faults leave that to the lock.
//!
//! Exclusion and stale writes are a matter of the assumptions, and asked for where those hold; the
//! other three have to be so in every history.

use std::collections::HashMap;
use std::fmt;

use crate::{Event, What};

/// What is asked of a history beyond what has to be so in each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Expected {
    /// The server kept its data and its clock.
    pub exclusion: bool,
    /// And nobody was stopped in the middle of a poll.
    pub no_stale_write: bool,
}

impl Expected {
    /// Both.
    pub const EVERYTHING: Self = Self { exclusion: true, no_stale_write: true };
    /// What holds whatever happens.
    pub const THE_LEAST: Self = Self { exclusion: false, no_stale_write: false };
}

/// A promise that was broken.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Violation {
    /// Two holders of a key at once.
    Overlap {
        /// The key.
        key: String,
        /// Process and number of the earlier hold, and of the later one.
        holds: [(u32, u64); 2],
        /// For how long, in nanoseconds, both believed to hold it.
        nanos: u64,
    },
    /// Polls that began after the deadline, more than the one that nothing can stop.
    LatePolls {
        /// Process and number.
        hold: (u32, u64),
        /// How many.
        polls: usize,
    },
    /// A later holder was given a token that is not higher.
    TokenDidNotRise {
        /// The key.
        key: String,
        /// The earlier token and the later one.
        tokens: [u64; 2],
    },
    /// The register that looks at tokens has accepted a lower one after a higher one.
    StaleWriteAccepted {
        /// The key.
        key: String,
        /// The earlier token and the later one.
        tokens: [u64; 2],
    },
    /// A write came after one of a later holder.
    StaleWrite {
        /// The key.
        key: String,
        /// Process and number of the late hold.
        hold: (u32, u64),
    },
    /// A key that nobody holds was still there when its lease was over.
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
            Self::Leaked { key } => write!(f, "{key:?} was left behind"),
        }
    }
}

/// All diaries together.
#[derive(Debug, Default)]
pub struct History {
    events: Vec<Event>,
}

/// One hold, as its diary tells it.
#[derive(Debug)]
struct Hold {
    id: (u32, u64),
    key: String,
    acquired: u64,
    /// The last deadline that is known of.
    deadline: u64,
    /// It ended, or its process was killed.
    ended: Option<u64>,
    polls: Vec<(u64, u64)>,
    token: Option<u64>,
}

impl Hold {
    /// When it believed no more to hold its key.
    fn until(&self) -> u64 {
        self.ended.map_or(self.deadline, |ended| ended.min(self.deadline))
    }
}

impl History {
    /// Of these events, in any order.
    #[must_use]
    pub fn new(mut events: Vec<Event>) -> Self {
        events.sort_by_key(|event| event.at);
        Self { events }
    }

    /// How many holds there were.
    #[must_use]
    pub fn grants(&self) -> usize {
        self.events.iter().filter(|event| matches!(event.what, What::Acquired { .. })).count()
    }

    /// How many polls of bodies there were.
    #[must_use]
    pub fn polls(&self) -> usize {
        self.events.iter().filter(|event| matches!(event.what, What::Poll { .. })).count()
    }

    /// From the end of each hold to the beginning of the next one of its key, in nanoseconds, where
    /// that one did not begin before. Sorted.
    #[must_use]
    pub fn hand_overs(&self) -> Vec<u64> {
        let mut pauses = Vec::new();
        for holds in self.by_key().values() {
            let pairs = holds.windows(2);
            pauses.extend(pairs.filter_map(|pair| pair[1].acquired.checked_sub(pair[0].until())));
        }
        pauses.sort_unstable();
        pauses
    }

    /// What was not as promised. Empty: all was well.
    #[must_use]
    pub fn violations(&self, expected: Expected) -> Vec<Violation> {
        let mut found = Vec::new();
        for (key, holds) in self.by_key() {
            if expected.exclusion {
                overlaps(&key, &holds, &mut found);
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

    /// The holds of each key, in the order in which they began.
    fn by_key(&self) -> HashMap<String, Vec<Hold>> {
        let mut holds: HashMap<(u32, u64, &str), Hold> = HashMap::new();
        for event in &self.events {
            if event.what == What::Killed {
                let of_process = holds.values_mut().filter(|hold| hold.id.0 == event.process);
                for hold in of_process {
                    hold.ended.get_or_insert(event.at);
                }
                continue;
            }
            let id = (event.process, event.hold);
            let hold = holds.entry((event.process, event.hold, &event.key)).or_insert(Hold {
                id,
                key: event.key.clone(),
                acquired: event.at,
                deadline: 0,
                ended: None,
                polls: Vec::new(),
                token: None,
            });
            match event.what {
                What::Acquired { deadline } | What::Held { deadline } => {
                    hold.deadline = hold.deadline.max(deadline);
                }
                What::Poll { deadline } => {
                    hold.deadline = hold.deadline.max(deadline);
                    hold.polls.push((event.at, deadline));
                }
                What::Fenced { token } => hold.token = Some(token),
                What::Ended => {
                    hold.ended.get_or_insert(event.at);
                }
                What::Wrote { .. } | What::Accepted { .. } | What::Killed => {}
            }
        }
        let mut by_key: HashMap<String, Vec<Hold>> = HashMap::new();
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
            .filter_map(|event| match event.what {
                What::Accepted { order, token } => Some((order, token)),
                _ => None,
            })
            .collect();
        accepted.sort_unstable();
        for pair in accepted.windows(2).filter(|pair| pair[1].1 < pair[0].1) {
            let tokens = [pair[0].1, pair[1].1];
            found.push(Violation::StaleWriteAccepted { key: key.to_owned(), tokens });
        }
    }

    fn stale(&self, key: &str, holds: &[Hold], found: &mut Vec<Violation>) {
        let rank: HashMap<(u32, u64), usize> =
            holds.iter().enumerate().map(|(rank, hold)| (hold.id, rank)).collect();
        let mut writes: Vec<(u64, (u32, u64))> = self
            .of_key(key)
            .filter_map(|event| match event.what {
                What::Wrote { order } => Some((order, (event.process, event.hold))),
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

    fn of_key<'a>(&'a self, key: &'a str) -> impl Iterator<Item = &'a Event> {
        self.events.iter().filter(move |event| event.key == key)
    }
}

fn overlaps(key: &str, holds: &[Hold], found: &mut Vec<Violation>) {
    let mut latest: Option<&Hold> = None;
    for hold in holds {
        if let Some(before) = latest.filter(|before| before.until() > hold.acquired) {
            found.push(Violation::Overlap {
                key: key.to_owned(),
                holds: [before.id, hold.id],
                nanos: before.until().min(hold.until()).saturating_sub(hold.acquired),
            });
        }
        if latest.is_none_or(|before| before.until() < hold.until()) {
            latest = Some(hold);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(at: u64, process: u32, what: What) -> Event {
        Event { at, process, key: "k".into(), hold: 1, what }
    }

    /// A hold by each of these processes, from one instant to another, in time.
    fn hold(process: u32, from: u64, to: u64) -> Vec<Event> {
        let deadline = to + 100;
        vec![
            event(from, process, What::Acquired { deadline }),
            event(from + 1, process, What::Poll { deadline }),
            event(to, process, What::Ended),
        ]
    }

    fn violations(events: Vec<Event>) -> Vec<Violation> {
        History::new(events).violations(Expected::EVERYTHING)
    }

    #[test]
    fn one_holder_after_the_other_is_well() {
        let mut events = hold(1, 10, 20);
        events.extend(hold(2, 20, 30));
        assert_eq!(violations(events), []);
    }

    #[test]
    fn two_at_once_are_not() {
        let mut events = hold(1, 10, 20);
        events.extend(hold(2, 15, 30));
        let holds = [(1, 1), (2, 1)];
        assert_eq!(violations(events), [Violation::Overlap { key: "k".into(), holds, nanos: 5 }]);
    }

    #[test]
    fn nor_is_one_inside_a_longer_one_that_another_came_between() {
        let mut events = hold(1, 10, 100);
        events.extend(hold(2, 20, 30));
        events.extend(hold(3, 50, 60));
        assert_eq!(violations(events).len(), 2);
    }

    #[test]
    fn who_was_frozen_believes_nothing_after_its_deadline() {
        let mut events = vec![
            event(10, 1, What::Acquired { deadline: 50 }),
            event(11, 1, What::Poll { deadline: 50 }),
            // When it was thawed.
            event(90, 1, What::Ended),
        ];
        events.extend(hold(2, 50, 60));
        assert_eq!(violations(events.clone()), []);
        // It knew of a later one.
        events.insert(2, event(12, 1, What::Poll { deadline: 55 }));
        assert_eq!(violations(events).len(), 1);
    }

    #[test]
    fn who_was_not_polled_for_long_believes_until_its_end() {
        let mut events = vec![
            event(10, 1, What::Acquired { deadline: 50 }),
            event(90, 1, What::Held { deadline: 130 }),
            event(90, 1, What::Ended),
        ];
        events.extend(hold(2, 60, 100));
        assert_eq!(violations(events).len(), 1);
    }

    #[test]
    fn who_was_killed_believes_nothing_either() {
        let mut events = vec![event(10, 1, What::Acquired { deadline: 50 })];
        events.extend(hold(2, 40, 60));
        assert_eq!(violations(events.clone()).len(), 1, "as far as its diary tells");
        events.push(event(30, 1, What::Killed));
        assert_eq!(violations(events), []);
    }

    #[test]
    fn holds_of_other_keys_are_their_own() {
        let mut events = hold(1, 10, 20);
        events.extend(hold(2, 15, 30).into_iter().map(|event| Event { key: "l".into(), ..event }));
        assert_eq!(violations(events), []);
    }

    #[test]
    fn one_late_poll_may_be_and_only_as_the_last() {
        let late = event(60, 1, What::Poll { deadline: 50 });
        let mut events = vec![event(10, 1, What::Acquired { deadline: 50 }), late.clone()];
        assert_eq!(violations(events.clone()), []);
        events.push(Event { at: 61, ..late });
        assert_eq!(violations(events), [Violation::LatePolls { hold: (1, 1), polls: 2 }]);

        let events = vec![
            event(10, 1, What::Acquired { deadline: 50 }),
            event(60, 1, What::Poll { deadline: 50 }),
            event(61, 1, What::Poll { deadline: 90 }),
        ];
        assert_eq!(violations(events), [Violation::LatePolls { hold: (1, 1), polls: 1 }]);
    }

    #[test]
    fn tokens_rise_in_the_order_of_the_holds() {
        let mut events = hold(1, 10, 20);
        events.extend(hold(2, 20, 30));
        events.push(event(12, 1, What::Fenced { token: 7 }));
        let mut right = events.clone();
        right.push(event(22, 2, What::Fenced { token: 8 }));
        assert_eq!(violations(right), []);
        for token in [7, 6] {
            let mut wrong = events.clone();
            wrong.push(event(22, 2, What::Fenced { token }));
            let tokens = [7, token];
            assert_eq!(violations(wrong), [Violation::TokenDidNotRise { key: "k".into(), tokens }]);
        }
    }

    #[test]
    fn a_register_that_looks_accepts_nothing_stale() {
        let mut events = hold(1, 10, 20);
        events.extend(hold(2, 20, 30));
        for (order, token) in [(1, 7), (2, 7), (4, 7), (3, 8)] {
            events.push(event(25, 1, What::Accepted { order, token }));
        }
        let history = History::new(events);
        assert_eq!(
            history.violations(Expected::THE_LEAST),
            [Violation::StaleWriteAccepted { key: "k".into(), tokens: [8, 7] }],
            "in every history"
        );
    }

    #[test]
    fn a_write_after_one_of_a_later_holder_is_stale() {
        let mut events = hold(1, 10, 20);
        events.extend(hold(2, 20, 30));
        events.push(event(15, 1, What::Wrote { order: 1 }));
        events.push(event(25, 2, What::Wrote { order: 2 }));
        assert_eq!(violations(events.clone()), []);
        events.push(event(26, 1, What::Wrote { order: 3 }));
        let history = History::new(events);
        let stale = Violation::StaleWrite { key: "k".into(), hold: (1, 1) };
        assert_eq!(history.violations(Expected::EVERYTHING), [stale]);
        assert_eq!(history.violations(Expected::THE_LEAST), [], "nobody promised that");
    }

    #[test]
    fn what_is_not_promised_is_not_asked_for() {
        let mut events = hold(1, 10, 20);
        events.extend(hold(2, 15, 30));
        assert_eq!(History::new(events).violations(Expected::THE_LEAST), []);
    }

    #[test]
    fn hand_overs_are_measured_from_hold_to_hold() {
        let mut events = hold(1, 10, 20);
        events.extend(hold(2, 25, 30));
        events.extend(hold(3, 31, 40));
        assert_eq!(History::new(events).hand_overs(), [1, 5]);
    }
}

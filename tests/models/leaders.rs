//! Leaders that announce themselves, and an observer who asks who leads.
//!
//! A candidate that has the lock requests its term, leads, announces itself again and again, and resigns,
//! as `leadership/mod.rs` and `leadership/leader.rs` define. The store has the key of the lock, the last
//! fencing token, and the announcement, and behaves as `fence.lua`, `announce.lua` and `announced.lua`,
//! with `owned.lua` before the first two. An observer asks one question at a time, so a question and its
//! answer are one step.
//!
//! A request of a candidate and its answer take any time and may be lost. A request that is not awaited any
//! more may arrive at any time. A candidate may crash, give up or lose its lock at any point; the key of a
//! lock that is not held, and an announcement, expire at any later time. That no two candidates
//! have the lock at a time is left to the model of the protocol.

use stateright::{Model, Property};

use crate::check::{holds, violates};

/// A term is higher than those of all earlier leaders.
const TERMS_RISE: &str = "terms rise";
/// The announcement of a leader is not replaced by that of an earlier one.
const ANNOUNCEMENTS_RISE: &str = "no announcement is replaced by that of an earlier leader";
/// An observer sees no earlier leader after a later one.
const OBSERVED_RISES: &str = "no earlier leader is seen after a later one";
/// An observer sees only the candidate that has the lock.
const OBSERVED_HAS_LOCK: &str = "only the holder of the lock is seen";
/// An observer sees no earlier name of a leader after a later one.
const NAMES_RISE: &str = "no earlier name is seen after a later one";

/// The configuration of the model.
#[derive(Clone, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "each is one independent switch")]
struct Leaders {
    /// The number of candidates, each of which leads once.
    candidates: usize,
    /// The number of requests of each candidate for its term, and of its announcements.
    requests: u8,
    /// Whether the leaders change their names.
    renames: bool,
    /// A term is above the last one, and not only the time of the server.
    terms_above_last: bool,
    /// Each term has an owner id of its own, because its lock is not handed off.
    terms_have_owners: bool,
    /// Only the owner of the lock announces itself.
    only_owners_announce: bool,
    /// An announcement counts only as long as its owner has the lock.
    announcements_name_owners: bool,
    /// *Assumed:* an announcement without an answer arrives before the leader has another name, if at all.
    late_request_meets_name: bool,
}

impl Default for Leaders {
    fn default() -> Self {
        Self {
            candidates: 2,
            requests: 2,
            renames: true,
            terms_above_last: true,
            terms_have_owners: true,
            only_owners_announce: true,
            announcements_name_owners: true,
            late_request_meets_name: true,
        }
    }
}

/// What a leader announces: its term, and the number of its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct LeaderLabel {
    term: u8,
    name: u8,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum LeaderRequest {
    Term,
    Announce(LeaderLabel),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum LeaderReply {
    Issued(u8),
    Announced,
    /// The lock does not exist, or has another owner.
    NotOwner,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
enum LeaderPhase {
    #[default]
    Waiting,
    /// Has the lock, and requests its term.
    Elected,
    Leading(LeaderLabel),
    /// Has resigned or given up; the lock is being released.
    Resigning,
    /// The term is over, or the process has crashed.
    Over,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct ModelCandidate {
    phase: LeaderPhase,
    /// The number of requests that were sent in this phase.
    requests: u8,
    request: Option<LeaderRequest>,
    reply: Option<LeaderReply>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct LeaderState {
    /// The owner of the key.
    key: Option<usize>,
    /// The last fencing token.
    fencing: u8,
    /// The announcement and its owner.
    announced: Option<(usize, LeaderLabel)>,
    candidates: Vec<ModelCandidate>,
    /// A request that is not awaited any more.
    late: Option<(usize, LeaderRequest)>,
    /// The highest term of a leader so far. Neither this field nor those below are visible to the protocol.
    highest: u8,
    /// The last announcement that the observer has seen.
    seen: Option<LeaderLabel>,
    violated: Option<&'static str>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LeaderStep {
    Elect(usize),
    Send(usize),
    Serve(usize),
    Receive(usize),
    /// Stops waiting for an answer. The request or the answer may be lost.
    TimeOut(usize),
    Rename(usize),
    /// Resigns, or gives up because it has not got its term.
    Resign(usize),
    Release(usize),
    HandOff(usize, usize),
    LoseLock(usize),
    ServeLate,
    LoseLate,
    ExpireKey,
    ExpireAnnouncement,
    Observe,
}

impl ModelCandidate {
    fn has_lock(&self) -> bool {
        matches!(self.phase, LeaderPhase::Elected | LeaderPhase::Leading(_))
    }

    fn awaits_nothing(&self) -> bool {
        self.request.is_none() && self.reply.is_none()
    }
}

impl LeaderState {
    /// A candidate stops waiting for its answer, and goes on.
    fn abandon(&mut self, n: usize, phase: LeaderPhase) {
        let candidate = &mut self.candidates[n];
        (candidate.phase, candidate.reply) = (phase, None);
        if let Some(request) = candidate.request.take() {
            self.late.get_or_insert((n, request));
        }
    }

    fn check(&mut self, holds: bool, property: &'static str) {
        if !holds {
            self.violated.get_or_insert(property);
        }
    }
}

impl Leaders {
    fn owner(&self, n: usize) -> usize {
        if self.terms_have_owners { n } else { 0 }
    }

    /// Takes a step. Returns `None` if the step is impossible.
    fn step(&self, state: &mut LeaderState, step: LeaderStep) -> Option<()> {
        use LeaderStep::*;
        match step {
            Elect(n) => {
                // The candidates are elected in order. This excludes no behaviour, because all are alike.
                let is_next = n == 0 || state.candidates[n - 1].phase != LeaderPhase::Waiting;
                let waits = state.candidates[n].phase == LeaderPhase::Waiting;
                (is_next && waits && state.key.is_none()).then_some(())?;
                (state.key, state.candidates[n].phase) =
                    (Some(self.owner(n)), LeaderPhase::Elected);
            }
            Send(n) => {
                let candidate = &mut state.candidates[n];
                let is_possible = candidate.awaits_nothing() && candidate.requests < self.requests;
                is_possible.then_some(())?;
                let request = match candidate.phase {
                    LeaderPhase::Elected => LeaderRequest::Term,
                    LeaderPhase::Leading(label) => LeaderRequest::Announce(label),
                    LeaderPhase::Waiting | LeaderPhase::Resigning | LeaderPhase::Over => {
                        return None;
                    }
                };
                (candidate.request, candidate.requests) = (Some(request), candidate.requests + 1);
            }
            Serve(n) => {
                let request = state.candidates[n].request.take()?;
                state.candidates[n].reply = Some(self.serve(state, n, request));
            }
            Receive(n) => receive(state, n)?,
            TimeOut(n) => {
                (!state.candidates[n].awaits_nothing()).then_some(())?;
                let phase = state.candidates[n].phase;
                state.abandon(n, phase);
            }
            Rename(n) => {
                // The name is locked during a request.
                let is_late = state.late.is_some_and(|(late, _)| late == n);
                let can_rename = self.renames && state.candidates[n].awaits_nothing();
                (can_rename && !(is_late && self.late_request_meets_name)).then_some(())?;
                match &mut state.candidates[n].phase {
                    LeaderPhase::Leading(LeaderLabel { name: name @ 0, .. }) => *name = 1,
                    _ => return None,
                }
            }
            Resign(n) => {
                state.candidates[n].has_lock().then_some(())?;
                state.abandon(n, LeaderPhase::Resigning);
            }
            Release(n) => {
                (state.candidates[n].phase == LeaderPhase::Resigning).then_some(())?;
                state.candidates[n].phase = LeaderPhase::Over;
                state.key.take_if(|owner| *owner == self.owner(n));
            }
            HandOff(from, to) => {
                let is_possible = !self.terms_have_owners
                    && state.candidates[from].phase == LeaderPhase::Resigning
                    && state.candidates[to].phase == LeaderPhase::Waiting;
                is_possible.then_some(())?;
                state.candidates[from].phase = LeaderPhase::Over;
                state.candidates[to].phase = LeaderPhase::Elected;
            }
            LoseLock(n) => {
                state.candidates[n].has_lock().then_some(())?;
                state.abandon(n, LeaderPhase::Over);
            }
            ServeLate => {
                let (n, request) = state.late.take()?;
                self.serve(state, n, request);
            }
            LoseLate => drop(state.late.take()?),
            ExpireKey => {
                let owner = state.key?;
                let mut candidates = state.candidates.iter().enumerate();
                let is_held = candidates.any(|(n, c)| self.owner(n) == owner && c.has_lock());
                (!is_held).then_some(())?;
                state.key = None;
            }
            ExpireAnnouncement => drop(state.announced.take()?),
            Observe => self.observe(state),
        }
        Some(())
    }

    /// The store executes a request: `owned.lua`, and then `fence.lua` or `announce.lua`.
    fn serve(&self, state: &mut LeaderState, n: usize, request: LeaderRequest) -> LeaderReply {
        let owner = self.owner(n);
        let is_owner = state.key == Some(owner);
        match request {
            LeaderRequest::Term if is_owner => {
                // The clock may not advance between two requests.
                let clock = 1;
                let above = if self.terms_above_last { state.fencing + 1 } else { 0 };
                state.fencing = above.max(clock);
                LeaderReply::Issued(state.fencing)
            }
            LeaderRequest::Announce(label) if is_owner || !self.only_owners_announce => {
                let last = state.announced.map_or(0, |(_, last)| last.term);
                state.check(last <= label.term, ANNOUNCEMENTS_RISE);
                state.announced = Some((owner, label));
                LeaderReply::Announced
            }
            LeaderRequest::Term | LeaderRequest::Announce(_) => LeaderReply::NotOwner,
        }
    }

    /// An observer asks who leads: `announced.lua`.
    fn observe(&self, state: &mut LeaderState) {
        let counts = |(owner, _): &(usize, LeaderLabel)| {
            state.key == Some(*owner) || !self.announcements_name_owners && state.key.is_some()
        };
        let Some((owner, label)) = state.announced.filter(counts) else { return };
        let seen = state.seen.unwrap_or(label);
        state.check(state.key == Some(owner), OBSERVED_HAS_LOCK);
        state.check(seen.term <= label.term, OBSERVED_RISES);
        state.check(seen.term != label.term || seen.name <= label.name, NAMES_RISE);
        state.seen = Some(label);
    }
}

/// A candidate receives an answer.
fn receive(state: &mut LeaderState, n: usize) -> Option<()> {
    let candidate = &mut state.candidates[n];
    match (candidate.phase, candidate.reply.take()?) {
        (LeaderPhase::Elected, LeaderReply::Issued(term)) => {
            candidate.phase = LeaderPhase::Leading(LeaderLabel { term, name: 0 });
            candidate.requests = 0;
            state.check(state.highest < term, TERMS_RISE);
            state.highest = term.max(state.highest);
        }
        (_, LeaderReply::NotOwner) => candidate.phase = LeaderPhase::Over,
        (_, LeaderReply::Issued(_) | LeaderReply::Announced) => {}
    }
    Some(())
}

impl Model for Leaders {
    type State = LeaderState;
    type Action = LeaderStep;

    fn init_states(&self) -> Vec<LeaderState> {
        let candidates = vec![ModelCandidate::default(); self.candidates];
        vec![LeaderState { candidates, ..LeaderState::default() }]
    }

    /// All steps. [`Leaders::step`] rejects those that are impossible.
    fn actions(&self, _: &LeaderState, steps: &mut Vec<LeaderStep>) {
        use LeaderStep::*;
        for n in 0..self.candidates {
            steps.extend([Elect(n), Send(n), Serve(n), Receive(n), TimeOut(n), Rename(n)]);
            steps.extend([Resign(n), Release(n), LoseLock(n)]);
            steps.extend((0..self.candidates).map(|to| HandOff(n, to)));
        }
        steps.extend([ServeLate, LoseLate, ExpireKey, ExpireAnnouncement, Observe]);
    }

    fn next_state(&self, last: &LeaderState, step: LeaderStep) -> Option<LeaderState> {
        let mut next = last.clone();
        self.step(&mut next, step)?;
        (next != *last).then_some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(TERMS_RISE, |_, state: &LeaderState| {
                state.violated != Some(TERMS_RISE)
            }),
            Property::always(ANNOUNCEMENTS_RISE, |_, state: &LeaderState| {
                state.violated != Some(ANNOUNCEMENTS_RISE)
            }),
            Property::always(OBSERVED_RISES, |_, state: &LeaderState| {
                state.violated != Some(OBSERVED_RISES)
            }),
            Property::always(OBSERVED_HAS_LOCK, |_, state: &LeaderState| {
                state.violated != Some(OBSERVED_HAS_LOCK)
            }),
            Property::always(NAMES_RISE, |_, state: &LeaderState| {
                state.violated != Some(NAMES_RISE)
            }),
            Property::sometimes("a second leader is seen", |model: &Self, state: &LeaderState| {
                let last = model.candidates - 1;
                state.key == Some(last)
                    && state.seen.is_some()
                    && state.seen == state.announced.map(|(_, label)| label)
            }),
            Property::sometimes("a late announcement is in flight", |_, state: &LeaderState| {
                let is_announcement = |(n, request): (usize, LeaderRequest)| {
                    matches!(request, LeaderRequest::Announce(_)) && state.key != Some(n)
                };
                state.key.is_some() && state.late.is_some_and(is_announcement)
            }),
        ]
    }
}

#[test]
fn observers_see_leaders_and_their_names_in_order() {
    holds(Leaders::default(), 40_000);
    holds(Leaders { candidates: 3, requests: 1, ..Leaders::default() }, 25_000);
}

#[test]
fn terms_that_are_not_above_the_last_one_do_not_rise() {
    violates(Leaders { terms_above_last: false, ..Leaders::default() }, TERMS_RISE);
}

#[test]
fn a_late_announcement_of_a_term_with_the_same_owner_id_replaces_a_later_one() {
    let shared = Leaders { terms_have_owners: false, ..Leaders::default() };
    violates(shared.clone(), ANNOUNCEMENTS_RISE);
    violates(shared, OBSERVED_RISES);
}

#[test]
fn a_late_announcement_replaces_a_later_one_unless_owners_are_compared() {
    violates(Leaders { only_owners_announce: false, ..Leaders::default() }, ANNOUNCEMENTS_RISE);
}

#[test]
fn an_observer_that_does_not_compare_owners_sees_an_earlier_leader() {
    let uncompared = Leaders { announcements_name_owners: false, ..Leaders::default() };
    violates(uncompared, OBSERVED_HAS_LOCK);
}

#[test]
fn an_announcement_that_arrives_after_another_name_brings_the_earlier_one_back() {
    violates(Leaders { late_request_meets_name: false, ..Leaders::default() }, NAMES_RISE);
}

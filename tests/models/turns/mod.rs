//! Readers and writers that take turns at a read-write lock.
//!
//! Each call wants the lock for a number of times, as a reader or as a writer. The store has the holders
//! and the queue, and each request is one atomic step of it: `acquire.lua`, `release.lua`, `change.lua` and
//! `check.lua` of `store/redis/read_write`, with `settle.lua`, which gives the lock to the calls whose turn
//! it is. A call that waits gets a message then, which may be lost or late: it accepts the message, or
//! finds the hold by its next check. A call gives up at any time, also while its request is in flight, which
//! then arrives late; its release is repeated until no request can arrive any more. A call may crash while
//! it waits or has the lock. The lease of a hold that no call counts on ends at any later time, and the
//! next request that looks at the holders ends the hold.
//!
//! The checker shows that a writer excludes all others, that no call waits without a reason or without
//! a check that finds it out, and that neither side starves.

mod scripts;
mod tests;

use stateright::{Model, Property};

/// A writer has the lock alone.
const ALONE: &str = "a writer is alone";
/// A call waits only for a call that has the lock, and a reader only for a writer, unless a lease has ended
/// or a client in the queue is gone.
const REASON: &str = "no call waits without a reason";
/// If a call waits without a reason, the check of a call that waits gives the lock to one of them, unless a
/// release is in flight.
const CHECKS_HELP: &str = "a check ends a wait without a reason";
/// While a reader waits, at most one writer that waited gets the lock before it.
const READERS_WAIT_FOR_ONE: &str = "a reader waits for one writer";
/// While a writer waits, no reader that came later gets the lock, except after another writer, and no
/// reader becomes a writer.
const WRITERS_ARE_NOT_OVERTAKEN: &str = "no reader overtakes a writer";
/// A call that is done has neither the lock nor a place in the queue.
const NOTHING_REMAINS: &str = "a call that is done leaves nothing";

/// The calls, each with its mode and the number of times that it wants the lock.
#[derive(Debug, Clone)]
#[expect(clippy::struct_excessive_bools, reason = "each is one rule that can be switched off")]
struct Turns {
    writers: Vec<bool>,
    times: u8,
    /// Whether holders change their modes.
    changes: bool,
    /// Whether calls crash, and messages and requests are lost or arrive late.
    faults: bool,
    /// Whether it is the turn of the readers when a writer ends.
    after_writers: bool,
    /// Whether a reader that comes while a writer waits, waits behind it.
    readers_wait: bool,
    /// Whether the others get their turn when a call gives up.
    giving_up_settles: bool,
    /// Whether they do when a writer becomes a reader.
    downgrades_settle: bool,
    /// Whether a reader becomes a writer only if nobody waits.
    upgrades_see_queue: bool,
    /// Whether a check finds that the lease of the last holder has ended.
    checks_see_ends: bool,
    /// Whether the check of a reader finds that the writer before it is gone.
    checks_see_gone: bool,
    /// Whether a release is repeated while a request may arrive late.
    releases_repeat: bool,
}

impl Default for Turns {
    fn default() -> Self {
        Self {
            writers: vec![false, false, true, true],
            times: 1,
            changes: false,
            faults: false,
            after_writers: true,
            readers_wait: true,
            giving_up_settles: true,
            downgrades_settle: true,
            upgrades_see_queue: true,
            checks_see_ends: true,
            checks_see_gone: true,
            releases_repeat: true,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum TurnPhase {
    Outside,
    Waiting {
        /// The number of writers that have got the lock meanwhile.
        writers: u8,
    },
    Inside {
        /// Whether the mode has changed.
        changed: bool,
    },
    /// Has given up, and releases what it may have.
    Undoing,
    Over,
    /// The process has crashed.
    Gone,
}

/// A hold in the store.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct TurnHold {
    call: usize,
    writes: bool,
    /// Whether its lease has ended.
    has_ended: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct TurnState {
    phases: Vec<TurnPhase>,
    times: Vec<u8>,
    holds: Vec<TurnHold>,
    /// The calls that wait, in the order in which they came.
    queue: Vec<usize>,
    /// A call whose request may arrive late.
    late: Option<usize>,
    is_overtaken: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum TurnStep {
    Ask(usize),
    /// Accepts the message that it has the lock.
    Accept(usize),
    Check(usize),
    GiveUp(usize),
    /// The same while a request is in flight.
    GiveUpEarly(usize),
    ServeRelease(usize),
    ServeLate,
    LoseLate,
    Change(usize),
    End(usize),
    Crash(usize),
    LeaseEnds(usize),
}

impl TurnState {
    fn has_hold(&self, call: usize) -> bool {
        self.holds.iter().any(|hold| hold.call == call)
    }

    /// Whether a call has a hold whose lease has not ended.
    fn has_lock(&self, call: usize) -> bool {
        self.holds.iter().any(|hold| hold.call == call && !hold.has_ended)
    }

    /// Whether a holder has the lock in this mode whose lease has not ended.
    fn has_live(&self, writes: bool) -> bool {
        self.holds.iter().any(|hold| hold.writes == writes && !hold.has_ended)
    }

    fn has_writer(&self) -> bool {
        self.holds.iter().any(|hold| hold.writes)
    }

    fn is_gone(&self, call: usize) -> bool {
        self.phases[call] == TurnPhase::Gone
    }

    /// Ends the leases that are over. Returns whether a writer had one.
    fn end_leases(&mut self) -> bool {
        let is_writer = |hold: &TurnHold| hold.has_ended && hold.writes;
        let writer_ended = self.holds.iter().any(is_writer);
        self.holds.retain(|hold| !hold.has_ended);
        writer_ended
    }

    fn grant(&mut self, call: usize, writes: bool) {
        self.queue.retain(|other| *other != call);
        self.holds.push(TurnHold { call, writes, has_ended: false });
        self.holds.sort_unstable();
        for other in self.queue.iter().filter(|_| writes) {
            if let TurnPhase::Waiting { writers } = &mut self.phases[*other] {
                // Two are too many already.
                *writers = 2.min(*writers + 1);
            }
        }
    }

    /// The calls that wait and have not got the lock yet.
    fn waiting(&self) -> impl Iterator<Item = usize> + '_ {
        (0..self.phases.len()).filter(|call| {
            matches!(self.phases[*call], TurnPhase::Waiting { .. }) && !self.has_lock(*call)
        })
    }
}

impl Turns {
    /// A call that waits checks its claim, and makes an attempt if that is worthwhile.
    fn check(&self, state: &mut TurnState, call: usize) {
        if self.finds_free(state, call) {
            self.acquire(state, call);
            if state.has_hold(call) {
                state.phases[call] = TurnPhase::Inside { changed: false };
            }
        }
    }

    /// Whether a call that waits has a reason: a live holder, or for a reader a writer that waits.
    fn has_reason(&self, state: &TurnState, call: usize) -> bool {
        state.has_live(true)
            || if self.writers[call] {
                state.has_live(false)
            } else {
                self.first_writer(state).is_some() && state.has_live(false)
            }
    }

    /// Whether the wait of a call ends at a check, although nobody has noticed yet that it can.
    fn check_helps(&self, state: &TurnState) -> bool {
        state.waiting().any(|call| {
            let mut next = state.clone();
            self.check(&mut next, call);
            state.waiting().any(|other| next.has_lock(other))
        })
    }

    /// Whether all is as the scripts have left it.
    fn is_settled(state: &TurnState) -> bool {
        let is_gone = |call: &usize| state.is_gone(*call);
        !state.queue.iter().any(is_gone) && !state.holds.iter().any(|hold| hold.has_ended)
    }

    /// The call is done, or wants the lock again.
    fn leave(state: &mut TurnState, call: usize) {
        let is_last = state.times[call] == 0;
        state.phases[call] = if is_last { TurnPhase::Over } else { TurnPhase::Outside };
    }

    /// Without faults, each message and each release arrives at once.
    fn deliver(&self, state: &mut TurnState) {
        for call in 0..state.phases.len() {
            if state.phases[call] == TurnPhase::Undoing {
                self.release(state, call);
                Self::leave(state, call);
            }
        }
        for call in 0..state.phases.len() {
            if matches!(state.phases[call], TurnPhase::Waiting { .. }) && state.has_hold(call) {
                state.phases[call] = TurnPhase::Inside { changed: false };
            }
        }
    }

    /// Takes a step. Returns `None` if the step is impossible.
    fn step(&self, state: &mut TurnState, step: TurnStep) -> Option<()> {
        match step {
            TurnStep::Ask(call) => {
                (state.phases[call] == TurnPhase::Outside).then_some(())?;
                state.times[call] -= 1;
                state.phases[call] = TurnPhase::Waiting { writers: 0 };
                self.acquire(state, call);
                if state.has_hold(call) {
                    state.phases[call] = TurnPhase::Inside { changed: false };
                }
            }
            TurnStep::Accept(call) => {
                let waits = matches!(state.phases[call], TurnPhase::Waiting { .. });
                (state.has_lock(call) && waits).then_some(())?;
                state.phases[call] = TurnPhase::Inside { changed: false };
            }
            TurnStep::Check(call) => {
                matches!(state.phases[call], TurnPhase::Waiting { .. }).then_some(())?;
                self.check(state, call);
            }
            TurnStep::GiveUp(call) => {
                matches!(state.phases[call], TurnPhase::Waiting { .. }).then_some(())?;
                state.phases[call] = TurnPhase::Undoing;
            }
            TurnStep::GiveUpEarly(call) => {
                let can_ask =
                    matches!(state.phases[call], TurnPhase::Waiting { .. } | TurnPhase::Outside);
                (self.faults && can_ask && state.late.is_none()).then_some(())?;
                if state.phases[call] == TurnPhase::Outside {
                    state.times[call] -= 1;
                }
                (state.phases[call], state.late) = (TurnPhase::Undoing, Some(call));
            }
            TurnStep::ServeRelease(call) => {
                (state.phases[call] == TurnPhase::Undoing).then_some(())?;
                self.release(state, call);
                if state.late != Some(call) || !self.releases_repeat {
                    Self::leave(state, call);
                }
            }
            TurnStep::ServeLate => {
                let call = state.late.take()?;
                self.acquire(state, call);
            }
            TurnStep::LoseLate => drop(state.late.take()?),
            TurnStep::Change(call) => {
                (self.changes && state.phases[call] == TurnPhase::Inside { changed: false })
                    .then_some(())?;
                let changed = self.change(state, call);
                state.phases[call] = TurnPhase::Inside { changed };
            }
            TurnStep::End(call) => {
                matches!(state.phases[call], TurnPhase::Inside { .. }).then_some(())?;
                self.release(state, call);
                Self::leave(state, call);
            }
            TurnStep::Crash(call) => {
                let is_active = !matches!(
                    state.phases[call],
                    TurnPhase::Outside | TurnPhase::Over | TurnPhase::Gone
                );
                (self.faults && is_active).then_some(())?;
                state.phases[call] = TurnPhase::Gone;
                state.late.take_if(|late| *late == call);
            }
            TurnStep::LeaseEnds(call) => {
                let counts = matches!(state.phases[call], TurnPhase::Inside { .. });
                (!counts && self.faults).then_some(())?;
                let hold = state.holds.iter_mut().find(|hold| hold.call == call)?;
                hold.has_ended = true;
            }
        }
        Some(())
    }
}

impl Model for Turns {
    type State = TurnState;
    type Action = TurnStep;

    fn init_states(&self) -> Vec<TurnState> {
        let calls = self.writers.len();
        vec![TurnState {
            phases: vec![TurnPhase::Outside; calls],
            times: vec![self.times; calls],
            holds: Vec::new(),
            queue: Vec::new(),
            late: None,
            is_overtaken: false,
        }]
    }

    /// All steps. [`Turns::step`] rejects those that are impossible.
    fn actions(&self, _: &TurnState, steps: &mut Vec<TurnStep>) {
        use TurnStep::*;
        for call in 0..self.writers.len() {
            steps.extend([Ask(call), Accept(call), Check(call), GiveUp(call), GiveUpEarly(call)]);
            steps.extend([ServeRelease(call), Change(call), End(call), Crash(call)]);
            steps.push(LeaseEnds(call));
        }
        steps.extend([ServeLate, LoseLate]);
    }

    fn next_state(&self, last: &TurnState, step: TurnStep) -> Option<TurnState> {
        let mut next = last.clone();
        self.step(&mut next, step)?;
        if !self.faults {
            self.deliver(&mut next);
        }
        (next != *last).then_some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        let mut properties = vec![
            Property::always(ALONE, |_, state: &TurnState| {
                state.holds.len() <= 1 || !state.has_writer()
            }),
            Property::always(REASON, |model: &Self, state: &TurnState| {
                // A call that has lost its place makes an attempt after its next check.
                let mut queued = state.waiting().filter(|call| state.queue.contains(call));
                !Self::is_settled(state) || queued.all(|call| model.has_reason(state, call))
            }),
            Property::always(CHECKS_HELP, |model: &Self, state: &TurnState| {
                // A release in flight lets others in.
                let is_releasing = state.phases.contains(&TurnPhase::Undoing);
                let all = state.waiting().all(|call| model.has_reason(state, call));
                all || is_releasing || model.check_helps(state)
            }),
            Property::always(READERS_WAIT_FOR_ONE, |model: &Self, state: &TurnState| {
                state.phases.iter().enumerate().all(|(call, phase)| match phase {
                    TurnPhase::Waiting { writers } => model.writers[call] || *writers <= 1,
                    _ => true,
                })
            }),
            Property::always(WRITERS_ARE_NOT_OVERTAKEN, |_, state: &TurnState| !state.is_overtaken),
            Property::always(NOTHING_REMAINS, |_, state: &TurnState| {
                let is_over = |call: &usize| state.phases[*call] == TurnPhase::Over;
                let mut over = (0..state.phases.len()).filter(is_over);
                over.all(|call| !state.has_hold(call) && !state.queue.contains(&call))
            }),
            Property::sometimes("all readers have the lock", |model: &Self, state: &TurnState| {
                let readers = model.writers.iter().filter(|writes| !**writes).count();
                state.holds.len() == readers && !state.has_writer()
            }),
            Property::sometimes("all calls are done", |_, state: &TurnState| {
                state.phases.iter().all(|phase| *phase == TurnPhase::Over)
            }),
        ];
        if self.changes {
            properties.push(Property::sometimes(
                "a reader has become a writer",
                |model: &Self, state: &TurnState| {
                    state.holds.iter().any(|hold| hold.writes && !model.writers[hold.call])
                },
            ));
        }
        if self.faults {
            properties.push(Property::sometimes(
                "a late request gets the lock",
                |_, state: &TurnState| {
                    let undoes = |call: usize| state.phases[call] == TurnPhase::Undoing;
                    state.holds.iter().any(|hold| undoes(hold.call))
                },
            ));
        }
        properties
    }
}

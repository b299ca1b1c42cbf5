//! Readers and writers that take turns at a read-write lock.
//!
//! Each call wants the lock for a number of times, as a reader or as a writer. A call asks for the lock,
//! waits in the queue if it does not get it, gives up at any time, and ends or crashes while it has the
//! lock. The lease of a crashed call ends at some later time. Each request is one atomic step of the store,
//! which then gives the lock to the calls whose turn it is, as `read_write/settle.lua` does.
//!
//! The checker shows that a writer excludes all others, that no call waits without a reason, and that
//! neither side starves.

use stateright::{Model, Property};

/// A writer has the lock alone.
pub(crate) const ALONE: &str = "a writer is alone";
/// A call waits only for a call that has the lock, and a reader only for a writer.
pub(crate) const REASON: &str = "no call waits without a reason";
/// While a reader waits, at most one writer that waited gets the lock before it.
pub(crate) const READERS_WAIT_FOR_ONE: &str = "a reader waits for one writer";
/// While a writer waits, no reader that came later gets the lock, except after another writer.
pub(crate) const WRITERS_ARE_NOT_OVERTAKEN: &str = "no reader overtakes a writer";

/// The calls, each with its mode and the number of times that it wants the lock.
#[derive(Debug, Clone)]
#[expect(clippy::struct_excessive_bools, reason = "each is one rule that can be switched off")]
pub(crate) struct Turns {
    pub(crate) writers: Vec<bool>,
    pub(crate) times: u8,
    /// Whether it is the turn of the readers when a writer ends.
    pub(crate) after_writers: bool,
    /// Whether a reader that comes while a writer waits, waits behind it.
    pub(crate) readers_wait: bool,
    /// Whether the others get their turn when a call gives up.
    pub(crate) giving_up_settles: bool,
    /// Whether they do when the lease of a crashed call ends.
    pub(crate) leases_settle: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum TurnPhase {
    Outside,
    Waiting {
        /// The number of writers that have got the lock meanwhile.
        writers: u8,
    },
    Inside,
    /// The call has crashed, and its lease has not ended yet.
    Crashed,
    Over,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct TurnState {
    phases: Vec<TurnPhase>,
    times: Vec<u8>,
    /// The calls that wait, in the order in which they came.
    queue: Vec<usize>,
    is_overtaken: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TurnStep {
    Ask(usize),
    GiveUp(usize),
    End(usize),
    Crash(usize),
    LeaseEnds(usize),
}

impl Turns {
    fn has_lock(state: &TurnState, call: usize) -> bool {
        matches!(state.phases[call], TurnPhase::Inside | TurnPhase::Crashed)
    }

    fn holders(&self, state: &TurnState, writers: bool) -> usize {
        let has = |call: &usize| self.writers[*call] == writers && Self::has_lock(state, *call);
        (0..self.writers.len()).filter(has).count()
    }

    fn first_writer(&self, state: &TurnState) -> Option<usize> {
        state.queue.iter().position(|call| self.writers[*call])
    }

    fn admit(&self, state: &mut TurnState, call: usize) {
        state.queue.retain(|other| *other != call);
        state.phases[call] = TurnPhase::Inside;
        if self.writers[call] {
            for phase in &mut state.phases {
                if let TurnPhase::Waiting { writers } = phase {
                    *writers += 1;
                }
            }
        }
    }

    /// Gives the lock to the calls whose turn it is.
    fn settle(&self, state: &mut TurnState, after_writer: bool) {
        if self.holders(state, true) > 0 {
            return;
        }
        let first_writer = self.first_writer(state);
        let is_turn = after_writer && self.after_writers;
        let until = first_writer.filter(|_| !is_turn).unwrap_or(state.queue.len());
        let readers: Vec<usize> =
            state.queue[..until].iter().copied().filter(|call| !self.writers[*call]).collect();
        for reader in &readers {
            self.admit(state, *reader);
        }
        if readers.is_empty()
            && self.holders(state, false) == 0
            && let Some(first) = first_writer
        {
            let writer = state.queue[first];
            self.admit(state, writer);
        }
    }

    fn ask(&self, state: &mut TurnState, call: usize) {
        state.times[call] -= 1;
        let is_free = self.holders(state, true) == 0 && self.holders(state, false) == 0;
        let is_shared = !self.writers[call] && self.holders(state, true) == 0;
        let nobody_waits = state.queue.is_empty();
        if is_free && nobody_waits || is_shared && (nobody_waits || !self.readers_wait) {
            state.is_overtaken |= self.first_writer(state).is_some();
            return self.admit(state, call);
        }
        state.queue.push(call);
        state.phases[call] = TurnPhase::Waiting { writers: 0 };
    }

    /// The call does not have the lock any more.
    fn leave(state: &mut TurnState, call: usize) {
        let is_last = state.times[call] == 0;
        state.phases[call] = if is_last { TurnPhase::Over } else { TurnPhase::Outside };
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
            queue: Vec::new(),
            is_overtaken: false,
        }]
    }

    fn actions(&self, state: &TurnState, actions: &mut Vec<TurnStep>) {
        for (call, phase) in state.phases.iter().enumerate() {
            match phase {
                TurnPhase::Outside => actions.push(TurnStep::Ask(call)),
                TurnPhase::Waiting { .. } => actions.push(TurnStep::GiveUp(call)),
                TurnPhase::Inside => actions.extend([TurnStep::End(call), TurnStep::Crash(call)]),
                TurnPhase::Crashed => actions.push(TurnStep::LeaseEnds(call)),
                TurnPhase::Over => {}
            }
        }
    }

    fn next_state(&self, state: &TurnState, step: TurnStep) -> Option<TurnState> {
        let mut next = state.clone();
        match step {
            TurnStep::Ask(call) => self.ask(&mut next, call),
            TurnStep::GiveUp(call) => {
                next.queue.retain(|other| *other != call);
                Self::leave(&mut next, call);
                if self.giving_up_settles {
                    self.settle(&mut next, false);
                }
            }
            TurnStep::End(call) => {
                Self::leave(&mut next, call);
                self.settle(&mut next, self.writers[call]);
            }
            TurnStep::Crash(call) => next.phases[call] = TurnPhase::Crashed,
            TurnStep::LeaseEnds(call) => {
                Self::leave(&mut next, call);
                if self.leases_settle {
                    self.settle(&mut next, self.writers[call]);
                }
            }
        }
        Some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(ALONE, |model: &Self, state: &TurnState| {
                let writers = model.holders(state, true);
                writers == 0 || writers == 1 && model.holders(state, false) == 0
            }),
            Property::always(REASON, |model: &Self, state: &TurnState| {
                let (writers, readers) = (model.holders(state, true), model.holders(state, false));
                let has_reason = |call: &usize| {
                    let reads = !model.writers[*call];
                    writers > 0
                        || if reads { model.first_writer(state).is_some() } else { readers > 0 }
                };
                state.queue.iter().all(has_reason)
                    && (state.queue.is_empty() || writers + readers > 0)
            }),
            Property::always(READERS_WAIT_FOR_ONE, |model: &Self, state: &TurnState| {
                state.phases.iter().enumerate().all(|(call, phase)| match phase {
                    TurnPhase::Waiting { writers } => model.writers[call] || *writers <= 1,
                    _ => true,
                })
            }),
            Property::always(WRITERS_ARE_NOT_OVERTAKEN, |_, state: &TurnState| !state.is_overtaken),
            Property::sometimes("all readers have the lock", |model: &Self, state: &TurnState| {
                model.holders(state, false)
                    == model.writers.iter().filter(|writes| !**writes).count()
            }),
            Property::sometimes("all calls are done", |_, state: &TurnState| {
                state.phases.iter().all(|phase| *phase == TurnPhase::Over)
            }),
        ]
    }
}

//! Calls that lock several keys together, against each other and against calls for single keys.
//!
//! Each call wants a set of keys. It follows the steps of `lock_set/acquire.rs`: it tries to take all
//! keys at once; if one is busy, it stands in the queue of this key with no lock in its hands, and then
//! tries to take the others; after some failures, it takes the keys one after the other, in order. A
//! release gives a key to the first call in its queue. Each request is one atomic step of the store.
//!
//! The checker shows that no two calls hold a key, that no call is stuck while others make progress
//! (there is no state in which nothing can happen before all calls are done), and that nothing is left.

use stateright::{Model, Property};

/// No key has two holders, and a body runs only with all its keys.
pub(crate) const WHOLE_SETS: &str = "bodies run with all their keys";
/// Some call can always take a step until all are done.
pub(crate) const NO_DEADLOCK: &str = "no deadlock";
/// In the end, no key is held and nobody waits.
pub(crate) const NOTHING_HELD: &str = "nothing is held in the end";

/// The calls, each with the keys that it wants.
#[derive(Debug, Clone)]
pub(crate) struct Sets {
    pub(crate) wanted: Vec<Vec<usize>>,
    pub(crate) keys: usize,
    /// The attempts in which a call waits for one key only.
    pub(crate) attempts: u8,
    /// Whether the last step takes the keys in their order, or as the call names them.
    pub(crate) is_sorted: bool,
    /// Whether a call gives the first key back before it waits for another one.
    pub(crate) gives_back: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum SetPhase {
    /// About to request all keys, or all but the one that it has.
    Together,
    /// About to request this key alone, or waiting for it.
    One(usize),
    /// About to request the next key of the sorted ones, or waiting for it.
    InOrder,
    /// The body runs.
    Body,
    Over,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct SetState {
    phases: Vec<SetPhase>,
    attempts: Vec<u8>,
    /// The holder of each key.
    holders: Vec<Option<usize>>,
    /// The calls in the queue of each key.
    queues: Vec<Vec<usize>>,
    /// Whether a body has run without one of its keys.
    is_violated: bool,
}

/// The next step of this call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SetStep(usize);

impl Sets {
    /// The keys of a call in the order of its last step.
    fn order(&self, call: usize) -> Vec<usize> {
        let mut keys = self.wanted[call].clone();
        if self.is_sorted {
            keys.sort_unstable();
        }
        keys
    }

    /// Whether the call waits in the queue of a key.
    fn waits(state: &SetState, call: usize) -> bool {
        state.queues.iter().any(|queue| queue.contains(&call))
    }

    fn is_over(state: &SetState) -> bool {
        state.phases.iter().all(|phase| *phase == SetPhase::Over)
    }

    /// Takes a key that is free, or stands in its queue.
    fn request(state: &mut SetState, call: usize, key: usize) {
        match state.holders[key] {
            None => state.holders[key] = Some(call),
            Some(holder) if holder == call => {}
            Some(_) if state.queues[key].contains(&call) => {}
            Some(_) => state.queues[key].push(call),
        }
    }

    /// Gives a key to the first call in its queue.
    fn release(state: &mut SetState, key: usize) {
        let next =
            if state.queues[key].is_empty() { None } else { Some(state.queues[key].remove(0)) };
        state.holders[key] = next;
    }

    fn step(&self, state: &mut SetState, call: usize) {
        let wanted = &self.wanted[call];
        match state.phases[call] {
            SetPhase::Together => {
                let busy = wanted.iter().copied().find(|key| match state.holders[*key] {
                    Some(holder) => holder != call,
                    None => !state.queues[*key].is_empty(),
                });
                let Some(busy) = busy else {
                    for key in wanted {
                        state.holders[*key] = Some(call);
                    }
                    state.phases[call] = SetPhase::Body;
                    return;
                };
                if self.gives_back {
                    for key in wanted {
                        if state.holders[*key] == Some(call) {
                            Self::release(state, *key);
                        }
                    }
                }
                state.attempts[call] += 1;
                state.phases[call] = if state.attempts[call] > self.attempts {
                    SetPhase::InOrder
                } else {
                    SetPhase::One(busy)
                };
            }
            SetPhase::One(key) => {
                Self::request(state, call, key);
                if state.holders[key] == Some(call) {
                    state.phases[call] = SetPhase::Together;
                }
            }
            SetPhase::InOrder => {
                let missing =
                    self.order(call).into_iter().find(|key| state.holders[*key] != Some(call));
                match missing {
                    Some(key) => Self::request(state, call, key),
                    None => state.phases[call] = SetPhase::Body,
                }
            }
            SetPhase::Body => {
                state.is_violated |= wanted.iter().any(|key| state.holders[*key] != Some(call));
                for key in wanted {
                    Self::release(state, *key);
                }
                state.phases[call] = SetPhase::Over;
            }
            SetPhase::Over => {}
        }
    }
}

impl Model for Sets {
    type State = SetState;
    type Action = SetStep;

    fn init_states(&self) -> Vec<SetState> {
        vec![SetState {
            phases: vec![SetPhase::Together; self.wanted.len()],
            attempts: vec![0; self.wanted.len()],
            holders: vec![None; self.keys],
            queues: vec![Vec::new(); self.keys],
            is_violated: false,
        }]
    }

    fn actions(&self, state: &SetState, actions: &mut Vec<SetStep>) {
        // A call that waits does nothing until it has been given the key.
        let is_ready =
            |call: &usize| state.phases[*call] != SetPhase::Over && !Self::waits(state, *call);
        actions.extend((0..self.wanted.len()).filter(is_ready).map(SetStep));
    }

    fn next_state(&self, state: &SetState, SetStep(call): SetStep) -> Option<SetState> {
        let mut next = state.clone();
        self.step(&mut next, call);
        Some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(WHOLE_SETS, |_, state: &SetState| !state.is_violated),
            Property::always(NO_DEADLOCK, |model: &Self, state: &SetState| {
                let mut actions = Vec::new();
                model.actions(state, &mut actions);
                Self::is_over(state) || !actions.is_empty()
            }),
            Property::always(NOTHING_HELD, |_, state: &SetState| {
                let nothing = state.holders.iter().all(Option::is_none)
                    && state.queues.iter().all(Vec::is_empty);
                !Self::is_over(state) || nothing
            }),
            Property::sometimes(
                "a call takes its keys one after the other",
                |_, state: &SetState| state.phases.contains(&SetPhase::InOrder),
            ),
            Property::sometimes("all calls are done", |_, state: &SetState| Self::is_over(state)),
        ]
    }
}

//! Calls for the permits of a semaphore.
//!
//! Each call wants its number of permits for a number of times, by its own limit. A call asks for them, waits
//! in the queue if it does not get them, gives up at any time, and ends or crashes while it has them. The
//! lease of a crashed call ends at some later time. Each request is one atomic step of the store, which then
//! gives permits to the calls whose turn it is, as `semaphore/settle.lua` does.
//!
//! The checker shows that no call gets permits beyond its limit, that no call waits without a reason, and
//! that no call is overtaken.

use stateright::{Model, Property};

/// All permits that are held when a call gets its own are within its limit.
pub(crate) const WITHIN_LIMIT: &str = "all holders are within the limit of the last one";
/// The first call that waits could not have its permits.
pub(crate) const FIRST_HAS_REASON: &str = "the first call does not wait without a reason";
/// A call that waits gets its permits before those that came later.
pub(crate) const IN_ORDER: &str = "no call is overtaken";

/// The calls, each with its permits and its limit, and the number of times that it wants them.
#[derive(Debug, Clone)]
#[expect(clippy::struct_excessive_bools, reason = "each is one rule that can be switched off")]
pub(crate) struct PermitCalls {
    pub(crate) wanted: Vec<(u8, u8)>,
    pub(crate) times: u8,
    /// Whether a call that comes while others wait, waits behind them.
    pub(crate) newcomers_wait: bool,
    /// Whether the first call holds the others back until there are enough permits for it.
    pub(crate) in_order: bool,
    /// Whether each call counts by its own limit, and not by the highest.
    pub(crate) own_limits: bool,
    /// Whether the others get their turn when a call gives up.
    pub(crate) giving_up_settles: bool,
    /// Whether they do when the lease of a crashed call ends.
    pub(crate) leases_settle: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum PermitPhase {
    Outside,
    Waiting,
    Inside,
    /// The call has crashed, and its lease has not ended yet.
    Crashed,
    Over,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct PermitState {
    phases: Vec<PermitPhase>,
    times: Vec<u8>,
    /// The calls that wait, in the order in which they came.
    queue: Vec<usize>,
    is_beyond_limit: bool,
    is_overtaken: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PermitStep {
    Ask(usize),
    GiveUp(usize),
    End(usize),
    Crash(usize),
    LeaseEnds(usize),
}

impl PermitCalls {
    fn held(&self, state: &PermitState) -> u8 {
        let has = |call: &usize| {
            matches!(state.phases[*call], PermitPhase::Inside | PermitPhase::Crashed)
        };
        (0..self.wanted.len()).filter(has).map(|call| self.wanted[call].0).sum()
    }

    fn is_within_own_limit(&self, state: &PermitState, call: usize) -> bool {
        let (count, limit) = self.wanted[call];
        self.held(state) + count <= limit
    }

    fn fits(&self, state: &PermitState, call: usize) -> bool {
        let highest = self.wanted.iter().map(|(_, limit)| *limit).max().unwrap_or_default();
        if self.own_limits {
            self.is_within_own_limit(state, call)
        } else {
            self.held(state) + self.wanted[call].0 <= highest
        }
    }

    fn admit(&self, state: &mut PermitState, call: usize) {
        state.is_beyond_limit |= !self.is_within_own_limit(state, call);
        state.is_overtaken |= state.queue.first().is_some_and(|first| *first != call);
        state.queue.retain(|other| *other != call);
        state.phases[call] = PermitPhase::Inside;
    }

    /// Gives permits to the calls whose turn it is.
    fn settle(&self, state: &mut PermitState) {
        for call in state.queue.clone() {
            if self.fits(state, call) {
                self.admit(state, call);
            } else if self.in_order {
                return;
            }
        }
    }

    fn ask(&self, state: &mut PermitState, call: usize) {
        state.times[call] -= 1;
        if self.fits(state, call) && (state.queue.is_empty() || !self.newcomers_wait) {
            return self.admit(state, call);
        }
        state.queue.push(call);
        state.phases[call] = PermitPhase::Waiting;
    }

    /// The call does not have its permits any more.
    fn leave(state: &mut PermitState, call: usize) {
        let is_last = state.times[call] == 0;
        state.phases[call] = if is_last { PermitPhase::Over } else { PermitPhase::Outside };
    }
}

impl Model for PermitCalls {
    type State = PermitState;
    type Action = PermitStep;

    fn init_states(&self) -> Vec<PermitState> {
        let calls = self.wanted.len();
        vec![PermitState {
            phases: vec![PermitPhase::Outside; calls],
            times: vec![self.times; calls],
            queue: Vec::new(),
            is_beyond_limit: false,
            is_overtaken: false,
        }]
    }

    fn actions(&self, state: &PermitState, actions: &mut Vec<PermitStep>) {
        for (call, phase) in state.phases.iter().enumerate() {
            match phase {
                PermitPhase::Outside => actions.push(PermitStep::Ask(call)),
                PermitPhase::Waiting => actions.push(PermitStep::GiveUp(call)),
                PermitPhase::Inside => {
                    actions.extend([PermitStep::End(call), PermitStep::Crash(call)]);
                }
                PermitPhase::Crashed => actions.push(PermitStep::LeaseEnds(call)),
                PermitPhase::Over => {}
            }
        }
    }

    fn next_state(&self, state: &PermitState, step: PermitStep) -> Option<PermitState> {
        let mut next = state.clone();
        let (call, settles) = match step {
            PermitStep::Ask(call) => {
                self.ask(&mut next, call);
                return Some(next);
            }
            PermitStep::Crash(call) => {
                next.phases[call] = PermitPhase::Crashed;
                return Some(next);
            }
            PermitStep::GiveUp(call) => (call, self.giving_up_settles),
            PermitStep::End(call) => (call, true),
            PermitStep::LeaseEnds(call) => (call, self.leases_settle),
        };
        next.queue.retain(|other| *other != call);
        Self::leave(&mut next, call);
        if settles {
            self.settle(&mut next);
        }
        Some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(WITHIN_LIMIT, |_, state: &PermitState| !state.is_beyond_limit),
            Property::always(FIRST_HAS_REASON, |model: &Self, state: &PermitState| {
                state.queue.first().is_none_or(|first| !model.is_within_own_limit(state, *first))
            }),
            Property::always(IN_ORDER, |_, state: &PermitState| !state.is_overtaken),
            Property::sometimes("several calls have permits", |_, state: &PermitState| {
                state.phases.iter().filter(|phase| **phase == PermitPhase::Inside).count() > 1
            }),
            Property::sometimes("all calls are done", |_, state: &PermitState| {
                state.phases.iter().all(|phase| *phase == PermitPhase::Over)
            }),
        ]
    }
}

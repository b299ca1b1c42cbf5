//! Calls for permits of a semaphore.
//!
//! Each call wants its number of permits for a number of times, by its own limit. The store has the holders
//! and the queue, and each request is one atomic step of it: `acquire.lua`, `release.lua` and `check.lua` of
//! `stores/redis/src/scripts/counted`, with `settle.lua`, which gives permits to the calls whose turn it is. A
//! reader is a call for one permit of very many, and a writer one for all of them.
//!
//! The checker shows that no call gets permits beyond its limit, that no call waits without a reason or
//! without a check that finds it out, and that no call is overtaken.

mod tests;

use stateright::{Model, Property};

/// All permits that are held when a call gets its own are within its limit.
const WITHIN_LIMIT: &str = "all holders are within the limit of the last one";
/// The first call that waits could not have its permits, unless a lease has ended or a client in the queue
/// is gone.
const FIRST_HAS_REASON: &str = "the first call does not wait without a reason";
/// If the first call waits without a reason, the check of a call that waits gives permits to one of them,
/// unless a release is in flight.
const CHECK_GIVES_PERMITS: &str = "a check gives the first call its permits";
/// A call that waits gets its permits before those that came later.
const IN_ORDER: &str = "no call is overtaken";
/// A call that is done has neither permits nor a place in the queue.
const NO_PERMITS_REMAIN: &str = "a call that is done has no permits";

/// The calls, each with its permits and its limit, and the number of times that it wants them.
#[derive(Debug, Clone)]
#[expect(clippy::struct_excessive_bools, reason = "each is one rule that can be switched off")]
struct PermitCalls {
    wanted: Vec<(u8, u8)>,
    times: u8,
    /// Whether calls crash, and messages and requests are lost or arrive late.
    faults: bool,
    /// Whether a call that comes while others wait, waits behind them.
    newcomers_wait: bool,
    /// Whether the first call holds the others back until there are enough permits for it.
    in_order: bool,
    /// Whether each call counts by its own limit, and not by the highest.
    own_limits: bool,
    /// Whether the others get their turn when a call gives up.
    giving_up_settles: bool,
    /// Whether a check finds that a lease has ended.
    checks_see_ends: bool,
    /// Whether a check finds that the first call in the queue is gone.
    checks_see_gone: bool,
    /// Whether a release is repeated while a request may arrive late.
    releases_repeat: bool,
}

impl Default for PermitCalls {
    /// Two calls for one of three permits, one for all of them, and one for two of two.
    fn default() -> Self {
        Self {
            wanted: vec![(1, 3), (1, 3), (3, 3), (2, 2)],
            times: 2,
            faults: false,
            newcomers_wait: true,
            in_order: true,
            own_limits: true,
            giving_up_settles: true,
            checks_see_ends: true,
            checks_see_gone: true,
            releases_repeat: true,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum PermitPhase {
    Outside,
    Waiting,
    Inside,
    /// Has given up, and releases what it may have.
    Undoing,
    Over,
    /// The process has crashed.
    Gone,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct PermitState {
    phases: Vec<PermitPhase>,
    times: Vec<u8>,
    /// The calls that have permits in the store, each with whether its lease has ended.
    holds: Vec<(usize, bool)>,
    /// The calls that wait, in the order in which they came.
    queue: Vec<usize>,
    /// A call whose request may arrive late.
    late: Option<usize>,
    is_beyond_limit: bool,
    is_overtaken: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum PermitStep {
    Ask(usize),
    /// Accepts the message that it has its permits.
    Accept(usize),
    Check(usize),
    GiveUp(usize),
    /// The same while a request is in flight.
    GiveUpEarly(usize),
    ServeRelease(usize),
    ServeLate,
    LoseLate,
    End(usize),
    Crash(usize),
    LeaseEnds(usize),
}

impl PermitState {
    fn has_permits(&self, call: usize) -> bool {
        self.holds.contains(&(call, false))
    }

    fn is_gone(&self, call: usize) -> bool {
        self.phases[call] == PermitPhase::Gone
    }

    /// The first call in the queue whose client can be reached.
    fn first(&self) -> Option<usize> {
        self.queue.iter().copied().find(|call| !self.is_gone(*call))
    }

    fn end_leases(&mut self) {
        self.holds.retain(|(_, has_ended)| !has_ended);
    }

    /// The calls that wait and have no permits yet.
    fn waiting(&self) -> impl Iterator<Item = usize> + '_ {
        let waits = |call: &usize| self.phases[*call] == PermitPhase::Waiting;
        (0..self.phases.len()).filter(waits).filter(|call| !self.has_permits(*call))
    }
}

impl PermitCalls {
    /// The permits that are taken, with those of leases that have ended if nothing has removed them.
    fn taken(&self, state: &PermitState) -> u8 {
        state.holds.iter().map(|(call, _)| self.wanted[*call].0).sum()
    }

    fn is_within_own_limit(&self, state: &PermitState, call: usize) -> bool {
        let (count, limit) = self.wanted[call];
        self.taken(state) + count <= limit
    }

    fn fits(&self, state: &PermitState, call: usize) -> bool {
        let highest = self.wanted.iter().map(|(_, limit)| *limit).max().unwrap_or_default();
        if self.own_limits {
            self.is_within_own_limit(state, call)
        } else {
            self.taken(state) + self.wanted[call].0 <= highest
        }
    }

    fn grant(&self, state: &mut PermitState, call: usize) {
        state.is_beyond_limit |= !self.is_within_own_limit(state, call);
        state.is_overtaken |= state.first().is_some_and(|first| first != call);
        state.queue.retain(|other| *other != call);
        state.holds.push((call, false));
        state.holds.sort_unstable();
    }

    /// `settle.lua`: gives permits to the calls whose turn it is. Returns whether a call that waits holds
    /// the others back.
    fn settle(&self, state: &mut PermitState) -> bool {
        for call in state.queue.clone() {
            if state.is_gone(call) || state.has_permits(call) {
                state.queue.retain(|other| *other != call);
            } else if self.fits(state, call) {
                self.grant(state, call);
            } else if self.in_order {
                return true;
            }
        }
        false
    }

    /// `acquire.lua`. The call has its permits afterwards, or a place in the queue.
    fn acquire(&self, state: &mut PermitState, call: usize) {
        if state.has_permits(call) {
            return;
        }
        state.end_leases();
        if self.fits(state, call) && (state.queue.is_empty() || !self.newcomers_wait) {
            return self.grant(state, call);
        }
        let is_held_back = self.settle(state);
        if state.has_permits(call) {
            return;
        }
        if !is_held_back && self.fits(state, call) {
            return self.grant(state, call);
        }
        if !state.queue.contains(&call) {
            state.queue.push(call);
        }
    }

    /// `release.lua`.
    fn release(&self, state: &mut PermitState, call: usize) {
        state.queue.retain(|other| *other != call);
        let has_permits = state.has_permits(call);
        state.holds.retain(|hold| *hold != (call, false));
        if has_permits || self.giving_up_settles {
            state.end_leases();
            self.settle(state);
        }
    }

    /// `check.lua`: whether an attempt is worthwhile.
    fn finds_free(&self, state: &PermitState, call: usize) -> bool {
        let has_ended = state.holds.iter().any(|(_, has_ended)| *has_ended);
        if state.holds.is_empty() || has_ended && self.checks_see_ends || state.has_permits(call) {
            return true;
        }
        match state.queue.first() {
            Some(first) if state.is_gone(*first) && self.checks_see_gone => true,
            Some(first) => self.fits(state, *first) || !state.queue.contains(&call),
            None => true,
        }
    }

    /// A call that waits checks its claim, and makes an attempt if that is worthwhile.
    fn check(&self, state: &mut PermitState, call: usize) {
        if self.finds_free(state, call) {
            self.acquire(state, call);
            if state.has_permits(call) {
                state.phases[call] = PermitPhase::Inside;
            }
        }
    }

    /// Whether the check of a call that waits gives permits to one of them.
    fn check_helps(&self, state: &PermitState) -> bool {
        state.waiting().any(|call| {
            let mut next = state.clone();
            self.check(&mut next, call);
            state.waiting().any(|other| next.has_permits(other))
        })
    }

    /// Whether the first call that waits could have its permits, if ended leases did not count.
    fn has_turn(&self, state: &PermitState) -> bool {
        let mut live = state.clone();
        live.end_leases();
        let first = state.first().or_else(|| state.waiting().next());
        first.is_some_and(|first| self.is_within_own_limit(&live, first))
    }

    /// The call is done, or wants its permits again.
    fn leave(state: &mut PermitState, call: usize) {
        let is_last = state.times[call] == 0;
        state.phases[call] = if is_last { PermitPhase::Over } else { PermitPhase::Outside };
    }

    /// Without faults, each message and each release arrives at once.
    fn deliver(&self, state: &mut PermitState) {
        for call in 0..state.phases.len() {
            if state.phases[call] == PermitPhase::Undoing {
                self.release(state, call);
                Self::leave(state, call);
            }
        }
        for call in 0..state.phases.len() {
            if state.phases[call] == PermitPhase::Waiting && state.has_permits(call) {
                state.phases[call] = PermitPhase::Inside;
            }
        }
    }

    /// Takes a step. Returns `None` if the step is impossible.
    fn step(&self, state: &mut PermitState, step: PermitStep) -> Option<()> {
        match step {
            PermitStep::Ask(call) => {
                (state.phases[call] == PermitPhase::Outside).then_some(())?;
                state.times[call] -= 1;
                self.acquire(state, call);
                let has_permits = state.has_permits(call);
                state.phases[call] =
                    if has_permits { PermitPhase::Inside } else { PermitPhase::Waiting };
            }
            PermitStep::Accept(call) => {
                let waits = state.phases[call] == PermitPhase::Waiting;
                (waits && state.has_permits(call)).then_some(())?;
                state.phases[call] = PermitPhase::Inside;
            }
            PermitStep::Check(call) => {
                (state.phases[call] == PermitPhase::Waiting).then_some(())?;
                self.check(state, call);
            }
            PermitStep::GiveUp(call) => {
                (state.phases[call] == PermitPhase::Waiting).then_some(())?;
                state.phases[call] = PermitPhase::Undoing;
            }
            PermitStep::GiveUpEarly(call) => {
                let phase = state.phases[call];
                let can_ask = matches!(phase, PermitPhase::Waiting | PermitPhase::Outside);
                (self.faults && can_ask && state.late.is_none()).then_some(())?;
                state.times[call] -= u8::from(phase == PermitPhase::Outside);
                (state.phases[call], state.late) = (PermitPhase::Undoing, Some(call));
            }
            PermitStep::ServeRelease(call) => {
                (state.phases[call] == PermitPhase::Undoing).then_some(())?;
                self.release(state, call);
                if state.late != Some(call) || !self.releases_repeat {
                    Self::leave(state, call);
                }
            }
            PermitStep::ServeLate => {
                let call = state.late.take()?;
                self.acquire(state, call);
            }
            PermitStep::LoseLate => drop(state.late.take()?),
            PermitStep::End(call) => {
                (state.phases[call] == PermitPhase::Inside).then_some(())?;
                self.release(state, call);
                Self::leave(state, call);
            }
            PermitStep::Crash(call) => {
                let is_active = matches!(
                    state.phases[call],
                    PermitPhase::Waiting | PermitPhase::Inside | PermitPhase::Undoing
                );
                (self.faults && is_active).then_some(())?;
                state.phases[call] = PermitPhase::Gone;
                state.late.take_if(|late| *late == call);
            }
            PermitStep::LeaseEnds(call) => {
                let counts = state.phases[call] == PermitPhase::Inside;
                (!counts && self.faults).then_some(())?;
                let hold = state.holds.iter_mut().find(|(holder, _)| *holder == call)?;
                hold.1 = true;
            }
        }
        Some(())
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
            holds: Vec::new(),
            queue: Vec::new(),
            late: None,
            is_beyond_limit: false,
            is_overtaken: false,
        }]
    }

    /// All steps. [`PermitCalls::step`] rejects those that are impossible.
    fn actions(&self, _: &PermitState, steps: &mut Vec<PermitStep>) {
        use PermitStep::*;
        for call in 0..self.wanted.len() {
            steps.extend([Ask(call), Accept(call), Check(call), GiveUp(call), GiveUpEarly(call)]);
            steps.extend([ServeRelease(call), End(call), Crash(call), LeaseEnds(call)]);
        }
        steps.extend([ServeLate, LoseLate]);
    }

    fn next_state(&self, last: &PermitState, step: PermitStep) -> Option<PermitState> {
        let mut next = last.clone();
        self.step(&mut next, step)?;
        if !self.faults {
            self.deliver(&mut next);
        }
        (next != *last).then_some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(WITHIN_LIMIT, |_, state: &PermitState| !state.is_beyond_limit),
            Property::always(FIRST_HAS_REASON, |model: &Self, state: &PermitState| {
                let has_ended = state.holds.iter().any(|(_, has_ended)| *has_ended);
                let has_gone = state.queue.iter().any(|call| state.is_gone(*call));
                let first = state.queue.first().filter(|_| !has_ended && !has_gone);
                first.is_none_or(|first| !model.is_within_own_limit(state, *first))
            }),
            Property::always(CHECK_GIVES_PERMITS, |model: &Self, state: &PermitState| {
                let is_releasing = state.phases.contains(&PermitPhase::Undoing);
                !model.has_turn(state) || is_releasing || model.check_helps(state)
            }),
            Property::always(IN_ORDER, |_, state: &PermitState| !state.is_overtaken),
            Property::always(NO_PERMITS_REMAIN, |_, state: &PermitState| {
                let is_over = |call: &usize| state.phases[*call] == PermitPhase::Over;
                let mut over = (0..state.phases.len()).filter(is_over);
                over.all(|call| !state.has_permits(call) && !state.queue.contains(&call))
            }),
            Property::sometimes("several calls have permits", |_, state: &PermitState| {
                state.phases.iter().filter(|phase| **phase == PermitPhase::Inside).count() > 1
            }),
            Property::sometimes("all calls are done", |_, state: &PermitState| {
                state.phases.iter().all(|phase| *phase == PermitPhase::Over)
            }),
        ]
    }
}

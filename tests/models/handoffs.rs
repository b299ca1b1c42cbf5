//! Hand-offs and fairness as a state machine: processes with several tasks hand a lock off among
//! their tasks, and yield it to each other.
//!
//! Models `handoff.rs`, `fairness/limit.rs`, `fairness/yielding.rs` and `local_queue` of the
//! engine. Leases do not expire, because the other model covers this, but a lease can be lost
//! during a hand-off. As in the other model, an action is one step of a process, one of its tasks
//! or the store, and each of them may pause for any number of steps of the others. Time is counted
//! in holds. The properties below are asserted in every state. Each control in `main.rs` switches
//! off one rule, and shows that a property is then violated.

use stateright::{Model, Property};

/// The handoff limit: the number of holds of a tenure.
const LIMIT: u8 = 2;
/// The longest tenure if the store does not answer the count of waiters, in holds.
const OVERTIME: u8 = 2 * LIMIT;
/// The time after which a count of waiters has taken too long, in holds.
const TIMEOUT: u8 = 1;
/// The most holds of one process while another one waits: a tenure that began before the other
/// process subscribed, the holds during a count that missed the subscription, a second tenure, and
/// the holds during a count that includes the subscription.
const LONGEST_WAIT: u8 = 2 * (LIMIT + TIMEOUT);

/// At most one task holds the lock.
pub(crate) const EXCLUSION: &str = "exclusion";
/// A process whose task holds the lock has the key.
pub(crate) const KEY: &str = "the holder has the key";
/// No process keeps the lock forever while another one waits.
pub(crate) const TENURES_END: &str = "tenures end";
/// While a task waits, a step is possible.
pub(crate) const PROGRESS: &str = "progress";

/// The configuration of the model.
#[derive(Clone, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "each is one independent switch")]
pub(crate) struct Handoffs {
    /// The number of tasks of each process.
    pub(crate) tasks: &'static [u8],
    /// Whether [`TENURES_END`] is checked. There is no bound for three processes, because woken
    /// processes race for the key, and there is no queue between processes.
    pub(crate) checks_tenures: bool,
    /// A guard of an earlier hold does not affect the current hold.
    pub(crate) holds_are_numbered: bool,
    /// A task that takes a hand-off checks whether the lease was lost.
    pub(crate) loss_is_seen: bool,
    /// If the task that is offered the lock gives up, the lock goes to the next task or is
    /// released.
    pub(crate) handoff_continues: bool,
    /// A tenure ends if other processes are known to wait.
    pub(crate) tenures_end: bool,
    /// At the end of a tenure, the store counts the other processes that wait.
    pub(crate) counts_waiters: bool,
    /// A process that has woken other processes yields to them.
    pub(crate) yields: bool,
    /// A process that has freed the key to acquire it with other terms yields, too.
    pub(crate) yields_before_reacquire: bool,
    /// A process makes another attempt after it has subscribed, because it may have missed a
    /// release.
    pub(crate) retries_after_subscribe: bool,
    /// *Assumed:* a woken process makes its attempt before the yielding process does.
    pub(crate) woken_attempts_come_first: bool,
}

impl Default for Handoffs {
    fn default() -> Self {
        Self {
            tasks: &[2, 1],
            checks_tenures: true,
            holds_are_numbered: true,
            loss_is_seen: true,
            handoff_continues: true,
            tenures_end: true,
            counts_waiters: true,
            yields: true,
            yields_before_reacquire: true,
            retries_after_subscribe: true,
            woken_attempts_come_first: true,
        }
    }
}

type Task = u8;

/// The state of the permit of a process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
enum Active {
    #[default]
    Idle,
    Starting(Task),
    Yielding(Task),
    Attempting(Task),
    Subscribing(Task),
    Waiting {
        task: Task,
        retry: bool,
    },
    Holding(Task),
    /// The lock is on offer to this task.
    HandingOff(Task),
    /// The lock is on offer to this task, but the lease has been lost.
    LostInHandoff(Task),
    /// The lock was offered to a task that has given up.
    Abandoned,
    /// The key is being freed, possibly by a task that acquires it again.
    Releasing(Option<Task>),
}

/// The state of a request to count the waiting processes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
enum CountRequest {
    #[default]
    Idle,
    Requested,
    Answered {
        others: bool,
    },
}

/// The tenure of a lease, from its grant to its release.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct ModelTenure {
    holds: u8,
    contended: bool,
    waiter_count: CountRequest,
    /// The number of holds that have ended since the request to count waiters.
    holds_since_request: u8,
    /// A bit set of the tasks that held the lock before, and may still have a guard.
    previous: u8,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct ModelProcess {
    active: Active,
    queue: Vec<Task>,
    tenure: ModelTenure,
    contended: bool,
    /// The number of releases by other processes to wait for before the next attempt.
    awaited_releases: u8,
    subscribed: bool,
    /// Whether a release has woken the process since its last attempt.
    woken: bool,
    /// The number of holds of other processes since this one has subscribed. Not visible to the
    /// protocol.
    passed_over: u8,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct HandoffState {
    key: Option<usize>,
    processes: Vec<ModelProcess>,
    /// The tasks that hold the lock, according to their processes. Not visible to the protocol.
    inside: Vec<(usize, Task)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HandoffAction {
    /// A task asks for the lock.
    Call(usize, Task),
    GiveUp(usize, Task),
    /// Begins to contend, and yields first if necessary.
    Start(usize),
    /// Ends a yield after its time.
    EndYield(usize),
    /// The store serves an attempt, and the process receives the reply.
    Serve(usize),
    Subscribe(usize),
    Retry(usize),
    EndHold(usize),
    /// Takes a hand-off with the lease as it is.
    TakeHandoff(usize),
    /// Refuses a hand-off, because the task wants other terms.
    RefuseHandoff(usize),
    LoseInHandoff(usize),
    ServeRelease(usize),
    ServeCount(usize),
    ReceiveCount(usize),
    DropCount(usize),
    /// Releases with the guard of a hold that has ended.
    EndHoldAgain(usize, Task),
}

impl HandoffAction {
    /// Whether the step counts as progress. Steps of callers, faults and counts of waiters do not.
    fn is_progress(self) -> bool {
        use HandoffAction::*;
        !matches!(
            self,
            Call(..)
                | GiveUp(..)
                | LoseInHandoff(_)
                | DropCount(_)
                | ServeCount(_)
                | ReceiveCount(_)
                | EndHoldAgain(..)
        )
    }
}

impl Model for Handoffs {
    type State = HandoffState;
    type Action = HandoffAction;

    fn init_states(&self) -> Vec<HandoffState> {
        vec![HandoffState {
            processes: vec![ModelProcess::default(); self.tasks.len()],
            ..HandoffState::default()
        }]
    }

    /// All actions. [`Handoffs::step`] rejects those that are impossible.
    fn actions(&self, _: &HandoffState, actions: &mut Vec<HandoffAction>) {
        use HandoffAction::*;
        for (n, tasks) in self.tasks.iter().enumerate() {
            for task in 0..*tasks {
                actions.extend([Call(n, task), GiveUp(n, task), EndHoldAgain(n, task)]);
            }
            actions.extend([Start(n), EndYield(n), Serve(n), Subscribe(n), Retry(n)]);
            actions.extend([
                EndHold(n),
                TakeHandoff(n),
                RefuseHandoff(n),
                LoseInHandoff(n),
                ServeRelease(n),
            ]);
            actions.extend([ServeCount(n), ReceiveCount(n), DropCount(n)]);
        }
    }

    fn next_state(&self, last: &HandoffState, action: HandoffAction) -> Option<HandoffState> {
        let mut next = last.clone();
        self.step(&mut next, action)?;
        if !self.checks_tenures {
            next.processes.iter_mut().for_each(|process| process.passed_over = 0);
        }
        (next != *last).then_some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        let mut properties = vec![
            Property::always(EXCLUSION, |_, state: &HandoffState| state.inside.len() <= 1),
            Property::always(KEY, |_, state: &HandoffState| {
                state.inside.iter().all(|(n, _)| state.key == Some(*n))
            }),
            Property::always(PROGRESS, |model: &Handoffs, state: &HandoffState| {
                let mut actions = Vec::new();
                model.actions(state, &mut actions);
                let mut progress = actions.into_iter().filter(|action| action.is_progress());
                let waits = state.processes.iter().any(|p| p.active != Active::Idle);
                !waits || progress.any(|action| model.next_state(state, action).is_some())
            }),
            Property::sometimes("a count finds other processes", |_, state: &HandoffState| {
                any(state, |p| p.tenure.waiter_count == CountRequest::Answered { others: true })
            }),
            Property::sometimes("a lock is lost during a hand-off", |_, state: &HandoffState| {
                any(state, |p| matches!(p.active, Active::LostInHandoff(_)))
            }),
            Property::sometimes("a process yields to a holder", |_, state: &HandoffState| {
                any(state, |p| matches!(p.active, Active::Yielding(_)))
                    && any(state, |p| matches!(p.active, Active::Holding(_)))
            }),
        ];
        if self.checks_tenures {
            properties.push(Property::always(TENURES_END, |_, state: &HandoffState| {
                !any(state, |p| p.passed_over > LONGEST_WAIT)
            }));
            properties
                .push(Property::sometimes("the longest wait occurs", |_, state: &HandoffState| {
                    any(state, |p| p.passed_over == LONGEST_WAIT)
                }));
        }
        properties
    }
}

fn any(state: &HandoffState, condition: impl Fn(&ModelProcess) -> bool) -> bool {
    state.processes.iter().any(condition)
}

impl Handoffs {
    /// Takes a step. Returns `None` if the step is impossible.
    fn step(&self, state: &mut HandoffState, action: HandoffAction) -> Option<()> {
        use HandoffAction::*;
        match action {
            Call(n, _) | GiveUp(n, _) => self.call(state, n, action),
            Start(n) | EndYield(n) | Serve(n) | Subscribe(n) | Retry(n) => {
                self.contend(state, n, action)
            }
            EndHold(n)
            | TakeHandoff(n)
            | RefuseHandoff(n)
            | LoseInHandoff(n)
            | EndHoldAgain(n, _) => self.hand_off(state, n, action),
            ServeRelease(n) => self.release(state, n),
            ServeCount(n) | ReceiveCount(n) | DropCount(n) => count_waiters(state, n, action),
        }
    }

    /// The steps of a caller.
    fn call(&self, state: &mut HandoffState, n: usize, action: HandoffAction) -> Option<()> {
        let process = &mut state.processes[n];
        match (action, process.active) {
            (HandoffAction::Call(_, task), active) => {
                (!process.has(task)).then_some(())?;
                match active {
                    Active::Idle => process.active = Active::Starting(task),
                    _ => process.queue.push(task),
                }
                Some(())
            }
            (HandoffAction::GiveUp(_, task), Active::HandingOff(next)) if task == next => {
                process.active = if !self.handoff_continues {
                    Active::Abandoned
                } else if process.queue.is_empty() {
                    Active::Releasing(None)
                } else {
                    Active::HandingOff(process.queue.remove(0))
                };
                Some(())
            }
            (
                HandoffAction::GiveUp(_, task),
                Active::Starting(own)
                | Active::Yielding(own)
                | Active::LostInHandoff(own)
                | Active::Waiting { task: own, .. },
            ) if task == own => {
                process.next();
                Some(())
            }
            (HandoffAction::GiveUp(_, task), _) => {
                let place = process.queue.iter().position(|queued| *queued == task)?;
                process.queue.remove(place);
                Some(())
            }
            _ => None,
        }
    }

    /// The steps of the permit holder before the grant.
    fn contend(&self, state: &mut HandoffState, n: usize, action: HandoffAction) -> Option<()> {
        let others_come_first = self.woken_attempts_come_first
            && state.processes.iter().enumerate().any(|(other, p)| other != n && p.woken);
        let process = &mut state.processes[n];
        match (action, process.active) {
            (HandoffAction::Start(_), Active::Starting(task)) => {
                process.active = if process.awaited_releases > 0 && self.yields {
                    (process.subscribed, process.contended) = (true, true);
                    Active::Yielding(task)
                } else {
                    Active::Attempting(task)
                };
                Some(())
            }
            (HandoffAction::EndYield(_), Active::Yielding(task)) if !others_come_first => {
                (process.active, process.awaited_releases) = (Active::Attempting(task), 0);
                Some(())
            }
            (HandoffAction::Serve(_), Active::Attempting(task)) => {
                process.woken = false;
                if state.key.is_none() {
                    state.key = Some(n);
                    process.awaited_releases = 0;
                    process.tenure =
                        ModelTenure { contended: process.contended, ..ModelTenure::default() };
                    (process.subscribed, process.contended) = (false, false);
                    process.active = Active::Holding(task);
                    state.begin(n, task);
                } else {
                    process.contended = true;
                    process.active = if process.subscribed {
                        Active::Waiting { task, retry: false }
                    } else {
                        Active::Subscribing(task)
                    };
                }
                Some(())
            }
            (HandoffAction::Subscribe(_), Active::Subscribing(task)) => {
                process.subscribed = true;
                process.active = Active::Waiting { task, retry: self.retries_after_subscribe };
                Some(())
            }
            (HandoffAction::Retry(_), Active::Waiting { task, retry })
                if retry || process.woken =>
            {
                process.active = Active::Attempting(task);
                Some(())
            }
            _ => None,
        }
    }

    /// The steps of holders, and of tasks that take a hand-off.
    fn hand_off(&self, state: &mut HandoffState, n: usize, action: HandoffAction) -> Option<()> {
        let process = &mut state.processes[n];
        match (action, process.active) {
            (HandoffAction::EndHold(_), Active::Holding(task)) => {
                state.inside.retain(|inside| *inside != (n, task));
                self.end_hold(process, task);
                Some(())
            }
            (HandoffAction::EndHoldAgain(_, task), Active::Holding(holder))
                if !self.holds_are_numbered =>
            {
                (process.tenure.previous & 1 << task != 0 && task != holder).then_some(())?;
                self.end_hold(process, holder);
                Some(())
            }
            (HandoffAction::RefuseHandoff(_), Active::HandingOff(task)) => {
                process.active = Active::Releasing(Some(task));
                Some(())
            }
            (HandoffAction::LoseInHandoff(_), Active::HandingOff(task)) => {
                process.active = Active::LostInHandoff(task);
                state.free();
                // The tenure did not end regularly, so the count of holds starts again.
                state.processes.iter_mut().for_each(|process| process.passed_over = 0);
                Some(())
            }
            (HandoffAction::TakeHandoff(_), Active::LostInHandoff(task)) if self.loss_is_seen => {
                process.active = Active::Starting(task);
                Some(())
            }
            (
                HandoffAction::TakeHandoff(_),
                Active::HandingOff(task) | Active::LostInHandoff(task),
            ) => {
                process.active = Active::Holding(task);
                state.begin(n, task);
                Some(())
            }
            _ => None,
        }
    }

    fn end_hold(&self, process: &mut ModelProcess, task: Task) {
        let continues = !process.queue.is_empty() && process.tenure.continues(self);
        if !self.holds_are_numbered {
            process.tenure.previous |= 1 << task;
        }
        process.active = if continues {
            Active::HandingOff(process.queue.remove(0))
        } else {
            Active::Releasing(None)
        };
    }

    /// The store serves a release, and the process receives the reply.
    fn release(&self, state: &mut HandoffState, n: usize) -> Option<()> {
        let Active::Releasing(reacquire) = state.processes[n].active else { return None };
        let woken = if state.key == Some(n) { state.free() } else { 0 };
        let process = &mut state.processes[n];
        (process.awaited_releases, process.tenure) = (woken, ModelTenure::default());
        match reacquire {
            Some(task) => {
                process.active = Active::Starting(task);
                process.awaited_releases *= u8::from(self.yields_before_reacquire);
            }
            None => process.next(),
        }
        Some(())
    }
}

/// The steps of the store and of a process that count the waiting processes.
fn count_waiters(state: &mut HandoffState, n: usize, action: HandoffAction) -> Option<()> {
    let others = state.processes.iter().enumerate().any(|(other, p)| other != n && p.subscribed);
    let tenure = &mut state.processes[n].tenure;
    match (action, tenure.waiter_count) {
        (HandoffAction::ServeCount(_), CountRequest::Requested) => {
            tenure.waiter_count = CountRequest::Answered { others };
        }
        (HandoffAction::ReceiveCount(_), CountRequest::Answered { others }) => {
            (tenure.waiter_count, tenure.holds_since_request) = (CountRequest::Idle, 0);
            if others {
                tenure.contended = true;
            } else {
                tenure.holds = 0;
            }
        }
        (HandoffAction::DropCount(_), CountRequest::Requested | CountRequest::Answered { .. }) => {
            (tenure.waiter_count, tenure.holds_since_request) = (CountRequest::Idle, 0);
        }
        _ => return None,
    }
    Some(())
}

impl ModelTenure {
    /// Whether the tenure continues after a hold, if another task of this process waits.
    fn continues(&mut self, model: &Handoffs) -> bool {
        self.holds = OVERTIME.min(self.holds + 1);
        if self.holds < LIMIT || !model.tenures_end {
            return true;
        }
        if self.contended {
            return false;
        }
        if self.waiter_count != CountRequest::Idle {
            self.holds_since_request += 1;
            return self.holds_since_request < TIMEOUT;
        }
        if !model.counts_waiters {
            return true;
        }
        if self.holds >= OVERTIME {
            return false;
        }
        self.waiter_count = CountRequest::Requested;
        true
    }
}

impl ModelProcess {
    fn has(&self, task: Task) -> bool {
        let own = match self.active {
            Active::Starting(own)
            | Active::Yielding(own)
            | Active::Attempting(own)
            | Active::Subscribing(own)
            | Active::Waiting { task: own, .. }
            | Active::Holding(own)
            | Active::HandingOff(own)
            | Active::LostInHandoff(own)
            | Active::Releasing(Some(own)) => Some(own),
            Active::Idle | Active::Abandoned | Active::Releasing(None) => None,
        };
        own == Some(task) || self.queue.contains(&task)
    }

    /// The permit goes to the next task in the queue, if there is one.
    fn next(&mut self) {
        (self.subscribed, self.woken, self.contended) = (false, false, false);
        self.passed_over = 0;
        self.active = if self.queue.is_empty() {
            Active::Idle
        } else {
            Active::Starting(self.queue.remove(0))
        };
    }
}

impl HandoffState {
    fn begin(&mut self, n: usize, task: Task) {
        self.inside.push((n, task));
        for (other, process) in self.processes.iter_mut().enumerate() {
            let is_passed_over = other != n && process.subscribed;
            process.passed_over =
                (process.passed_over + 1).min(LONGEST_WAIT + 1) * u8::from(is_passed_over);
        }
    }

    /// Frees the key and wakes all subscribed processes. Returns their number.
    fn free(&mut self) -> u8 {
        self.key = None;
        let mut woken = 0;
        for process in self.processes.iter_mut().filter(|process| process.subscribed) {
            woken += 1;
            if let Active::Yielding(task) = process.active {
                process.awaited_releases -= 1;
                if process.awaited_releases == 0 {
                    process.active = Active::Attempting(task);
                }
            } else {
                process.woken = true;
            }
        }
        woken
    }
}

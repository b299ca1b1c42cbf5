//! Turn-taking as a state machine: processes with some tasks each, who pass a held lock on among
//! themselves, and let each other have their turn.
//!
//! Mirrors `handover.rs`, `turn.rs`, `courtesy.rs` and `gate.rs` of the engine. Leases do not run out
//! here, which is the other model's part; one may be lost on its way from hand to hand. As there, an action is one
//! step of one party, and a party may stand still for as long as others move. Time is counted in
//! holds: each takes some.

use stateright::{Model, Property};

/// Holds of a turn.
const LIMIT: u8 = 2;
/// Holds of a turn about whose end nobody could ask.
const OVERTIME: u8 = 2 * LIMIT;
/// Holds that go by until a question has taken too long.
const PATIENCE: u8 = 1;
/// Of one process while another waits: a turn that began before that one came, the holds during the
/// question that did not see it, one turn more, and those during the question that does.
const LONGEST: u8 = 2 * (LIMIT + PATIENCE);

/// Only one task is inside.
pub(crate) const EXCLUSION: &str = "exclusion";
/// Who is inside has the key.
pub(crate) const KEY: &str = "the key is had";
/// No process goes on for ever while another waits.
pub(crate) const TURNS: &str = "turns end";
/// Where somebody waits, something happens next.
pub(crate) const NOBODY_IDLES: &str = "nobody idles for ever";

/// What is modelled, and with which of the switches on.
#[derive(Clone, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "each is one independent switch")]
pub(crate) struct Turns {
    /// How many tasks each process has.
    pub(crate) tasks: &'static [u8],
    /// It is checked how long turns are. Among three there is no bound: those who are woken race for the
    /// key, and nobody keeps a queue.
    pub(crate) is_counted: bool,
    /// A guard of before does nothing to the hold that is now.
    pub(crate) holds_are_numbered: bool,
    /// One who receives a lease sees that it was lost on its way.
    pub(crate) loss_is_seen: bool,
    /// A lock on its way to one who gives up goes to the next, or is released.
    pub(crate) is_passed_on: bool,
    /// A turn ends when others are known to wait.
    pub(crate) ends: bool,
    /// At the end of a turn the store is asked whether others wait.
    pub(crate) asks: bool,
    /// Who has woken others lets them go first.
    pub(crate) steps_back: bool,
    /// Also one who has freed the key to acquire it anew.
    pub(crate) steps_back_anew: bool,
    /// Who has subscribed tries once more, for a release that came before.
    pub(crate) looks_again: bool,
    /// *Assumed:* whoever is woken asks before those who have stepped back do.
    pub(crate) woken_come_in_time: bool,
}

impl Default for Turns {
    fn default() -> Self {
        Self {
            tasks: &[2, 1],
            is_counted: true,
            holds_are_numbered: true,
            loss_is_seen: true,
            is_passed_on: true,
            ends: true,
            asks: true,
            steps_back: true,
            steps_back_anew: true,
            looks_again: true,
            woken_come_in_time: true,
        }
    }
}

type Task = u8;

/// What the owner of a process's pass is at.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
enum Active {
    #[default]
    Nobody,
    Starting(Task),
    SteppingBack(Task),
    Trying(Task),
    Subscribing(Task),
    Waiting {
        task: Task,
        look: bool,
    },
    Holding(Task),
    /// From one holder to the next.
    OnItsWay(Task),
    /// The same, and meanwhile the key is another's.
    LostOnItsWay(Task),
    /// With one who does not look any more.
    Forgotten,
    /// The key is being freed, perhaps by one who then acquires it anew.
    Releasing(Option<Task>),
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
enum Question {
    #[default]
    Unasked,
    Asked,
    Answered {
        others: bool,
    },
}

/// A lease's, from its grant to its release.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct Turn {
    holds: u8,
    contended: bool,
    question: Question,
    /// Holds that have ended since the question.
    asked_for: u8,
    /// Who has had it before, and may still have a guard.
    before: u8,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct Process {
    active: Active,
    queue: Vec<Task>,
    turn: Turn,
    contended: bool,
    /// Releases of others to be heard before it tries.
    debt: u8,
    subscribed: bool,
    /// By a release, and has not asked since.
    woken: bool,
    /// Holds of others since it has subscribed. Nobody in the model can see it.
    passed_by: u8,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct State {
    key: Option<usize>,
    processes: Vec<Process>,
    /// The tasks that are inside, as far as they know. Nobody in the model can see it.
    inside: Vec<(usize, Task)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    Want(usize, Task),
    GiveUp(usize, Task),
    /// Begins to contend, and steps back if it owes that.
    Start(usize),
    /// The others have had time enough.
    StepForward(usize),
    /// A try is served and answered.
    Serve(usize),
    Subscribe(usize),
    TryAgain(usize),
    Leave(usize),
    /// Takes what was handed over, as it is.
    Receive(usize),
    /// Wants another lease than was handed over.
    Refuse(usize),
    Lose(usize),
    ServeRelease(usize),
    ServeQuestion(usize),
    HearAnswer(usize),
    DropQuestion(usize),
    /// Releases with the guard of a hold that is over.
    LeaveAgain(usize, Task),
}

impl Action {
    /// Whether it happens without anybody's wish.
    fn is_progress(self) -> bool {
        use Action::*;
        !matches!(
            self,
            Want(..)
                | GiveUp(..)
                | Lose(_)
                | DropQuestion(_)
                | ServeQuestion(_)
                | HearAnswer(_)
                | LeaveAgain(..)
        )
    }
}

impl Model for Turns {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![State { processes: vec![Process::default(); self.tasks.len()], ..State::default() }]
    }

    /// What each could do; [`Turns::step`] knows what it may.
    fn actions(&self, _: &State, actions: &mut Vec<Action>) {
        use Action::*;
        for (n, tasks) in self.tasks.iter().enumerate() {
            for task in 0..*tasks {
                actions.extend([Want(n, task), GiveUp(n, task), LeaveAgain(n, task)]);
            }
            actions.extend([Start(n), StepForward(n), Serve(n), Subscribe(n), TryAgain(n)]);
            actions.extend([Leave(n), Receive(n), Refuse(n), Lose(n), ServeRelease(n)]);
            actions.extend([ServeQuestion(n), HearAnswer(n), DropQuestion(n)]);
        }
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut next = last.clone();
        self.step(&mut next, action)?;
        if !self.is_counted {
            next.processes.iter_mut().for_each(|process| process.passed_by = 0);
        }
        (next != *last).then_some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        let mut properties = vec![
            Property::always(EXCLUSION, |_, state: &State| state.inside.len() <= 1),
            Property::always(KEY, |_, state: &State| {
                state.inside.iter().all(|(n, _)| state.key == Some(*n))
            }),
            Property::always(NOBODY_IDLES, |model: &Turns, state: &State| {
                let mut actions = Vec::new();
                model.actions(state, &mut actions);
                let mut progress = actions.into_iter().filter(|action| action.is_progress());
                let waits = state.processes.iter().any(|p| p.active != Active::Nobody);
                !waits || progress.any(|action| model.next_state(state, action).is_some())
            }),
            Property::sometimes("a question hears of others", |_, state: &State| {
                any(state, |p| p.turn.question == Question::Answered { others: true })
            }),
            Property::sometimes("a lock is lost on its way", |_, state: &State| {
                any(state, |p| matches!(p.active, Active::LostOnItsWay(_)))
            }),
            Property::sometimes("others go first", |_, state: &State| {
                any(state, |p| matches!(p.active, Active::SteppingBack(_)))
                    && any(state, |p| matches!(p.active, Active::Holding(_)))
            }),
        ];
        if self.is_counted {
            properties.push(Property::always(TURNS, |_, state: &State| {
                !any(state, |p| p.passed_by > LONGEST)
            }));
            properties
                .push(Property::sometimes("a turn lasts as long as it can", |_, state: &State| {
                    any(state, |p| p.passed_by == LONGEST)
                }));
        }
        properties
    }
}

fn any(state: &State, is_so: impl Fn(&Process) -> bool) -> bool {
    state.processes.iter().any(is_so)
}

impl Turns {
    /// `None` where the action is not possible.
    fn step(&self, state: &mut State, action: Action) -> Option<()> {
        use Action::*;
        match action {
            Want(n, _) | GiveUp(n, _) => self.wish(state, n, action),
            Start(n) | StepForward(n) | Serve(n) | Subscribe(n) | TryAgain(n) => {
                self.contend(state, n, action)
            }
            Leave(n) | Receive(n) | Refuse(n) | Lose(n) | LeaveAgain(n, _) => {
                self.hand_over(state, n, action)
            }
            ServeRelease(n) => self.release(state, n),
            ServeQuestion(n) | HearAnswer(n) | DropQuestion(n) => ask(state, n, action),
        }
    }

    /// As a caller does it.
    fn wish(&self, state: &mut State, n: usize, action: Action) -> Option<()> {
        let process = &mut state.processes[n];
        match (action, process.active) {
            (Action::Want(_, task), active) => {
                (!process.has(task)).then_some(())?;
                match active {
                    Active::Nobody => process.active = Active::Starting(task),
                    _ => process.queue.push(task),
                }
                Some(())
            }
            (Action::GiveUp(_, task), Active::OnItsWay(next)) if task == next => {
                process.active = if !self.is_passed_on {
                    Active::Forgotten
                } else if process.queue.is_empty() {
                    Active::Releasing(None)
                } else {
                    Active::OnItsWay(process.queue.remove(0))
                };
                Some(())
            }
            (
                Action::GiveUp(_, task),
                Active::Starting(own)
                | Active::SteppingBack(own)
                | Active::LostOnItsWay(own)
                | Active::Waiting { task: own, .. },
            ) if task == own => {
                process.next();
                Some(())
            }
            (Action::GiveUp(_, task), _) => {
                let place = process.queue.iter().position(|queued| *queued == task)?;
                process.queue.remove(place);
                Some(())
            }
            _ => None,
        }
    }

    /// As the contender does it.
    fn contend(&self, state: &mut State, n: usize, action: Action) -> Option<()> {
        let others_come = self.woken_come_in_time
            && state.processes.iter().enumerate().any(|(other, p)| other != n && p.woken);
        let process = &mut state.processes[n];
        match (action, process.active) {
            (Action::Start(_), Active::Starting(task)) => {
                process.active = if process.debt > 0 && self.steps_back {
                    (process.subscribed, process.contended) = (true, true);
                    Active::SteppingBack(task)
                } else {
                    Active::Trying(task)
                };
                Some(())
            }
            (Action::StepForward(_), Active::SteppingBack(task)) if !others_come => {
                (process.active, process.debt) = (Active::Trying(task), 0);
                Some(())
            }
            (Action::Serve(_), Active::Trying(task)) => {
                process.woken = false;
                if state.key.is_none() {
                    state.key = Some(n);
                    process.debt = 0;
                    process.turn = Turn { contended: process.contended, ..Turn::default() };
                    (process.subscribed, process.contended) = (false, false);
                    process.active = Active::Holding(task);
                    state.begin(n, task);
                } else {
                    process.contended = true;
                    process.active = if process.subscribed {
                        Active::Waiting { task, look: false }
                    } else {
                        Active::Subscribing(task)
                    };
                }
                Some(())
            }
            (Action::Subscribe(_), Active::Subscribing(task)) => {
                process.subscribed = true;
                process.active = Active::Waiting { task, look: self.looks_again };
                Some(())
            }
            (Action::TryAgain(_), Active::Waiting { task, look }) if look || process.woken => {
                process.active = Active::Trying(task);
                Some(())
            }
            _ => None,
        }
    }

    /// As holds and those who inherit them do it.
    fn hand_over(&self, state: &mut State, n: usize, action: Action) -> Option<()> {
        let process = &mut state.processes[n];
        match (action, process.active) {
            (Action::Leave(_), Active::Holding(task)) => {
                state.inside.retain(|inside| *inside != (n, task));
                self.leave(process, task);
                Some(())
            }
            (Action::LeaveAgain(_, task), Active::Holding(holder)) if !self.holds_are_numbered => {
                (process.turn.before & 1 << task != 0 && task != holder).then_some(())?;
                self.leave(process, holder);
                Some(())
            }
            (Action::Refuse(_), Active::OnItsWay(task)) => {
                process.active = Active::Releasing(Some(task));
                Some(())
            }
            (Action::Lose(_), Active::OnItsWay(task)) => {
                process.active = Active::LostOnItsWay(task);
                state.free();
                // No turn ends in order then, so it is counted from there.
                state.processes.iter_mut().for_each(|process| process.passed_by = 0);
                Some(())
            }
            (Action::Receive(_), Active::LostOnItsWay(task)) if self.loss_is_seen => {
                process.active = Active::Starting(task);
                Some(())
            }
            (Action::Receive(_), Active::OnItsWay(task) | Active::LostOnItsWay(task)) => {
                process.active = Active::Holding(task);
                state.begin(n, task);
                Some(())
            }
            _ => None,
        }
    }

    fn leave(&self, process: &mut Process, task: Task) {
        let goes_on = !process.queue.is_empty() && process.turn.goes_on(self);
        if !self.holds_are_numbered {
            process.turn.before |= 1 << task;
        }
        process.active = if goes_on {
            Active::OnItsWay(process.queue.remove(0))
        } else {
            Active::Releasing(None)
        };
    }

    /// As the store does it, and the process that hears of it.
    fn release(&self, state: &mut State, n: usize) -> Option<()> {
        let Active::Releasing(anew) = state.processes[n].active else { return None };
        let woken = if state.key == Some(n) { state.free() } else { 0 };
        let process = &mut state.processes[n];
        (process.debt, process.turn) = (woken, Turn::default());
        match anew {
            Some(task) => {
                process.active = Active::Starting(task);
                process.debt *= u8::from(self.steps_back_anew);
            }
            None => process.next(),
        }
        Some(())
    }
}

/// What becomes of a question, as the store and the one who asks do it.
fn ask(state: &mut State, n: usize, action: Action) -> Option<()> {
    let others = state.processes.iter().enumerate().any(|(other, p)| other != n && p.subscribed);
    let turn = &mut state.processes[n].turn;
    match (action, turn.question) {
        (Action::ServeQuestion(_), Question::Asked) => {
            turn.question = Question::Answered { others };
        }
        (Action::HearAnswer(_), Question::Answered { others }) => {
            (turn.question, turn.asked_for) = (Question::Unasked, 0);
            if others {
                turn.contended = true;
            } else {
                turn.holds = 0;
            }
        }
        (Action::DropQuestion(_), Question::Asked | Question::Answered { .. }) => {
            (turn.question, turn.asked_for) = (Question::Unasked, 0);
        }
        _ => return None,
    }
    Some(())
}

impl Turn {
    /// A hold has ended, and another of this process waits.
    fn goes_on(&mut self, model: &Turns) -> bool {
        self.holds = OVERTIME.min(self.holds + 1);
        if self.holds < LIMIT || !model.ends {
            return true;
        }
        if self.contended {
            return false;
        }
        if self.question != Question::Unasked {
            self.asked_for += 1;
            return self.asked_for < PATIENCE;
        }
        if !model.asks {
            return true;
        }
        if self.holds >= OVERTIME {
            return false;
        }
        self.question = Question::Asked;
        true
    }
}

impl Process {
    fn has(&self, task: Task) -> bool {
        let own = match self.active {
            Active::Starting(own)
            | Active::SteppingBack(own)
            | Active::Trying(own)
            | Active::Subscribing(own)
            | Active::Waiting { task: own, .. }
            | Active::Holding(own)
            | Active::OnItsWay(own)
            | Active::LostOnItsWay(own)
            | Active::Releasing(Some(own)) => Some(own),
            Active::Nobody | Active::Forgotten | Active::Releasing(None) => None,
        };
        own == Some(task) || self.queue.contains(&task)
    }

    /// The pass goes to the next, or is forgotten.
    fn next(&mut self) {
        (self.subscribed, self.woken, self.contended) = (false, false, false);
        self.passed_by = 0;
        self.active = if self.queue.is_empty() {
            Active::Nobody
        } else {
            Active::Starting(self.queue.remove(0))
        };
    }
}

impl State {
    fn begin(&mut self, n: usize, task: Task) {
        self.inside.push((n, task));
        for (other, process) in self.processes.iter_mut().enumerate() {
            let is_passed_by = other != n && process.subscribed;
            process.passed_by = (process.passed_by + 1).min(LONGEST + 1) * u8::from(is_passed_by);
        }
    }

    /// The key is free; wakes all who have subscribed, and returns how many they are.
    fn free(&mut self) -> u8 {
        self.key = None;
        let mut woken = 0;
        for process in self.processes.iter_mut().filter(|process| process.subscribed) {
            woken += 1;
            if let Active::SteppingBack(task) = process.active {
                process.debt -= 1;
                if process.debt == 0 {
                    process.active = Active::Trying(task);
                }
            } else {
                process.woken = true;
            }
        }
        woken
    }
}

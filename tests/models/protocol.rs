//! The protocol as a state machine: contenders, their messages, one server, one resource.
//!
//! An action is one atomic step of one party, and any party may stand still for as long as others
//! move. So a slow network, a paused process and an overloaded executor need no action of their own:
//! they are the orders in which the steps that there are can come. A message that is lost is one
//! that stands still for ever.
//!
//! Time is a step too, of all clocks at once. Whatever is kept of it is a remainder, so the states
//! are finitely many although time is not bounded.

use stateright::{Model, Property};

use crate::assumptions::{Assumptions, Protections};
use crate::contender::{Answer, Contender, Phase, Poll, Request};
use crate::properties;
use crate::resource::Resource;
use crate::server::{EXTENDED, LEASE, MARGIN, Server, Token};

/// What is modelled, and with which of the switches on.
#[derive(Clone, Debug)]
pub(crate) struct Protocol {
    pub(crate) held: Protections,
    pub(crate) assumed: Assumptions,
    /// How often each acquisition asks; so many there are.
    pub(crate) tries: &'static [u8],
    /// Lanes break, answers to renewals are given up, and processes crash. Where they do not, they
    /// can still stand still for ever.
    pub(crate) breaks: bool,
    /// Renewals ask for a longer term than the grant had, as those of an extended fixed lease do.
    pub(crate) extends: bool,
    /// Bodies ask for fencing tokens, are polled, and write to a resource.
    pub(crate) writes: bool,
}

impl Default for Protocol {
    fn default() -> Self {
        let (held, assumed) = Default::default();
        Self { held, assumed, tries: &[2, 2], breaks: true, extends: false, writes: false }
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct State {
    pub(crate) contenders: Vec<Contender>,
    pub(crate) server: Server,
    pub(crate) resource: Resource,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    /// Sends a try.
    Ask(usize),
    /// Takes an answer to a try for that of a grant, without having it.
    Assume(usize),
    /// Takes what has come on the caller's lane.
    Hear(usize),
    /// Waits no longer for the answer to this try.
    TimeOut(usize),
    /// Wants the lock no more, whether or not a try is under way: its future is dropped.
    GiveUp(usize),
    Release(usize),
    /// The watchdog finds the deadline passed.
    Expire(usize),
    Crash(usize),
    Renew(usize),
    HearRenewal(usize),
    /// Waits no longer for the answer to this renewal.
    TimeOutRenewal(usize),
    /// Sends one round of a background release.
    Sweep(usize),
    AskFence(usize),
    HearFence(usize),
    Poll(usize),
    /// The poll writes, and ends.
    Write(usize),

    /// The caller's lane breaks; what was on it is lost, but one try may yet arrive.
    Break(usize),
    Serve(usize),
    ServeKeeper(usize),
    ServeStray(usize),

    Tick,
    /// The server's clock gains one tick.
    Gain,
    Wipe,
    JumpForward,
    JumpBack,
}

impl Model for Protocol {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let contenders = vec![Contender::default(); self.tries.len()];
        vec![State { contenders, ..State::default() }]
    }

    /// What each may do from where it stands; [`Protocol::step`] knows the rest.
    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        use Action::*;
        for (n, contender) in state.contenders.iter().enumerate() {
            match contender.phase {
                Phase::Contending => actions.extend([Ask(n), GiveUp(n)]),
                Phase::Asking => {
                    actions.extend([Hear(n), TimeOut(n), GiveUp(n), Assume(n), Crash(n)]);
                }
                Phase::Held { .. } => {
                    actions.extend([Release(n), Expire(n), Renew(n), Crash(n)]);
                }
                Phase::Lost | Phase::Over | Phase::Crashed => {}
            }
            if !contender.caller.is_empty() {
                actions.extend([Serve(n), Break(n)]);
            }
            if !contender.keeper.is_empty() {
                actions.extend([ServeKeeper(n), HearRenewal(n), TimeOutRenewal(n)]);
            }
            if contender.stray.is_some() {
                actions.push(ServeStray(n));
            }
            if contender.sweeps > 0 {
                actions.push(Sweep(n));
            }
            if self.writes {
                actions.extend([AskFence(n), HearFence(n), Poll(n), Write(n)]);
            }
        }
        actions.extend([Tick, Gain, Wipe, JumpForward, JumpBack]);
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut next = last.clone();
        self.step(&mut next, action)?;
        (next != *last).then_some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        properties::of(self)
    }
}

impl Protocol {
    /// Whether a body may be polled now, for all that its own process knows.
    pub(crate) fn may_poll(&self, contender: &Contender) -> bool {
        contender.valid().is_some_and(|valid| valid > 0 || !self.held.check_before_poll)
    }

    fn token(&self, n: usize) -> Token {
        if self.held.fresh_token { Token::try_from(n).unwrap_or(Token::MAX) } else { 0 }
    }

    /// How long one is valid whose request was sent so long ago.
    fn validity(&self, term: u8, age: u8) -> u8 {
        let margin = if self.held.margin { MARGIN } else { 0 };
        let age = if self.held.deadline_from_sending { age } else { 0 };
        (term - margin).saturating_sub(age)
    }

    /// Whether nothing that left its lane, or is on one that breaks, comes after the last sweep.
    fn sweeps_are_last(&self) -> bool {
        self.held.second_sweep && self.assumed.late_request_meets_sweep
    }

    fn term(&self) -> u8 {
        if self.extends { EXTENDED } else { LEASE }
    }

    /// Takes the step, or says that it is not possible; then `state` is of no use any more.
    fn step(&self, state: &mut State, action: Action) -> Option<()> {
        use Action::*;
        match action {
            Ask(n) | Assume(n) | Hear(n) | TimeOut(n) | GiveUp(n) => self.acquire(state, n, action),
            Release(n) | Expire(n) | Crash(n) | Sweep(n) => self.end(state, n, action),
            Renew(n) | HearRenewal(n) | TimeOutRenewal(n) => self.renew(state, n, action),
            AskFence(n) | HearFence(n) | Poll(n) | Write(n) => self.write(state, n, action),
            Break(n) if self.breaks => {
                let contender = &mut state.contenders[n];
                let too_late = contender.is_swept() && self.sweeps_are_last();
                (!too_late).then(|| contender.break_lane())?
            }
            Serve(n) => {
                let request = state.contenders[n].caller.pop()?;
                let answer = self.serve(state, n, request);
                let lane = &mut state.contenders[n].caller;
                lane.answer = answer.or(lane.answer);
                Some(())
            }
            ServeKeeper(n) => {
                let request = state.contenders[n].keeper.pop()?;
                let answer = self.serve(state, n, request);
                let contender = &mut state.contenders[n];
                contender.keeper.answer = answer.or(contender.keeper.answer);
                if request == Request::Undo && contender.is_swept() && self.sweeps_are_last() {
                    contender.stray = None;
                }
                Some(())
            }
            ServeStray(n) => {
                let request = state.contenders[n].stray.take()?;
                self.serve(state, n, request);
                Some(())
            }
            Tick => {
                // A poll under way ends before its deadline, unless the process can be paused in it.
                let in_time = |c: &Contender| c.poll.is_none() || c.valid().is_some_and(|v| v > 1);
                let may = !self.assumed.polls_end_in_time || state.contenders.iter().all(in_time);
                state.server.tick();
                state.contenders.iter_mut().for_each(|contender| contender.tick(self.term()));
                may.then_some(())
            }
            Gain => state.server.gain(),
            Wipe if !self.assumed.data_is_kept => state.server.wipe(),
            JumpForward if !self.assumed.no_jump_forward => state.server.jump_forward(),
            JumpBack if !self.assumed.no_jump_back => state.server.jump_back(),
            Break(_) | Wipe | JumpForward | JumpBack => None,
        }
    }

    /// As the contender does it.
    fn acquire(&self, state: &mut State, n: usize, action: Action) -> Option<()> {
        // It is always the first that asks first: where all are alike, the others do so in its name.
        let is_first = n == 0 || state.contenders[n - 1].tries > 0;
        let contender = &mut state.contenders[n];
        match (action, contender.phase) {
            (Action::Ask(_), Phase::Contending) if is_first && contender.tries < self.tries[n] => {
                let first = contender.tries == 0;
                contender.tries += 1;
                contender.phase = Phase::Asking;
                contender.caller.push(Request::Acquire { first, awaited: true, age: 0 })
            }
            (Action::Assume(_), Phase::Asking) if !self.held.unknown_is_not_held => {
                contender.phase = Phase::Held { valid: self.validity(LEASE, 0) };
                contender.caller.abandon();
                Some(())
            }
            (Action::Hear(_), Phase::Asking) => {
                contender.phase = match contender.caller.answer.take()? {
                    Answer::Granted { age } => match self.validity(LEASE, age) {
                        0 => {
                            contender.doubt = true;
                            Phase::Contending
                        }
                        valid => Phase::Held { valid },
                    },
                    _ => Phase::Contending,
                };
                Some(())
            }
            (Action::TimeOut(_), Phase::Asking) => {
                contender.unanswered();
                contender.phase = Phase::Contending;
                Some(())
            }
            (Action::GiveUp(_), Phase::Asking) => {
                contender.unanswered();
                contender.end(Phase::Over, 0, &self.held);
                Some(())
            }
            (Action::GiveUp(_), Phase::Contending) if contender.tries > 0 => {
                contender.end(Phase::Over, 0, &self.held);
                Some(())
            }
            _ => None,
        }
    }

    /// As the guard, the watchdog and the releaser do it.
    fn end(&self, state: &mut State, n: usize, action: Action) -> Option<()> {
        let contender = &mut state.contenders[n];
        match (action, contender.phase) {
            (Action::Release(_), Phase::Held { .. }) if contender.poll.is_none() => {
                if contender.caller.carries(Request::Release) {
                    return None;
                }
                if self.held.body_ends_before_release {
                    contender.end(Phase::Over, 0, &self.held);
                }
                contender.caller.push(Request::Release)
            }
            (Action::Expire(_), Phase::Held { valid: 0 }) => {
                contender.end(Phase::Lost, 1, &self.held);
                Some(())
            }
            (Action::Crash(_), Phase::Asking | Phase::Held { .. }) if self.breaks => {
                contender.end(Phase::Crashed, 0, &self.held);
                (contender.sweeps, contender.doubt, contender.poll) = (0, false, None);
                Some(())
            }
            (Action::Sweep(_), _) if contender.sweeps > 0 => {
                // The next round is sent once this one is answered.
                if contender.keeper.carries(Request::Undo) {
                    return None;
                }
                contender.sweeps -= 1;
                if contender.doubt && !contender.caller.carries(Request::Undo) {
                    contender.caller.push(Request::Undo)?;
                }
                contender.keeper.push(Request::Undo)
            }
            _ => None,
        }
    }

    /// As the watchdog does it.
    fn renew(&self, state: &mut State, n: usize, action: Action) -> Option<()> {
        let contender = &mut state.contenders[n];
        let is_renewal = |request| matches!(request, Request::Renew { .. });
        let under_way = contender.keeper.requests().any(is_renewal);
        match action {
            Action::Renew(_) => {
                let idle = !under_way && contender.keeper.answer.is_none();
                contender.valid().filter(|valid| *valid > 0 && idle)?;
                contender.keeper.push(Request::Renew { awaited: true, age: 0 })
            }
            Action::HearRenewal(_) => {
                match (contender.keeper.answer.take()?, contender.phase) {
                    (Answer::Extended { age }, Phase::Held { valid }) => {
                        let valid = valid.max(self.validity(self.term(), age));
                        contender.phase = Phase::Held { valid };
                    }
                    (Answer::Extended { age }, Phase::Over) if !self.held.ended_is_final => {
                        let valid = self.validity(self.term(), age);
                        contender.phase = Phase::Held { valid };
                    }
                    (Answer::NotOurs, Phase::Held { .. }) => {
                        contender.end(Phase::Lost, 0, &self.held);
                    }
                    _ => {}
                }
                Some(())
            }
            _ => {
                (self.breaks && (under_way || contender.keeper.answer.is_some())).then_some(())?;
                contender.keeper.abandon();
                Some(())
            }
        }
    }

    /// As the body does it, and what it writes to.
    fn write(&self, state: &mut State, n: usize, action: Action) -> Option<()> {
        let State { contenders, resource, .. } = state;
        let contender = &mut contenders[n];
        let may_poll = self.writes && contender.poll.is_none() && self.may_poll(contender);
        match action {
            Action::AskFence(_) if may_poll && self.held.fence && contender.fencing.is_none() => {
                contender.caller.is_empty().then_some(())?;
                contender.caller.push(Request::Fence)
            }
            // A body sees an answer when it is polled, so it too comes after the check.
            Action::HearFence(_) if may_poll => {
                let Answer::Fence(token) = contender.caller.answer.take()? else { return None };
                contender.fencing = Some(token);
                Some(())
            }
            Action::Poll(_) if may_poll && (contender.fencing.is_some() || !self.held.fence) => {
                contender.poll = Some(Poll { grant: contender.grant, fencing: contender.fencing });
                Some(())
            }
            Action::Write(_) => {
                resource.write(contender.poll.take()?, &self.held);
                Some(())
            }
            _ => None,
        }
    }

    /// As the server does it. The answer is `None` where nobody waits for it.
    fn serve(&self, state: &mut State, n: usize, request: Request) -> Option<Answer> {
        let (server, contender, token) =
            (&mut state.server, &mut state.contenders[n], self.token(n));
        let rules = (&self.held, &self.assumed);
        match request {
            Request::Acquire { first, awaited, age } => {
                let granted = server.acquire(token, first, rules);
                if granted && self.writes {
                    server.grants += 1;
                    contender.grant = server.grants;
                }
                let answer = if granted { Answer::Granted { age } } else { Answer::Busy };
                awaited.then_some(answer)
            }
            Request::Renew { awaited, age } => {
                let extended = server.renew(token, self.term(), rules);
                let answer = if extended { Answer::Extended { age } } else { Answer::NotOurs };
                awaited.then_some(answer)
            }
            Request::Release => {
                server.release(token, &self.held);
                None
            }
            Request::Undo => {
                if server.release(token, &self.held) && !self.held.sweep_after_freeing {
                    contender.sweeps = 0;
                }
                None
            }
            Request::Fence => {
                // Refused is the same to the body as never answered: it does not write.
                server.fencing_token(token, &self.held).map(Answer::Fence)
            }
        }
    }
}

impl Contender {
    /// The request under way may or may not have taken effect.
    fn unanswered(&mut self) {
        self.doubt = true;
        self.caller.abandon();
    }

    /// From here on nothing of it is held. What is to be freed, or may yet have to be, is swept.
    fn end(&mut self, phase: Phase, sweeps: u8, held: &Protections) {
        (self.phase, self.fencing) = (phase, None);
        self.caller.abandon();
        if held.ended_is_final {
            self.keeper.abandon();
        }
        let rounds = 1 + u8::from(held.second_sweep);
        self.sweeps = if self.doubt && held.undo { rounds } else { sweeps };
    }

    fn break_lane(&mut self) -> Option<()> {
        if self.caller.is_empty() || std::mem::replace(&mut self.broke, true) {
            return None;
        }
        if self.phase == Phase::Asking {
            self.unanswered();
            self.phase = Phase::Contending;
        }
        self.caller.abandon();
        while let Some(request) = self.caller.pop() {
            match request {
                Request::Acquire { .. } => self.stray = Some(request),
                // It was not answered, so it goes on in the background.
                Request::Release => self.sweeps = self.sweeps.max(1),
                _ => {}
            }
        }
        Some(())
    }
}

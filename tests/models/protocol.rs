//! The protocol as a state machine: acquisitions, their messages, one server, one resource.
//!
//! An action is one atomic step of one participant: a caller, a background thread, a body or the
//! server. Any participant may pause for any number of steps of the others. A slow network, a
//! paused process and an overloaded executor therefore need no actions of their own: they are
//! certain orders of the existing steps. A lost message is a message that is never delivered.
//!
//! The progress of time is also a step, of all clocks at once. Only remaining times are stored, so
//! the number of states is finite although time is unbounded.
//!
//! `properties.rs` states what is asserted. Each control in `main.rs` switches off one safeguard or
//! assumption, and shows that a property is then violated.

use stateright::{Model, Property};

use crate::acquisition::{AcquisitionPhase, ModelAcquisition, ModelRequest, Poll, Reply};
use crate::assumptions::{Assumptions, Safeguards};
use crate::properties;
use crate::resource::ModelResource;
use crate::server::{EXTENDED, LEASE, MARGIN, ModelServer, Token};

/// The configuration of the model.
#[derive(Clone, Debug)]
pub(crate) struct Protocol {
    pub(crate) safeguards: Safeguards,
    pub(crate) assumed: Assumptions,
    /// The number of attempts of each acquisition. The length is the number of acquisitions.
    pub(crate) attempts: &'static [u8],
    /// Whether lanes break, renewals time out, and processes crash. Even without faults, lanes and
    /// processes can pause forever.
    pub(crate) faults: bool,
    /// Whether renewals ask for a longer term than attempts do, like those of an extended fixed
    /// lease.
    pub(crate) extends: bool,
    /// Whether bodies request fencing tokens, are polled, and write to a resource.
    pub(crate) writes: bool,
}

impl Default for Protocol {
    fn default() -> Self {
        let (safeguards, assumed) = Default::default();
        Self { safeguards, assumed, attempts: &[2, 2], faults: true, extends: false, writes: false }
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct ProtocolState {
    pub(crate) acquisitions: Vec<ModelAcquisition>,
    pub(crate) server: ModelServer,
    pub(crate) resource: ModelResource,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ProtocolAction {
    /// Sends an attempt.
    Attempt(usize),
    /// Takes a missing reply to an attempt for a grant.
    Assume(usize),
    /// Takes the reply on the lane of the caller.
    Receive(usize),
    /// Stops waiting for the reply to an attempt.
    TimeOut(usize),
    /// Drops the future of the acquisition, between two attempts or during one.
    GiveUp(usize),
    Release(usize),
    /// The background thread finds that the deadline has passed.
    Expire(usize),
    Crash(usize),
    Renew(usize),
    ReceiveRenewal(usize),
    /// Stops waiting for the reply to a renewal.
    TimeOutRenewal(usize),
    /// Sends one round of the cleanup.
    Sweep(usize),
    RequestFence(usize),
    ReceiveFence(usize),
    Poll(usize),
    /// The poll writes and ends.
    Write(usize),

    /// The lane of the caller breaks. Its messages are lost, but one attempt may still arrive.
    Break(usize),
    Serve(usize),
    ServeBackground(usize),
    ServeStray(usize),

    Tick,
    /// The clock of the server gains one tick.
    Gain,
    Wipe,
    JumpForward,
    JumpBack,
}

impl Model for Protocol {
    type State = ProtocolState;
    type Action = ProtocolAction;

    fn init_states(&self) -> Vec<ProtocolState> {
        let acquisitions = vec![ModelAcquisition::default(); self.attempts.len()];
        vec![ProtocolState { acquisitions, ..ProtocolState::default() }]
    }

    /// The actions that are plausible in a phase. [`Protocol::step`] rejects those that are
    /// impossible.
    fn actions(&self, state: &ProtocolState, actions: &mut Vec<ProtocolAction>) {
        use ProtocolAction::*;
        for (n, acquisition) in state.acquisitions.iter().enumerate() {
            match acquisition.phase {
                AcquisitionPhase::Idle => actions.extend([Attempt(n), GiveUp(n)]),
                AcquisitionPhase::Attempting => {
                    actions.extend([Receive(n), TimeOut(n), GiveUp(n), Assume(n), Crash(n)]);
                }
                AcquisitionPhase::Held { .. } => {
                    actions.extend([Release(n), Expire(n), Renew(n), Crash(n)]);
                }
                AcquisitionPhase::Lost | AcquisitionPhase::Over | AcquisitionPhase::Crashed => {}
            }
            if !acquisition.caller.is_empty() {
                actions.extend([Serve(n), Break(n)]);
            }
            if !acquisition.background.is_empty() {
                actions.extend([ServeBackground(n), ReceiveRenewal(n), TimeOutRenewal(n)]);
            }
            if acquisition.stray.is_some() {
                actions.push(ServeStray(n));
            }
            if acquisition.sweeps > 0 {
                actions.push(Sweep(n));
            }
            if self.writes {
                actions.extend([RequestFence(n), ReceiveFence(n), Poll(n), Write(n)]);
            }
        }
        actions.extend([Tick, Gain, Wipe, JumpForward, JumpBack]);
    }

    fn next_state(&self, last: &ProtocolState, action: ProtocolAction) -> Option<ProtocolState> {
        let mut next = last.clone();
        self.step(&mut next, action)?;
        (next != *last).then_some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        properties::of(self)
    }
}

impl Protocol {
    /// Whether the process may poll the body now.
    pub(crate) fn may_poll(&self, acquisition: &ModelAcquisition) -> bool {
        acquisition.valid().is_some_and(|valid| valid > 0 || !self.safeguards.check_before_poll)
    }

    fn token(&self, n: usize) -> Token {
        if self.safeguards.fresh_token { Token::try_from(n).unwrap_or(Token::MAX) } else { 0 }
    }

    /// The remaining validity of a grant whose request was sent `age` ticks ago.
    fn validity(&self, term: u8, age: u8) -> u8 {
        let margin = if self.safeguards.margin { MARGIN } else { 0 };
        let age = if self.safeguards.deadline_from_sending { age } else { 0 };
        (term - margin).saturating_sub(age)
    }

    /// Whether stray requests, and requests on breaking lanes, always arrive before the last sweep.
    fn sweeps_are_last(&self) -> bool {
        self.safeguards.second_sweep && self.assumed.late_request_meets_sweep
    }

    fn term(&self) -> u8 {
        if self.extends { EXTENDED } else { LEASE }
    }

    /// Takes a step. Returns `None` if the step is impossible; `state` is then invalid.
    fn step(&self, state: &mut ProtocolState, action: ProtocolAction) -> Option<()> {
        use ProtocolAction::*;
        match action {
            Attempt(n) | Assume(n) | Receive(n) | TimeOut(n) | GiveUp(n) => {
                self.acquire(state, n, action)
            }
            Release(n) | Expire(n) | Crash(n) | Sweep(n) => self.end(state, n, action),
            Renew(n) | ReceiveRenewal(n) | TimeOutRenewal(n) => self.renew(state, n, action),
            RequestFence(n) | ReceiveFence(n) | Poll(n) | Write(n) => self.write(state, n, action),
            Break(n) if self.faults => {
                let acquisition = &mut state.acquisitions[n];
                let too_late = acquisition.is_swept() && self.sweeps_are_last();
                (!too_late).then(|| acquisition.break_lane())?
            }
            Serve(n) => {
                let request = state.acquisitions[n].caller.pop()?;
                let reply = self.serve(state, n, request);
                let lane = &mut state.acquisitions[n].caller;
                lane.reply = reply.or(lane.reply);
                Some(())
            }
            ServeBackground(n) => {
                let request = state.acquisitions[n].background.pop()?;
                let reply = self.serve(state, n, request);
                let acquisition = &mut state.acquisitions[n];
                acquisition.background.reply = reply.or(acquisition.background.reply);
                if request == ModelRequest::Undo && acquisition.is_swept() && self.sweeps_are_last()
                {
                    acquisition.stray = None;
                }
                Some(())
            }
            ServeStray(n) => {
                let request = state.acquisitions[n].stray.take()?;
                self.serve(state, n, request);
                Some(())
            }
            Tick => {
                // A poll ends before its deadline, unless the process can be paused in the middle
                // of a poll.
                let in_time =
                    |a: &ModelAcquisition| a.poll.is_none() || a.valid().is_some_and(|v| v > 1);
                let may = !self.assumed.polls_end_in_time || state.acquisitions.iter().all(in_time);
                state.server.tick();
                state.acquisitions.iter_mut().for_each(|acquisition| acquisition.tick(self.term()));
                may.then_some(())
            }
            Gain => state.server.gain(),
            Wipe if !self.assumed.data_is_kept => state.server.wipe(),
            JumpForward if !self.assumed.no_jump_forward => state.server.jump_forward(),
            JumpBack if !self.assumed.no_jump_back => state.server.jump_back(),
            Break(_) | Wipe | JumpForward | JumpBack => None,
        }
    }

    /// The steps of the caller before the grant.
    fn acquire(&self, state: &mut ProtocolState, n: usize, action: ProtocolAction) -> Option<()> {
        // Acquisitions make their first attempts in order. This excludes no behaviour, because all
        // acquisitions are alike.
        let is_first = n == 0 || state.acquisitions[n - 1].attempts > 0;
        let acquisition = &mut state.acquisitions[n];
        match (action, acquisition.phase) {
            (ProtocolAction::Attempt(_), AcquisitionPhase::Idle)
                if is_first && acquisition.attempts < self.attempts[n] =>
            {
                let first = acquisition.attempts == 0;
                acquisition.attempts += 1;
                acquisition.phase = AcquisitionPhase::Attempting;
                acquisition.caller.push(ModelRequest::Acquire { first, awaited: true, age: 0 })
            }
            (ProtocolAction::Assume(_), AcquisitionPhase::Attempting)
                if !self.safeguards.unknown_is_not_held =>
            {
                acquisition.phase = AcquisitionPhase::Held { valid: self.validity(LEASE, 0) };
                acquisition.caller.abandon();
                Some(())
            }
            (ProtocolAction::Receive(_), AcquisitionPhase::Attempting) => {
                acquisition.phase = match acquisition.caller.reply.take()? {
                    Reply::Granted { age } => match self.validity(LEASE, age) {
                        0 => {
                            acquisition.uncertain = true;
                            AcquisitionPhase::Idle
                        }
                        valid => AcquisitionPhase::Held { valid },
                    },
                    _ => AcquisitionPhase::Idle,
                };
                Some(())
            }
            (ProtocolAction::TimeOut(_), AcquisitionPhase::Attempting) => {
                acquisition.unanswered();
                acquisition.phase = AcquisitionPhase::Idle;
                Some(())
            }
            (ProtocolAction::GiveUp(_), AcquisitionPhase::Attempting) => {
                acquisition.unanswered();
                acquisition.end(AcquisitionPhase::Over, 0, &self.safeguards);
                Some(())
            }
            (ProtocolAction::GiveUp(_), AcquisitionPhase::Idle) if acquisition.attempts > 0 => {
                acquisition.end(AcquisitionPhase::Over, 0, &self.safeguards);
                Some(())
            }
            _ => None,
        }
    }

    /// The steps of the guard, the background thread and the cleanup that end a hold.
    fn end(&self, state: &mut ProtocolState, n: usize, action: ProtocolAction) -> Option<()> {
        let acquisition = &mut state.acquisitions[n];
        match (action, acquisition.phase) {
            (ProtocolAction::Release(_), AcquisitionPhase::Held { .. })
                if acquisition.poll.is_none() =>
            {
                if acquisition.caller.carries(ModelRequest::Release) {
                    return None;
                }
                if self.safeguards.body_ends_before_release {
                    acquisition.end(AcquisitionPhase::Over, 0, &self.safeguards);
                }
                acquisition.caller.push(ModelRequest::Release)
            }
            (ProtocolAction::Expire(_), AcquisitionPhase::Held { valid: 0 }) => {
                acquisition.end(AcquisitionPhase::Lost, 1, &self.safeguards);
                Some(())
            }
            (
                ProtocolAction::Crash(_),
                AcquisitionPhase::Attempting | AcquisitionPhase::Held { .. },
            ) if self.faults => {
                acquisition.end(AcquisitionPhase::Crashed, 0, &self.safeguards);
                (acquisition.sweeps, acquisition.uncertain, acquisition.poll) = (0, false, None);
                Some(())
            }
            (ProtocolAction::Sweep(_), _) if acquisition.sweeps > 0 => {
                // A sweep is sent only after the reply to the previous one.
                if acquisition.background.carries(ModelRequest::Undo) {
                    return None;
                }
                acquisition.sweeps -= 1;
                if acquisition.uncertain && !acquisition.caller.carries(ModelRequest::Undo) {
                    acquisition.caller.push(ModelRequest::Undo)?;
                }
                acquisition.background.push(ModelRequest::Undo)
            }
            _ => None,
        }
    }

    /// The steps of the background thread that renew a lease.
    fn renew(&self, state: &mut ProtocolState, n: usize, action: ProtocolAction) -> Option<()> {
        let acquisition = &mut state.acquisitions[n];
        let is_renewal = |request| matches!(request, ModelRequest::Renew { .. });
        let in_flight = acquisition.background.requests().any(is_renewal);
        match action {
            ProtocolAction::Renew(_) => {
                let idle = !in_flight && acquisition.background.reply.is_none();
                acquisition.valid().filter(|valid| *valid > 0 && idle)?;
                acquisition.background.push(ModelRequest::Renew { awaited: true, age: 0 })
            }
            ProtocolAction::ReceiveRenewal(_) => {
                match (acquisition.background.reply.take()?, acquisition.phase) {
                    (Reply::Extended { age }, AcquisitionPhase::Held { valid }) => {
                        let valid = valid.max(self.validity(self.term(), age));
                        acquisition.phase = AcquisitionPhase::Held { valid };
                    }
                    (Reply::Extended { age }, AcquisitionPhase::Over)
                        if !self.safeguards.ended_is_final =>
                    {
                        let valid = self.validity(self.term(), age);
                        acquisition.phase = AcquisitionPhase::Held { valid };
                    }
                    (Reply::NotOwner, AcquisitionPhase::Held { .. }) => {
                        acquisition.end(AcquisitionPhase::Lost, 0, &self.safeguards);
                    }
                    _ => {}
                }
                Some(())
            }
            _ => {
                (self.faults && (in_flight || acquisition.background.reply.is_some()))
                    .then_some(())?;
                acquisition.background.abandon();
                Some(())
            }
        }
    }

    /// The steps of the body, and the effect of its writes on the resource.
    fn write(&self, state: &mut ProtocolState, n: usize, action: ProtocolAction) -> Option<()> {
        let ProtocolState { acquisitions, resource, .. } = state;
        let acquisition = &mut acquisitions[n];
        let may_poll = self.writes && acquisition.poll.is_none() && self.may_poll(acquisition);
        match action {
            ProtocolAction::RequestFence(_)
                if may_poll && self.safeguards.fence && acquisition.fencing.is_none() =>
            {
                acquisition.caller.is_empty().then_some(())?;
                acquisition.caller.push(ModelRequest::Fence)
            }
            // A body receives a reply only when it is polled, which requires the check.
            ProtocolAction::ReceiveFence(_) if may_poll => {
                let Reply::Fence(token) = acquisition.caller.reply.take()? else { return None };
                acquisition.fencing = Some(token);
                Some(())
            }
            ProtocolAction::Poll(_)
                if may_poll && (acquisition.fencing.is_some() || !self.safeguards.fence) =>
            {
                acquisition.poll =
                    Some(Poll { grant: acquisition.grant, fencing: acquisition.fencing });
                Some(())
            }
            ProtocolAction::Write(_) => {
                resource.write(acquisition.poll.take()?, &self.safeguards);
                Some(())
            }
            _ => None,
        }
    }

    /// The server executes a request. Returns the reply, or `None` if no reply is awaited.
    fn serve(&self, state: &mut ProtocolState, n: usize, request: ModelRequest) -> Option<Reply> {
        let (server, acquisition, token) =
            (&mut state.server, &mut state.acquisitions[n], self.token(n));
        let rules = (&self.safeguards, &self.assumed);
        match request {
            ModelRequest::Acquire { first, awaited, age } => {
                let granted = server.acquire(token, first, rules);
                if granted && self.writes {
                    server.grants += 1;
                    acquisition.grant = server.grants;
                }
                let reply = if granted { Reply::Granted { age } } else { Reply::Busy };
                awaited.then_some(reply)
            }
            ModelRequest::Renew { awaited, age } => {
                let extended = server.renew(token, self.term(), rules);
                let reply = if extended { Reply::Extended { age } } else { Reply::NotOwner };
                awaited.then_some(reply)
            }
            ModelRequest::Release => {
                server.release(token, &self.safeguards);
                None
            }
            ModelRequest::Undo => {
                if server.release(token, &self.safeguards) && !self.safeguards.sweep_after_freeing {
                    acquisition.sweeps = 0;
                }
                None
            }
            ModelRequest::Fence => {
                // A refusal has the same effect as a missing reply: the body does not write.
                server.fencing_token(token, &self.safeguards).map(Reply::Fence)
            }
        }
    }
}

impl ModelAcquisition {
    /// Stops waiting for a request, which may or may not have taken effect.
    fn unanswered(&mut self) {
        self.uncertain = true;
        self.caller.abandon();
    }

    /// Ends the acquisition. A cleanup frees its key if necessary.
    fn end(&mut self, phase: AcquisitionPhase, sweeps: u8, safeguards: &Safeguards) {
        (self.phase, self.fencing) = (phase, None);
        self.caller.abandon();
        if safeguards.ended_is_final {
            self.background.abandon();
        }
        let rounds = 1 + u8::from(safeguards.second_sweep);
        self.sweeps = if self.uncertain && safeguards.undo { rounds } else { sweeps };
    }

    fn break_lane(&mut self) -> Option<()> {
        if self.caller.is_empty() || std::mem::replace(&mut self.has_broken, true) {
            return None;
        }
        if self.phase == AcquisitionPhase::Attempting {
            self.unanswered();
            self.phase = AcquisitionPhase::Idle;
        }
        self.caller.abandon();
        while let Some(request) = self.caller.pop() {
            match request {
                ModelRequest::Acquire { .. } => self.stray = Some(request),
                // The release had no reply, so it continues as a cleanup.
                ModelRequest::Release => self.sweeps = self.sweeps.max(1),
                _ => {}
            }
        }
        Some(())
    }
}

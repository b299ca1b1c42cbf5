//! Changes of the mode of a hold of a read-write lock, with requests that arrive late.
//!
//! A call has the lock as a reader or as a writer, and asks the store to make a writer of it, or a reader,
//! as `engine/modes.rs` and `engine/lease/state/modes.rs` define. The background thread renews its lease
//! meanwhile. The store has the holders with their modes, and behaves as `acquire.lua`, `change.lua`,
//! `extend.lua` and `release.lua` of `stores/redis/src/scripts/counted`. Calls that wait are left to the model of
//! [`permits`](crate::permits).
//!
//! A request and its answer take any time and may be lost. A request that is not awaited any more may
//! arrive at any time. A call may lose the lock or crash at any point; a hold that no call has expires at
//! any later time. That a hold does not expire while a call counts on it is left to the model of the
//! protocol.

mod tests;

use stateright::{Model, Property};

/// While a call regards itself as a writer, no other call has the lock.
const ALONE: &str = "a writer is alone";
/// The store excludes all that a hold excludes.
const STORE_EXCLUDES: &str = "the store has each hold in its mode";
/// A renewal of a writer that the store takes for a reader ends the hold.
const LOSS_IS_FOUND: &str = "a renewal finds that the store has lost an upgrade";
/// A renewal ends no hold that the store has.
const NO_FALSE_LOSS: &str = "a hold that the store has is not lost";

/// The configuration of the model.
#[derive(Clone, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "each is one independent switch")]
struct Modes {
    /// The calls, each with whether it acquires the lock as a writer.
    writers: &'static [bool],
    /// The number of changes of each call, and of the requests for each of them.
    changes: u8,
    requests: u8,
    /// A hold whose downgrade may arrive late does not become that of a writer again.
    late_downgrades_count: bool,
    /// The store makes a writer of the only reader only.
    only_readers_upgrade: bool,
    /// A hold is that of a reader before its downgrade is requested.
    reader_before_request: bool,
    /// A hold without an answer to its upgrade is that of a reader.
    unknown_is_no_upgrade: bool,
    /// An attempt that finds the hold of its call does not change its mode.
    attempts_change_nothing: bool,
    /// A writer that the store takes for a reader has lost the lock.
    writers_are_verified: bool,
    /// The answer to a renewal from before the last change does not count against a writer.
    earlier_renewals_are_ignored: bool,
    /// *Assumed:* the store does not lose an upgrade, as a replica that has not received it would.
    upgrades_are_kept: bool,
}

impl Default for Modes {
    fn default() -> Self {
        Self {
            writers: &[false, false],
            changes: 2,
            requests: 2,
            late_downgrades_count: true,
            only_readers_upgrade: true,
            reader_before_request: true,
            unknown_is_no_upgrade: true,
            attempts_change_nothing: true,
            writers_are_verified: true,
            earlier_renewals_are_ignored: true,
            upgrades_are_kept: true,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum HeldMode {
    Reader,
    Writer,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum ModeRequest {
    /// A repeated attempt to acquire the lock.
    Attempt,
    Change(HeldMode),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum ModeReply {
    Changed(HeldMode),
    Busy,
    /// The store has no such hold.
    NotOwner,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
enum ModePhase {
    #[default]
    Outside,
    Held(HeldMode),
    Releasing,
    /// The hold has ended, or its process has crashed.
    Over,
}

/// A renewal in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct ModeRenewal {
    /// The mode of the hold when the renewal was sent.
    wanted: HeldMode,
    /// Whether the hold has become that of a writer since.
    is_earlier: bool,
    reply: Option<RenewedMode>,
    /// Whether the store has taken a writer for a reader. Not visible to the protocol.
    finds_loss: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum RenewedMode {
    Extended,
    /// The same, but the hold of a writer is that of a reader.
    AsReader,
    NotOwner,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct ModeCall {
    phase: ModePhase,
    /// The change in progress.
    changing: Option<HeldMode>,
    /// Whether the mode was ever changed, or may have been.
    has_changed: bool,
    /// Whether a request of the change in progress was not answered.
    is_uncertain: bool,
    /// Whether a request may arrive late that makes a reader of the holder.
    may_be_downgraded: bool,
    changes: u8,
    requests: u8,
    request: Option<HeldMode>,
    reply: Option<ModeReply>,
    renewal: Option<ModeRenewal>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct ModeState {
    /// The holds in the store, by call.
    holds: Vec<Option<HeldMode>>,
    calls: Vec<ModeCall>,
    /// A request that is not awaited any more.
    late: Option<(usize, ModeRequest)>,
    violated: Option<&'static str>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ModeStep {
    Acquire(usize),
    /// The same, and another attempt is still in flight.
    AcquireAgain(usize),
    BeginChange(usize, HeldMode),
    Send(usize),
    Serve(usize),
    Receive(usize),
    /// Stops waiting for an answer. The request or the answer may be lost.
    TimeOut(usize),
    /// Ends the change without an answer.
    GiveUp(usize),
    SendRenewal(usize),
    ServeRenewal(usize),
    ReceiveRenewal(usize),
    LoseRenewal(usize),
    End(usize),
    ServeRelease(usize),
    LoseLock(usize),
    ServeLate,
    LoseLate,
    Expire(usize),
    LoseUpgrade(usize),
}

impl ModeCall {
    fn mode(&self) -> Option<HeldMode> {
        if let ModePhase::Held(mode) = self.phase { Some(mode) } else { None }
    }

    /// The mode is another one from now on.
    fn become_of(&mut self, mode: HeldMode) {
        self.phase = ModePhase::Held(mode);
        if mode == HeldMode::Writer
            && let Some(renewal) = &mut self.renewal
        {
            renewal.is_earlier = true;
        }
    }
}

impl ModeState {
    fn abandon(&mut self, n: usize) {
        let call = &mut self.calls[n];
        (call.reply, call.is_uncertain) = (None, true);
        if let Some(to) = call.request.take() {
            self.late.get_or_insert((n, ModeRequest::Change(to)));
        }
    }

    fn check(&mut self, holds: bool, property: &'static str) {
        if !holds {
            self.violated.get_or_insert(property);
        }
    }

    /// The hold of a call ends.
    fn end(&mut self, n: usize, phase: ModePhase) {
        self.abandon(n);
        self.calls[n] = ModeCall { phase, ..ModeCall::default() };
    }

    fn others(&self, n: usize) -> impl Iterator<Item = HeldMode> + '_ {
        let others = self.holds.iter().enumerate().filter(move |(other, _)| *other != n);
        others.filter_map(|(_, hold)| *hold)
    }

    /// Grants the lock in this mode, if no holder excludes that.
    fn acquire(&mut self, n: usize, mode: HeldMode) -> Option<()> {
        let excludes = |other| mode == HeldMode::Writer || other == HeldMode::Writer;
        (!self.others(n).any(excludes)).then_some(())?;
        self.holds[n] = Some(mode);
        Some(())
    }
}

impl Modes {
    /// The mode in which a call acquires the lock.
    fn acquired(&self, n: usize) -> HeldMode {
        if self.writers[n] { HeldMode::Writer } else { HeldMode::Reader }
    }

    /// Takes a step. Returns `None` if the step is impossible.
    fn step(&self, state: &mut ModeState, step: ModeStep) -> Option<()> {
        use ModeStep::*;
        match step {
            Acquire(n) | AcquireAgain(n) => {
                (state.calls[n].phase == ModePhase::Outside).then_some(())?;
                state.acquire(n, self.acquired(n))?;
                state.calls[n].phase = ModePhase::Held(self.acquired(n));
                if step == AcquireAgain(n) {
                    state.late.is_none().then_some(())?;
                    state.late = Some((n, ModeRequest::Attempt));
                }
            }
            BeginChange(n, to) => self.begin_change(&mut state.calls[n], to)?,
            Send(n) => {
                let call = &mut state.calls[n];
                let is_idle = call.request.is_none() && call.reply.is_none();
                (is_idle && call.requests < self.requests).then_some(())?;
                (call.request, call.requests) = (Some(call.changing?), call.requests + 1);
            }
            Serve(n) => {
                let to = state.calls[n].request.take()?;
                state.calls[n].reply = Some(self.change(state, n, to));
            }
            Receive(n) => self.receive(state, n)?,
            TimeOut(n) => {
                let call = &state.calls[n];
                (call.request.is_some() || call.reply.is_some()).then_some(())?;
                state.abandon(n);
            }
            GiveUp(n) => {
                (state.calls[n].changing.is_some() && state.calls[n].requests > 0).then_some(())?;
                state.abandon(n);
                self.end_change(&mut state.calls[n], None);
            }
            SendRenewal(n) => {
                let call = &mut state.calls[n];
                let (wanted, none) = (call.mode()?, call.renewal.is_none());
                none.then_some(())?;
                call.renewal =
                    Some(ModeRenewal { wanted, is_earlier: false, reply: None, finds_loss: false });
            }
            ServeRenewal(n) => {
                let (hold, call) = (state.holds[n], &state.calls[n]);
                let is_writer = call.mode() == Some(HeldMode::Writer) && call.changing.is_none();
                let renewal = state.calls[n].renewal.as_mut().filter(|r| r.reply.is_none())?;
                renewal.reply = Some(match (hold, renewal.wanted) {
                    (None, _) => RenewedMode::NotOwner,
                    (Some(HeldMode::Reader), HeldMode::Writer) => RenewedMode::AsReader,
                    (Some(_), _) => RenewedMode::Extended,
                });
                renewal.finds_loss = is_writer
                    && !renewal.is_earlier
                    && renewal.reply == Some(RenewedMode::AsReader);
            }
            ReceiveRenewal(n) => self.receive_renewal(state, n)?,
            LoseRenewal(n) => drop(state.calls[n].renewal.take()?),
            End(n) | LoseLock(n) => {
                state.calls[n].mode()?;
                let is_lost = step == LoseLock(n);
                state.end(n, if is_lost { ModePhase::Over } else { ModePhase::Releasing });
            }
            ServeRelease(n) => {
                (state.calls[n].phase == ModePhase::Releasing).then_some(())?;
                (state.calls[n].phase, state.holds[n]) = (ModePhase::Over, None);
            }
            ServeLate => match state.late.take()? {
                (n, ModeRequest::Change(to)) => drop(self.change(state, n, to)),
                (n, ModeRequest::Attempt) if state.holds[n].is_none() => {
                    // The lock of a call that does not wait any more.
                    let _ = state.acquire(n, self.acquired(n));
                }
                (n, ModeRequest::Attempt) if !self.attempts_change_nothing => {
                    state.holds[n] = Some(self.acquired(n));
                }
                (_, ModeRequest::Attempt) => {}
            },
            LoseLate => drop(state.late.take()?),
            Expire(n) => {
                state.calls[n].mode().is_none().then_some(())?;
                state.holds[n].take()?;
            }
            LoseUpgrade(n) => {
                let is_upgraded = state.calls[n].has_changed && !self.upgrades_are_kept;
                let hold = state.holds[n].as_mut().filter(|_| is_upgraded)?;
                *hold = HeldMode::Reader;
            }
        }
        Some(())
    }

    /// `State::about_to_change`.
    fn begin_change(&self, call: &mut ModeCall, to: HeldMode) -> Option<()> {
        let mode = call.mode()?;
        let is_so = mode == to && (to == HeldMode::Writer || !call.has_changed);
        let may_change = call.changing.is_none() && call.changes < self.changes && !is_so;
        may_change.then_some(())?;
        (to == HeldMode::Reader || !call.may_be_downgraded).then_some(())?;
        (call.changing, call.has_changed, call.is_uncertain) = (Some(to), true, false);
        (call.changes, call.requests) = (call.changes + 1, 0);
        if to == HeldMode::Reader && self.reader_before_request {
            call.become_of(to);
        }
        Some(())
    }

    /// `State::changed`. There is no mode without an answer that says so.
    fn end_change(&self, call: &mut ModeCall, done: Option<HeldMode>) {
        let to = call.changing.take();
        let is_certain = !std::mem::take(&mut call.is_uncertain);
        call.may_be_downgraded |=
            to == Some(HeldMode::Reader) && !is_certain && self.late_downgrades_count;
        let unknown = if self.unknown_is_no_upgrade { None } else { to };
        if let Some(mode) = done.or(unknown) {
            call.become_of(mode);
        }
    }

    fn receive(&self, state: &mut ModeState, n: usize) -> Option<()> {
        let call = &mut state.calls[n];
        match call.reply.take()? {
            ModeReply::Changed(to) => self.end_change(call, Some(to)),
            ModeReply::Busy => self.end_change(call, call.mode()),
            ModeReply::NotOwner => state.end(n, ModePhase::Over),
        }
        Some(())
    }

    /// `Lease::meaning_of`.
    fn receive_renewal(&self, state: &mut ModeState, n: usize) -> Option<()> {
        let call = &mut state.calls[n];
        let renewal = call.renewal?;
        let reply = renewal.reply?;
        call.renewal = None;
        let is_ignored = renewal.is_earlier && self.earlier_renewals_are_ignored;
        let is_writer = call.mode() == Some(HeldMode::Writer) && call.changing.is_none();
        match reply {
            RenewedMode::AsReader if is_writer && !is_ignored && self.writers_are_verified => {
                let has_lost = state.holds[n] != Some(HeldMode::Writer);
                state.end(n, ModePhase::Over);
                state.check(has_lost, NO_FALSE_LOSS);
            }
            RenewedMode::NotOwner => state.end(n, ModePhase::Over),
            RenewedMode::Extended | RenewedMode::AsReader => {
                let is_found = !renewal.finds_loss || renewal.is_earlier || !is_writer;
                state.check(is_found, LOSS_IS_FOUND);
            }
        }
        Some(())
    }

    /// The store changes the mode of a hold: `owned.lua` and `change.lua`.
    fn change(&self, state: &mut ModeState, n: usize, to: HeldMode) -> ModeReply {
        let is_only = state.others(n).next().is_none() || !self.only_readers_upgrade;
        match &mut state.holds[n] {
            None => ModeReply::NotOwner,
            Some(HeldMode::Reader) if to == HeldMode::Writer && !is_only => ModeReply::Busy,
            Some(mode) => {
                *mode = to;
                ModeReply::Changed(to)
            }
        }
    }
}

impl Model for Modes {
    type State = ModeState;
    type Action = ModeStep;

    fn init_states(&self) -> Vec<ModeState> {
        let calls = vec![ModeCall::default(); self.writers.len()];
        vec![ModeState { holds: vec![None; calls.len()], calls, ..ModeState::default() }]
    }

    /// All steps. [`Modes::step`] rejects those that are impossible.
    fn actions(&self, _: &ModeState, steps: &mut Vec<ModeStep>) {
        use ModeStep::*;
        for n in 0..self.writers.len() {
            steps.extend([Acquire(n), AcquireAgain(n), BeginChange(n, HeldMode::Reader)]);
            steps.extend([BeginChange(n, HeldMode::Writer), Send(n), Serve(n), Receive(n)]);
            steps.extend([TimeOut(n), GiveUp(n), SendRenewal(n), ServeRenewal(n)]);
            steps.extend([ReceiveRenewal(n), LoseRenewal(n), End(n), ServeRelease(n)]);
            steps.extend([LoseLock(n), Expire(n), LoseUpgrade(n)]);
        }
        steps.extend([ServeLate, LoseLate]);
    }

    fn next_state(&self, last: &ModeState, step: ModeStep) -> Option<ModeState> {
        let mut next = last.clone();
        self.step(&mut next, step)?;
        (next != *last).then_some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        let mut properties = vec![
            Property::always(LOSS_IS_FOUND, |_, state: &ModeState| {
                state.violated != Some(LOSS_IS_FOUND)
            }),
            Property::sometimes("a reader has become a writer", |model: &Self, state| {
                let mut calls = state.calls.iter().enumerate();
                calls.any(|(n, c)| !model.writers[n] && c.mode() == Some(HeldMode::Writer))
            }),
            Property::sometimes("a downgrade may arrive late", |_, state: &ModeState| {
                let may_arrive = |(n, request): (usize, ModeRequest)| {
                    request == ModeRequest::Change(HeldMode::Reader)
                        && state.calls[n].may_be_downgraded
                };
                state.late.is_some_and(may_arrive)
            }),
            Property::sometimes("an upgrade is refused", |_, state: &ModeState| {
                state.calls.iter().any(|call| call.reply == Some(ModeReply::Busy))
            }),
        ];
        if self.upgrades_are_kept {
            properties.extend([
                Property::always(NO_FALSE_LOSS, |_, state: &ModeState| {
                    state.violated != Some(NO_FALSE_LOSS)
                }),
                Property::always(ALONE, |_, state: &ModeState| {
                    let modes: Vec<_> = state.calls.iter().filter_map(ModeCall::mode).collect();
                    modes.len() <= 1 || !modes.contains(&HeldMode::Writer)
                }),
                Property::always(STORE_EXCLUDES, |_, state: &ModeState| {
                    let mut calls = state.calls.iter().zip(&state.holds);
                    calls.all(|(call, hold)| match call.mode() {
                        Some(HeldMode::Writer) => *hold == Some(HeldMode::Writer),
                        Some(HeldMode::Reader) => hold.is_some(),
                        None => true,
                    })
                }),
            ]);
        }
        properties
    }
}

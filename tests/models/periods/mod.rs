//! Runs of work that happens once per period.
//!
//! Each run takes the lock, asks the store whether it may begin, runs its body, and records the end. The
//! store has the key of the lock and the record of the last run, which it changes as `start_run.lua` and
//! `end_run.lua` define, with `owned.lua` before them. The processes take the steps of `run_once` in
//! `periodic.rs`, and repeat a request without an answer as `Engine::repeat_while_held` does.
//!
//! A request and its answer take any time and may be lost. A request that is not awaited any more may
//! arrive at any time, also after others of the same run. A process may crash, cancel the call or lose the
//! lock at any point; the key of a lock that is not held expires at any later time. That a key does
//! not expire while its hold counts as valid is left to the model of the protocol. The clock of the store
//! passes from one period to the next at any time.

mod state;
mod tests;

use stateright::{Model, Property};

use self::state::{
    ModelRecord, PERIODS, PeriodRun, PeriodState, RecordReply, RecordRequest, RunPhase,
};

/// By default, a period has at most one run, however it ends.
pub(crate) const AT_MOST_ONCE: &str = "a period has at most one run";
/// With `retry_failed`, no run begins in a period after a success of this period was recorded.
pub(crate) const NO_RUN_AFTER_SUCCESS: &str = "no run after a recorded success";
/// With `retry_failed`, the record counts only if it is that of a run that has succeeded.
pub(crate) const FAILED_IS_FREE: &str = "a failed run leaves its period free";
/// A period counts only if a run has begun in it, unless the process could not undo its start.
pub(crate) const UNUSED_IS_FREE: &str = "a run that has not begun leaves its period free";

/// A run belongs to no period that was over when its start was requested for the last time.
pub(crate) const BEGINS_IN_TIME: &str = "no run begins in an earlier period";

/// The configuration of the model.
#[derive(Clone, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "each is one independent switch")]
pub(crate) struct Periods {
    /// The number of requests of each run. The length is the number of runs.
    pub(crate) requests: &'static [u8],
    /// The most requests that are in flight without being awaited.
    pub(crate) late: usize,
    /// Whether failed runs may be repeated.
    pub(crate) retry_failed: bool,
    /// A run counts for its period before its body begins.
    pub(crate) runs_count_from_start: bool,
    /// With `retry_failed`, a run counts only when it has succeeded.
    pub(crate) failed_do_not_count: bool,
    /// Each run has an owner id of its own, because its lock is not handed off.
    pub(crate) runs_have_owners: bool,
    /// If a run does not start, its record is changed so that it does not count.
    pub(crate) starts_are_undone: bool,
    /// So is one that was repeated, if the store answers in the end that there was a run in the period.
    pub(crate) refused_are_undone: bool,
    /// A start that comes after its undo has no effect.
    pub(crate) undo_is_final: bool,
    /// A repeated start is granted if the record is that of the same owner.
    pub(crate) repeats_are_granted: bool,
    /// A start that is repeated after the end of its period begins in the next one.
    pub(crate) repeats_begin_anew: bool,
    /// The requests for a start are numbered, and an earlier one does not begin the run anew.
    pub(crate) starts_are_numbered: bool,
    /// The record keeps the highest of these numbers, not only the first.
    pub(crate) numbers_are_kept: bool,
    /// Only the owner of the key changes the record.
    pub(crate) only_owners_record: bool,
    /// *Assumed:* the clock of the store is not set back.
    pub(crate) no_jump_back: bool,
}

impl Default for Periods {
    fn default() -> Self {
        Self {
            requests: &[2, 2],
            late: 1,
            retry_failed: false,
            runs_count_from_start: true,
            failed_do_not_count: true,
            runs_have_owners: true,
            starts_are_undone: true,
            refused_are_undone: true,
            undo_is_final: true,
            repeats_are_granted: true,
            repeats_begin_anew: true,
            starts_are_numbered: true,
            numbers_are_kept: true,
            only_owners_record: true,
            no_jump_back: true,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PeriodStep {
    Acquire(usize),
    Send(usize),
    Serve(usize),
    Receive(usize),
    /// Stops waiting for an answer. The request or the answer may be lost.
    TimeOut(usize),
    /// Has sent requests for long enough.
    GiveUp(usize),
    EndBody(usize, RunEnding),
    /// The future of the call is dropped.
    Cancel(usize),
    Release(usize),
    HandOff(usize, usize),
    LoseLock(usize),
    Crash(usize),
    ServeLate(usize),
    LoseLate(usize),
    Expire,
    NextPeriod,
    SetBack,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RunEnding {
    Success,
    Failure,
}

impl Periods {
    fn owner(&self, n: usize) -> usize {
        if self.runs_have_owners { n } else { 0 }
    }

    /// Takes a step. Returns `None` if the step is impossible.
    fn step(&self, state: &mut PeriodState, step: PeriodStep) -> Option<()> {
        use PeriodStep::*;
        match step {
            Acquire(n) => {
                // The runs begin in order. This excludes no behaviour, because all runs are alike.
                let is_next = n == 0 || state.runs[n - 1].phase != RunPhase::Outside;
                (is_next && state.key.is_none() && state.runs[n].phase == RunPhase::Outside)
                    .then_some(())?;
                (state.key, state.runs[n].phase) = (Some(self.owner(n)), RunPhase::Starting);
            }
            Send(n) => {
                let run = &mut state.runs[n];
                (run.awaits_nothing() && run.requests < self.requests[n]).then_some(())?;
                let request = match run.phase {
                    RunPhase::Starting => {
                        run.requested = state.now;
                        RecordRequest::Start(run.requests)
                    }
                    RunPhase::Undoing => RecordRequest::Undo,
                    RunPhase::Ending { failed } => RecordRequest::End { began: run.began?, failed },
                    _ => return None,
                };
                (run.request, run.requests) = (Some(request), run.requests + 1);
            }
            Serve(n) => {
                let request = state.runs[n].request.take()?;
                state.runs[n].reply = Some(self.serve(state, n, request));
            }
            Receive(n) => self.receive(state, n)?,
            TimeOut(n) => {
                (!state.runs[n].awaits_nothing()).then_some(())?;
                state.abandon(n, self.late);
            }
            GiveUp(n) => self.give_up(state, n)?,
            EndBody(n, ending) => {
                let run = &mut state.runs[n];
                (run.phase == RunPhase::Running).then_some(())?;
                run.succeeded = ending == RunEnding::Success;
                // The requests of the end have a limit of their own.
                (run.phase, run.requests) = (RunPhase::Ending { failed: !run.succeeded }, 0);
            }
            Cancel(n) => {
                state.runs[n].holds().then_some(())?;
                state.end(n, self.late);
                state.runs[n].phase = RunPhase::Releasing;
            }
            Release(n) => {
                (state.runs[n].phase == RunPhase::Releasing).then_some(())?;
                state.runs[n].phase = RunPhase::Over;
                state.key.take_if(|owner| *owner == self.owner(n));
            }
            HandOff(from, to) => {
                let is_possible = !self.runs_have_owners
                    && state.runs[from].phase == RunPhase::Releasing
                    && state.runs[to].phase == RunPhase::Outside;
                is_possible.then_some(())?;
                (state.runs[from].phase, state.runs[to].phase) =
                    (RunPhase::Over, RunPhase::Starting);
            }
            LoseLock(n) | Crash(n) => {
                state.runs[n].holds().then_some(())?;
                state.end(n, self.late);
            }
            ServeLate(place) => {
                (place < state.late.len()).then_some(())?;
                let (n, request) = state.late.remove(place);
                self.serve(state, n, request);
            }
            LoseLate(place) => {
                (place < state.late.len()).then_some(())?;
                state.late.remove(place);
            }
            Expire => {
                let owner = state.key?;
                let is_held =
                    (0..state.runs.len()).any(|n| self.owner(n) == owner && state.runs[n].holds());
                (!is_held).then_some(())?;
                state.key = None;
            }
            NextPeriod => {
                (state.now + 1 < PERIODS).then_some(())?;
                state.now += 1;
            }
            SetBack => {
                (!self.no_jump_back && !state.jumped && state.now > 0).then_some(())?;
                (state.now, state.jumped) = (state.now - 1, true);
            }
        }
        Some(())
    }

    /// A run has no answer in time.
    fn give_up(&self, state: &mut PeriodState, n: usize) -> Option<()> {
        let run = &mut state.runs[n];
        let phase = match run.phase {
            // Without a request, there is nothing to give up yet.
            _ if run.requests == 0 => return None,
            RunPhase::Starting if self.starts_are_undone => RunPhase::Undoing,
            RunPhase::Undoing => {
                run.excused = true;
                RunPhase::Releasing
            }
            RunPhase::Starting | RunPhase::Ending { .. } => RunPhase::Releasing,
            _ => return None,
        };
        (run.phase, run.requests) = (phase, 0);
        state.abandon(n, self.late);
        Some(())
    }

    /// A run receives an answer.
    fn receive(&self, state: &mut PeriodState, n: usize) -> Option<()> {
        let run = &mut state.runs[n];
        match (run.phase, run.reply.take()?) {
            (RunPhase::Starting, RecordReply::Started(period)) => state.begin(n, period),
            (RunPhase::Starting, RecordReply::Ran)
                if run.requests > 1 && self.refused_are_undone =>
            {
                (run.phase, run.requests) = (RunPhase::Undoing, 0);
            }
            (RunPhase::Starting, RecordReply::Ran)
            | (RunPhase::Undoing | RunPhase::Ending { .. }, RecordReply::Recorded) => {
                run.phase = RunPhase::Releasing;
            }
            (_, RecordReply::Refused) => state.end(n, self.late),
            (phase, reply) => unreachable!("{reply:?} answers no request of {phase:?}"),
        }
        Some(())
    }

    /// The store executes a request: `owned.lua`, and then `start_run.lua` or `end_run.lua`.
    fn serve(&self, state: &mut PeriodState, n: usize, request: RecordRequest) -> RecordReply {
        let owner = self.owner(n);
        if self.only_owners_record && state.key != Some(owner) {
            return RecordReply::Refused;
        }
        let own = state.record.filter(|last| last.owner == owner);
        match request {
            RecordRequest::Start(attempt) => self.start(state, (owner, attempt), own),
            RecordRequest::Undo => {
                state.undone = Some(owner);
                state.record =
                    own.map(|last| ModelRecord { counts: false, ..last }).or(state.record);
                RecordReply::Recorded
            }
            RecordRequest::End { began, failed } => {
                let counts = !self.retry_failed || !failed;
                let attempt = own.map_or(0, |last| last.attempt);
                state.record = Some(ModelRecord { owner, began, counts, attempt });
                state.runs[n].recorded |= !failed;
                RecordReply::Recorded
            }
        }
    }

    fn start(
        &self,
        state: &mut PeriodState,
        (owner, attempt): (usize, u8),
        own: Option<ModelRecord>,
    ) -> RecordReply {
        if self.undo_is_final && state.undone == Some(owner) {
            return RecordReply::Refused;
        }
        let period = state.now;
        let is_in_period = |last: &ModelRecord| (period..period + 2).contains(&last.began);
        match own.filter(|_| self.repeats_are_granted) {
            Some(last) => {
                let is_late = self.starts_are_numbered && attempt <= last.attempt;
                if last.began >= period || is_late || !self.repeats_begin_anew {
                    if self.numbers_are_kept {
                        let attempt = last.attempt.max(attempt);
                        state.record = Some(ModelRecord { attempt, ..last });
                    }
                    return RecordReply::Started(last.began);
                }
            }
            None if state.record.is_some_and(|last| last.counts && is_in_period(&last)) => {
                return RecordReply::Ran;
            }
            None => {}
        }
        let counts =
            if self.retry_failed { !self.failed_do_not_count } else { self.runs_count_from_start };
        state.record = Some(ModelRecord { owner, began: period, counts, attempt });
        RecordReply::Started(period)
    }
}

impl Model for Periods {
    type State = PeriodState;
    type Action = PeriodStep;

    fn init_states(&self) -> Vec<PeriodState> {
        let runs = vec![PeriodRun::default(); self.requests.len()];
        vec![PeriodState { runs, ..PeriodState::default() }]
    }

    /// All steps. [`Periods::step`] rejects those that are impossible.
    fn actions(&self, state: &PeriodState, steps: &mut Vec<PeriodStep>) {
        use PeriodStep::*;
        for n in 0..self.requests.len() {
            steps.extend([Acquire(n), Send(n), Serve(n), Receive(n), TimeOut(n), GiveUp(n)]);
            steps.extend([EndBody(n, RunEnding::Success), EndBody(n, RunEnding::Failure)]);
            steps.extend([Cancel(n), Release(n), LoseLock(n), Crash(n)]);
            steps.extend((0..self.requests.len()).map(|to| HandOff(n, to)));
        }
        for place in 0..state.late.len() {
            steps.extend([ServeLate(place), LoseLate(place)]);
        }
        steps.extend([Expire, NextPeriod, SetBack]);
    }

    fn next_state(&self, last: &PeriodState, step: PeriodStep) -> Option<PeriodState> {
        let mut next = last.clone();
        self.step(&mut next, step)?;
        (next != *last).then_some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        let mut properties = vec![
            Property::always(BEGINS_IN_TIME, |_, state: &PeriodState| {
                !state.runs.iter().any(|run| run.is_outdated)
            }),
            Property::sometimes("a run begins in each period", |_, state: &PeriodState| {
                (0..PERIODS).all(|period| state.has_run(period))
            }),
            Property::sometimes("a start comes after its undo", |_, state: &PeriodState| {
                let is_start = |(n, request): &(usize, RecordRequest)| {
                    matches!(request, RecordRequest::Start(_)) && state.undone == Some(*n)
                };
                state.key.is_some() && state.key == state.undone && state.late.iter().any(is_start)
            }),
            Property::sometimes("a run finds the period taken", |_, state: &PeriodState| {
                state.runs.iter().any(|run| run.reply == Some(RecordReply::Ran))
            }),
        ];
        if self.retry_failed {
            properties.extend([
                Property::always(NO_RUN_AFTER_SUCCESS, |_, state: &PeriodState| !state.repeated),
                Property::always(FAILED_IS_FREE, |_, state: &PeriodState| {
                    state.record.is_none_or(|last| !last.counts || state.runs[last.owner].succeeded)
                }),
                Property::sometimes("a failed run is repeated", |_, state: &PeriodState| {
                    let began = |n: usize| state.runs[n].began;
                    began(0).is_some() && began(0) == began(1) && state.runs[1].recorded
                }),
            ]);
        } else {
            properties.extend([
                Property::always(AT_MOST_ONCE, |_, state: &PeriodState| {
                    (0..PERIODS).all(|period| state.number_of_runs(period) <= 1)
                }),
                Property::always(UNUSED_IS_FREE, |_, state: &PeriodState| state.is_used_or_free()),
            ]);
        }
        properties
    }
}

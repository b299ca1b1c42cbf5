//! The state of the model of runs: the store with its key and its record, and the runs with their
//! requests in flight.

/// The number of periods, from the first to the last that the clock reaches.
pub(super) const PERIODS: u8 = 2;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum RecordRequest {
    /// The start, with the number of the request.
    Start(u8),
    /// The end of a run whose body has not begun.
    Undo,
    End {
        /// The period in which the run began.
        began: u8,
        failed: bool,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum RecordReply {
    /// The run begins in this period.
    Started(u8),
    Ran,
    Recorded,
    /// The owner does not have the lock, or the start was undone.
    Refused,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) enum RunPhase {
    #[default]
    Outside,
    Starting,
    Undoing,
    /// The body runs.
    Running,
    Ending {
        failed: bool,
    },
    /// The lock is being released.
    Releasing,
    /// The call has ended, or its process has crashed.
    Over,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
#[expect(clippy::struct_excessive_bools, reason = "each is one independent fact")]
pub(crate) struct PeriodRun {
    pub(super) phase: RunPhase,
    /// The number of requests that were sent.
    pub(super) requests: u8,
    pub(super) request: Option<RecordRequest>,
    pub(super) reply: Option<RecordReply>,
    /// The period in which the body began. This field and those below are not visible to the protocol.
    pub(super) began: Option<u8>,
    /// Whether the body has succeeded.
    pub(super) succeeded: bool,
    /// Whether the store has recorded the success.
    pub(super) recorded: bool,
    /// Whether nobody can undo the start, or learn its outcome.
    pub(super) excused: bool,
    /// The period in which the start was requested last.
    pub(super) requested: u8,
    /// Whether the run began in an earlier period than that.
    pub(super) is_outdated: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct ModelRecord {
    pub(super) owner: usize,
    pub(super) began: u8,
    pub(super) counts: bool,
    /// The number of the request for the start.
    pub(super) attempt: u8,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct PeriodState {
    /// The current period by the clock of the store.
    pub(super) now: u8,
    /// The owner of the key.
    pub(super) key: Option<usize>,
    pub(super) record: Option<ModelRecord>,
    /// The owner whose start was undone last.
    pub(super) undone: Option<usize>,
    pub(super) runs: Vec<PeriodRun>,
    /// The requests that are not awaited any more.
    pub(super) late: Vec<(usize, RecordRequest)>,
    /// Whether a run has begun in a period in which a success was recorded. Not visible to the protocol.
    pub(super) repeated: bool,
    /// Whether the clock was set back.
    pub(super) jumped: bool,
}

impl PeriodRun {
    /// Whether the lock counts as held.
    pub(super) fn holds(&self) -> bool {
        !matches!(self.phase, RunPhase::Outside | RunPhase::Releasing | RunPhase::Over)
    }

    pub(super) fn awaits_nothing(&self) -> bool {
        self.request.is_none() && self.reply.is_none()
    }
}

impl PeriodState {
    /// A run stops waiting for its answer.
    pub(super) fn abandon(&mut self, n: usize, most: usize) {
        let run = &mut self.runs[n];
        run.reply = None;
        if let Some(request) = run.request.take()
            && self.late.len() < most
        {
            self.late.push((n, request));
            // Their order does not matter, because any of them may arrive next.
            self.late.sort_unstable();
        }
    }

    /// The call ends without the lock, or with one that nobody releases.
    pub(super) fn end(&mut self, n: usize, most: usize) {
        self.abandon(n, most);
        let run = &mut self.runs[n];
        run.excused = matches!(run.phase, RunPhase::Starting | RunPhase::Undoing);
        run.phase = RunPhase::Over;
    }

    /// The body of a run begins.
    pub(super) fn begin(&mut self, n: usize, period: u8) {
        self.repeated |= self.runs.iter().any(|run| run.recorded && run.began == Some(period));
        let run = &mut self.runs[n];
        (run.phase, run.began) = (RunPhase::Running, Some(period));
        (run.is_outdated, run.requested) = (period < run.requested, 0);
    }

    pub(super) fn number_of_runs(&self, period: u8) -> usize {
        self.runs.iter().filter(|run| run.began == Some(period)).count()
    }

    pub(super) fn has_run(&self, period: u8) -> bool {
        self.number_of_runs(period) > 0
    }

    /// Whether the record does not count, or its run has begun, or is about to begin or to be undone.
    pub(super) fn is_used_or_free(&self) -> bool {
        self.record.is_none_or(|last| {
            let run = &self.runs[last.owner];
            let is_over = run.phase == RunPhase::Over && self.key != Some(last.owner);
            !last.counts || !is_over || run.excused || run.began == Some(last.began)
        })
    }
}

//! Recording the start and the end of runs that happen at most once per period.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use super::core::Engine;
use super::fencing::in_time;
use super::handoff::Hold;
use crate::error::{LockError, LostReason};
use crate::replicas::RequiredReplicas;
use crate::store::periods::{RunEnd, RunEnded, RunLabel, RunStart, RunStarted};
use crate::timeout::{Timeout, Wait};

/// What the store has answered to the start of a run.
#[derive(Debug, Clone, Copy)]
pub(crate) enum MayRun {
    /// The run begins at this time of the store, in ms since 1970.
    Now(u64),
    /// There was a run in this period, which ends after this time.
    After(Duration),
}

impl Engine {
    /// Records the start of a run, unless there was one in this period.
    ///
    /// If the future is dropped, the run may be recorded although it has not started.
    pub(crate) async fn start_run(
        &self,
        hold: &Hold,
        run: &RunLabel,
        (every, counts): (Duration, bool),
        timeout: &Timeout,
    ) -> Result<MayRun, LockError> {
        let lease = hold.lease();
        let (locked, acknowledged_by) = (lease.locked(), lease.acknowledged_by());
        let (key, owner) = (&*locked.key, locked.owner);
        let attempts = AtomicU32::new(0);
        let request = || {
            let attempt = attempts.fetch_add(1, Ordering::Relaxed) + 1;
            let start = RunStart { key, owner, run, every, counts, attempt, acknowledged_by };
            locked.store.start_run(start)
        };
        let outcome = |answer| match answer {
            RunStarted::At(began) => Ok(MayRun::Now(began)),
            RunStarted::Ran(left) => Ok(MayRun::After(left)),
            RunStarted::Gone => Err(LostReason::Gone),
            RunStarted::Taken => Err(LostReason::Taken),
        };
        let mut refusal = None;
        let asking = self.repeat_while_held(hold, timeout, &mut refusal, (request, outcome));
        let answer = tokio::select! {
            answer = timeout.limit(asking) => answer,
            reason = hold.lost() => return Err(lease.lost_to(reason)),
        };
        let missing = "the store has not recorded the run yet";
        let answer = in_time(answer, (hold, timeout), refusal, missing)?;
        if matches!(answer, MayRun::After(_)) && attempts.into_inner() > 1 {
            // An earlier request may arrive after the end of the period, and would take the next one.
            self.undo_start(hold, run, counts).await;
        }
        hold.loss().map_or(Ok(answer), Err)
    }

    /// Records that a run does not begin, although its start may have been recorded, or may yet be.
    pub(crate) async fn undo_start(&self, hold: &Hold, run: &RunLabel, counts: bool) {
        if let Err(error) = self.end_run(hold, run, None, (counts, true)).await {
            tracing::warn!(key = &**hold.key(), %error, "the start of a run was not undone");
        }
    }

    /// Records the end of a run that began at this time of the store. `None` if its body has not begun,
    /// although its start may have been recorded; the run then does not count. Otherwise, it counts if
    /// it has `counted` from its start on, or has not failed. Waits for no longer than for two answers,
    /// because the body is over.
    pub(crate) async fn end_run(
        &self,
        hold: &Hold,
        run: &RunLabel,
        began: Option<u64>,
        (counted, failed): (bool, bool),
    ) -> Result<(), LockError> {
        let (lease, timeout) =
            (hold.lease(), Timeout::new(Wait::For(2 * self.config().response_timeout)));
        let (locked, counts) = (lease.locked(), counted || !failed);
        let acknowledged_by =
            if counted || failed { RequiredReplicas::NONE } else { lease.acknowledged_by() };
        let (key, owner) = (&*locked.key, locked.owner);
        let end = RunEnd { key, owner, run, began, counts, failed, acknowledged_by };
        let request = || locked.store.end_run(end);
        let outcome = |ended| match ended {
            RunEnded::Recorded => Ok(()),
            RunEnded::Gone => Err(LostReason::Gone),
            RunEnded::Taken => Err(LostReason::Taken),
        };
        let mut refusal = None;
        let asking = self.repeat_while_held(hold, &timeout, &mut refusal, (request, outcome));
        let ended = timeout.limit(asking).await;
        in_time(ended, (hold, &timeout), refusal, "the store has not answered yet")
    }
}

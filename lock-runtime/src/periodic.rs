//! Runs that happen at most once per period, over all processes.
//!
//! The lock of the key is held during a run. Before the body begins, the holder records the run in the
//! store, which refuses that if the record of the last run is one of this period by its own clock. By
//! default, a run counts for its period from its start on. So a period has at most one run, even if its
//! process is killed. With `retry_failed`, a run counts when its success has been recorded. So a
//! failed run, and one whose process is killed, can be repeated.

use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use crate::acquiring::{AcquiredGuard, Acquiring};
use crate::body::{self, Body, BodyEnd, GuardSlot, OnLost};
use crate::clock::BootInstant;
use crate::connected::Connected;
use crate::engine::MayRun;
use crate::error::LockError;
use crate::guard::LockGuard;
use crate::holder::{Holder, HolderKind};
use crate::key::{self, LockKey};
use crate::lock;
use crate::options::LockOptions;
use crate::release_mode::ReleaseMode;
use crate::replicas::Replicas;
use crate::runtime;
use crate::safeguard::Safeguard;
use crate::store::contract::Extension;
use crate::store::periods::{RunLabel, RunRecord};
use crate::telemetry::{ObservedCall, SiteMetrics};
use crate::timeout::{Timeout, Wait};
use crate::wire_format::WireFormat;

/// The shortest and the longest period.
const SHORTEST: Duration = Duration::from_secs(1);
const LONGEST: Duration = Duration::from_secs(7 * 24 * 60 * 60);

/// How long the record of a run is kept at least, and in periods.
const KEPT: Duration = Duration::from_secs(24 * 60 * 60);
const KEPT_PERIODS: u32 = 10;

/// Work that runs at most once per period, over all processes that use the same key. Created by
/// [`LockClient::periodic`](crate::LockClient::periodic).
///
/// Periods are counted from Thursday, 1970-01-01 00:00 UTC by the clock of the store, so a period of a
/// day begins at midnight UTC, one of seven days on Thursday, and the clocks of the processes may differ.
/// A run belongs to the period in which it begins. When all processes start a job at the same time, one of
/// them runs it. While it runs, the others [wait](Self::wait), and then get [`LockError::Busy`] with the
/// holder. After it, they get `Busy` with [`HolderKind::NextPeriod`], which says when the period ends. Start
/// the job in the middle of a period: near its end, processes whose clocks differ may be in different
/// periods.
///
/// * By default, a period has **at most one** run. If the body fails, panics or is cancelled, or if its
///   process is killed, the next run is in the next period.
/// * With [`retry_failed`](Self::retry_failed), a period has at most one run that is recorded as
///   successful. After a failed run, the next call runs at once, and after a killed process, when its
///   lease has ended. If a process is killed just after the body has succeeded, the next call runs
///   again, so make the work idempotent. Nothing repeats a run by itself.
///
/// If the start of a run could not be recorded in time, the call fails and nothing runs. The period is
/// then free again, unless the store cannot be reached, the lock is lost, or the call is dropped at that
/// moment.
///
/// Runs of one key do not overlap, with the [exceptions of every lock](crate#guarantees). If a body takes
/// longer than the period, the next periods have no run until it ends. A period has a second run if the
/// store forgets the record of the first one, as after a failover; see
/// [`acknowledged_by`](Self::acknowledged_by). A `quarantine` does not prevent that. If the clock of the
/// store is set back by up to a period, the period that it has left counts until its end.
///
/// # Examples
///
/// ```
/// use lock_runtime::{LockClient, LockError, RunOutcome};
/// use std::time::Duration;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), LockError> {
/// let client = LockClient::memory();
/// let report = client.periodic("report", Duration::from_secs(24 * 60 * 60)).wait(Duration::ZERO);
/// report.run(async { /* once a day */ }).await?;
/// assert!(matches!(report.run(async {}).await, Err(LockError::Busy { .. })));
/// let last = client.last_run("report").await?.expect("it has run");
/// assert_eq!(last.outcome, RunOutcome::Succeeded);
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
#[must_use = "work does nothing until it is run"]
pub struct Periodic {
    client: Arc<Connected>,
    /// The key without the namespace, or the error of an invalid key.
    key: Result<String, LockError>,
    options: LockOptions,
    retry_failed: bool,
    /// Where the runs are measured.
    site: &'static SiteMetrics,
}

impl Periodic {
    pub(crate) fn new(client: Arc<Connected>, key: LockKey, every: Duration) -> Self {
        let options = LockOptions { every: Some(every), ..LockOptions::NONE };
        let site = client.engine.metrics().without_template();
        Self { client, key: key.into_string(), options, retry_failed: false, site }
    }

    /// Sets the template of the key under which the runs are measured; see
    /// [`Lock::template`](crate::Lock::template). A call in a period that had a run counts as busy.
    pub fn template(mut self, template: &'static str) -> Self {
        self.site = self.client.engine.metrics().of_template(template);
        self
    }

    /// Sets the timeout of a call: how long it waits while another process runs. It does not wait for the
    /// next period. With zero, a call returns [`LockError::Busy`] at once; with more than the lease, it
    /// can take over from a process that was killed, if failed runs are
    /// [repeated](Self::retry_failed). See [`Lock::wait`](crate::Lock::wait).
    pub fn wait(mut self, wait: impl Into<Wait>) -> Self {
        self.options.wait = Some(wait.into());
        self
    }

    /// Limits the duration of a run. See [`Lock::max_hold`](crate::Lock::max_hold).
    pub fn max_hold(mut self, max_hold: Duration) -> Self {
        self.options.max_hold = Some(max_hold);
        self
    }

    /// Sets the replicas that have to acknowledge the lock, and the record by which the run counts. See
    /// [`Lock::acknowledged_by`](crate::Lock::acknowledged_by).
    pub fn acknowledged_by(mut self, replicas: impl Into<Replicas>) -> Self {
        self.options.acknowledged_by = Some(replicas.into());
        self
    }

    /// Sets whether a call waits for the release of the lock. It waits in any case until the end of the
    /// run is recorded, for at most two response timeouts. See [`Lock::release_mode`](crate::Lock::release_mode).
    pub fn release_mode(mut self, mode: ReleaseMode) -> Self {
        self.options.release = Some(mode);
        self
    }

    /// Lets a failed run be repeated in the same period. A run has failed if [`run_fallible`](Self::run_fallible)
    /// gets an `Err`, or if the body panics or is dropped.
    pub fn retry_failed(mut self) -> Self {
        self.retry_failed = true;
        self
    }

    /// Runs `body`, unless there was a run in this period. Costs four round trips, and three if there
    /// was one. Any output counts as a success, also an `Err`: see [`run_fallible`](Self::run_fallible).
    ///
    /// Otherwise as [`Lock::run`](crate::Lock::run). The output is returned even if the end of the run
    /// could not be recorded. With [`retry_failed`](Self::retry_failed), the work is then run again.
    ///
    /// Cancel safe: if the future is dropped, the body is dropped first. The run counts for its period,
    /// unless failed runs are repeated.
    ///
    /// # Errors
    ///
    /// As for [`Lock::run`](crate::Lock::run). In addition:
    ///
    /// * [`LockError::Busy`] with [`HolderKind::NextPeriod`]: there was a run in this period.
    /// * [`LockError::Config`]: the period is not in the range of 1 s to 7 days, or the call was made in
    ///   a body that already holds the lock.
    /// * [`LockError::WrongFormat`]: the key of the record holds a value of another type.
    pub fn run<F: Future>(
        &self,
        body: F,
    ) -> impl Future<Output = Result<F::Output, LockError>> + use<F> {
        self.clone().run_with(body, |_| false)
    }

    /// The same for a body that can fail: an `Err` counts as a failed run.
    ///
    /// # Errors
    ///
    /// As for [`run`](Self::run). The body's own error is the inner one.
    ///
    /// # Example
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), lock_runtime::LockError> {
    /// use lock_runtime::{LockClient, RunOutcome};
    /// use std::time::Duration;
    ///
    /// let client = LockClient::memory();
    /// let import = client.periodic("import", Duration::from_secs(3600)).retry_failed();
    /// assert_eq!(import.run_fallible(async { Err::<u32, _>("no file") }).await?, Err("no file"));
    /// let last = client.last_run("import").await?.expect("it has run");
    /// assert_eq!(last.outcome, RunOutcome::Failed);
    /// assert_eq!(import.run_fallible(async { Ok::<_, &str>(7) }).await?, Ok(7));
    /// # Ok(())
    /// # }
    /// ```
    pub fn run_fallible<T, E, F: Future<Output = Result<T, E>>>(
        &self,
        body: F,
    ) -> impl Future<Output = Result<Result<T, E>, LockError>> + use<T, E, F> {
        self.clone().run_with(body, Result::is_err)
    }

    async fn run_with<F: Future>(
        self,
        body: F,
        has_failed: impl Fn(&F::Output) -> bool,
    ) -> Result<F::Output, LockError> {
        let Self { client, key, options, retry_failed, site } = self;
        let key = key.inspect_err(|error| ObservedCall::failed_at_once(site, error))?;
        let body = pin!(Some(body));
        let end = BodyEnd { on_lost: OnLost::Abort, release: options.release(&client.defaults) };
        let run = PeriodicRun { key: &key, options: &options, retry_failed, end, site };
        run_once(&client, run, None, body, has_failed).await
    }
}

/// One run of periodic work.
pub(crate) struct PeriodicRun<'a> {
    pub(crate) key: &'a str,
    pub(crate) options: &'a LockOptions,
    pub(crate) retry_failed: bool,
    pub(crate) end: BodyEnd,
    pub(crate) site: &'static SiteMetrics,
}

/// Runs the body in `slot` unless there was a run in this period, for [`Periodic::run`] and annotated
/// functions. Empties the slot.
pub(crate) async fn run_once<F: Future>(
    client: &Arc<Connected>,
    work: PeriodicRun<'_>,
    place: Option<&GuardSlot>,
    slot: Pin<&mut Option<F>>,
    has_failed: impl Fn(&F::Output) -> bool,
) -> Result<F::Output, LockError> {
    let (slot, end) = (Body(slot), work.end);
    let every = work.options.every.unwrap_or_default();
    check(every).inspect_err(|error| ObservedCall::failed_at_once(work.site, error))?;
    let run = RunLabel { by: client.name(), kept: KEPT.max(every * KEPT_PERIODS) };
    let (guard, began) = begin(client, &work, every, &run).await?;
    let hold = guard.hold().clone();
    let engine = Arc::clone(guard.engine());
    // Outside of the future that is dropped when the lock is lost, because the body has ended before.
    let mut ended = None;
    let body = {
        let (ended, hold, engine, run) = (&mut ended, &hold, &engine, &run);
        // The body is dropped with this future, and so before the lock is released.
        let mut slot = slot;
        async move {
            let Some(future) = slot.0.as_mut().as_pin_mut() else {
                return std::future::pending().await;
            };
            let output = future.await;
            slot.0.set(None);
            let outcome = (!work.retry_failed, has_failed(&output));
            *ended = Some(output);
            if let Err(error) = engine.end_run(hold, run, Some(began), outcome).await {
                tracing::warn!(key = &**hold.key(), %error, "the end of a run was not recorded");
            }
        }
    };
    let outcome = body::run(Acquiring::known(Ok(guard)), end, place, pin!(Some(body))).await;
    match (outcome, ended) {
        (Err(error), Some(_)) if end.on_lost == OnLost::Report => Err(error),
        (_, Some(output)) => Ok(output),
        (outcome, None) => Err(outcome.err().unwrap_or_else(body::run_before)),
    }
}

/// Acquires the lock, and records the start of a run. This is one call, which is measured once.
async fn begin(
    client: &Arc<Connected>,
    work: &PeriodicRun<'_>,
    every: Duration,
    run: &RunLabel,
) -> Result<(LockGuard, u64), LockError> {
    let mut call = ObservedCall::new(work.site, BootInstant::now());
    call.waits();
    let mut begun = acquire_and_begin(client, work, every, run).await;
    match &mut begun {
        Ok((guard, _)) => {
            let waited = call.acquired(guard.acquired_by(), |began| guard.waited_since(began));
            client.engine.metrics().slow.acquired(guard.key(), || work.site.label(), waited);
        }
        Err(error) => {
            call.failed(error);
            client.engine.metrics().slow.failed(error, || work.site.label());
        }
    }
    begun
}

async fn acquire_and_begin(
    client: &Arc<Connected>,
    PeriodicRun { key, options, retry_failed, end, site }: &PeriodicRun<'_>,
    every: Duration,
    run: &RunLabel,
) -> Result<(LockGuard, u64), LockError> {
    let wait = options.wait(&client.defaults)?;
    runtime::checked()?;
    let timeout = Timeout::new(wait);
    // A lock that is not handed off has another owner in each run. A lock that lingers, or is kept,
    // would hold up a run that is repeated.
    let (format, zero) = (Some(WireFormat::Token), Some(Duration::ZERO));
    let options = LockOptions {
        wire_format: format,
        linger: zero,
        min_hold: zero,
        fair: Some(true),
        ..**options
    };
    let acquiring = lock::hold(client, key, None, (&options, site)).unmeasured();
    let guard = acquiring.await.map_err(|error| *error)?;
    if guard.is_reentrant() {
        let problem = "the enclosing body already holds this lock; call the function outside of \
                       it, or in a spawned task";
        return Err(LockError::config("every", problem));
    }
    // Even with a shorter wait, the store has the time for one answer.
    let least = client.engine.config().response_timeout;
    let answer = match timeout.remaining() {
        Some(left) => Timeout::new(Wait::For(left.max(least))),
        None => timeout,
    };
    let (engine, hold) = (guard.engine(), guard.hold());
    let counts = !*retry_failed && Safeguard::RunsCountFromTheirStart.is_on();
    match engine.start_run(hold, run, (every, counts), &answer).await {
        Ok(MayRun::Now(began)) => Ok((guard, began)),
        Ok(MayRun::After(left)) => {
            let (key, waited) = (guard.key().to_owned(), timeout.elapsed());
            let is_awaited = end.release == ReleaseMode::Awaited;
            let released = if is_awaited { guard.close(true) } else { guard.close_unawaited() };
            if let Err(error) = released.await {
                tracing::debug!(key, %error, "the lock of a run that did not start was not released");
            }
            let holder = Holder::with_left(HolderKind::NextPeriod, left);
            Err(LockError::busy(key, waited, holder))
        }
        // The start may have been recorded all the same.
        Err(error @ (LockError::Unavailable { .. } | LockError::Lost { .. })) => {
            engine.undo_start(hold, run, counts).await;
            Err(error)
        }
        Err(error) => Err(error),
    }
}

/// Fails if work cannot have this period.
fn check(every: Duration) -> Result<(), LockError> {
    if (SHORTEST..=LONGEST).contains(&every) {
        return Ok(());
    }
    let problem = format!("{every:?} is not in the range {SHORTEST:?} to {LONGEST:?}");
    Err(LockError::config("every", problem))
}

/// The last run of periodic work.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct LastRun {
    /// When it began, by the clock of the store.
    pub began: SystemTime,
    /// When its end was recorded, by the clock of the store; `None` if that has not happened.
    pub ended: Option<SystemTime>,
    /// How it ended, if it has.
    pub outcome: RunOutcome,
    /// What its client has told about itself ([`Identity`](crate::Identity)): by default, the name of its host and its process
    /// id.
    pub by: String,
}

/// How a run of periodic work has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum RunOutcome {
    /// Its process still holds the lock.
    Running,
    /// The body has returned, without an `Err` for [`Periodic::run_fallible`] and annotated functions.
    Succeeded,
    /// The body has returned an `Err`.
    Failed,
    /// The body was dropped or has panicked, its process was killed, the lock was lost, or the end could not
    /// be recorded.
    Interrupted,
}

/// Reads the record of the last run.
pub(crate) async fn last_run(
    client: &Connected,
    key: LockKey,
) -> Result<Option<LastRun>, LockError> {
    runtime::checked()?;
    let key = key.into_string()?;
    let key = key::full(&client.namespace, &key)?;
    client.engine.admit(&key)?;
    let store = client.store_with(Extension::Runs)?;
    let record = store.last_run(&key).await.map_err(|error| error.about(&key))?;
    Ok(record.map(LastRun::from))
}

impl From<RunRecord> for LastRun {
    fn from(RunRecord { began, ended, by, is_held }: RunRecord) -> Self {
        let outcome = match ended {
            Some((_, true)) => RunOutcome::Failed,
            Some((_, false)) => RunOutcome::Succeeded,
            None if is_held => RunOutcome::Running,
            None => RunOutcome::Interrupted,
        };
        Self { began: time_of(began), ended: ended.map(|(at, _)| time_of(at)), outcome, by }
    }
}

/// The time of so many ms since 1970. A time that cannot be represented is shown as 1970.
fn time_of(millis: u64) -> SystemTime {
    let begin = SystemTime::UNIX_EPOCH;
    begin.checked_add(Duration::from_millis(millis)).unwrap_or(begin)
}

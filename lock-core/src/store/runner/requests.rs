//! Requests in tasks of their own.

use std::num::NonZeroU64;
use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::time::sleep;

use super::caller_runtime::CallerRuntime;
use super::client::AsyncClient;
use super::in_flight::AcquiresInFlight;
use super::thread::{StoreThread, run, within};
use super::watches;
use crate::clock::BootInstant;
use crate::error::LockError;
use crate::maybe_ready::MaybeReady;
use crate::store::contract::{
    Acquired, Lane, Released, Renewed, SendTrace, StoreAnswer, StoreError,
};
use crate::store::owner::OwnerId;
use crate::store::subscriptions::Subscriptions;
use crate::timeout::RequestTimeout;

/// The number of the only connection, as far as the engine knows: a release comes after the acquires of its owner.
pub(super) const CONNECTION: NonZeroU64 = NonZeroU64::MIN;

/// How often a release after the end of a late acquire is repeated at most while the store does not answer.
const REPEATED: usize = 10;

/// The longest time to connect to a store.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// Where the requests of callers run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RunsOn {
    /// On the thread of the client. A request that blocks is allowed there, but delays all others, also renewals, and no limit
    /// ends it.
    Thread,
    /// On the first runtime that calls the store, which saves two changes of threads: a lock of PostgreSQL on the same machine
    /// takes 1.4 times as long without that. The requests of other runtimes, and those of the background, run on the thread. Each
    /// of the two has its own connections.
    Callers,
}

/// Runs the requests of a client. The thread ends when it is dropped.
pub(super) struct RequestRunner {
    thread: StoreThread,
    callers: Option<CallerRuntime>,
    response_timeout: Duration,
    in_flight: Arc<AcquiresInFlight>,
}

impl RequestRunner {
    /// Starts the thread. Requests are limited to `response_timeout`.
    pub(super) fn start(
        response_timeout: Duration,
        runs_on: RunsOn,
    ) -> Result<Arc<Self>, LockError> {
        let thread = StoreThread::start().map_err(|error| {
            let cause = format!("no thread for the store: {error}");
            LockError::unavailable(None, Duration::ZERO, cause)
        })?;
        let callers = (runs_on == RunsOn::Callers).then(CallerRuntime::default);
        Ok(Arc::new(Self { thread, callers, response_timeout, in_flight: Arc::default() }))
    }

    /// How long a request may take.
    pub(super) fn response_timeout(&self) -> Duration {
        self.response_timeout
    }

    /// The runtime for the requests of a lane.
    fn runtime(&self, lane: Lane) -> Handle {
        let callers = self.callers.as_ref().filter(|_| lane == Lane::Caller);
        let of_caller = callers.and_then(CallerRuntime::here);
        of_caller.unwrap_or_else(|| self.thread.runtime().clone())
    }

    /// Runs a request that connects, on the thread, for 5 s at most. Then the keys are watched for which calls wait, until the
    /// client ends.
    pub(super) fn connect<'a, W: AsyncClient>(
        &'a self,
        request: impl Future<Output = Result<(), StoreError>> + Send + 'static,
        keys: &'a Arc<W>,
        subscriptions: &'a Arc<Subscriptions>,
    ) -> MaybeReady<'a, Result<(), LockError>> {
        MaybeReady::pending(async move {
            let (began, runtime) = (BootInstant::now(), self.thread.runtime());
            let connected = run(runtime, within(CONNECT_TIMEOUT, request)).await;
            connected.map_err(|error| error.without_key(BootInstant::now().since(began)))?;
            watches::start(runtime, keys, subscriptions, self.response_timeout);
            Ok(())
        })
    }

    /// Runs a request of a lane.
    pub(super) fn request<T: Send + 'static>(
        &self,
        lane: Lane,
        request: impl Future<Output = Result<T, StoreError>> + Send + 'static,
    ) -> StoreAnswer<'static, T> {
        let limited = within(self.response_timeout, request);
        MaybeReady::pending(run(&self.runtime(lane), limited))
    }

    /// Runs a batch of renewals, on the thread. Answers that are missing are unknown.
    pub(super) fn renew(
        &self,
        count: usize,
        request: impl Future<Output = Vec<Result<Renewed, StoreError>>> + Send + 'static,
    ) -> MaybeReady<'static, Vec<Result<Renewed, StoreError>>> {
        let renewed = self.request(Lane::Background, async move { Ok(request.await) });
        MaybeReady::pending(async move {
            let mut renewed = renewed.await.unwrap_or_else(|error| vec![Err(error); count]);
            let missing =
                || Err(StoreError::Unknown("the store gave no answer for this lease".to_owned()));
            renewed.resize_with(count, missing);
            renewed
        })
    }

    /// Runs an attempt to acquire a key. It goes on for a response timeout after its caller has given up. If the owner was
    /// released meanwhile, and that release could not wait, `release` is sent again, for a key that stays taken for the
    /// given time.
    pub(super) fn acquire<R, F>(
        self: &Arc<Self>,
        owner: OwnerId,
        (timeout, trace): (RequestTimeout, &SendTrace),
        request: impl Future<Output = Result<Acquired, StoreError>> + Send + 'static,
        release: R,
    ) -> StoreAnswer<'static, Acquired>
    where
        R: Fn(Duration) -> F + Send + Sync + 'static,
        F: Future<Output = Result<Released, StoreError>> + Send,
    {
        let limit = timeout.answer.min(timeout.total);
        let lasts = limit + self.response_timeout;
        let in_flight = self.in_flight.begin(owner);
        let (runner, pause) = (Arc::downgrade(self), self.response_timeout);
        trace.sent(CONNECTION.get());
        let acquired = run(&self.runtime(Lane::Caller), async move {
            if in_flight.released().is_some() {
                return Err(StoreError::Refused("the call has been given up".to_owned()));
            }
            let acquired = within(lasts, request).await;
            let released = in_flight.released();
            drop(in_flight);
            if let Some(keep) = released
                && let Some(is_answered) = may_have_left_a_lock(&acquired)
                && let Some(runner) = runner.upgrade()
            {
                let runtime = runner.thread.runtime().clone();
                runtime.spawn(async move {
                    // The thread does not end before.
                    let _runner = runner;
                    for attempt in 0..REPEATED {
                        if attempt > 0 || !is_answered {
                            sleep(pause).await;
                        }
                        if within(pause, release(keep)).await.is_ok() {
                            return;
                        }
                    }
                });
            }
            acquired
        });
        MaybeReady::pending(within(limit, acquired))
    }

    /// Runs a release after the acquires of its owner. `request` may be sent twice. A future that is dropped before it is
    /// polled sends nothing.
    pub(super) fn release<R, F>(
        self: &Arc<Self>,
        (owner, keep): (OwnerId, Duration),
        lane: Lane,
        request: R,
    ) -> StoreAnswer<'static, Released>
    where
        R: Fn(Duration) -> F + Send + Sync + 'static,
        F: Future<Output = Result<Released, StoreError>> + Send,
    {
        // An acquire on the thread of the store ends after two response timeouts, or a little later. One on the runtime of its
        // caller may take longer.
        let brief = self.callers.is_some().then_some(self.response_timeout / 8);
        let ended = self.in_flight.ended(owner, brief);
        let limit = self.response_timeout * if brief.is_some() { 2 } else { 4 };
        let runner = Arc::clone(self);
        MaybeReady::pending(async move {
            let (runtime, in_flight) = (runner.runtime(lane), Arc::clone(&runner.in_flight));
            let released = async move {
                let has_waited = ended.await;
                let first = request(keep).await;
                if has_waited || in_flight.tell_released(owner, keep) {
                    return first;
                }
                // An acquire has ended in the meantime, and may have taken the key after this release.
                outcome_of_both(first, request(keep).await)
            };
            run(&runtime, within(limit, released)).await
        })
    }
}

/// Whether an acquire may have taken the key after its release; and if so, whether it was answered.
fn may_have_left_a_lock(acquired: &Result<Acquired, StoreError>) -> Option<bool> {
    match acquired {
        Ok(Acquired::Granted(_) | Acquired::Queued(_)) => Some(true),
        // It may still take effect.
        Err(StoreError::Unknown(_)) => Some(false),
        Ok(Acquired::Busy(_)) | Err(_) => None,
    }
}

/// The outcome of two releases of one owner.
fn outcome_of_both(
    first: Result<Released, StoreError>,
    second: Result<Released, StoreError>,
) -> Result<Released, StoreError> {
    match (first, second) {
        (known @ Ok(_), Ok(_)) => known,
        // The first one may have freed it. If the store does not know it, others may wait.
        (Err(first), Ok(Released::Gone | Released::Taken)) if first.may_have_run() => {
            Ok(Released::Freed { woken: 1 })
        }
        (Err(first), Err(_)) if first.may_have_run() => Err(first),
        (freed @ Ok(Released::Freed { .. }), _) => freed,
        (_, second) => second,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_release_after_one_without_an_answer_reports_no_loss() {
        use Released::{Freed, Gone, Taken};

        const FREED: Released = Freed { woken: 3 };
        let unknown = || Err(StoreError::Unknown("no answer".to_owned()));
        let refused = || Err(StoreError::Refused("stopped".to_owned()));
        for second in [Ok(Gone), Ok(Taken), Ok(FREED), unknown()] {
            assert_eq!(outcome_of_both(Ok(FREED), second), Ok(FREED));
        }
        for (first, second, outcome) in [
            (unknown(), Ok(Gone), Ok(Freed { woken: 1 })),
            (unknown(), Ok(FREED), Ok(FREED)),
            (unknown(), refused(), unknown()),
            (refused(), unknown(), unknown()),
            (refused(), Ok(Gone), Ok(Gone)),
            (refused(), Ok(Taken), Ok(Taken)),
            (Ok(Gone), Ok(FREED), Ok(Gone)),
            (Ok(Taken), Ok(Gone), Ok(Taken)),
            (Ok(Gone), unknown(), unknown()),
        ] {
            assert_eq!(outcome_of_both(first, second), outcome);
        }
    }
}

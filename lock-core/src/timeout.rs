//! The timeout of a call, and the timeouts of its requests.

use std::time::Duration;

use crate::clock::BootInstant;
use crate::error::LockError;
use crate::sync::time::{self, Instant};

/// The longest wait, apart from [`Wait::Forever`].
pub const LONGEST_WAIT: Duration = Duration::from_secs(7 * 24 * 60 * 60);

/// The longest time from sending a request to its effect, unless its server was suspended meanwhile. A connection
/// without answers is reset, so its requests are not delivered after that.
pub const LONGEST_DELAY: Duration = Duration::from_secs(5);

/// With a wait of up to this length, the first request may take the whole response timeout.
const SHORT_WAIT: Duration = Duration::from_millis(10);

/// The timeout of an acquisition. It covers the whole call, including retries after store errors.
///
/// # Examples
///
/// ```
/// use lock_runtime::Wait;
/// use std::time::Duration;
///
/// assert_eq!(Wait::from(Duration::from_secs(5)), Wait::For(Duration::from_secs(5)));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wait {
    /// Waits for at most this time, which may be up to 7 days. Zero makes one attempt.
    ///
    /// With a wait of up to 10 ms, including zero, the first request may take a whole response
    /// timeout (a third of the client's lease, from 50 ms to 2 s). A free lock is therefore granted
    /// even if only a little time of a larger timeout is left for it. With a wait of zero, a request that fails without an
    /// answer is repeated once, within that time, and a call waits for up to half of it while its own process is
    /// releasing the lock.
    For(Duration),
    /// Waits until the lock is granted, also during an outage of the store.
    Forever,
}

impl Wait {
    /// One attempt.
    #[doc(hidden)]
    pub const ONCE: Self = Self::For(Duration::ZERO);

    /// The longest time that the call may take; `None` if there is no limit.
    #[doc(hidden)]
    pub fn limit(self) -> Option<Duration> {
        match self {
            Self::For(limit) => Some(limit),
            Self::Forever => None,
        }
    }

    #[doc(hidden)]
    pub fn is_single_attempt(self) -> bool {
        self.limit().is_some_and(|limit| limit.is_zero())
    }

    #[doc(hidden)]
    pub fn check(self) -> Result<Self, LockError> {
        match self {
            Self::For(limit) if limit > LONGEST_WAIT => Err(LockError::config(
                "wait",
                format!(
                    "{limit:?} is longer than {LONGEST_WAIT:?}; use `Wait::Forever` to wait \
                     without a limit"
                ),
            )),
            _ => Ok(self),
        }
    }
}

impl From<Duration> for Wait {
    fn from(limit: Duration) -> Self {
        Self::For(limit)
    }
}

/// How long one request to the store may take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RequestTimeout {
    /// From sending the request to its answer.
    pub answer: Duration,
    /// From the start of the request, including the wait for a connection, to its answer.
    pub total: Duration,
}

impl RequestTimeout {
    /// The same limit for both.
    pub const fn of(total: Duration) -> Self {
        Self { answer: total, total }
    }
}

/// The timeout of one call. It counts from the beginning of the call.
#[derive(Debug, Clone, Copy)]
pub struct Timeout {
    /// When the call began, by the clock of the deadlines.
    began: BootInstant,
    /// When the timeout ends, by the clock of the timers; `None` if there is no limit.
    end: Option<Instant>,
    single_attempt: bool,
    /// Whether the wait is at most [`SHORT_WAIT`].
    short: bool,
}

impl Timeout {
    pub fn new(wait: Wait) -> Self {
        // Read first: a thread that is suspended here must not report a wait shorter than the limit.
        let began = BootInstant::now();
        let end = wait.limit().and_then(|limit| Instant::now().checked_add(limit));
        let short = wait.limit().is_some_and(|limit| limit <= SHORT_WAIT);
        let single_attempt = wait.is_single_attempt();
        Self { began, end, single_attempt, short }
    }

    /// When the call began, by the clock of the deadlines.
    pub fn began(&self) -> BootInstant {
        self.began
    }

    pub fn is_single_attempt(&self) -> bool {
        self.single_attempt
    }

    pub fn elapsed(&self) -> Duration {
        BootInstant::now().since(self.began)
    }

    pub fn is_over(&self) -> bool {
        self.end.is_some_and(|end| Instant::now() >= end)
    }

    /// The remaining time; `None` if there is no limit.
    pub fn remaining(&self) -> Option<Duration> {
        self.end.map(|end| end.saturating_duration_since(Instant::now()))
    }

    /// Whether the timeout ends before `pause` is over.
    pub fn ends_within(&self, pause: Duration) -> bool {
        self.end.is_some_and(|end| Instant::now() + pause >= end)
    }

    /// The timeout of the next request. A single attempt, and the `first` request of a short wait,
    /// may take the whole `response_timeout`. The second request of a single attempt has the rest of it.
    pub fn for_request(&self, response_timeout: Duration, first: bool) -> RequestTimeout {
        let whole = self.single_attempt || self.short && first;
        let total = match self.end {
            Some(_) if self.single_attempt && !first => {
                response_timeout.saturating_sub(self.elapsed()).max(response_timeout / 4)
            }
            Some(end) if !whole => end.saturating_duration_since(Instant::now()),
            Some(_) => response_timeout,
            None => Duration::MAX,
        };
        RequestTimeout { answer: response_timeout.min(total), total }
    }

    /// The output of `first`, a request without which the call would be in vain, or `None` if the timeout ends first. A
    /// very short wait does not end it.
    pub async fn limit_first<F: Future>(&self, first: F) -> Option<F::Output> {
        if self.short { Some(first.await) } else { self.limit(first).await }
    }

    /// The output of `future`, or `None` if the timeout ends first.
    pub fn limit<F: Future>(&self, future: F) -> impl Future<Output = Option<F::Output>> + use<F> {
        let end = self.end;
        async move {
            match end {
                Some(end) => time::timeout_at(end, future).await.ok(),
                None => Some(future.await),
            }
        }
    }
}

/// The response timeout: a third of the lease, so that a renewal without an answer leaves time for
/// another one.
pub fn response_timeout(lease: Duration) -> Duration {
    (lease / 3).clamp(Duration::from_millis(50), Duration::from_secs(2))
}

#[cfg(all(test, not(lock_shuttle)))]
mod tests {
    use super::*;

    const WAIT: Duration = Duration::from_secs(10);
    const RESPONSE: Duration = Duration::from_secs(2);

    #[tokio::test(start_paused = true)]
    async fn a_timeout_runs_from_its_beginning() {
        let timeout = Timeout::new(Wait::For(WAIT));
        assert!(!timeout.is_over() && !timeout.is_single_attempt());
        assert_eq!(timeout.remaining(), Some(WAIT));
        assert!(!timeout.ends_within(WAIT / 2) && timeout.ends_within(WAIT));
        time::sleep(WAIT / 2).await;
        assert_eq!(timeout.remaining(), Some(WAIT / 2));
        assert!(timeout.ends_within(WAIT / 2));
        assert_eq!(timeout.limit(std::future::pending::<()>()).await, None);
        assert!(timeout.is_over());
        assert_eq!(timeout.remaining(), Some(Duration::ZERO));
    }

    #[tokio::test(start_paused = true)]
    async fn a_wait_without_a_limit_never_ends() {
        let timeout = Timeout::new(Wait::Forever);
        time::sleep(LONGEST_WAIT).await;
        assert!(!timeout.is_over() && !timeout.ends_within(LONGEST_WAIT));
        assert_eq!(timeout.remaining(), None);
        assert_eq!(timeout.limit(async { 1 }).await, Some(1));
        let expected = RequestTimeout { answer: RESPONSE, total: Duration::MAX };
        assert_eq!(timeout.for_request(RESPONSE, false), expected);
    }

    #[tokio::test(start_paused = true)]
    async fn only_a_single_attempt_or_the_first_request_of_a_short_wait_may_outlast_its_call() {
        let whole = RequestTimeout::of(RESPONSE);
        let single = Timeout::new(Wait::For(Duration::ZERO));
        assert!(single.is_over() && single.is_single_attempt());
        assert_eq!(single.for_request(RESPONSE, true), whole);
        // The rest, and a part of it in any case.
        let RequestTimeout { answer, total } = single.for_request(RESPONSE, false);
        assert!(answer == total && (RESPONSE * 9 / 10..RESPONSE).contains(&total), "{total:?}");
        assert_eq!(single.for_request(Duration::ZERO, false), RequestTimeout::of(Duration::ZERO));
        let short = Timeout::new(Wait::For(SHORT_WAIT));
        assert_eq!(short.for_request(RESPONSE, true), whole);
        assert_eq!(short.for_request(RESPONSE, false), RequestTimeout::of(SHORT_WAIT));
        let long = Timeout::new(Wait::For(WAIT));
        let expected = RequestTimeout { answer: RESPONSE, total: WAIT };
        assert_eq!(long.for_request(RESPONSE, true), expected);
    }

    #[test]
    fn the_beginning_is_on_the_clock_of_the_deadlines() {
        let before = BootInstant::now();
        let timeout = Timeout::new(Wait::Forever);
        assert!((before..=BootInstant::now()).contains(&timeout.began()));
        assert!(timeout.elapsed() < WAIT);
    }
}

//! A call of a test client that meets a scripted outcome.

use std::sync::Arc;
use std::time::Duration;

use crate::acquiring::{AcquireOutcome, AcquiredGuard, Unmeasured};
use crate::connected::Connected;
use crate::error::LockError;
use crate::holder::{Holder, HolderKind};
use crate::maybe_ready::MaybeReady;
use crate::sync::time;
use crate::telemetry::{CallFate, SiteLabel};
use crate::timeout::Timeout;

/// The pause before a request without an answer is repeated.
const PAUSE: Duration = Duration::from_millis(20);

/// The fate of a call for these keys.
pub(crate) fn of(client: &Connected, keys: &[&str], label: SiteLabel) -> Option<CallFate> {
    client.engine.metrics().observer.as_ref()?.fate(keys, label)
}

/// A call that meets its fate, and that otherwise acquires the lock.
pub(crate) fn meet<G: AcquiredGuard + Send + 'static>(
    client: &Arc<Connected>,
    (fate, key): (CallFate, &str),
    timeout: Timeout,
    acquire: impl FnOnce() -> Unmeasured<G> + Send + 'static,
) -> Unmeasured<G> {
    let (client, key) = (Arc::clone(client), key.to_owned());
    MaybeReady::pending(async move {
        match fated(&client, (fate, key), &timeout).await {
            Ok(()) => acquire().await,
            Err(error) => AcquireOutcome::Err(Box::new(error)),
        }
    })
}

/// Waits as the call does. Fails unless it then acquires the lock.
async fn fated(
    client: &Connected,
    (fate, key): (CallFate, String),
    timeout: &Timeout,
) -> Result<(), LockError> {
    let unavailable =
        |key, cause: &str| LockError::unavailable(Some(key), timeout.elapsed(), cause);
    let longest = client.engine.config().response_timeout;
    match fate {
        CallFate::Busy(time) => {
            let time = time.unwrap_or(Duration::MAX);
            if timeout.is_single_attempt() || !passes(timeout, time).await {
                let left = time.saturating_sub(timeout.elapsed());
                // As if the holder had just renewed it.
                let left = left.min(client.defaults.lease);
                let holder = Holder::with_left(HolderKind::Elsewhere, left);
                return Err(LockError::busy(key, timeout.elapsed(), holder));
            }
        }
        CallFate::Unavailable(cause) => {
            if !timeout.is_single_attempt() {
                passes(timeout, Duration::MAX).await;
            }
            return Err(unavailable(key, &cause));
        }
        // A request that takes longer counts as unanswered, and is repeated.
        CallFate::Slow(time) if timeout.is_single_attempt() => {
            time::sleep(time.min(longest)).await;
            if time > longest {
                return Err(unavailable(key, "the store did not answer in time"));
            }
        }
        CallFate::Slow(time) => {
            if !passes(timeout, time.min(longest)).await {
                return Err(unavailable(key, "the store did not answer in time"));
            }
        }
        CallFate::Unknown if timeout.is_single_attempt() => {
            return Err(unavailable(key, "the answer was lost"));
        }
        CallFate::Unknown => {
            if !passes(timeout, PAUSE).await {
                return Err(unavailable(key, "the answer was lost"));
            }
        }
    }
    Ok(())
}

/// Whether this time passes before the timeout ends.
async fn passes(timeout: &Timeout, time: Duration) -> bool {
    let wait = async {
        match time {
            Duration::MAX => std::future::pending().await,
            time => time::sleep(time).await,
        }
    };
    timeout.limit(wait).await.is_some()
}

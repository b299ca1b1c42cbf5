//! What a test client does to the calls of a program, and what it records of them.

use std::time::Duration;

use super::label::SiteLabel;
use crate::error::LostReason;

/// How a hold ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum HoldEnd {
    Released(Duration),
    Lost(LostReason),
}

/// What happens to a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum CallFate {
    /// Somebody else has the lock for this time, or for the whole wait.
    Busy(Option<Duration>),
    /// The store refuses all requests.
    Unavailable(String),
    /// The first answer takes this time.
    Slow(Duration),
    /// The first answer is lost.
    Unknown,
}

/// Loses one hold, if it lasts. Calls the function first.
pub(crate) type Loser = Box<dyn FnOnce(LostReason, &dyn Fn()) + Send>;

/// A test that observes the calls of its client.
pub(crate) trait CallObserver: std::fmt::Debug + Send + Sync {
    /// A call for these keys begins.
    fn fate(&self, keys: &[&str], label: SiteLabel) -> Option<CallFate>;

    /// A call has got the lock, and has waited for so long.
    fn began(&self, key: &str, label: SiteLabel, waited: Duration, loser: Loser);

    /// A hold has ended.
    fn ended(&self, key: &str, end: HoldEnd);
}

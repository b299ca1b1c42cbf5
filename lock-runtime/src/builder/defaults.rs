//! The defaults of a client, and the limits of its settings.

use std::time::Duration;

use super::LockClientBuilder;
use crate::engine::fairness::limit::{HandoffLimit, LONGEST as LONGEST_TENURE};
use crate::error::LockError;
use crate::options::{Defaults, LockOptions, check_span};
use crate::replicas::{Replicas, RequiredReplicas};
use crate::timeout::Wait;

/// The lease of a lock that does not specify one.
pub(super) const DEFAULT_LEASE: Duration = Duration::from_secs(30);
/// The timeout of an acquisition that does not specify one.
const DEFAULT_WAIT: Wait = Wait::For(Duration::from_secs(30));
/// The shortest lease that can be renewed in time on a busy machine.
const SHORTEST_LEASE: Duration = Duration::from_millis(100);
/// The longest lease. If a holder dies, its waiters wait for this long.
pub(super) const LONGEST_LEASE: Duration = Duration::from_secs(24 * 60 * 60);
/// The largest number of keys of a set, unless it is configured, and the highest value of that.
const MAX_KEYS: usize = 64;
const MOST_KEYS: usize = 1024;
/// The longest namespace, in bytes.
const LONGEST_NAMESPACE: usize = 128;

impl LockClientBuilder {
    /// The client's defaults, checked.
    pub(super) fn checked(&self) -> Result<Defaults, LockError> {
        let acknowledged_by = self.options.acknowledged_by.unwrap_or(Replicas::AtLeast(0));
        let mut defaults = self.options.defaults(acknowledged_by.required()?, self.quarantine);
        if let Some(max_keys) = self.max_keys {
            if !(1..=MOST_KEYS).contains(&max_keys) {
                let problem = format!("{max_keys} is not in the range 1 to {MOST_KEYS}");
                return Err(LockError::config("max_keys", problem));
            }
            defaults.max_keys = max_keys;
        }
        let lease = defaults.lease;
        if !(SHORTEST_LEASE..=LONGEST_LEASE).contains(&lease) {
            let problem =
                format!("{lease:?} is not in the range {SHORTEST_LEASE:?} to {LONGEST_LEASE:?}");
            return Err(LockError::config("lease", problem));
        }
        if let Some(max_hold) = defaults.max_hold {
            check_span("max_hold", max_hold)?;
        }
        LockOptions::NONE.check_linger(defaults.linger, lease)?;
        if let Some(quarantine) = self.quarantine {
            check_span("quarantine", quarantine)?;
            defaults.check_quarantine("lease", lease)?;
        }
        defaults.wait.check()?;
        let HandoffLimit { time, .. } = self.handoff_limit;
        if self.handoff_limit.allows_any() && time > LONGEST_TENURE {
            let problem = format!(
                "the time {time:?} is longer than {LONGEST_TENURE:?}; other processes would have \
                 to wait for that long"
            );
            return Err(LockError::config("handoff_limit", problem));
        }
        for (option, threshold) in [("slow_wait", self.slow.wait), ("slow_hold", self.slow.hold)] {
            threshold.map_or(Ok(()), |threshold| check_span(option, threshold))?;
        }
        if let Some(unavailable_after) = self.unavailable_after {
            check_span("unavailable_after", unavailable_after)?;
            defaults.unavailable_after = Some(unavailable_after);
        }
        self.check_namespace()?;
        Ok(defaults)
    }

    fn check_namespace(&self) -> Result<(), LockError> {
        let bad = |c: char| c.is_whitespace() || c.is_control() || matches!(c, '{' | '}');
        let problem = if self.namespace.len() > LONGEST_NAMESPACE {
            format!("it has more than {LONGEST_NAMESPACE} bytes")
        } else if self.namespace.ends_with(':') {
            "it ends with a `:`; remove the `:`, because the client adds one".to_owned()
        } else if let Some(bad) = self.namespace.chars().find(|c| bad(*c)) {
            format!(
                "it contains {bad:?}; white space, control characters and braces are not allowed"
            )
        } else {
            return Ok(());
        };
        Err(LockError::config("namespace", problem))
    }
}

impl LockOptions {
    /// The defaults of a client with these options.
    pub(super) fn defaults(
        &self,
        acknowledged_by: RequiredReplicas,
        quarantine: Option<Duration>,
    ) -> Defaults {
        Defaults {
            wire_format: self.wire_format.unwrap_or_default(),
            wait: self.wait.unwrap_or(DEFAULT_WAIT),
            lease: self.lease.unwrap_or(DEFAULT_LEASE),
            max_hold: self.max_hold,
            acknowledged_by,
            release: self.release.unwrap_or_default(),
            linger: self.linger.unwrap_or_default(),
            max_keys: MAX_KEYS,
            quarantine,
            unavailable_after: None,
        }
    }
}

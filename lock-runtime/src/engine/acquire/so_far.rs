//! What an acquisition has learned about a key that it could not acquire yet.

use std::time::Duration;

use super::attempt::{Attempt, may_repeat};
use super::sleep::Sleep;
use crate::backoff::Backoff;
use crate::clock::BootInstant;
use crate::engine::core::Engine;
use crate::engine::lease::Terms;
use crate::engine::local_queue::KeyStatus;
use crate::error::LockError;
use crate::store::contract::{Left, StoreError};
use crate::timeout::Timeout;

/// The first and the longest pause after an attempt that the store did not answer.
pub(in crate::engine) const PAUSES: (Duration, Duration) =
    (Duration::from_millis(20), Duration::from_millis(500));

/// The attempts of one acquisition so far.
pub(super) struct AttemptsSoFar {
    pub(super) timeout: Timeout,
    /// The last known status of the key.
    pub(super) known: Option<KeyStatus>,
    /// When the key was last found taken.
    pub(super) answered: BootInstant,
    /// Whether a single attempt has asked once more.
    asked_again: bool,
    backoff: Backoff,
}

impl AttemptsSoFar {
    pub(super) fn new(timeout: Timeout, known: Option<KeyStatus>) -> Self {
        let backoff = Backoff::new(PAUSES.0, PAUSES.1);
        Self { timeout, known, answered: BootInstant::PAST, asked_again: false, backoff }
    }

    /// The rest of the lease of another client, and when it was learned.
    pub(super) fn held_elsewhere(&self) -> Option<(Left, BootInstant)> {
        match self.known {
            Some(KeyStatus::HeldElsewhere(left, at)) => Some((left, at)),
            _ => None,
        }
    }

    /// Whether a single attempt asks once more: for the rest of the holder's lease, which the first answer did not contain, or
    /// because there was no answer.
    pub(super) fn asks_again(&mut self) -> bool {
        self.timeout.is_single_attempt() && !std::mem::replace(&mut self.asked_again, true)
    }

    /// Another client has the key.
    pub(super) fn busy(&mut self, left: Left) -> Sleep {
        let now = BootInstant::now();
        self.backoff.reset();
        self.answered = now;
        self.known = Some(KeyStatus::HeldElsewhere(left, now));
        Sleep::Holder(left, now)
    }

    /// An attempt has failed, or its answer came too late. Returns the pause before the next one; `None` if it follows at once,
    /// because a single attempt had no answer. Fails if another attempt would be in vain.
    pub(super) fn failed(
        &mut self,
        attempt: Attempt,
        last_check: Option<(Left, BootInstant)>,
        engine: &Engine,
        terms: &Terms,
    ) -> Result<Option<Sleep>, LockError> {
        let response_timeout = engine.config().response_timeout;
        let is_known_to_fail = matches!(self.known, Some(KeyStatus::Unreachable(_)));
        let Attempt { within, answer, .. } = attempt;
        match answer {
            Ok(_) => {
                // Granted, but no time is left in the lease.
                let cause = format!("the answer took longer than the lease of {:?}", terms.term);
                self.known = Some(KeyStatus::Unreachable(cause));
            }
            // The first request of the single attempt was answered: the lock is busy. Only the
            // details are missing.
            Err(StoreError::Refused(_) | StoreError::Unknown(_))
                if self.timeout.is_single_attempt() && self.held_elsewhere().is_some() =>
            {
                return Ok(Some(Sleep::Pause(Duration::ZERO)));
            }
            Err(StoreError::Refused(cause)) => {
                // If there was no time for a connection, the previous error of the store counts.
                if !self.timeout.is_over() || !is_known_to_fail {
                    self.known = Some(KeyStatus::Unreachable(cause));
                }
            }
            Err(StoreError::Unknown(cause)) => {
                // An attempt that the caller's timeout has cut short does not outweigh a recent
                // answer, or a previous error of the store. An attempt that had almost no time
                // does not outweigh any answer to this call.
                let cut_short = within < response_timeout || self.timeout.is_over();
                let answered = last_check.map_or(self.answered, |(_, at)| self.answered.max(at));
                let is_recent = BootInstant::now().since(answered) <= response_timeout
                    || within < response_timeout / 4;
                let recent = answered >= self.timeout.began() && is_recent;
                if !cut_short || !(recent || is_known_to_fail) {
                    self.known = Some(KeyStatus::Unreachable(cause));
                }
                if may_repeat(&self.timeout, response_timeout) && self.asks_again() {
                    return Ok(None);
                }
            }
            Err(StoreError::Denied(cause)) => return Err(LockError::denied(cause)),
            Err(StoreError::Config { option, problem }) => {
                return Err(LockError::config(option, problem));
            }
            Err(StoreError::WrongFormat { key, expected, found }) => {
                return Err(engine.wrong_format(key, expected, found));
            }
        }
        Ok(Some(Sleep::Pause(self.backoff.pause())))
    }
}

//! One attempt of an acquisition, and its undo.

use std::time::Duration;

use tokio::runtime::Id;

use super::call::AcquireRequest;
use crate::clock::BootInstant;
use crate::engine::background::cleanup::{Cleanup, CleanupReason};
use crate::engine::core::Engine;
use crate::engine::handoff::Permit;
use crate::engine::lease::{Locked, Terms};
use crate::engine::queue_place::QueueKeeper;
use crate::safeguard::Safeguard;
use crate::store::contract::{Acquired, Claim, Grant, Origin, Queueing, SendTrace, StoreError};
use crate::store::owner::OwnerId;
use crate::timeout::Timeout;

/// One attempt, and its result.
pub(super) struct Attempt {
    pub(super) sent: BootInstant,
    /// When the answer was known.
    pub(super) known: BootInstant,
    /// The total timeout of the attempt.
    pub(super) within: Duration,
    /// The grant, if the lock was granted and the lease is still valid.
    pub(super) granted: Option<Grant>,
    pub(super) answer: Result<Acquired, StoreError>,
}

impl Attempt {
    pub(super) fn new(
        trace: &SendTrace,
        within: Duration,
        answer: Result<Acquired, StoreError>,
        terms: &Terms,
    ) -> Self {
        let now = BootInstant::now();
        let on = Safeguard::DeadlineFromSending.is_on();
        let sent = trace.sent_at().unwrap_or(BootInstant::PAST);
        let sent = if on { sent } else { now };
        let granted = match answer {
            Ok(Acquired::Granted(grant)) if now < terms.deadline(sent) => Some(grant),
            _ => None,
        };
        Self { sent, known: now, within, granted, answer }
    }

    /// Whether the lock was granted, and the answer came after the deadline of the lease.
    pub(super) fn is_late(&self) -> bool {
        matches!(self.answer, Ok(Acquired::Granted(_))) && self.granted.is_none()
    }
}

/// A new owner name. No attempt of a quorum goes on with an earlier one, because the undo of the earlier attempt may
/// come late.
pub(super) fn new_owner() -> Result<OwnerId, StoreError> {
    OwnerId::new().map_err(|error| {
        StoreError::Refused(format!("the operating system returned no random numbers: {error}"))
    })
}

/// A claim, by the cheapest request or not.
pub(super) fn claim(
    request: &AcquireRequest,
    owner: OwnerId,
    (fresh, queueing): (bool, Queueing),
) -> Claim<'_> {
    let (resource, terms) = (request.resource(), &request.terms);
    let acknowledged_by = terms.acknowledged_by;
    Claim {
        resource,
        owner,
        term: terms.in_store(),
        renewed: terms.renewed,
        fresh,
        acknowledged_by,
        queueing,
        queued_before: Queueing::None,
    }
}

/// Whether a single attempt whose request has failed without an answer has time for another one. The connection may have been
/// lost while it was idle, and the next request has another one.
pub(super) fn may_repeat(timeout: &Timeout, response_timeout: Duration) -> bool {
    timeout.is_single_attempt() && timeout.elapsed() < response_timeout * 3 / 4
}

/// A request that may be dropped before its answer.
pub(super) struct PendingRequest<'a> {
    pub(super) trace: &'a SendTrace,
    pub(super) runtime: Id,
    pub(super) unanswered: &'a mut Option<Origin>,
    pub(super) is_over: bool,
}

impl Drop for PendingRequest<'_> {
    fn drop(&mut self) {
        // A request that was not sent needs no undo.
        let Some(connection) = self.trace.connection().filter(|_| !self.is_over) else { return };
        // An undo is certain to arrive after all requests only if one connection carried them all.
        let connection = match &*self.unanswered {
            None => Some(connection),
            Some(before) => before.connection.filter(|before| *before == connection),
        };
        *self.unanswered = Some(Origin { runtime: self.runtime, connection });
    }
}

/// Undoes what the requests of a claim may have done, or makes the claim leave its queue. The lock
/// was never granted.
pub(super) fn undo(engine: &Engine, locked: Locked, permit: Option<Permit>) {
    let (is_certain, term) = (locked.doubt.is_none(), locked.term);
    if let Some(permit) = &permit {
        permit.set_releasing();
    }
    engine.background().clean_up(Cleanup {
        locked,
        gone_by: BootInstant::now().after(term),
        kept_until: BootInstant::PAST,
        valid_until: BootInstant::PAST,
        leaves_gap: false,
        confirmed: BootInstant::PAST,
        reason: if is_certain { CleanupReason::Released } else { CleanupReason::Unanswered },
        site: None,
        permit,
    });
}

impl QueueKeeper for Engine {
    fn leave_queue(&self, locked: Locked) {
        undo(self, locked, None);
    }
}

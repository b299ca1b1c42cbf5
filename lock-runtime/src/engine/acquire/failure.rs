//! The error of a call whose timeout has ended.

use super::call::AcquireRequest;
use crate::clock::BootInstant;
use crate::engine::core::Engine;
use crate::engine::local_queue::KeyStatus;
use crate::error::LockError;
use crate::holder::{Holder, HolderKind};
use crate::runtime::Caller;
use crate::safeguard::Safeguard;
use crate::store::contract::{Left, Mode};
use crate::timeout::Timeout;

/// The error of a call whose timeout has ended, which depends on the status of the key.
pub(super) fn failed(
    timeout: &Timeout,
    engine: &Engine,
    request: &AcquireRequest,
    status: KeyStatus,
) -> LockError {
    let (key, waited) = (request.key.as_ref().to_owned(), timeout.elapsed());
    let status = match (status, request.store.last_check(request.resource())) {
        // The store has checked the key since the last attempt.
        (KeyStatus::HeldElsewhere(_, asked), Some((left, at))) if at > asked => {
            KeyStatus::HeldElsewhere(left, at)
        }
        (status, _) => status,
    };
    let status = match status {
        KeyStatus::HeldElsewhere(..) => {
            // A reader does not wait for other readers.
            let or_alone = request.mode != Mode::Read;
            let here = engine.queues().held_here(&request.key, or_alone);
            // Other processes may also have permits, so only a permit of this task is named.
            let is_own = |here: &KeyStatus| *here == KeyStatus::HeldHere(Caller::here());
            let has_permits = matches!(request.mode, Mode::Permits(_));
            here.filter(|here| !has_permits || is_own(here)).unwrap_or(status)
        }
        status => status,
    };
    let holder = match status {
        KeyStatus::HeldHere(holder) if holder == Caller::here() => {
            Holder::new(HolderKind::ThisTask)
        }
        KeyStatus::HeldHere(_) => Holder::new(HolderKind::ThisProcess),
        KeyStatus::HeldElsewhere(Left::Time(left), at) => {
            let left = left.saturating_sub(BootInstant::now().since(at));
            Holder::with_left(HolderKind::Elsewhere, left)
        }
        KeyStatus::HeldElsewhere(Left::Unknown, _) | KeyStatus::Yielded => {
            Holder::new(HolderKind::Elsewhere)
        }
        KeyStatus::HeldElsewhere(Left::Forever, _) => Holder::new(HolderKind::NoExpiry),
        KeyStatus::Acquiring(since) | KeyStatus::Releasing(since) => {
            let asking = BootInstant::now().since(since);
            if asking < engine.config().response_timeout / 4 {
                Holder::new(HolderKind::ThisProcess)
            } else {
                let cause = "the store has not answered yet";
                return LockError::unavailable(Some(key), waited, cause);
            }
        }
        KeyStatus::Unreachable(_) if !Safeguard::UnavailableIsNotBusy.is_on() => {
            Holder::new(HolderKind::Elsewhere)
        }
        KeyStatus::Unreachable(cause) => {
            return LockError::unavailable(Some(key), waited, cause);
        }
    };
    LockError::busy(key, waited, holder)
}

/// The store has answered an attempt.
pub(super) fn answered(engine: &Engine, request: &AcquireRequest) {
    engine.outages().answered(|| request.store.place(&request.key));
}

/// Whether an attempt has failed in an outage that is longer than calls tolerate.
pub(super) fn is_long_outage(
    engine: &Engine,
    request: &AcquireRequest,
    known: Option<&KeyStatus>,
) -> bool {
    let Some(KeyStatus::Unreachable(cause)) = known else { return false };
    let place = request.store.place(&request.key);
    engine.outages().failed(place, cause, BootInstant::now())
}

/// The error of a call that makes no attempt, because of a long outage.
pub(super) fn refused_in_outage(
    timeout: &Timeout,
    engine: &Engine,
    request: &AcquireRequest,
) -> Option<LockError> {
    let cause = engine.outages().refuses(|| request.store.place(&request.key))?;
    let (key, waited) = (Some(request.key.as_ref().to_owned()), timeout.elapsed());
    Some(LockError::unavailable(key, waited, cause))
}

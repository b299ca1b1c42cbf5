//! The properties that must hold in every state, and the states that must be reachable for the
//! check to be meaningful.

use stateright::Property;

use crate::acquisition::{AcquisitionPhase, ModelAcquisition, Reply};
use crate::protocol::{Protocol, ProtocolState};

/// No two bodies may be polled at the same time.
pub(crate) const EXCLUSION: &str = "exclusion";
/// When no request is in flight, the key is free, unless its owner has crashed.
pub(crate) const NO_LEAK: &str = "nothing leaks";
/// No write is accepted after a write of a later grant.
pub(crate) const NO_STALE_WRITE: &str = "no stale write";

/// The properties of a model: those of the lock, or those of the writes to the resource.
pub(crate) fn of(model: &Protocol) -> Vec<Property<Protocol>> {
    let mut properties = vec![
        Property::sometimes(
            "a second acquisition has the lock after the lease of the first one has ended",
            |_, state: &ProtocolState| {
                any(state, |a| a.valid() == Some(0)) && any(state, |a| a.valid() > Some(0))
            },
        ),
        Property::sometimes("a renewal succeeds", |_, state: &ProtocolState| {
            any(state, |a| matches!(a.background.reply, Some(Reply::Extended { .. })))
        }),
        Property::sometimes("a renewal finds the key gone or taken", |_, state: &ProtocolState| {
            any(state, |a| a.valid().is_some() && a.background.reply == Some(Reply::NotOwner))
        }),
        Property::sometimes("a loss is detected", |_, state: &ProtocolState| {
            any(state, |a| a.phase == AcquisitionPhase::Lost)
        }),
        Property::sometimes(
            "a request takes the key after its acquisition has given up",
            |_, state: &ProtocolState| {
                owner(state)
                    .is_some_and(|owner| owner.phase == AcquisitionPhase::Over && owner.uncertain)
            },
        ),
    ];
    if model.writes {
        properties.push(Property::always(NO_STALE_WRITE, |_, state: &ProtocolState| {
            !state.resource.stale
        }));
    } else {
        properties.push(Property::always(EXCLUSION, |model: &Protocol, state: &ProtocolState| {
            state.acquisitions.iter().filter(|acquisition| model.may_poll(acquisition)).count() <= 1
        }));
        properties.push(Property::always(NO_LEAK, |_, state: &ProtocolState| {
            let quiet = state.acquisitions.iter().all(ModelAcquisition::is_done);
            !quiet || state.server.key.is_none()
        }));
    }
    if model.faults {
        properties.push(Property::sometimes(
            "the key of a crashed holder excludes another acquisition",
            |_, state: &ProtocolState| {
                owner(state).is_some_and(|owner| owner.phase == AcquisitionPhase::Crashed)
                    && any(state, |a| a.caller.reply == Some(Reply::Busy))
            },
        ));
        properties.push(Property::sometimes(
            "a late request is in flight while another acquisition holds the lock",
            |_, state: &ProtocolState| {
                any(state, |a| a.stray.is_some()) && any(state, |a| a.valid() > Some(0))
            },
        ));
    }
    if model.writes && model.safeguards.fence && !model.assumed.polls_end_in_time {
        let refused = |_: &Protocol, state: &ProtocolState| state.resource.refused;
        properties.push(Property::sometimes("the resource refuses a write", refused));
    }
    properties
}

fn any(state: &ProtocolState, condition: impl Fn(&ModelAcquisition) -> bool) -> bool {
    state.acquisitions.iter().any(condition)
}

/// The acquisition whose token is in the key.
fn owner(state: &ProtocolState) -> Option<&ModelAcquisition> {
    state.acquisitions.get(usize::from(state.server.key?.owner))
}

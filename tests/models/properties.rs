//! What is to hold in every state, and what has to happen in some for that to mean anything.

use stateright::Property;

use crate::contender::{Answer, Contender, Phase};
use crate::protocol::{Protocol, State};

/// No two bodies may be polled at one instant.
pub(crate) const EXCLUSION: &str = "exclusion";
/// When all is quiet, the key is free, unless its owner crashed.
pub(crate) const NO_LEAK: &str = "nothing leaks";
/// No write is accepted after one of a later grant.
pub(crate) const NO_STALE_WRITE: &str = "no stale write";

/// Those that the model is about: of the lock alone, or of what is written under it.
pub(crate) fn of(model: &Protocol) -> Vec<Property<Protocol>> {
    let mut properties = vec![
        Property::sometimes("the next has it when a lease ran out", |_, state: &State| {
            any(state, |c| c.valid() == Some(0)) && any(state, |c| c.valid() > Some(0))
        }),
        Property::sometimes("a renewal succeeds", |_, state: &State| {
            any(state, |c| matches!(c.keeper.answer, Some(Answer::Extended { .. })))
        }),
        Property::sometimes("a renewal finds the key gone or taken", |_, state: &State| {
            any(state, |c| c.valid().is_some() && c.keeper.answer == Some(Answer::NotOurs))
        }),
        Property::sometimes("a holder is told that its lock is lost", |_, state: &State| {
            any(state, |c| c.phase == Phase::Lost)
        }),
        Property::sometimes("a request of one that gave up takes the key", |_, state: &State| {
            owner(state).is_some_and(|owner| owner.phase == Phase::Over && owner.doubt)
        }),
    ];
    if model.writes {
        properties.push(Property::always(NO_STALE_WRITE, |_, state: &State| !state.resource.stale));
    } else {
        properties.push(Property::always(EXCLUSION, |model: &Protocol, state: &State| {
            state.contenders.iter().filter(|contender| model.may_poll(contender)).count() <= 1
        }));
        properties.push(Property::always(NO_LEAK, |_, state: &State| {
            let quiet = state.contenders.iter().all(Contender::is_done);
            !quiet || state.server.key.is_none()
        }));
    }
    if model.breaks {
        properties.push(Property::sometimes(
            "the key of a crashed holder keeps another out",
            |_, state: &State| {
                owner(state).is_some_and(|owner| owner.phase == Phase::Crashed)
                    && any(state, |c| c.caller.answer == Some(Answer::Busy))
            },
        ));
        properties.push(Property::sometimes(
            "a late request is under way while another holds",
            |_, state: &State| {
                any(state, |c| c.stray.is_some()) && any(state, |c| c.valid() > Some(0))
            },
        ));
    }
    if model.writes && model.held.fence && !model.assumed.polls_end_in_time {
        let refused = |_: &Protocol, state: &State| state.resource.refused;
        properties.push(Property::sometimes("the resource refuses a write", refused));
    }
    properties
}

fn any(state: &State, is_so: impl Fn(&Contender) -> bool) -> bool {
    state.contenders.iter().any(is_so)
}

/// Who owns the key, going by the tokens.
fn owner(state: &State) -> Option<&Contender> {
    state.contenders.get(usize::from(state.server.key?.owner))
}

//! What the handles of a custom store share.

use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::time::sleep;

use super::caller_runtime::CallerRuntime;
use super::contract::{LeaseOutcome, ReleaseRequest, Store};
use super::in_flight::AcquiresInFlight;
use super::thread::{StoreThread, within};
use crate::client_info::ClientInfo;
use crate::store::lane::Lane;
use crate::store::owner::{ClientTag, OwnerId};
use crate::store::store_error::StoreError;
use crate::store::subscriptions::Subscriptions;

/// How often a release after the end of a late acquire is repeated at most while the store does not answer.
const REPEATED: usize = 10;

/// What the handles of a store share.
pub(super) struct CustomStore<S> {
    pub(super) store: Arc<S>,
    /// What the client tells about itself, and its id.
    pub(super) own: ClientInfo,
    pub(super) thread: StoreThread,
    pub(super) callers: CallerRuntime,
    /// Distinguishes the owners of this client from those of others.
    pub(super) tag: ClientTag,
    pub(super) response_timeout: Duration,
    pub(super) subscriptions: Arc<Subscriptions>,
    pub(super) in_flight: Arc<AcquiresInFlight>,
}

impl<S: Store> CustomStore<S> {
    pub(super) fn owner_name(&self, owner: OwnerId) -> String {
        self.tag.owner_name(owner)
    }

    /// What is known about the client with this tag. An unavailable store is not an error: the id is known.
    pub(super) async fn client(&self, tag: ClientTag) -> ClientInfo {
        if tag == self.tag {
            return self.own.clone();
        }
        let id = tag.to_text();
        let known = self.store.clients(std::slice::from_ref(&id));
        let known = within(self.response_timeout / 2, known).await.unwrap_or_default();
        let known = known.into_iter().find(|client| client.id.as_ref() == Some(&id));
        known.unwrap_or_else(|| ClientInfo::default().with_id(id))
    }

    /// Frees a key for which an acquire has ended that a release has not waited for.
    pub(super) fn release_again(
        self: Arc<Self>,
        acquired: &Result<LeaseOutcome, StoreError>,
        (key, owner, keep): (String, String, Duration),
    ) {
        let is_answered = match acquired {
            Ok(LeaseOutcome::Granted { .. }) => true,
            // It may still take effect.
            Err(StoreError::Unknown(_)) => false,
            Ok(LeaseOutcome::Busy { .. }) | Err(_) => return,
        };
        let (runtime, pause) = (self.thread.runtime().clone(), self.response_timeout);
        runtime.spawn(async move {
            for attempt in 0..REPEATED {
                if attempt > 0 || !is_answered {
                    sleep(pause).await;
                }
                let request = ReleaseRequest { key: &key, owner: &owner, keep };
                if within(pause, self.store.release(request)).await.is_ok() {
                    return;
                }
            }
        });
    }

    /// The runtime for the requests of a lane.
    pub(super) fn runtime(&self, lane: Lane) -> Handle {
        let of_caller = lane == Lane::Caller && self.store.runs_on_callers();
        let of_caller = if of_caller { self.callers.here() } else { None };
        of_caller.unwrap_or_else(|| self.thread.runtime().clone())
    }
}

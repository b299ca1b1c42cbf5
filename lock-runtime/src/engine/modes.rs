//! Changing the mode of a hold: a writer becomes a reader, or the only reader a writer.
//!
//! The store may have changed the mode although its answer is lost. The hold then counts as that of a
//! reader, and at worst excludes more than a reader does. A request that makes a reader of the holder may
//! also arrive late, after a later change. So a hold with such a request does not become that of a writer
//! again.

use std::sync::Arc;

use super::core::Engine;
use super::fencing::in_time;
use super::handoff::{Hold, Permit};
use super::lease::MayChange;
use super::lease::modes::ChangingHold;
use crate::error::{LockError, LostReason};
use crate::runtime;
use crate::store::contract::{Mode, ModeChange, ModeChanged};

impl Engine {
    /// Makes a reader of a writer, without a moment at which another writer could come in. Costs one
    /// round trip.
    ///
    /// Cancel safe: the hold is that of a reader as soon as this future is polled.
    pub(crate) async fn downgrade(self: &Arc<Self>, hold: &Hold) -> Result<(), LockError> {
        runtime::checked()?;
        self.admit(hold.key())?;
        let changing = match hold.about_to_change(Mode::Read) {
            Ok(changing) => changing,
            Err(refused) => return refusal_of(hold, refused).map(|_| ()),
        };
        // The other writers of this process wait in the store from now on.
        let before = match self.queues().enter_alone(hold.key()) {
            Some(alone) => {
                alone.granted();
                hold.replace_permit(alone)
            }
            None => None,
        };
        let changed = self.change_mode(hold, changing, Mode::Read).await;
        drop(before);
        changed?;
        self.share_with_readers(hold);
        Ok(())
    }

    /// Makes a writer of a reader, if it is the only one and no claim waits. Returns whether it did. Costs
    /// one round trip.
    ///
    /// Cancel safe: the hold is that of a reader until this future is complete. If it is dropped, other
    /// readers may have to wait until the hold ends.
    pub(crate) async fn try_upgrade(self: &Arc<Self>, hold: &Hold) -> Result<bool, LockError> {
        runtime::checked()?;
        self.admit(hold.key())?;
        let changing = match hold.about_to_change(Mode::Write) {
            Ok(changing) => changing,
            Err(refused) => return refusal_of(hold, refused),
        };
        self.share_no_longer(hold);
        let is_writer = self.change_mode(hold, changing, Mode::Write).await?;
        if !is_writer {
            self.share_with_readers(hold);
        }
        Ok(is_writer)
    }

    /// Sends the request. Returns whether the store has changed the mode.
    async fn change_mode(
        &self,
        hold: &Hold,
        mut changing: ChangingHold<'_, Permit>,
        to: Mode,
    ) -> Result<bool, LockError> {
        let (lease, timeout) = (hold.lease(), self.holder_timeout());
        let acknowledged_by = lease.acknowledged_by();
        let change =
            ModeChange { key: lease.key(), owner: lease.locked().owner, to, acknowledged_by };
        let request = || lease.store().change_mode(change);
        let outcome = |changed| match changed {
            ModeChanged::Done => Ok(true),
            ModeChanged::Busy => Ok(false),
            ModeChanged::Gone => Err(LostReason::Gone),
            ModeChanged::Taken => Err(LostReason::Taken),
        };
        let mut refusal = None;
        let changed = async {
            tokio::select! {
                changed =
                    self.repeat_while_held(hold, &timeout, &mut refusal, (request, outcome)) => changed,
                reason = hold.lost() => Err(lease.lost_to(reason)),
            }
        };
        let changed = timeout.limit(changed).await;
        changing.is_certain = refusal.is_none() && matches!(changed, Some(Ok(_)));
        let missing = "the store has not answered yet";
        let changed = in_time(changed, (hold, &timeout), refusal, missing)?;
        changing.is_done = changed;
        drop(changing);
        hold.loss().map_or(Ok(changed), Err)
    }
}

/// The result of a change that sends no request: whether the hold has the mode.
fn refusal_of(hold: &Hold, refused: MayChange) -> Result<bool, LockError> {
    let config = |problem: &str| Err(LockError::config("mode", problem));
    match refused {
        MayChange::Yes | MayChange::IsSo | MayChange::Over => hold.loss().map_or(Ok(true), Err),
        MayChange::Uncertain => hold.loss().map_or(Ok(false), Err),
        MayChange::Shared if hold.lease().mode() == Mode::Read => {
            hold.loss().map_or(Ok(false), Err)
        }
        MayChange::Shared => config("the writer has nested guards; release them first"),
        MayChange::InProgress => config("another change of the mode is in progress; wait for it"),
    }
}

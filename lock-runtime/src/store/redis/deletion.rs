//! The end of a hold of any client, which an operator wants.
//!
//! It is a release with the name of the owner, so the next claim in the queue gets the lock, and waiting clients are
//! woken.

use redis::Cmd;

use super::client_id::client_of;
use super::decode::{self, ReleaseReply};
use super::dialects;
use super::handle::RedisStore;
use super::shared::Shared;
use crate::lock_state::{Deletion, StoredHolder, StoredLayout};
use crate::store::contract::{Lane, Layout, StoreError};
use crate::wire_format::WireFormat;

impl StoredLayout {
    /// The layout whose scripts free such a lock.
    pub(super) fn of_scripts(self) -> Layout {
        match self {
            Self::Token | Self::OtherToken => Layout::TOKEN,
            Self::Redisson => Layout::Wire(WireFormat::Redisson),
            Self::Timestamp => Layout::Wire(WireFormat::Timestamp),
            Self::ReadWrite => Layout::ReadWrite,
            Self::Semaphore => Layout::Semaphore,
        }
    }
}

impl RedisStore {
    /// Ends the hold of this holder, if it still has the lock.
    pub(super) async fn delete(
        &self,
        key: &str,
        holder: &StoredHolder,
    ) -> Result<Deletion, StoreError> {
        let token = &*holder.token;
        let is_foreign_time = matches!(self.dialect.layout, Layout::Wire(WireFormat::Timestamp))
            && client_of(token.as_bytes()).is_none();
        if is_foreign_time {
            let args = |call: &mut Cmd| {
                call.arg(1).arg(key).arg(token);
            };
            return self.send_deletion(key, &dialects::DELETE, args).await;
        }
        let script = self.dialect.release(self.shared.servers.publish());
        let args = |call: &mut Cmd| {
            self.add_keys(call, std::iter::once(key));
            self.add_before_releases(call, key);
            call.arg(token);
            if self.dialect.queues {
                let permits = holder.permits;
                let permits = permits.map(|it| format!("p{}/{}/", it.count(), it.limit()));
                call.arg(permits.unwrap_or_default()).arg(0).arg(self.undeclared_queue(key));
            } else {
                call.arg(self.key_channel(key)).arg(0);
            }
            self.add_after_releases(call);
        };
        self.send_deletion(key, script, args).await
    }

    async fn send_deletion(
        &self,
        key: &str,
        script: &super::script::Script,
        args: impl Fn(&mut Cmd),
    ) -> Result<Deletion, StoreError> {
        let options = self.shared.inspection_options();
        let route = self.shared.route(Lane::Caller)?;
        let reply = route.run((key, script), args, &options, decode::released).await?;
        Ok(match reply.value {
            ReleaseReply::Freed { .. }
            | ReleaseReply::Kept { .. }
            | ReleaseReply::Unpublished(_) => Deletion::Deleted,
            ReleaseReply::Gone => Deletion::Gone,
            ReleaseReply::Taken => Deletion::Changed,
        })
    }
}

impl Shared {
    /// The holder of a lock with this token, and the layout of the lock. The deletion is the result if there is none.
    pub(super) async fn holder_with(
        &self,
        key: &str,
        token: &str,
    ) -> Result<Result<(StoredLayout, StoredHolder), Deletion>, StoreError> {
        let Some(state) = self.inspect(key).await? else { return Ok(Err(Deletion::Gone)) };
        let found = state.holders.into_iter().find(|holder| holder.token == token);
        Ok(found.map(|holder| (state.layout, holder)).ok_or(Deletion::Changed))
    }
}

//! The end of a hold of any client, which an operator wants.
//!
//! It is a release with the name of the owner, so the next claim in the queue gets the lock, and waiting clients are
//! woken.

use redis::Cmd;

use crate::client_id::client_of;
use crate::locks::store::RedisStore;
use crate::scripts::decode::{self, ReleaseReply};
use crate::scripts::dialects;
use crate::shared::Shared;
use lock_core::lock_state::{Deletion, LONGEST_TOKEN};
use lock_core::store::contract::{Lane, Layout, Mode, StoreError};
use lock_core::wire_format::WireFormat;

/// The hold that is to be deleted.
pub(crate) enum HoldWithToken {
    /// The layout of the lock, and the mode of the hold.
    Found(Layout, Mode),
    /// The key has other holders.
    OfOthers,
    /// The key does not exist, or is no lock.
    Gone,
}

fn refused_token(problem: &str) -> StoreError {
    StoreError::Config { option: "token", problem: problem.to_owned() }
}

impl RedisStore {
    /// Ends the hold with this token, if its owner still has the lock.
    pub(crate) async fn delete(
        &self,
        key: &str,
        token: &str,
        mode: Mode,
    ) -> Result<Deletion, StoreError> {
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
                call.arg(mode.to_string()).arg(0).arg(self.undeclared_queue(key));
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
        script: &crate::scripts::script::Script,
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
    /// The hold with this token. Costs one request.
    pub(crate) async fn hold_with(
        &self,
        key: &str,
        token: &str,
    ) -> Result<HoldWithToken, StoreError> {
        if token.len() > LONGEST_TOKEN || token.contains(char::REPLACEMENT_CHARACTER) {
            return Err(refused_token(
                "it has more than 256 bytes or is no UTF-8, so only a part of it is known; delete the key with \
                 the tools of the server",
            ));
        }
        let Some(lock) = self.read_lock(key).await? else { return Ok(HoldWithToken::Gone) };
        let found = lock.holders.into_iter().find(|holder| holder.token.as_str() == token);
        match found {
            Some(holder) => {
                let mode = match (holder.mode, holder.permits) {
                    (Some(mode), _) => Mode::from(mode),
                    (None, Some(permits)) => Mode::Permits(permits),
                    (None, None) => Mode::Exclusive,
                };
                Ok(HoldWithToken::Found(Layout::of_stored(lock.layout), mode))
            }
            None if lock.is_complete => Ok(HoldWithToken::OfOthers),
            None => Err(refused_token(
                "it is not among the first 1,000 holders of the key, and the others are not read",
            )),
        }
    }
}

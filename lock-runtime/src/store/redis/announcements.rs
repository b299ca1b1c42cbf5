//! The requests about announcements.

use redis::{Cmd, Value};

use super::decode;
use super::dialect::milliseconds;
use super::handle::RedisStore;
use super::hash_slot;
use crate::key;
use crate::store::announcements::{Announced, Announcement};
use crate::store::contract::{Lane, Left, StoreError};

impl RedisStore {
    pub(super) async fn announce_holder(
        &self,
        announcement: Announcement<'_>,
    ) -> Result<Announced, StoreError> {
        let Announcement { key, owner, text, keep } = announcement;
        let Some([script, _]) = &self.dialect.announcements else {
            return Err(StoreError::Refused("no announcements in this format".to_owned()));
        };
        let args = |call: &mut Cmd| {
            call.arg(2).arg(key).arg(name(key)).arg(self.dialect.owner(owner, &self.shared.id));
            call.arg(text).arg(milliseconds(keep));
        };
        let (route, options) = (self.shared.route(Lane::Caller)?, self.holder_options());
        Ok(route.run((key, script), &args, &options, decode::announce).await?.value)
    }

    pub(super) async fn announced_holder(
        &self,
        key: &str,
    ) -> Result<Option<(String, Left)>, StoreError> {
        let Some([_, script]) = &self.dialect.announcements else { return Ok(None) };
        let args = |call: &mut Cmd| {
            call.arg(2).arg(key).arg(name(key));
        };
        let (route, options) = (self.shared.route(Lane::Caller)?, self.holder_options());
        let decode = |reply: &Value| decode::announced(reply);
        Ok(route.run((key, script), &args, &options, decode).await?.value)
    }
}

/// The key of the announcement about a lock, in the slot of the lock.
fn name(key: &str) -> String {
    format!("{}{{{}}}:{key}", key::ANNOUNCEMENTS, hash_slot::tag(key))
}

//! The requests about announcements.

use redis::Cmd;

use super::store::RedisStore;
use crate::hash_slot;
use crate::scripts::dialect::milliseconds;
use crate::scripts::record_replies;
use lock_core::key;
use lock_core::store::announcements::{Announced, Announcement};
use lock_core::store::contract::{Extension, Lane, Left, LockStore, StoreError};
use lock_core::telemetry::requests::StoreOperation;

impl RedisStore {
    pub(crate) async fn announce_holder(
        &self,
        announcement: Announcement<'_>,
    ) -> Result<Announced, StoreError> {
        let Announcement { key, owner, text, keep } = announcement;
        let Some([script, _]) = &self.dialect.announcements else {
            return Err(Extension::Announcements.lacking(&self.shown()));
        };
        let args = |call: &mut Cmd| {
            call.arg(2).arg(key).arg(name(key)).arg(self.dialect.owner(owner, &self.shared.id));
            call.arg(text).arg(milliseconds(keep));
        };
        let (route, options) =
            (self.shared.route(Lane::Caller)?, self.holder_options(StoreOperation::Others));
        let answer = route.run((key, script), &args, &options, record_replies::announce).await?;
        answer.value.unless(|found| wrong_format(key, found))
    }

    pub(crate) async fn announced_holder(
        &self,
        key: &str,
    ) -> Result<Option<(String, Left)>, StoreError> {
        let Some([_, script]) = &self.dialect.announcements else {
            return Err(Extension::Announcements.lacking(&self.shown()));
        };
        let args = |call: &mut Cmd| {
            call.arg(2).arg(key).arg(name(key));
        };
        let (route, options) =
            (self.shared.route(Lane::Caller)?, self.holder_options(StoreOperation::Others));
        let answer = route.run((key, script), &args, &options, record_replies::announced).await?;
        answer.value.unless(|found| wrong_format(key, found))
    }
}

/// The error of a key that holds a value of this kind instead of an announcement.
fn wrong_format(key: &str, found: String) -> StoreError {
    StoreError::WrongFormat { key: name(key), expected: "record of a leader", found }
}

/// The key of the announcement about a lock, in the slot of the lock.
fn name(key: &str) -> String {
    hash_slot::name_beside(key, key::ANNOUNCEMENTS)
}

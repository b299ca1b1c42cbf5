//! The requests for fencing tokens.

use redis::Cmd;

use super::handle::RedisStore;
use super::{decode, hash_slot};
use crate::key;
use crate::store::contract::{Fenced, Lane, StoreError};
use crate::store::owner::OwnerId;
use crate::telemetry::StoreOperation;

impl RedisStore {
    pub(super) async fn fencing_token(
        &self,
        key: &str,
        owner: OwnerId,
        at_least: u64,
    ) -> Result<Fenced, StoreError> {
        let dialect = self.dialect;
        let Some(script) = &dialect.fence else {
            return Err(StoreError::Refused("locks without fencing tokens".to_owned()));
        };
        let last = format!("{}{{{}}}", key::FENCES, hash_slot::tag(key));
        let args = |call: &mut Cmd| {
            call.arg(dialect.keys() + 1);
            dialect.add_keys(call, key);
            call.arg(&last).arg(dialect.owner(owner, &self.shared.id)).arg(at_least);
        };
        let (route, options) =
            (self.shared.route(Lane::Caller)?, self.holder_options(StoreOperation::Fence));
        match route.run((key, script), &args, &options, decode::fenced).await?.value {
            decode::FenceReply::With(fence) => Ok(Fenced::With(fence)),
            decode::FenceReply::Gone => Ok(Fenced::Gone),
            decode::FenceReply::Taken => Ok(Fenced::Taken),
            decode::FenceReply::Reader => Err(StoreError::Config {
                option: "mode",
                problem: "the holder is a reader by now".to_owned(),
            }),
            decode::FenceReply::WrongFormat(found) => {
                Err(StoreError::WrongFormat { key: last, expected: "fencing token", found })
            }
        }
    }
}

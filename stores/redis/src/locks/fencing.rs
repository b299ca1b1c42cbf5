//! The requests for fencing tokens.

use std::time::Duration;

use redis::Cmd;

use super::store::RedisStore;
use crate::hash_slot;
use crate::scripts::decode;
use lock_core::key;
use lock_core::store::contract::{Extension, Fenced, Lane, Layout, LockStore, StoreError};
use lock_core::store::owner::OwnerId;
use lock_core::telemetry::requests::StoreOperation;

impl RedisStore {
    pub(crate) async fn fencing_token(
        &self,
        key: &str,
        owner: OwnerId,
        at_least: u64,
    ) -> Result<Fenced, StoreError> {
        let dialect = self.dialect;
        let Some(script) = &dialect.fence else {
            return Err(Extension::Tokens.lacking(&self.shown()));
        };
        let last = format!("{}{{{}}}", key::FENCES, hash_slot::tag(key));
        let limit = self.limit_of_tokens();
        let args = |call: &mut Cmd| {
            call.arg(dialect.keys() + 1);
            dialect.add_keys(call, key);
            call.arg(&last).arg(dialect.owner(owner, &self.shared.id)).arg(at_least);
            if let Some(limit) = limit {
                call.arg(micros(limit));
            }
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
            decode::FenceReply::Ahead(by) => Ok(ahead_of_clock(by)),
            decode::FenceReply::WrongFormat(found) => {
                Err(StoreError::WrongFormat { key: last, expected: "fencing token", found })
            }
        }
    }

    /// How far a token of a quorum may be ahead of the clock of this server. If the server loses its data, its clock
    /// has passed the token when it votes again.
    fn limit_of_tokens(&self) -> Option<Duration> {
        if self.dialect.layout != Layout::Vote {
            return None;
        }
        let quarantine = self.shared.servers.quarantine()?.own();
        Some(quarantine.mul_f64(0.9))
    }
}

/// A token of a quorum would be so far ahead of the clock of a server.
fn ahead_of_clock(by: Duration) -> Fenced {
    let cause = format!(
        "the fencing token is {} ms ahead of the clock of this server, more than its quarantine allows, so tokens \
         could go back after a restart; synchronize the clocks of the servers (NTP), or use a `quarantine` longer than \
         they differ",
        by.as_millis()
    );
    Fenced::Refused(cause)
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

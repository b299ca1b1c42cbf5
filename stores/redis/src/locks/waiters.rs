//! The number of other processes that wait for a lock.

use redis::cmd;

use super::store::RedisStore;
use crate::connections::admission::RequestClass;
use crate::connections::connection::RequestOptions;
use crate::scripts::decode;
use crate::scripts::queue;
use crate::scripts::script::Publish;
use lock_core::store::contract::{Lane, StoreError};
use lock_core::telemetry::requests::StoreOperation;

impl RedisStore {
    /// Whether other processes wait for a lock. If not, the server reports when they begin to, if it
    /// tracks keys.
    pub(crate) async fn watch_queue(&self, key: &str) -> Result<bool, StoreError> {
        if !self.dialect.queues || !self.tracks() {
            return Ok(false);
        }
        let mut exists = cmd("EXISTS");
        exists.arg(queue::name(key));
        let (route, options) =
            (self.shared.route(Lane::Background)?, self.holder_options(StoreOperation::Others));
        let options = RequestOptions { class: RequestClass::Tracked, ..options };
        Ok(route.send(key, &exists, &options, decode::count).await? > 0)
    }

    /// The number of other processes that wait for a lock.
    pub(crate) async fn waiters(&self, key: &str, lane: Lane) -> Result<usize, StoreError> {
        if self.dialect.queues {
            let (route, options) =
                (self.shared.route(lane)?, self.holder_options(StoreOperation::Others));
            let mut count = cmd("ZCOUNT");
            count.arg(queue::name(key)).arg("-inf").arg(queue::AFTER_TICKETS);
            return route.send(key, &count, &options, decode::count).await;
        }
        let channel = self.dialect.channel(key);
        let mut count = cmd("PUBSUB");
        count.arg(match self.shared.servers.publish() {
            Publish::Everywhere => "NUMSUB",
            Publish::ToShard => "SHARDNUMSUB",
        });
        count.arg(&channel);
        let (route, options) =
            (self.shared.route(lane)?, self.holder_options(StoreOperation::Others));
        let all = route.send(key, &count, &options, decode::subscribers).await?;
        Ok(self.shared.others_of(&channel, all))
    }
}

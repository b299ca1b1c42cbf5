//! Whether locks can be acquired and renewed now.

use std::time::Duration;

use redis::Cmd;
use tokio::time::timeout;

use crate::connections::admission::RequestClass;
use crate::connections::connection::RequestOptions;
use crate::connections::route::Route;
use crate::scripts::decode;
use crate::scripts::dialects;
use crate::shared::Shared;
use crate::transport::error;
use lock_core::join::join_all;
use lock_core::key;
use lock_core::store::contract::{Lane, Layout, StoreError};
use lock_core::timeout::RequestTimeout;
use lock_core::wire_format::WireFormat;

impl Shared {
    /// Fails unless all servers that have keys answer, over the connections of callers and of renewals,
    /// and execute writes. The requests are sent at the same time. `layout` is that of the locks.
    pub(crate) async fn check_readiness(&self, layout: Layout) -> Result<(), StoreError> {
        let routes = [self.route(Lane::Caller)?, self.route(Lane::Background)?];
        // No lock has such a queue, because its key would follow.
        let keys = self.servers.keys_of_all(key::QUEUES);
        if keys.is_empty() {
            let address = self.address();
            return Err(StoreError::Refused(format!("no node of {address} has any slots")));
        }
        let mut checks = Vec::new();
        for route in &routes {
            for key in &keys {
                checks.push(self.check_in_time(route, key));
            }
        }
        let has_no_queues = layout != Layout::Wire(WireFormat::Token);
        for outcome in join_all(checks.into_iter()).await {
            match outcome {
                Err(StoreError::Denied(cause)) if has_no_queues && !error::is_login(&cause) => {}
                outcome => outcome?,
            }
        }
        Ok(())
    }

    async fn check_in_time(&self, route: &Route, key: &str) -> Result<(), StoreError> {
        let within = self.response_timeout;
        // After the timeout of a request, so that a silent connection is discarded.
        let limit = within / 4 * 5;
        timeout(limit, check_server(route, key, within)).await.unwrap_or_else(|_| {
            let (address, limit) = (self.address(), limit.as_millis());
            Err(StoreError::Unknown(format!("no answer from {address} within {limit} ms")))
        })
    }
}

/// Checks the server that has this key.
async fn check_server(route: &Route, key: &str, within: Duration) -> Result<(), StoreError> {
    let connection = route.server_of(key, within).await?.connection;
    let established = connection.established(within).await?;
    if let Some(quarantine) = &established.socket.quarantine
        && !quarantine.is_over(&connection, established.generation)
    {
        quarantine.check(&connection, established.generation, within).await?;
    }
    let options = RequestOptions::new(RequestClass::Unlimited, RequestTimeout::of(within));
    let args = |call: &mut Cmd| {
        call.arg(1).arg(key);
    };
    let script = (key, &dialects::WRITE_PROBE);
    route.run(script, args, &options, decode::wrote).await.map(|_| ())
}

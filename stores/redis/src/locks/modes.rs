//! The requests that change the mode of a hold.

use redis::Cmd;

use super::acknowledged::sent;
use super::store::RedisStore;
use crate::connections::replicas::KeyReplicas;
use crate::connections::route::Route;
use crate::scripts::decode;
use lock_core::safeguard::Safeguard;
use lock_core::store::contract::{Lane, ModeChange, ModeChanged, SendTrace, StoreError};
use lock_core::telemetry::requests::StoreOperation;

impl RedisStore {
    pub(crate) async fn change_hold(
        &self,
        change: ModeChange<'_>,
    ) -> Result<ModeChanged, StoreError> {
        let (route, trace) = (self.shared.route(Lane::Caller)?, SendTrace::default());
        if change.acknowledged_by.is_none() || !Safeguard::GrantsAreAcknowledged.is_on() {
            return self.send_change(&route, &change, &trace).await;
        }
        let within = self.shared.response_timeout;
        let required = KeyReplicas { key: change.key, replicas: change.acknowledged_by };
        let prepared = self.shared.acknowledgers.prepare(&route, required, within).await;
        let mut acknowledgement = prepared?;
        let mut changed = self.send_change(&route, &change, &trace).await?;
        if changed == ModeChanged::Done {
            if acknowledgement.check_carrier(trace.connection()).is_err() {
                let moved = self.prepare_moved(&route, required, trace.connection());
                acknowledgement = moved.await.map_err(sent)?;
                changed = self.send_change(&route, &change, &trace).await.map_err(sent)?;
            }
            acknowledgement.check_carrier(trace.connection()).map_err(sent)?;
            acknowledgement.given(within).await.map_err(sent)?;
        }
        Ok(changed)
    }

    async fn send_change(
        &self,
        route: &Route,
        change: &ModeChange<'_>,
        trace: &SendTrace,
    ) -> Result<ModeChanged, StoreError> {
        let ModeChange { key, owner, to, .. } = *change;
        let Some(script) = self.dialect.change(self.shared.servers.publish()) else {
            return Err(StoreError::Refused("locks without modes".to_owned()));
        };
        let args = |call: &mut Cmd| {
            self.add_keys(call, [key].into_iter());
            call.arg(self.dialect.owner(owner, &self.shared.id)).arg(to.to_string());
            call.arg(&*self.channels(key)).arg(self.undeclared_queue(key));
        };
        let mut options = self.holder_options(StoreOperation::Others);
        options.trace = Some(trace);
        Ok(route.run((key, script), &args, &options, decode::changed).await?.value)
    }
}

//! The requests about runs that happen at most once per period.

use redis::{Cmd, Value};
use tokio::time::Instant;

use super::store::RedisStore;
use crate::connections::connection::RequestOptions;
use crate::connections::replicas::KeyReplicas;
use crate::hash_slot;
use crate::scripts::decode::Unexpected;
use crate::scripts::dialect::{RunScripts, milliseconds};
use crate::scripts::record_replies::{self, Recorded};
use crate::scripts::script::Script;
use lock_core::key;
use lock_core::safeguard::Safeguard;
use lock_core::store::contract::{Extension, Lane, LockStore, SendTrace, StoreError};
use lock_core::store::periods::{RunEnd, RunEnded, RunRecord, RunStart, RunStarted};
use lock_core::telemetry::requests::StoreOperation;

impl RedisStore {
    pub(crate) async fn record_start(
        &self,
        RunStart { key, owner, run, every, counts, attempt, acknowledged_by }: RunStart<'_>,
    ) -> Result<RunStarted, StoreError> {
        let RunScripts { start, .. } = self.run_scripts()?;
        let args = |call: &mut Cmd| {
            call.arg(2).arg(key).arg(name(key)).arg(self.dialect.owner(owner, &self.shared.id));
            call.arg(milliseconds(every)).arg(u8::from(counts));
            call.arg(&run.by).arg(milliseconds(run.kept)).arg(attempt);
        };
        let required = KeyReplicas { key, replicas: acknowledged_by };
        self.record((required, start), &args, record_replies::run_started).await
    }

    pub(crate) async fn record_end(
        &self,
        RunEnd { key, owner, run, began, counts, failed, acknowledged_by }: RunEnd<'_>,
    ) -> Result<RunEnded, StoreError> {
        let RunScripts { end, .. } = self.run_scripts()?;
        let args = |call: &mut Cmd| {
            call.arg(2).arg(key).arg(name(key)).arg(self.dialect.owner(owner, &self.shared.id));
            call.arg(began.map_or_else(String::new, |began| began.to_string()));
            call.arg(u8::from(counts))
                .arg(&run.by)
                .arg(milliseconds(run.kept))
                .arg(u8::from(failed));
        };
        let required = KeyReplicas { key, replicas: acknowledged_by };
        self.record((required, end), &args, record_replies::run_ended).await
    }

    /// Runs a script that writes the record of a key. The record counts only if replicas have it.
    async fn record<T>(
        &self,
        (required, script): (KeyReplicas<'_>, &Script),
        args: &(dyn Fn(&mut Cmd) + Sync),
        decode: fn(&Value) -> Result<Recorded<T>, Unexpected>,
    ) -> Result<T, StoreError> {
        let (route, key) = (self.shared.route(Lane::Caller)?, required.key);
        let (sent, within) = (Instant::now(), self.shared.response_timeout);
        let is_acknowledged =
            !required.replicas.is_none() && Safeguard::GrantsAreAcknowledged.is_on();
        let mut acknowledgement = if is_acknowledged {
            Some(self.shared.acknowledgers.prepare(&route, required, within).await?)
        } else {
            None
        };
        let trace = SendTrace::default();
        let options =
            RequestOptions { trace: Some(&trace), ..self.holder_options(StoreOperation::Others) };
        let mut reply = route.run((key, script), args, &options, decode).await?.value;
        if let (Recorded::Yes(_), Some(expected)) = (&reply, &acknowledgement)
            && expected.check_carrier(trace.connection()).is_err()
        {
            // The slot is being moved. The request may be repeated.
            let moved = self.prepare_moved(&route, required, trace.connection()).await?;
            acknowledgement = Some(moved);
            reply = route.run((key, script), args, &options, decode).await?.value;
        }
        match reply {
            Recorded::WrongFormat(found) => Err(wrong_format(key, found)),
            Recorded::Not(answer) => Ok(answer),
            Recorded::Yes(answer) => {
                if let Some(acknowledgement) = acknowledgement {
                    acknowledgement.check_carrier(trace.connection())?;
                    acknowledgement.given(within.saturating_sub(sent.elapsed())).await?;
                }
                Ok(answer)
            }
        }
    }

    pub(crate) async fn recorded_run(&self, key: &str) -> Result<Option<RunRecord>, StoreError> {
        let RunScripts { last, .. } = self.run_scripts()?;
        let args = |call: &mut Cmd| {
            call.arg(2).arg(key).arg(name(key));
        };
        let (route, options) =
            (self.shared.route(Lane::Caller)?, self.holder_options(StoreOperation::Others));
        let answer = route.run((key, last), &args, &options, record_replies::last_run).await?;
        answer.value.unless(|found| wrong_format(key, found))
    }

    fn run_scripts(&self) -> Result<&RunScripts, StoreError> {
        self.dialect.runs.as_ref().ok_or_else(|| Extension::Runs.lacking(&self.shown()))
    }
}

/// The error of a record that holds a value of this kind.
fn wrong_format(key: &str, found: String) -> StoreError {
    StoreError::WrongFormat { key: name(key), expected: "record of a run", found }
}

/// The key of the record of the last run, in the slot of the lock.
fn name(key: &str) -> String {
    hash_slot::name_beside(key, key::RUNS)
}

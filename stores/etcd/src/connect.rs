//! Whether etcd can be used.

use std::sync::Arc;

use tokio::sync::mpsc;
use tracing::Level;

use super::cleanup;
use super::client::EtcdClient;
use super::errors::{CONNECTION_FAILED, EtcdFailure};
use super::members::Method;
use super::messages::{AlarmRequest, AlarmResponse, AlarmType, StatusRequest, StatusResponse};
use super::transactions::Owned;
use super::versions::{check_version, revokes_too_early};
use super::watcher::KeyWatcher;
use lock_core::events;
use lock_core::store::runner::WakeUps;
use lock_core::store::store_error::StoreError;

/// A key that is only read, to see whether etcd answers.
const PROBE: &str = "lock-runtime/probe";

impl EtcdClient {
    /// Checks etcd, and starts the tasks of the client.
    pub(super) async fn start(self: &Arc<Self>, wake_ups: WakeUps) -> Result<(), StoreError> {
        self.check_lease(self.lease);
        self.members.check_url().await?;
        let status = self.status().await.map_err(|error| self.with_hint(error))?;
        let version = status.map(|status| status.version);
        version.as_deref().map_or(Ok(()), check_version)?;
        // Also checks the user.
        self.probe().await?;
        let (commands, receiver) = mpsc::unbounded_channel();
        if self.watcher.set(commands).is_ok() {
            self.warn_of_version(version.filter(|version| revokes_too_early(version)));
            let watcher = KeyWatcher::new(&self.members, wake_ups, receiver);
            tokio::spawn(watcher.run());
            cleanup::start(self);
        }
        Ok(())
    }

    /// Fails unless etcd accepts writes.
    pub(super) async fn check_writes(&self) -> Result<(), StoreError> {
        if self.is_full().await? {
            return Err(StoreError::Refused(
                "etcd accepts no writes (NOSPACE): compact and defragment it, or raise \
                 `--quota-backend-bytes`, and run `etcdctl alarm disarm`"
                    .to_owned(),
            ));
        }
        self.probe().await
    }

    /// Fails unless a leader answers.
    async fn probe(&self) -> Result<(), StoreError> {
        let probe = Owned::new(PROBE, "");
        match self.members.look(&[&probe]).await {
            // The user has permissions for other keys.
            Err(failure) if failure.is_missing_permission() => Ok(()),
            looked => looked.map(drop).map_err(EtcdFailure::into_error),
        }
    }

    /// The status of a member. `None` if the user may not ask for it: from 3.5.28 on, and in versions 3.6, that may be
    /// reserved for the user `root`.
    async fn status(&self) -> Result<Option<StatusResponse>, StoreError> {
        match self.members.call(Method::STATUS, &StatusRequest {}).await {
            Err(failure) if failure.is_missing_permission() => Ok(None),
            status => status.map(Some).map_err(EtcdFailure::into_error),
        }
    }

    /// Whether the database is full, as far as the user may know.
    async fn is_full(&self) -> Result<bool, StoreError> {
        if let Some(status) = self.status().await? {
            return Ok(status.errors.iter().any(|problem| problem.contains("NOSPACE")));
        }
        match self.members.call(Method::ALARMS, &AlarmRequest {}).await {
            Ok(AlarmResponse { alarms }) => {
                Ok(alarms.iter().any(|raised| raised.alarm == AlarmType::NoSpace as i32))
            }
            Err(failure) if failure.is_missing_permission() => Ok(false),
            Err(failure) => Err(failure.into_error()),
        }
    }

    /// Says what to look at, if a connection has ended before its first answer.
    fn with_hint(&self, error: StoreError) -> StoreError {
        let hint = if self.members.uses_tls() {
            "etcd may require a client certificate: name its files with `tls_cert` and `tls_key`"
        } else {
            "name the client port (2379) of etcd 3.4 or newer, and write `etcds://` if it uses TLS"
        };
        match error {
            StoreError::Unknown(cause) | StoreError::Refused(cause)
                if cause.starts_with(CONNECTION_FAILED) =>
            {
                StoreError::Refused(format!("{cause}; {hint}"))
            }
            error => error,
        }
    }

    fn warn_of_version(&self, version: Option<String>) {
        let Some(version) = version else { return };
        let member = self.members.current().shown.clone();
        events::emit(Level::WARN, move || {
            tracing::warn!(
                target: "lock_runtime::store::etcd",
                version,
                member,
                "this version of etcd may free locks too early after its leader was suspended; use 3.4.31, 3.5.13 or newer"
            );
        });
    }
}

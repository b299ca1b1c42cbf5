//! What a command finds in its environment.

use std::process::Command;

use lock_runtime::admin::LockAdmin;
use lock_runtime::{LockClient, LockError, LockGuard};

use super::options::CheckedRun;
use crate::exit::Failure;
use crate::options::GlobalOptions;
use crate::wording;

/// What a command knows about its lock.
#[derive(Debug)]
pub(super) struct Environment {
    variables: [(&'static str, Option<String>); 6],
    /// Why something is missing.
    pub(super) problem: Option<String>,
}

impl Environment {
    /// Asks the store for the fencing token and the client of the lock. The command can run without them.
    pub(super) async fn of(
        global: &GlobalOptions,
        run: CheckedRun<'_>,
        client: &LockClient,
        guard: &LockGuard,
    ) -> Result<Self, Failure> {
        let CheckedRun { options, key, .. } = run;
        let (token, problem) = match guard.fencing_token().await {
            Ok(token) => (Some(token.to_string()), None),
            Err(error @ (LockError::Denied { .. } | LockError::Unavailable { .. })) => {
                let why = wording::of_error(&error);
                (None, Some(format!("LOCK_FENCING_TOKEN is not set: {why}")))
            }
            Err(LockError::Lost { reason, .. }) => return Err(super::lost_before_start(&reason)),
            Err(error) => return Err(error.into()),
        };
        // The lock is held whether or not the store tells who the client is.
        let holder = LockAdmin::new(client).holder(key).await.ok().flatten();
        let id = holder.and_then(|holder| holder.client?.id);
        let url = if options.pass_url { Some(global.store_url()?) } else { None };
        Ok(Self {
            problem,
            variables: [
                ("LOCK_KEY", Some(key.to_owned())),
                ("LOCK_NAMESPACE", Some(global.namespace.clone())),
                ("LOCK_CLIENT", id),
                ("LOCK_FENCING_TOKEN", token),
                ("LOCK_LEASE_MS", Some(options.lease.as_millis().to_string())),
                // It may contain a password.
                ("LOCK_URL", url),
            ],
        })
    }

    /// Sets the variables over those of an enclosing `lockctl run`, and removes those without a value.
    pub(super) fn set(&self, command: &mut Command) {
        for (name, value) in &self.variables {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
    }
}

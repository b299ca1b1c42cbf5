//! `lockctl doctor`: whether a server is fit for locks, and what to change.
//!
//! Each check makes a [`Finding`]. Those of the servers need connections of their own (`servers`, `server`, `rights`);
//! those of the library use its client (`locking`).

mod locking;
mod rights;
mod server;
mod servers;
mod servers_url;

use clap::Args;
use lock_runtime::LockError;
use serde::Serialize;

use crate::connection::close;
use crate::exit::{Code, Failure};
use crate::messages::Messages;
use crate::options::GlobalOptions;
use crate::output::records::unknown;
use crate::output::table::Table;
use crate::output::{Listing, OutputOptions};
use crate::wording;

/// Checks whether the servers are fit for locks, and says what to change.
///
/// With sentinels or a cluster, each sentinel and each server is checked.
///
/// The exit code is 1 if a check fails.
#[derive(Debug, Args)]
pub(crate) struct DoctorOptions {
    #[command(flatten)]
    output: OutputOptions,
}

/// The result of a check.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Verdict {
    /// Nothing has to change.
    Ok,
    /// Locks work, but not always as well as they could.
    Warn,
    /// Locks do not work, or are not safe.
    Fail,
}

/// What a check has found.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Finding {
    check: &'static str,
    /// The address, if there are several servers.
    server: Option<String>,
    result: Verdict,
    found: String,
    /// What to change; empty if that is nothing.
    change: String,
}

impl Finding {
    pub(crate) fn ok(check: &'static str, found: impl Into<String>) -> Self {
        Self { result: Verdict::Ok, ..Self::warn(check, found, "") }
    }

    pub(crate) fn warn(
        check: &'static str,
        found: impl Into<String>,
        change: impl Into<String>,
    ) -> Self {
        let (found, change) = (found.into(), change.into());
        Self { check, server: None, result: Verdict::Warn, found, change }
    }

    pub(crate) fn fail(
        check: &'static str,
        found: impl Into<String>,
        change: impl Into<String>,
    ) -> Self {
        Self { result: Verdict::Fail, ..Self::warn(check, found, change) }
    }

    /// The same, for the server at this address.
    pub(crate) fn of_server(self, address: &str) -> Self {
        Self { server: Some(address.to_owned()), ..self }
    }
}

/// What all checks have found.
#[derive(Debug, Serialize)]
struct Diagnosis {
    findings: Vec<Finding>,
}

impl Listing for Diagnosis {
    type Row = Finding;

    fn rows(&self) -> &[Finding] {
        &self.findings
    }

    fn table(&self) -> Table {
        let several = self.findings.iter().any(|finding| finding.server.is_some());
        let mut table = if several {
            Table::new(&["SERVER", "CHECK", "RESULT", "FOUND", "WHAT TO CHANGE"], &[4, 3])
        } else {
            Table::new(&["CHECK", "RESULT", "FOUND", "WHAT TO CHANGE"], &[3, 2])
        };
        for finding in &self.findings {
            let result = match finding.result {
                Verdict::Ok => "ok",
                Verdict::Warn => "warn",
                Verdict::Fail => "fail",
            };
            let Finding { check, found, change, .. } = finding;
            let server = several.then(|| finding.server.clone().unwrap_or_else(unknown));
            let cells = [(*check).to_owned(), result.to_owned(), found.clone(), change.clone()];
            table.row(server.into_iter().chain(cells));
        }
        table
    }
}

/// Makes all checks.
pub(crate) async fn run(
    global: &GlobalOptions,
    options: DoctorOptions,
    messages: Messages,
) -> Result<Option<Code>, Failure> {
    let mut has_failed = false;
    let read = async || {
        let findings = examine(global, messages).await?;
        has_failed = findings.iter().any(|finding| finding.result == Verdict::Fail);
        Ok(Diagnosis { findings })
    };
    options.output.print(messages, read).await?;
    Ok(has_failed.then_some(Code::Unhealthy))
}

async fn examine(global: &GlobalOptions, messages: Messages) -> Result<Vec<Finding>, Failure> {
    let (client, connection) = match global.client()?.connect().await {
        Ok(client) => (Some(client), Finding::ok("connect", "the library connects")),
        // The servers themselves may tell more.
        Err(error @ LockError::Unavailable { .. }) => {
            let change = "start the server, or make it reachable from here";
            (None, Finding::fail("connect", wording::of_error(&error), change))
        }
        Err(error @ LockError::Denied { .. }) => {
            let change = "check the password and the ACL line of the user";
            (None, Finding::fail("connect", wording::of_error(&error), change))
        }
        Err(error) => return Err(error.into()),
    };
    let mut findings = vec![connection];
    findings.extend(servers::examine(global, &global.store_url()?, messages).await);
    if let Some(client) = &client {
        findings.extend(locking::examine(client).await);
        close(client).await;
    }
    Ok(findings)
}

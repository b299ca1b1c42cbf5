//! `lockctl doctor`: whether a server is fit for locks, and what to change.
//!
//! Each check makes a [`Finding`]. Those of the server itself need a connection of their own (`server`, `rights`);
//! those of the library use its client (`locking`).

mod locking;
mod rights;
mod server;

use clap::Args;
use serde::Serialize;

use self::server::ServerConnection;
use crate::connection::close;
use crate::exit::{Code, Failure};
use crate::messages::Messages;
use crate::options::GlobalOptions;
use crate::output::table::Table;
use crate::output::{Listing, OutputOptions};

/// Checks whether the server is fit for locks, and says what to change.
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
    result: Verdict,
    found: String,
    /// What to change; empty if that is nothing.
    change: String,
}

impl Finding {
    pub(crate) fn ok(check: &'static str, found: impl Into<String>) -> Self {
        Self { check, result: Verdict::Ok, found: found.into(), change: String::new() }
    }

    pub(crate) fn warn(
        check: &'static str,
        found: impl Into<String>,
        change: impl Into<String>,
    ) -> Self {
        Self { check, result: Verdict::Warn, found: found.into(), change: change.into() }
    }

    pub(crate) fn fail(
        check: &'static str,
        found: impl Into<String>,
        change: impl Into<String>,
    ) -> Self {
        Self { result: Verdict::Fail, ..Self::warn(check, found, change) }
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
        let mut table = Table::new(&["CHECK", "RESULT", "FOUND", "WHAT TO CHANGE"], &[3, 2]);
        for finding in &self.findings {
            let result = match finding.result {
                Verdict::Ok => "ok",
                Verdict::Warn => "warn",
                Verdict::Fail => "fail",
            };
            let Finding { check, found, change, .. } = finding;
            table.row([(*check).to_owned(), result.to_owned(), found.clone(), change.clone()]);
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
        let findings = examine(global).await?;
        has_failed = findings.iter().any(|finding| finding.result == Verdict::Fail);
        Ok(Diagnosis { findings })
    };
    options.output.print(messages, read).await?;
    Ok(has_failed.then_some(Code::Unhealthy))
}

async fn examine(global: &GlobalOptions) -> Result<Vec<Finding>, Failure> {
    let client = global.client()?.connect().await?;
    let mut findings = vec![Finding::ok("connect", "the library connects")];
    match ServerConnection::open(&global.store_url()?) {
        Ok(Some(mut server)) => {
            findings.extend(server.examine());
            findings.extend(rights::examine(&mut server, &global.namespace));
        }
        Ok(None) => {
            let found = "not looked at: only possible with `redis://` and `redis+unix://`";
            findings.push(Finding::warn(
                "server",
                found,
                "run `doctor` with the URL of each server",
            ));
        }
        Err(error) => {
            findings.push(Finding::fail("server", error.to_string(), "check the URL"));
        }
    }
    findings.extend(locking::examine(&client).await);
    close(&client).await;
    Ok(findings)
}

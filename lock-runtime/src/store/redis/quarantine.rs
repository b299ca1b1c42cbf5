//! `quarantine`: a server that may have lost locks grants none until they have ended.
//!
//! A server that was restarted, or that was promoted in a failover, may lack locks that clients
//! still hold. All clients therefore share a key on each server, the *marker*: it has the run id of
//! the process that began the latest quarantine, and the time. The first acquisition over a
//! connection reads the marker. If it has another run id, or is missing, this client begins a
//! quarantine.
//!
//! A restart and a failover both lead to new connections. A restarted server has a new run id, and a
//! promoted replica has the marker of its former master.

use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::cmd;
use tokio::sync::OnceCell;
use tokio::time::timeout;
use tracing::Level;

use super::decode;
use super::dialect::milliseconds;
use super::error;
use super::script::{Script, script};
use super::server_info::field;
use crate::clock::BootInstant;
use crate::events;
use crate::safeguard::Safeguard;
use crate::store::contract::StoreError;

static QUARANTINE: Script = script!("quarantine.lua");

/// The quarantine of the server at the other end of a connection.
#[derive(Debug)]
pub(super) struct Quarantine {
    length: Duration,
    /// When it ends. Set by the first acquisition.
    end: OnceCell<BootInstant>,
}

impl Quarantine {
    pub(super) fn new(length: Duration) -> Self {
        Self { length, end: OnceCell::new() }
    }

    /// Whether it is known to be over.
    pub(super) fn is_over(&self) -> bool {
        self.end.get().is_some_and(|end| *end <= BootInstant::now())
            || !Safeguard::Quarantine.is_on()
    }

    /// Fails unless it is over. `marker` is the marker's key, and `address` that of the server. The
    /// first call for a connection costs two round trips.
    ///
    /// Cancel safe: if the future is dropped, another call reads the marker.
    pub(super) async fn check(
        &self,
        commands: &MultiplexedConnection,
        (marker, address): (&str, &str),
        within: Duration,
    ) -> Result<(), StoreError> {
        let read = async || {
            let left = self.read(commands.clone(), marker).await?;
            if !left.is_zero() {
                let address = address.to_owned();
                let ms = milliseconds(left);
                events::emit(Level::WARN, move || {
                    tracing::warn!(
                        address,
                        ms,
                        "the server may have lost locks and grants none until the quarantine ends"
                    );
                });
            }
            Ok(BootInstant::now().after(left))
        };
        let end = timeout(within, self.end.get_or_try_init(read)).await.unwrap_or_else(|_| {
            let within = within.as_millis();
            Err(StoreError::Refused(format!("no answer from {address} within {within} ms")))
        })?;
        let left = end.since(BootInstant::now());
        if left.is_zero() {
            return Ok(());
        }
        Err(StoreError::Refused(format!(
            "{address} may have lost locks, because it was restarted or promoted in a failover; it \
             grants none for another {} ms (`quarantine`)",
            milliseconds(left).max(1)
        )))
    }

    /// Reads the marker, and begins a quarantine if another process has written it. Returns the
    /// time that is left.
    async fn read(
        &self,
        mut commands: MultiplexedConnection,
        marker: &str,
    ) -> Result<Duration, StoreError> {
        let mut question = cmd("INFO");
        let info: String =
            question.arg("server").query_async(&mut commands).await.map_err(|e| explain(&e))?;
        let Some(run_id) = field(&info, "run_id") else {
            let problem = "the server does not tell its run id, so its restarts are not noticed";
            return Err(StoreError::Config { option: "quarantine", problem: problem.into() });
        };
        let mut call = QUARANTINE.by_text();
        call.arg(1).arg(marker).arg(run_id).arg(milliseconds(self.length));
        let reply = call.query_async(&mut commands).await.map_err(|error| explain(&error))?;
        decode::quarantined(&reply).map_err(|unexpected| {
            StoreError::Refused(format!("unexpected reply to `quarantine.lua`: {}", unexpected.0))
        })
    }
}

/// The request for a lock was not sent. Redirections concern the marker, and not the lock.
fn explain(error: &redis::RedisError) -> StoreError {
    match error::classify(error).error {
        StoreError::Denied(cause) => {
            let problem = "`quarantine` needs the permissions `+info` and `~lock_quarantine:*`";
            StoreError::Denied(format!("{problem}: {cause}"))
        }
        StoreError::Refused(cause) | StoreError::Unknown(cause) => StoreError::Refused(format!(
            "it is not known whether the server has lost locks (`quarantine`): {cause}"
        )),
        other => other,
    }
}

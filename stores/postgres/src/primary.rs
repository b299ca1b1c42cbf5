//! The server that the connections of a client lead to.
//!
//! A standby that is promoted begins a new timeline, whose number is higher. The former primary may still run, or go on after
//! it was suspended, and would grant the same locks once more. Each new connection therefore reads the timeline of its
//! server. A server that is behind a timeline that this client has seen is not used any more, and neither are the connections
//! that were opened to it before.
//!
//! Some services do not tell their timelines. Nothing is known about such a server, and it is used.

use tokio::sync::watch;

use lock_core::store::store_error::StoreError;
use lock_core::sync::{Mutex, lock};

/// The database cluster of a server, and its timeline, which is 0 for a standby.
pub(super) const TIMELINE: &str = "\
SELECT system_identifier, CASE WHEN pg_is_in_recovery() THEN 0 \
ELSE ('x' || substr(pg_walfile_name(pg_current_wal_insert_lsn()), 1, 8))::bit(32)::int4 END \
FROM pg_control_system()";

/// A primary server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Timeline {
    /// What the primary and its standbys have in common.
    system: String,
    number: u32,
}

impl Timeline {
    /// Reads a part of the answer to [`TIMELINE`]. `None` for a standby.
    pub(super) fn parse(system: &str, number: &str) -> Option<Self> {
        let number = number.parse().ok().filter(|number| *number > 0)?;
        Some(Self { system: system.to_owned(), number })
    }
}

/// How many servers had become the primary one when a connection was opened.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct ConnectionEpoch(u64);

/// The primary server, as the connections of a client know it.
#[derive(Debug, Default)]
pub(super) struct PrimaryServer {
    latest: Mutex<Option<Timeline>>,
    epoch: watch::Sender<ConnectionEpoch>,
}

impl PrimaryServer {
    /// The epoch of a new connection to a server with this timeline, if it is known. Fails if it is a former primary.
    pub(super) fn admit(
        &self,
        found: Option<Timeline>,
        address: &str,
    ) -> Result<ConnectionEpoch, StoreError> {
        let mut latest = lock(&self.latest);
        if let Some(found) = found {
            match &*latest {
                Some(seen) if seen.system == found.system && seen.number > found.number => {
                    return Err(StoreError::Refused(format!(
                        "{address} is a former primary server (timeline {}; another one has {}): stop it, because it may \
                         grant the same locks to other clients; or, if it is to replace the other one, restart the clients",
                        found.number, seen.number
                    )));
                }
                Some(seen) if *seen == found => {}
                Some(_) => {
                    self.epoch.send_modify(|epoch| epoch.0 += 1);
                    *latest = Some(found);
                }
                None => *latest = Some(found),
            }
        }
        Ok(*self.epoch.borrow())
    }

    /// Whether a connection of this epoch leads to the primary server.
    pub(super) fn is_current(&self, epoch: ConnectionEpoch) -> bool {
        *self.epoch.borrow() == epoch
    }

    /// Resolves when a connection of this epoch has to be replaced.
    pub(super) async fn leaves(&self, epoch: ConnectionEpoch) {
        // Cannot fail, because the sender is here.
        let _ = self.epoch.subscribe().wait_for(|current| *current != epoch).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn timeline(system: &str, number: u32) -> Option<Timeline> {
        Timeline::parse(system, &number.to_string())
    }

    #[test]
    fn a_former_primary_is_refused_and_so_are_the_connections_to_it() {
        let server = PrimaryServer::default();
        let old = server.admit(timeline("s", 1), "a").expect("the first");
        assert!(server.is_current(old));
        assert_eq!(server.admit(timeline("s", 1), "a"), Ok(old));
        assert_eq!(server.admit(None, "a"), Ok(old), "nothing is known of it");
        let new = server.admit(timeline("s", 2), "b").expect("promoted");
        assert!(server.is_current(new) && !server.is_current(old));
        match server.admit(timeline("s", 1), "a") {
            Err(StoreError::Refused(cause)) => {
                assert!(cause.starts_with("a is a former"), "{cause}");
            }
            other => panic!("{other:?}"),
        }
        // Another database has timelines of its own.
        assert!(server.admit(timeline("other", 1), "c").is_ok() && !server.is_current(new));
    }

    #[test]
    fn a_standby_has_no_timeline() {
        assert_eq!(timeline("s", 0), None);
        assert_eq!(Timeline::parse("s", ""), None);
    }
}

//! Locks that a majority of several servers has to grant (Redlock).

mod bad_input;
mod restarts;
mod servers;
mod waiters;

use std::time::Duration;

use lock_runtime::{LockClient, LockError};
use lock_tests::Quorum;

use crate::support::LEASE;

/// Longer than the quarantine of a server, which is the lease and two seconds by default.
const LONG: Duration = LEASE.saturating_mul(60);

/// One server has a tenth of it for an answer.
const QUORUM_LEASE: Duration = LEASE.saturating_mul(2);

async fn quorum_client(quorum: &Quorum) -> LockClient {
    let builder = LockClient::builder().url(quorum.url()).lease(QUORUM_LEASE).wait(LONG);
    builder.connect().await.expect("a majority is up")
}

/// The cause for which a lock could not be acquired.
fn unavailable<T: std::fmt::Debug>(outcome: Result<T, LockError>) -> String {
    match outcome {
        Err(LockError::Unavailable { cause, .. }) => cause,
        other => panic!("{other:?}"),
    }
}

//! What the tests share.

use lock_runtime::LockClient;
use lock_tests::support::LEASE;

/// The lease of most clients: long enough for the election of a leader.
pub(crate) const RENEWED: std::time::Duration = LEASE.saturating_mul(3);

/// A client with short leases.
pub(crate) async fn client(url: &str) -> LockClient {
    let builder = LockClient::builder().url(url).lease(RENEWED).wait(LEASE * 60);
    builder.connect().await.expect("a member is up")
}

//! The kinds of locks that a store does not have.

use std::fmt::Debug;
use std::time::Duration;

use lock_runtime::admin::LockAdmin;
use lock_runtime::{LockError, WireFormat};
use lock_tests::TestedStore;

use crate::support::LEASE;

/// Whether the outcome is an error of this option that says what the store does not have.
fn is_lacking<T>(outcome: &Result<T, LockError>, option: &str) -> bool {
    matches!(outcome, Err(LockError::Config { option: named, problem, .. })
        if *named == option && problem.len() > 20)
}

/// Asserts that the outcome is an error of this option, unless the store has what it is about.
fn assert_lacks<T: Debug>(has: bool, option: &str, outcome: &Result<T, LockError>) {
    assert!(
        if has { outcome.is_ok() } else { is_lacking(outcome, option) },
        "{option}: {outcome:?}"
    );
}

/// The control is the Redis store, which has all of them.
#[tokio::test]
async fn what_a_store_lacks_is_a_configuration_error_that_names_the_option() {
    let store = TestedStore::start_shared().await;
    let client = store.client(LEASE).await;
    let (is_redis, is_quorum) =
        (matches!(store, TestedStore::Redis(_)), matches!(store, TestedStore::Quorum(_)));
    let is_postgres = matches!(store, TestedStore::Postgres(..) | TestedStore::SharedPostgres(..));
    let lock = client.lock("fair").fair();
    assert_lacks(is_redis || is_postgres, "fair", &lock.acquire().await);
    let lock = client.read_write("shared");
    assert_lacks(is_redis || is_postgres, "mode", &lock.read().acquire().await);
    assert_lacks(is_redis || is_postgres, "mode", &lock.write().acquire().await);
    let semaphore = client.semaphore("permits", 3);
    assert_lacks(is_redis || is_postgres, "permits", &semaphore.acquire().await);
    let lock = client.lock("format").wire_format(WireFormat::Redisson);
    assert_lacks(is_redis, "wire_format", &lock.acquire().await);
    let periodic = client.periodic("period", Duration::from_secs(3600));
    assert_lacks(is_redis || is_postgres, "every", &periodic.run(async {}).await);
    assert_lacks(is_redis || is_postgres, "every", &client.last_run("period").await);
    // The replicas of the single server are none, so it cannot be held with that.
    let acknowledged = client.lock("acknowledged").acknowledged_by(1).wait(LEASE / 4);
    let acknowledged = acknowledged.acquire().await;
    assert!(is_redis || is_lacking(&acknowledged, "acknowledged_by"), "{acknowledged:?}");
    let nested = client
        .lock("nested")
        .run(async { client.lock("nested").acknowledged_by(1).wait(LEASE / 4).acquire().await });
    let nested = nested.await.expect("free");
    assert!(is_redis || is_lacking(&nested, "acknowledged_by"), "{nested:?}");
    let admin = LockAdmin::new(&client);
    assert_lacks(is_redis, "url", &admin.clients().await);
    assert_eq!(admin.can_ask(), is_redis);
    assert_lacks(!is_quorum, "url", &admin.inspect("k").await);
    assert_lacks(!is_quorum, "url", &admin.scan("*").next().await);
    let leadership = client.leadership("leader");
    let has_leaders = is_redis || is_quorum || is_postgres;
    assert_lacks(has_leaders, "leader", &leadership.leader().await);
    assert_lacks(has_leaders, "leader", &leadership.observe().next().await);
    // Everything else works.
    client.lock("k").run(async {}).await.expect("free");
    client.leadership("leader").run(|_| async {}).await.expect("elected");
}

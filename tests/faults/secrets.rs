//! Secrets are never shown: not in errors, not in `Debug` output, and not in the log.

use std::fmt::Debug;

use lock_runtime::{LockClient, LockError};
use lock_tests::{CapturedLog, RedisServer};

use crate::support::{LEASE, until};

const CANARY: &str = "c4nary";

fn check(shown: &impl Debug) {
    for text in [format!("{shown:?}"), format!("{shown:#?}")] {
        assert!(!text.contains(CANARY), "{text}");
    }
}

fn check_error(error: &LockError) {
    check(error);
    assert!(!error.to_string().contains(CANARY), "{error}");
}

#[tokio::test]
async fn no_password_is_shown_in_errors_debug_or_log() {
    let log = CapturedLog::here();
    let mut server = RedisServer::with(&["--requirepass", CANARY]);
    let port = server.port();
    for url in [
        format!("redis://:{CANARY}-wrong@127.0.0.1:{port}"),
        format!("redis://{CANARY}:{CANARY}@127.0.0.1:{port}"),
        format!("redis://:{CANARY}@127.0.0.1:{port}/99"),
        format!("redis://:{CANARY}@127.0.0.1:1"),
        format!("redis://:{CANARY}@no-such-host.invalid:{port}"),
        format!("redis+unix:///no/such/socket?pass={CANARY}"),
        format!("redis://:{CANARY}@"),
        format!("redis://:{CANARY}@127.0.0.1:{CANARY}"),
        format!("rediss://:{CANARY}@127.0.0.1"),
        format!(
            "redis+sentinel://u:{CANARY}@127.0.0.1:1,127.0.0.1:{port}/m?sentinel_pass={CANARY}"
        ),
        format!("redis+sentinel://127.0.0.1:{port}/m?sentinel_pass={CANARY}-wrong"),
        format!("redis+sentinel://:{CANARY},127.0.0.1:{port}/m"),
        format!("redis+sentinel://127.0.0.1:{port}/m?{CANARY}=1"),
        format!("redis-sentinel://:{CANARY}@127.0.0.1:{port}"),
        format!("mysql://:{CANARY}@127.0.0.1"),
    ] {
        let builder = LockClient::builder().url(&url).namespace("shop");
        check(&builder);
        check_error(&builder.connect().await.expect_err("no such URL works"));
    }

    let client = LockClient::builder().url(server.url()).lease(LEASE).connect().await;
    let client = client.expect("the correct password");
    let lock = client.lock("k");
    let guard = lock.acquire().await.expect("free");
    check(&client);
    check(&lock);
    check(&guard);
    check(&client.lock("k").try_acquire().await);
    // The client loses its connections, and fails to reconnect.
    server.kill();
    check_error(&guard.fencing_token().await.expect_err("the server is down"));
    check_error(&client.lock("other").wait(LEASE).acquire().await.expect_err("the server is down"));
    check(&guard.lost().await);
    check_error(&guard.release().await.expect_err("lost"));
    server.restart();
    server.set_password("changed");
    server.kill_connections("normal");
    let denied = client.lock("other").wait(LEASE).acquire().await.expect_err("a wrong password");
    assert!(matches!(denied, LockError::Denied { .. }), "{denied:?}");
    check_error(&denied);
    drop(client);

    assert!(
        until(LEASE * 10, || !log.lines(&["disconnected"]).is_empty()).await.is_some(),
        "the disconnection is logged"
    );
    let shown = log.lines(&[CANARY]);
    assert!(shown.is_empty(), "{shown:?}");
}

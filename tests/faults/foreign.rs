//! Keys whose value does not come from this library.

use std::time::Duration;

use lock_runtime::{Holder, HolderKind, LockError};
use lock_tests::{RedisServer, running_time};
use tokio::time::Instant;

use crate::support::{LEASE, client};

#[tokio::test]
async fn a_value_of_another_type_is_never_changed() {
    let server = RedisServer::start();
    let client = client(&server.url()).await;
    server.tell(&["LPUSH", "k", "precious"]);
    for outcome in
        [client.lock("k").acquire().await.map(drop), client.lock("k").try_acquire().await.map(drop)]
    {
        match outcome {
            Err(LockError::WrongFormat { key, expected, found, .. }) => {
                assert_eq!((key.as_str(), expected, found.as_str()), ("k", "string", "list"));
            }
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(server.command::<Vec<String>>(&["LRANGE", "k", "0", "-1"]), ["precious"]);
}

#[tokio::test]
async fn a_foreign_value_counts_as_a_busy_lock_and_is_never_changed() {
    let server = RedisServer::start();
    let client = client(&server.url()).await;
    server.tell(&["SET", "k", "stranger", "PX", "60000"]);
    match client.lock("k").wait(LEASE / 2).acquire().await {
        Err(LockError::Busy {
            holder: Holder { kind: HolderKind::Elsewhere, lease_left: Some(left), .. },
            ..
        }) => {
            assert!(left > Duration::from_secs(50), "{left:?}");
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(server.command::<String>(&["GET", "k"]), "stranger");
}

#[tokio::test]
async fn a_key_without_expiry_is_busy_and_the_error_says_why() {
    let server = RedisServer::start();
    let client = client(&server.url()).await;
    server.tell(&["SET", "k", "stranger"]);
    let start = Instant::now();
    match client.lock("k").wait(LEASE).acquire().await {
        Err(error @ LockError::Busy { holder: Holder { kind: HolderKind::NoExpiry, .. }, .. }) => {
            assert!(error.to_string().contains("no expiry"), "{error}");
        }
        other => panic!("{other:?}"),
    }
    assert!(running_time(start) < LEASE * 3 / 2);
    assert_eq!(server.pttl("k"), -1);
}

//! Fencing tokens rise from holder to holder, even if the store loses its data.

use lock_runtime::{LockClient, LockError, LockGuard, LostReason};
use lock_tests::RedisServer;

use crate::support::{LEASE, client, on_every_store, until};

async fn hold(client: &LockClient) -> LockGuard {
    client.lock("k").acquire().await.expect("free")
}

async fn token(client: &LockClient) -> u64 {
    let guard = hold(client).await;
    let token = guard.fencing_token().await.expect("held");
    guard.release().await.expect("held");
    token
}

on_every_store! {
    async fn tokens_rise_from_holder_to_holder(pair: Pair) {
        let mut last = 0;
        for client in [&pair.one, &pair.one, &pair.two, &pair.one] {
            let next = token(client).await;
            assert!(next > last, "{next} after {last}");
            last = next;
        }
    }

    async fn tokens_rise_across_an_expiry(pair: Pair) {
        let guard = pair.one.lock("k").lease(LEASE / 4).acquire().await.expect("free");
        let first = guard.fencing_token().await.expect("held");
        assert_eq!(guard.lost().await, LostReason::LeaseOver);
        assert!(token(&pair.two).await > first);
        match guard.fencing_token().await {
            Err(LockError::Lost { reason, .. }) => assert_eq!(reason, LostReason::LeaseOver),
            other => panic!("{other:?}"),
        }
    }

    async fn a_hold_has_one_token(pair: Pair) {
        let guard = hold(&pair.one).await;
        let (one, two) = tokio::join!(guard.fencing_token(), guard.fencing_token());
        assert_eq!(one, two);
        assert_eq!(guard.fencing_token().await, one);
        drop(guard);

        let lock = pair.one.lock("k");
        let (outer, inner) = lock
            .run(async {
                let outer = lock.acquire().await.expect("shared").fencing_token().await;
                (outer, lock.acquire().await.expect("shared").fencing_token().await)
            })
            .await
            .expect("free");
        assert!(outer.is_ok());
        assert_eq!(outer, inner);
    }
}

#[tokio::test]
async fn tokens_rise_even_if_the_server_loses_its_data() {
    let mut server = RedisServer::start();
    let client = client(&server.url()).await;
    let first = token(&client).await;
    server.tell(&["FLUSHALL"]);
    let second = token(&client).await;
    assert!(second > first);
    server.restart();
    assert!(token(&client).await > second);
}

/// The control of the test above: a plain counter starts again.
#[tokio::test]
async fn a_plain_counter_starts_again_if_the_server_loses_its_data() {
    let server = RedisServer::start();
    let first: u64 = server.command(&["INCR", "fence"]);
    server.tell(&["FLUSHALL"]);
    assert_eq!(server.command::<u64>(&["INCR", "fence"]), first);
}

#[tokio::test]
async fn only_the_holder_gets_a_token() {
    let server = RedisServer::start();
    for (words, expected) in [
        (["SET", "k", "stranger"].as_slice(), LostReason::Taken),
        (&["DEL", "k"], LostReason::Gone),
    ] {
        let guard = hold(&client(&server.url()).await).await;
        server.tell(words);
        match guard.fencing_token().await {
            Err(LockError::Lost { reason, .. }) => assert_eq!(reason, expected),
            other => panic!("{other:?}"),
        }
        assert!(!guard.is_held());
        server.tell(&["DEL", "k"]);
    }
}

#[tokio::test]
async fn tokens_need_one_key_per_hash_slot_and_not_one_per_lock() {
    let server = RedisServer::start();
    let client = client(&server.url()).await;
    let keys = 500_u32;
    for n in 0..keys {
        // The hash tag maps all keys to one slot.
        let lock = client.lock(format!("{{user}}:{n}"));
        lock.acquire().await.expect("free").fencing_token().await.expect("held");
    }
    client.shutdown().await.expect("up");
    let left: Vec<String> = server.keys();
    assert_eq!(left.len(), 1, "{left:?}");
}

#[tokio::test]
async fn the_last_token_is_stored_in_the_hash_slot_of_the_lock() {
    let server = RedisServer::start();
    let cluster = RedisServer::with(&["--cluster-enabled", "yes"]);
    let client = client(&server.url()).await;
    for key in ["order:42", "{user:7}:cart", "a{}b", "}{", "käse"] {
        server.tell(&["FLUSHALL"]);
        let guard = client.lock(key).acquire().await.expect("free");
        guard.fencing_token().await.expect("held");
        let keys: Vec<String> = server.command(&["KEYS", "lock_fence:*"]);
        assert_eq!(keys.len(), 1, "{keys:?}");
        let slot = |key| cluster.command::<u16>(&["CLUSTER", "KEYSLOT", key]);
        assert_eq!(slot(&keys[0]), slot(key), "{key}");
    }
}

#[tokio::test]
async fn a_foreign_value_in_the_key_of_the_tokens_is_not_changed() {
    let server = RedisServer::start();
    let client = client(&server.url()).await;
    let guard = hold(&client).await;
    let first = guard.fencing_token().await.expect("held");
    guard.release().await.expect("held");
    let keys: Vec<String> = server.command(&["KEYS", "lock_fence:*"]);
    for words in [
        ["SET", &keys[0], "not a number"].as_slice(),
        &["SET", &keys[0], "nan"],
        &["SET", &keys[0], "inf"],
        // 2^53: a Lua number of this size cannot be incremented.
        &["SET", &keys[0], "9007199254740992"],
        &["RPUSH", &keys[0], "1"],
    ] {
        server.tell(&["DEL", &keys[0]]);
        server.tell(words);
        let guard = hold(&client).await;
        match guard.fencing_token().await {
            Err(LockError::WrongFormat { key, expected, .. }) => {
                assert_eq!((key, expected), (keys[0].clone(), "fencing token"));
            }
            other => panic!("{words:?}: {other:?}"),
        }
        assert!(guard.is_held(), "the lock is still held");
        guard.release().await.expect("held");
        if words[0] == "SET" {
            assert_eq!(server.command::<String>(&["GET", &keys[0]]), words[2]);
        }
    }
    // The clock was years ahead before.
    let ahead = first * 2;
    server.tell(&["DEL", &keys[0]]);
    server.tell(&["SET", &keys[0], &ahead.to_string()]);
    assert_eq!(token(&client).await, ahead + 1);
}

#[tokio::test]
async fn on_a_silent_server_the_request_for_a_token_fails_with_the_loss() {
    let server = RedisServer::start();
    let guard = hold(&client(&server.url()).await).await;
    server.freeze();
    match guard.fencing_token().await {
        Err(LockError::Lost { reason, .. }) => assert_eq!(reason, LostReason::RenewalFailed),
        other => panic!("{other:?}"),
    }
    server.thaw();
    assert!(until(LEASE * 10, || !server.exists("k")).await.is_some());
}

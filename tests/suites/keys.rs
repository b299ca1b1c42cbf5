//! Which keys there are, and what they are called in the store.

use lock_runtime::{LockClient, LockError, distributed_lock, with_client};
use lock_tests::RedisServer;

use crate::support::LEASE;

async fn key_of(client: &LockClient, key: &str) -> Result<String, LockError> {
    let guard = client.lock(key).try_acquire().await?.expect("free");
    let name = guard.key().to_owned();
    guard.release().await?;
    Ok(name)
}

#[tokio::test]
async fn a_namespace_keeps_services_apart() {
    let server = RedisServer::start();
    let builder = LockClient::builder().url(server.url()).watchdog(LEASE);
    let shop = builder.clone().namespace("shop").connect().await.expect("up");
    let blog = builder.namespace("blog").connect().await.expect("up");
    let _guard = shop.lock("order:1").acquire().await.expect("free");
    assert!(server.exists("shop:order:1"));
    assert_eq!(key_of(&blog, "order:1").await.as_deref(), Ok("blog:order:1"));
}

#[tokio::test]
async fn keys_have_from_1_to_1024_bytes() {
    let client = LockClient::memory();
    for (key, valid) in
        [("", false), ("k", true), (&"k".repeat(1024), true), (&"k".repeat(2000), false)]
    {
        match key_of(&client, key).await {
            Ok(name) => assert!(valid && name == key),
            Err(LockError::InvalidKey { .. }) => assert!(!valid),
            other => panic!("{other:?}"),
        }
    }
}

#[tokio::test]
async fn hostile_keys_are_just_keys() {
    let server = RedisServer::start();
    let client = crate::support::client(&server.url()).await;
    for key in
        ["a b", "\r\nFLUSHALL\r\n", "{", "}{", "*", "k\0", "'; return redis.call('flushall')", "🔒"]
    {
        let guard = client.lock(key).acquire().await.expect("free");
        assert!(server.exists(key), "{key:?}");
        guard.release().await.expect("held");
        assert!(!server.exists(key), "{key:?}");
    }
}

#[distributed_lock(key = "file:<name>:<part>", wait = "0s")]
async fn write(name: &str, part: &str) -> Result<(), LockError> {
    tokio::time::sleep(LEASE / 10).await;
    Ok(())
}

#[tokio::test]
async fn different_arguments_never_share_a_lock() {
    let client = LockClient::memory();
    let (one, two) =
        with_client(client, async { tokio::join!(write("a:b", "c"), write("a", "b:c")) }).await;
    assert_eq!((one, two), (Ok(()), Ok(())));
}

/// The control of the test above: joined as they are, they do.
#[tokio::test]
async fn joined_as_they_are_they_do() {
    #[distributed_lock(key = "file:<name:raw>:<part:raw>", wait = "0s")]
    async fn write(name: &str, part: &str) -> Result<(), LockError> {
        tokio::time::sleep(LEASE / 10).await;
        Ok(())
    }
    let client = LockClient::memory();
    let (one, two) =
        with_client(client, async { tokio::join!(write("a:b", "c"), write("a", "b:c")) }).await;
    assert_eq!(one, Ok(()));
    assert!(matches!(two, Err(LockError::Busy { .. })));
}

#[tokio::test]
async fn an_argument_that_renders_to_nothing_is_refused() {
    match with_client(LockClient::memory(), write("", "part")).await {
        Err(LockError::InvalidKey { key, problem, .. }) => {
            assert_eq!(key, "file:<name>:<part>");
            assert!(problem.contains("`<name>` is empty"), "{problem}");
        }
        other => panic!("{other:?}"),
    }
    let huge = "x".repeat(2000);
    match with_client(LockClient::memory(), write("name", &huge)).await {
        Err(LockError::InvalidKey { problem, .. }) => assert!(problem.contains("`<part>`")),
        other => panic!("{other:?}"),
    }
}

//! Valid keys, and their names in the store.

use lock_runtime::{LockClient, LockError, distributed_lock, key, with_client};
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
    let builder = LockClient::builder().url(server.url()).lease(LEASE);
    let shop = builder.clone().namespace("shop").connect().await.expect("up");
    let blog = builder.namespace("blog").connect().await.expect("up");
    let _guard = shop.lock("order:1").acquire().await.expect("free");
    assert!(server.exists("shop:order:1"));
    assert_eq!(key_of(&blog, "order:1").await.as_deref(), Ok("blog:order:1"));
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

/// The control of the test above: without encoding, different arguments share a lock.
#[tokio::test]
async fn without_encoding_different_arguments_share_a_lock() {
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

#[distributed_lock(key = "lock4j:<name:raw>#<id:raw>")]
async fn like_lock4j(server: &RedisServer, name: &str, id: &str) -> Result<Vec<String>, LockError> {
    Ok(server.keys())
}

#[distributed_lock(key = "registry:<path:raw>")]
async fn like_spring(server: &RedisServer, path: &str) -> Result<Vec<String>, LockError> {
    Ok(server.keys())
}

/// Other libraries do not encode the values in their keys.
#[tokio::test]
async fn raw_placeholders_produce_the_keys_of_other_libraries() {
    let server = RedisServer::start();
    let client = crate::support::client(&server.url()).await;
    with_client(client, async {
        let keys = like_lock4j(&server, "shop.Orders:pay", "eu:7").await.expect("free");
        assert_eq!(keys, ["lock4j:shop.Orders:pay#eu:7"]);
        let keys = like_spring(&server, "orders:{eu}/7 8").await.expect("free");
        assert_eq!(keys, ["registry:orders:{eu}/7 8"]);
    })
    .await;
}

/// The control of the test above: without `:raw`, the values are encoded.
#[tokio::test]
async fn without_raw_the_values_are_encoded() {
    #[distributed_lock(key = "lock4j:<name>#<id>")]
    async fn lock4j(server: &RedisServer, name: &str, id: &str) -> Result<Vec<String>, LockError> {
        Ok(server.keys())
    }
    #[distributed_lock(key = "registry:<path>")]
    async fn spring(server: &RedisServer, path: &str) -> Result<Vec<String>, LockError> {
        Ok(server.keys())
    }
    let server = RedisServer::start();
    let client = crate::support::client(&server.url()).await;
    with_client(client, async {
        let keys = lock4j(&server, "shop.Orders:pay", "eu:7").await.expect("free");
        assert_eq!(keys, ["lock4j:shop.Orders%3Apay#eu%3A7"]);
        let keys = lock4j(&server, "Orders.pay", "7").await.expect("free");
        assert_eq!(keys, ["lock4j:Orders.pay#7"], "plain values are not changed");
        let keys = spring(&server, "orders:{eu}/7 8").await.expect("free");
        assert_eq!(keys, ["registry:orders%3A%7Beu%7D/7%208"]);
    })
    .await;
}

#[tokio::test]
async fn an_empty_or_too_long_argument_is_refused() {
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

#[distributed_lock(key = "order:<id>:<part>", guard = guard)]
async fn pack(id: u64, part: &str) -> Result<String, LockError> {
    Ok(guard.key().to_owned())
}

#[distributed_lock(key = lock_runtime::key!("report:<region>:<day>", region = REGIONS[1], day = days[0] + 1), guard = guard)]
async fn report(days: &[u32]) -> Result<String, LockError> {
    Ok(guard.key().to_owned())
}

const REGIONS: [&str; 2] = ["eu", "us:east"];

struct PlainOrder {
    id: u64,
}

#[tokio::test]
async fn the_key_macro_produces_the_keys_of_the_attribute() {
    let client = LockClient::memory();
    let (id, part) = (42, "a:b {c}");
    let expected = with_client(client.clone(), pack(id, part)).await.expect("free");
    let guard = client.lock(key!("order:<id>:<part>")).acquire().await.expect("free");
    assert_eq!(guard.key(), expected);
    assert_eq!(expected, "order:42:a%3Ab%20%7Bc%7D");

    let expected = with_client(client.clone(), report(&[6])).await.expect("free");
    assert_eq!(expected, "report:us%3Aeast:7");
    // Fields, methods and values that are given names; each is evaluated once.
    let (order, mut calls) = (PlainOrder { id: 7 }, 0);
    let mut next = || {
        calls += 1;
        calls
    };
    let key = key!("o:<order.id>:<n>-<n>:<part.len()>", n = next(), order = &order,);
    assert_eq!(key.into_string().as_deref(), Ok("o:7:1-1:7"));
}

#[tokio::test]
async fn an_invalid_key_of_the_macro_is_an_error_when_it_is_used() {
    let client = LockClient::memory();
    let empty = "";
    let lock = client.lock(key!("order:<empty>"));
    for _ in 0..2 {
        match lock.acquire().await {
            Err(LockError::InvalidKey { problem, .. }) => assert!(problem.contains("<empty>")),
            other => panic!("{other:?}"),
        }
    }
    assert!(key!("order:<empty>").into_string().is_err());
    assert!(client.stats().is_idle());
}

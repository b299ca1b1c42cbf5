//! The options of a lock and of the attribute.

use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use lock_runtime::{LockClient, LockError, LostReason, ReleaseMode, Replicas, WireFormat};
use lock_runtime::{distributed_lock, with_client};
use lock_tests::support::until;
use lock_tests::{Proxy, RedisServer, running_time};
use tokio::time::{Instant, timeout};

use crate::support::{LEASE, client, helper, milliseconds, on_every_store};

async fn is_free(client: &LockClient, key: &str) -> bool {
    // A task of its own, which does not share the enclosing hold.
    let lock = client.lock(key);
    let tried = tokio::spawn(async move { lock.try_acquire().await.map(|guard| guard.is_some()) });
    tried.await.expect("no panic").expect("the store is up")
}

on_every_store! {
    async fn min_hold_keeps_the_key_after_the_body(pair: Pair) {
        let lock = pair.one.lock("k").min_hold(LEASE);
        let start = Instant::now();
        lock.run(async {}).await.expect("free");
        assert!(running_time(start) < LEASE / 2, "the caller must not wait for `min_hold`");
        assert!(!is_free(&pair.one, "k").await);
        assert!(!is_free(&pair.two, "k").await);
        let _guard = pair.two.lock("k").acquire().await.expect("free after `min_hold`");
        let kept = start.elapsed();
        assert!(kept >= LEASE && running_time(start + LEASE) < LEASE / 2, "{kept:?}");
    }

    async fn min_hold_also_applies_to_a_dropped_guard(pair: Pair) {
        let start = Instant::now();
        drop(pair.one.lock("k").min_hold(LEASE).acquire().await.expect("free"));
        let _guard = pair.two.lock("k").acquire().await.expect("free after `min_hold`");
        assert!(start.elapsed() >= LEASE);
    }

    async fn a_body_longer_than_min_hold_frees_the_key_at_its_end(pair: Pair) {
        let lock = pair.one.lock("k").min_hold(LEASE / 4);
        lock.run(tokio::time::sleep(LEASE / 2)).await.expect("free");
        assert!(is_free(&pair.two, "k").await);
    }

    async fn min_hold_of_a_nested_call_is_respected(pair: Pair) {
        let start = Instant::now();
        let client = pair.one.clone();
        let nested = async move { client.lock("k").min_hold(LEASE).run(async {}).await };
        pair.one.lock("k").run(nested).await.expect("free").expect("shared");
        let _guard = pair.two.lock("k").acquire().await.expect("free after `min_hold`");
        assert!(start.elapsed() >= LEASE);
    }

    async fn max_hold_ends_the_hold(pair: Pair) {
        let lock = pair.one.lock("k").max_hold(LEASE * 2);
        let start = Instant::now();
        match lock.run(std::future::pending::<()>()).await {
            Err(LockError::Lost { reason, .. }) => assert_eq!(reason, LostReason::MaxHold),
            other => panic!("{other:?}"),
        }
        let held = start.elapsed();
        let late = running_time(start + LEASE * 2);
        assert!(held >= LEASE * 2 && late < LEASE, "not held until `max_hold`: {held:?}");
        let _guard = pair.two.lock("k").wait(LEASE / 2).acquire().await.expect("freed at once");
    }

    async fn options_that_contradict_each_other_are_refused(pair: Pair) {
        let lock = || pair.one.lock("k");
        for (lock, option) in [
            (lock().lease(LEASE).max_hold(LEASE), "max_hold"),
            (lock().max_hold(LEASE).min_hold(LEASE * 2), "min_hold"),
            (lock().max_hold(Duration::from_millis(9)), "max_hold"),
            (lock().min_hold(Duration::MAX), "min_hold"),
        ] {
            match lock.acquire().await {
                Err(LockError::Config { option: named, .. }) => assert_eq!(named, option),
                other => panic!("{other:?}"),
            }
        }
    }
}

#[tokio::test]
async fn min_hold_of_a_nested_call_extends_the_key() {
    let server = lock_tests::RedisServer::start();
    let client = client(&server.url()).await;
    let lock = client.lock("k").lease(LEASE);
    let nested = client.lock("k").min_hold(LEASE * 10);
    let body = async {
        nested.run(async {}).await.expect("shared");
        server.pttl("k")
    };
    let left = lock.run(body).await.expect("free");
    assert!(u128::try_from(left).is_ok_and(|left| left > (LEASE * 8).as_millis()), "{left}");
}

#[tokio::test]
async fn min_hold_outlives_the_process() {
    let server = lock_tests::RedisServer::start();
    let start = Instant::now();
    let (min_hold, url) = (LEASE * 2, server.url());
    let client = client(&url).await;
    let lock = client.lock("k").min_hold(min_hold);
    lock.run(async {}).await.expect("free");
    client.shutdown().await.expect("released");
    drop((lock, client));
    let mut next = helper(&["hold", &url, "k", &milliseconds(LEASE)]);
    assert_eq!(next.line(), "held");
    assert!(start.elapsed() >= min_hold, "{:?}", start.elapsed());
}

#[tokio::test]
async fn the_max_hold_of_a_client_applies_to_locks_without_their_own() {
    let builder = LockClient::builder().url("memory:").lease(LEASE).max_hold(LEASE / 2);
    let client = builder.connect().await.expect("memory");
    let lost = client.lock("a").run(std::future::pending::<()>()).await;
    assert!(matches!(lost, Err(LockError::Lost { reason: LostReason::MaxHold, .. })), "{lost:?}");
    let kept = client.lock("b").max_hold(LEASE * 2).run(tokio::time::sleep(LEASE)).await;
    kept.expect("the own `max_hold` of the lock");
    let fixed = client.lock("c").lease(LEASE * 2).run(tokio::time::sleep(LEASE)).await;
    fixed.expect("`max_hold` does not apply to a fixed lease");
}

#[tokio::test]
async fn on_lost_aborts_or_continues() {
    static REACHED: AtomicU32 = AtomicU32::new(0);

    #[distributed_lock(key = "a", lease = "100ms", on_lost = "abort")]
    async fn aborts() -> Result<(), LockError> {
        tokio::time::sleep(LEASE / 2).await;
        REACHED.fetch_add(1, Ordering::SeqCst);
        Ok(())
    }
    #[distributed_lock(key = "b", lease = "100ms", on_lost = "continue", guard = guard)]
    async fn continues() -> Result<LostReason, LockError> {
        let reason = guard.lost().await;
        assert!(!guard.is_held());
        // A nested acquisition shares the lost hold and fails. It does not acquire the lock again.
        let nested = lock_runtime::global()?.lock("b").run(async {}).await;
        assert!(matches!(nested, Err(LockError::Lost { .. })), "{nested:?}");
        tokio::time::sleep(LEASE / 2).await;
        REACHED.fetch_add(10, Ordering::SeqCst);
        Ok(reason)
    }
    with_client(LockClient::memory(), async {
        assert!(matches!(aborts().await, Err(LockError::Lost { .. })));
        assert_eq!(continues().await, Ok(LostReason::LeaseOver), "the result of the body");
    })
    .await;
    assert_eq!(REACHED.load(Ordering::SeqCst), 10);
}

#[tokio::test]
async fn on_busy_is_returned_only_if_the_lock_is_busy() {
    #[distributed_lock(key = "k", wait = "0s", on_busy = Ok(default + 1))]
    async fn with_default(default: u32) -> Result<u32, LockError> {
        Ok(default)
    }
    #[distributed_lock(key = "k", wait = "0s", on_busy = ())]
    async fn skips(done: &AtomicU32) {
        done.fetch_add(1, Ordering::SeqCst);
    }
    let client = LockClient::memory();
    let done = AtomicU32::new(0);
    with_client(client.clone(), async {
        assert_eq!(with_default(1).await, Ok(1));
        skips(&done).await;
        assert_eq!(done.load(Ordering::SeqCst), 1);
        let _guard = client.lock("k").acquire().await.expect("free");
        assert_eq!(with_default(1).await, Ok(2));
        skips(&done).await;
        assert_eq!(done.load(Ordering::SeqCst), 1);
    })
    .await;
    // A missing client is not a busy lock.
    assert_eq!(with_default(1).await, Err(LockError::NotConfigured));
}

#[tokio::test]
async fn or_else_converts_every_lock_error() {
    #[distributed_lock(key = "k", wait = "0s", or_else = |error| format!("{id}: {error}"))]
    async fn by_closure(id: u32) -> String {
        format!("{id}: done")
    }
    fn describe(error: LockError) -> Option<u32> {
        if let LockError::Busy { key, .. } = error {
            drop(key);
            return None;
        }
        Some(0)
    }
    #[distributed_lock(key = "k", wait = "0s", or_else = describe)]
    async fn by_path() -> Option<u32> {
        Some(1)
    }
    let client = LockClient::memory();
    with_client(client.clone(), async {
        assert_eq!(by_closure(7).await, "7: done");
        assert_eq!(by_path().await, Some(1));
        let _guard = client.lock("k").acquire().await.expect("free");
        assert!(by_closure(7).await.starts_with("7: lock \"k\" is busy"));
        assert_eq!(by_path().await, None);
    })
    .await;
    assert_eq!(by_path().await, Some(0));
}

#[tokio::test]
async fn the_guard_has_the_name_that_the_option_sets() {
    #[distributed_lock(key = "order:<id>", guard = held)]
    async fn with_guard(id: u32) -> Result<String, LockError> {
        assert!(held.is_held() && held.remaining() > Duration::ZERO);
        Ok(held.key().to_owned())
    }
    let client = LockClient::memory();
    let key = with_client(client.clone(), with_guard(7)).await;
    assert_eq!(key.as_deref(), Ok("order:7"));
    assert!(is_free(&client, "order:7").await, "the guard in the body does not keep the lock");
}

#[tokio::test]
async fn when_decides_whether_to_lock() {
    #[distributed_lock(key = "k", wait = "0s", when = locked, guard = guard)]
    async fn sometimes(locked: bool) -> Result<bool, LockError> {
        Ok(guard.is_some_and(lock_runtime::LockGuard::is_held))
    }
    #[distributed_lock(key = "order:<id>", when = !id.is_empty())]
    async fn only_valid(id: &str) -> Result<usize, LockError> {
        Ok(id.len())
    }
    let client = LockClient::memory();
    with_client(client.clone(), async {
        assert_eq!(sometimes(true).await, Ok(true));
        assert_eq!(sometimes(false).await, Ok(false));
        let _guard = client.lock("k").acquire().await.expect("free");
        assert!(matches!(sometimes(true).await, Err(LockError::Busy { .. })));
        assert_eq!(sometimes(false).await, Ok(false));
    })
    .await;
    assert_eq!(only_valid("").await, Ok(0), "without a lock, neither a key nor a client is needed");
    assert_eq!(only_valid("x").await, Err(LockError::NotConfigured));
}

#[tokio::test]
async fn max_hold_and_min_hold_are_text_or_expressions() {
    #[distributed_lock(key = "a", max_hold = "100ms")]
    async fn bounded() -> Result<(), LockError> {
        std::future::pending().await
    }
    #[distributed_lock(key = "b", max_hold = bound, min_hold = bound / 2)]
    async fn bounded_by(bound: Duration) -> Result<(), LockError> {
        std::future::pending().await
    }
    #[distributed_lock(key = "c", min_hold = "1m")]
    async fn job() -> Result<(), LockError> {
        Ok(())
    }
    let client = LockClient::memory();
    with_client(client.clone(), async {
        for lost in [bounded().await, bounded_by(LEASE / 10).await] {
            assert!(matches!(lost, Err(LockError::Lost { reason: LostReason::MaxHold, .. })));
        }
        job().await.expect("free");
        assert!(!is_free(&client, "c").await);
    })
    .await;
}

#[tokio::test]
async fn a_function_may_have_another_format_than_its_client() {
    #[distributed_lock(key = "java:<id>", wire_format = "redisson", client = locks)]
    async fn with_java(
        locks: &LockClient,
        id: u32,
        server: &RedisServer,
    ) -> Result<String, LockError> {
        Ok(server.command(&["TYPE", &format!("java:{id}")]))
    }
    #[distributed_lock(key = "any:<id>", wire_format = format, client = locks)]
    async fn with_any(
        locks: &LockClient,
        id: u32,
        format: WireFormat,
        server: &RedisServer,
    ) -> Result<String, LockError> {
        Ok(server.command(&["TYPE", &format!("any:{id}")]))
    }
    #[distributed_lock(key = "old:<id>", wire_format = "redisson", client = locks)]
    #[distributed_lock(key = "new:<id>", client = locks)]
    async fn with_both(
        locks: &LockClient,
        id: u32,
        server: &RedisServer,
    ) -> Result<i64, LockError> {
        Ok(server.command(&["EXISTS", &format!("old:{id}"), &format!("new:{id}")]))
    }
    let server = RedisServer::start();
    let locks = client(&server.url()).await;
    assert_eq!(with_java(&locks, 1, &server).await.as_deref(), Ok("hash"));
    assert_eq!(with_any(&locks, 1, WireFormat::Redisson, &server).await.as_deref(), Ok("hash"));
    assert_eq!(with_any(&locks, 1, WireFormat::Token, &server).await.as_deref(), Ok("string"));
    assert_eq!(with_both(&locks, 1, &server).await, Ok(2));
    assert_eq!(server.key_count(), 0);
}

/// The first example of `docs/interop.md`.
#[tokio::test]
async fn a_format_is_that_of_a_client_a_lock_or_a_function() -> Result<(), LockError> {
    let server = RedisServer::start();
    let url = server.url();
    let client = LockClient::builder().url(url).wire_format(WireFormat::Redisson).connect().await?;
    // Or for one lock:
    let report = client.lock("report").wire_format(WireFormat::Token);
    // Or for one function:
    #[distributed_lock(key = "stock:<item:raw>", wire_format = "redisson")]
    async fn sell(item: &str) -> Result<(), LockError> {
        std::future::pending().await
    }
    let key_type = |key: &str| server.command::<String>(&["TYPE", key]);
    let _guards = (client.lock("k").acquire().await?, report.acquire().await?);
    assert_eq!((key_type("k").as_str(), key_type("report").as_str()), ("hash", "string"));
    let other = LockClient::connect(server.url()).await?;
    let _body = tokio::spawn(with_client(other, sell("a:b")));
    assert!(until(LEASE * 60, || key_type("stock:a:b") == "hash").await.is_some());
    Ok(())
}

/// The second one: a migration acquires both locks.
#[tokio::test]
async fn the_lowest_attribute_is_acquired_first() {
    #[distributed_lock(key = "new:<id>")]
    // Acquired first: the lowest attribute is the outermost.
    #[distributed_lock(key = "old:<id:raw>", wire_format = "redisson")]
    async fn pay(id: u64) -> Result<(), LockError> {
        panic!("the new lock is held");
    }
    let server = RedisServer::start();
    let locks = client(&server.url()).await;
    let new = locks.lock("new:7").acquire().await.expect("free");
    let call = tokio::spawn(with_client(locks.clone(), pay(7)));
    let is_old_held = || server.command::<String>(&["TYPE", "old:7"]) == "hash";
    assert!(until(LEASE * 60, is_old_held).await.is_some());
    call.abort();
    drop(new);
    assert!(until(LEASE * 60, || server.key_count() == 0).await.is_some());
}

#[tokio::test]
async fn release_is_awaited_or_in_the_background() {
    #[distributed_lock(key = "k")]
    async fn of_client() -> Result<(), LockError> {
        Ok(())
    }
    #[distributed_lock(key = "k", release = "awaited")]
    async fn awaited() -> Result<(), LockError> {
        Ok(())
    }
    #[distributed_lock(key = "k", release = "background")]
    async fn background() -> Result<(), LockError> {
        Ok(())
    }
    #[distributed_lock(key = "k", release = mode)]
    async fn either(mode: ReleaseMode) -> Result<(), LockError> {
        Ok(())
    }
    #[distributed_lock(key = "k", on_lost = "report")]
    async fn reported() -> Result<(), LockError> {
        Ok(())
    }
    let server = RedisServer::start();
    let proxy = Proxy::to(server.port());
    for mode in [ReleaseMode::Awaited, ReleaseMode::Background] {
        let builder = LockClient::builder().url(proxy.url()).release(mode);
        let client = builder.connect().await.expect("the server is up");
        let is_awaited = async |mut call: Pin<&mut dyn Future<Output = Result<(), LockError>>>| {
            let before = proxy.triggered();
            proxy.hold("EVALSHA");
            let returned = timeout(LEASE / 2, &mut call).await.is_ok();
            let is_sent = until(LEASE, || proxy.triggered() > before).await;
            assert!(is_sent.is_some(), "the release is on its way");
            proxy.deliver();
            if !returned {
                call.await.expect("released");
            }
            let soon = until(LEASE * 5, || !server.exists("k")).await;
            assert!(soon.is_some(), "released");
            !returned
        };
        let default = mode == ReleaseMode::Awaited;
        with_client(client.clone(), async {
            assert_eq!(is_awaited(pin!(of_client())).await, default);
            assert!(is_awaited(pin!(awaited())).await);
            assert!(!is_awaited(pin!(background())).await);
            assert!(is_awaited(pin!(either(ReleaseMode::Awaited))).await);
            assert!(!is_awaited(pin!(either(ReleaseMode::Background))).await);
            assert!(is_awaited(pin!(reported())).await);
            let lock = client.lock("k").release_mode(ReleaseMode::Background);
            assert!(!is_awaited(pin!(lock.run(async {}))).await);
        })
        .await;
    }
}

#[tokio::test]
async fn acknowledged_by_is_a_number_all_or_an_expression() {
    #[distributed_lock(key = "one", acknowledged_by = 1)]
    async fn one() -> Result<(), LockError> {
        Ok(())
    }
    #[distributed_lock(key = "all", acknowledged_by = "all")]
    async fn all() -> Result<(), LockError> {
        Ok(())
    }
    #[distributed_lock(key = "some", acknowledged_by = replicas)]
    async fn some(replicas: impl Into<Replicas>) -> Result<(), LockError> {
        Ok(())
    }
    #[distributed_lock(key = "none", acknowledged_by = 0)]
    async fn none() -> Result<(), LockError> {
        Ok(())
    }
    with_client(LockClient::memory(), async {
        let calls = [one().await, all().await, some(2).await, some(Replicas::All).await];
        assert_eq!(calls, [const { Ok(()) }; 4], "the memory store has no replicas to wait for");
    })
    .await;
    // Without replicas.
    let server = RedisServer::plain(&[]);
    let builder = LockClient::builder().url(server.url()).wait(Duration::ZERO);
    with_client(builder.connect().await.expect("the server is up"), async {
        for call in [one().await, all().await, some(2).await, some(Replicas::All).await] {
            assert!(matches!(call, Err(LockError::Unavailable { .. })), "{call:?}");
        }
        assert_eq!((none().await, some(0).await), (Ok(()), Ok(())));
    })
    .await;
    let client = LockClient::memory();
    let many = LockClient::builder().url("memory:").acknowledged_by(1001).connect().await;
    for many in [many.map(drop), client.lock("k").acknowledged_by(1001).run(async {}).await] {
        match many {
            Err(LockError::Config { option: "acknowledged_by", .. }) => {}
            other => panic!("{other:?}"),
        }
    }
}

#[tokio::test]
async fn a_linger_that_is_out_of_range_or_has_no_effect_is_refused() {
    let server = RedisServer::start();
    let client = LockClient::connect(server.url()).await.expect("up");
    let ms = Duration::from_millis;
    for lock in [
        client.lock("k").linger(ms(9)),
        client.lock("k").linger(ms(1001)),
        client.lock("k").linger(ms(500)).lease(LEASE),
        client.lock("k").linger(ms(20)).lease(LEASE),
        client.lock("k").linger(ms(20)).min_hold(LEASE),
    ] {
        let refused = lock.acquire().await;
        assert!(matches!(&refused, Err(LockError::Config { option: "linger", .. })), "{refused:?}");
    }
    let long = LockClient::builder().url(server.url()).lease(LEASE).linger(LEASE).connect().await;
    assert!(matches!(&long, Err(LockError::Config { option: "linger", .. })), "{long:?}");
    // The option of the client does not apply to these.
    let client =
        LockClient::builder().url(server.url()).linger(ms(20)).connect().await.expect("up");
    client.lock("k").lease(LEASE).run(async {}).await.expect("free");
    client.lock("kept").min_hold(LEASE / 4).run(async {}).await.expect("free");
    client.lock("off").linger(Duration::ZERO).run(async {}).await.expect("free");
    assert_eq!(client.stats().lingering, 0);
}

//! Each problem has its own error, and no error shows a secret.

use std::fmt::Debug;
use std::time::Duration;

use lock_runtime::admin::{Deletion, LockAdmin};
use lock_runtime::{LockClient, LockError, Wait, WireFormat, distributed_lock};
use lock_tests::support::of_read_write;
use lock_tests::{CapturedLog, RedisServer, running_time, running_time_between, within};
use tokio::time::Instant;

use crate::support::{LEASE, client, until};

const CANARY: &str = "c4nary";

fn config_error<T: Debug>(outcome: Result<T, LockError>) -> (&'static str, String) {
    match outcome {
        Err(LockError::Config { option, problem, .. }) => (option, problem),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_bad_url_is_a_configuration_error() {
    for url in
        ["", "nonsense", "http://localhost", "redis://", "redis://host:port", "rediss://localhost#"]
    {
        let (option, problem) = config_error(LockClient::connect(url).await);
        assert_eq!(option, "url", "{url}: {problem}");
    }
    let (option, _) = config_error(LockClient::builder().connect().await);
    assert_eq!(option, "url");
}

#[tokio::test]
async fn invalid_settings_are_configuration_errors() {
    let builder = || LockClient::builder().url("memory:");
    for lease in [Duration::ZERO, Duration::from_millis(99), Duration::MAX] {
        let (option, problem) = config_error(builder().lease(lease).connect().await);
        assert_eq!(option, "lease", "{problem}");
        assert!(problem.contains("100ms"), "{problem}");
    }
    let (option, problem) =
        config_error(builder().handoff_limit(1, Duration::from_secs(2)).connect().await);
    assert_eq!(option, "handoff_limit", "{problem}");
    assert!(problem.contains("1s"), "{problem}");
    builder().handoff_limit(u32::MAX, Duration::from_secs(1)).connect().await.expect("the most");
    for (lease, quarantine, named) in [(200, 199, "lease"), (100, 9, "quarantine")] {
        let builder = builder().lease(Duration::from_millis(lease));
        let builder = builder.quarantine(Duration::from_millis(quarantine));
        let (option, problem) = config_error(builder.connect().await);
        assert_eq!(option, named, "{problem}");
    }
    let quarantined = builder().lease(LEASE).quarantine(LEASE).connect().await.expect("as long");
    let longer = LEASE + Duration::from_millis(1);
    for (named, lock) in [
        ("lease", quarantined.lock("k").lease(longer)),
        ("min_hold", quarantined.lock("k").min_hold(longer)),
    ] {
        let (option, problem) = config_error(lock.acquire().await);
        assert_eq!(option, named, "{problem}");
        assert!(problem.contains("`quarantine`"), "{problem}");
    }
    quarantined.lock("k").lease(LEASE).run(async {}).await.expect("no longer than the quarantine");
    let (option, problem) = config_error(builder().wait(Duration::MAX).connect().await);
    assert_eq!(option, "wait");
    assert!(problem.contains("Wait::Forever"), "{problem}");
    for namespace in ["a b", "{a}", "a\n", "a:", &"a".repeat(129)] {
        let (option, _) = config_error(builder().namespace(namespace).connect().await);
        assert_eq!(option, "namespace");
    }

    let client = LockClient::memory();
    for lease in [Duration::ZERO, Duration::from_millis(9), Duration::MAX] {
        match client.lock("k").lease(lease).acquire().await {
            Err(LockError::Config { option: "lease", .. }) => {}
            other => panic!("{other:?}"),
        }
    }
    match client.lock("k").wait(Duration::MAX).acquire().await {
        Err(LockError::Config { option: "wait", .. }) => {}
        other => panic!("{other:?}"),
    }
    drop(client.lock("k").wait(Wait::Forever).acquire().await.expect("a valid wait"));
}

#[tokio::test]
async fn an_unreachable_server_is_unavailable() {
    let port = {
        let server = RedisServer::start();
        server.port()
    };
    match LockClient::connect(format!("redis://user:{CANARY}@127.0.0.1:{port}")).await {
        Err(error @ LockError::Unavailable { key: None, .. }) => {
            let text = error.to_string();
            assert!(text.contains(&format!("127.0.0.1:{port}")), "{text}");
            assert!(!text.contains(CANARY), "{text}");
        }
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn wrong_credentials_are_denied_and_not_shown() {
    let server = RedisServer::with(&["--requirepass", "right"]);
    let port = server.port();
    for login in [format!(":{CANARY}@"), format!("{CANARY}:{CANARY}@"), String::new()] {
        match LockClient::connect(format!("redis://{login}127.0.0.1:{port}")).await {
            Err(error @ LockError::Denied { .. }) => {
                let shown = format!("{error} {error:?}");
                assert!(!shown.contains(CANARY), "{shown}");
            }
            other => panic!("{other:?}"),
        }
    }
    client(&server.url()).await.lock("k").run(async {}).await.expect("the right password works");
}

#[tokio::test]
async fn after_a_password_change_a_call_is_denied_at_once() {
    let mut server = RedisServer::with(&["--requirepass", "first"]);
    let client = client(&server.url()).await;
    server.set_password("second");
    server.kill_connections("normal");
    let start = Instant::now();
    match client.lock("k").acquire().await {
        Err(LockError::Denied { .. }) => {}
        other => panic!("{other:?}"),
    }
    assert!(running_time(start) < LEASE * 5, "the call must not retry until the end of its wait");
}

#[tokio::test]
async fn debug_output_shows_no_password() {
    let server = RedisServer::with(&["--requirepass", CANARY]);
    let builder = LockClient::builder().url(server.url());
    assert!(!format!("{builder:?}").contains(CANARY));
    let client = builder.connect().await.expect("up");
    let lock = client.lock("k");
    let guard = lock.acquire().await.expect("free");
    let token: String = server.command(&["GET", "k"]);
    let shown = format!("{client:?} {client:#?} {lock:?} {lock:#?} {guard:?} {guard:#?}");
    assert!(!shown.contains(CANARY), "{shown}");
    assert!(!shown.contains(&token), "{shown}");
}

#[tokio::test]
async fn a_server_that_is_down_is_unavailable_and_never_busy() {
    let mut server = RedisServer::start();
    let client = client(&server.url()).await;
    server.kill();
    let start = Instant::now();
    // One call asks the store, and the others queue locally.
    let waits = (0..10).map(|_| client.lock("k").wait(LEASE));
    let mut waiting = tokio::task::JoinSet::new();
    for lock in waits {
        waiting.spawn(async move { lock.acquire().await.map(drop) });
    }
    while let Some(outcome) = waiting.join_next().await {
        match outcome.expect("no panic") {
            Err(LockError::Unavailable { key: Some(key), cause, .. }) => {
                assert_eq!(key, "k");
                let address = server.address();
                assert!(cause.contains("cannot connect to") && cause.contains(&address), "{cause}");
            }
            other => panic!("{other:?}"),
        }
    }
    assert!(start.elapsed() >= LEASE, "the call must retry until the end of its wait");
    assert!(running_time(start) < LEASE * 3, "the call must end with its wait");
    match client.lock("k").try_acquire().await {
        Err(LockError::Unavailable { .. }) => {}
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_server_that_goes_down_during_a_wait_is_unavailable() {
    let mut server = RedisServer::start();
    let builder = || LockClient::builder().url(server.url()).lease(LEASE * 20);
    let holder = builder().connect().await.expect("up");
    let waiting = builder().connect().await.expect("up");
    let _guard = holder.lock("k").acquire().await.expect("free");
    // The wait is shorter than the response timeout.
    let lock = waiting.lock("k").wait(LEASE);
    let waiter = tokio::spawn(async move { lock.acquire().await.map(drop) });
    tokio::time::sleep(LEASE / 3).await;
    server.kill();
    match waiter.await.expect("no panic") {
        Err(LockError::Unavailable { .. }) => {}
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_database_that_does_not_exist_is_a_configuration_error() {
    let server = RedisServer::start();
    let database = |number| match server.url().split_once('?') {
        Some((url, options)) => format!("{url}/{number}?{options}"),
        None => format!("{}/{number}", server.url()),
    };
    let (option, _) = config_error(LockClient::connect(database(99)).await);
    assert_eq!(option, "url");
    LockClient::connect(database(3)).await.expect("this database exists");
}

/// The page of the documentation that lists permissions.
const PERMISSIONS: &str = include_str!("../../docs/redis.md");

/// The documented `ACL SETUSER` command for this user, and where it ends.
fn documented_user(name: &str) -> (Vec<String>, usize) {
    let start = PERMISSIONS.find(&format!("ACL SETUSER {name} ")).expect("it is documented");
    let end = start + PERMISSIONS[start..].find("```").expect("the end of the code block");
    let words = PERMISSIONS[start..end].split_whitespace().filter(|word| *word != "\\");
    (words.map(ToOwned::to_owned).collect(), end)
}

/// The documented permissions of a service, with the additional ones of a kind of lock.
fn documented_acl(kind: &str) -> Vec<String> {
    let (mut words, end) = documented_user("locker");
    let row = format!("| {kind} | `");
    let additional = PERMISSIONS[end..].lines().find_map(|line| line.strip_prefix(&row));
    assert!(additional.is_some() || kind == "`Token`", "{row}");
    let additional = additional.unwrap_or_default().trim_end_matches("` |").split_whitespace();
    words.extend(additional.map(ToOwned::to_owned));
    words
}

#[tokio::test]
async fn the_documented_permissions_are_enough() {
    permissions_are_enough(WireFormat::Token).await;
}

#[tokio::test]
async fn the_documented_permissions_are_enough_for_redisson() {
    permissions_are_enough(WireFormat::Redisson).await;
}

#[tokio::test]
async fn the_documented_permissions_are_enough_for_timestamp() {
    permissions_are_enough(WireFormat::Timestamp).await;
}

#[tokio::test]
async fn the_documented_permissions_are_enough_for_read_write_locks() {
    let server = RedisServer::start();
    let acl = documented_acl("read-write locks and semaphores");
    let (one, two) = permitted_clients(&server, &acl, WireFormat::Token).await;
    let reader = one.read_write("k").read().acquire().await.expect("free");
    assert!(of_read_write(&reader).try_upgrade().await.expect("permitted"));
    reader.fencing_token().await.expect("permitted");
    of_read_write(&reader).downgrade().await.expect("permitted");
    let lock = two.read_write("k").write().min_hold(LEASE / 2);
    let writer = tokio::spawn(async move { lock.acquire().await });
    tokio::time::sleep(LEASE * 3 / 2).await;
    assert!(reader.is_held(), "the lease is renewed");
    reader.release().await.expect("permitted");
    let writer = writer.await.expect("no panic").expect("its turn");
    writer.release().await.expect("permitted");
    one.read_write("k").read().run(async {}).await.expect("after the minimum hold");
}

#[tokio::test]
async fn the_documented_permissions_are_enough_for_semaphores() {
    let server = RedisServer::start();
    let acl = documented_acl("read-write locks and semaphores");
    let (one, two) = permitted_clients(&server, &acl, WireFormat::Token).await;
    let first = one.semaphore("k", 3).permits(2).acquire().await.expect("free");
    let lock = two.semaphore("k", 3).permits(2).min_hold(LEASE / 2);
    let waits = tokio::spawn(async move { lock.acquire().await });
    tokio::time::sleep(LEASE * 3 / 2).await;
    assert!(first.is_held(), "the lease is renewed");
    first.release().await.expect("permitted");
    let waits = waits.await.expect("no panic").expect("its turn");
    waits.release().await.expect("permitted");
    one.semaphore("k", 3).permits(3).run(async {}).await.expect("after the minimum hold");
}

#[tokio::test]
async fn the_documented_permissions_are_enough_for_sets_fair_calls_leadership_and_periods() {
    let server = RedisServer::start();
    let acl = documented_acl("`Token`");
    let (one, two) = permitted_clients(&server, &acl, WireFormat::Token).await;
    let set = one.lock_all(["a", "b"]).acquire().await.expect("free");
    set.fencing_token().await.expect("permitted");
    let fair = two.lock("a").fair();
    let waits = tokio::spawn(async move { fair.acquire().await });
    tokio::time::sleep(LEASE * 3 / 2).await;
    assert!(set.is_held(), "the leases are renewed");
    set.release().await.expect("permitted");
    waits.await.expect("no panic").expect("its turn").release().await.expect("permitted");
    let leader = one.leadership("reports").campaign().await.expect("free");
    let seen = async || two.leadership("reports").leader().await.expect("permitted");
    let announced = async {
        while seen().await.is_none_or(|seen| seen.term != leader.term()) {
            tokio::time::sleep(LEASE / 10).await;
        }
    };
    within(LEASE * 60, announced).await.expect("the leader is announced");
    leader.resign().await.expect("permitted");
    one.periodic("job", LEASE * 3600).run(async {}).await.expect("permitted");
    let last = two.last_run("job").await.expect("permitted");
    assert!(last.is_some_and(|last| last.ended.is_some()), "its end is recorded");
}

#[tokio::test]
async fn the_documented_permissions_are_enough_for_an_operator() {
    let server = RedisServer::start();
    let (acl, _) = documented_user("operator");
    server.tell(&acl.iter().map(String::as_str).collect::<Vec<_>>());
    let in_shop = async |url: &str| {
        LockClient::builder().url(url).namespace("shop").lease(LEASE).connect().await.expect("up")
    };
    let (service, operator) =
        (in_shop(&server.url()).await, in_shop(&server.url_as("operator:password")).await);
    let mut guards = vec![
        service.read_write("shared").read().acquire().await.expect("free"),
        service.semaphore("permits", 3).permits(2).acquire().await.expect("free"),
    ];
    for format in [WireFormat::Token, WireFormat::Redisson, WireFormat::Timestamp] {
        let lock = service.lock(format!("{format:?}")).wire_format(format);
        guards.push(lock.acquire().await.expect("free"));
    }
    let admin = LockAdmin::new(&operator);
    let holds = admin.holds().await.expect("permitted").answers;
    assert_eq!(holds.iter().map(|answer| answer.found.len()).sum::<usize>(), guards.len());
    let (mut scan, mut found) = (admin.scan("*").pause(0), 0);
    while let Some(locks) = scan.next().await.expect("permitted") {
        assert!(locks.iter().all(|lock| lock.holders[0].client.process.is_some()), "{locks:?}");
        found += locks.len();
    }
    assert_eq!((found, scan.unreadable()), (guards.len(), 0));
    for guard in &guards {
        let key = guard.key().strip_prefix("shop:").expect("the namespace");
        let holder = admin.holder(key).await.expect("permitted").expect("held");
        assert!(holder.client.is_some_and(|client| client.process.is_some()), "{key}");
        assert!(admin.inspect(key).await.expect("permitted").is_some(), "{key}");
        let revocation = admin.revoke(key).await.expect("permitted");
        assert_eq!((revocation.revoked, revocation.refused), (0, 1), "{key}");
    }
    assert_nothing_refused(&server);
}

#[tokio::test]
async fn the_documented_permissions_are_enough_to_delete_locks() {
    for (kind, format) in [
        ("`Token`", WireFormat::Token),
        ("`Redisson`", WireFormat::Redisson),
        ("`Timestamp`", WireFormat::Timestamp),
        ("read-write locks and semaphores", WireFormat::Token),
    ] {
        let server = RedisServer::start();
        let (one, two) = permitted_clients(&server, &documented_acl(kind), format).await;
        let guards = if kind.starts_with('`') {
            vec![one.lock("k").acquire().await.expect("free")]
        } else {
            vec![
                one.read_write("k").write().acquire().await.expect("free"),
                one.semaphore("permits", 3).permits(2).acquire().await.expect("free"),
            ]
        };
        let admin = LockAdmin::new(&two);
        for guard in &guards {
            let key = guard.key().strip_prefix("shop:").expect("the namespace");
            let state = admin.inspect(key).await.expect("permitted").expect("held");
            let deletion = admin.delete(key, &state.holders[0].token).await;
            assert_eq!(deletion, Ok(Deletion::Deleted), "{kind}");
        }
        assert_nothing_refused(&server);
    }
}

#[tokio::test]
async fn without_a_permission_for_sets_their_keys_are_locked_one_after_the_other() {
    let server = RedisServer::start();
    let mut acl = documented_acl("`Token`");
    acl.retain(|word| word != "+exists");
    let (one, two) = permitted_clients(&server, &acl, WireFormat::Token).await;
    let set = one.lock_all(["a", "b"]).acquire().await.expect("free");
    assert!(two.lock("a").try_acquire().await.expect("up").is_none());
    assert!(two.lock("b").try_acquire().await.expect("up").is_none());
    set.release().await.expect("permitted");
    drop(two.lock_all(["b", "a"]).acquire().await.expect("free"));
}

/// Two clients of a user with these permissions.
async fn permitted_clients(
    server: &RedisServer,
    acl: &[String],
    wire_format: WireFormat,
) -> (LockClient, LockClient) {
    server.tell(&acl.iter().map(String::as_str).collect::<Vec<_>>());
    let url = server.url_as("locker:password");
    let connect = async || {
        let builder = LockClient::builder().url(&url).namespace("shop").lease(LEASE);
        builder.wire_format(wire_format).connect().await.expect("up")
    };
    (connect().await, connect().await)
}

fn assert_nothing_refused(server: &RedisServer) {
    let mut refused: Vec<redis::Value> = server.command(&["ACL", "LOG"]);
    // The client tries to set its name. Servers before 7.0 log that as refused; it is optional.
    refused.retain(|entry| !format!("{entry:?}").contains("cmd=client "));
    assert!(refused.is_empty(), "{refused:?}");
}

async fn permissions_are_enough(wire_format: WireFormat) {
    let server = RedisServer::start();
    let acl = documented_acl(&format!("`{wire_format:?}`"));
    let (one, two) = permitted_clients(&server, &acl, wire_format).await;
    let guard = one.lock("k").acquire().await.expect("free");
    let lock = two.lock("k");
    let waiter = tokio::spawn(async move { lock.acquire().await.map(|_| Instant::now()) });
    tokio::time::sleep(LEASE * 3 / 2).await;
    assert!(guard.is_held(), "the lease is renewed");
    guard.fencing_token().await.expect("held");
    let released = Instant::now();
    guard.release().await.expect("held");
    let woken = waiter.await.expect("no panic").expect("free");
    let woken = running_time_between(released, woken);
    assert!(woken < LEASE * 2 / 5, "not woken by the release: {woken:?}");
    // Hand-offs inside one process.
    let calls = (0..200).map(|_| {
        let lock = one.lock("hot");
        tokio::spawn(async move { lock.run(tokio::task::yield_now()).await })
    });
    for held in calls.collect::<Vec<_>>() {
        held.await.expect("no panic").expect("free");
    }
    one.lock("kept").min_hold(LEASE / 4).run(async {}).await.expect("free");
    assert!(server.exists("shop:kept"));
    assert_nothing_refused(&server);
    let url = server.url_as("locker:password");
    let outside = LockClient::builder().url(&url).namespace("other").connect().await.expect("up");
    assert!(matches!(outside.lock("k").acquire().await, Err(LockError::Denied { .. })));
}

#[tokio::test]
async fn a_user_without_permission_for_channels_still_gets_the_lock() {
    let (log, server) = (CapturedLog::here(), RedisServer::start());
    server.tell(&["ACL", "SETUSER", "deaf", "on", ">password", "~*", "resetchannels", "+@all"]);
    let url = server.url_as("deaf:password");
    let builder = || LockClient::builder().url(&url).lease(LEASE * 10);
    let (one, two) =
        (builder().connect().await.expect("up"), builder().connect().await.expect("up"));
    let guard = one.lock("whispered").acquire().await.expect("free");
    let lock = two.lock("whispered").wait(LEASE * 10);
    let waiter =
        tokio::spawn(async move { lock.acquire().await.map(|guard| (Instant::now(), guard)) });
    tokio::time::sleep(LEASE / 4).await;
    let released = Instant::now();
    guard.release().await.expect("the lock is released without a wake-up");
    let (got, second) = waiter.await.expect("no panic").expect("by polling");
    let got = running_time_between(released, got);
    assert!(got < LEASE * 3, "not woken by the safety poll: {got:?}");
    second.release().await.expect("the lock is released without a wake-up");
    // A client that hears messages waits, and nobody may send them.
    let hearing = LockClient::builder().url(server.url()).lease(LEASE * 10);
    let hearing = hearing.connect().await.expect("up").lock("whispered").wait(LEASE * 10);
    for _ in 0..2 {
        let guard = one.lock("whispered").acquire().await.expect("free");
        let lock = hearing.clone();
        let waiter = tokio::spawn(async move { lock.acquire().await.map(drop) });
        assert!(until(LEASE * 5, || server.queued("whispered") == 1).await.is_some());
        guard.release().await.expect("the lock is released without a message");
        waiter.await.expect("no panic").expect("by the next check");
        assert!(until(LEASE * 5, || !server.exists("whispered")).await.is_some());
    }
    let warnings = log.lines(&["WARN", "whispered", "cannot publish releases"]);
    assert_eq!(warnings.len(), 1, "one warning per client: {warnings:?}");
}

#[tokio::test]
async fn a_denied_channel_does_not_prevent_other_subscriptions() {
    let server = RedisServer::start();
    let acl = ["resetchannels", "&lock_client:*", "+@all"];
    server.tell(&[&["ACL", "SETUSER", "half", "on", ">password", "~*"], &acl[..]].concat());
    let url = server.url_as("half:password");
    let builder = || LockClient::builder().url(&url).lease(LEASE * 10);
    let (one, two) =
        (builder().connect().await.expect("up"), builder().connect().await.expect("up"));
    let java = one.lock("java").wire_format(WireFormat::Redisson);
    let _java = java.acquire().await.expect("free");
    let unheard = two.lock("java").wire_format(WireFormat::Redisson).wait(LEASE * 10);
    let unheard = tokio::spawn(async move { unheard.acquire().await.map(drop) });
    for round in 0..3 {
        let key = format!("k{round}");
        let guard = one.lock(&key).acquire().await.expect("free");
        let lock = two.lock(&key);
        let waiter = tokio::spawn(async move { lock.acquire().await.map(|_| Instant::now()) });
        let hears = || !server.channels("lock_client:*").is_empty() && server.queued(&key) == 1;
        assert!(until(LEASE * 10, hears).await.is_some(), "the waiter subscribes at once");
        let released = Instant::now();
        guard.release().await.expect("held");
        let got = waiter.await.expect("no panic").expect("woken");
        let got = running_time_between(released, got);
        assert!(got < LEASE / 2, "{got:?}");
    }
    assert!(!unheard.is_finished());
    unheard.abort();
}

#[tokio::test]
async fn a_silent_server_does_not_delay_a_call_past_its_wait() {
    let server = RedisServer::start();
    let client = client(&server.url()).await;
    server.freeze();
    let start = Instant::now();
    match client.lock("k").wait(LEASE).acquire().await {
        Err(LockError::Unavailable { .. }) => {}
        other => panic!("{other:?}"),
    }
    assert!(running_time(start) < LEASE * 2, "{:?}", start.elapsed());
    server.thaw();
    client.lock("k").run(async {}).await.expect("the client reconnects");
}

#[tokio::test]
async fn a_waiter_gets_the_lock_after_a_server_restart() {
    let mut server = RedisServer::start();
    let (one, two) = (client(&server.url()).await, client(&server.url()).await);
    let _guard = one.lock("k").acquire().await.expect("free");
    let lock = two.lock("k").wait(LEASE * 20);
    let waiter = tokio::spawn(async move { lock.acquire().await.map(|_| Instant::now()) });
    tokio::time::sleep(LEASE / 4).await;
    server.kill();
    tokio::time::sleep(LEASE * 2).await;
    assert!(!waiter.is_finished());
    let start = Instant::now();
    server.restart();
    let got = waiter.await.expect("no panic").expect("the restarted server has no keys");
    let took = running_time_between(start, got);
    assert!(took < LEASE * 2, "{took:?}");
}

#[tokio::test]
async fn wake_ups_work_again_after_an_outage() {
    let mut server = RedisServer::start();
    let (one, two) = (client(&server.url()).await, client(&server.url()).await);
    server.restart();
    let guard = one.lock("k").acquire().await.expect("free");
    let lock = two.lock("k");
    let waiter = tokio::spawn(async move { lock.acquire().await.map(|_| Instant::now()) });
    let is_subscribed = || server.channels("*").len() == 1;
    assert!(until(LEASE * 5, is_subscribed).await.is_some(), "it waits");
    // The connection of the subscription is lost.
    server.kill_connections("pubsub");
    assert!(until(LEASE * 5, is_subscribed).await.is_some(), "the subscription is restored");
    let released = Instant::now();
    guard.release().await.expect("held");
    let got = waiter.await.expect("no panic").expect("woken");
    let took = running_time_between(released, got);
    assert!(took < LEASE / 2, "{took:?}");
}

#[tokio::test]
async fn a_failed_release_does_not_hide_the_result_of_the_body() {
    #[distributed_lock(key = "k", client = client)]
    async fn work(client: &LockClient, server: &mut RedisServer) -> Result<u32, LockError> {
        let _ = client;
        server.kill();
        Ok(42)
    }
    let mut server = RedisServer::start();
    let client = client(&server.url()).await;
    assert_eq!(
        work(&client, &mut server).await,
        Ok(42),
        "the result is kept although the release failed"
    );
}

#[tokio::test]
async fn temporary_refusals_are_waited_out() {
    let server = RedisServer::start();
    let client = client(&server.url()).await;
    let held = client.lock("held").acquire().await.expect("free");
    server.tell(&["CONFIG", "SET", "maxmemory", "1"]);
    match client.lock("k").wait(LEASE / 2).acquire().await {
        Err(LockError::Unavailable { cause, .. }) => assert!(cause.starts_with("OOM"), "{cause}"),
        other => panic!("{other:?}"),
    }
    tokio::time::sleep(LEASE * 2).await;
    assert!(held.is_held(), "renewals work on a server that is out of memory");
    let lock = client.lock("k");
    let waiter = tokio::spawn(async move { lock.acquire().await.map(drop) });
    tokio::time::sleep(LEASE / 4).await;
    server.tell(&["CONFIG", "SET", "maxmemory", "0"]);
    waiter.await.expect("no panic").expect("the server has memory again");
}

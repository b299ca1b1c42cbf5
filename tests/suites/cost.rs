//! The cost of operations in commands, as counted by the server.

use std::time::Duration;

use lock_runtime::{
    Identity, LockClient, LockClientBuilder, LockError, distributed_lock, with_client,
};
use lock_tests::RedisServer;
use lock_tests::support::of_read_write;

use crate::support::{LEASE, quiet_client, until};

/// The commands that clients send. The server counts the calls of scripts under other names.
const SENT: [&str; 10] = [
    "set",
    "evalsha",
    "eval",
    "subscribe",
    "unsubscribe",
    "pubsub|numsub",
    "ping",
    "script|load",
    "hello",
    "client|setinfo",
];

/// Without a presence, which has a cost of its own.
fn builder(server: &RedisServer) -> LockClientBuilder {
    let builder = LockClient::builder().url(server.url()).identity(Identity::none());
    builder.lease(LEASE).wait(LEASE * 20)
}

async fn client(server: &RedisServer) -> LockClient {
    builder(server).connect().await.expect("up")
}

fn sent(server: &RedisServer) -> Vec<(&'static str, u64)> {
    SENT.iter().map(|command| (*command, server.calls(command))).collect()
}

/// The commands that were sent between two counts.
fn between(
    before: &[(&'static str, u64)],
    after: &[(&'static str, u64)],
) -> Vec<(&'static str, u64)> {
    let pairs = before.iter().zip(after);
    pairs.map(|(old, new)| (new.0, new.1 - old.1)).filter(|(_, calls)| *calls > 0).collect()
}

#[distributed_lock(key = "order:<id>")]
async fn outer(id: u64) -> Result<(), LockError> {
    inner(id).await
}

#[distributed_lock(key = "order:<id>")]
async fn inner(id: u64) -> Result<(), LockError> {
    let _ = id;
    Ok(())
}

/// Its leases are so long that no renewal comes in between.
async fn warm(server: &RedisServer) -> LockClient {
    warmed(server, quiet_client(&server.url()).await).await
}

async fn warmed(server: &RedisServer, client: LockClient) -> LockClient {
    with_client(client.clone(), inner(1)).await.expect("free");
    // Each connection loads the scripts when it is opened, and does not wait for the replies.
    let mut loaded = 0;
    let all_loaded = || {
        std::thread::sleep(LEASE / 20);
        let earlier = std::mem::replace(&mut loaded, server.calls("script|load"));
        earlier == loaded
    };
    assert!(until(LEASE * 10, all_loaded).await.is_some(), "scripts are loaded");
    client
}

#[tokio::test]
async fn an_uncontended_call_costs_two_round_trips() {
    let server = RedisServer::start();
    let client = warm(&server).await;
    let before = sent(&server);
    with_client(client, inner(1)).await.expect("free");
    assert_eq!(between(&before, &sent(&server)), [("set", 1), ("evalsha", 1)]);
}

#[tokio::test]
async fn a_readiness_check_costs_one_request_on_each_of_two_connections() {
    let server = RedisServer::start();
    let client = warm(&server).await;
    let before = sent(&server);
    client.ready().await.expect("up");
    assert_eq!(between(&before, &sent(&server)), [("evalsha", 2)]);
}

#[tokio::test]
async fn a_reentrant_call_costs_no_round_trip() {
    let server = RedisServer::start();
    let client = warm(&server).await;
    let before = sent(&server);
    with_client(client, outer(1)).await.expect("free");
    assert_eq!(between(&before, &sent(&server)), [("set", 1), ("evalsha", 1)]);
}

#[tokio::test]
async fn a_thousand_waiters_cost_as_few_commands_as_one() {
    let server = RedisServer::start();
    let (holder, waiting) = (client(&server).await, client(&server).await);
    // A fixed lease, so that only the waiters send requests.
    let guard = holder.lock("k").lease(LEASE * 60).acquire().await.expect("free");
    let before = sent(&server);
    let begun = tokio::time::Instant::now();
    let mut waiters = tokio::task::JoinSet::new();
    for _ in 0..1000 {
        let lock = waiting.lock("k").wait(LEASE * 3);
        waiters.spawn(async move { lock.acquire().await.map(drop) });
    }
    while let Some(waiter) = waiters.join_next().await {
        assert!(matches!(waiter.expect("no panic"), Err(LockError::Busy { .. })));
    }
    let calls = between(&before, &sent(&server));
    let of =
        |name| calls.iter().find(|(command, _)| *command == name).map_or(0, |(_, calls)| *calls);
    // All waiters give up at about the same time. Until then, one of them checks the key at most
    // twice a second. The others are the first attempts. (The very first one is a `SET`, which is not
    // sent if the polls of all the calls take longer than a response timeout.)
    assert!(of("set") <= 1, "{calls:?}");
    assert_eq!(of("subscribe"), 1, "{calls:?}");
    let checks = (begun.elapsed().as_secs() + 1) * 2;
    assert!(of("evalsha") <= checks + 6, "{calls:?}");
    drop(guard);
}

/// All keys with waiters are checked together.
#[tokio::test]
async fn waiting_for_many_keys_costs_few_commands() {
    const KEYS: u64 = 300;
    let server = RedisServer::start();
    let waiting = client(&server).await;
    let mut waiters = tokio::task::JoinSet::new();
    for n in 0..KEYS {
        let key = format!("k{n}");
        server.tell(&["SET", &key, "stranger", "PX", "100000"]);
        let lock = waiting.lock(key).wait(LEASE * 60);
        waiters.spawn(async move { lock.acquire().await.map(drop) });
    }
    // Each waiter sends a `SET`, and then a script that returns when the key expires.
    let settled = || server.calls("set") == 2 * KEYS && server.calls("evalsha") >= KEYS;
    assert!(until(LEASE * 20, settled).await.is_some());
    tokio::time::sleep(LEASE / 4).await;
    let (tries, looks) = (server.calls("evalsha"), server.calls("pttl"));
    tokio::time::sleep(LEASE * 4).await;
    let (tries, looks) = (server.calls("evalsha") - tries, server.calls("pttl") - looks);
    assert!(looks >= 2 * KEYS, "only {looks} checks; each key is checked once a second");
    assert!(tries <= looks / 20, "{tries} requests; one request checks a hundred keys");
}

#[tokio::test]
async fn waits_that_end_at_different_times_cost_few_commands() {
    let server = RedisServer::start();
    let (holder, waiting) = (client(&server).await, client(&server).await);
    let _guard = holder.lock("k").lease(LEASE * 60).acquire().await.expect("free");
    let before = sent(&server);
    let begun = tokio::time::Instant::now();
    let mut waiters = tokio::task::JoinSet::new();
    for n in 0..500 {
        let lock = waiting.lock("k").wait(LEASE + LEASE * n / 250);
        waiters.spawn(async move { lock.acquire().await.map(drop) });
    }
    while let Some(waiter) = waiters.join_next().await {
        let outcome = waiter.expect("no panic");
        assert!(matches!(outcome, Err(LockError::Busy { .. })), "{outcome:?}");
    }
    let calls = between(&before, &sent(&server));
    let scripts = calls.iter().find(|(command, _)| *command == "evalsha").map_or(0, |it| it.1);
    // Two checks a second, and the first attempts.
    assert!(scripts <= (begun.elapsed().as_secs() + 1) * 2 + 6, "{calls:?}");
}

/// Lets the tasks of a client share one key. Returns the number of grants and of commands.
async fn share(client: &LockClient, server: &RedisServer, tasks: u64, each: u64) -> (u64, u64) {
    let before = sent(server);
    let mut sharing = tokio::task::JoinSet::new();
    for _ in 0..tasks {
        let lock = client.lock("hot").wait(LEASE * 60);
        sharing.spawn(async move {
            for _ in 0..each {
                lock.acquire().await?.release().await?;
            }
            Ok::<_, LockError>(())
        });
    }
    while let Some(task) = sharing.join_next().await {
        task.expect("no panic").expect("granted");
    }
    let calls = between(&before, &sent(server));
    (tasks * each, calls.iter().map(|(_, calls)| calls).sum())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_hand_offs_cost_at_most_one_command() {
    let server = RedisServer::start();
    let client = warm(&server).await;
    let (grants, calls) = share(&client, &server, 64, 100).await;
    assert!(calls * 10 <= grants, "{calls} commands for {grants} grants");
}

/// The control of the test above.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_hand_offs_each_grant_costs_two_commands() {
    let server = RedisServer::start();
    let builder = builder(&server).handoff_limit(0, LEASE);
    let client = builder.connect().await.expect("up");
    let (grants, calls) = share(&client, &server, 64, 10).await;
    assert!(calls >= grants * 2, "{calls} commands for {grants} grants");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_thousand_waiters_cost_one_subscription_and_few_commands() {
    const WAITERS: u64 = 10_000;
    let server = RedisServer::plain(&[]);
    let (holder, waiting) = (client(&server).await, client(&server).await);
    let guard = holder.lock("k").acquire().await.expect("free");
    let before = sent(&server);
    let mut waiters = tokio::task::JoinSet::new();
    for _ in 0..WAITERS {
        let lock = waiting.lock("k").wait(LEASE * 60);
        waiters.spawn(async move { lock.acquire().await?.release().await });
    }
    let all = usize::try_from(WAITERS).expect("few") - 1;
    let queued = until(LEASE * 10, || waiting.stats().queued == all).await;
    assert!(queued.is_some(), "{:?}", waiting.stats());
    guard.release().await.expect("held");
    while let Some(waiter) = waiters.join_next().await {
        waiter.expect("no panic").expect("granted");
    }
    let calls = between(&before, &sent(&server));
    let all: u64 = calls.iter().map(|(_, calls)| calls).sum();
    assert!(all * 10 <= WAITERS, "{calls:?}");
    assert!(calls.contains(&("subscribe", 1)), "{calls:?}");
    let clients: String = server.command(&["CLIENT", "LIST"]);
    // Three connections per client with one runtime, and the connection of this command.
    assert!(clients.lines().count() <= 7, "{clients}");
}

#[tokio::test]
async fn scripts_survive_a_script_flush() {
    let server = RedisServer::start();
    let client = warm(&server).await;
    server.tell(&["SCRIPT", "FLUSH"]);
    let before = sent(&server);
    client.lock("k").run(async {}).await.expect("free");
    let calls = between(&before, &sent(&server));
    assert_eq!(calls, [("set", 1), ("evalsha", 1), ("eval", 1)], "the script is sent once as text");
    assert!(!server.exists("k"));
    let before = sent(&server);
    client.lock("k").run(async {}).await.expect("free");
    assert_eq!(between(&before, &sent(&server)), [("set", 1), ("evalsha", 1)]);
}

#[tokio::test]
async fn an_idle_client_sends_nothing() {
    let server = RedisServer::plain(&[]);
    let client = builder(&server).identity(Identity::of_process()).connect().await.expect("up");
    let _client = warmed(&server, client).await;
    let before = sent(&server);
    tokio::time::sleep(LEASE * 4).await;
    let sent = between(&before, &sent(&server));
    assert!(sent.is_empty() || sent == [("set", 1)], "the presence after the last lock: {sent:?}");
}

/// One `SET` in a third of a lease, but at most one in a second, while locks are acquired.
#[tokio::test]
async fn a_presence_costs_one_command_a_second() {
    let server = RedisServer::start();
    let client = builder(&server).identity(Identity::of_process()).connect().await.expect("up");
    let guard = client.lock("held").acquire().await.expect("free");
    let before = sent(&server);
    let (began, mut locks) = (tokio::time::Instant::now(), 0);
    while began.elapsed() < LEASE * 3 {
        client.lock("k").run(async {}).await.expect("free");
        locks += 1;
    }
    let seconds = began.elapsed().as_secs() + 1;
    let calls = between(&before, &sent(&server));
    let sets = calls.iter().find(|(command, _)| *command == "set").map_or(0, |(_, calls)| *calls);
    let presences = sets.saturating_sub(locks);
    assert!((1..=seconds).contains(&presences), "{presences} in {seconds} s, {locks} locks");
    assert!(guard.is_held());
}

/// The token, and the presence of the client that it names.
#[tokio::test]
async fn a_call_that_ends_busy_asks_twice_who_has_the_lock() {
    let server = RedisServer::start();
    let (one, two) = (warm(&server).await, warm(&server).await);
    let _held = one.lock("k").lease(LEASE * 60).acquire().await.expect("free");
    for (wait, questions) in [(Some(LEASE / 10), 2), (Some(Duration::ZERO), 2), (None, 0)] {
        let names = ["type", "getrange"];
        let asked = || names.map(|name| server.calls(name));
        let (before, attempts) = (asked(), server.calls("pttl"));
        match wait {
            Some(wait) => drop(two.lock("k").wait(wait).acquire().await.expect_err("busy")),
            None => assert!(two.lock("k").try_acquire().await.expect("up").is_none()),
        }
        // Each attempt by script reads the time left and the value.
        let attempts = server.calls("pttl") - attempts;
        let after = asked();
        assert_eq!(after[0] - before[0], questions / 2, "the script looks at the type");
        assert_eq!(after[1] - before[1], questions + attempts, "{attempts} attempts");
        // Calls share what they have found for a second.
        tokio::time::sleep(Duration::from_millis(1010)).await;
    }
}

#[tokio::test]
async fn the_readers_of_a_process_cost_as_much_as_one() {
    let server = RedisServer::start();
    let client = warm(&server).await;
    let lock = client.read_write("shared");
    let before = sent(&server);
    let first = lock.read().acquire().await.expect("free");
    assert_eq!(between(&before, &sent(&server)), [("evalsha", 1)]);
    let before = sent(&server);
    let others: Vec<_> = (0..20).map(|_| tokio::spawn(lock.read().acquire())).collect();
    for other in others {
        other.await.expect("no panic").expect("shared").release().await.expect("held");
    }
    assert_eq!(between(&before, &sent(&server)), [], "the others join");
    first.release().await.expect("held");
    assert_eq!(between(&before, &sent(&server)), [("evalsha", 1)]);
    let before = sent(&server);
    lock.write().acquire().await.expect("free").release().await.expect("held");
    assert_eq!(between(&before, &sent(&server)), [("evalsha", 2)]);
}

/// They stand in one queue of this process, and join the first of them.
#[tokio::test]
async fn readers_that_wait_cost_as_much_as_one() {
    let server = RedisServer::start();
    let (reading, writing) = (warm(&server).await, client(&server).await);
    let (lock, waits) = (reading.read_write("shared").read(), crate::support::LEASE * 20);
    let writer = writing.read_write("shared").write().lease(waits).acquire().await.expect("free");
    let calls = (0..64).map(|_| tokio::spawn(lock.clone().wait(waits).acquire()));
    let calls: Vec<_> = calls.collect();
    let queued = until(LEASE * 10, || server.queued("shared") == 1).await;
    assert!(queued.is_some(), "{} claims", server.queued("shared"));
    let before = server.calls("evalsha");
    writer.release().await.expect("held");
    let mut guards = Vec::new();
    for call in calls {
        guards.push(call.await.expect("no panic").expect("its turn"));
    }
    // The release; a check or a renewal may have come at the same time.
    let requests = server.calls("evalsha") - before;
    assert!(requests < 10, "{requests} requests for 64 readers");
    drop(guards);
}

#[tokio::test]
async fn permits_cost_as_much_as_a_lock_however_many_they_are() {
    let server = RedisServer::start();
    let client = warm(&server).await;
    let semaphore = client.semaphore("shared", 300);
    for count in [1, 2, 100] {
        let before = sent(&server);
        let guard = semaphore.permits(count).acquire().await.expect("free");
        assert_eq!(between(&before, &sent(&server)), [("evalsha", 1)]);
        let before = sent(&server);
        assert!(semaphore.permits(300).try_acquire().await.expect("up").is_none());
        assert_eq!(between(&before, &sent(&server)), [("evalsha", 1)]);
        let before = sent(&server);
        guard.release().await.expect("held");
        assert_eq!(between(&before, &sent(&server)), [("evalsha", 1)]);
    }
}

/// One of them stands in the queue of the server, and takes over what the others leave.
#[tokio::test]
async fn passing_permits_on_costs_no_command() {
    let server = RedisServer::start();
    let client = warm(&server).await;
    let semaphore = client.semaphore("shared", 2);
    let lock = semaphore.permits(1).wait(crate::support::LEASE * 60);
    let held = [lock.acquire().await.expect("free"), lock.acquire().await.expect("free")];
    let calls: Vec<_> = (0..64)
        .map(|_| {
            let lock = lock.clone();
            tokio::spawn(async move { lock.run(tokio::task::yield_now()).await })
        })
        .collect();
    let queued = until(LEASE * 10, || server.queued("shared") == 1).await;
    assert!(queued.is_some(), "{} claims", server.queued("shared"));
    tokio::time::sleep(LEASE / 10).await;
    let before = server.calls("evalsha");
    for guard in held {
        guard.release().await.expect("held");
    }
    for call in calls {
        call.await.expect("no panic").expect("its turn");
    }
    // The limit of hand-offs, and a check or a renewal that may have come at the same time.
    let requests = server.calls("evalsha") - before;
    assert!(requests < 30, "{requests} requests for 64 calls");
}

/// Asserts that a call sends these commands, and perhaps some to subscribe.
async fn assert_cost<T>(
    server: &RedisServer,
    call: impl Future<Output = Result<T, LockError>>,
    commands: &[(&'static str, u64)],
    what: &str,
) -> Result<T, LockError> {
    let before = sent(server);
    let result = call.await;
    let mut sent = between(&before, &sent(server));
    sent.retain(|(command, _)| !command.ends_with("subscribe"));
    assert_eq!(sent, commands, "{what}");
    result
}

/// As in `docs/performance.md`.
#[tokio::test]
async fn calls_of_each_kind_cost_what_is_documented() {
    let server = RedisServer::start();
    // No renewal comes in between.
    let builder = builder(&server).lease(LEASE * 600);
    let connected = async || {
        let client = builder.clone().connect().await.expect("up");
        warmed(&server, client).await
    };
    let (client, other) = (connected().await, connected().await);
    let lock = client.lock("single");
    let guard = assert_cost(&server, lock.acquire(), &[("set", 1)], "a lock").await.expect("free");
    // A script that calls SET counts for both.
    let fenced = [("set", 1), ("evalsha", 1)];
    let token = assert_cost(&server, guard.fencing_token(), &fenced, "a token").await;
    let again = assert_cost(&server, guard.fencing_token(), &[], "the same token").await;
    assert_eq!(token, again);
    let attempt = other.lock("single").try_acquire();
    let busy = [("set", 1), ("evalsha", 1)];
    let busy = assert_cost(&server, attempt, &busy, "a busy lock").await.expect("up");
    assert!(busy.is_none());

    let reader = client.read_write("both").read().acquire();
    let reader = assert_cost(&server, reader, &[("evalsha", 1)], "a reader").await.expect("free");
    let upgraded =
        assert_cost(&server, of_read_write(&reader).try_upgrade(), &[("evalsha", 1)], "an upgrade")
            .await;
    assert_eq!(upgraded, Ok(true));
    assert_cost(&server, of_read_write(&reader).downgrade(), &[("evalsha", 1)], "a downgrade")
        .await
        .expect("held");

    let set = client.lock_all(["{set}a", "{set}b", "{set}c"]);
    let set = assert_cost(&server, set.acquire(), &[("set", 3), ("evalsha", 1)], "three locks")
        .await
        .expect("free");
    assert_cost(&server, set.release(), &[("evalsha", 1)], "their release").await.expect("held");

    let work = client.periodic("work", LEASE * 3600);
    // The acquisition of a run is a script that calls SET.
    let run = [("set", 1), ("evalsha", 4)];
    assert_cost(&server, work.run(async {}), &run, "a run").await.expect("the first");
    let none = [("set", 1), ("evalsha", 3)];
    let again = assert_cost(&server, work.run(async {}), &none, "no run").await;
    assert!(matches!(again, Err(LockError::Busy { .. })), "{again:?}");
}

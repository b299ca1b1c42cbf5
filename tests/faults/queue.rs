//! The queue of waiting claims, between processes.
//!
//! Some clients of these tests are not real: an entry that the test puts into a queue, with or
//! without a connection that listens to its messages.

use std::time::Duration;

use lock_runtime::{LockClient, LockError, LockGuard};
use lock_tests::{CapturedLog, RedisServer, running_time_between, within};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};

use crate::support::{
    LEASE, client, client_with_lease, client_without_reports, milliseconds, until, until_idle,
};

/// The longest time until a claim finds out by itself that its lock was given to it.
const CHECK: Duration = Duration::from_secs(1);

/// The id of a client that does not exist.
const NOBODY: &str = "00000000-0000-4000-8000-000000000000";

/// The queue of the lock `k`, in its hash slot.
const QUEUE: &str = "lock_queue:{25578}:k";

/// The call of a client for the lock `k`, which stands in the queue when this function returns.
async fn waiter(server: &RedisServer, client: &LockClient) -> JoinHandle<(LockGuard, Instant)> {
    let (lock, before) = (client.lock("k").wait(LEASE * 60), server.queued("k"));
    let waiter = tokio::spawn(async move {
        let guard = lock.acquire().await.expect("the server is up");
        (guard, Instant::now())
    });
    // A claim whose client does not hear messages yet has no client.
    let is_queued = || server.queued("k") > before && !last_claim(server)[1].starts_with('-');
    assert!(until(LEASE * 10, is_queued).await.is_some(), "the call does not queue");
    // Until the call has the answer to its claim, it counts as one whose outcome is unknown, and dropping it
    // undoes the claim in another way. On a busy machine, the answer and one timer can be due together.
    for _ in 0..5 {
        tokio::time::sleep(LEASE / 500).await;
    }
    waiter
}

/// The owner id, the client and the ticket of the last claim in the queue.
fn last_claim(server: &RedisServer) -> [String; 3] {
    // Entries that are no claims have higher scores.
    let (highest, lowest) = ("(8000000000000000", "-inf");
    let last = ["ZREVRANGEBYSCORE", QUEUE, highest, lowest, "WITHSCORES", "LIMIT", "0", "1"];
    let last: Vec<String> = server.command(&last);
    let [entry, ticket] = &last[..] else { panic!("{last:?}") };
    [&entry[..32], &entry[32..68], ticket].map(str::to_owned)
}

/// Gives the lock to the first claim, as a release does, but sends no message.
fn give_without_message(server: &RedisServer, lease: Duration) {
    let first: Vec<String> = server.command(&["ZPOPMIN", QUEUE]);
    server.tell(&["SET", "k", &first[0][..32], "PX", &milliseconds(lease)]);
}

fn in_cluster(server: &RedisServer) -> bool {
    server.url().contains("cluster")
}

/// Sends a message to a client.
fn send(server: &RedisServer, client: &str, message: &str) {
    let reached: u64 = if in_cluster(server) {
        server.command(&["SPUBLISH", &format!("lock_client:{{25578}}:{client}"), message])
    } else {
        server.command(&["PUBLISH", &format!("lock_client:{client}"), message])
    };
    assert_eq!(reached, 1);
}

#[tokio::test]
async fn waiting_clients_get_the_lock_in_the_order_of_their_calls() {
    let server = RedisServer::start();
    // The lease of a transfer is then long enough for a busy machine.
    let holder = client_with_lease(&server.url(), LEASE * 60).await;
    let mut clients = Vec::new();
    for _ in 0..6 {
        clients.push(client_with_lease(&server.url(), LEASE * 60).await);
    }
    let guard = holder.lock("k").acquire().await.expect("free");
    let mut waiters = Vec::new();
    for client in &clients {
        waiters.push(waiter(&server, client).await);
    }
    let mut last = Instant::now();
    guard.release().await.expect("held");
    for waiter in waiters {
        let (guard, granted) = waiter.await.expect("no panic");
        assert!(granted > last, "a later call came first");
        last = granted;
        guard.release().await.expect("held");
    }
}

/// Each of its releases leaves a gap, and it asks for the lock at once.
#[tokio::test]
async fn a_client_that_holds_the_lock_for_long_lets_others_have_it() {
    let server = RedisServer::start();
    let (busy, other) = (client(&server.url()).await, client(&server.url()).await);
    let lock = busy.lock("k").wait(LEASE * 60);
    let guard = lock.acquire().await.expect("free");
    let busy = tokio::spawn(async move {
        let mut guard = guard;
        loop {
            sleep(LEASE).await;
            guard.release().await.expect("held");
            guard = lock.acquire().await.expect("the server is up");
        }
    });
    for _ in 0..3 {
        let waiter = waiter(&server, &other).await;
        let granted = within(LEASE * 3, waiter).await.expect("it gets its turn");
        granted.expect("no panic").0.release().await.expect("held");
    }
    busy.abort();
}

#[tokio::test]
async fn a_call_that_gives_up_leaves_its_place_to_the_next_call_of_its_process() {
    let server = RedisServer::start();
    let url = server.url();
    let client = || client_without_reports(&url, LEASE);
    let (holder, one, two) = (client().await, client().await, client().await);
    let guard = holder.lock("k").acquire().await.expect("free");
    let impatient = one.lock("k").wait(LEASE / 2);
    let impatient = tokio::spawn(async move { impatient.acquire().await.map(drop) });
    assert!(until(LEASE * 10, || server.queued("k") == 1).await.is_some());
    let patient = one.lock("k").wait(LEASE * 60);
    let patient = tokio::spawn(async move { patient.acquire().await });
    let other = waiter(&server, &two).await;
    let given_up = impatient.await.expect("no panic");
    assert!(matches!(given_up, Err(LockError::Busy { .. })), "{given_up:?}");
    assert_eq!(server.queued("k"), 2, "the process keeps its place");
    let requests = server.calls("evalsha");
    guard.release().await.expect("held");
    let first = within(LEASE * 5, patient).await.expect("its turn").expect("no panic");
    assert!(!other.is_finished(), "a later process came first");
    assert!(server.calls("evalsha") <= requests + 2, "the place costs no request");
    first.expect("free").release().await.expect("held");
    other.await.expect("no panic").0.release().await.expect("held");
}

#[tokio::test]
async fn claims_of_calls_that_give_up_leave_the_queue() {
    let server = RedisServer::start();
    let (holder, other) = (client(&server.url()).await, client(&server.url()).await);
    let guard = holder.lock("k").acquire().await.expect("free");
    for _ in 0..3 {
        let cancelled = waiter(&server, &other).await;
        cancelled.abort();
        let left = until(LEASE * 5, || server.queued("k") == 0).await;
        assert!(left.is_some(), "the claim has not left the queue");
    }
    guard.release().await.expect("held");
    until_idle(&other, LEASE * 5).await;
    assert!(!server.exists("k"));
}

#[tokio::test]
async fn ten_thousand_dead_claims_delay_a_release_and_the_next_claim_only_a_little() {
    let server = RedisServer::start();
    let (holder, other) = (client(&server.url()).await, client(&server.url()).await);
    let guard = holder.lock("k").acquire().await.expect("free");
    let mut add = redis::cmd("ZADD");
    add.arg(QUEUE);
    for n in 0..10_000 {
        add.arg(n + 1).arg(format!("{n:032x}{NOBODY}60000"));
    }
    add.exec(&mut server.connection()).expect("free");
    let waiter = waiter(&server, &other).await;
    let released = Instant::now();
    guard.release().await.expect("held");
    let (guard, granted) =
        within(LEASE * 20, waiter).await.expect("passed over").expect("no panic");
    let took = running_time_between(released, granted);
    assert!(took < CHECK * 12, "{took:?}");
    guard.release().await.expect("held");
}

#[tokio::test]
async fn a_client_that_does_not_react_costs_the_others_the_lease_of_a_transfer() {
    let server = RedisServer::start();
    let (holder, other) = (client(&server.url()).await, client(&server.url()).await);
    let guard = holder.lock("k").acquire().await.expect("free");
    // It hears its message, and does nothing.
    let mut deaf = server.connection();
    let (subscribe, channel) = if in_cluster(&server) {
        ("SSUBSCRIBE", format!("lock_client:{{25578}}:{NOBODY}"))
    } else {
        ("SUBSCRIBE", format!("lock_client:{NOBODY}"))
    };
    redis::cmd(subscribe).arg(channel).exec(&mut deaf).expect("allowed");
    let lease = LEASE / 2;
    let entry = format!("{:032x}{NOBODY}{}", 1, lease.as_millis());
    server.tell(&["ZADD", QUEUE, "1", &entry]);
    let waiter = waiter(&server, &other).await;
    let released = Instant::now();
    guard.release().await.expect("held");
    let (guard, granted) = waiter.await.expect("no panic");
    let took = granted - released;
    let running = running_time_between(released, granted);
    assert!(took >= lease * 9 / 10 && running < lease + CHECK, "{took:?}");
    guard.release().await.expect("held");
}

/// The next check finds that the claim has left the queue.
#[tokio::test]
async fn a_lost_message_costs_one_check() {
    let server = RedisServer::start();
    let client = client_without_reports(&server.url(), LEASE * 60).await;
    server.tell(&["SET", "k", "stranger"]);
    let waiter = waiter(&server, &client).await;
    give_without_message(&server, Duration::from_secs(3));
    let given = Instant::now();
    let granted = within(CHECK * 5, waiter).await.expect("the lock is found by a check");
    let (guard, granted) = granted.expect("no panic");
    let took = running_time_between(given, granted);
    assert!(took < CHECK * 2, "{took:?}");
    guard.release().await.expect("held");
    assert!(!server.exists("k"));
}

/// The lock was given to the claim, has expired, and was taken by another client.
#[tokio::test]
async fn a_message_that_is_late_does_not_count() {
    let server = RedisServer::start();
    let client = client_without_reports(&server.url(), LEASE * 60).await;
    server.tell(&["SET", "k", "stranger"]);
    let waiter = waiter(&server, &client).await;
    let [owner, id, ticket] = last_claim(&server);
    let lease = LEASE / 5;
    give_without_message(&server, lease);
    sleep(lease * 6 / 5).await;
    server.tell(&["SET", "k", "stranger"]);
    send(&server, &id, &format!("{owner} {ticket} {}", lease.as_millis()));
    sleep(LEASE / 2).await;
    assert!(!waiter.is_finished(), "granted although another client has the lock");
    server.tell(&["DEL", "k"]);
    waiter.await.expect("no panic").0.release().await.expect("held");
}

/// The claim has lost its first place since, and has just been confirmed at its second one.
#[tokio::test]
async fn a_message_about_an_earlier_place_does_not_count() {
    let server = RedisServer::start();
    let client = client_without_reports(&server.url(), LEASE * 60).await;
    server.tell(&["SET", "k", "stranger"]);
    let waiter = waiter(&server, &client).await;
    let [owner, id, ticket] = last_claim(&server);
    let _: Vec<String> = server.command(&["ZPOPMIN", QUEUE]);
    // The next check finds that, and the claim queues again.
    assert!(until(CHECK * 5, || server.queued("k") == 1).await.is_some(), "it queues again");
    assert_ne!(last_claim(&server)[2], ticket);
    send(&server, &id, &format!("{owner} {ticket} 3000"));
    sleep(LEASE / 2).await;
    assert!(!waiter.is_finished(), "granted although another client has the lock");
    server.tell(&["DEL", "k"]);
    waiter.await.expect("no panic").0.release().await.expect("held");
}

#[tokio::test]
async fn a_queue_of_another_type_is_not_changed_and_calls_poll() {
    let (log, server) = (CapturedLog::here(), RedisServer::start());
    let (holder, other) = (client(&server.url()).await, client(&server.url()).await);
    let guard = holder.lock("k").acquire().await.expect("free");
    server.tell(&["SET", QUEUE, "foreign", "EX", "1000"]);
    let lock = other.lock("k").wait(LEASE * 60);
    let waiter = tokio::spawn(async move { lock.acquire().await.map(drop) });
    let warnings = || log.lines(&["WARN", "cannot put a waiting call into the queue", "WRONGTYPE"]);
    assert!(until(LEASE * 10, || warnings().len() == 1).await.is_some(), "{:?}", warnings());
    guard.release().await.expect("held");
    within(CHECK * 5, waiter).await.expect("by polling").expect("no panic").expect("free");
    assert_eq!(warnings().len(), 1, "more than one warning");
    assert_eq!(server.command::<String>(&["GET", QUEUE]), "foreign");
}

#[tokio::test]
async fn calls_poll_while_the_server_is_out_of_memory() {
    let server = RedisServer::start();
    let (holder, other) = (client(&server.url()).await, client(&server.url()).await);
    let guard = holder.lock("k").acquire().await.expect("free");
    server.tell(&["CONFIG", "SET", "maxmemory", "1"]);
    let lock = other.lock("k").wait(LEASE * 60);
    let waiter = tokio::spawn(async move { lock.acquire().await.map(drop) });
    sleep(LEASE).await;
    assert!(!waiter.is_finished());
    guard.release().await.expect("held");
    server.tell(&["CONFIG", "SET", "maxmemory", "0"]);
    within(CHECK * 5, waiter).await.expect("by polling").expect("no panic").expect("free");
}

/// Eight clients always want the lock, so it is never free between two of them.
#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_polls_gets_the_lock_in_a_gap() {
    let server = RedisServer::start();
    let mut contenders = tokio::task::JoinSet::new();
    for _ in 0..8 {
        let lock = client(&server.url()).await.lock("k").wait(LEASE * 60);
        contenders.spawn(async move {
            loop {
                lock.run(sleep(LEASE / 20)).await.expect("the server is up");
            }
        });
    }
    assert!(until(LEASE * 10, || server.queued("k") >= 2).await.is_some(), "they contend");
    let mut connection = server.connection();
    let mut poll = redis::cmd("SET");
    poll.arg("k").arg("stranger").arg("NX").arg("PX").arg(1);
    let polls = || poll.query::<bool>(&mut connection).expect("up");
    // Gaps are at random: one comes after a second of holds on average, and may be missed.
    let got = until(LEASE * 40, polls).await;
    contenders.shutdown().await;
    assert!(got.is_some(), "the client that polls never gets the lock");
}

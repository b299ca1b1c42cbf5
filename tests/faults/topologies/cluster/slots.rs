//! Slots that move from one node of a cluster to another, and their keys.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use lock_runtime::{LockClient, LockError, LockGuard, WireFormat};
use lock_tests::{Cluster, left_of_locks, running_time, within};
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::{FORMATS, KeyTraffic, LONG_LEASE, SOON, client_uses, errors, subscribed_channels};
use crate::kinds::{CONTESTED, KindContention};
use crate::support::{LEASE, client_with_lease, client_without_reports, until, until_idle};

/// Asserts that the nodes have no locks of this library.
fn assert_no_keys(cluster: &Cluster) {
    for node in 0..cluster.size() {
        let Ok(keys) = cluster.try_command::<Vec<String>>(node, &["KEYS", "*"]) else { continue };
        // The last fencing tokens, and who the clients are.
        let outlives =
            |key: &str| key.starts_with("lock_fence:") || key.starts_with("lock_client:");
        let left: Vec<_> = keys.iter().filter(|key| !outlives(key)).collect();
        assert!(left.is_empty(), "left at node {node}: {left:?}");
    }
}

#[tokio::test]
async fn waiters_are_woken_and_keys_of_any_shape_work() {
    let cluster = Cluster::shared();
    let (one, two) = (
        client_with_lease(&cluster.url(), LONG_LEASE).await,
        client_with_lease(&cluster.url(), LONG_LEASE).await,
    );
    let (long, mut waited) = ("x".repeat(1024), Vec::new());
    for format in FORMATS {
        for key in ["a{", "}", "a{}b", "a}b", "{tag}:c", "plain", &long] {
            let guard = one.lock(key).wire_format(format).acquire().await.expect("free");
            assert!(guard.fencing_token().await.expect("held") > 0, "{key}");
            let lock = two.lock(key).wire_format(format);
            let mut waiting = Box::pin(lock.acquire());
            assert!(timeout(LEASE / 2, &mut waiting).await.is_err(), "{key} is held");
            let released = Instant::now();
            guard.release().await.expect("held");
            let next = within(LONG_LEASE / 2, waiting).await.expect("woken").expect("free");
            // Redisson does not give these keys a channel in their slot.
            let has_channel =
                format != WireFormat::Redisson || !["a{", "}", "a{}b", "a}b"].contains(&key);
            if has_channel {
                waited.push(released.elapsed());
            }
            next.release().await.expect("held");
        }
    }
    waited.sort();
    // Without a wake-up, a waiter checks its key once a second.
    assert!(waited[waited.len() * 3 / 4] < SOON / 10, "woken after {waited:?}");
}

/// 64 tasks lock the keys of a slot, eight more keys are held, and others wait for them, while the
/// slot moves.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slot_moves_while_its_locks_are_held_renewed_waited_for_and_released() {
    let cluster = Cluster::start();
    // Each lock is renewed twice while the test waits below. A shorter lease may end on a busy machine.
    let client = client_with_lease(&cluster.url(), LEASE * 3).await;
    let other = client_with_lease(&cluster.url(), LEASE * 3).await;
    let key = |number| cluster.key_of(1, number);
    let traffic = KeyTraffic::start(&client, (0..64).map(key).collect());
    // Slow calls on a node that takes no part in the move are those of a slow machine.
    let elsewhere = (0..64).map(|number| cluster.key_of(0, number)).collect();
    let elsewhere = KeyTraffic::start(&client, elsewhere);
    let mut held = Vec::new();
    let mut waiting = JoinSet::new();
    for number in 100..108 {
        held.push(client.lock(key(number)).acquire().await.expect("free"));
        let lock = other.lock(key(number));
        waiting.spawn(async move { lock.run(async {}).await });
    }
    let slot = cluster.slot_of(&key(0));
    tokio::time::sleep(LEASE / 2).await;
    let moving = cluster.begin_move(slot, 1, 2);
    for _ in 0..10 {
        tokio::time::sleep(LEASE / 20).await;
        moving.move_keys();
    }
    // The new node redirects requests that do not follow `ASKING` directly.
    let sent_back = || errors(&cluster, 2, "MOVED");
    assert_eq!(sent_back(), 0, "requests were sent back by the new node");
    // Some are released while the slot moves, and the others after it.
    for guard in held.drain(..4) {
        guard.release().await.expect("held");
    }
    tokio::time::sleep(LEASE / 5).await;
    moving.move_keys();
    moving.end();
    tokio::time::sleep(LEASE * 5 / 2).await;
    for guard in held {
        guard.release().await.expect("renewed by its new node");
    }
    while let Some(served) = within(LEASE * 6, waiting.join_next()).await.expect("woken") {
        served.expect("no panic").expect("granted");
    }
    let (took, elsewhere) = (traffic.end().await, elsewhere.end().await);
    let usual = elsewhere[elsewhere.len() * 99 / 100];
    let (p99, longest) = (took[took.len() * 99 / 100], took[took.len() - 1]);
    println!("{} calls, p99 {p99:?}, longest {longest:?}", took.len());
    for error in ["ASK", "MOVED"] {
        let count = errors(&cluster, 1, error);
        println!("{count} {error}");
        assert!(count > 0, "{error} was seen");
    }
    assert_eq!(sent_back(), 0, "requests were sent back by the new node");
    assert!(p99 < LEASE / 5 + usual * 3, "p99 {p99:?}, and {usual:?} elsewhere");
    for client in [&client, &other] {
        until_idle(client, LEASE * 2).await;
        assert_eq!(client.stats().lost, 0);
    }
    assert_no_keys(&cluster);
}

/// The locks of the format `Timestamp`, and fencing tokens, need two keys, which are not moved at
/// the same time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_with_two_keys_wait_while_their_slot_moves() {
    let cluster = Cluster::start();
    let client = client_with_lease(&cluster.url(), LONG_LEASE).await;
    let slot = cluster.slot_of(&cluster.key_of(1, 0));
    let fenced = client.lock(cluster.key_of(1, 500)).acquire().await.expect("free");
    let first = fenced.fencing_token().await.expect("held");
    // The last token stays where it is until the keys are moved, and the lock is new.
    let moving = cluster.begin_move(slot, 1, 2);
    let mut waiting = JoinSet::new();
    for number in 0..4 {
        let (client, key) = (client.clone(), cluster.key_of(1, number));
        waiting.spawn(async move {
            let lock = client.lock(key).wire_format(WireFormat::Timestamp);
            lock.run(async {}).await.map(|()| 0)
        });
    }
    let (client_of_token, key) = (client.clone(), cluster.key_of(1, 501));
    waiting.spawn(async move {
        let guard = client_of_token.lock(key).acquire().await?;
        let token = guard.fencing_token().await;
        guard.release().await?;
        token
    });
    tokio::time::sleep(LEASE / 2).await;
    moving.move_keys();
    moving.end();
    let mut tokens = 0;
    while let Some(served) = within(SOON * 2, waiting.join_next()).await.expect("moved") {
        tokens = tokens.max(served.expect("no panic").expect("served after the move"));
    }
    assert!(tokens > first, "{tokens} after {first}");
    let refused = errors(&cluster, 1, "TRYAGAIN") + errors(&cluster, 2, "TRYAGAIN");
    println!("{refused} TRYAGAIN");
    assert!(refused > 0, "the keys were at two nodes");
    fenced.release().await.expect("held");
    let fenced = client.lock(cluster.key_of(1, 500)).acquire().await.expect("free");
    let last = fenced.fencing_token().await.expect("held");
    assert!(last > tokens, "{last} after {tokens}");
    fenced.release().await.expect("held");
    until_idle(&client, LEASE).await;
    assert_no_keys(&cluster);
}

/// The node ends the subscriptions of the slot by messages that nobody has asked for.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiters_follow_their_slot_to_another_node() {
    let cluster = Cluster::start();
    let holder = client_with_lease(&cluster.url(), LONG_LEASE).await;
    let waiter = client_with_lease(&cluster.url(), LONG_LEASE).await;
    // Other channels and requests of the same node.
    let others: Vec<_> = cluster.keys_of(1, 65);
    let traffic = KeyTraffic::start(&waiter, others[1..].to_vec());
    let staying = holder.lock(&*others[0]).acquire().await.expect("free");
    let stays = tokio::spawn({
        let lock = waiter.lock(&*others[0]);
        async move { lock.run(async {}).await }
    });
    let (mut delays, mut usual) = (Vec::new(), Vec::new());
    for round in 0..5 {
        let key = cluster.key_of(1, round);
        let (from, to) = if round % 2 == 0 { (1, 2) } else { (2, 1) };
        let move_slot = || cluster.move_slot(cluster.slot_of(&key), from, to);
        delays.push(woken_after((&holder, &waiter), &key, move_slot).await);
        usual.push(woken_after((&holder, &waiter), &cluster.key_of(0, round), || {}).await);
    }
    // On a busy machine, some may take longer. Without a subscription, almost all take more than a quarter of a second.
    delays.sort_unstable();
    usual.sort_unstable();
    println!("woken {delays:?} after the releases, and {usual:?} elsewhere");
    let limit = LEASE / 5 + usual[1] * 3;
    assert!(delays[1] < limit, "woken {delays:?} after the releases, and {usual:?} elsewhere");
    traffic.end().await;
    let released = Instant::now();
    staying.release().await.expect("held");
    within(LONG_LEASE, stays).await.expect("woken").expect("no panic").expect("served");
    let woken = running_time(released);
    assert!(woken < LEASE / 2, "the other channel is subscribed again: woken after {woken:?}");
}

/// How long after its release a lock is granted to another client, if `happens` while that waits.
async fn woken_after(
    (holder, waiter): (&LockClient, &LockClient),
    key: &str,
    happens: impl FnOnce(),
) -> Duration {
    let guard = holder.lock(key).acquire().await.expect("free");
    let waiting = tokio::spawn({
        let lock = waiter.lock(key);
        async move { lock.run(async {}).await.expect("served") }
    });
    tokio::time::sleep(LEASE / 2).await;
    happens();
    tokio::time::sleep(LEASE / 2).await;
    let released = Instant::now();
    guard.release().await.expect("held");
    within(LONG_LEASE, waiting).await.expect("woken").expect("no panic");
    running_time(released)
}

/// Acquires the locks of some keys of the second shard with one client, and waits for them with
/// another one. Returns when all waiters have subscribed.
async fn hold_and_wait(
    cluster: &Cluster,
    (holder, waiter): (&LockClient, &LockClient),
    keys: &[String],
    format: WireFormat,
) -> (Vec<LockGuard>, JoinSet<Result<(), LockError>>) {
    let (mut held, mut waiting) = (Vec::new(), JoinSet::new());
    for key in keys {
        let [held_lock, lock] =
            [holder, waiter].map(|client| client.lock(&**key).wire_format(format));
        held.push(held_lock.acquire().await.expect("free"));
        waiting.spawn(async move { lock.run(async {}).await });
    }
    // In a queue, a client has one channel for each slot.
    let slots: BTreeSet<_> = keys.iter().map(|key| cluster.slot_of(key)).collect();
    let channels = if format == WireFormat::Token { slots.len() } else { keys.len() };
    let queued = || keys.iter().map(|key| cluster.node(1).queued(key)).sum::<usize>();
    let all = || {
        subscribed_channels(cluster, 1) == channels
            && (format != WireFormat::Token || queued() == keys.len())
    };
    assert!(until(SOON, all).await.is_some(), "all of them wait");
    (held, waiting)
}

/// The releases run at the node that gets the slot, and the waiters are subscribed at the other one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn releases_wake_waiters_while_their_slot_moves() {
    let longest = longest_wait_during_a_move(WireFormat::Redisson).await;
    assert!(longest < LEASE / 2, "woken {longest:?} after the release");
}

/// The waiters find out by their checks, which come once a second.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiters_in_a_queue_are_served_while_their_slot_moves() {
    let longest = longest_wait_during_a_move(WireFormat::Token).await;
    assert!(longest < LEASE * 2, "served {longest:?} after the release");
}

/// Releases four locks whose slot is being moved, and returns the longest time until the next holder.
async fn longest_wait_during_a_move(format: WireFormat) -> Duration {
    let cluster = Cluster::start();
    let holder = client_with_lease(&cluster.url(), LONG_LEASE).await;
    let waiter = client_with_lease(&cluster.url(), LONG_LEASE).await;
    let keys: Vec<_> = (0..4).map(|number| cluster.key_of(1, number)).collect();
    let (held, mut waiting) = hold_and_wait(&cluster, (&holder, &waiter), &keys, format).await;
    let moving = cluster.begin_move(cluster.slot_of(&keys[0]), 1, 2);
    moving.move_keys();
    let mut longest = Duration::ZERO;
    for guard in held {
        let released = Instant::now();
        guard.release().await.expect("held");
        let served = within(LONG_LEASE, waiting.join_next()).await.expect("woken");
        served.expect("a waiter").expect("no panic").expect("granted");
        longest = longest.max(released.elapsed());
    }
    moving.end();
    println!("served {longest:?} after the release");
    longest
}

/// The locks are released after the move, and then in the middle of another one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slot_moves_while_locks_of_all_kinds_are_held_and_waited_for() {
    let cluster = Cluster::start();
    let keys = || (0..CONTESTED).map(|number| cluster.key_of(1, number)).collect();
    let slot = cluster.slot_of(&cluster.key_of(1, 0));
    let url = cluster.url();
    let contention = KindContention::start(&url, LONG_LEASE, (cluster.node(1), keys())).await;
    cluster.move_slot(slot, 1, 2);
    contention.end(LONG_LEASE, cluster.node(2)).await;

    let contention = KindContention::start(&url, LONG_LEASE, (cluster.node(2), keys())).await;
    let moving = cluster.begin_move(slot, 2, 1);
    moving.move_keys();
    contention.end(LONG_LEASE, cluster.node(1)).await;
    moving.move_keys();
    moving.end();
    assert_eq!(left_of_locks(cluster.node(2)), Vec::<String>::new(), "nothing is left behind");
    client_uses(&client_with_lease(&url, LONG_LEASE).await, &cluster.key_of(1, 0)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn moves_of_slots_wake_the_waiters_of_other_slots_once() {
    let cluster = Cluster::start();
    // Reports of changed keys would cost further checks.
    let holder = client_without_reports(&cluster.url(), LONG_LEASE).await;
    let other = client_without_reports(&cluster.url(), LONG_LEASE).await;
    let keys = cluster.keys_of(1, 60);
    let (held, mut waiting) =
        hold_and_wait(&cluster, (&holder, &other), &keys, WireFormat::Token).await;
    let (began, before) = (Instant::now(), script_calls(&cluster));
    for key in &keys[..10] {
        cluster.move_slot(cluster.slot_of(key), 1, 2);
    }
    tokio::time::sleep(LEASE * 3 / 10).await;
    let calls = script_calls(&cluster) - before;
    // Each waiter also makes a check of its own each second. A busy machine takes seconds for the moves.
    let own_checks = keys.len() * usize::try_from(began.elapsed().as_secs()).expect("a short time");
    println!("{calls} calls of {} waiters, {own_checks} of them their own", keys.len());
    // Two connections at most, and a check of each key. If each move woke all waiters, there would be ten checks of each.
    assert!(calls < keys.len() * 4 + own_checks, "{calls} calls of {} waiters", keys.len());
    for guard in held {
        guard.release().await.expect("held");
    }
    while let Some(served) = within(LEASE * 2, waiting.join_next()).await.expect("woken") {
        served.expect("no panic").expect("granted");
    }
}

/// How many scripts the masters of the second and the third shard have run.
fn script_calls(cluster: &Cluster) -> usize {
    let calls = |node: usize| {
        let stats: String = cluster.node(node).command(&["INFO", "commandstats"]);
        let line = stats.lines().find_map(|line| line.strip_prefix("cmdstat_evalsha:calls="));
        let count = line.and_then(|line| line.split(',').next());
        count.map_or(0, |count| count.parse::<usize>().expect("a number"))
    };
    calls(1) + calls(2)
}

#[tokio::test]
async fn nodes_that_redirect_to_each_other_are_unavailable() {
    let cluster = Cluster::start();
    let client = client_with_lease(&cluster.url(), LEASE).await;
    let key = cluster.key_of(1, 0);
    client.lock(&*key).run(async {}).await.expect("free");
    let slot = cluster.slot_of(&key).to_string();
    let id = |node: usize| cluster.node(node).command::<String>(&["CLUSTER", "MYID"]);
    cluster.node(1).tell(&["CLUSTER", "SETSLOT", &slot, "NODE", &id(2)]);
    cluster.node(2).tell(&["CLUSTER", "SETSLOT", &slot, "NODE", &id(1)]);
    let began = errors(&cluster, 1, "MOVED");
    match client.lock(&*key).wait(LEASE / 2).run(async {}).await {
        Err(LockError::Unavailable { cause, .. }) => {
            assert!(cause.contains("redirected"), "{cause}");
        }
        other => panic!("{other:?}"),
    }
    let redirected = errors(&cluster, 1, "MOVED") - began;
    println!("{redirected} redirections");
    assert!(redirected < 500, "{redirected} redirections");
    for node in [1, 2] {
        cluster.node(node).tell(&["CLUSTER", "SETSLOT", &slot, "NODE", &id(1)]);
    }
    within(SOON, client.lock(&*key).run(async {})).await.expect("mended").expect("free");
}

//! Faults of a Redis Cluster.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use lock_runtime::{LockClient, LockError, LockGuard, LostReason, WireFormat};
use lock_tests::{
    Authority, CapturedLog, Cluster, Expected, NODE_TIMEOUT, Proxy, RedisServer, Validity,
};
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::support::{
    Contention, FaultFixture, LEASE, client_with_lease, number, start_keeper, until, until_idle,
};

/// Longer than a failover takes: the nodes notice the failure after the node timeout, and elect a
/// successor within about as long again.
const LONG_LEASE: Duration = Duration::from_secs(12);

/// How soon after a change a client must have noticed it.
const SOON: Duration = Duration::from_secs(2);

/// How soon a lease is renewed at a new master whose predecessor was not cut off: the next renewal is
/// at most a third of the lease away, and may get no answer once.
const RENEWED: Duration = Duration::from_secs(8);

const FORMATS: [WireFormat; 3] = [WireFormat::Token, WireFormat::Redisson, WireFormat::Timestamp];

/// Asserts that the nodes have no locks of this library.
fn assert_no_keys(cluster: &Cluster) {
    for node in 0..cluster.size() {
        let Ok(keys) = cluster.try_command::<Vec<String>>(node, &["KEYS", "*"]) else { continue };
        let left: Vec<_> = keys.iter().filter(|key| !key.starts_with("lock_fence:")).collect();
        assert!(left.is_empty(), "left at node {node}: {left:?}");
    }
}

#[tokio::test]
async fn locks_of_all_nodes_are_acquired_renewed_and_released() {
    let cluster = Cluster::shared();
    let client = client_with_lease(&cluster.url_of(&[1]), LEASE).await;
    for format in FORMATS {
        let mut guards = Vec::new();
        for number in 0..30 {
            let lock = client.lock(format!("all:{format:?}:{number}")).wire_format(format);
            guards.push(lock.acquire().await.expect("free"));
        }
        tokio::time::sleep(LEASE * 2).await;
        for guard in guards {
            assert!(guard.fencing_token().await.expect("held") > 0);
            guard.release().await.expect("held");
        }
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
            let next = timeout(LONG_LEASE / 2, waiting).await.expect("woken").expect("free");
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

/// Waits until the replica of a shard has `key`.
async fn until_replicated(cluster: &Cluster, replica: usize, key: &str) {
    let keys = ["KEYS", key];
    let has_key =
        || cluster.try_command::<Vec<String>>(replica, &keys).is_ok_and(|keys| !keys.is_empty());
    assert!(until(LONG_LEASE, has_key).await.is_some(), "{key} is replicated");
}

/// Whether the lease of `key` at this node has been renewed since then.
fn was_renewed_since(cluster: &Cluster, node: usize, key: &str, since: Instant) -> bool {
    let left = u64::try_from(cluster.node(node).pttl(key)).unwrap_or_default();
    Duration::from_millis(left) + since.elapsed() > LONG_LEASE
}

/// Tasks that lock keys of some shards all the time.
struct KeyTraffic {
    stop: Arc<AtomicBool>,
    tasks: JoinSet<Vec<Duration>>,
}

impl KeyTraffic {
    /// A task for each key.
    fn start(client: &LockClient, keys: Vec<String>) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let mut tasks = JoinSet::new();
        for key in keys {
            let (client, stop) = (client.clone(), Arc::clone(&stop));
            tasks.spawn(async move {
                let mut took = Vec::new();
                while !stop.load(Ordering::Relaxed) {
                    let began = Instant::now();
                    client.lock(key.as_str()).run(async {}).await.expect("no error");
                    took.push(began.elapsed());
                }
                took
            });
        }
        Self { stop, tasks }
    }

    /// Ends the tasks. Returns how long the calls took, from the shortest to the longest.
    async fn end(mut self) -> Vec<Duration> {
        self.stop.store(true, Ordering::Relaxed);
        let mut took = Vec::new();
        while let Some(of_one) = self.tasks.join_next().await {
            took.extend(of_one.expect("no error"));
        }
        took.sort_unstable();
        took
    }
}

/// Some keys of the shards other than this one.
fn keys_of_others(cluster: &Cluster, shard: usize, count: usize) -> Vec<String> {
    let others = (0..3).filter(|other| *other != shard);
    others.flat_map(|other| cluster.keys_of(other, count)).filter(|key| key != "k").collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_suspended_master_delays_no_other_shard_and_its_locks_survive() {
    let fixture = FaultFixture::new().await;
    let cluster = Cluster::start();
    let shard = cluster.master_of("k").expect("all agree");
    let replica = cluster.replica_of(shard);
    let holder = client_with_lease(&cluster.url(), LONG_LEASE).await;
    let other = client_with_lease(&cluster.url(), LONG_LEASE).await;
    let (keeper, _) = start_keeper(&holder, &fixture).await;
    until_replicated(&cluster, replica, "k").await;
    let traffic = KeyTraffic::start(&other, keys_of_others(&cluster, shard, 4));
    tokio::time::sleep(LEASE / 2).await;
    let since = Instant::now();
    cluster.freeze(shard);
    // A call that waits all the time.
    let key = cluster.key_of(shard, 0);
    let waiting = tokio::spawn({
        let other = other.clone();
        async move {
            other.lock(key).run(async {}).await.expect("served by the successor");
            Instant::now()
        }
    });
    assert_eq!(cluster.wait_for_another_master("k", shard).await, replica);
    let promoted = Instant::now();
    let back = timeout(SOON, waiting).await.expect("the shard is back").expect("no panic");
    println!(
        "the shard is back {:?} after the promotion",
        back.saturating_duration_since(promoted)
    );
    let renewed = until(RENEWED, || was_renewed_since(&cluster, replica, "k", since)).await;
    assert!(renewed.is_some(), "the lease is renewed at the new master");
    let took = traffic.end().await;
    let (p99, longest) = (took[took.len() * 99 / 100], took[took.len() - 1]);
    println!("{} calls to the other shards, p99 {p99:?}, longest {longest:?}", took.len());
    assert!(longest < LEASE / 2, "a call to another shard took {longest:?}");

    cluster.thaw(shard);
    for number in 0..20 {
        let key = cluster.key_of(shard, number);
        let guard = other.lock(&*key).acquire().await.expect("granted");
        assert!(cluster.node(replica).exists(&key), "the lock is at the new master");
        guard.release().await.expect("held");
        tokio::time::sleep(LEASE / 10).await;
    }
    assert!(!keeper.is_finished(), "the lock is still held");
    keeper.abort();
    assert_eq!(holder.stats().lost, 0);
    fixture.assert_history(Expected::EVERYTHING);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_holder_and_its_waiters_continue_when_a_master_is_killed() {
    let mut cluster = Cluster::start();
    let contention = Contention::start(&cluster.url(), LONG_LEASE).await;
    let shard = cluster.master_of("k").expect("all agree");
    let replica = cluster.replica_of(shard);
    until_replicated(&cluster, replica, "k").await;
    let killing = async {
        let since = Instant::now();
        cluster.kill(shard);
        assert_eq!(cluster.wait_for_another_master("k", shard).await, replica);
        let renewed = until(SOON, || was_renewed_since(&cluster, replica, "k", since)).await;
        assert!(renewed.is_some(), "the lease is renewed at the new master at once");
    };
    contention.outlasts(Box::pin(killing), LONG_LEASE).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_planned_failover_costs_no_lock_and_no_error() {
    let cluster = Cluster::start();
    let contention = Contention::start(&cluster.url(), LONG_LEASE).await;
    let shard = cluster.master_of("k").expect("all agree");
    let replica = cluster.replica_of(shard);
    until_replicated(&cluster, replica, "k").await;
    let keys = cluster.keys_of(shard, 4).into_iter().filter(|key| key != "k").collect();
    let traffic = KeyTraffic::start(&contention.waiter, keys);
    let failover = async {
        let since = Instant::now();
        cluster.fail_over("k", replica).await;
        let renewed = until(RENEWED, || was_renewed_since(&cluster, replica, "k", since)).await;
        assert!(renewed.is_some(), "the lease is renewed at the new master");
        let took = traffic.end().await;
        println!("{} calls, longest {:?}", took.len(), took[took.len() - 1]);
    };
    contention.outlasts(Box::pin(failover), SOON).await;
}

/// `LOCK_TESTS_FAILOVERS` sets the number of failovers.
#[tokio::test]
async fn a_held_lock_survives_planned_failovers() {
    let rounds = number("LOCK_TESTS_FAILOVERS", 3);
    let cluster = Cluster::start();
    let client = client_with_lease(&cluster.url(), LONG_LEASE).await;
    let guard = client.lock("k").acquire().await.expect("free");
    let mut master = cluster.master_of("k").expect("all agree");
    let mut replica = cluster.replica_of(master);
    for round in 0..rounds {
        until_replicated(&cluster, replica, "k").await;
        let since = Instant::now();
        cluster.fail_over("k", replica).await;
        (master, replica) = (replica, master);
        let renewed = until(RENEWED, || was_renewed_since(&cluster, master, "k", since)).await;
        assert!(renewed.is_some() && guard.is_held(), "round {round}");
    }
    guard.release().await.expect("held");
    assert_eq!(client.stats().lost, 0);
}

#[tokio::test]
async fn a_lock_that_the_promoted_replica_does_not_have_is_lost_at_once() {
    let mut cluster = Cluster::start();
    // The next renewal is a third of this lease away.
    let lease = LONG_LEASE * 10;
    let client = client_with_lease(&cluster.url(), lease).await;
    let keys = cluster.keys_of(1, 2);
    let (kept, missing) = (&keys[0], &keys[1]);
    let lost = client.lock(&**missing).acquire().await.expect("free");
    let replica = cluster.replica_of(1);
    until_replicated(&cluster, replica, missing).await;
    // As if the replication had been delayed.
    cluster.node(replica).tell(&["CONFIG", "SET", "replica-read-only", "no"]);
    cluster.node(replica).tell(&["FLUSHALL"]);
    let held = client.lock(&**kept).acquire().await.expect("free");
    until_replicated(&cluster, replica, kept).await;
    cluster.kill(1);
    cluster.wait_for_another_master(missing, 1).await;
    let reason = timeout(SOON, lost.lost()).await.expect("the loss is noticed at once");
    assert_eq!(reason, LostReason::Failover);
    assert!(held.is_held());
    held.release().await.expect("held");
}

/// 64 tasks lock the keys of a slot, eight more keys are held, and others wait for them, while the
/// slot moves.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slot_moves_while_its_locks_are_held_renewed_waited_for_and_released() {
    let cluster = Cluster::start();
    let client = client_with_lease(&cluster.url(), LEASE).await;
    let other = client_with_lease(&cluster.url(), LEASE).await;
    let key = |number| cluster.key_of(1, number);
    let traffic = || KeyTraffic::start(&client, (0..64).map(key).collect());
    let calm = traffic();
    tokio::time::sleep(LEASE / 2).await;
    let calm = calm.end().await;
    let usual = calm[calm.len() * 99 / 100];
    let traffic = traffic();
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
    tokio::time::sleep(LEASE * 2).await;
    for guard in held {
        guard.release().await.expect("renewed by its new node");
    }
    while let Some(served) = timeout(LEASE * 2, waiting.join_next()).await.expect("woken") {
        served.expect("no panic").expect("granted");
    }
    let took = traffic.end().await;
    let (p99, longest) = (took[took.len() * 99 / 100], took[took.len() - 1]);
    println!("{} calls, p99 {p99:?}, longest {longest:?}", took.len());
    for error in ["ASK", "MOVED"] {
        let count = errors(&cluster, 1, error);
        println!("{count} {error}");
        assert!(count > 0, "{error} was seen");
    }
    assert_eq!(sent_back(), 0, "requests were sent back by the new node");
    assert!(p99 < LEASE / 5 + usual * 3, "p99 {p99:?}, and {usual:?} before the move");
    for client in [&client, &other] {
        until_idle(client, LEASE * 2).await;
        assert_eq!(client.stats().lost, 0);
    }
    assert_no_keys(&cluster);
}

/// How often a node has replied with this error.
fn errors(cluster: &Cluster, node: usize, error: &str) -> u64 {
    let stats: String = cluster.node(node).command(&["INFO", "errorstats"]);
    let line = stats.lines().find_map(|line| line.strip_prefix(&format!("errorstat_{error}:")));
    let count = line.and_then(|line| line.strip_prefix("count="));
    count.map_or(0, |count| count.parse().expect("a number"))
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
    while let Some(served) = timeout(SOON * 2, waiting.join_next()).await.expect("moved") {
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

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nodes_that_hang_do_not_delay_the_news_of_a_failover() {
    let mut cluster = Cluster::start();
    let key = cluster.key_of(0, 0);
    let client = client_with_lease(&cluster.url(), LONG_LEASE).await;
    client.lock(&*key).run(async {}).await.expect("free");
    // All nodes are asked, and these do not answer.
    for shard in [1, 2] {
        cluster.freeze(cluster.replica_of(shard));
    }
    let traffic = KeyTraffic::start(&client, keys_of_others(&cluster, 0, 2));
    cluster.kill(0);
    let waiting = tokio::spawn({
        let (client, key) = (client.clone(), key.clone());
        async move { client.lock(key).run(async {}).await }
    });
    cluster.wait_for_another_master(&key, 0).await;
    let served = timeout(SOON, waiting).await.expect("the shard is back");
    served.expect("no panic").expect("served by the successor");
    let took = traffic.end().await;
    assert!(took[took.len() * 9 / 10] < LEASE / 2, "the other shards are not delayed");
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
    let mut longest = Duration::ZERO;
    for round in 0..3 {
        let key = cluster.key_of(1, round);
        let (from, to) = if round % 2 == 0 { (1, 2) } else { (2, 1) };
        let guard = holder.lock(&*key).acquire().await.expect("free");
        let waiting = tokio::spawn({
            let lock = waiter.lock(&*key);
            async move {
                lock.run(async {}).await.expect("served");
                Instant::now()
            }
        });
        tokio::time::sleep(LEASE / 2).await;
        cluster.move_slot(cluster.slot_of(&key), from, to);
        tokio::time::sleep(LEASE / 2).await;
        let released = Instant::now();
        guard.release().await.expect("held");
        let woken = timeout(LONG_LEASE, waiting).await.expect("woken").expect("no panic");
        longest = longest.max(woken.saturating_duration_since(released));
    }
    println!("woken {longest:?} after the release");
    assert!(longest < LEASE / 5, "woken {longest:?} after the release");
    traffic.end().await;
    let released = Instant::now();
    staying.release().await.expect("held");
    timeout(LONG_LEASE, stays).await.expect("woken").expect("no panic").expect("served");
    let woken = released.elapsed();
    assert!(woken < LEASE / 5, "the other channel is subscribed again: woken after {woken:?}");
}

/// Acquires the locks of some keys of the second shard with one client, and waits for them with
/// another one. Returns when all waiters have subscribed.
async fn hold_and_wait(
    cluster: &Cluster,
    (holder, waiter): (&LockClient, &LockClient),
    keys: &[String],
) -> (Vec<LockGuard>, JoinSet<Result<(), LockError>>) {
    let (mut held, mut waiting) = (Vec::new(), JoinSet::new());
    for key in keys {
        held.push(holder.lock(&**key).acquire().await.expect("free"));
        let lock = waiter.lock(&**key);
        waiting.spawn(async move { lock.run(async {}).await });
    }
    let all = until(SOON, || subscribed_channels(cluster, 1) == keys.len()).await;
    assert!(all.is_some(), "all of them wait");
    (held, waiting)
}

/// The releases run at the node that gets the slot, and the waiters are subscribed at the other one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn releases_wake_waiters_while_their_slot_moves() {
    let cluster = Cluster::start();
    let holder = client_with_lease(&cluster.url(), LONG_LEASE).await;
    let waiter = client_with_lease(&cluster.url(), LONG_LEASE).await;
    let keys: Vec<_> = (0..4).map(|number| cluster.key_of(1, number)).collect();
    let (held, mut waiting) = hold_and_wait(&cluster, (&holder, &waiter), &keys).await;
    let moving = cluster.begin_move(cluster.slot_of(&keys[0]), 1, 2);
    moving.move_keys();
    let mut longest = Duration::ZERO;
    for guard in held {
        let released = Instant::now();
        guard.release().await.expect("held");
        let served = timeout(LONG_LEASE, waiting.join_next()).await.expect("woken");
        served.expect("a waiter").expect("no panic").expect("granted");
        longest = longest.max(released.elapsed());
    }
    moving.end();
    println!("woken {longest:?} after the release");
    assert!(longest < LEASE / 5, "woken {longest:?} after the release");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn moves_of_slots_wake_the_waiters_of_other_slots_once() {
    let cluster = Cluster::start();
    let holder = client_with_lease(&cluster.url(), LONG_LEASE).await;
    let other = client_with_lease(&cluster.url(), LONG_LEASE).await;
    let keys = cluster.keys_of(1, 60);
    let (held, mut waiting) = hold_and_wait(&cluster, (&holder, &other), &keys).await;
    let before = script_calls(&cluster);
    for key in &keys[..10] {
        cluster.move_slot(cluster.slot_of(key), 1, 2);
    }
    tokio::time::sleep(LEASE * 3 / 10).await;
    let calls = script_calls(&cluster) - before;
    println!("{calls} calls of {} waiters", keys.len());
    // Two connections at most, and a check of each key.
    assert!(calls < keys.len() * 4, "{calls} calls of {} waiters", keys.len());
    for guard in held {
        guard.release().await.expect("held");
    }
    while let Some(served) = timeout(LEASE * 2, waiting.join_next()).await.expect("woken") {
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

/// The number of channels that clients have subscribed at a node.
fn subscribed_channels(cluster: &Cluster, node: usize) -> usize {
    let channels = cluster.try_command::<Vec<String>>(node, &["PUBSUB", "SHARDCHANNELS"]);
    channels.map_or(0, |channels| channels.len())
}

/// The connection carries nothing else, and no error shows that it is lost.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_silent_subscription_connection_to_a_node_is_replaced() {
    let cluster = Cluster::start();
    let node = cluster.node(1);
    let holder = client_with_lease(&cluster.url(), LONG_LEASE).await;
    let (behind, proxy) = (node.port(), Proxy::to(node.port()));
    let own = proxy.port();
    let builder = LockClient::builder().url(cluster.url()).lease(LEASE).wait(LONG_LEASE);
    let builder = builder
        .address_map(move |host, port| (host.to_owned(), if port == behind { own } else { port }));
    let waiter = builder.connect().await.expect("up");
    let guard = holder.lock(cluster.key_of(1, 0)).acquire().await.expect("free");
    let lock = waiter.lock(cluster.key_of(1, 0));
    let waiting = tokio::spawn(async move { lock.run(async {}).await });
    let subscribers = || {
        let list: String = node.command(&["CLIENT", "LIST"]);
        let subscribed = list.lines().filter(|line| line.contains(" ssub=1 "));
        subscribed.map(|line| line.split(' ').next().expect("an id").to_owned()).collect::<Vec<_>>()
    };
    assert!(until(SOON, || subscribers().len() == 1).await.is_some(), "it waits");
    let earlier = subscribers();
    // The next test of the connection.
    proxy.hold("PING");
    let is_another = || subscribers().iter().any(|id| !earlier.contains(id));
    assert!(until(SOON + LEASE, is_another).await.is_some(), "the silence is noticed");
    guard.release().await.expect("held");
    let served = timeout(LEASE * 2, waiting).await.expect("woken");
    served.expect("no panic").expect("granted");
}

/// The waiters of several slots, whose master fails as `fail` says, are subscribed at its
/// successor.
async fn assert_waiters_follow_a_failover(fail: impl FnOnce(&mut Cluster, usize)) {
    let mut cluster = Cluster::start();
    let (shard, replica) = (1, cluster.replica_of(1));
    let holder = client_with_lease(&cluster.url(), LONG_LEASE).await;
    let waiter = client_with_lease(&cluster.url(), LONG_LEASE).await;
    let keys = cluster.keys_of(shard, 9);
    let (mut held, mut waiting) = (Vec::new(), Vec::new());
    for key in &keys {
        held.push(holder.lock(&**key).acquire().await.expect("free"));
        let lock = waiter.lock(&**key);
        waiting.push(tokio::spawn(async move {
            lock.run(async {}).await.expect("served by the successor");
            Instant::now()
        }));
        until_replicated(&cluster, replica, key).await;
    }
    let all = until(SOON, || subscribed_channels(&cluster, shard) == keys.len()).await;
    assert!(all.is_some(), "all of them wait");
    fail(&mut cluster, shard);
    assert_eq!(cluster.wait_for_another_master(&keys[0], shard).await, replica);
    let all = until(SOON, || subscribed_channels(&cluster, replica) == keys.len()).await;
    let count = subscribed_channels(&cluster, replica);
    assert!(all.is_some(), "{count} of {} channels are subscribed", keys.len());
    // The holder has sent nothing meanwhile, so it may not know of the failover.
    client_uses(&holder, &cluster.key_of(shard, 0)).await;
    let mut times = Vec::new();
    for (guard, waiting) in held.into_iter().zip(waiting) {
        let released = Instant::now();
        guard.release().await.expect("held");
        let served = timeout(LONG_LEASE, waiting).await.expect("woken").expect("no panic");
        times.push(served.saturating_duration_since(released));
    }
    times.sort_unstable();
    let median = times[times.len() / 2];
    println!("woken {median:?} after the release, at most {:?}", times[times.len() - 1]);
    assert!(median < LEASE / 5, "woken {median:?} after the release");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiters_are_subscribed_at_the_successor_of_a_killed_master() {
    assert_waiters_follow_a_failover(Cluster::kill).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiters_are_subscribed_at_the_successor_of_a_suspended_master() {
    assert_waiters_follow_a_failover(|cluster, node| cluster.freeze(node)).await;
}

/// Keys that are deleted by hand, for which there is no message.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_checks_of_waiters_are_on_time_while_one_of_three_nodes_is_suspended() {
    let cluster = Cluster::with(&never_down());
    let holder = client_with_lease(&cluster.url(), LONG_LEASE).await;
    let waiter = client_with_lease(&cluster.url(), LONG_LEASE).await;
    let (mut held, mut stuck, mut waiting) = (Vec::new(), JoinSet::new(), JoinSet::new());
    let keys = cluster.keys_of(1, 9);
    for key in cluster.keys_of(0, 20).iter().chain(&keys) {
        held.push(holder.lock(&**key).acquire().await.expect("free"));
        let lock = waiter.lock(&**key);
        let tasks = if keys.contains(key) { &mut waiting } else { &mut stuck };
        tasks.spawn(async move { lock.run(async {}).await.map(|()| Instant::now()) });
    }
    let all = until(SOON, || subscribed_channels(&cluster, 1) == keys.len()).await;
    assert!(all.is_some(), "all of them wait");
    cluster.freeze(0);
    // Each key is checked every second, so by then each one was checked since.
    tokio::time::sleep(LEASE * 21 / 20).await;
    assert!(waiting.try_join_next().is_none(), "they are held");
    let deleted = Instant::now();
    for key in &keys {
        cluster.node(1).tell(&["DEL", key]);
    }
    let mut times = Vec::new();
    while let Some(served) = timeout(LONG_LEASE, waiting.join_next()).await.expect("checked") {
        let served = served.expect("no panic").expect("free");
        times.push(served.saturating_duration_since(deleted));
    }
    cluster.thaw(0);
    times.sort_unstable();
    let (median, longest) = (times[times.len() / 2], times[times.len() - 1]);
    println!("found free after {median:?}, at most {longest:?}");
    // A call to the suspended node takes two seconds, and its keys are checked until then.
    assert!(median < LEASE * 3 / 2, "found free after {median:?}");
}

/// Options with which the nodes do not take a suspended node for down.
fn never_down() -> [&'static str; 4] {
    ["--cluster-require-full-coverage", "no", "--cluster-node-timeout", "120000"]
}

/// `LOCK_TESTS_LOCKS` sets the number of locks.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_renewals_of_ten_thousand_locks_are_on_time_while_one_of_three_nodes_is_suspended() {
    let cluster = Cluster::with(&never_down());
    let client = client_with_lease(&cluster.url(), LONG_LEASE).await;
    let mut acquiring = JoinSet::new();
    for number in 0..number("LOCK_TESTS_LOCKS", 10_000) {
        let lock = client.lock(format!("{number}"));
        acquiring.spawn(async move { lock.acquire().await });
    }
    let mut guards = Vec::new();
    while let Some(guard) = acquiring.join_next().await {
        guards.push(guard.expect("no panic").expect("free"));
    }
    let keys = |node: usize| cluster.node(node).command::<usize>(&["DBSIZE"]);
    let of_others = keys(1) + keys(2);
    assert!(of_others * 5 > guards.len() * 3 && of_others < guards.len());
    cluster.freeze(0);
    let began = Instant::now();
    let mut shortest = LONG_LEASE;
    // Several renewals of each lock. The leases that are not renewed end meanwhile.
    while began.elapsed() < LONG_LEASE * 13 / 12 {
        tokio::time::sleep(LEASE / 2).await;
        for node in [1, 2] {
            let script = "local shortest = 1e9 local all = redis.call('keys', '*') \
                          for i = 1, #all, 7 do \
                          shortest = math.min(shortest, redis.call('pttl', all[i])) end \
                          return shortest";
            let left: u64 = cluster.node(node).command(&["EVAL", script, "0"]);
            shortest = shortest.min(Duration::from_millis(left));
        }
    }
    println!("at least {shortest:?} of {LONG_LEASE:?} were left");
    // Renewed after a third of the lease.
    let late = (LONG_LEASE * 2 / 3).saturating_sub(shortest);
    assert!(late < LONG_LEASE / 12, "renewals were late by {late:?}");
    let held = guards.iter().filter(|guard| guard.is_held()).count();
    cluster.thaw(0);
    assert_eq!(held, of_others, "the locks of the other nodes are held, and no others");
}

#[tokio::test]
async fn a_cluster_that_is_down_in_part_is_unavailable_and_waited_for() {
    let mut cluster = Cluster::with(&["--cluster-require-full-coverage", "yes"]);
    let client = client_with_lease(&cluster.url(), LEASE).await;
    let key = cluster.key_of(1, 0);
    client.lock(&*key).run(async {}).await.expect("free");
    cluster.kill(cluster.replica_of(0));
    cluster.kill(0);
    let is_down = || {
        let info = cluster.try_command::<String>(1, &["CLUSTER", "INFO"]);
        info.is_ok_and(|info| info.contains("cluster_state:fail"))
    };
    assert!(until(NODE_TIMEOUT * 10, is_down).await.is_some(), "the cluster is down");
    match client.lock(&*key).wait(LEASE / 2).run(async {}).await {
        Err(LockError::Unavailable { cause, .. }) => {
            assert!(cause.contains("CLUSTERDOWN"), "{cause}");
        }
        other => panic!("{other:?}"),
    }
    cluster.restart(0);
    let waited = timeout(LONG_LEASE, client.lock(&*key).run(async {})).await;
    waited.expect("it recovers").expect("free");
}

#[tokio::test]
async fn a_cluster_is_used_after_all_nodes_of_the_url_are_gone() {
    let mut cluster = Cluster::start();
    let client = client_with_lease(&cluster.url_of(&[0, 1, 2]), LONG_LEASE).await;
    let key = cluster.key_of(1, 0);
    let guard = client.lock(&*key).acquire().await.expect("free");
    until_replicated(&cluster, 4, &key).await;
    for shard in 0..3 {
        cluster.fail_over(&cluster.key_of(shard, 0), cluster.replica_of(shard)).await;
        cluster.kill(shard);
        for other in 0..3 {
            let lock = client.lock(cluster.key_of(other, 1));
            timeout(SOON * 2, lock.run(async {})).await.expect("known").expect("free");
        }
    }
    assert!(guard.is_held());
    guard.release().await.expect("held");
}

#[tokio::test]
async fn a_node_is_added_and_removed_while_its_locks_are_held() {
    let mut cluster = Cluster::start();
    let client = client_with_lease(&cluster.url(), LEASE).await;
    let key = cluster.key_of(2, 0);
    let slot = cluster.slot_of(&key);
    let guard = client.lock(&*key).acquire().await.expect("free");
    let added = cluster.add_node();
    cluster.move_slot(slot, 2, added);
    tokio::time::sleep(LEASE * 2).await;
    assert!(guard.is_held() && cluster.node(added).exists(&key), "renewed at the new node");
    client.lock(cluster.key_of(2, 1)).run(async {}).await.expect("free");
    cluster.move_slot(slot, added, 0);
    cluster.remove_node(added);
    tokio::time::sleep(LEASE * 2).await;
    assert!(guard.is_held());
    guard.release().await.expect("held");
    client.lock(cluster.key_of(2, 1)).run(async {}).await.expect("free");
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
    timeout(SOON, client.lock(&*key).run(async {})).await.expect("mended").expect("free");
}

/// The address of a replica leads to a node of another cluster later.
#[tokio::test]
async fn a_node_that_belongs_to_another_cluster_is_ignored() {
    let (mut cluster, log) = (Cluster::start(), CapturedLog::here());
    let client = client_with_lease(&cluster.url(), LONG_LEASE).await;
    let guard = client.lock(cluster.key_of(0, 0)).acquire().await.expect("free");
    let replica = cluster.replica_of(1);
    let keys: Vec<_> = (0..3).map(|shard| cluster.key_of(shard, 1)).collect();
    cluster.found_another(replica);
    // A lost connection is a reason to ask all nodes.
    cluster.node(0).kill_connections("normal");
    let is_ignored = || !log.lines(&["WARN", "belongs to another cluster"]).is_empty();
    assert!(until(LONG_LEASE, is_ignored).await.is_some(), "the node is ignored");
    for key in keys {
        client.lock(key).run(async {}).await.expect("free");
    }
    assert_eq!(cluster.node(replica).calls("set"), 0, "the other cluster is not used");
    assert!(guard.is_held());
    guard.release().await.expect("held");
}

#[tokio::test]
async fn a_wrong_address_is_explained() {
    let cluster = Cluster::shared();
    let (plain, node) = (RedisServer::plain(&[]), cluster.node(0).address());
    let other = RedisServer::start_node();
    other.tell(&["CLUSTER", "ADDSLOTSRANGE", "0", "16383"]);
    for (url, words) in [
        (format!("redis://{node}"), vec!["`redis+cluster://"]),
        (format!("redis+cluster://{}", plain.address()), vec!["`redis://`", "not a node"]),
        (format!("redis+cluster://{node},{}", plain.address()), vec!["`redis://`", "not a node"]),
        (format!("redis+cluster://{node},{}", other.address()), vec!["different clusters"]),
        (format!("redis+cluster://{node}/1"), vec!["only the database 0"]),
        ("redis+cluster://".into(), vec!["names no host"]),
        (format!("redis+cluster://{node},rediss://{node}"), vec!["either all hosts use TLS"]),
    ] {
        match LockClient::connect(url.as_str()).await {
            Err(LockError::Config { option: "url", problem, .. }) => {
                assert!(words.iter().all(|word| problem.contains(word)), "{url}: {problem}");
            }
            other => panic!("{url}: {other:?}"),
        }
    }
    // A node that is down is not wrong.
    let mut down = plain;
    down.kill();
    let url = format!("redis+cluster://{},{node}", down.address());
    let client = client_with_lease(&url, LEASE).await;
    client.lock("explained").run(async {}).await.expect("free");
    match LockClient::connect(format!("redis+cluster://{}", down.address())).await {
        Err(LockError::Unavailable { cause, .. }) => {
            assert!(cause.contains(&down.address()), "{cause}");
        }
        other => panic!("{other:?}"),
    }
}

/// As with forwarded ports: the node announces an address at which clients do not reach it.
#[tokio::test]
async fn a_node_behind_another_address_than_it_announces_is_used_with_a_map() {
    let node = RedisServer::start_node();
    node.tell(&["CLUSTER", "ADDSLOTSRANGE", "0", "16383"]);
    // For documentation only, so nobody answers.
    node.tell(&["CONFIG", "SET", "cluster-announce-ip", "192.0.2.1"]);
    let is_up = || {
        let info: String = node.command(&["CLUSTER", "INFO"]);
        info.contains("cluster_state:ok")
    };
    assert!(until(LONG_LEASE, is_up).await.is_some(), "the cluster works");
    let url = format!("redis+cluster://{}", node.address());
    let builder = LockClient::builder().url(&*url).lease(LEASE);
    let client = builder.address_map(|host, port| {
        assert_eq!(host, "192.0.2.1");
        ("127.0.0.1".to_owned(), port)
    });
    let client = client.connect().await.expect("reachable");
    client.lock("k").run(async {}).await.expect("free");
}

/// The node announces its address and its host name. Its certificate is valid for the name only.
#[tokio::test]
async fn a_cluster_is_used_with_tls() {
    let authority = Authority::new();
    let identity = authority.issue(&["localhost"], Validity::Now);
    let options = ["--cluster-enabled", "yes", "--tls-cluster", "yes"];
    let announced =
        ["--cluster-announce-ip", "127.0.0.1", "--cluster-announce-hostname", "localhost"];
    let node = RedisServer::with_tls(&authority, &identity, &[options, announced].concat());
    node.tell(&["CLUSTER", "ADDSLOTSRANGE", "0", "16383"]);
    let url = node.trusted_tls_url().replacen("rediss://", "rediss+cluster://", 1);
    let client = client_with_lease(&url, LEASE).await;
    timeout(LONG_LEASE, client.lock("k").run(async {})).await.expect("up").expect("free");
    match LockClient::connect(node.plain_url().replacen("redis://", "rediss+cluster://", 1)).await {
        Err(LockError::Config { problem, .. }) => assert!(problem.contains("TLS"), "{problem}"),
        other => panic!("{other:?}"),
    }
    match LockClient::connect(node.tls_url().replacen("rediss://", "redis+cluster://", 1)).await {
        Err(LockError::Config { problem, .. }) => {
            assert!(problem.contains("`rediss` instead"), "{problem}");
        }
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn the_documented_permissions_suffice_for_the_nodes_of_a_cluster() {
    let cluster = Cluster::start();
    let locker = "ACL SETUSER locker on >c4nary resetkeys ~* resetchannels &lock_wake:* -@all \
                  +set +get +getrange +del +pexpire +pttl +type +time +info +publish +subscribe \
                  +unsubscribe +pubsub|numsub +eval +evalsha +script|load +ping +hello +select \
                  +cluster|slots +cluster|nodes +asking +spublish +ssubscribe +sunsubscribe \
                  +pubsub|shardnumsub";
    let page = include_str!("../../docs/redis.md");
    for word in locker.split_whitespace().filter(|word| word.starts_with(['+', '&'])) {
        assert!(page.contains(word), "{word} is documented");
    }
    for node in 0..6 {
        cluster.node(node).tell(&locker.split_whitespace().collect::<Vec<_>>());
    }
    let log = CapturedLog::here();
    let url = cluster.url().replace("://", "://locker:c4nary@");
    let (one, two) =
        (client_with_lease(&url, LONG_LEASE).await, client_with_lease(&url, LONG_LEASE).await);
    for format in [WireFormat::Token, WireFormat::Timestamp] {
        let key = cluster.key_of(1, 0);
        let guard = one.lock(&*key).wire_format(format).acquire().await.expect("free");
        guard.fencing_token().await.expect("allowed");
        let lock = two.lock(&*key).wire_format(format);
        let mut waiting = Box::pin(lock.acquire());
        assert!(timeout(LEASE / 2, &mut waiting).await.is_err(), "it is held");
        let moving = cluster.begin_move(cluster.slot_of(&key), 1, 2);
        client_uses(&one, &cluster.key_of(1, 1)).await;
        moving.move_keys();
        moving.end();
        guard.release().await.expect("held");
        let next = timeout(LEASE / 2, waiting).await.expect("woken").expect("free");
        next.release().await.expect("held");
        cluster.move_slot(cluster.slot_of(&key), 2, 1);
    }
    assert_eq!(log.lines(&["permission"]), Vec::<String>::new());
}

async fn client_uses(client: &LockClient, key: &str) {
    client.lock(key).run(async {}).await.expect("free");
}

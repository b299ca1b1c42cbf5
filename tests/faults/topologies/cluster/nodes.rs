//! Nodes of a cluster: their addresses, nodes that hang or are gone, and what users may do there.

use std::time::{Duration, Instant};

use lock_runtime::{Identity, LockClient, LockError, WireFormat};
use lock_tests::{
    Authority, CapturedLog, Cluster, NODE_TIMEOUT, Proxy, RedisServer, Validity,
    running_time_between, within,
};
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::{FORMATS, LONG_LEASE, SOON, client_uses, subscribed_channels, until_replicated};
use crate::support::{LEASE, client_with_lease, number, until};

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

/// The connection carries nothing else, and no error shows that it is lost.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_silent_subscription_connection_to_a_node_is_replaced() {
    let cluster = Cluster::start();
    let node = cluster.node(1);
    // The clients subscribe to nothing else.
    let builder = || LockClient::builder().url(cluster.url()).identity(Identity::none());
    let holder = builder().lease(LONG_LEASE).connect().await.expect("up");
    let (behind, proxy) = (node.port(), Proxy::to(node.port()));
    let own = proxy.port();
    let builder = builder()
        .lease(LEASE)
        .wait(LONG_LEASE)
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
    let served = within(LEASE * 2, waiting).await.expect("woken");
    served.expect("no panic").expect("granted");
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
    while let Some(served) = within(LONG_LEASE, waiting.join_next()).await.expect("checked") {
        let served = served.expect("no panic").expect("free");
        times.push(running_time_between(deleted, served));
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
async fn the_renewals_of_thousands_of_locks_are_on_time_while_one_of_three_nodes_is_suspended() {
    let cluster = Cluster::with(&never_down());
    let client = client_with_lease(&cluster.url(), LONG_LEASE).await;
    let mut acquiring = JoinSet::new();
    for number in 0..number("LOCK_TESTS_LOCKS", 3_000) {
        let lock = client.lock(format!("{number}"));
        acquiring.spawn(async move { lock.acquire().await });
    }
    let mut guards = Vec::new();
    while let Some(guard) = acquiring.join_next().await {
        guards.push(guard.expect("no panic").expect("free"));
    }
    let keys = |node: usize| cluster.node(node).key_count();
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
    assert!(late < LONG_LEASE / 8, "renewals were late by {late:?}");
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
    let waited = within(LONG_LEASE, client.lock(&*key).run(async {})).await;
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
            within(SOON * 2, lock.run(async {})).await.expect("known").expect("free");
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
    within(LONG_LEASE, client.lock("k").run(async {})).await.expect("up").expect("free");
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
    let locker = "ACL SETUSER locker on >c4nary resetkeys ~* resetchannels &lock_client:* -@all \
                  +set +get +getrange +del +pexpire +pttl +type +time +zadd +zpopmin +zrem \
                  +zrange +zrank +zscore +zcount +info +publish +subscribe \
                  +unsubscribe +pubsub|numsub +eval +evalsha +script|load +ping +hello +select \
                  +cluster|slots +cluster|nodes +asking +spublish +ssubscribe +sunsubscribe \
                  +pubsub|shardnumsub";
    let page = include_str!("../../../../docs/redis.md");
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
        let next = within(LEASE / 2, waiting).await.expect("woken").expect("free");
        next.release().await.expect("held");
        cluster.move_slot(cluster.slot_of(&key), 2, 1);
    }
    let of_this_cluster = log.lines(&["permission", &cluster.node(0).address()]);
    assert_eq!(of_this_cluster, Vec::<String>::new());
}

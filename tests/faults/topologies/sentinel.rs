//! Failovers of a master that sentinels monitor.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use lock_runtime::{LockClient, LockError, LostReason};
use lock_tests::{
    CapturedLog, DOWN_AFTER, Expected, Proxy, SentinelProcess, Sentinels, TestedKind, within,
};
use tokio::time::timeout;

use crate::kinds::{CONTESTED, KindContention};
use crate::support::{
    Contention, FaultFixture, LEASE, client_with_lease, number, start_keeper, until,
};

/// Longer than a failover after a crash takes, also if the sentinels need several votes. A renewal
/// within [`SOON`] of another one is a verification.
const LONG_LEASE: Duration = Duration::from_secs(60);

/// How soon after a change a client must have noticed it.
const SOON: Duration = Duration::from_secs(7);

/// Waits until all servers have `key`.
async fn until_replicated(sentinels: &Sentinels, key: &str) {
    let has_key = || (0..3).all(|server| sentinels.server(server).exists(key));
    assert!(until(LONG_LEASE, has_key).await.is_some(), "{key} is replicated");
}

/// Whether the lease of `k` has been renewed at this server after `began`.
fn was_renewed(sentinels: &Sentinels, server: usize, began: Instant) -> bool {
    let left = u64::try_from(sentinels.server(server).pttl("k")).unwrap_or_default();
    left > 0 && LONG_LEASE < began.elapsed() + Duration::from_millis(left)
}

/// Begins a planned failover from the server `earlier`, and waits until the lease of `k` has been
/// renewed at the new master. Returns the new master.
async fn fail_over(sentinels: &Sentinels, earlier: usize) -> usize {
    let began = Instant::now();
    let master = sentinels.fail_over(earlier).await;
    let renewed = until(SOON, || was_renewed(sentinels, master, began)).await;
    assert!(renewed.is_some(), "the client moves to the new master");
    master
}

/// Asserts that a lock that is acquired now is acquired at this server.
async fn assert_locks_at(client: &LockClient, sentinels: &Sentinels, server: usize, key: &str) {
    let guard = client.lock(key).acquire().await.expect("granted");
    assert!(sentinels.server(server).exists(key), "the lock is at the new master");
    guard.release().await.expect("held");
}

async fn assert_a_lock_outlasts_its_master(mut sentinels: Sentinels) {
    let contention = Contention::start(&sentinels.url(), LONG_LEASE).await;
    let client = contention.waiter.clone();
    until_replicated(&sentinels, "k").await;
    let killing = async {
        let began = Instant::now();
        sentinels.kill(0);
        let master = sentinels.wait_for_another_master(0).await;
        let renewed = until(SOON, || was_renewed(&sentinels, master, began)).await;
        assert!(renewed.is_some(), "the lease is renewed at the new master at once");
        assert_locks_at(&client, &sentinels, master, "other").await;
    };
    contention.outlasts(Box::pin(killing), LONG_LEASE).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_holder_and_its_waiters_continue_when_the_master_is_killed() {
    assert_a_lock_outlasts_its_master(Sentinels::start()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_holder_and_its_waiters_continue_when_a_master_with_tls_is_killed() {
    assert_a_lock_outlasts_its_master(Sentinels::with_tls(Some(DOWN_AFTER))).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn holders_of_all_kinds_and_their_waiters_continue_when_the_master_is_killed() {
    let mut sentinels = Sentinels::start();
    let keys = (0..CONTESTED).map(|number| format!("k{number}")).collect();
    let master = (sentinels.server(0), keys);
    let contention = KindContention::start(&sentinels.url(), LONG_LEASE, master).await;
    for key in contention.keys() {
        until_replicated(&sentinels, key).await;
    }
    sentinels.kill(0);
    let master = sentinels.wait_for_another_master(0).await;
    contention.use_all_clients("other").await;
    contention.end(LONG_LEASE, sentinels.server(master)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn locks_of_all_kinds_that_the_promoted_replica_does_not_have_are_lost_at_once() {
    let sentinels = Sentinels::steady(&["--replica-read-only", "no"]);
    let client = client_with_lease(&sentinels.url(), LONG_LEASE).await;
    let mut holds = Vec::new();
    for kind in TestedKind::ALL {
        let key = format!("{kind:?}");
        let hold = kind.acquire(&client, &key, LEASE).await.expect("up").expect("free");
        until_replicated(&sentinels, &key).await;
        holds.push((kind, key, hold));
    }
    // As if the replication had been delayed.
    for replica in [1, 2] {
        for (_, key, _) in &holds {
            sentinels.server(replica).tell(&["DEL", key]);
        }
    }
    let master = sentinels.fail_over(0).await;
    for (kind, key, hold) in holds {
        let lost = timeout(SOON, hold.lost()).await;
        assert_eq!(lost, Ok(LostReason::Failover), "{kind:?} is lost at once");
        assert!(!sentinels.server(master).exists(&key), "{kind:?} is not created again");
        let next = kind.acquire(&client, &key, LONG_LEASE).await.expect("up").expect("free");
        next.release().await.expect("held");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_planned_failover_is_noticed_although_no_request_fails() {
    let sentinels = Sentinels::steady(&[]);
    let contention = Contention::start(&sentinels.url(), LONG_LEASE).await;
    let client = contention.holder.clone();
    until_replicated(&sentinels, "k").await;
    let failover = async {
        // The earlier master accepts requests for about ten seconds.
        let master = fail_over(&sentinels, 0).await;
        assert_locks_at(&client, &sentinels, master, "other").await;
    };
    contention.outlasts(Box::pin(failover), SOON).await;
}

#[tokio::test]
async fn sentinels_and_the_master_are_used_with_tls() {
    let sentinels = Sentinels::with_tls(None);
    let client = client_with_lease(&sentinels.url(), LONG_LEASE).await;
    let guard = client.lock("k").acquire().await.expect("free");
    until_replicated(&sentinels, "k").await;
    fail_over(&sentinels, 0).await;
    guard.release().await.expect("held");
    // The authority of the operating system has not issued the certificates.
    let untrusted = sentinels.url().split('?').next().expect("a URL").to_owned();
    match LockClient::connect(untrusted.as_str()).await {
        Err(LockError::Config { option: "tls" | "url", problem, .. }) => {
            assert!(problem.contains("tls_ca"), "{problem}");
        }
        other => panic!("{other:?}"),
    }
    match LockClient::connect(untrusted.replace("rediss", "redis")).await {
        Err(LockError::Config { option: "url", problem, .. }) => {
            assert!(problem.contains("`rediss"), "{problem}");
        }
        other => panic!("{other:?}"),
    }
}

/// One sentinel is suspended as well. After that, it names the earlier master for a while, which
/// accepts requests.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_master_that_was_suspended_grants_nothing_after_its_failover() {
    let fixture = FaultFixture::new().await;
    let sentinels = Sentinels::start();
    let holder = client_with_lease(&sentinels.url(), LONG_LEASE).await;
    let (keeper, _) = start_keeper(&holder, &fixture).await;
    until_replicated(&sentinels, "k").await;
    sentinels.sentinel(2).freeze();
    let began = Instant::now();
    sentinels.freeze(0);
    let master = sentinels.wait_for_another_master(0).await;
    let renewed = until(SOON, || was_renewed(&sentinels, master, began)).await;
    assert!(renewed.is_some(), "the lease is renewed at the new master at once");
    sentinels.thaw(0);
    sentinels.sentinel(2).thaw();
    let late = client_with_lease(&sentinels.url(), LONG_LEASE).await;
    for number in 0..20 {
        for (client, name) in [(&holder, "early"), (&late, "late")] {
            assert_locks_at(client, &sentinels, master, &format!("{name}:{number}")).await;
        }
        tokio::time::sleep(LEASE / 10).await;
    }
    assert!(!keeper.is_finished(), "the lock is still held");
    keeper.abort();
    fixture.assert_history(Expected::EVERYTHING);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lock_that_the_promoted_replica_does_not_have_is_lost_at_once() {
    let sentinels = Sentinels::steady(&["--replica-read-only", "no"]);
    // The next renewal is a third of this lease away.
    let client = client_with_lease(&sentinels.url(), LONG_LEASE).await;
    let missing = client.lock("missing").acquire().await.expect("free");
    let taken = client.lock("taken").acquire().await.expect("free");
    let kept = client.lock("kept").acquire().await.expect("free");
    let fixed = client.lock("fixed").lease(LONG_LEASE).acquire().await.expect("free");
    let fixed_kept = client.lock("fixed:kept").lease(LONG_LEASE).acquire().await.expect("free");
    for key in ["missing", "taken", "kept", "fixed", "fixed:kept"] {
        until_replicated(&sentinels, key).await;
    }
    // As if the replication had been delayed.
    for replica in [1, 2] {
        sentinels.server(replica).tell(&["DEL", "missing", "fixed"]);
        sentinels.server(replica).tell(&["SET", "taken", "another", "KEEPTTL"]);
    }
    let left = fixed_kept.remaining();
    let master = sentinels.fail_over(0).await;
    for guard in [&missing, &taken, &fixed] {
        let reason = within(SOON, guard.lost()).await.expect("the loss is noticed at once");
        assert_eq!(reason, LostReason::Failover);
    }
    match missing.release().await {
        Err(LockError::Lost { reason: LostReason::Failover, .. }) => {}
        other => panic!("{other:?}"),
    }
    assert!(kept.is_held() && fixed_kept.is_held());
    assert!(fixed_kept.remaining() <= left, "a fixed lease is not extended");
    for key in ["missing", "fixed"] {
        assert!(!sentinels.server(master).exists(key), "a lost lock is not created again");
    }
    // A loss that has another cause, after the failover.
    let after = client.lock("missing").acquire().await.expect("free");
    sentinels.server(master).tell(&["DEL", "missing"]);
    match after.release().await {
        Err(LockError::Lost { reason: LostReason::Gone, .. }) => {}
        other => panic!("{other:?}"),
    }
    for guard in [kept, fixed_kept] {
        guard.release().await.expect("held");
    }
}

#[tokio::test]
async fn locks_are_kept_and_acquired_while_all_sentinels_are_down() {
    let (sentinels, log) = (Sentinels::steady(&[]), CapturedLog::here());
    let client = client_with_lease(&sentinels.url(), LEASE).await;
    let guard = client.lock("k").acquire().await.expect("free");
    (0..3).for_each(|sentinel| sentinels.sentinel(sentinel).kill());
    let warned = || !log.lines(&["WARN", "no sentinel answers", "locks"]).is_empty();
    assert!(until(LONG_LEASE, warned).await.is_some(), "the silence is logged");
    for number in 0..20 {
        client.lock(format!("{number}")).run(async {}).await.expect("free");
        tokio::time::sleep(LEASE / 10).await;
    }
    assert!(guard.is_held());
    sentinels.server(0).kill_connections("normal");
    match client.lock("other").wait(LEASE / 2).acquire().await {
        Err(LockError::Unavailable { cause, .. }) => {
            let named = |sentinel| cause.contains(&sentinels.sentinel(sentinel).address());
            assert!((0..3).all(named), "{cause}");
        }
        other => panic!("no sentinel names the master: {other:?}"),
    }
    assert_eq!(timeout(LEASE * 2, guard.lost()).await, Ok(LostReason::RenewalFailed));
}

#[tokio::test]
async fn a_sentinel_of_another_group_is_outvoted() {
    let (sentinels, others) = (Sentinels::steady(&[]), Sentinels::steady(&[]));
    // Since then, the configuration of the other group has the higher epoch.
    let foreign = others.fail_over(0).await;
    let own = |index| sentinels.sentinel(index).address();
    let hosts = [others.sentinel(0).address(), own(0), own(1)];
    let before = others.server(foreign).calls("set");
    let client = client_with_lease(&sentinels.url_with(&hosts), LEASE).await;
    for number in 0..20 {
        assert_locks_at(&client, &sentinels, 0, &format!("{number}")).await;
        tokio::time::sleep(LEASE / 5).await;
    }
    assert_eq!(others.server(foreign).calls("set"), before);
}

#[tokio::test]
async fn sentinels_that_are_not_in_the_url_are_found() {
    let sentinels = Sentinels::steady(&[]);
    let dead = SentinelProcess::start(sentinels.server(0).port());
    let hosts = [dead.address(), sentinels.sentinel(0).address()];
    dead.kill();
    drop(dead);
    let client = client_with_lease(&sentinels.url_with(&hosts), LONG_LEASE).await;
    let guard = client.lock("k").acquire().await.expect("free");
    let is_watched = |sentinel| {
        let list: String = sentinels.sentinel(sentinel).command(&["CLIENT", "LIST"]);
        list.contains("sub=2")
    };
    let found = until(LONG_LEASE, || is_watched(1) && is_watched(2)).await;
    assert!(found.is_some(), "the other sentinels are found");
    sentinels.sentinel(0).kill();
    sentinels.server(0).kill_connections("normal");
    client.lock("other").run(async {}).await.expect("the other sentinels name the master");
    assert!(guard.is_held());
}

#[tokio::test]
async fn a_wrong_address_or_name_is_explained() {
    let sentinels = Sentinels::steady(&[]);
    let (server, sentinel) = (sentinels.server(0).address(), sentinels.sentinel(0).address());
    let unknown = sentinels.url().replace("/locks", "/other");
    for (url, words) in [
        (unknown, vec!["`other`", sentinel.as_str()]),
        (format!("redis://{sentinel}"), vec!["`redis+sentinel://"]),
        (format!("redis+sentinel://{server}/locks"), vec!["not a sentinel", server.as_str()]),
    ] {
        match LockClient::connect(url.as_str()).await {
            Err(LockError::Config { option: "url", problem, .. }) => {
                assert!(words.iter().all(|word| problem.contains(word)), "{problem}");
            }
            other => panic!("{url}: {other:?}"),
        }
    }
}

#[tokio::test]
async fn sentinels_that_notice_a_failure_too_late_for_the_lease_cause_a_warning() {
    let sentinels = Sentinels::start();
    let log = CapturedLog::here();
    let warnings = |lease: Duration| {
        // The clients of other tests warn as well.
        let lease = format!("for a lease of {lease:?}");
        log.lines(&["WARN", "counts as down", "down-after-milliseconds", &lease])
    };
    // Leases that no other test has.
    let long_enough = DOWN_AFTER * 6 + Duration::from_millis(1);
    let too_short = DOWN_AFTER * 5 + Duration::from_millis(1);
    client_with_lease(&sentinels.url(), long_enough).await;
    assert_eq!(warnings(long_enough), Vec::<String>::new());
    client_with_lease(&sentinels.url(), too_short).await;
    assert_eq!(warnings(too_short).len(), 1);
}

#[tokio::test]
async fn the_documented_permissions_suffice_for_the_sentinels_and_the_master() {
    let sentinels = Sentinels::steady(&[]);
    let watcher = "ACL SETUSER watcher on >c4nary resetkeys resetchannels &+switch-master &+promoted-slave -@all \
                   +hello +ping +subscribe +sentinel|get-master-addr-by-name +sentinel|master \
                   +sentinel|replicas +sentinel|sentinels";
    let locker = "ACL SETUSER locker on >c4nary resetkeys ~k ~lock_queue:* ~lock_fence:* resetchannels \
                  &lock_client:* -@all +set +get +getrange +del +pexpire +pttl +type +time +zadd \
                  +zpopmin +zrem +zrange +zrank +zscore +zcount +info +publish +subscribe +unsubscribe +pubsub|numsub +eval +evalsha +script|load \
                  +ping +hello +select +role";
    for line in [watcher, locker] {
        let page = format!(
            "{}{}",
            include_str!("../../../docs/operations.md"),
            include_str!("../../../docs/redis.md")
        );
        for word in line.split_whitespace().filter(|word| word.starts_with(['+', '&'])) {
            assert!(page.contains(word), "{word} is documented");
        }
    }
    for index in 0..3 {
        sentinels.sentinel(index).tell(&watcher.split_whitespace().collect::<Vec<_>>());
        sentinels.server(index).tell(&locker.split_whitespace().collect::<Vec<_>>());
    }
    let url = sentinels.url().replace("://", "://locker:c4nary@");
    let with = |password| format!("{url}?sentinel_user=watcher&sentinel_pass={password}");
    match LockClient::connect(with("wrong")).await {
        Err(LockError::Denied { cause, .. }) => assert!(cause.contains("sentinel"), "{cause}"),
        other => panic!("{other:?}"),
    }
    let client = client_with_lease(&with("c4nary"), LONG_LEASE).await;
    let guard = client.lock("k").acquire().await.expect("free");
    guard.fencing_token().await.expect("allowed");
    let is_watched = |sentinel| {
        let list: String = sentinels.sentinel(sentinel).command(&["CLIENT", "LIST"]);
        list.lines().any(|line| line.contains("sub=2") && line.contains("user=watcher"))
    };
    assert!(
        until(LONG_LEASE, || (0..3).all(is_watched)).await.is_some(),
        "all sentinels are watched"
    );
    let master = fail_over(&sentinels, 0).await;

    // Without the epochs, the client follows most sentinels.
    for index in 0..3 {
        sentinels.sentinel(index).tell(&["ACL", "SETUSER", "watcher", "-sentinel|master"]);
    }
    fail_over(&sentinels, master).await;
    guard.release().await.expect("held");
}

/// The sentinel that has led a failover fails, and the others begin anew with the earlier master.
/// Both servers are masters then.
#[tokio::test]
async fn an_older_configuration_is_followed_only_if_it_stays() {
    let sentinels = Sentinels::steady(&[]);
    let client = client_with_lease(&sentinels.url(), LONG_LEASE).await;
    let guard = client.lock("k").acquire().await.expect("free");
    until_replicated(&sentinels, "k").await;
    let master = fail_over(&sentinels, 0).await;

    sentinels.sentinel(0).kill();
    let others = [1, 2].map(|index| sentinels.sentinel(index));
    for sentinel in others {
        sentinel.forget();
    }
    sentinels.server(0).tell(&["REPLICAOF", "NO", "ONE"]);
    for sentinel in others {
        sentinel.monitor(sentinels.server(0).port());
    }
    // The result of the search that found the new master is used for a moment.
    tokio::time::sleep(LEASE).await;
    sentinels.server(master).kill_connections("normal");
    match client.lock("early").wait(LEASE).acquire().await {
        Err(LockError::Unavailable { cause, .. }) => {
            assert!(cause.contains("do not agree that it has replaced"), "{cause}");
        }
        other => panic!("the earlier master is not used: {other:?}"),
    }
    let late = client.lock("late").wait(LONG_LEASE * 3).acquire().await.expect("they insist");
    assert!(sentinels.server(0).exists("late"));
    late.release().await.expect("held");
    drop(guard);
}

#[tokio::test]
async fn sentinels_that_do_not_answer_are_named_if_no_other_does() {
    let sentinels = Sentinels::steady(&[]);
    (1..3).for_each(|sentinel| sentinels.sentinel(sentinel).freeze());
    let client = client_with_lease(&sentinels.url(), LEASE).await;
    client.lock("k").run(async {}).await.expect("one sentinel names the master");
    sentinels.sentinel(0).freeze();
    match LockClient::connect(sentinels.url()).await {
        Err(LockError::Unavailable { cause, .. }) => {
            let is_named = |sentinel| cause.contains(&sentinels.sentinel(sentinel).address());
            assert!((0..3).all(is_named), "{cause}");
        }
        other => panic!("{other:?}"),
    }
    client.lock("k").run(async {}).await.expect("the connections to the master work");
}

/// The sentinels have not noticed the restart, and the replicas delete their data as well.
#[tokio::test]
async fn a_lock_is_lost_when_its_master_restarts_without_its_data() {
    let mut sentinels = Sentinels::steady(&[]);
    let log = CapturedLog::here();
    let client = client_with_lease(&sentinels.url(), LEASE).await;
    for words in ["`min-replicas-to-write`", "`appendonly yes`"] {
        // Other tests have such servers, too.
        assert!(!log.lines(&["WARN", words]).is_empty(), "{words}");
    }
    let guard = client.lock("k").acquire().await.expect("free");
    until_replicated(&sentinels, "k").await;
    sentinels.restart(0);
    let reason = within(LEASE * 2, guard.lost()).await.expect("the renewal notices the loss");
    assert!(matches!(reason, LostReason::Gone | LostReason::RenewalFailed), "{reason:?}");
    assert_locks_at(&client, &sentinels, 0, "k").await;
}

/// The URL names one sentinel. The others and the servers are behind other addresses than it names.
#[tokio::test]
async fn servers_behind_other_addresses_than_the_sentinels_name_are_used_with_a_map() {
    let sentinels = Sentinels::steady(&[]);
    let servers = [0, 1, 2].map(|index| sentinels.server(index).port());
    let watchers = [0, 1, 2].map(|index| sentinels.sentinel(index).port());
    let proxies: HashMap<u16, Proxy> =
        servers.iter().chain(&watchers).map(|port| (*port, Proxy::to(*port))).collect();
    let reached: HashMap<u16, u16> =
        proxies.iter().map(|(port, proxy)| (*port, proxy.port())).collect();
    let url = sentinels.url_with(&[format!("127.0.0.1:{}", reached[&watchers[0]])]);
    let builder = LockClient::builder().url(url).lease(LONG_LEASE);
    let client = builder.address_map(move |host, port| (host.to_owned(), reached[&port]));
    let client = client.connect().await.expect("reachable");
    let guard = client.lock("k").acquire().await.expect("free");
    assert!(proxies[&servers[0]].connections() > 0, "the map was used");
    let are_watched = || watchers.iter().all(|port| proxies[port].connections() > 0);
    assert!(until(LONG_LEASE, are_watched).await.is_some(), "the other sentinels are found");
    until_replicated(&sentinels, "k").await;
    let master = fail_over(&sentinels, 0).await;
    let is_reached = || proxies[&servers[master]].connections() > 0;
    assert!(until(LONG_LEASE, is_reached).await.is_some(), "the map is used again");
    guard.release().await.expect("held");
}

/// `LOCK_TESTS_FAILOVERS` sets the number of failovers.
#[tokio::test]
async fn a_held_lock_survives_planned_failovers() {
    let rounds = number("LOCK_TESTS_FAILOVERS", 3);
    let sentinels = Sentinels::steady(&[]);
    let client = client_with_lease(&sentinels.url(), LONG_LEASE).await;
    let guard = client.lock("k").acquire().await.expect("free");
    let mut master = 0;
    for round in 0..rounds {
        until_replicated(&sentinels, "k").await;
        master = fail_over(&sentinels, master).await;
        assert!(guard.is_held(), "round {round}");
    }
    guard.release().await.expect("held");
    assert_eq!(client.stats().lost, 0);
}

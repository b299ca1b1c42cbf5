//! Replicas that have to acknowledge a lock (`acknowledged_by`), and do not.

use std::future::poll_fn;
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use lock_runtime::{LockClient, LockError, LockGuard, LockMode, LostReason, Replicas};
use lock_tests::support::of_read_write;
use lock_tests::{
    CapturedLog, Cluster, Proxy, RedisServer, Sentinels, TestedKind, running_time, within,
};
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};

use crate::support::{LEASE, LOCKER, client, client_with_lease, until, until_idle};

/// Longer than a failover takes.
const LONG_LEASE: Duration = Duration::from_secs(12);

/// How soon after a change a client must have noticed it.
const SOON: Duration = Duration::from_secs(5);

/// A master, and its replicas.
struct Replicated {
    master: RedisServer,
    replicas: Vec<RedisServer>,
}

impl Replicated {
    async fn start(replicas: usize) -> Self {
        let master = RedisServer::plain(&["--repl-diskless-sync-delay", "0"]);
        let mut all = Self { master, replicas: Vec::new() };
        for _ in 0..replicas {
            all.add().await;
        }
        all
    }

    /// Adds a replica, and waits until it has all data.
    async fn add(&mut self) {
        let port = self.master.port().to_string();
        self.replicas.push(RedisServer::plain(&["--replicaof", "127.0.0.1", &port]));
        let count = self.replicas.len();
        let is_online = || {
            let info: String = self.master.command(&["INFO", "replication"]);
            info.matches("state=online").count() == count
        };
        assert!(until(LEASE * 30, is_online).await.is_some(), "the replica is online");
        // It gets the first writes only after it has told that it has loaded the data.
        self.master.tell(&["SET", "first", "1"]);
        let has_all = || {
            let info: String = self.master.command(&["INFO", "replication"]);
            let offset = info.lines().find_map(|line| line.strip_prefix("master_repl_offset:"));
            info.matches(&format!("offset={},", offset.expect("a field").trim())).count() == count
        };
        assert!(until(LEASE * 30, has_all).await.is_some(), "the replica has all data");
        self.master.tell(&["DEL", "first"]);
    }

    fn url(&self) -> String {
        self.master.url()
    }

    fn freeze(&self) {
        self.replicas.iter().for_each(RedisServer::freeze);
    }

    fn thaw(&self) {
        self.replicas.iter().for_each(RedisServer::thaw);
    }

    /// The ids of the connections that wait for replicas, or have done so last.
    fn acknowledging(&self) -> Vec<String> {
        let list: String = self.master.command(&["CLIENT", "LIST"]);
        let waiting = list.lines().filter(|line| line.contains(" cmd=wait "));
        let id = |line: &str| line.split("id=").nth(1)?.split(' ').next().map(str::to_owned);
        waiting.filter_map(id).collect()
    }

    /// Waits until the key does not exist.
    async fn until_free(&self, key: &str) {
        let is_free = || !self.master.exists(key);
        assert!(until(LEASE, is_free).await.is_some(), "{key} is undone");
    }
}

/// Asserts that the call has failed because replicas have not acknowledged the lock.
fn assert_not_acknowledged<T>(result: Result<T, LockError>, words: &[&str]) {
    match result {
        Err(LockError::Unavailable { cause, .. }) => {
            assert!(words.iter().all(|word| cause.contains(word)), "{cause}");
        }
        Ok(_) => panic!("granted without the acknowledgement of its replicas"),
        Err(error) => panic!("{error:?}"),
    }
}

/// It was recorded, and does not count without its replicas.
#[tokio::test]
async fn a_run_whose_start_was_not_acknowledged_leaves_its_period_free() {
    let servers = Replicated::start(1).await;
    let proxy = Proxy::to(servers.master.port());
    let client = client(&proxy.url()).await;
    let work = client.periodic("job", LONG_LEASE * 1_000).wait(Duration::ZERO);
    work.run(async {}).await.expect("free");
    let records: Vec<String> = servers.master.command(&["KEYS", "lock_run:*"]);
    let [record] = &records[..] else { panic!("{records:?}") };
    servers.master.tell(&["DEL", record]);
    proxy.hold(record);
    let call = work.clone().acknowledged_by(Replicas::AtLeast(1));
    let call = call.run(async { panic!("runs without the acknowledgement") });
    let freeze = async {
        assert!(until(LEASE * 5, || proxy.triggered() == 1).await.is_some(), "it starts");
        servers.replicas[0].freeze();
        proxy.deliver();
    };
    let (failed, ()) = tokio::join!(call, freeze);
    assert!(matches!(failed, Err(LockError::Unavailable { .. })), "{failed:?}");
    servers.replicas[0].thaw();
    until_idle(&client, LEASE * 5).await;
    assert_eq!(work.run(async {}).await, Ok(()), "the period is free");
}

/// The run counts when its success is recorded.
#[tokio::test]
async fn the_success_of_a_run_that_may_be_repeated_has_to_be_acknowledged() {
    let replicated = Replicated::start(1).await;
    let client = client(&replicated.url()).await;
    let work = client.periodic("job", LONG_LEASE).retry_failed();
    let work = work.acknowledged_by(Replicas::AtLeast(1));
    let log = CapturedLog::here();
    let body = async { replicated.replicas[0].freeze() };
    work.run(body).await.expect("the output is returned");
    replicated.replicas[0].thaw();
    let warnings = log.lines(&["WARN", "the end of a run was not recorded"]);
    assert!(!warnings.is_empty(), "recorded without the acknowledgement");
}

#[tokio::test]
async fn a_grant_without_its_replicas_is_undone_and_delays_no_other_lock() {
    let servers = Replicated::start(2).await;
    let client = client_with_lease(&servers.url(), LEASE * 4).await;
    let plain = client.lock("plain").acquire().await.expect("free");
    client.lock("k").acknowledged_by(Replicas::All).run(async {}).await.expect("acknowledged");
    servers.freeze();
    for (replicas, requires) in [(Replicas::from(1), "requires 1"), (Replicas::All, "all of them")]
    {
        let lock = client.lock("k").acknowledged_by(replicas).wait(LEASE * 2);
        let mut acknowledged = pin!(lock.acquire());
        let is_pending = poll_fn(|cx| Poll::Ready(acknowledged.as_mut().poll(cx).is_pending()));
        assert!(is_pending.await);
        let begun = until(LEASE * 10, || servers.master.exists("k"));
        let others = async {
            assert!(begun.await.is_some(), "the key is taken");
            let started = Instant::now();
            for number in 0..20 {
                client.lock(format!("other:{number}")).run(async {}).await.expect("free");
            }
            running_time(started)
        };
        let (result, others) = tokio::join!(acknowledged, others);
        // Each of them would wait for a sixth of the lease behind the replicas.
        assert!(others < LEASE * 3 / 2, "other requests took {others:?}");
        let words = ["0 of 2 replicas have acknowledged the lock within", requires];
        assert_not_acknowledged(result, &words);
        servers.until_free("k").await;
    }
    assert!(plain.is_held(), "other locks are renewed");
    servers.thaw();
    client.lock("k").acknowledged_by(2).run(async {}).await.expect("acknowledged again");
    plain.release().await.expect("held");
}

/// A candidate goes on campaigning until the call is dropped.
#[tokio::test]
async fn a_lock_of_any_kind_is_not_granted_without_its_replicas() {
    let servers = Replicated::start(1).await;
    let builder = LockClient::builder().url(servers.url()).lease(LEASE * 4).acknowledged_by(1);
    let client = builder.connect().await.expect("the server is up");
    let plain = client_with_lease(&servers.url(), LEASE * 4).await;
    let kept = plain.lock("kept").acquire().await.expect("free");
    // Each kind has a key of its own, so that all of them are requested at the same time.
    let kinds = TestedKind::ALL.map(|kind| (kind, format!("{kind:?}")));
    let acquire_all = async |wait: Duration| {
        let mut calls = JoinSet::new();
        for (kind, key) in kinds.clone() {
            let client = client.clone();
            let wait = if kind == TestedKind::Leader { wait.max(LEASE) } else { wait };
            calls.spawn(async move { (kind, kind.acquire(&client, &key, wait).await) });
        }
        calls.join_all().await
    };
    for (kind, result) in acquire_all(LEASE * 20).await {
        let hold = result.expect("acknowledged").unwrap_or_else(|| panic!("{kind:?} is busy"));
        hold.release().await.expect("held");
    }
    servers.freeze();
    // The cause of a single attempt is the missing acknowledgement, and not the end of the wait.
    for (kind, result) in acquire_all(Duration::ZERO).await {
        match (kind, result) {
            (TestedKind::Leader, Ok(None)) => {}
            (_, Ok(None)) => panic!("{kind:?} is busy"),
            (_, result) => {
                assert_not_acknowledged(result, &["`acknowledged_by` requires 1"]);
            }
        }
    }
    until_idle(&client, LEASE * 20).await;
    for key in kinds.iter().map(|(_, key)| key.as_str()).chain([TestedKind::BESIDE]) {
        servers.until_free(key).await;
    }
    assert!(kept.is_held(), "other locks are renewed");
    servers.thaw();
    for (kind, result) in acquire_all(LEASE * 20).await {
        let hold = result.expect("acknowledged").unwrap_or_else(|| panic!("{kind:?} is busy"));
        assert!(hold.is_held(), "{kind:?}");
        hold.release().await.expect("held");
    }
}

#[tokio::test]
async fn a_reader_does_not_become_a_writer_without_its_replicas() {
    let servers = Replicated::start(1).await;
    let builder = LockClient::builder().url(servers.url()).lease(LEASE * 10).acknowledged_by(1);
    let client = builder.wait(LEASE).connect().await.expect("the server is up");
    let other = client_with_lease(&servers.url(), LEASE * 10).await;
    let guard = client.read_write("k").read().acquire().await.expect("acknowledged");
    servers.freeze();
    let words = ["0 of 1 replica has acknowledged", "requires 1"];
    assert_not_acknowledged(of_read_write(&guard).try_upgrade().await, &words);
    assert_eq!(guard.mode(), Some(LockMode::Read), "it counts as a reader");
    assert!(guard.is_held());
    servers.thaw();
    let writer = other.read_write("k").write().try_acquire().await.expect("up");
    assert!(writer.is_none(), "its lock excludes writers");
    guard.release().await.expect("held");
    other.read_write("k").write().run(async {}).await.expect("nothing is left");
    // With its replica, the only reader becomes a writer.
    let guard = client.read_write("k").read().acquire().await.expect("acknowledged");
    assert_eq!(of_read_write(&guard).try_upgrade().await, Ok(true));
    guard.release().await.expect("held");
}

#[tokio::test]
async fn a_renewal_without_its_replicas_does_not_count() {
    let (log, lease) = (CapturedLog::here(), LEASE * 2);
    let servers = Replicated::start(1).await;
    let client = client_with_lease(&servers.url(), lease).await;
    let plain = client.lock("plain").acquire().await.expect("free");
    let guard = client.lock("k").acknowledged_by(1).acquire().await.expect("acknowledged");
    // The renewal that fails is retried.
    for _ in 0..3 {
        servers.freeze();
        tokio::time::sleep(lease / 4).await;
        servers.thaw();
        tokio::time::sleep(lease / 2).await;
        assert!(guard.is_held(), "the renewal is retried");
    }
    servers.freeze();
    let lost = timeout(lease * 3 / 2, guard.lost()).await;
    assert_eq!(lost, Ok(LostReason::RenewalFailed), "no renewal counts");
    tokio::time::sleep(lease).await;
    assert!(plain.is_held(), "other locks are renewed");
    let logged = log.lines(&["WARN", "renewal failed", "`acknowledged_by` requires 1"]);
    assert!(!logged.is_empty(), "the log says what was missing");
    drop(guard);
    servers.until_free("k").await;
}

#[tokio::test]
async fn a_waiter_that_requires_replicas_does_not_get_a_lock_that_they_may_lack() {
    let servers = Replicated::start(1).await;
    let client = client(&servers.url()).await;
    let plain = client.lock("k").acquire().await.expect("free");
    let lock = client.lock("k").acknowledged_by(1).wait(LEASE * 2);
    let waiting = tokio::spawn(async move { lock.acquire().await });
    assert!(until(LEASE * 10, || client.stats().queued == 1).await.is_some(), "it waits");
    servers.freeze();
    plain.release().await.expect("held");
    assert_not_acknowledged(waiting.await.expect("no panic"), &["`acknowledged_by` requires 1"]);
    servers.until_free("k").await;
    servers.thaw();

    // The other way round: the renewals of a waiter that requires no replicas need none.
    let first = client.lock("k").acknowledged_by(1).acquire().await.expect("acknowledged");
    let lock = client.lock("k");
    let waiting = tokio::spawn(async move { lock.acquire().await });
    assert!(until(LEASE * 10, || client.stats().queued == 1).await.is_some(), "it waits");
    first.release().await.expect("held");
    let second = waiting.await.expect("no panic").expect("handed off");
    servers.freeze();
    tokio::time::sleep(LEASE * 2).await;
    assert!(second.is_held());
}

#[tokio::test]
async fn a_nested_lock_that_requires_replicas_waits_for_them() {
    let servers = Replicated::start(1).await;
    let client = client(&servers.url()).await;
    let nested = || client.lock("k").acknowledged_by(1).wait(LEASE / 2);
    let body = async {
        servers.freeze();
        assert_not_acknowledged(nested().acquire().await, &["`acknowledged_by` requires 1"]);
        tokio::time::sleep(LEASE * 2).await;
        servers.thaw();
        let acknowledged = async {
            while nested().run(async {}).await.is_err() {
                tokio::time::sleep(LEASE / 10).await;
            }
        };
        within(SOON, acknowledged).await.expect("acknowledged");
        // The renewals of the enclosing hold count only with the replica from now on.
        servers.freeze();
        std::future::pending::<()>().await;
    };
    let run = client.lock("k").run(body);
    match within(SOON * 3, run).await.expect("the lock is lost") {
        Err(LockError::Lost { reason: LostReason::RenewalFailed, .. }) => {}
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_wait_for_replicas_that_is_interrupted_grants_nothing() {
    let servers = Replicated::start(1).await;
    let client = client(&servers.url()).await;
    client.lock("k").acknowledged_by(1).run(async {}).await.expect("acknowledged");
    // The reply to `WAIT` is the one of a server whose role changes, or is lost.
    for interrupt in [&["CLIENT", "UNBLOCK", "id", "ERROR"][..], &["CLIENT", "KILL", "ID", "id"]] {
        let connections = servers.acknowledging();
        let [id] = &connections[..] else { panic!("{connections:?}") };
        servers.freeze();
        let lock = client.lock("k").acknowledged_by(1);
        let attempt = tokio::spawn(async move { lock.try_acquire().await });
        let is_blocked = || {
            let clients: String = servers.master.command(&["INFO", "clients"]);
            clients.contains("blocked_clients:1")
        };
        assert!(until(LEASE * 10, is_blocked).await.is_some(), "it waits for the replica");
        let words = interrupt.iter().map(|word| if *word == "id" { id } else { *word });
        servers.master.tell(&words.collect::<Vec<_>>());
        match attempt.await.expect("no panic") {
            Err(LockError::Unavailable { .. }) => {}
            other => panic!("granted after {interrupt:?}: {other:?}"),
        }
        servers.until_free("k").await;
        servers.thaw();
        client.lock("k").acknowledged_by(1).run(async {}).await.expect("acknowledged again");
    }
}

/// The server could have lost the lock while nobody was connected for its acknowledgement.
#[tokio::test]
async fn an_acknowledgement_over_a_later_connection_does_not_count() {
    let servers = Replicated::start(1).await;
    let proxy = Proxy::to(servers.master.port());
    // The response timeout is a third of it.
    let client = client_with_lease(&proxy.url(), LEASE * 10).await;
    client.lock("first").acknowledged_by(1).run(async {}).await.expect("acknowledged");
    let connections = servers.acknowledging();
    let [id] = &connections[..] else { panic!("{connections:?}") };
    proxy.hold("k");
    let lock = client.lock("k").acknowledged_by(1);
    let attempt = tokio::spawn(async move { lock.try_acquire().await });
    assert!(until(LEASE, || proxy.triggered() == 1).await.is_some(), "the request is sent");
    servers.master.tell(&["CLIENT", "KILL", "ID", id]);
    // Otherwise, the acknowledgement is asked for over that connection. The client notices its end within two ticks.
    tokio::time::sleep(LEASE / 10).await;
    // The attempt is repeated, which has no answer.
    proxy.hold("k");
    proxy.deliver();
    match attempt.await.expect("no panic") {
        Err(LockError::Unavailable { .. }) => assert_eq!(proxy.triggered(), 2, "not repeated"),
        other => panic!("a later connection has acknowledged it: {other:?}"),
    }
    proxy.deliver();
    servers.until_free("k").await;
}

#[tokio::test]
async fn the_replicas_of_another_server_do_not_count() {
    let (earlier, later) = (Replicated::start(1).await, Replicated::start(1).await);
    let proxy = Proxy::to(earlier.master.port());
    let client = client_with_lease(&proxy.url(), LEASE * 4).await;
    // The address of the server changes, and the connections to the earlier one stay open.
    proxy.move_to(later.master.port());
    let lock = |wait| client.lock("k").acknowledged_by(1).wait(wait);
    let guard = lock(LEASE * 4).acquire().await.expect("all connections lead to the later server");
    assert!(!earlier.master.exists("k"), "no request was sent there");
    assert!(later.master.exists("k"));
    guard.release().await.expect("held");
}

#[tokio::test]
async fn all_replicas_are_those_that_the_server_reports() {
    let mut servers = Replicated::start(1).await;
    let client = client(&servers.url()).await;
    let all = || client.lock("k").acknowledged_by(Replicas::All);
    all().run(async {}).await.expect("acknowledged");
    servers.add().await;
    // The next acknowledgement finds the second replica.
    all().run(async {}).await.expect("acknowledged");
    servers.replicas[1].freeze();
    let words = ["1 of 2 replicas has acknowledged the lock within", "requires all of them"];
    assert_not_acknowledged(all().wait(LEASE).acquire().await, &words);
    client.lock("k").acknowledged_by(1).run(async {}).await.expect("acknowledged by the other");
    assert_not_acknowledged(
        client.lock("k").acknowledged_by(3).wait(LEASE / 2).acquire().await,
        &["the server has 2 replicas", "requires 3"],
    );
    servers.replicas[1].thaw();
    all().run(async {}).await.expect("acknowledged");
    // The server does not report this replica any more.
    servers.replicas[1].kill();
    assert_not_acknowledged(all().wait(LEASE * 2).acquire().await, &words);
    servers.master.kill_connections("normal");
    all().run(async {}).await.expect("one replica is reported over the new connection");
}

#[tokio::test]
async fn a_lost_lock_is_noticed_although_its_replicas_are_missing() {
    let mut servers = Replicated::start(1).await;
    let client = client_with_lease(&servers.url(), LEASE * 6).await;
    let guard = client.lock("k").acknowledged_by(1).acquire().await.expect("acknowledged");
    servers.replicas[0].kill();
    // One renewal is not acknowledged, and then the client knows that there is no replica.
    tokio::time::sleep(LEASE * 5 / 2).await;
    assert!(guard.is_held());
    servers.master.tell(&["DEL", "k"]);
    let reason = within(LEASE * 2, guard.lost()).await.expect("before the deadline");
    assert_eq!(reason, LostReason::Gone);
}

#[tokio::test]
async fn a_server_without_replicas_grants_nothing_and_causes_a_warning() {
    let server = RedisServer::plain(&[]);
    let log = CapturedLog::here();
    let builder = || LockClient::builder().url(server.url()).lease(LEASE).wait(LEASE / 2);
    let words = ["WARN", "no lock is granted", "the server has 0 replicas", &server.address()];
    let warnings = || log.lines(&words);
    for (replicas, requires) in [(Replicas::from(2), "requires 2"), (Replicas::All, "requires all")]
    {
        let before = warnings().len();
        let client = builder().acknowledged_by(replicas).connect().await.expect("a warning");
        assert_eq!(warnings().len(), before + 1);
        let result = client.lock("k").acquire().await;
        assert_not_acknowledged(result, &["the server has 0 replicas", requires]);
        assert!(!server.exists("k"), "no request was sent");
        client.lock("k").acknowledged_by(0).run(async {}).await.expect("free");
    }
    let before = server.calls("wait");
    let client = builder().connect().await.expect("the server is up");
    client.lock("k").run(async {}).await.expect("free");
    assert_eq!((warnings().len(), server.calls("wait")), (2, before), "no replicas are required");
}

#[tokio::test]
async fn many_locks_share_their_acknowledgements() {
    let servers = Replicated::start(1).await;
    // A connection that gives no answer for a third of the lease is replaced.
    let client = client_with_lease(&servers.url(), LEASE * 10).await;
    client.lock("k").acknowledged_by(1).run(async {}).await.expect("acknowledged");
    let before = (servers.master.calls("wait"), servers.acknowledging());
    // A round takes a while, so that the calls meet.
    servers.freeze();
    let mut calls = JoinSet::new();
    for number in 0..200 {
        let lock = client.lock(format!("{number}")).acknowledged_by(1);
        calls.spawn(async move { lock.acquire().await });
    }
    let is_taken = || servers.master.exists("199");
    assert!(until(LEASE * 10, is_taken).await.is_some(), "the requests are sent");
    servers.thaw();
    let guards: Vec<_> = calls.join_all().await;
    assert!(guards.iter().all(Result::is_ok), "acknowledged");
    let after = servers.master.calls("wait") - before.0;
    assert!(after < 50, "{after} requests for 200 acknowledgements");
    assert_eq!(servers.acknowledging(), before.1, "over one connection");
}

#[tokio::test]
async fn the_documented_permissions_suffice_for_acknowledgements() {
    let servers = Replicated::start(1).await;
    let page = include_str!("../../../docs/redis.md");
    let permitted = "~lock_ack:* +wait +info";
    assert!(page.contains(permitted), "{permitted} is documented");
    servers.master.tell(&LOCKER.split_whitespace().collect::<Vec<_>>());
    let url = servers.url().replace("://", "://locker:c4nary@");
    // On a busy machine, the replica may take long to acknowledge.
    let lease = LEASE * 5;
    let required = || LockClient::builder().url(&url).lease(lease).acknowledged_by(1);
    let plain = client(&url).await;
    let names = ["`acknowledged_by`", "`+wait`", "`~lock_ack:*`"];
    for (missing, names) in [
        (&["+wait"][..], &names[..]),
        (&["~lock_ack:*", "-wait"], &names),
        (&["+wait", "-info"], &["`acknowledged_by`", "`+info`"]),
    ] {
        let words = [&["ACL", "SETUSER", "locker"][..], missing].concat();
        servers.master.tell(&words);
        let connect = required().connect().await.map(drop);
        let acquire = plain.lock("k").acknowledged_by(1).acquire().await.map(drop);
        for denied in [connect, acquire] {
            match denied {
                Err(LockError::Denied { cause, .. }) => {
                    assert!(names.iter().all(|name| cause.contains(name)), "{cause}");
                }
                other => panic!("{other:?}"),
            }
        }
        assert!(!servers.master.exists("k"), "no request was sent");
    }
    let words: Vec<_> = "ACL SETUSER locker".split(' ').chain(permitted.split(' ')).collect();
    servers.master.tell(&words);
    let client = required().connect().await.expect("permitted");
    let guard = client.lock("k").acquire().await.expect("acknowledged");
    tokio::time::sleep(lease * 6 / 5).await;
    guard.release().await.expect("held");
    // A permission that is taken away while the client is connected.
    servers.master.tell(&["ACL", "SETUSER", "locker", "-wait"]);
    match client.lock("k").acquire().await {
        Err(LockError::Denied { cause, .. }) => assert!(cause.contains("`+wait`"), "{cause}"),
        other => panic!("{other:?}"),
    }
    servers.until_free("k").await;
}

/// The replicas cannot connect to their master any more, and one of them is promoted.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lock_that_replicas_have_acknowledged_survives_the_failover_to_one_of_them() {
    let mut sentinels = Sentinels::start();
    // On a busy machine, the sentinels may need several votes.
    let client = client_with_lease(&sentinels.url(), LONG_LEASE * 10).await;
    let all = |key| client.lock(key).acknowledged_by(Replicas::All).wait(LEASE);
    let kept = all("kept").acquire().await.expect("acknowledged");
    let master = sentinels.server(0);
    master.tell(&["ACL", "SETUSER", "default", "-psync", "-sync"]);
    master.tell(&["CLIENT", "KILL", "TYPE", "replica"]);
    assert_not_acknowledged(all("late").acquire().await, &["`acknowledged_by` requires all"]);
    let is_undone = || !master.exists("late");
    assert!(until(SOON, is_undone).await.is_some(), "the grant is undone");
    let plain = client.lock("plain").acquire().await.expect("free");
    sentinels.kill(0);
    sentinels.wait_for_another_master(0).await;
    let reason = within(SOON, plain.lost()).await.expect("the loss is noticed at once");
    assert_eq!(reason, LostReason::Failover);
    assert!(kept.is_held(), "the promoted replica has the lock");
    kept.release().await.expect("held");
}

/// The client has the address of the master, and does not learn of the failover.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_grant_or_renewal_of_a_master_counts_that_was_suspended_during_its_failover() {
    let sentinels = Sentinels::start();
    let earlier = sentinels.server(0);
    let client = client_with_lease(&earlier.url(), LONG_LEASE).await;
    let guard = client.lock("k").acknowledged_by(Replicas::All).acquire().await;
    let guard = guard.expect("acknowledged");
    sentinels.freeze(0);
    let end = Instant::now() + guard.remaining();
    sentinels.wait_for_another_master(0).await;
    sentinels.thaw(0);
    // It accepts requests until the sentinels have told it that it is a replica, about ten seconds
    // later.
    let (mut number, mut granted) = (0, 0);
    while guard.is_held() {
        number += 1;
        let plain = client.lock(format!("plain:{number}")).try_acquire().await;
        granted += usize::from(plain.is_ok_and(|plain| plain.is_some()));
        let lock = client.lock(format!("acknowledged:{number}")).acknowledged_by(Replicas::All);
        assert!(lock.try_acquire().await.is_err(), "granted by a master that was replaced");
        let is_renewed = Instant::now() + guard.remaining() > end + LEASE;
        assert!(!is_renewed || !guard.is_held(), "renewed by a master that was replaced");
        tokio::time::sleep(LEASE / 20).await;
    }
    assert!(granted > 0, "without the option, the earlier master grants locks");
    let reason = guard.lost().await;
    assert_eq!(reason, LostReason::RenewalFailed);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_node_of_a_cluster_has_replicas_of_its_own() {
    let cluster = Cluster::start();
    let builder = LockClient::builder().url(cluster.url()).lease(LEASE * 4).wait(LEASE * 2);
    let client = builder.acknowledged_by(1).connect().await.expect("the cluster is up");
    let mut guards = Vec::new();
    for number in 0..60 {
        let lock = client.lock(format!("acknowledged:{number}"));
        guards.push(lock.acquire().await.expect("acknowledged"));
    }
    tokio::time::sleep(LEASE * 5).await;
    assert!(guards.iter().all(LockGuard::is_held), "they are renewed");
    for guard in guards {
        guard.release().await.expect("held");
    }
    // The master serves other slots than that of a key that is on the move.
    let (moving, elsewhere) = (cluster.key_of(0, 0), cluster.key_of(1, 0));
    let slot = cluster.slot_of(&moving);
    let is_staying = |key: &String| cluster.slot_of(key) != slot;
    let staying = cluster.keys_of(0, 2).into_iter().find(is_staying).expect("another slot");
    let moved = client.lock(moving.as_str()).acquire().await.expect("acknowledged");
    let begun = cluster.begin_move(slot, 0, 1);
    let new = client.lock(cluster.key_of(0, 1)).acquire().await;
    let new = new.expect("acknowledged by the replicas of the next node");
    // The replicas of the node that still has the slot do not count.
    cluster.freeze(cluster.replica_of(1));
    let key = cluster.key_of(0, 2);
    let result = client.lock(&*key).wait(Duration::ZERO).acquire().await;
    assert_not_acknowledged(result, &["0 of 1 replica has acknowledged", "requires 1"]);
    cluster.thaw(cluster.replica_of(1));
    tokio::time::sleep(LEASE * 5).await;
    assert!(moved.is_held(), "it is renewed at the node that has it still");
    assert!(new.is_held(), "it is renewed at the next node");
    begun.move_keys();
    tokio::time::sleep(LEASE * 5).await;
    begun.end();
    for guard in [moved, new] {
        guard.release().await.expect("held");
    }
    cluster.freeze(cluster.replica_of(0));
    let result = client.lock(staying.as_str()).acquire().await;
    assert_not_acknowledged(result, &["0 of 1 replica has acknowledged", "requires 1"]);
    client.lock(elsewhere.as_str()).run(async {}).await.expect("acknowledged");
    cluster.thaw(cluster.replica_of(0));
    client.lock(staying.as_str()).run(async {}).await.expect("acknowledged again");
}

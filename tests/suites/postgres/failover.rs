//! A standby that is promoted while locks are held.

use std::time::Duration;

use futures_util::future::try_join_all;
use lock_runtime::{LockClient, LockError, LockGuard, LostReason};
use lock_tests::support::{LEASE, until};
use lock_tests::{DatabaseServer, LostHost};

use crate::faults::{alone, client_of, eventually};
use crate::session_of;

/// A primary server and its standby.
struct ReplicatedDatabase {
    primary: DatabaseServer,
    standby: DatabaseServer,
}

impl ReplicatedDatabase {
    async fn new(is_synchronous: bool) -> Self {
        let primary = alone(&[]).await;
        let standby = primary.standby("standby");
        Self::of(primary, standby, is_synchronous).await
    }

    /// With a synchronous standby, whose clock can be set.
    async fn with_two_clocks() -> Self {
        let primary = alone(&[]).await;
        let standby = primary.standby_with_own_clock("standby");
        Self::of(primary, standby, true).await
    }

    /// Waits until the standby streams.
    async fn of(primary: DatabaseServer, standby: DatabaseServer, is_synchronous: bool) -> Self {
        let session = session_of(&primary.url("postgres")).await;
        let streams = "SELECT FROM pg_stat_replication WHERE state = 'streaming'";
        while session.query(streams, &[]).await.expect("a view of the system").is_empty() {
            tokio::time::sleep(LEASE / 20).await;
        }
        if is_synchronous {
            let set = "ALTER SYSTEM SET synchronous_standby_names = 'standby'";
            session.batch_execute(set).await.expect("a superuser");
            session.batch_execute("SELECT pg_reload_conf()").await.expect("a superuser");
            let is_set = "SELECT FROM pg_stat_replication WHERE sync_state = 'sync'";
            while session.query(is_set, &[]).await.expect("a view of the system").is_empty() {
                tokio::time::sleep(LEASE / 20).await;
            }
        }
        Self { primary, standby }
    }

    /// The URL of both servers, the standby first.
    fn url(&self) -> String {
        format!("postgres://test@{},{}/postgres", self.standby.address(), self.primary.address())
    }

    fn url_primary_first(&self) -> String {
        format!("postgres://test@{},{}/postgres", self.primary.address(), self.standby.address())
    }

    /// Kills the primary, and promotes the standby.
    async fn fail_over(&mut self) {
        self.primary.kill();
        let session = session_of(&self.standby.url("postgres")).await;
        session.execute("SELECT pg_promote()", &[]).await.expect("a superuser");
    }
}

/// Makes attempts while the store is unavailable.
async fn answered(client: &LockClient, key: &str) -> Result<(), LockError> {
    loop {
        match client.lock(key).wait(Duration::ZERO).acquire().await {
            Err(LockError::Unavailable { .. }) => tokio::time::sleep(LEASE / 10).await,
            Ok(guard) => return guard.release().await,
            Err(error) => return Err(error),
        }
    }
}

#[tokio::test]
async fn no_acquired_lock_is_lost_with_a_synchronous_standby() {
    let mut database = ReplicatedDatabase::new(true).await;
    let (one, two) = (
        client_of(&database.url(), LEASE * 90).await,
        client_of(&database.url(), LEASE * 90).await,
    );
    // While the standby does not confirm, nothing is granted.
    database.standby.freeze();
    let unconfirmed = one.lock("frozen").wait(LEASE / 2).acquire().await.map(drop);
    assert!(matches!(unconfirmed, Err(LockError::Unavailable { .. })), "{unconfirmed:?}");
    // Long enough for the second release: the first one has no answer within two seconds, and the next one
    // is sent two seconds later.
    tokio::time::sleep(LEASE * 6).await;
    database.standby.thaw();
    // What the statement without an answer has done is undone, although the release could not see it at first.
    let undone = two.lock("frozen").wait(LEASE * 30).acquire().await;
    undone.expect("undone long before the lease ends").release().await.expect("held");
    // Calls acquire locks until the server dies.
    let client = one.clone();
    let acquiring = tokio::spawn(async move {
        let mut guards = Vec::new();
        while let Ok(guard) = client.lock(format!("k{}", guards.len())).acquire().await {
            guards.push(guard);
            tokio::task::yield_now().await;
            if guards.len() == 200 {
                break;
            }
        }
        guards
    });
    tokio::time::sleep(LEASE / 2).await;
    database.fail_over().await;
    let guards = acquiring.await.expect("no panic");
    assert!(guards.len() > 1, "{} locks", guards.len());
    for guard in &guards {
        let busy = answered(&two, guard.key()).await;
        assert!(matches!(busy, Err(LockError::Busy { .. })), "{}: {busy:?}", guard.key());
        assert!(guard.is_held());
    }
    // And they are released where they are now.
    for guard in guards {
        guard.release().await.expect("held");
    }
    answered(&two, "k0").await.expect("free");
}

#[tokio::test]
async fn a_release_and_an_attempt_that_fails_do_not_wait_for_a_standby() {
    let mut database = ReplicatedDatabase::new(true).await;
    let url = database.primary.url("postgres");
    let (one, two) = (client_of(&url, LEASE * 30).await, client_of(&url, LEASE * 30).await);
    let guard = one.lock("k").acquire().await.expect("free");
    let long = one.lock("long").lease(LEASE * 120).acquire().await.expect("free");
    database.standby.freeze();
    let busy = two.lock("k").wait(LEASE).acquire().await.map(drop);
    assert!(matches!(busy, Err(LockError::Busy { .. })), "it waits for the standby: {busy:?}");
    // The release would give the lock to it, and wait like an acquire.
    let session = session_of(&url).await;
    let gone = "SELECT WHERE NOT EXISTS (SELECT FROM distributed_lock_claims)";
    eventually("the claim has left the queue", async || {
        (!session.query(gone, &[]).await.expect("the table").is_empty()).then_some(())
    })
    .await;
    guard.release().await.expect("the release waits for the standby");
    // The controls: an acquire waits, and so does a release without which the key would stay taken for long.
    let unconfirmed = two.lock("other").wait(LEASE / 2).acquire().await.map(drop);
    assert!(matches!(unconfirmed, Err(LockError::Unavailable { .. })), "{unconfirmed:?}");
    let unconfirmed = long.release().await;
    assert!(matches!(unconfirmed, Err(LockError::Unavailable { .. })), "{unconfirmed:?}");
    database.standby.thaw();
    for key in ["k", "long"] {
        let next = two.lock(key).wait(LEASE * 60).acquire().await.expect("released");
        next.release().await.expect("held");
    }
}

/// The price: a standby that is promoted without a release keeps the key taken until the lease ends. Nobody can have got it
/// in between, because the grant would have had to wait for the standby.
#[tokio::test]
async fn a_failover_that_forgets_a_release_delays_the_next_owner_only() {
    let mut database = ReplicatedDatabase::new(true).await;
    let (one, two) =
        (client_of(&database.url(), LEASE * 30).await, client_of(&database.url(), LEASE).await);
    let guard = one.lock("k").lease(LEASE * 4).acquire().await.expect("free");
    let token = guard.fencing_token().await.expect("held");
    database.standby.kill();
    guard.release().await.expect("held");
    database.primary.kill();
    database.standby.restart();
    let session = session_of(&database.standby.url("postgres")).await;
    session.execute("SELECT pg_promote()", &[]).await.expect("a superuser");
    let row = "SELECT FROM distributed_locks WHERE key = 'k'";
    assert_eq!(session.query(row, &[]).await.expect("the table").len(), 1, "the row is back");
    let next = two.lock("k").wait(LEASE * 60).acquire().await.expect("after the lease");
    let later = next.fencing_token().await.expect("held");
    assert!(later > token, "{later} after {token}");
    next.release().await.expect("held");
}

/// The control: without a synchronous standby, a lock is lost that the standby has not received.
#[tokio::test]
async fn a_lock_can_be_lost_with_an_asynchronous_standby() {
    let mut database = ReplicatedDatabase::new(false).await;
    let (one, two) = (
        client_of(&database.url(), LEASE * 30).await,
        client_of(&database.url(), LEASE * 30).await,
    );
    let session = session_of(&database.primary.url("postgres")).await;
    let accounts = "CREATE TABLE account (balance int8 NOT NULL)";
    session.batch_execute(accounts).await.expect("valid SQL");
    // What the standby has replayed is what it shows. Positions on the primary lag, and are unknown at first.
    let standby = session_of(&database.standby.url("postgres")).await;
    let replayed = "SELECT FROM pg_class WHERE relname = 'account'";
    while standby.query(replayed, &[]).await.expect("it answers").is_empty() {
        tokio::time::sleep(LEASE / 20).await;
    }
    database.standby.kill();
    let guard = one.lock("k").acquire().await.expect("free");
    database.primary.kill();
    database.standby.restart();
    let session = session_of(&database.standby.url("postgres")).await;
    session.execute("SELECT pg_promote()", &[]).await.expect("a superuser");
    answered(&two, "k").await.expect("the promoted standby does not have the lock");
    assert!(guard.is_held(), "the first holder does not know it before its next renewal");
    // A transaction at the promoted server finds it.
    let mut session = session_of(&database.standby.url("postgres")).await;
    let mut transaction = session.transaction().await.expect("it is up");
    transaction.execute("INSERT INTO account VALUES (1)", &[]).await.expect("the table");
    match guard.verify_in(&mut transaction).await {
        Err(LockError::Lost { reason: LostReason::Gone, .. }) => {}
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_read_only_standby_alone_is_an_error_that_says_so() {
    let database = ReplicatedDatabase::new(false).await;
    match LockClient::connect(database.standby.url("postgres")).await.map(drop) {
        Err(LockError::Config { option: "url", problem, .. }) => {
            assert!(problem.contains("read-only standby"), "{problem}");
        }
        other => panic!("{other:?}"),
    }
    let url = format!("{}?target_session_attrs=read-write", database.standby.url("postgres"));
    match LockClient::connect(url).await.map(drop) {
        Err(LockError::Unavailable { cause, .. }) => {
            assert!(cause.contains("read-only standby"), "{cause}");
        }
        other => panic!("{other:?}"),
    }
    // The control.
    let url = format!("{}?target_session_attrs=read-write", database.url());
    LockClient::connect(url).await.expect("the primary");
}

/// A host that accepts connections and answers nothing delays those to the next one, and no more.
#[tokio::test]
async fn a_frozen_primary_does_not_keep_clients_from_a_promoted_standby() {
    let mut database = ReplicatedDatabase::new(false).await;
    let client = client_of(&database.url_primary_first(), LEASE * 3).await;
    client.lock("k").acquire().await.expect("free").release().await.expect("held");
    database.primary.freeze();
    let session = session_of(&database.standby.url("postgres")).await;
    session.execute("SELECT pg_promote()", &[]).await.expect("a superuser");
    // An attempt may have had its answer too late, and be undone first.
    let guard = client.lock("k").wait(LEASE * 60).acquire().await.expect("granted");
    // The release may use a connection to the frozen server, and is repeated over another one then.
    drop(guard);
    let next = client.lock("k").wait(LEASE * 60).acquire().await.expect("released");
    drop(next);
}

/// Packets to a host that is lost get no answer, not even a refusal.
#[tokio::test]
async fn a_lost_host_does_not_keep_clients_from_a_promoted_standby() {
    let mut database = ReplicatedDatabase::new(false).await;
    let url = database.url_primary_first();
    let client = client_of(&url, LEASE * 3).await;
    client.lock("k").acquire().await.expect("free").release().await.expect("held");
    database.fail_over().await;
    let lost = LostHost::on(database.primary.port()).await;
    assert!(lost.is_silent().await, "the host answers");
    let guard = client.lock("k").wait(LEASE * 60).acquire().await.expect("granted");
    guard.release().await.expect("held");
    let other = client_of(&url, LEASE * 3).await;
    let guard = other.lock("k").wait(LEASE * 60).acquire().await.expect("granted");
    guard.release().await.expect("held");
    assert!(lost.is_silent().await, "the host answers");
}

/// The time until the next check (keepalive) of each connection to this port that has one.
#[cfg(target_os = "linux")]
fn checks_of_connections(port: u16) -> Vec<Duration> {
    const ESTABLISHED: &str = "01";
    const KEEPALIVE: &str = "02";
    let peer = format!(":{port:04X}");
    let sockets = std::fs::read_to_string("/proc/net/tcp").expect("a file of the system");
    let check = |line: &str| {
        let fields: Vec<_> = line.split_ascii_whitespace().collect();
        let [_, _, remote, state, _, timer, ..] = fields[..] else { return None };
        let (kind, hundredths) = timer.split_once(':')?;
        let is_checked = remote.ends_with(&peer) && state == ESTABLISHED && kind == KEEPALIVE;
        let hundredths = u64::from_str_radix(hundredths, 16).ok().filter(|_| is_checked)?;
        Some(Duration::from_millis(hundredths * 10))
    };
    sockets.lines().filter_map(check).collect()
}

/// A host that is lost while nothing is sent to it is noticed by the checks of the system alone.
#[cfg(target_os = "linux")]
#[tokio::test]
async fn idle_connections_are_checked() {
    const DOCUMENTED: Duration = Duration::from_secs(15);
    let database = alone(&[]).await;
    let soon = || {
        let checks = checks_of_connections(database.port());
        checks.into_iter().filter(|after| *after <= DOCUMENTED).count()
    };
    // The control: a program may ask for later checks.
    let url = format!("{}?keepalives_idle=3600", database.url("postgres"));
    let late = client_of(&url, LEASE * 60).await;
    late.lock("late").acquire().await.expect("free").release().await.expect("held");
    assert_eq!(soon(), 0, "{:?}", checks_of_connections(database.port()));
    let client = client_of(&database.url("postgres"), LEASE * 60).await;
    client.lock("k").acquire().await.expect("free").release().await.expect("held");
    // One for requests, and one for notifications. While the system sends something again, it checks nothing.
    assert!(until(LEASE * 10, || soon() >= 2).await.is_some(), "{}", soon());
}

/// What a failover assumes: clocks that agree.
#[tokio::test]
async fn leases_end_early_at_a_promoted_standby_whose_clock_is_ahead() {
    let mut database = ReplicatedDatabase::with_two_clocks().await;
    // Its first renewal is not due before the end of the test.
    let lease = LEASE * 600;
    let (one, two) =
        (client_of(&database.url(), lease).await, client_of(&database.url(), lease).await);
    let guard = one.lock("k").acquire().await.expect("free");
    let token = guard.fencing_token().await.expect("held");
    // The control is `no_acquired_lock_is_lost_with_a_synchronous_standby`.
    let ahead = i64::try_from(lease.as_secs()).expect("a short time") * 2;
    database.standby.set_clock(ahead);
    database.fail_over().await;
    let next = two.lock("k").wait(LEASE * 60).acquire().await.expect("the lease has ended there");
    assert!(guard.is_held(), "the first holder does not know it before its next renewal");
    let later = next.fencing_token().await.expect("held");
    assert!(later > token, "{later} after {token}");
    let mut session = session_of(&database.standby.url("postgres")).await;
    let mut transaction = session.transaction().await.expect("it is up");
    match guard.verify_in(&mut transaction).await {
        Err(LockError::Lost { reason: LostReason::Taken, .. }) => {}
        other => panic!("{other:?}"),
    }
    next.release().await.expect("held");
}

/// A former primary would grant the same locks once more. The client does not go back to it, over none of its connections.
#[tokio::test]
async fn a_former_primary_that_goes_on_is_not_used_again() {
    let mut database = ReplicatedDatabase::new(false).await;
    let client = client_of(&database.url_primary_first(), LEASE * 60).await;
    // At one time, over all connections.
    let lock_all = async |name: &str| {
        let lock = |number| client.lock(format!("{name}-{number}")).wait(LEASE * 60).acquire();
        try_join_all((0..32).map(lock)).await.expect("free")
    };
    let release_all = async |guards: Vec<LockGuard>| {
        try_join_all(guards.into_iter().map(LockGuard::release)).await.expect("held");
    };
    release_all(lock_all("before").await).await;
    database.primary.freeze();
    let session = session_of(&database.standby.url("postgres")).await;
    session.execute("SELECT pg_promote()", &[]).await.expect("a superuser");
    let guard = client.lock("k").wait(LEASE * 60).acquire().await.expect("granted");
    database.primary.thaw();
    let guards = lock_all("after").await;
    let former = session_of(&database.primary.url("postgres")).await;
    let after = "SELECT FROM distributed_locks WHERE convert_from(key, 'UTF8') LIKE 'after-%'";
    let granted = former.query(after, &[]).await.expect("the table").len();
    assert_eq!(granted, 0, "{granted} locks are those of the former primary");
    assert_eq!(session.query(after, &[]).await.expect("the table").len(), 32);
    // Neither are new connections opened to it, although it is the first one of the URL.
    let terminated = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid() AND backend_type = 'client backend'";
    session.execute(terminated, &[]).await.expect("a superuser");
    // A release over a connection that is just terminated is repeated in the background.
    drop((guard, guards));
    release_all(lock_all("after").await).await;
    let granted = former.query(after, &[]).await.expect("the table").len();
    assert_eq!(granted, 0, "{granted} locks are those of the former primary");
}

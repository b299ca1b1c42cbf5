//! Servers that reply with an error.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use lock_runtime::{LockClient, LockError, LostReason};
use lock_tests::workload::{self, Plan};
use lock_tests::{CapturedLog, Expected, Proxy, RedisServer, running_time};
use tokio::time::{Instant, sleep};

use crate::support::{FaultFixture, LEASE, client, client_with_lease, until, until_idle};

/// An error that the server replies with while a condition lasts.
struct Refusal {
    /// The first word of the error message.
    code: &'static str,
    begin: fn(&RedisServer),
    end: fn(&RedisServer),
    /// Whether held locks can be renewed while the condition lasts.
    renews: bool,
}

const REFUSALS: [Refusal; 6] = [
    Refusal {
        code: "OOM",
        begin: |server| server.tell(&["CONFIG", "SET", "maxmemory", "1"]),
        end: |server| server.tell(&["CONFIG", "SET", "maxmemory", "0"]),
        renews: true,
    },
    Refusal {
        code: "NOREPLICAS",
        begin: |server| server.tell(&["CONFIG", "SET", "min-replicas-to-write", "1"]),
        end: |server| server.tell(&["CONFIG", "SET", "min-replicas-to-write", "0"]),
        renews: false,
    },
    Refusal {
        code: "READONLY",
        // A replica of a master that does not exist.
        begin: |server| server.tell(&["REPLICAOF", "127.0.0.1", "1"]),
        end: |server| server.tell(&["REPLICAOF", "NO", "ONE"]),
        renews: false,
    },
    Refusal {
        code: "MASTERDOWN",
        begin: |server| {
            server.tell(&["CONFIG", "SET", "replica-serve-stale-data", "no"]);
            server.tell(&["REPLICAOF", "127.0.0.1", "1"]);
        },
        end: |server| server.tell(&["REPLICAOF", "NO", "ONE"]),
        renews: false,
    },
    Refusal {
        code: "MISCONF",
        begin: |server| {
            // The server cannot save its data to a file, because a directory has its name.
            std::fs::create_dir(server.directory().join("taken")).expect("a temporary directory");
            server.tell(&["CONFIG", "SET", "save", "3600 1"]);
            server.tell(&["BGSAVE"]);
            let failed = || {
                let state: String = server.command(&["INFO", "persistence"]);
                state.contains("rdb_last_bgsave_status:err")
            };
            while !failed() {
                std::thread::sleep(Duration::from_millis(2));
            }
        },
        end: |server| server.tell(&["CONFIG", "SET", "stop-writes-on-bgsave-error", "no"]),
        renews: false,
    },
    Refusal {
        code: "BUSY",
        begin: |server| {
            server.tell(&["CONFIG", "SET", "lua-time-limit", "1"]);
            let mut stuck = server.connection();
            std::thread::spawn(move || {
                // The test ends the script, which is an error here.
                let _: redis::RedisResult<()> =
                    redis::cmd("EVAL").arg("while true do end").arg(0).query(&mut stuck);
            });
            let is_busy = || {
                let ping: redis::RedisResult<()> =
                    redis::cmd("PING").query(&mut server.connection());
                ping.is_err_and(|error| error.code() == Some("BUSY"))
            };
            while !is_busy() {
                std::thread::sleep(Duration::from_millis(2));
            }
        },
        end: |server| server.tell(&["SCRIPT", "KILL"]),
        renews: false,
    },
];

#[track_caller]
fn cause(outcome: Result<(), LockError>) -> String {
    match outcome {
        Err(LockError::Unavailable { cause, .. }) => cause,
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_refusal_is_reported_as_unavailable_with_its_cause_and_waited_out() {
    for Refusal { code, begin, end, renews } in REFUSALS {
        // With sentinels, a replica is refused for another reason.
        let server = RedisServer::plain(&["--dbfilename", "taken"]);
        // One lease outlasts the condition; the other one does so only if it is renewed. The longer
        // lease also gives replies more time on a busy machine.
        let with_lease = |lease| LockClient::builder().url(server.url()).lease(lease);
        let client = with_lease(LEASE * 30).wait(LEASE * 20).connect().await.expect("up");
        let holding = with_lease(LEASE * 30).wait(LEASE / 3).connect().await.expect("up");
        let lease = if renews { LEASE * 4 } else { LEASE };
        let renewing = with_lease(lease).connect().await.expect("up");
        let long = holding.lock("long").acquire().await.expect("free");
        let short = renewing.lock("short").acquire().await.expect("free");

        begin(&server);
        let begun = Instant::now();
        let once = cause(client.lock("k").try_acquire().await.map(drop));
        // A replica first refuses the write, and then the read.
        assert!(once.contains(code) || code == "MASTERDOWN", "{code}: {once}");
        let waited = cause(client.lock("k").wait(LEASE).acquire().await.map(drop));
        assert!(waited.contains(code), "{code}: {waited}");
        // A server that refuses only writes still reports a busy key.
        match client.lock("long").wait(LEASE).acquire().await.map(drop) {
            Err(LockError::Busy { .. }) if !["MASTERDOWN", "BUSY"].contains(&code) => {}
            outcome => {
                let waited = cause(outcome);
                assert!(waited.contains(code), "{code}: {waited}");
            }
        }
        // A key that cannot be read does not count as taken by another owner.
        let fenced = cause(long.fencing_token().await.map(drop));
        assert!(fenced.contains(code), "{code}: {fenced}");
        assert!(long.is_held(), "{code}");
        if code != "OOM" {
            assert!(cause(long.release().await).contains("in the background"), "{code}");
        }
        if renews {
            // Renewed by a request that was sent while the condition lasted.
            let renewed = || Instant::now() + short.remaining() > begun + lease;
            assert!(until(lease, renewed).await.is_some(), "{code}");
        } else {
            assert_eq!(short.lost().await, LostReason::RenewalFailed, "{code}");
        }

        let lock = client.lock("k");
        let waiting = tokio::spawn(async move { lock.acquire().await.map(drop) });
        sleep(LEASE / 5).await;
        end(&server);
        // The longest pause between two attempts of a waiter is half as long.
        let meanwhile = async {
            for _ in 0..2 {
                sleep(LEASE / 2).await;
                server.tell(&["PING"]);
            }
        };
        tokio::select! {
            biased;
            outcome = waiting => outcome.expect("no panic").expect("granted after the condition"),
            () = meanwhile => panic!("{code}: the waiter does not retry"),
        }
        drop(short);
        until_idle(&client, LEASE * 3).await;
        until_idle(&renewing, LEASE * 3).await;
        if code != "OOM" {
            until_idle(&holding, LEASE * 3).await;
            assert!(!server.exists("long"), "{code}: the key is released");
        }
    }
}

/// A key that is kept for its `min_hold` gets a new value. If the server is out of memory, it keeps
/// the old one.
#[tokio::test]
async fn a_min_hold_works_on_a_server_that_is_out_of_memory() {
    let server = RedisServer::start();
    let client = LockClient::builder().url(server.url()).lease(LEASE * 60).connect().await;
    let guard = client.expect("up").lock("k").min_hold(LEASE).acquire().await.expect("free");
    server.tell(&["CONFIG", "SET", "maxmemory", "1"]);
    guard.release().await.expect("a release needs no memory");
    let left = server.pttl("k");
    assert!(left > 0 && Duration::from_millis(left.unsigned_abs()) <= LEASE, "{left}");
}

/// Errors that waiting cannot resolve are returned at once.
#[tokio::test]
async fn denied_requests_are_not_retried() {
    let mut server = RedisServer::start();
    let client = client(&server.url()).await;
    server.tell(&["ACL", "SETUSER", "half", "on", ">password", "~*", "&*", "+@all"]);
    let half = server.url_as("half:password");
    let half = LockClient::connect(half).await.expect("all permissions");
    server.tell(&["ACL", "SETUSER", "half", "-evalsha", "-eval"]);
    let begun = Instant::now();
    let guard = half.lock("k").acquire().await.expect("acquiring needs no script");
    assert!(matches!(guard.release().await, Err(LockError::Denied { .. })));
    assert!(matches!(half.lock("k").acquire().await, Err(LockError::Denied { .. })), "NOPERM");

    server.set_password("changed");
    server.kill_connections("normal");
    let denied = async || {
        matches!(client.lock("l").wait(LEASE).acquire().await, Err(LockError::Denied { .. }))
    };
    assert!(denied().await, "NOAUTH");
    assert!(
        running_time(begun) < LEASE * 5,
        "none of the calls was retried: {:?}",
        begun.elapsed()
    );
}

/// The user may run scripts, but not all the commands in them.
#[tokio::test]
async fn denied_commands_in_scripts_are_not_retried() {
    let server = RedisServer::start();
    server.tell(&["ACL", "SETUSER", "half", "on", ">password", "~*", "&*", "+@all"]);
    let half = server.url_as("half:password");
    let client = client_with_lease(&half, LEASE * 30).await;
    let allow = |rule| server.tell(&["ACL", "SETUSER", "half", rule]);
    for [denied, allowed] in [["-get", "+get"], ["-del", "+del"]] {
        let guard = client.lock("k").acquire().await.expect("acquiring a free key needs neither");
        allow(denied);
        let begun = Instant::now();
        let release = guard.release().await;
        assert!(matches!(release, Err(LockError::Denied { .. })), "{denied}: {release:?}");
        assert!(running_time(begun) < LEASE * 5, "{denied}: {:?}", begun.elapsed());
        allow(allowed);
        let freed = until(LEASE * 10, || !server.exists("k")).await;
        assert!(freed.is_some(), "{denied}: the release is repeated in the background");
    }
    server.tell(&["SET", "k", "stranger"]);
    allow("-pttl");
    let begun = Instant::now();
    let acquired = client.lock("k").acquire().await.map(drop);
    assert!(matches!(acquired, Err(LockError::Denied { .. })), "{acquired:?}");
    assert!(running_time(begun) < LEASE * 5, "{:?}", begun.elapsed());
}

/// The password of the server is changed for a moment, and all connections are lost meanwhile.
#[tokio::test]
async fn a_release_during_a_password_change_is_repeated() {
    let mut server = RedisServer::start();
    let (log, client) = (CapturedLog::here(), client_with_lease(&server.url(), LEASE * 30).await);
    let keys = ["awaited", "dropped"].map(|name| format!("{name}:{}", server.port()));
    let awaited = client.lock(&*keys[0]).acquire().await.expect("free");
    let dropped = client.lock(&*keys[1]).acquire().await.expect("free");
    server.set_password("changed");
    server.kill_connections("normal");
    drop(dropped);
    assert!(awaited.release().await.is_err());
    let denied = || keys.iter().all(|key| !log.lines(&["denied a release", key]).is_empty());
    assert!(until(LEASE * 5, denied).await.is_some(), "{:?}", log.lines(&[&keys[0]]));
    server.set_password("");
    let free = || keys.iter().all(|key| !server.exists(key));
    assert!(until(LEASE * 10, free).await.is_some(), "the keys are free before their leases end");
}

#[tokio::test]
async fn a_server_at_its_connection_limit_is_unavailable_and_waited_for() {
    let server = RedisServer::start();
    let client = client(&server.url()).await;
    // The only remaining connection is that of the test itself.
    let mut admin = server.connection();
    let set = |limit: &str, admin: &mut redis::Connection| {
        let mut set = redis::cmd("CONFIG");
        set.arg("SET").arg("maxclients").arg(limit);
        set.query::<()>(admin).expect("permitted");
        let mut kill = redis::cmd("CLIENT");
        kill.arg("KILL").arg("TYPE").arg("normal").arg("SKIPME").arg("yes");
        kill.query::<()>(admin).expect("permitted");
    };
    set("1", &mut admin);
    let full = until(LEASE * 10, || server.is_full()).await;
    assert!(full.is_some());
    let outcome = client.lock("k").wait(LEASE / 3).acquire().await.map(drop);
    let cause = cause(outcome);
    // The error message is lost if the server closes the connection before the client reads it.
    let is_full = cause.contains("max number of clients");
    assert!(is_full || cause.contains("cannot connect"), "{cause}");
    let waiting = client.lock("k").acquire();
    let ending = async {
        sleep(LEASE / 5).await;
        set("100", &mut admin);
    };
    let (outcome, ()) = tokio::join!(waiting, ending);
    outcome.expect("the server is not full").release().await.expect("held");
}

/// Runs the workload while `disturb` is called repeatedly, and asserts that no call fails.
async fn without_an_error(disturb: impl Fn(&RedisServer) + Send + 'static) {
    let fixture = FaultFixture::new().await;
    let clients = [client(&fixture.server.url()).await, client(&fixture.server.url()).await];
    let plan = Plan { keys: 3, tasks: 4, work: LEASE / 50, wait: LEASE * 20, faulty_bodies: false };
    let stop = Arc::new(AtomicBool::new(false));
    let working = clients.clone().map(|client| {
        let (register, recorder) = (fixture.register.clone(), fixture.recorder.clone());
        tokio::spawn(workload::work(client, register, recorder, plan.clone(), Arc::clone(&stop)))
    });
    let start = Instant::now();
    while start.elapsed() < LEASE * 4 {
        disturb(&fixture.server);
        sleep(LEASE / 100).await;
    }
    stop.store(true, Ordering::Relaxed);
    let mut ended = Vec::new();
    for working in working {
        ended.push(working.await.expect("no panic"));
    }
    fixture.assert_history(Expected::EVERYTHING);
    for outcomes in ended {
        let errors = [&outcomes.busy, &outcomes.unavailable, &outcomes.lost, &outcomes.unexpected];
        let errors = errors.map(|count| count.load(Ordering::Relaxed));
        assert_eq!(errors, [0; 4], "{outcomes}");
        assert!(outcomes.done.load(Ordering::Relaxed) > 10, "{outcomes}");
    }
    for client in &clients {
        until_idle(client, LEASE * 3).await;
    }
    assert_eq!(fixture.server.command::<Vec<String>>(&["KEYS", "work:*"]), [""; 0]);
}

#[tokio::test(flavor = "multi_thread")]
async fn repeatedly_flushed_scripts_cause_no_error() {
    without_an_error(|server| server.tell(&["SCRIPT", "FLUSH"])).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn repeatedly_killed_connections_cause_no_error() {
    let killed = std::sync::atomic::AtomicU32::new(0);
    without_an_error(move |server| {
        // Every 200 ms: a busy machine has to connect and renew in between.
        if killed.fetch_add(1, Ordering::Relaxed).is_multiple_of(20) {
            server.kill_all_connections();
        }
    })
    .await;
}

/// Replies that are invalid for every request of a lock: a queued command, an empty map, an empty
/// array, a boolean, a string.
const INVALID: [&str; 5] = ["+QUEUED\r\n", "%0\r\n", "*0\r\n", "#t\r\n", "$2\r\nhi\r\n"];

/// The proxy sends replies that a Redis server never sends.
#[tokio::test]
async fn an_invalid_reply_grants_nothing() {
    let server = RedisServer::start();
    let proxy = Proxy::to(server.port());
    let client = client(&proxy.url()).await;
    server.tell(&["SET", "k", "stranger"]);
    let (set, script) = ([":1\r\n"].iter(), ["_\r\n", "+OK\r\n", ":-7\r\n"].iter());
    let of_set = set.chain(&INVALID).map(|reply| ("SET", reply));
    let replies: Vec<_> =
        of_set.chain(script.chain(&INVALID).map(|reply| ("EVALSHA", reply))).collect();
    for (n, (word, reply)) in (1..).zip(replies) {
        proxy.replace_reply_to(word, reply.as_bytes());
        // Enough time for a second attempt, which is a script.
        let outcome = client.lock("k").wait(LEASE / 3).acquire().await;
        assert_eq!(proxy.triggered(), n, "{word:?}");
        assert!(outcome.is_err(), "granted by {reply:?} to {word:?}");
        until_idle(&client, LEASE * 5).await;
    }
    assert_eq!(server.command::<String>(&["GET", "k"]), "stranger");
}

/// It would take gigabytes.
#[tokio::test]
async fn a_reply_that_says_that_it_is_too_long_ends_its_connection() {
    let server = RedisServer::start();
    let proxy = Proxy::to(server.port());
    let client = client(&proxy.url()).await;
    proxy.replace_reply_to("SET", b"$4294967296\r\nbegin");
    // A single attempt is repeated once.
    proxy.cut("EVALSHA", 10);
    let tried = cause(client.lock("k").try_acquire().await.map(drop));
    assert!(tried.contains("more than 16 MiB"), "{tried}");
    let guard = client.lock("k").wait(LEASE * 10).acquire().await.expect("over another one");
    guard.release().await.expect("held");
}

#[tokio::test]
async fn after_an_invalid_reply_the_request_is_undone_or_repeated() {
    let server = RedisServer::start();
    let proxy = Proxy::to(server.port());
    let client = client(&proxy.url()).await;
    let once = LockClient::builder().url(proxy.url()).lease(LEASE * 60).connect().await;
    let once = once.expect("up");
    for reply in &INVALID[..2] {
        proxy.replace_reply_to("SET", reply.as_bytes());
        // A single attempt is repeated once.
        proxy.cut("EVALSHA", 10);
        let tried = cause(once.lock("k").try_acquire().await.map(drop));
        assert!(tried.contains("unexpected reply"), "{reply:?}: {tried}");
        assert!(until(LEASE * 4, || !server.exists("k")).await.is_some(), "{reply:?}: not undone");
        // The cleanup sends two rounds.
        until_idle(&once, LEASE * 5).await;

        let guard = client.lock("k").acquire().await.expect("free");
        proxy.replace_reply_to("EVALSHA", reply.as_bytes());
        let triggered = proxy.triggered();
        let token = guard.fencing_token().await.expect("the request is repeated");
        assert!(proxy.triggered() > triggered && token > 1 << 40, "{reply:?}: {token}");
        let triggered = proxy.triggered();
        proxy.replace_reply_to("EVALSHA", reply.as_bytes());
        let renewed = until(LEASE * 4, || proxy.triggered() > triggered).await;
        assert!(renewed.is_some(), "a renewal is sent");
        sleep(LEASE).await;
        assert!(guard.is_held(), "{reply:?}: the renewal is repeated");

        // The next script is the release, because a renewal has just succeeded.
        let extended = server.calls("pexpire");
        assert!(until(LEASE * 10, || server.calls("pexpire") > extended).await.is_some());
        proxy.replace_reply_to("EVALSHA", reply.as_bytes());
        let released = cause(guard.release().await);
        assert!(released.contains("unexpected reply"), "{reply:?}: {released}");
        assert!(
            until(LEASE * 4, || !server.exists("k")).await.is_some(),
            "{reply:?}: not released"
        );
        until_idle(&client, LEASE * 5).await;
    }
}

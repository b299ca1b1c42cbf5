//! Servers that answer with an error.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use lock_runtime::{LockClient, LockError, LostReason};
use lock_tests::worker::{self, Plan};
use lock_tests::{Expected, Proxy, RedisServer};
use tokio::time::{Instant, sleep};

use crate::support::{LEASE, Scene, client, until, until_at_rest};

/// A reply that says no, for as long as something is wrong.
struct Refusal {
    /// How its message begins.
    code: &'static str,
    begin: fn(&RedisServer),
    end: fn(&RedisServer),
    /// Whether locks that are held can be renewed meanwhile.
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
        // Of a master that is not there.
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
            // It cannot write its data where there is a directory.
            std::fs::create_dir(server.directory().join("taken")).expect("our own directory");
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
                // Ended by the test, which is an error to this one.
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
async fn a_server_that_refuses_is_unavailable_says_why_and_is_waited_for() {
    for Refusal { code, begin, end, renews } in REFUSALS {
        let server = RedisServer::with(&["--dbfilename", "taken"]);
        // A lease that outlasts the trouble, and another that does not unless it is renewed. Where
        // answers matter, the long lease gives them time also on a machine that is busy.
        let with_lease = |lease| LockClient::builder().url(server.url()).watchdog(lease);
        let client = with_lease(LEASE * 30).wait(LEASE * 20).connect().await.expect("up");
        let patient = with_lease(LEASE * 30).wait(LEASE / 3).connect().await.expect("up");
        let lease = if renews { LEASE * 4 } else { LEASE };
        let renewing = with_lease(lease).connect().await.expect("up");
        let long = patient.lock("long").acquire().await.expect("free");
        let short = renewing.lock("short").acquire().await.expect("free");

        begin(&server);
        let begun = Instant::now();
        let once = cause(client.lock("k").try_acquire().await.map(drop));
        // A replica says first that it may not write, and then why it may not be read.
        assert!(once.contains(code) || code == "MASTERDOWN", "{code}: {once}");
        let waited = cause(client.lock("k").wait(LEASE).acquire().await.map(drop));
        assert!(waited.contains(code), "{code}: {waited}");
        // A server that only refuses to write still knows what is busy.
        match client.lock("long").wait(LEASE).acquire().await.map(drop) {
            Err(LockError::Busy { .. }) if !["MASTERDOWN", "BUSY"].contains(&code) => {}
            outcome => {
                let waited = cause(outcome);
                assert!(waited.contains(code), "{code}: {waited}");
            }
        }
        // What cannot be read is not to be taken for somebody else's.
        let fenced = cause(long.fencing_token().await.map(drop));
        assert!(fenced.contains(code), "{code}: {fenced}");
        assert!(long.is_held(), "{code}");
        if code != "OOM" {
            assert!(cause(long.release().await).contains("in the background"), "{code}");
        }
        if renews {
            // By a request that was sent since then.
            let renewed = || Instant::now() + short.remaining() > begun + lease;
            assert!(until(lease, renewed).await.is_some(), "{code}");
        } else {
            assert_eq!(short.lost().await, LostReason::RenewalFailed, "{code}");
        }

        let lock = client.lock("k");
        let waiting = tokio::spawn(async move { lock.acquire().await.map(drop) });
        sleep(LEASE / 5).await;
        end(&server);
        // The longest pause of one who waits takes half as long.
        let meanwhile = async {
            for _ in 0..2 {
                sleep(LEASE / 2).await;
                server.tell(&["PING"]);
            }
        };
        tokio::select! {
            biased;
            outcome = waiting => outcome.expect("no panic").expect("when it is over"),
            () = meanwhile => panic!("{code}: it waits on"),
        }
        drop(short);
        until_at_rest(&client, LEASE * 3).await;
        until_at_rest(&renewing, LEASE * 3).await;
        if code != "OOM" {
            until_at_rest(&patient, LEASE * 3).await;
            assert!(!server.exists("long"), "{code}: and what was to be released is");
        }
    }
}

/// A key that is to stay for its `min_hold` gets another name, and where memory is out for that keeps
/// its own.
#[tokio::test]
async fn a_key_that_stays_does_so_on_a_server_that_is_out_of_memory() {
    let server = RedisServer::start();
    let client = LockClient::builder().url(server.url()).watchdog(LEASE * 60).connect().await;
    let guard = client.expect("up").lock("k").min_hold(LEASE).acquire().await.expect("free");
    server.tell(&["CONFIG", "SET", "maxmemory", "1"]);
    guard.release().await.expect("a release needs no memory");
    let left = server.pttl("k");
    assert!(left > 0 && Duration::from_millis(left.unsigned_abs()) <= LEASE, "{left}");
}

/// What no waiting helps against is told at once.
#[tokio::test]
async fn a_server_that_denies_is_not_asked_again() {
    let mut server = RedisServer::start();
    let client = client(&server.url()).await;
    server.tell(&[
        "ACL",
        "SETUSER",
        "half",
        "on",
        ">password",
        "~*",
        "&*",
        "+@all",
        "-evalsha",
        "-eval",
    ]);
    let half = format!("redis://half:password@127.0.0.1:{}", server.port());
    let half = LockClient::connect(half).await.expect("it may come in");
    let begun = Instant::now();
    let guard = half.lock("k").acquire().await.expect("for that it needs no script");
    assert!(matches!(guard.release().await, Err(LockError::Denied { .. })));
    assert!(matches!(half.lock("k").acquire().await, Err(LockError::Denied { .. })), "NOPERM");

    server.set_password("changed");
    server.tell(&["CLIENT", "KILL", "TYPE", "normal"]);
    let denied = async || {
        matches!(client.lock("l").wait(LEASE).acquire().await, Err(LockError::Denied { .. }))
    };
    assert!(denied().await, "NOAUTH");
    assert!(begun.elapsed() < LEASE, "none of them was tried for long: {:?}", begun.elapsed());
}

#[tokio::test]
async fn a_server_that_is_full_is_unavailable_and_waited_for() {
    let server = RedisServer::start();
    let client = client(&server.url()).await;
    // One is left, for the test itself.
    let mut admin = server.connection();
    let set = |limit: &str, admin: &mut redis::Connection| {
        let mut set = redis::cmd("CONFIG");
        set.arg("SET").arg("maxclients").arg(limit);
        set.query::<()>(admin).expect("it may");
        let mut kill = redis::cmd("CLIENT");
        kill.arg("KILL").arg("TYPE").arg("normal").arg("SKIPME").arg("yes");
        kill.query::<()>(admin).expect("it may");
    };
    set("1", &mut admin);
    let full = until(LEASE, || server.is_full()).await;
    assert!(full.is_some());
    let outcome = client.lock("k").wait(LEASE / 3).acquire().await.map(drop);
    let cause = cause(outcome);
    // Its words get lost if it closes the connection before they were read.
    let said = cause.contains("max number of clients");
    assert!(said || cause.contains("cannot connect"), "{cause}");
    let waiting = client.lock("k").acquire();
    let ending = async {
        sleep(LEASE / 5).await;
        set("100", &mut admin);
    };
    let (outcome, ()) = tokio::join!(waiting, ending);
    outcome.expect("when there is room").release().await.expect("held");
}

/// Scripts that are forgotten, and connections that are killed, all the time.
async fn without_an_error(pester: impl Fn(&RedisServer) + Send + 'static) {
    let scene = Scene::new().await;
    let clients = [client(&scene.server.url()).await, client(&scene.server.url()).await];
    let plan = Plan { keys: 3, tasks: 4, work: LEASE / 50, wait: LEASE * 20, rough: false };
    let stop = Arc::new(AtomicBool::new(false));
    let working = clients.clone().map(|client| {
        let (register, diary) = (scene.register.clone(), scene.diary.clone());
        tokio::spawn(worker::work(client, register, diary, plan.clone(), Arc::clone(&stop)))
    });
    let start = Instant::now();
    while start.elapsed() < LEASE * 4 {
        pester(&scene.server);
        sleep(LEASE / 100).await;
    }
    stop.store(true, Ordering::Relaxed);
    let mut ended = Vec::new();
    for working in working {
        ended.push(working.await.expect("no panic"));
    }
    scene.assert_history(Expected::EVERYTHING);
    for outcomes in ended {
        let errors = [&outcomes.busy, &outcomes.unavailable, &outcomes.lost, &outcomes.strange];
        let errors = errors.map(|count| count.load(Ordering::Relaxed));
        assert_eq!(errors, [0; 4], "{outcomes}");
        assert!(outcomes.done.load(Ordering::Relaxed) > 10, "{outcomes}");
    }
    for client in &clients {
        until_at_rest(client, LEASE * 3).await;
    }
    assert_eq!(scene.server.command::<Vec<String>>(&["KEYS", "work:*"]), [""; 0]);
}

#[tokio::test(flavor = "multi_thread")]
async fn scripts_that_are_forgotten_all_the_time_cost_no_error() {
    without_an_error(|server| server.tell(&["SCRIPT", "FLUSH"])).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn connections_that_are_killed_all_the_time_cost_no_error() {
    let killed = std::sync::atomic::AtomicU32::new(0);
    without_an_error(move |server| {
        // Every 50 ms.
        if killed.fetch_add(1, Ordering::Relaxed).is_multiple_of(5) {
            server.tell(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]);
            server.tell(&["CLIENT", "KILL", "TYPE", "pubsub"]);
        }
    })
    .await;
}

/// What is no reply to any of our requests: a queued command, an empty map, an empty array, a
/// boolean, a string.
const STRANGE: [&str; 5] = ["+QUEUED\r\n", "%0\r\n", "*0\r\n", "#t\r\n", "$2\r\nhi\r\n"];

/// What a `SET` that takes a lock contains, and nothing that is sent on a new connection.
const SET: &str = "\r\nPX\r\n";

/// Something between us and the server says things that no Redis says.
#[tokio::test]
async fn a_reply_that_is_none_grants_nothing() {
    let server = RedisServer::start();
    let proxy = Proxy::to(server.port());
    let client = client(&proxy.url()).await;
    server.tell(&["SET", "k", "stranger"]);
    let (set, script) = ([":1\r\n"].iter(), ["_\r\n", "+OK\r\n", ":-7\r\n"].iter());
    let of_set = set.chain(&STRANGE).map(|reply| (SET, reply));
    let replies: Vec<_> =
        of_set.chain(script.chain(&STRANGE).map(|reply| ("EVALSHA", reply))).collect();
    for (n, (word, reply)) in (1..).zip(replies) {
        proxy.replace_reply_to(word, reply.as_bytes());
        // Time enough for a second try, which is a script.
        let outcome = client.lock("k").wait(LEASE / 3).acquire().await;
        assert_eq!(proxy.struck(), n, "{word:?}");
        assert!(outcome.is_err(), "granted by {reply:?} to {word:?}");
        until_at_rest(&client, LEASE * 5).await;
    }
    assert_eq!(server.command::<String>(&["GET", "k"]), "stranger");
}

#[tokio::test]
async fn a_reply_that_is_none_leaves_unknown_what_was_done() {
    let server = RedisServer::start();
    let proxy = Proxy::to(server.port());
    let client = client(&proxy.url()).await;
    let once = LockClient::builder().url(proxy.url()).watchdog(LEASE * 60).connect().await;
    let once = once.expect("up");
    for reply in &STRANGE[..2] {
        proxy.replace_reply_to(SET, reply.as_bytes());
        let tried = cause(once.lock("k").try_acquire().await.map(drop));
        assert!(tried.contains("unexpected reply"), "{reply:?}: {tried}");
        assert!(until(LEASE * 4, || !server.exists("k")).await.is_some(), "{reply:?}: not undone");
        // It is undone twice.
        until_at_rest(&once, LEASE * 5).await;

        let guard = client.lock("k").acquire().await.expect("free");
        proxy.replace_reply_to("EVALSHA", reply.as_bytes());
        let struck = proxy.struck();
        let token = guard.fencing_token().await.expect("it is asked for once more");
        assert!(proxy.struck() > struck && token > 1 << 40, "{reply:?}: {token}");
        let struck = proxy.struck();
        proxy.replace_reply_to("EVALSHA", reply.as_bytes());
        let renewed = until(LEASE * 4, || proxy.struck() > struck).await;
        assert!(renewed.is_some(), "there is a renewal");
        sleep(LEASE).await;
        assert!(guard.is_held(), "{reply:?}: it is renewed once more");

        // The next request is the release, because a renewal was just made.
        let extended = server.calls("pexpire");
        assert!(until(LEASE, || server.calls("pexpire") > extended).await.is_some());
        proxy.replace_reply_to("EVALSHA", reply.as_bytes());
        let released = cause(guard.release().await);
        assert!(released.contains("unexpected reply"), "{reply:?}: {released}");
        assert!(
            until(LEASE * 4, || !server.exists("k")).await.is_some(),
            "{reply:?}: not released"
        );
        until_at_rest(&client, LEASE * 5).await;
    }
}

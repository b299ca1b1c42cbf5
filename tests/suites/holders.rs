//! Who holds a busy lock.

use std::time::Duration;

use lock_runtime::{
    ClientInfo, Holder, HolderKind, Identity, Lock, LockClient, LockError, WireFormat,
};
use lock_tests::{CapturedLog, RedisServer, TestedKind, running_time};
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::support::{LEASE, client, helper, milliseconds, on_every_store, until};

/// A wait that ends while the lock is busy.
const SHORT: Duration = LEASE.checked_div(2).expect("not zero");

const FORMATS: [WireFormat; 3] = [WireFormat::Token, WireFormat::Redisson, WireFormat::Timestamp];

fn holder(error: LockError) -> Holder {
    match error {
        LockError::Busy { holder, .. } => holder,
        other => panic!("{other:?}"),
    }
}

/// The holder that a call finds after a short wait.
async fn holder_of(lock: Lock) -> Holder {
    holder(lock.wait(SHORT).acquire().await.expect_err("busy"))
}

/// The client that a call finds after a short wait.
async fn client_of(lock: Lock) -> ClientInfo {
    let holder = holder_of(lock).await;
    *holder.client.unwrap_or_else(|| panic!("the store was asked: {:?}", holder.kind))
}

/// The name of the presence of the only client that has one.
async fn presence(server: &RedisServer) -> String {
    let names = || server.command::<Vec<String>>(&["KEYS", "lock_client:*"]);
    assert!(until(LEASE * 20, || names().len() == 1).await.is_some(), "{:?}", names());
    names().remove(0)
}

async fn connect(server: &RedisServer, identity: Identity) -> LockClient {
    let builder = LockClient::builder().url(server.url()).lease(LEASE).wait(LEASE * 20);
    builder.identity(identity).connect().await.expect("up")
}

on_every_store! {
    async fn another_client_is_named(pair: Pair) {
        let began = Instant::now();
        let _held = pair.two.lock("k").acquire().await.expect("free");
        tokio::time::sleep(LEASE / 5).await;
        let found = holder_of(pair.one.lock("k")).await;
        assert_eq!(found.kind, HolderKind::Elsewhere);
        assert!(found.lease_left.is_some_and(|left| left <= LEASE), "{found:?}");
        // Both clocks are read in steps.
        let step = Duration::from_millis(20);
        let held_for = found.held_for.expect("this library says since when");
        assert!(held_for + step >= LEASE / 5, "{held_for:?}");
        assert!(held_for <= began.elapsed() + step, "{held_for:?}");
        let process = std::process::id();
        assert_eq!(found.client.as_ref().and_then(|client| client.process), Some(process));
        let text = found.to_string();
        assert!(text.starts_with("held by ") && text.contains(&format!("(pid {process})")), "{text}");
        assert!(text.contains(" for up to ") && text.contains("its lease ends in"), "{text}");
    }

    async fn the_store_is_not_asked_about_a_lock_of_the_same_client(pair: Pair) {
        let _held = pair.one.lock("k").acquire().await.expect("free");
        let lock = pair.one.lock("k");
        let found = tokio::spawn(holder_of(lock)).await.expect("no panic");
        assert_eq!((found.kind, found.client), (HolderKind::ThisProcess, None));
    }

    async fn the_holder_is_named_after_a_single_attempt(pair: Pair) {
        let _held = pair.two.lock("k").acquire().await.expect("free");
        let named = async || {
            let error = pair.one.lock("k").wait(Duration::ZERO).acquire().await.expect_err("busy");
            holder(error).client.and_then(|client| client.process)
        };
        // A client tells its name in the background, and answers are shared for a second.
        let begun = Instant::now();
        while named().await.is_none() {
            assert!(running_time(begun) < LEASE * 20, "not named");
            tokio::time::sleep(LEASE / 10).await;
        }
        assert_eq!(named().await, Some(std::process::id()));
    }

    async fn the_holder_of_each_kind_is_named(pair: Pair) {
        for kind in TestedKind::ALL {
            let held = kind.acquire(&pair.two, &kind.name(), LEASE).await.expect("up").expect("free");
            let key = kind.name();
            let error = match kind {
                TestedKind::Reader | TestedKind::Writer => {
                    pair.one.read_write(key).write().wait(SHORT).acquire().await.err()
                }
                TestedKind::Permits => {
                    pair.one.semaphore(key, 2).permits(2).wait(SHORT).acquire().await.err()
                }
                TestedKind::Set => pair.one.lock_all([&*key]).wait(SHORT).acquire().await.err(),
                _ => pair.one.lock(key).wait(SHORT).acquire().await.err(),
            };
            let found = holder(error.expect("busy"));
            let process = found.client.as_ref().and_then(|client| client.process);
            assert_eq!(process, Some(std::process::id()), "{kind:?}: {found:?}");
            held.release().await.expect("held");
        }
    }
}

#[tokio::test]
async fn an_identity_is_told_in_every_format() {
    let server = RedisServer::start();
    let identity = Identity::named("web-3").service("shop", "1.4.2");
    let (one, two) = (connect(&server, identity).await, client(&server.url()).await);
    let text = format!("held by web-3 (pid {}, shop 1.4.2)", std::process::id());
    for format in FORMATS {
        let key = format!("{format:?}");
        let _held = one.lock(&*key).wire_format(format).acquire().await.expect("free");
        let found = holder_of(two.lock(&*key).wire_format(format)).await;
        assert!(found.to_string().starts_with(&text), "{format:?}: {found}");
        assert_eq!(found.held_for.is_some(), format != WireFormat::Redisson);
        let told = found.client.expect("told");
        assert_eq!(told.library.as_deref(), Some(env!("CARGO_PKG_VERSION")));
        assert!(told.started.is_some() && told.id.is_some());
    }
}

#[tokio::test]
async fn a_killed_process_is_named_until_its_lock_ends() {
    let server = RedisServer::start();
    let lease = LEASE * 3;
    let mut process = helper(&["hold", &server.url(), "k", &milliseconds(lease)]);
    assert_eq!(process.line(), "held");
    let id = process.id();
    // The presence follows the grant.
    presence(&server).await;
    process.kill();
    let client = client(&server.url()).await;
    let began = Instant::now();
    let mut asked = 0;
    loop {
        match client.lock("k").wait(SHORT).acquire().await {
            Ok(_) => break,
            Err(error) => {
                let found = holder(error);
                // Its lock may end while the store is asked who holds it.
                match &found.client {
                    Some(client) => assert_eq!(client.process, Some(id), "{found}"),
                    None => assert!(began.elapsed() > lease / 2, "{found}"),
                }
                asked += 1;
            }
        }
        assert!(running_time(began) < lease * 4, "its lock ends");
    }
    assert!(asked > 2, "{asked}");
}

#[tokio::test]
async fn a_presence_outlives_the_longest_lease_of_its_process() {
    let server = RedisServer::start();
    let client = client(&server.url()).await;
    let guard = client.lock("k").lease(LEASE * 60).acquire().await.expect("free");
    let name = presence(&server).await;
    assert!(server.pttl(&name) > i64::try_from((LEASE * 60).as_millis()).expect("short"));
    guard.release().await.expect("held");
    assert_eq!(server.keys(), [""; 0]);
}

#[tokio::test]
async fn a_lock_that_stays_for_its_min_hold_still_names_its_client() {
    let server = RedisServer::start();
    let (one, two) = (client(&server.url()).await, client(&server.url()).await);
    one.lock("k").min_hold(LEASE * 60).run(async {}).await.expect("free");
    let name = presence(&server).await;
    let stays = i64::try_from((LEASE * 50).as_millis()).expect("short");
    let outlives = || server.pttl(&name) > stays;
    assert!(until(LEASE * 10, outlives).await.is_some(), "{} ms", server.pttl(&name));
    assert_eq!(client_of(two.lock("k")).await.process, Some(std::process::id()));
}

/// The server is out of memory, and has room again later.
#[tokio::test]
async fn a_presence_that_was_not_written_is_written_later() {
    let server = RedisServer::start();
    let client = client(&server.url()).await;
    server.tell(&["CONFIG", "SET", "maxmemory", "1"]);
    let refused = client.lock("k").wait(SHORT).acquire().await;
    assert!(matches!(refused, Err(LockError::Unavailable { .. })), "{refused:?}");
    // Long enough for some attempts, all of which fail. The client is idle meanwhile.
    tokio::time::sleep(LEASE * 2).await;
    server.tell(&["CONFIG", "SET", "maxmemory", "0"]);
    presence(&server).await;
}

#[tokio::test]
async fn a_client_of_another_library_does_not_say_who_it_is() {
    let server = RedisServer::start();
    let client = client(&server.url()).await;
    let text = "held by a client that does not say who it is";
    for (key, format, command) in [
        ("token", WireFormat::Token, vec!["SET", "token", "3f1c0e9ab2"]),
        ("digits", WireFormat::Token, vec!["SET", "digits", "0123456789abcdef0123456789abcdef"]),
        ("long", WireFormat::Token, vec!["SET", "long", "held.by-somebody_with-a-long-token"]),
        (
            "hash",
            WireFormat::Redisson,
            vec!["HSET", "hash", "285475da-9152-4c83-822a-67ee2f116a79:52", "1"],
        ),
        ("time", WireFormat::Timestamp, vec!["SET", "time", "9999999999999"]),
    ] {
        server.tell(&command);
        if format != WireFormat::Timestamp {
            server.tell(&["PEXPIRE", key, &milliseconds(LEASE * 60)]);
        }
        let found = holder_of(client.lock(key).wire_format(format)).await;
        assert!(found.to_string().starts_with(text), "{key}: {found}");
        assert_eq!(found.held_for, None, "{key}");
        let told = found.client.expect("asked");
        assert_eq!((told.id, told.name, told.process), (None, None, None), "{key}");
    }
    // The owner of an earlier lock of this library, which another client has taken since.
    let earlier = client.lock("stale").wire_format(WireFormat::Timestamp).acquire().await;
    let earlier = earlier.expect("free");
    server.tell(&["SET", "stale", "9999999999999"]);
    let found = holder_of(client.lock("stale").wire_format(WireFormat::Timestamp)).await;
    assert!(found.kind != HolderKind::Elsewhere || found.to_string().starts_with(text), "{found}");
    drop(earlier);
    server.tell(&["PERSIST", "token"]);
    let forever = holder_of(client.lock("token")).await;
    assert_eq!(forever.kind, HolderKind::NoExpiry);
    assert!(forever.to_string().contains(text), "{forever}");
}

#[tokio::test]
async fn a_client_may_tell_nothing() {
    let server = RedisServer::start();
    let (one, two) = (connect(&server, Identity::none()).await, client(&server.url()).await);
    let _held = one.lock("k").acquire().await.expect("free");
    let found = holder_of(two.lock("k")).await;
    assert_eq!(found.client.as_ref().map(|client| client.name.clone()), Some(None));
    assert!(found.held_for.is_some() && found.client.is_some_and(|client| client.id.is_some()));
    let presences: Vec<String> = server.command(&["KEYS", "lock_client:*"]);
    assert_eq!(presences.len(), 1, "that of the client that waits: {presences:?}");
}

#[tokio::test]
async fn leaders_runs_and_connections_have_the_identity_of_their_client() {
    let process = format!("pid {}", std::process::id());
    for (identity, name, connection) in [
        (Identity::named("web-3").service("shop", "1.4.2"), "web-3", "lock-runtime:web-3:"),
        (Identity::none(), "unnamed", "lock-runtime "),
    ] {
        let is_told = identity != Identity::none();
        let server = RedisServer::start();
        let client = connect(&server, identity).await;
        let work = client.periodic("job", LEASE * 60);
        work.run(async {}).await.expect("the first run of the period");
        let run = client.last_run("job").await.expect("up").expect("recorded");
        let leader = client.leadership("leader").campaign().await.expect("no leader");
        let known = client.leadership("leader").leader().await.expect("up").expect("it leads");
        for told in [&run.by, &known.name] {
            assert!(told.starts_with(name) && told.contains(&process) == is_told, "{told}");
        }
        let connections: String = server.command(&["CLIENT", "LIST"]);
        let of_library = connections.lines().filter(|line| line.contains("name=lock-runtime"));
        let connection = format!(" name={connection}");
        assert!(of_library.clone().count() >= 2, "{connections}");
        assert!(of_library.clone().all(|line| line.contains(&connection)), "{connections}");
        drop(leader);
    }
}

/// Calls must work whatever the key of a presence holds.
#[tokio::test]
async fn a_presence_may_hold_anything() {
    let server = RedisServer::start();
    // Without tracking, a fixed lease has no requests after which the presence is written again.
    let one = LockClient::builder().url(server.url()).tracking(false).connect().await.expect("up");
    let two = connect(&server, Identity::none()).await;
    let guard = one.lock("k").lease(LEASE * 60).acquire().await.expect("free");
    let name = presence(&server).await;
    let long = "name=".to_owned() + &"x".repeat(1_000_000);
    for (command, found) in [
        (vec!["SET", &name, "garbage"], None),
        (vec!["SET", &name, ""], None),
        (vec!["SET", &name, "name=<b>\u{1b}[31m\r\npid=x"], Some("<b>[31m")),
        (vec!["SET", &name, &long], Some(&long[5..258])),
        (vec!["LPUSH", &name, "list"], None),
    ] {
        server.tell(&["DEL", &name]);
        server.tell(&command);
        server.tell(&["EXPIRE", &name, "1000"]);
        // Calls share what they have found for a second.
        tokio::time::sleep(Duration::from_millis(1010)).await;
        assert_eq!(client_of(two.lock("k")).await.name.as_deref(), found);
    }
    guard.release().await.expect("held");
}

#[tokio::test]
async fn without_permission_for_a_presence_everything_else_works() {
    let (log, server) = (CapturedLog::here(), RedisServer::start());
    server.tell(&[
        "ACL",
        "SETUSER",
        "shy",
        "on",
        ">password",
        "~k",
        "~lock_queue:*",
        "&*",
        "+@all",
    ]);
    let url = server.url_as("shy:password");
    let builder = || LockClient::builder().url(&url).lease(LEASE);
    let (one, two) = (builder().connect().await.expect("up"), client(&server.url()).await);
    let guard = one.lock("k").acquire().await.expect("free");
    tokio::time::sleep(LEASE * 3 / 2).await;
    assert!(guard.is_held(), "the lease is renewed");
    assert_eq!(client_of(two.lock("k")).await.name, None);
    guard.release().await.expect("held");
    let _held = two.lock("k").acquire().await.expect("free");
    let found = client_of(one.lock("k")).await;
    assert_eq!((found.name, found.id.is_some()), (None, true), "it may not read the presence");
    let said = || log.lines(&["INFO", "cannot write the presence of this client"]).len();
    assert!(until(LEASE * 5, || said() == 1).await.is_some(), "once: {}", said());
}

/// Calls that give up at the same time ask once.
#[tokio::test]
async fn calls_that_give_up_together_ask_together() {
    let server = RedisServer::start();
    let one = client(&server.url()).await;
    // With time for the answers to two hundred calls that end at the same moment.
    let two = LockClient::builder().url(server.url()).lease(LEASE * 6);
    let two = two.connect().await.expect("up");
    let guard = one.lock("k").lease(LEASE * 60).acquire().await.expect("free");
    let mut calls = JoinSet::new();
    for _ in 0..200 {
        calls.spawn(holder_of(two.lock("k").wait(LEASE)));
    }
    let before = server.calls("hkeys") + server.calls("getrange");
    while let Some(found) = calls.join_next().await {
        assert!(found.expect("no panic").client.is_some());
    }
    let asked = server.calls("hkeys") + server.calls("getrange") - before;
    // The token and the presence; `getrange` is also a part of two attempts and of checks.
    assert!(asked < 20, "{asked}");
    guard.release().await.expect("held");
}

#[tokio::test]
async fn an_identity_is_checked_at_connect() {
    for (identity, problem) in [
        (Identity::named(""), "the name is empty"),
        (Identity::of_process().service("shop\n", "1"), "the service contains a control character"),
    ] {
        let connected = LockClient::builder().url("memory:").identity(identity).connect().await;
        match connected {
            Err(LockError::Config { option: "identity", problem: found, .. }) => {
                assert_eq!(found, problem);
            }
            other => panic!("{other:?}"),
        }
    }
}

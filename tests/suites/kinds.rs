//! What holds for the locks of all kinds: values that are no locks, and other kinds.

use std::time::Duration;

use lock_runtime::LockError;
use lock_tests::support::until_idle;
use lock_tests::{CapturedLog, RedisServer, TestedHold, TestedKind, left_of_locks, within};
use tokio::task::JoinSet;

use crate::hostile_keys::{held, is_busy};
use crate::support::{LEASE, Pair, client, on_every_store, until};
use crate::waits::{FOREIGN, LONG};

on_every_store! {
    async fn a_lock_of_another_kind_is_an_error_that_names_it(pair: Pair) {
        let Pair { one, two, .. } = &pair;
        for holds in TestedKind::ALL {
            let hold = held(holds, one, "k").await;
            for wants in TestedKind::ALL.into_iter().filter(|kind| kind.value() != holds.value()) {
                match wants.acquire(two, "k", LONG).await {
                    Err(LockError::WrongFormat { key, expected, found, .. }) => {
                        let named = (key.as_str(), found.as_str(), expected);
                        assert_eq!(named, ("k", holds.value(), wants.value()), "{wants:?}");
                    }
                    other => panic!("{wants:?} beside {holds:?}: {other:?}"),
                }
                until_idle(two, LEASE * 5).await;
                assert!(!is_busy(TestedKind::Plain, two, TestedKind::BESIDE).await || holds == TestedKind::Set);
            }
            assert!(hold.is_held(), "{holds:?}");
            hold.release().await.expect("held");
        }
    }
}

/// The keys beside the lock `k` that a kind of lock has, by their prefix.
fn beside_lock(server: &RedisServer, prefix: &str) -> Vec<String> {
    let keys: Vec<String> = server.command(&["KEYS", &format!("{prefix}:{{*}}*")]);
    assert!(!keys.is_empty(), "{prefix}");
    keys
}

/// Sets each foreign value that is not of the type `own` under `keys`, and checks each time that `call`
/// leaves it unchanged. `call` gets the type of the value.
async fn with_foreign_values(
    server: &RedisServer,
    (keys, own): (&[String], &str),
    mut call: impl AsyncFnMut(&str),
) {
    let mut commands: Vec<(&str, Vec<&str>)> =
        FOREIGN.iter().map(|(_, set)| (set[0], set.to_vec())).collect();
    commands.dedup_by_key(|(command, _)| *command);
    for (_, mut set) in commands {
        for key in keys {
            server.tell(&["DEL", key]);
            set[1] = key;
            server.tell(&set);
        }
        let kind: String = server.command(&["TYPE", &keys[0]]);
        let dump =
            || -> Vec<Vec<u8>> { keys.iter().map(|key| server.command(&["DUMP", key])).collect() };
        let before = dump();
        if kind != own {
            call(&kind).await;
            assert_eq!(dump(), before, "the {kind} was not changed");
        }
    }
    for key in keys {
        server.tell(&["DEL", key]);
    }
}

fn assert_foreign(error: &LockError, keys: &[String], wants: (&str, &str)) {
    match error {
        LockError::WrongFormat { key, expected, found, .. } => {
            assert!(keys.contains(key), "{key}");
            assert_eq!((*expected, found.as_str()), wants);
        }
        _ => panic!("{error:?}"),
    }
}

/// A lock that was granted stays held, and the error of its token says which key is in the way. A leader
/// needs its token, so there is none.
#[tokio::test]
async fn a_foreign_value_instead_of_the_last_token_is_an_error_of_the_token_only() {
    let server = RedisServer::start();
    let (one, two) = (client(&server.url()).await, client(&server.url()).await);
    for kind in TestedKind::ALL {
        if let TestedHold::One(guard) = held(kind.exclusive(), &one, "k").await {
            // The keys of the last tokens exist from now on. Permits have none.
            let _ = guard.fencing_token().await;
            guard.release().await.expect("held");
        }
    }
    let set = one.lock_all(["k", TestedKind::BESIDE]).acquire().await.expect("free");
    set.fencing_token().await.expect("held");
    set.release().await.expect("held");
    let fences = beside_lock(&server, "lock_fence");
    with_foreign_values(&server, (&fences, "string"), async |found| {
        let wants = ("fencing token", found);
        for kind in [TestedKind::Plain, TestedKind::Fair, TestedKind::Writer] {
            let TestedHold::One(guard) = held(kind, &one, "k").await else { panic!("{kind:?}") };
            let error = guard.fencing_token().await.expect_err("no token");
            assert_foreign(&error, &fences, wants);
            assert!(guard.is_held() && is_busy(kind, &two, "k").await);
            guard.release().await.expect("held");
            // The lock may still be given to the claim of the call that gave up.
            until_idle(&two, LEASE * 5).await;
        }
        let set = one.lock_all(["k", TestedKind::BESIDE]).acquire().await.expect("free");
        assert_foreign(&set.fencing_token().await.expect_err("no token"), &fences, wants);
        assert!(set.is_held());
        set.release().await.expect("held");
        for _ in 0..2 {
            let error = one.leadership("k").campaign().await.expect_err("no term");
            assert_foreign(&error, &fences, wants);
            until_idle(&one, LEASE * 5).await;
        }
        held(TestedKind::Run, &one, "k").await.release().await.expect("a run needs no token");
        until_idle(&two, LEASE * 5).await;
        let locks: Vec<_> =
            left_of_locks(&server).into_iter().filter(|key| !fences.contains(key)).collect();
        assert_eq!(locks, Vec::<String>::new());
    })
    .await;
}

/// Another string, which is no number, or a number that has no next one.
#[tokio::test]
async fn a_string_that_is_no_token_is_an_error_as_well() {
    let server = RedisServer::start();
    let client = client(&server.url()).await;
    let guard = client.lock("k").acquire().await.expect("free");
    guard.fencing_token().await.expect("held");
    guard.release().await.expect("held");
    let fences = beside_lock(&server, "lock_fence");
    for value in ["", "x", "-1", "1.5", "1e3", "nan", "0x10", " 1", "9007199254740992"] {
        server.tell(&["SET", &fences[0], value]);
        let guard = client.lock("k").acquire().await.expect("free");
        let error = guard.fencing_token().await.expect_err("no token");
        assert_foreign(&error, &fences, ("fencing token", "different value"));
        guard.release().await.expect("held");
        assert_eq!(server.command::<String>(&["GET", &fences[0]]), value);
    }
}

/// A leader leads although it cannot announce itself, and observers are told why they do not see it.
#[tokio::test]
async fn a_foreign_value_instead_of_the_record_of_a_leader_is_an_error_for_observers_only() {
    let (server, log) = (RedisServer::start(), CapturedLog::here());
    let (one, two) = (client(&server.url()).await, client(&server.url()).await);
    let leader = one.leadership("k").campaign().await.expect("no leader");
    let shown = async || two.leadership("k").leader().await;
    let announced = async {
        while shown().await.expect("up").is_none() {
            tokio::task::yield_now().await;
        }
    };
    within(LEASE * 20, announced).await.expect("announced");
    leader.resign().await.expect("it led");
    let records = beside_lock(&server, "lock_leader");
    // A string is an announcement only if it has an owner and a term.
    with_foreign_values(&server, (&records, ""), async |found| {
        let found = if found == "string" { "different value" } else { found };
        let wants = ("record of a leader", found);
        assert_foreign(&shown().await.expect_err("no record"), &records, wants);
        let leader = within(LEASE * 20, one.leadership("k").campaign()).await.expect("soon");
        let leader = leader.expect("elected");
        let logged = || !log.lines(&["WARN", "cannot announce itself", found]).is_empty();
        assert!(until(LEASE * 20, logged).await.is_some(), "{found}");
        assert_foreign(&leader.announce("one").await.expect_err("no record"), &records, wants);
        assert_foreign(&shown().await.expect_err("no record"), &records, wants);
        let mut observer = two.leadership("k").observe();
        assert_foreign(&observer.next().await.expect_err("no record"), &records, wants);
        assert!(leader.is_leader() && is_busy(TestedKind::Plain, &two, "k").await);
        leader.resign().await.expect("it led");
        until_idle(&one, LEASE * 5).await;
        until_idle(&two, LEASE * 5).await;
        assert!(!server.exists("k"));
    })
    .await;
    assert_eq!(shown().await, Ok(None), "without the value, there is no leader");
}

/// A call that cannot stand in the queue polls, and gets the lock all the same.
#[tokio::test]
async fn a_foreign_value_instead_of_a_queue_costs_the_order_only() {
    let server = RedisServer::start();
    let (one, two) = (client(&server.url()).await, client(&server.url()).await);
    // Each kind has a key of its own, so that all of them wait at the same time.
    let kinds = TestedKind::ALL.map(|kind| (kind, format!("{kind:?}")));
    let all: Vec<String> =
        kinds.iter().map(|(_, key)| key.clone()).chain([TestedKind::BESIDE.to_owned()]).collect();
    let holds = one.lock_all(all.clone()).acquire().await.expect("free");
    let mut waits = JoinSet::new();
    for key in &all {
        waits.spawn(two.lock(key.as_str()).wait(LONG).run(async {}));
    }
    let queues = || -> Vec<String> { server.command(&["KEYS", "lock_queue:*"]) };
    let all_wait = || queues().len() == all.len();
    assert!(until(LEASE * 20, all_wait).await.is_some(), "they wait");
    let queues = queues();
    holds.release().await.expect("held");
    assert!(waits.join_all().await.into_iter().all(|waited| waited.is_ok()));
    with_foreign_values(&server, (&queues, "zset"), async |found| {
        for (kind, key) in &kinds {
            // A candidate waits for any time.
            let wait = if *kind == TestedKind::Leader { LONG } else { Duration::ZERO };
            let single = kind.acquire(&one, key, wait).await.expect("up");
            let single = single.unwrap_or_else(|| panic!("{kind:?}: a {found} keeps a free lock"));
            single.release().await.expect("held");
        }
        let mut holds = Vec::new();
        let mut waits = JoinSet::new();
        for (kind, key) in &kinds {
            holds.push(held(kind.exclusive(), &one, key).await);
            let (kind, key, two) = (*kind, key.clone(), two.clone());
            waits.spawn(async move { held(kind, &two, &key).await.release().await });
        }
        tokio::time::sleep(LEASE / 5).await;
        assert!(waits.try_join_next().is_none(), "the locks are held");
        for hold in holds {
            hold.release().await.expect("held");
        }
        while let Some(waited) = within(LEASE * 20, waits.join_next()).await.expect("they poll") {
            waited.expect("no panic").expect("held");
        }
        until_idle(&one, LEASE * 5).await;
        until_idle(&two, LEASE * 5).await;
        let locks: Vec<_> =
            left_of_locks(&server).into_iter().filter(|key| !queues.contains(key)).collect();
        assert_eq!(locks, Vec::<String>::new(), "{found}");
    })
    .await;
}

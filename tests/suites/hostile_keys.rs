//! Keys that are hostile or invalid.

use std::time::Duration;

use lock_runtime::{LockClient, LockError};
use lock_tests::support::until_idle;
use lock_tests::{TestedHold, TestedKind, left_of_locks, within};

use crate::support::{LEASE, Pair, on_every_store, until};

/// Keys that a store, a script, a pattern or a shell could take for something else than a name.
fn hostile_keys() -> Vec<String> {
    let keys = [
        "a b",
        " ",
        "  ",
        "\n",
        "\r\n",
        "\r\nFLUSHALL\r\n",
        "{",
        "}",
        "{}",
        "}{",
        "{}k",
        "k{}",
        "{a}{b}",
        "{{a}}",
        "*",
        "?",
        "[a-z]",
        "\\",
        "\\*",
        "k\0",
        "k\0\0",
        "%s",
        "%00",
        "'",
        "\"",
        "$(reboot)",
        "'; return redis.call('flushall')",
        "]] redis.call('flushall') --[[",
        "../k",
        "lock_fence",
        "lock_queue",
        "é",
        "e\u{301}",
        "🔒",
        "\u{202e}k",
        "K",
        "k",
        "k:",
        ":k",
        "k:k",
    ];
    let long =
        ["x".repeat(1024), format!("{}y", "x".repeat(1023)), format!("{{{}", "x".repeat(1023))];
    keys.into_iter().map(ToOwned::to_owned).chain(long).collect()
}

/// All kinds of locks; with `scripts/stores`, those that every store has.
fn kinds_of(pair: &Pair) -> Vec<TestedKind> {
    let has_all = pair.store.is_none();
    let all = TestedKind::ALL.into_iter();
    all.filter(|kind| {
        has_all || [TestedKind::Plain, TestedKind::Set, TestedKind::Leader].contains(kind)
    })
    .collect()
}

/// Acquires a free lock.
pub(crate) async fn held(kind: TestedKind, client: &LockClient, key: &str) -> TestedHold {
    let acquired = kind.acquire(client, key, LEASE * 100).await;
    acquired.unwrap_or_else(|error| panic!("{kind:?} {key:?}: {error}")).expect("free")
}

/// Whether a call for the lock finds it busy.
pub(crate) async fn is_busy(kind: TestedKind, client: &LockClient, key: &str) -> bool {
    // One attempt, however long its answer takes. A campaign makes it in the background.
    let wait = if kind == TestedKind::Leader { LEASE / 2 } else { Duration::ZERO };
    let acquired = kind.acquire(client, key, wait).await.expect("up");
    let is_busy = acquired.is_none();
    if let Some(hold) = acquired {
        hold.release().await.expect("held");
    }
    is_busy
}

on_every_store! {
    async fn hostile_keys_never_share_a_lock_and_leave_nothing(pair: Pair) {
        let Pair { one, two, server, .. } = &pair;
        let keys = hostile_keys();
        for kind in kinds_of(&pair).into_iter().filter(|kind| *kind != TestedKind::Set) {
            let mut holds = Vec::new();
            for key in &keys {
                // A writer excludes all, so that two keys with one lock would be noticed.
                holds.push(held(kind.exclusive(), one, key).await);
            }
            for key in &keys {
                if let Some(server) = server {
                    assert!(server.exists(key), "{kind:?} {key:?}");
                }
            }
            for (key, hold) in keys.iter().zip(holds) {
                assert!(hold.is_held(), "{kind:?} {key:?}");
                // A call that waits is woken, whatever its key is.
                let (two, key) = (two.clone(), key.clone());
                let waits = tokio::spawn(async move { held(kind, &two, &key).await });
                assert!(until(LEASE * 20, || !pair.two.stats().is_idle()).await.is_some());
                hold.release().await.expect("held");
                let next = within(LEASE * 20, waits).await.expect("its turn").expect("no panic");
                next.release().await.expect("held");
            }
            until_idle(one, LEASE * 5).await;
            until_idle(two, LEASE * 5).await;
            if let Some(server) = server {
                assert_eq!(left_of_locks(server), Vec::<String>::new(), "{kind:?}");
            }
        }
    }

    async fn a_set_of_hostile_keys_has_a_lock_for_each_of_them(pair: Pair) {
        let Pair { one, two, server, .. } = &pair;
        let keys = hostile_keys();
        let set = one.lock_all(keys.iter().cloned()).acquire().await.expect("free");
        assert_eq!(set.keys().count(), keys.len());
        for key in &keys {
            assert!(is_busy(TestedKind::Plain, two, key).await, "{key:?}");
        }
        set.release().await.expect("held");
        let again = two.lock_all(keys.iter().rev().cloned()).acquire().await.expect("free");
        again.release().await.expect("held");
        until_idle(one, LEASE * 5).await;
        until_idle(two, LEASE * 5).await;
        if let Some(server) = server {
            assert_eq!(left_of_locks(server), Vec::<String>::new());
        }
    }

    async fn keys_that_are_empty_too_long_or_reserved_are_refused(pair: Pair) {
        let longest = "x".repeat(1025);
        let very_long = "x".repeat(64 << 10);
        for (key, expected) in [
            ("", "the key is empty"),
            (longest.as_str(), "the key has 1025 bytes; the limit is 1024"),
            (very_long.as_str(), "the key has 65536 bytes; the limit is 1024"),
            ("lock_fence:{1}", "reserved for fencing tokens"),
            ("lock_queue:{1}:k", "reserved for the queues of waiting claims"),
            ("lock_leader:{1}:k", "reserved for the names of leaders"),
            ("lock_run:{1}:k", "reserved for the records of runs"),
            ("lock_owner:{1}:k", "reserved for the owners of locks"),
        ] {
            for kind in kinds_of(&pair) {
                match kind.acquire(&pair.one, key, LEASE * 100).await {
                    Err(error @ LockError::InvalidKey { .. }) => {
                        let text = error.to_string();
                        assert!(text.contains(expected) && text.len() < 250, "{kind:?}: {text}");
                    }
                    other => panic!("{kind:?} {key:?}: {other:?}"),
                }
            }
        }
        assert!(pair.one.stats().is_idle());
        if let Some(server) = &pair.server {
            assert_eq!(left_of_locks(server), Vec::<String>::new(), "no request was sent");
        }
    }
}

//! Requests at the same time, requests that are dropped, and keys.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use tokio::sync::Barrier;

use super::fixture::{CheckedStore, Fixture, LONG, SHORT, owner};
use crate::store::contract::{Acquired, Released};

const ROUNDS: usize = 20;
const OWNERS: usize = 16;

/// Of many requests at the same time, one is granted.
///
/// # Panics
///
/// If the store breaks its contract.
pub async fn one_of_many_requests_is_granted(one: CheckedStore, two: CheckedStore) {
    let fixture = Fixture::new();
    let clients = [Arc::new(one.connect().await), Arc::new(two.connect().await)];
    // The servers of a quorum may give their votes to different owners, of whom none has enough.
    let (votes, mut grants) = (clients[0].locks.capabilities().owner_per_attempt, 0);
    for round in 0..ROUNDS {
        let barrier = Arc::new(Barrier::new(OWNERS));
        let attempts: Vec<_> = (0..OWNERS)
            .map(|number| {
                let (locks, barrier) = (Arc::clone(&clients[number % 2]), Arc::clone(&barrier));
                let (key, owner) = (fixture.key.clone(), owner());
                tokio::spawn(async move {
                    barrier.wait().await;
                    (locks.acquire(&key, owner, LONG).await, locks, owner)
                })
            })
            .collect();
        let mut granted = Vec::new();
        for attempt in attempts {
            match attempt.await.expect("the store does not panic") {
                (Ok(Acquired::Granted(_)), locks, owner) => granted.push((locks, owner)),
                (Ok(Acquired::Busy(_)), ..) => {}
                (other, ..) => panic!("an attempt failed: {other:?}"),
            }
        }
        if granted.is_empty() && votes {
            continue;
        }
        assert_eq!(granted.len(), 1, "the number of owners in round {round}");
        grants += 1;
        let (locks, owner) = &granted[0];
        let released = locks.release(&fixture.key, *owner, Duration::ZERO).await;
        assert!(matches!(released, Ok(Released::Freed { .. })), "{released:?}");
    }
    assert!(grants > 0, "no owner in {ROUNDS} rounds");
}

/// A request that is dropped before its answer leaves at most a lease, which ends.
///
/// # Panics
///
/// If the store breaks its contract.
pub async fn a_dropped_request_leaves_a_lease_at_most(store: CheckedStore) {
    let (fixture, locks) = (Fixture::new(), store.connect().await);
    for polls in 0..5 {
        let mut acquire = pin!(locks.acquire(&fixture.key, fixture.owners[0], SHORT));
        for _ in 0..polls {
            let is_ready = poll_fn(|cx| Poll::Ready(acquire.as_mut().poll(cx).is_ready())).await;
            if is_ready {
                break;
            }
            tokio::task::yield_now().await;
        }
    }
    fixture.gets(&locks, 1, LONG).await;
    fixture.free(&locks, 1).await;
}

/// A key is any text of up to 1,024 bytes, and differs from each other one.
///
/// # Panics
///
/// If the store breaks its contract.
pub async fn a_key_is_any_text(store: CheckedStore) {
    let (fixture, locks) = (Fixture::new(), store.connect().await);
    let long = "k".repeat(1024 - fixture.key.len() - 2);
    let ends = [
        "",
        " ",
        "a",
        "A",
        "a ",
        "é",
        "e\u{301}",
        "*",
        "?",
        "[a]",
        "%",
        "_",
        "'",
        "\"",
        "\\",
        "\\\\",
        "\n",
        "\r\n",
        "\t",
        "\u{0}",
        "\u{0}a",
        "{a}",
        "a/b",
        "a/",
        "a:b",
        "$1",
        "; DROP TABLE locks",
        "<img src=x>",
        "🔒",
        "\u{200b}",
        "\u{feff}",
    ];
    let ends = ends.iter().map(|end| (*end).to_owned());
    let ends = ends.chain([format!("{long}1"), format!("{long}2")]);
    let keys: Vec<Fixture> = ends.map(|end| fixture.behind(&format!(":{end}"))).collect();
    for key in &keys {
        let is_free = key.tries(&locks, 0, LONG).await;
        assert!(is_free, "the key {:?} is not free", key.key);
    }
    for key in &keys {
        let is_free = key.tries(&locks, 1, LONG).await;
        assert!(!is_free, "the key {:?} is not taken", key.key);
        key.free(&locks, 0).await;
    }
}

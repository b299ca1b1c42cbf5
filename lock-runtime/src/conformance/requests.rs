//! Requests at the same time, requests that are dropped, and keys.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;

use tokio::sync::Barrier;

use super::fixture::{Fixture, LONG, SHORT, owner};
use crate::store::{LeaseOutcome, LeaseRequest, ReleaseOutcome, ReleaseRequest, Store};

const ROUNDS: usize = 20;
const OWNERS: usize = 16;

/// Of many requests at the same time, one is granted.
///
/// # Panics
///
/// If the store breaks its contract.
pub async fn one_of_many_requests_is_granted<S: Store>(one: S, two: S) {
    let fixture = Fixture::new(&[&one, &two]).await;
    let stores = [Arc::new(one), Arc::new(two)];
    for round in 0..ROUNDS {
        let barrier = Arc::new(Barrier::new(OWNERS));
        let attempts: Vec<_> = (0..OWNERS)
            .map(|number| {
                let (store, barrier) = (Arc::clone(&stores[number % 2]), Arc::clone(&barrier));
                let (key, owner) = (fixture.key.clone(), owner());
                tokio::spawn(async move {
                    barrier.wait().await;
                    let acquired = store.acquire(LeaseRequest::new(&key, &owner, LONG)).await;
                    (acquired, owner)
                })
            })
            .collect();
        let mut granted = Vec::new();
        for attempt in attempts {
            match attempt.await.expect("the store does not panic") {
                (Ok(LeaseOutcome::Granted { .. }), owner) => granted.push(owner),
                (Ok(LeaseOutcome::Busy { .. }), _) => {}
                (Err(error), _) => panic!("an attempt failed: {error:?}"),
            }
        }
        assert_eq!(granted.len(), 1, "the number of owners in round {round}");
        let released = stores[0].release(ReleaseRequest::new(&fixture.key, &granted[0])).await;
        assert!(matches!(released, Ok(ReleaseOutcome::Freed { .. })), "{released:?}");
    }
}

/// A request that is dropped before its answer leaves at most a lease, which ends.
///
/// # Panics
///
/// If the store breaks its contract.
pub async fn a_dropped_request_leaves_a_lease_at_most<S: Store>(store: &S) {
    let fixture = Fixture::new(&[store]).await;
    for polls in 0..5 {
        let mut acquire = pin!(store.acquire(fixture.lease(0, SHORT)));
        for _ in 0..polls {
            let is_ready = poll_fn(|cx| Poll::Ready(acquire.as_mut().poll(cx).is_ready())).await;
            if is_ready {
                break;
            }
            tokio::task::yield_now().await;
        }
    }
    fixture.gets(store, 1, LONG).await;
    fixture.free(store, 1).await;
}

/// A key is any text of up to 1,024 bytes, and differs from each other one.
///
/// # Panics
///
/// If the store breaks its contract.
pub async fn a_key_is_any_text<S: Store>(store: &S) {
    let fixture = Fixture::new(&[store]).await;
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
    let keys: Vec<String> = ends.map(|end| format!("{}:{end}", fixture.key)).collect();
    let [one, other] = &fixture.owners;
    for key in &keys {
        let acquired = store.acquire(LeaseRequest::new(key, one, LONG)).await;
        let is_granted = matches!(acquired, Ok(LeaseOutcome::Granted { .. }));
        assert!(is_granted, "the key {key:?} is not free: {acquired:?}");
    }
    for key in &keys {
        let acquired = store.acquire(LeaseRequest::new(key, other, LONG)).await;
        let is_busy = matches!(acquired, Ok(LeaseOutcome::Busy { .. }));
        assert!(is_busy, "the key {key:?} is not taken: {acquired:?}");
        let released = store.release(ReleaseRequest::new(key, one)).await;
        assert!(matches!(released, Ok(ReleaseOutcome::Freed { .. })), "{key:?}: {released:?}");
    }
}

//! Who keeps the poller alive, and what happens when it fails.

use std::sync::atomic::{AtomicBool, Ordering};

use lock_runtime::LockClient;
use serde_json::Value;
use tokio::time::{sleep, timeout};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

use super::*;

const PATIENCE: Duration = Duration::from_secs(60);

fn hub() -> Arc<Hub> {
    Hub::new(LockAdmin::new(&LockClient::memory()), Duration::from_millis(20), false)
}

async fn until_ended(hub: &Hub) {
    let ended = async {
        while hub.watchers().poller.is_some() {
            sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(PATIENCE, ended).await.expect("the poller ends");
    assert!(hub.views.borrow().is_none(), "no locks are kept");
    assert!(hub.digest().is_empty(), "no locks are kept");
}

#[tokio::test]
async fn the_poller_ends_with_the_last_viewer() {
    let hub = hub();
    assert!(hub.watchers().poller.is_none());
    let (mut one, mut two) = (hub.viewer(Pace::Live), hub.viewer(Pace::Hidden));
    one.next().await;
    two.next().await;
    drop(one);
    sleep(Duration::from_millis(100)).await;
    assert!(hub.watchers().poller.is_some());
    drop(two);
    until_ended(&hub).await;
    let Watchers { live, hidden, .. } = *hub.watchers();
    assert_eq!((live, hidden), (0, 0));
    let is_gone = async {
        while Arc::strong_count(&hub) > 1 {
            sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(PATIENCE, is_gone).await.expect("the task is gone");
    hub.viewer(Pace::Live).next().await;
    until_ended(&hub).await;
}

/// A connection that takes no more bytes is not closed for a long time.
#[tokio::test]
async fn a_viewer_that_takes_nothing_does_not_keep_the_poller_alive() {
    let hub = hub();
    let mut stuck = hub.viewer(Pace::Live);
    stuck.next().await;
    until_ended(&hub).await;
    timeout(PATIENCE, stuck.next()).await.expect("it may continue");
    assert!(hub.watchers().poller.is_some());
}

/// A subscriber of the program that panics for a while, as user code may in the task that asks.
struct Panicking(Arc<AtomicBool>);

impl Subscriber for Panicking {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target().starts_with("lock_dashboard")
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, _: &Event<'_>) {
        assert!(!self.0.load(Ordering::Relaxed), "an injected panic");
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

#[tokio::test]
async fn a_panic_in_a_round_is_reported_and_the_next_round_asks_again() {
    let hub = hub();
    let mut viewer = hub.viewer(Pace::Live);
    let has_problem = |view: &View| {
        let state: Value = serde_json::from_slice(&view.state).expect("JSON");
        let text = state["problem"]["text"].as_str().map(ToOwned::to_owned);
        (state["totals"].is_object(), text)
    };
    assert_eq!(has_problem(&*viewer.next().await), (true, None));
    let panics = Arc::new(AtomicBool::new(true));
    let panicking = tracing::subscriber::set_default(Panicking(Arc::clone(&panics)));
    let failed = async {
        loop {
            // The first thread that meets an event decides for all threads whether anybody wants it.
            tracing::callsite::rebuild_interest_cache();
            if let (has_answers, Some(text)) = has_problem(&*viewer.next().await) {
                return (has_answers, text);
            }
        }
    };
    let (has_answers, text) = timeout(PATIENCE, failed).await.expect("it is reported");
    assert!(has_answers && text.contains("panicked"), "{text}");
    // A viewer may miss the view of a single round.
    panics.store(false, Ordering::Relaxed);
    let recovered = async { while has_problem(&*viewer.next().await).1.is_some() {} };
    timeout(PATIENCE, recovered).await.expect("the next round asks again");
    drop((panicking, viewer));
    until_ended(&hub).await;
}

/// A viewer that waits for a view must not wait for one that never comes.
#[tokio::test]
async fn a_poller_that_is_dropped_is_replaced_at_once() {
    let hub = hub();
    let dropped = Polling::start(&hub).expect("none runs");
    let mut viewer = hub.viewer(Pace::Live);
    let waiting = tokio::spawn(async move {
        viewer.next().await;
    });
    sleep(Duration::from_millis(50)).await;
    assert!(!waiting.is_finished(), "nobody asks");
    drop(dropped);
    timeout(PATIENCE, waiting).await.expect("another one asks").expect("no panic");
    until_ended(&hub).await;
}

#[tokio::test]
async fn a_long_round_is_followed_by_a_long_pause() {
    let (began, interval) = (Instant::now(), Duration::from_secs(1));
    let after = |took| next_round(began, began + took, interval) - began;
    assert_eq!(after(interval / 10), interval);
    assert_eq!(after(interval * 3), interval * 6);
}

/// The task of a poller may be dropped long after it has counted as ended.
#[tokio::test]
async fn a_poller_that_has_ended_does_not_end_the_next_one() {
    let hub = hub();
    let first = Polling::start(&hub).expect("none runs");
    assert!(!first.goes_on(), "nobody watches");
    let second = Polling::start(&hub).expect("none runs");
    drop(first);
    assert!(Polling::start(&hub).is_none(), "the second one runs");
    drop(second);
    assert!(Polling::start(&hub).is_some());
}

#[tokio::test]
async fn a_viewer_that_connects_again_finds_the_answers() {
    let (client, refresh) = (LockClient::memory(), Duration::from_millis(500));
    let hub = Hub::new(LockAdmin::new(&client), refresh, false);
    hub.viewer(Pace::Live).next().await;
    sleep(refresh * 2).await;
    let begun = hub.watchers().started;
    hub.viewer(Pace::Live).next().await;
    assert_eq!((hub.watchers().started, begun), (1, 1));
    assert!(!hub.digest().is_empty());
}

#[tokio::test]
async fn a_view_is_as_old_as_its_answers() {
    let (client, refresh) = (LockClient::memory(), Duration::from_secs(60));
    let hub = Hub::new(LockAdmin::new(&client), refresh, false);
    let first = hub.viewer(Pace::Live).next().await;
    sleep(Duration::from_millis(200)).await;
    let again = hub.viewer(Pace::Live).next().await;
    assert!(Arc::ptr_eq(&first, &again) && again.age() >= 200, "{} ms", again.age());
}

#[tokio::test]
async fn a_viewer_that_is_dropped_while_it_waits_does_not_count() {
    let hub = hub();
    for _ in 0..10 {
        let mut viewer = hub.viewer(Pace::Live);
        drop(timeout(Duration::from_millis(1), viewer.next()).await);
    }
    until_ended(&hub).await;
}

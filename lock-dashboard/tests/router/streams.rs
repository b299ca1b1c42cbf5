//! Streams of events, and who keeps the poller alive.

use std::time::Duration;

use axum::body::BodyDataStream;
use futures_util::StreamExt;
use lock_dashboard::Dashboard;
use lock_tests::RedisServer;
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout};
use tower::ServiceExt;

use crate::site::{PATIENCE, REFRESH, Site, admin, client, keys, request};

/// The events of one viewer.
struct EventReader {
    body: BodyDataStream,
    text: String,
}

impl EventReader {
    async fn open(site: &Site, query: &str) -> Self {
        let request = request("GET", &format!("/api/events{query}"), &[], "");
        let response = site.0.clone().oneshot(request).await.expect("infallible");
        assert_eq!(response.headers()["content-type"], "text/event-stream");
        assert_eq!(response.headers()["x-accel-buffering"], "no");
        assert_eq!(response.headers()["cache-control"], "no-store");
        Self { body: response.into_body().into_data_stream(), text: String::new() }
    }

    /// The name and the data of the next event that is no age.
    async fn next(&mut self) -> (String, Value) {
        loop {
            let (name, data) = self.next_of_any_kind().await.expect("it goes on");
            if name != "age" {
                return (name, data);
            }
        }
    }

    /// `None` at the end.
    async fn next_of_any_kind(&mut self) -> Option<(String, Value)> {
        loop {
            if let Some((event, rest)) = self.text.split_once("\n\n") {
                let field = |name: &str| event.lines().find_map(|line| line.strip_prefix(name));
                let event = field("event: ").zip(field("data: ")).map(|(name, data)| {
                    (name.to_owned(), serde_json::from_str(data).expect("JSON"))
                });
                self.text = String::from(rest);
                if let Some(event) = event {
                    return Some(event);
                }
                continue;
            }
            let chunk = timeout(PATIENCE, self.body.next()).await.expect("an event in time");
            let chunk = chunk?.expect("readable");
            self.text.push_str(std::str::from_utf8(&chunk).expect("a text"));
        }
    }
}

/// The number of questions, which are the messages on the channel that only the dashboard uses, and answers.
fn messages(server: &RedisServer) -> u64 {
    server.calls("publish") + server.calls("spublish")
}

/// Waits until nobody is asked any more.
async fn assert_quiet(server: &RedisServer) {
    let (begun, mut last) = (Instant::now(), messages(server));
    loop {
        sleep(REFRESH * 4).await;
        let now = messages(server);
        if now == last {
            return;
        }
        assert!(begun.elapsed() < PATIENCE, "the questions do not end");
        last = now;
    }
}

#[tokio::test]
async fn the_history_comes_first_and_then_a_state_for_each_round() {
    let client = client("memory:").await;
    let site = Site::of(&client);
    let mut events = EventReader::open(&site, "").await;
    let (name, history) = events.next().await;
    assert_eq!((&*name, history.as_array().map(Vec::len)), ("history", Some(1)));
    assert_eq!(keys(&events.next().await.1), [""; 0]);
    let guard = client.lock("k").acquire().await.expect("free");
    let begun = Instant::now();
    while keys(&events.next().await.1) != ["k"] {
        assert!(begun.elapsed() < PATIENCE);
    }
    drop(guard);
    while !keys(&events.next().await.1).is_empty() {
        assert!(begun.elapsed() < PATIENCE);
    }
    let (_, history) = EventReader::open(&site, "").await.next().await;
    assert!(history.as_array().map(Vec::len) > Some(2), "{history}");
}

/// The processes are asked as often for many viewers as for one.
#[tokio::test]
async fn all_viewers_share_the_questions() {
    let server = RedisServer::start();
    let client = client(&server.url()).await;
    let site = Site::of(&client);
    let mut viewers = Vec::new();
    for _ in 0..20 {
        viewers.push(EventReader::open(&site, "").await);
    }
    for viewer in &mut viewers {
        viewer.next().await;
    }
    let (begun, before) = (Instant::now(), messages(&server));
    for _ in 0..5 {
        for viewer in &mut viewers {
            viewer.next().await;
        }
        // Requests for single states as well.
        site.state().await;
    }
    let rounds = begun.elapsed().div_duration_f64(REFRESH) + 2.0;
    let asked = messages(&server) - before;
    // A question and one answer are two messages. A round has two questions, and the first ones have a third.
    #[allow(clippy::cast_precision_loss)]
    let most = asked as f64 <= rounds * 4.0 + 6.0;
    assert!(most && asked > 0, "{asked} messages in {rounds} rounds");
}

#[tokio::test]
async fn nobody_is_asked_when_nobody_watches() {
    let server = RedisServer::start();
    let client = client(&server.url()).await;
    let site = Site::of(&client);
    assert_quiet(&server).await;
    let before = messages(&server);
    let mut events = EventReader::open(&site, "").await;
    events.next().await;
    assert!(messages(&server) > before, "questions are counted");
    drop(events);
    assert_quiet(&server).await;
    // The next one starts again.
    let mut events = EventReader::open(&site, "").await;
    events.next().await;
    let first = messages(&server);
    for _ in 0..3 {
        events.next().await;
    }
    assert!(messages(&server) > first);
}

#[tokio::test]
async fn pages_that_are_hidden_ask_less_often() {
    let client = client("memory:").await;
    let site = Site::of(&client);
    let mut hidden = EventReader::open(&site, "?hidden=true").await;
    // The history, the first state, and one that the first viewer may have caused.
    for _ in 0..2 {
        hidden.next().await;
    }
    let begun = Instant::now();
    hidden.next().await;
    assert!(begun.elapsed() > Duration::from_secs(2), "{:?}", begun.elapsed());
    // With a page that is not hidden, rounds are as often as it wants.
    let mut live = EventReader::open(&site, "").await;
    live.next().await;
    let first = ages(&mut live, 3).await;
    assert!(first.iter().all(|age| *age < 5_000), "{first:?}");
}

/// The ages of the next states.
async fn ages(events: &mut EventReader, count: usize) -> Vec<u64> {
    let mut ages = Vec::new();
    while ages.len() < count {
        let (name, data) = events.next_of_any_kind().await.expect("it goes on");
        if name == "age" {
            ages.push(data.as_u64().expect("a number"));
        }
    }
    ages
}

/// Losses have at most 1,000 rows of each client, and are asked for only after a loss.
#[tokio::test]
async fn many_losses_do_not_make_clients_send_all_of_them_each_round() {
    let server = RedisServer::start();
    let client = client(&server.url()).await;
    let site = Site::of(&client);
    let mut events = EventReader::open(&site, "").await;
    events.next().await;
    let before = messages(&server);
    let begun = Instant::now();
    for _ in 0..8 {
        let guard = client.lock("k").lease(REFRESH / 5).acquire().await.expect("free");
        guard.lost().await;
        events.next().await;
    }
    let rounds = begun.elapsed().div_duration_f64(REFRESH) + 2.0;
    let asked = messages(&server) - before;
    // Two questions in each round; measurements every five seconds, and losses every ten.
    let passed = begun.elapsed().as_secs_f64();
    let most = rounds * 4.0 + (passed / 5.0 + 3.0) * 2.0 + (passed / 10.0 + 2.0) * 2.0;
    #[allow(clippy::cast_precision_loss)]
    let few = (asked as f64) <= most;
    assert!(few, "{asked} messages in {rounds} rounds");
}

#[tokio::test]
async fn a_graceful_shutdown_ends_the_streams() {
    let client = client("memory:").await;
    let (stop, is_stopped) = watch::channel(false);
    let stopped = |mut is_stopped: watch::Receiver<bool>| async move {
        is_stopped.wait_for(|is_stopped| *is_stopped).await.expect("the sender is here");
    };
    let dashboard = Dashboard::new(admin(&client)).shutdown(stopped(is_stopped.clone()));
    let site = Site::new(dashboard);
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.expect("a port");
    let address = listener.local_addr().expect("bound");
    let serving = axum::serve(listener, site.0).with_graceful_shutdown(stopped(is_stopped));
    let serving = tokio::spawn(async move { serving.await });
    let mut browser = TcpStream::connect(address).await.expect("it listens");
    let request = "GET /admin/locks/api/events HTTP/1.1\r\nhost: x\r\n\r\n";
    browser.write_all(request.as_bytes()).await.expect("writable");
    let mut buffer = [0; 200];
    assert!(browser.read(&mut buffer).await.expect("readable") > 0);
    stop.send_replace(true);
    // Less than the life of a stream.
    let ended = timeout(Duration::from_secs(20), serving).await.expect("the service ends");
    ended.expect("no panic").expect("no error");
}

#[tokio::test]
async fn a_browser_that_goes_away_in_the_middle_of_a_stream_leaves_nothing() {
    let server = RedisServer::start();
    let client = client(&server.url()).await;
    let site = Site::of(&client);
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.expect("a port");
    let address = listener.local_addr().expect("bound");
    let serving = tokio::spawn(async move { axum::serve(listener, site.0).await });
    for _ in 0..5 {
        let mut browser = TcpStream::connect(address).await.expect("it listens");
        let request = "GET /admin/locks/api/events HTTP/1.1\r\nhost: x\r\n\r\n";
        browser.write_all(request.as_bytes()).await.expect("writable");
        let (mut text, mut buffer) = (Vec::new(), [0; 200]);
        while !text.windows(12).any(|part| part == b"event: state") {
            let count = timeout(PATIENCE, browser.read(&mut buffer)).await.expect("in time");
            text.extend_from_slice(&buffer[..count.expect("readable")]);
        }
        // In the middle of an event.
        drop(browser);
    }
    assert_quiet(&server).await;
    serving.abort();
}

//! Spans, and warnings of long waits and long holds. Each test has a subscriber of its own for its thread, so all
//! its tasks run on this thread.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use lock_runtime::{LockClient, LockError, distributed_lock, with_client};
use lock_tests::support::{LEASE, until};
use lock_tests::{CapturedLog, RedisServer};
use tracing::field::{Field, Visit};
use tracing::level_filters::LevelFilter;
use tracing::span::{Attributes, Id, Record};
use tracing::subscriber::{DefaultGuard, set_default};
use tracing::{Event, Subscriber};
use tracing_subscriber::layer::{Context, SubscriberExt};
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::{Layer, Registry};

/// What a subscriber has seen of a span.
#[derive(Debug, Clone, Default)]
struct SeenSpan {
    /// In their order, other than the ids.
    number: usize,
    name: &'static str,
    parent: Option<u64>,
    fields: BTreeMap<String, String>,
    follows: Vec<u64>,
    /// The messages of the events in it.
    events: Vec<String>,
    is_closed: bool,
}

impl SeenSpan {
    fn field(&self, name: &str) -> &str {
        self.fields.get(name).unwrap_or_else(|| panic!("{name} in {self:?}"))
    }
}

impl Visit for SeenSpan {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.fields.insert(field.name().to_owned(), value.to_owned());
    }

    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.fields.insert(field.name().to_owned(), format!("{value:?}"));
    }
}

/// The spans of a test, by id.
#[derive(Debug, Clone, Default)]
struct Spans(Arc<Mutex<BTreeMap<u64, SeenSpan>>>);

impl Spans {
    /// Records the spans of this thread up to this level.
    fn record(level: LevelFilter) -> (Self, DefaultGuard) {
        let spans = Self::default();
        let guard = set_default(Registry::default().with(spans.clone().with_filter(level)));
        (spans, guard)
    }

    fn all(&self) -> MutexGuard<'_, BTreeMap<u64, SeenSpan>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The ids and the spans with this name.
    fn named(&self, name: &str) -> Vec<(u64, SeenSpan)> {
        let all = self.all();
        let named = all.iter().filter(|(_, span)| span.name == name);
        let mut named: Vec<_> = named.map(|(id, span)| (*id, span.clone())).collect();
        named.sort_by_key(|(_, span)| span.number);
        named
    }

    /// The only span with this name.
    fn one(&self, name: &str) -> (u64, SeenSpan) {
        let mut named = self.named(name);
        assert_eq!(named.len(), 1, "{name}: {named:?}");
        named.remove(0)
    }
}

impl<S: Subscriber + for<'a> LookupSpan<'a>> Layer<S> for Spans {
    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, context: Context<'_, S>) {
        let parent = context.span(id).and_then(|span| span.parent()).map(|span| span.id());
        let number = self.all().len();
        let mut span = SeenSpan {
            number,
            name: attributes.metadata().name(),
            parent: parent.map(|id| id.into_u64()),
            ..SeenSpan::default()
        };
        attributes.record(&mut span);
        // Ids are used again.
        let unused = self.all().insert(id.into_u64(), span);
        assert!(unused.is_none_or(|former| former.is_closed), "{id:?}");
    }

    fn on_record(&self, id: &Id, values: &Record<'_>, _: Context<'_, S>) {
        self.all().entry(id.into_u64()).and_modify(|span| values.record(span));
    }

    fn on_follows_from(&self, id: &Id, follows: &Id, _: Context<'_, S>) {
        let follows = follows.into_u64();
        assert!(!self.all()[&follows].is_closed, "exporters make links to open spans only");
        self.all().entry(id.into_u64()).and_modify(|span| span.follows.push(follows));
    }

    fn on_event(&self, event: &Event<'_>, context: Context<'_, S>) {
        let mut message = SeenSpan::default();
        event.record(&mut message);
        if let Some(parent) = context.event_span(event) {
            let message = message.fields.remove("message").unwrap_or_default();
            let id = parent.id().into_u64();
            self.all().entry(id).and_modify(|span| span.events.push(message));
        }
    }

    fn on_close(&self, id: Id, _: Context<'_, S>) {
        self.all().entry(id.into_u64()).and_modify(|span| span.is_closed = true);
    }
}

async fn client(url: &str) -> LockClient {
    let builder = LockClient::builder().url(url).namespace("shop").lease(LEASE).wait(LEASE * 20);
    builder.connect().await.expect("up")
}

#[distributed_lock(key = "order:<id>")]
async fn pay(id: u32) -> Result<(), LockError> {
    tracing::info!("paying {id}");
    Ok(())
}

#[tokio::test]
async fn a_call_has_a_span_for_its_wait_and_one_for_its_hold() {
    let server = RedisServer::start();
    let client = client(&server.url()).await;
    let (spans, _guard) = Spans::record(LevelFilter::DEBUG);
    with_client(client, pay(7)).await.expect("free");
    let (_, wait) = spans.one("lock.wait");
    let (_, hold) = spans.one("lock.hold");
    for span in [&wait, &hold] {
        assert_eq!(span.field("lock.key"), "shop:order:7");
        assert_eq!(span.field("lock.template"), "order:<id>");
        assert_eq!(span.field("lock.namespace"), "shop");
        assert_eq!(span.field("code.function.name"), concat!(module_path!(), "::pay"));
        assert!(span.is_closed && !span.fields.contains_key("error.type"), "{span:?}");
    }
    assert_eq!(wait.field("lock.outcome"), "granted");
    assert_eq!(hold.field("lock.grant"), "store");
    assert!(hold.field("lock.wait_seconds").parse::<f64>().expect("a number") > 0.0);
    assert_eq!(hold.events, ["paying 7"], "the body is inside");
    assert!(!hold.fields.contains_key("lock.fencing_token"));
}

#[tokio::test]
async fn without_a_subscriber_for_them_there_are_no_spans() {
    let server = RedisServer::start();
    let client = client(&server.url()).await;
    let (spans, _guard) = Spans::record(LevelFilter::INFO);
    with_client(client, pay(7)).await.expect("free");
    assert_eq!(spans.all().len(), 0);
}

#[tokio::test]
async fn a_lock_that_is_granted_at_once_has_no_wait() {
    let client = client("memory:").await;
    let (spans, _guard) = Spans::record(LevelFilter::DEBUG);
    with_client(client.clone(), pay(7)).await.expect("free");
    let lock = client.lock("report");
    lock.run(async { lock.run(async {}).await }).await.expect("free").expect("nested");
    assert_eq!(spans.named("lock.wait").len(), 0);
    let holds = spans.named("lock.hold");
    let grants: Vec<&str> = holds.iter().map(|(_, span)| span.field("lock.grant")).collect();
    assert_eq!(grants, ["store", "store", "reentrant"], "{holds:?}");
    assert_eq!(holds[2].1.parent, Some(holds[1].0));
    assert_eq!(holds[2].1.field("lock.template"), "(none)");
}

#[tokio::test]
async fn the_next_hold_of_a_hand_off_follows_the_previous_one() {
    for url in ["memory:", &RedisServer::start().url()] {
        let client = client(url).await;
        let (spans, _guard) = Spans::record(LevelFilter::DEBUG);
        let run = |_| {
            let lock = client.lock("k");
            async move { lock.run(tokio::task::yield_now()).await.expect("its turn") }
        };
        futures_util::future::join_all((0..3).map(run)).await;
        let holds = spans.named("lock.hold");
        let follows: Vec<&[u64]> = holds.iter().map(|(_, span)| &*span.follows).collect();
        assert_eq!(follows, [&[][..], &[holds[0].0], &[holds[1].0]], "{holds:?}");
        assert_eq!(holds[2].1.field("lock.grant"), "handed_over");
        let outcomes = spans.named("lock.wait");
        assert_eq!(
            outcomes.last().map(|(_, span)| span.field("lock.outcome")),
            Some("handed_over")
        );
        let holds = spans.named("lock.hold");
        assert!(holds.iter().all(|(_, span)| span.is_closed), "{holds:?}");
    }
}

#[tokio::test]
async fn a_wait_says_how_it_ended() {
    let server = RedisServer::start();
    let (one, two) = (client(&server.url()).await, client(&server.url()).await);
    let _held = one.lock("k").acquire().await.expect("free");
    let (spans, _guard) = Spans::record(LevelFilter::DEBUG);
    let lock = two.lock("k").template("k of a test");
    lock.clone().wait(LEASE / 20).acquire().await.expect_err("busy");
    let (_, busy) = spans.one("lock.wait");
    assert_eq!((busy.field("lock.outcome"), busy.field("error.type")), ("busy", "busy"));
    assert!(busy.field("lock.holder").contains(&format!("pid {}", std::process::id())), "{busy:?}");
    assert_eq!(busy.field("lock.template"), "k of a test");
    assert!(busy.is_closed);

    assert!(tokio::time::timeout(LEASE / 20, lock.acquire()).await.is_err());
    let waits = spans.named("lock.wait");
    let cancelled = waits.iter().map(|(_, span)| span.field("lock.outcome"));
    assert!(cancelled.collect::<Vec<_>>().contains(&"cancelled"), "{waits:?}");
    assert!(waits.iter().all(|(_, span)| span.is_closed));
}

#[tokio::test]
async fn a_hold_says_that_it_was_lost_and_what_its_body_asked_for() {
    let server = RedisServer::start();
    let client = client(&server.url()).await;
    let (spans, _guard) = Spans::record(LevelFilter::DEBUG);
    let lock = client.lock("fenced");
    let body = {
        let lock = lock.clone();
        async move { lock.acquire().await.expect("nested").fencing_token().await }
    };
    let token = lock.run(body).await.expect("free").expect("held");
    let (_, fenced) = spans.one("lock.hold");
    assert_eq!(fenced.field("lock.fencing_token"), token.to_string());

    let (spans, _guard) = Spans::record(LevelFilter::DEBUG);
    let ended = client.lock("lost").run(async {
        server.tell(&["DEL", "shop:lost"]);
        std::future::pending::<()>().await;
    });
    ended.await.expect_err("gone");
    let (_, lost) = spans.one("lock.hold");
    assert_eq!((lost.field("lock.lost"), lost.field("error.type")), ("gone", "lost.gone"));
    assert!(lost.is_closed);
}

#[tokio::test]
async fn a_set_has_one_span_with_all_keys() {
    let server = RedisServer::start();
    let client = client(&server.url()).await;
    let (spans, _guard) = Spans::record(LevelFilter::DEBUG);
    client.lock_all(["b", "a"]).template("both").run(async {}).await.expect("free");
    let (_, hold) = spans.one("lock.hold");
    assert_eq!(hold.field("lock.key"), "shop:a shop:b");
    assert_eq!(hold.field("lock.template"), "both");
    let (_, wait) = spans.one("lock.wait");
    assert_eq!((wait.field("lock.outcome"), wait.field("lock.key")), ("granted", "shop:a shop:b"));
}

#[distributed_lock(key = "reported", on_lost = "report")]
async fn reports_its_loss(server: &RedisServer) -> Result<(), LockError> {
    server.tell(&["DEL", "shop:reported"]);
    Ok(())
}

#[tokio::test]
async fn a_loss_that_the_release_notices_is_in_the_span() {
    let server = RedisServer::start();
    let client = client(&server.url()).await;
    let (spans, _guard) = Spans::record(LevelFilter::DEBUG);
    with_client(client, reports_its_loss(&server)).await.expect_err("gone");
    let (_, hold) = spans.one("lock.hold");
    assert_eq!(hold.field("lock.lost"), "gone");
    assert!(hold.is_closed);
}

/// The lock is handed off before the span ends.
#[tokio::test]
async fn the_token_of_a_hold_that_is_handed_off_is_in_its_span() {
    let client = client("memory:").await;
    let (spans, _guard) = Spans::record(LevelFilter::DEBUG);
    let run = |_| {
        let lock = client.lock("k");
        async move {
            let inner = lock.clone();
            let body = async move {
                let guard = inner.acquire().await.expect("nested");
                tokio::task::yield_now().await;
                guard.fencing_token().await.expect("held")
            };
            lock.run(body).await.expect("its turn")
        }
    };
    let tokens = futures_util::future::join_all((0..3).map(run)).await;
    let holds = spans.named("lock.hold");
    let recorded = holds.iter().map(|(_, span)| span.field("lock.fencing_token").to_owned());
    let tokens: Vec<String> = tokens.iter().map(ToString::to_string).collect();
    assert_eq!(recorded.collect::<Vec<_>>(), tokens, "{holds:?}");
}

/// The lease has a reference to the span, which is dropped on the log thread.
#[tokio::test]
async fn the_span_of_a_cancelled_body_is_closed() {
    let client = client("memory:").await;
    let (spans, _guard) = Spans::record(LevelFilter::DEBUG);
    let call = client.lock("k").run(std::future::pending::<()>());
    assert!(tokio::time::timeout(LEASE / 50, call).await.is_err());
    let is_closed = || spans.one("lock.hold").1.is_closed;
    assert!(until(LEASE * 5, is_closed).await.is_some());
}

// The span of the function contains the wait and the hold.
#[distributed_lock(key = "order:<id>")]
#[tracing::instrument]
async fn bill(id: u64) -> Result<(), LockError> {
    tracing::info!("body");
    Ok(())
}

// The span of the function contains the body only, and is inside `lock.hold`.
#[tracing::instrument]
#[distributed_lock(key = "order:<id>")]
async fn ship(id: u64) -> Result<(), LockError> {
    tracing::info!("body");
    Ok(())
}

/// Attributes are expanded from the top: each one wraps what is left.
#[tokio::test]
async fn instrumented_functions_contain_the_spans_or_are_in_them() {
    let server = RedisServer::start();
    let client = client(&server.url()).await;
    let (spans, _guard) = Spans::record(LevelFilter::DEBUG);
    with_client(client.clone(), bill(7)).await.expect("free");
    let (function, _) = spans.one("bill");
    let ((_, wait), (_, hold)) = (spans.one("lock.wait"), spans.one("lock.hold"));
    assert_eq!((wait.parent, hold.parent), (Some(function), Some(function)));
    assert_eq!(hold.events, ["body"]);

    let (spans, _guard) = Spans::record(LevelFilter::DEBUG);
    with_client(client, ship(7)).await.expect("free");
    let (hold, _) = spans.one("lock.hold");
    let (_, function) = spans.one("ship");
    assert_eq!((function.parent, spans.one("lock.wait").1.parent), (Some(hold), None));
    assert_eq!(function.events, ["body"]);
}

#[distributed_lock(key = "slow:<id>", wait = "20s")]
async fn slow(id: &str, time: Duration) -> Result<(), LockError> {
    tokio::time::sleep(time).await;
    Ok(())
}

#[tokio::test]
async fn a_long_wait_is_logged_when_it_ends() {
    let log = CapturedLog::here();
    let server = RedisServer::start();
    let connect = async |slow: Option<Duration>| {
        let builder = LockClient::builder().url(server.url()).lease(LEASE).slow_wait(slow);
        builder.connect().await.expect("up")
    };
    let (two, never) = (connect(Some(LEASE / 10)).await, connect(None).await);
    let logged = |words: &[&str]| {
        log.lines(&[&["WARN", "slow: a call waited long for its lock"], words].concat()).len()
    };
    let held = never.lock("slow:waited").acquire().await.expect("free");
    for client in [&two, &never] {
        client.lock("slow:waited").wait(LEASE / 5).acquire().await.expect_err("busy");
    }
    let busy = ["slow:waited", "outcome=\"busy\"", "holder=", "template=\"(none)\""];
    assert_eq!(logged(&busy), 1, "by the client that has a threshold");
    let waits = tokio::spawn(with_client(two.clone(), slow("waited", Duration::ZERO)));
    tokio::time::sleep(LEASE / 5).await;
    held.release().await.expect("held");
    waits.await.expect("no panic").expect("its turn");
    let function = concat!("function=\"", module_path!(), "::slow\"");
    assert_eq!(
        logged(&["slow:waited", "outcome=\"acquired\"", function, "template=\"slow:<id>\""]),
        1
    );
    with_client(two, slow("short", Duration::ZERO)).await.expect("free");
    assert_eq!(logged(&["slow:short"]), 0);
}

#[tokio::test]
async fn a_long_hold_is_logged_once() {
    let log = CapturedLog::here();
    let server = RedisServer::start();
    let builder = || LockClient::builder().url(server.url()).lease(LEASE);
    let slow_hold = builder().slow_hold(LEASE / 10).connect().await.expect("up");
    let none = builder().connect().await.expect("up");
    let logged = |key: &str| log.lines(&["WARN", "slow: a lock is held long", key]).len();
    // Found by the renewals, before the end.
    let call = tokio::spawn(with_client(slow_hold.clone(), slow("long", LEASE * 2)));
    assert!(until(LEASE, || logged("slow:long") == 1).await.is_some(), "{}", logged("slow:long"));
    assert!(!call.is_finished());
    call.await.expect("no panic").expect("free");
    // Found at the end.
    with_client(slow_hold.clone(), slow("ended", LEASE / 6)).await.expect("free");
    let fixed = slow_hold.lock("slow:fixed").lease(LEASE * 5).acquire().await.expect("free");
    tokio::time::sleep(LEASE / 6).await;
    drop(fixed);
    // Half of the `max_hold`.
    let limited = none.lock("slow:limited").max_hold(LEASE * 2).acquire().await.expect("free");
    tokio::time::sleep(LEASE * 3 / 2).await;
    limited.release().await.expect("held");
    // Not long.
    with_client(slow_hold, slow("short", Duration::ZERO)).await.expect("free");
    with_client(none, slow("unlimited", LEASE / 2)).await.expect("free");
    let all = ["long", "ended", "fixed", "limited"].map(|name| format!("slow:{name}"));
    let once = || all.iter().all(|key| logged(key) == 1);
    assert!(until(LEASE * 5, once).await.is_some(), "{:?}", all.each_ref().map(|key| logged(key)));
    assert_eq!((logged("slow:short"), logged("slow:unlimited")), (0, 0));
}

/// A key with a line break does not forge a line of the log.
#[tokio::test]
async fn a_hostile_key_stays_in_its_field() {
    let log = CapturedLog::here();
    let server = RedisServer::start();
    let client = LockClient::builder().url(server.url()).lease(LEASE).slow_hold(LEASE / 50);
    let client = client.connect().await.expect("up");
    let key = "hostile\n\u{1b}[31mERROR forged";
    client.lock(key).run(tokio::time::sleep(LEASE / 10)).await.expect("free");
    let logged = || log.lines(&["WARN", "slow: a lock is held long", "hostile"]);
    assert!(until(LEASE * 5, || !logged().is_empty()).await.is_some());
    assert!(logged().iter().all(|line| line.contains("\\n") && !line.contains('\u{1b}')));
    assert_eq!(log.lines(&["forged"]).iter().filter(|line| line.starts_with('\u{1b}')).count(), 0);
}

#[tokio::test]
async fn thresholds_are_checked() {
    for (option, builder) in [
        ("slow_wait", LockClient::builder().slow_wait(Duration::ZERO)),
        ("slow_hold", LockClient::builder().slow_hold(Duration::MAX)),
    ] {
        match builder.url("memory:").connect().await {
            Err(LockError::Config { option: found, .. }) => assert_eq!(found, option),
            other => panic!("{other:?}"),
        }
    }
}

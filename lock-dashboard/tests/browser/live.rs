//! What the page does while locks come and go.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use lock_runtime::{Identity, LockClient, LockGuard, LostReason};
use lock_tests::RedisServer;
use tokio::runtime::Builder;
use tokio::time::{sleep, timeout};
use tracing::span::{Attributes, Id, Record};
use tracing::subscriber::set_global_default;
use tracing::{Event, Metadata, Subscriber};

use crate::browser::Browser;
use crate::service::DashboardService;

pub(crate) const ROWS: &str = "[...document.querySelectorAll('#held-table tbody tr')]";

/// How long an expected event may take on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// Longer than a test.
pub(crate) const LONG: Duration = Duration::from_secs(600);

/// Texts that would do harm in a page.
const HOSTILE: [&str; 6] = [
    "<img src=x onerror=\"window.harmed=1\">",
    "</td></tr></table><script>window.harmed=1</script>",
    "\" onmouseover=\"window.harmed=1\" x=\"",
    "javascript:window.harmed=1",
    "..",
    "a/b?c#d&e%41 {{x}} ${y}",
];

pub(crate) async fn client(server: &RedisServer, name: &str) -> LockClient {
    let builder = LockClient::builder().url(server.url()).identity(Identity::named(name));
    builder.lease(Duration::from_secs(20)).revocable(true).connect().await.expect("up")
}

/// Whether there is a row with this key.
fn has(key: &str) -> String {
    format!("{ROWS}.some((row) => row.querySelector('.key').textContent === {})", quoted(key))
}

fn quoted(text: &str) -> String {
    serde_json::to_string(text).expect("a text")
}

#[tokio::test(flavor = "multi_thread")]
async fn rows_appear_count_down_and_vanish() {
    let server = RedisServer::start();
    let client = client(&server, "web-1").await;
    let service = DashboardService::start(&client).await;
    let browser = Browser::start().await;
    browser.open(&service.page()).await;
    browser.until("!document.getElementById('held-empty').hidden").await;
    browser.show_as(1280, 900, "light", "no-preference").await;
    browser.screenshot("empty").await;
    let guard = client.lock("report").lease(LONG).acquire().await.expect("free");
    browser.until(&has("report")).await;
    // The row stays the same node, and counts between the messages of the server as well.
    let watch = "window.seen = []; setInterval(() => { \
        const text = row.children[3].innerText; \
        if (text !== seen.at(-1)) seen.push(text); }, 50);";
    browser.run(&format!("window.row = {ROWS}[0]; {watch}")).await;
    browser.until("seen.length >= 5").await;
    let seen = browser.value("seen").await;
    let seconds = |text: &str| {
        let parts = text.trim().split(['m', 's', ' ']).filter_map(|part| part.parse::<u64>().ok());
        parts.fold(0, |sum, part| sum * 60 + part)
    };
    let seen =
        seen.as_array().expect("texts").iter().map(|it| seconds(it.as_str().expect("a text")));
    let seen: Vec<u64> = seen.collect();
    let falls = seen.windows(2).all(|pair| pair[1] < pair[0] && pair[0] - pair[1] < 10);
    assert!(falls && (500..=600).contains(&seen[0]), "{seen:?}");
    assert_eq!(browser.value(&format!("row === {ROWS}[0]")).await, true);
    let waiting = tokio::spawn(client.lock("report").wait(LONG).acquire());
    browser.until("row.children[4].innerText.trim() === '1'").await;
    browser.until("document.getElementById('total-waiting').textContent === '1'").await;
    guard.release().await.expect("held");
    drop(waiting.await.expect("no panic"));
    browser.until(&format!("{ROWS}.length === 0")).await;
    browser.until("!document.getElementById('held-empty').hidden").await;
    browser.assert_console_is_empty().await;
    browser.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn hostile_texts_stay_texts() {
    let server = RedisServer::start();
    let client = client(&server, "<img src=x onerror=window.harmed=1>").await;
    let service = DashboardService::start(&client).await;
    let browser = Browser::start().await;
    browser.open(&service.page()).await;
    let mut guards = Vec::new();
    for key in HOSTILE {
        guards.push(client.lock(key).acquire().await.expect("free"));
    }
    let lost = client.lock(format!("{} lost", HOSTILE[0])).lease(Duration::from_millis(50));
    assert_eq!(lost.acquire().await.expect("free").lost().await, LostReason::LeaseOver);
    for key in HOSTILE {
        browser.until(&has(key)).await;
        let click = format!(
            "{ROWS}.find((row) => row.querySelector('.key').textContent === {}).querySelector('.key').click()",
            quoted(key)
        );
        browser.run(&click).await;
        browser
            .until(&format!("document.getElementById('lock-key').textContent === {}", quoted(key)))
            .await;
        // The store has been asked for exactly this key.
        browser
            .until("document.querySelector('#lock-store li')?.textContent.includes('lease left')")
            .await;
        browser.run("document.getElementById('lock').close()").await;
    }
    browser
        .until("document.querySelector('#losses-table tbody .key')?.textContent.endsWith(' lost')")
        .await;
    // They do not look like others, and two spaces are not one.
    let hidden = [
        ("pay\u{202e}gpj.exe\u{0}", "pay\\u{202e}gpj.exe\\u{0}"),
        ("a\u{200b}b\u{a0}c\u{e0041}\u{3164}", "a\\u{200b}b\\u{a0}c\\u{e0041}\\u{3164}"),
        ("\u{1f512} schlüssel  zwei", "\u{1f512} schlüssel  zwei"),
    ];
    for (key, shown) in hidden {
        guards.push(client.lock(key).acquire().await.expect("free"));
        browser.until(&has(shown)).await;
    }
    let space = format!("getComputedStyle({ROWS}[0].querySelector('.key')).whiteSpaceCollapse");
    assert_eq!(browser.text(&space).await, "preserve");
    assert_eq!(browser.value("document.images.length + document.scripts.length").await, 1);
    assert_eq!(browser.value("window.harmed ?? null").await, serde_json::Value::Null);
    browser.assert_console_is_empty().await;
    browser.close().await;
    drop(guards);
}

#[tokio::test(flavor = "multi_thread")]
async fn ten_thousand_locks_do_not_stall_the_page() {
    let mut guards = Vec::new();
    let mut clients = Vec::new();
    for n in 0..2 {
        let builder = LockClient::builder().url("memory:page").lease(LONG);
        let client = builder.identity(Identity::named(format!("web-{n}"))).connect().await;
        clients.push(client.expect("memory"));
    }
    for n in 0..10_000 {
        let lock = clients[n % 2].lock(format!("order:{n}"));
        guards.push(lock.acquire().await.expect("free"));
    }
    let service = DashboardService::start(&clients[0]).await;
    let browser = Browser::start().await;
    browser.open(&service.page()).await;
    browser.until(&format!("{ROWS}.length === 500")).await;
    let observe = "window.blocked = 0; window.updates = 0; window.begun = performance.now(); \
        new PerformanceObserver((list) => list.getEntries().forEach((it) => { blocked += it.duration; })).observe({ type: 'longtask' }); \
        new MutationObserver(() => updates++).observe(document.querySelector('#status-text'), { childList: true });";
    browser.run(observe).await;
    browser.until("updates >= 5").await;
    let blocked = browser.value("blocked / (performance.now() - begun)").await;
    assert!(blocked.as_f64() < Some(0.5), "the page was stalled for {blocked} of the time");
    browser.until("document.getElementById('held-count').textContent.includes('9,500 more')").await;
    browser.show_as(1280, 900, "light", "no-preference").await;
    browser.screenshot("ten-thousand").await;
    // One that is not sent is found by the server.
    browser.run("document.body.focus()").await;
    browser.press("/").await;
    browser.press("order:9876").await;
    browser.until(&format!("{ROWS}.length === 1 && {}", has("order:9876"))).await;
    // A page that is hidden does not search again with each state.
    browser.run("Object.defineProperty(document, 'hidden', { get: () => true })").await;
    browser.run("document.dispatchEvent(new Event('visibilitychange'))").await;
    let searches = "performance.getEntriesByType('resource').filter((it) => it.name.includes('api/locks?')).length";
    browser.run(&format!("window.before = {searches}; window.updates = 0")).await;
    browser.until("updates >= 2").await;
    assert_eq!(browser.value(&format!("{searches} - before")).await, 0);
    browser.assert_console_is_empty().await;
    browser.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_keyboard_searches_and_sorts() {
    let server = RedisServer::start();
    let client = client(&server, "web-1").await;
    let service = DashboardService::start(&client).await;
    let browser = Browser::start().await;
    let mut guards = Vec::new();
    for key in ["b", "c", "a"] {
        guards.push(client.lock(key).acquire().await.expect("free"));
        // Ages are sent in ms.
        sleep(Duration::from_millis(10)).await;
    }
    browser.open(&service.page()).await;
    browser.until(&format!("{ROWS}.length === 3")).await;
    let keys = format!("{ROWS}.map((row) => row.querySelector('.key').textContent).join('')");
    assert_eq!(browser.text(&keys).await, "bca", "the oldest comes first");
    let head = "document.querySelector('#held-table th[data-sort=key]')";
    for (expected, order) in [("abc", "ascending"), ("cba", "descending"), ("bca", "")] {
        browser.run(&format!("{head}.querySelector('button').focus()")).await;
        browser.press("\u{e007}").await;
        browser.until(&format!("{keys} === '{expected}'")).await;
        assert_eq!(browser.text(&format!("{head}.getAttribute('aria-sort') ?? ''")).await, order);
    }
    browser.press("/").await;
    assert_eq!(browser.text("document.activeElement.id").await, "search");
    browser.press("A").await;
    browser.until(&format!("{keys} === 'a'")).await;
    browser.press("zzz").await;
    browser.until("document.getElementById('held-empty').textContent === 'No lock matches.'").await;
    browser.press("\u{e00c}").await;
    browser.until(&format!("{keys} === 'bca'")).await;
    browser.assert_console_is_empty().await;
    browser.close().await;
}

/// The button of a holder in the dialog.
fn revoke_button(holder: &str) -> String {
    format!(
        "[...document.querySelectorAll('#lock-answers li')].find((it) => it.textContent.startsWith('{holder}'))?.querySelector('button')"
    )
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lock_is_revoked_from_one_holder_after_a_second_question() {
    let server = RedisServer::start();
    let (one, two) = (client(&server, "web-1").await, client(&server, "web-2").await);
    let builder = LockClient::builder().url(server.url()).identity(Identity::named("fixed-1"));
    let three = builder.connect().await.expect("up");
    let service = DashboardService::start(&one).await;
    let browser = Browser::start().await;
    let acquire =
        async |client: &LockClient| client.semaphore("pool", 3).acquire().await.expect("free");
    let guards = [acquire(&one).await, acquire(&two).await, acquire(&three).await];
    browser.open(&format!("{}#lock=pool", service.page())).await;
    browser.until(&revoke_button("fixed-1")).await;
    assert_eq!(browser.value(&format!("{}.disabled", revoke_button("fixed-1"))).await, true);
    browser.until("!document.getElementById('revoke-all').hidden").await;
    browser.screenshot("revoke").await;
    browser.run(&format!("{}.click()", revoke_button("web-2"))).await;
    let question = "document.getElementById('revoke-question')";
    browser.until(&format!("!{question}.hidden && {question}.textContent.includes('web-2')")).await;
    browser.screenshot("revoke-question").await;
    assert!(guards.iter().all(LockGuard::is_held));
    browser.run("document.getElementById('revoke-yes').click()").await;
    let lost = timeout(PATIENCE, guards[1].lost()).await.expect("revoked");
    assert_eq!(lost, LostReason::Revoked);
    let outcome = "document.getElementById('lock-outcome').textContent";
    browser.until(&format!("{outcome}.includes('1 holder gives the lock up')")).await;
    assert!(guards[0].is_held() && guards[2].is_held(), "the others keep theirs");
    // The answer to a question about another lock must not be about this one.
    browser.run(&format!("{}.click()", revoke_button("web-1"))).await;
    browser.run("location.hash = '#lock=other'").await;
    browser.until("document.getElementById('lock-key').textContent === 'other'").await;
    browser.run("document.getElementById('revoke-yes').click()").await;
    browser.until("document.getElementById('total-losses').textContent === '1'").await;
    assert!(guards[0].is_held());
    // The address may name another lock before the page has noticed that the dialog is closed.
    browser.run("document.getElementById('lock').close(); location.hash = '#lock=third'").await;
    browser.until("document.getElementById('lock').open").await;
    assert_eq!(browser.text("document.getElementById('lock-key').textContent").await, "third");
    // A page that is opened later shows the last measurement, although most rounds have none.
    let grants = "document.getElementById('total-grants').textContent";
    browser.until(&format!("{grants} !== '–'")).await;
    browser.open(&service.page()).await;
    browser.until("document.getElementById('total-held').textContent !== '–'").await;
    assert_ne!(browser.text(grants).await, "–");
    browser.assert_console_is_empty().await;
    browser.close().await;
    drop(guards);
}

/// Also for a lock that is older than the page.
#[tokio::test(flavor = "multi_thread")]
async fn the_bar_of_a_lease_is_against_its_length() {
    let server = RedisServer::start();
    let client = client(&server, "web-1").await;
    let service = DashboardService::start(&client).await;
    let browser = Browser::start().await;
    let guard = client.lock("k").lease(LONG / 10).acquire().await.expect("free");
    sleep(Duration::from_secs(4)).await;
    browser.open(&service.page()).await;
    browser.until(&has("k")).await;
    let bar = format!("{ROWS}[0].querySelector('.lease > span')");
    let part = browser.value(&format!("Number({bar}.style.transform.match(/[0-9.]+/)[0])")).await;
    let expected = 1.0 - guard.held_for().div_duration_f64(LONG / 10);
    let part = part.as_f64().expect("a number");
    assert!((part - expected).abs() < 0.06 && part < 0.95, "{part} instead of {expected}");
    browser.assert_console_is_empty().await;
    browser.close().await;
}

/// It is not renewed any more, which is not late.
#[tokio::test(flavor = "multi_thread")]
async fn a_lock_at_the_end_of_its_max_hold_is_not_late() {
    let builder = LockClient::builder().url("memory:").lease(LONG);
    let client = builder.connect().await.expect("memory");
    let service = DashboardService::start(&client).await;
    let browser = Browser::start().await;
    let limited = client.lock("limited").max_hold(LONG / 5).acquire().await.expect("free");
    browser.open(&service.page()).await;
    browser.until(&has("limited")).await;
    let held = browser.text(&format!("{ROWS}[0].children[2].innerText")).await;
    assert!(held.contains("max 2m 00s"), "{held}");
    assert_eq!(browser.value(&format!("{ROWS}[0].classList.contains('late')")).await, false);
    assert!(limited.is_held());
    browser.assert_console_is_empty().await;
    browser.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_that_hangs_is_reported_and_the_page_recovers() {
    let server = RedisServer::start();
    let client = client(&server, "web-1").await;
    let service = DashboardService::start(&client).await;
    let browser = Browser::start().await;
    let _guard = client.lock("k").lease(LONG).acquire().await.expect("free");
    browser.open(&service.page()).await;
    browser.until(&has("k")).await;
    let banner = "document.getElementById('banner')";
    browser.until(&format!("{banner}.hidden")).await;
    server.freeze();
    browser
        .until(&format!("!{banner}.hidden && {banner}.textContent.includes('No answers since')"))
        .await;
    assert_eq!(browser.value(&has("k")).await, true, "the last rows stay");
    browser.show_as(390, 844, "dark", "no-preference").await;
    browser.screenshot("problem").await;
    server.thaw();
    browser.until(&format!("{banner}.hidden")).await;
    browser.until("document.getElementById('status-text').textContent.startsWith('live')").await;
    browser.assert_console_is_empty().await;
    browser.close().await;
}

/// The threads of the service whose subscriber panics.
const PANICKING: &str = "panicking";

/// A subscriber of the service, which is called in the task that asks the clients. The services of other tests have the same
/// one, and other threads.
struct PanickingSubscriber;

/// Whether the subscriber panics.
static PANICS: AtomicBool = AtomicBool::new(false);

impl Subscriber for PanickingSubscriber {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target().starts_with("lock_dashboard")
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, _: &Event<'_>) {
        let panics = PANICS.load(Ordering::Relaxed) && thread::current().name() == Some(PANICKING);
        assert!(!panics, "an injected panic");
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

#[test]
fn a_panic_in_the_task_that_asks_is_reported_and_the_page_recovers() {
    let runtime = Builder::new_multi_thread().thread_name(PANICKING).enable_all().build();
    runtime.expect("threads").block_on(a_panic_is_reported());
}

async fn a_panic_is_reported() {
    set_global_default(PanickingSubscriber).expect("no other subscriber");
    let client = LockClient::memory();
    let service = DashboardService::start(&client).await;
    let browser = Browser::start().await;
    let _guard = client.lock("before").lease(LONG).acquire().await.expect("free");
    browser.open(&service.page()).await;
    browser.until(&has("before")).await;
    PANICS.store(true, Ordering::Relaxed);
    let banner = "document.getElementById('banner')";
    browser
        .until(&format!("!{banner}.hidden && {banner}.textContent.includes('it panicked')"))
        .await;
    browser.until("document.getElementById('status-text').textContent === 'not live'").await;
    assert_eq!(browser.value(&has("before")).await, true, "the last rows stay");
    browser.show_as(1280, 900, "light", "no-preference").await;
    browser.screenshot("panic").await;
    PANICS.store(false, Ordering::Relaxed);
    browser.until(&format!("{banner}.hidden")).await;
    browser.until("document.getElementById('status-text').textContent.startsWith('live')").await;
    let _guard = client.lock("after").lease(LONG).acquire().await.expect("free");
    browser.until(&has("after")).await;
    browser.assert_console_is_empty().await;
    browser.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_user_whose_session_has_ended_is_asked_to_sign_in() {
    let service = DashboardService::start_signed_out(&LockClient::memory()).await;
    let browser = Browser::start().await;
    browser.open(&service.page()).await;
    let banner = "document.getElementById('banner')";
    browser.until(&format!("{banner}.textContent.includes('Sign in again')")).await;
    // It does not try again and again.
    browser.console().await;
    sleep(Duration::from_secs(5)).await;
    browser.assert_console_is_empty().await;
    browser.close().await;
}

//! What a page costs that nobody sees.

use std::time::Duration;

use lock_tests::RedisServer;
use tokio::time::{Instant, sleep};

use crate::browser::{Browser, PATIENCE};
use crate::live::client;
use crate::service::DashboardService;

/// Longer than the time between two rounds for pages that are hidden, and than the poller waits for another viewer.
const QUIET: Duration = Duration::from_secs(12);

/// The minute after which a hidden page does not listen any more takes a second.
const SHORT_MINUTE: &str = "const later = setTimeout;
  window.setTimeout = (run, ms) => later(run, ms === 60000 ? 1000 : ms);";

/// The number of questions and answers.
fn messages(server: &RedisServer) -> u64 {
    server.calls("publish") + server.calls("spublish")
}

/// Waits until nobody is asked any more.
async fn assert_quiet(server: &RedisServer) {
    let begun = Instant::now();
    loop {
        let before = messages(server);
        sleep(QUIET).await;
        if messages(server) == before {
            return;
        }
        assert!(begun.elapsed() < PATIENCE, "the questions do not end");
    }
}

/// Waits until somebody is asked.
async fn assert_asked(server: &RedisServer) {
    let (begun, before) = (Instant::now(), messages(server));
    while messages(server) == before {
        assert!(begun.elapsed() < PATIENCE, "nobody is asked");
        sleep(Duration::from_millis(100)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn nobody_is_asked_for_a_tab_that_is_hidden_or_closed() {
    let server = RedisServer::start();
    let client = client(&server, "web-1").await;
    let service = DashboardService::start(&client).await;
    let browser = Browser::start().await;
    browser.run_on_each_page(SHORT_MINUTE).await;
    browser.open(&service.page()).await;
    let live = "document.getElementById('status-text').textContent.startsWith('live')";
    browser.until(live).await;
    assert_asked(&server).await;
    browser.open_tab().await;
    browser.until("document.hidden").await;
    assert_quiet(&server).await;
    browser.show_page().await;
    browser.until(&format!("!document.hidden && {live}")).await;
    assert_asked(&server).await;
    browser.close_page().await;
    assert_quiet(&server).await;
    browser.close().await;
}

//! What the page does with rows that somebody points at, or that have the focus.

use std::time::Duration;

use lock_runtime::{LockClient, LockGuard};
use lock_tests::RedisServer;
use tokio::time::sleep;

use crate::browser::Browser;
use crate::live::{LONG, ROWS, client};
use crate::service::DashboardService;

/// Something that somebody does before the page takes the table for one that nobody uses.
const USE: &str = "window.using = setInterval(() => dispatchEvent(new Event('pointermove')), 500)";

/// The keys of the rows that are there, also of those whose locks are gone.
fn keys() -> String {
    format!("{ROWS}.map((row) => row.querySelector('.key').textContent).join('')")
}

async fn acquire(client: &LockClient, key: &str) -> LockGuard {
    let guard = client.lock(key).lease(LONG).acquire().await.expect("free");
    // Ages are sent in ms.
    sleep(Duration::from_millis(10)).await;
    guard
}

/// The row of a key has this number of calls that wait.
fn waits(key: &str, calls: usize) -> String {
    format!(
        "{ROWS}.find((row) => row.querySelector('.key').textContent === '{key}')?.children[4].innerText.trim() === '{calls}'"
    )
}

#[tokio::test(flavor = "multi_thread")]
async fn rows_below_the_pointer_do_not_jump_and_all_else_goes_on() {
    let server = RedisServer::start();
    let client = client(&server, "web-1").await;
    let service = DashboardService::start(&client).await;
    let browser = Browser::start().await;
    let a = acquire(&client, "a").await;
    let _others = (acquire(&client, "b").await, acquire(&client, "c").await);
    browser.open(&service.page()).await;
    browser.until(&format!("{ROWS}.length === 3")).await;
    assert_eq!(browser.value("matchMedia('(hover: hover)').matches").await, true);
    browser.run(&format!("window.row = {ROWS}[1]; {USE}")).await;
    browser.point_at("row").await;
    browser.until("row.matches(':hover')").await;
    // Each of them would change the order.
    let waiting = tokio::spawn(client.lock("c").wait(LONG).acquire());
    browser.until(&waits("c", 1)).await;
    a.release().await.expect("held");
    browser.until(&format!("{ROWS}[0].classList.contains('gone')")).await;
    let q = acquire(&client, "q").await;
    browser.until(&format!("{} === 'abcq'", keys())).await;
    assert_eq!(browser.value("row.matches(':hover')").await, true, "it is still at its place");
    browser.screenshot("pointer").await;
    // The numbers go on.
    browser.run("window.age = row.children[2].innerText").await;
    browser.until("row.children[2].innerText !== age").await;
    // What the user asks for is done at once.
    browser.press("/").await;
    browser.press("q").await;
    browser.until(&format!("{} === 'q'", keys())).await;
    browser.press("\u{e00c}").await;
    browser.until(&format!("{} === 'cbq'", keys())).await;
    // A pointer that somebody has left on the table does not keep the order for ever.
    let more = [0, 1].map(|_| tokio::spawn(client.lock("q").wait(LONG).acquire()));
    browser.until(&waits("q", 2)).await;
    assert_eq!(browser.text(&keys()).await, "cbq");
    browser.run("clearInterval(using)").await;
    browser.until(&format!("{} === 'qcb'", keys())).await;
    browser.assert_console_is_empty().await;
    browser.close().await;
    drop(q);
    waiting.abort();
    for more in more {
        more.abort();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_row_with_the_focus_keeps_its_place_and_later_the_focus() {
    let server = RedisServer::start();
    let client = client(&server, "web-1").await;
    let service = DashboardService::start(&client).await;
    let browser = Browser::start().await;
    let a = acquire(&client, "a").await;
    let _others = (acquire(&client, "b").await, acquire(&client, "c").await);
    browser.open(&service.page()).await;
    browser.until(&format!("{ROWS}.length === 3")).await;
    browser
        .run(&format!("window.kept = {ROWS}[1].querySelector('.key'); kept.focus(); {USE}"))
        .await;
    a.release().await.expect("held");
    browser.until(&format!("{ROWS}[0].classList.contains('gone')")).await;
    // The one that is waited for would come first.
    let waiting = tokio::spawn(client.lock("c").wait(LONG).acquire());
    browser.until(&waits("c", 1)).await;
    assert_eq!(browser.text(&keys()).await, "abc");
    assert_eq!(browser.value("document.activeElement === kept").await, true);
    browser.run("clearInterval(using)").await;
    browser.until(&format!("{} === 'cb'", keys())).await;
    assert_eq!(browser.value("document.activeElement === kept").await, true);
    browser.assert_console_is_empty().await;
    browser.close().await;
    waiting.abort();
}

//! What the page looks like: wide and narrow, dark and light.

use std::time::Duration;

use lock_tests::RedisServer;
use serde_json::Value;
use tokio::time::sleep;

use crate::browser::Browser;
use crate::scene::{HOSTILE, Scene};
use crate::service::DashboardService;

/// How light a color is.
const PARSE: &str = "const parse = (text) => text.match(/[0-9.]+/g).map(Number);
  const light = ([r, g, b]) => [r, g, b]
    .map((v) => v / 255)
    .map((v) => (v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4))
    .reduce((sum, v, at) => sum + v * [0.2126, 0.7152, 0.0722][at], 0);";

/// The contrast of the edge of the search field.
const EDGE_CONTRAST: &str = "(() => {
  PARSE
  const style = getComputedStyle(document.getElementById('search'));
  const [one, two] = [style.borderTopColor, style.backgroundColor].map((it) => light(parse(it)));
  return (Math.max(one, two) + 0.05) / (Math.min(one, two) + 0.05);
})()";

/// The lowest contrast between a text and its background anywhere on the page, and that text.
const LOWEST_CONTRAST: &str = "(() => {
  PARSE
  const behind = (node) => {
    for (let at = node; at; at = at.parentElement) {
      const color = parse(getComputedStyle(at).backgroundColor);
      if (color.length === 3 || color[3] === 1) return color;
    }
    return [255, 255, 255];
  };
  let lowest = [99, ''];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const text = walker.currentNode.textContent.trim();
    const node = walker.currentNode.parentElement;
    if (!text || !node.checkVisibility() || node.closest('.hidden, .skip, noscript, script')) continue;
    const [one, two] = [light(parse(getComputedStyle(node).color)), light(behind(node))];
    const contrast = (Math.max(one, two) + 0.05) / (Math.min(one, two) + 0.05);
    if (contrast < lowest[0]) lowest = [contrast, text];
  }
  return lowest;
})()";

#[tokio::test(flavor = "multi_thread")]
async fn the_page_is_legible_wide_and_narrow_dark_and_light() {
    let server = RedisServer::start();
    let scene = Scene::start(&server).await;
    let service = DashboardService::start(&scene.client).await;
    let browser = Browser::start().await;
    browser.open(&service.page()).await;
    browser.until("document.querySelectorAll('#held-table tbody tr').length > 8").await;
    browser.until("document.querySelectorAll('#losses-table tbody tr').length > 6").await;
    // The lines have some points.
    for line in ["#line-held", "#contention-table"] {
        let path = format!("document.querySelector('{line} .stroke')?.getAttribute('d') ?? ''");
        browser.until(&format!("({path}).includes('L')")).await;
    }
    let mut backgrounds = Vec::new();
    for (width, height) in [(1280, 1150), (390, 844)] {
        for scheme in ["light", "dark"] {
            browser.show_as(width, height, scheme, "no-preference").await;
            browser.until(&format!("innerWidth === {width}")).await;
            let overflow = browser.value("document.documentElement.scrollWidth - innerWidth").await;
            assert_eq!(overflow, 0, "at {width} px, the page is wider than the screen");
            let cut = "[...document.querySelectorAll('.scroll')].map((it) => it.scrollWidth - it.clientWidth)";
            let cut = browser.value(&format!("Math.max(...{cut})")).await;
            assert_eq!(cut, 0, "at {width} px, a table is wider than its frame");
            let lowest = browser.value(&LOWEST_CONTRAST.replace("PARSE", PARSE)).await;
            assert!(lowest[0].as_f64() >= Some(4.5), "{width} px, {scheme}: {lowest}");
            let edge = browser.value(&EDGE_CONTRAST.replace("PARSE", PARSE)).await;
            assert!(edge.as_f64() >= Some(3.0), "{width} px, {scheme}: {edge}");
            backgrounds.push(browser.text("getComputedStyle(document.body).backgroundColor").await);
            // Each column that is there has a name that fits.
            let tall = browser.value("Math.max(...[...document.querySelectorAll('thead')].map((it) => it.offsetHeight))").await;
            assert!(tall.as_f64() < Some(40.0), "{width} px: {tall}");
            browser.screenshot(&format!("{width}-{scheme}")).await;
            if width < 500 {
                let least = "Math.min(...[...document.querySelectorAll('button.key, th button')].filter((it) => it.checkVisibility()).map((it) => it.offsetHeight))";
                let least = browser.value(least).await;
                assert!(least.as_f64() >= Some(24.0), "a button is {least} px high");
                browser.run("scrollTo(0, document.body.scrollHeight)").await;
                sleep(Duration::from_millis(200)).await;
                browser.screenshot(&format!("{width}-{scheme}-end")).await;
                browser.run("scrollTo(0, 0)").await;
            }
        }
    }
    assert_eq!(backgrounds[0], backgrounds[2]);
    assert_ne!(backgrounds[0], backgrounds[1]);
    for (width, height) in [(1280, 900), (390, 844)] {
        browser.show_as(width, height, "light", "reduce").await;
        browser.run("document.querySelector('#held-table button.key').click()").await;
        browser.until("document.querySelector('#lock-store li')").await;
        browser.screenshot(&format!("{width}-lock")).await;
        browser.run("document.getElementById('lock').close()").await;
    }
    assert_eq!(browser.text("document.title").await, "Locks", "{HOSTILE} was no markup");
    browser.assert_console_is_empty().await;
    browser.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_moves_by_itself() {
    let server = RedisServer::start();
    let scene = Scene::start(&server).await;
    let service = DashboardService::start(&scene.client).await;
    let browser = Browser::start().await;
    let transitions = "[...new Set([...document.querySelectorAll('*')].map((it) => getComputedStyle(it).transitionDuration))]";
    for motion in ["no-preference", "reduce"] {
        browser.show_as(1280, 900, "light", motion).await;
        browser.open(&service.page()).await;
        browser.until("document.querySelector('#held-table .lease > span')").await;
        let found = browser.value(transitions).await;
        assert_eq!(found, serde_json::json!(["0s"]), "{motion}");
        let moving = browser
            .value("document.getAnimations().filter((it) => it instanceof CSSAnimation).length")
            .await;
        assert_eq!(moving, Value::from(0));
    }
    browser.close().await;
}

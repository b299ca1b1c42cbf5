//! `lockctl serve`: who reaches the page, what it shows, and how it ends.

mod ending;
mod limit;
mod site;

use std::net::TcpListener;

use lock_tests::RedisServer;
use lock_tests::support::client;
use rustix::process::Signal;

use self::site::{ACTION, ServedPage};
use crate::support::{RunningProcess, lockctl, outcome};

/// A command under the lock `job`, which only ends when somebody ends it.
fn holder(server: &RedisServer) -> RunningProcess {
    let words = ["run", "--lease", "60s", "job", "sh", "-c", "echo held; exec sleep 600"];
    let mut holder = RunningProcess::start(lockctl(&server.url(), &words));
    assert_eq!(holder.line(), "held");
    holder
}

#[test]
fn the_page_is_sent_with_strict_headers() {
    let server = RedisServer::start();
    let page = ServedPage::start(&server.url(), &[]);
    let answer = page.get("/");
    assert_eq!(answer.status, "200", "{answer:?}");
    assert!(answer.body.contains("<!doctype html>") && answer.body.contains("script.js"));
    for header in [
        "content-security-policy: default-src 'self'; frame-ancestors 'none'",
        "x-content-type-options: nosniff",
        "x-frame-options: DENY",
        "referrer-policy: no-referrer",
    ] {
        assert!(answer.head.contains(header), "{header}: {answer:?}");
    }
    assert_eq!(page.get("/script.js").status, "200");
    assert_eq!(page.warnings, "");
    page.send(Signal::TERM);
    let ended = page.end();
    assert_eq!((ended.code, &*ended.errors), (Some(143), ""), "{ended:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_page_shows_a_lock_while_it_is_held() {
    let server = RedisServer::start();
    let page = ServedPage::start(&server.url(), &["--namespace", "shop"]);
    let builder = lock_runtime::LockClient::builder().url(server.url()).namespace("shop");
    let client = builder.connect().await.expect("the server is up");
    let mut events = page.events();
    events.until("\"rows\":[]");
    let guard = client.lock("job").acquire().await.expect("free");
    events.until("\"rows\":[{\"key\":\"shop:job\"");
    assert!(page.get("/api/state").body.contains("\"key\":\"shop:job\""));
    guard.release().await.expect("held");
    events.until("\"rows\":[]");
}

#[test]
fn an_address_that_other_machines_reach_is_refused_before_anything_connects() {
    let store = TcpListener::bind("127.0.0.1:0").expect("a port");
    store.set_nonblocking(true).expect("a socket");
    let url = format!("redis://{}", store.local_addr().expect("bound"));
    for address in ["0.0.0.0:0", "[::]:0", "192.0.2.1:7379"] {
        for more in [&[][..], &["--allow-actions"], &["--allowed-host", "locks.example"]] {
            let refused = outcome(&url, &[&["serve", "--listen", address], more].concat());
            assert_eq!(refused.code, Some(64), "{refused:?}");
            assert!(refused.errors.contains(address), "{refused:?}");
            assert!(refused.errors.contains("proxy with authentication"), "{refused:?}");
            assert!(refused.errors.contains("--allow-remote"), "{refused:?}");
            assert!(!refused.errors.contains("listening"), "{refused:?}");
        }
    }
    assert!(store.accept().is_err(), "nothing has connected to the store");
}

#[test]
fn options_that_mean_nothing_are_refused() {
    for words in [
        &["--listen", "127.0.0.1"][..],
        &["--listen", "locks.example:7379"],
        &["--allowed-host", "https://locks.example"],
        &["--allowed-host", "*"],
        &["--refresh", "100ms"],
        &["--refresh", "2m"],
    ] {
        let refused = outcome("memory:", &[&["serve"], words].concat());
        assert_eq!(refused.code, Some(64), "{words:?}: {refused:?}");
    }
    let refused = outcome("", &["serve", "--listen", "127.0.0.1:0"]);
    assert_eq!(refused.code, Some(78), "there is no URL: {refused:?}");
}

#[test]
fn other_machines_reach_the_page_if_it_is_allowed() {
    let server = RedisServer::start();
    let options = ["--allow-remote", "--allowed-host", "locks.example"];
    let page = ServedPage::start_at(&server.url(), "0.0.0.0:0", &options);
    let everybody = format!("everybody who reaches 0.0.0.0:{}", page.address.port());
    assert!(page.warnings.contains(&everybody), "{}", page.warnings);
    assert!(!page.warnings.contains("revoke"), "{}", page.warnings);
    for (host, status) in [
        ("locks.example", "200"),
        ("locks.example:8443", "200"),
        ("localhost", "200"),
        ("evil.example", "403"),
        // Nobody can say under which address others reach the page.
        ("192.0.2.1", "403"),
    ] {
        assert_eq!(page.get_from(host, "/").status, status, "{host}");
    }
    let options = ["--allow-remote", "--allow-actions"];
    let page = ServedPage::start_at(&server.url(), "0.0.0.0:0", &options);
    assert!(page.warnings.contains("revoke locks"), "{}", page.warnings);
    assert_eq!(page.get_from("locks.example", "/").status, "403");
}

/// A site can let its own name lead to the address of the page.
#[test]
fn requests_for_other_hosts_are_refused() {
    let server = RedisServer::start();
    let page = ServedPage::start(&server.url(), &["--allowed-host", "locks.example:8443"]);
    let port = page.address.port();
    for path in ["/", "/script.js", "/api/state", "/api/events"] {
        for host in ["evil.example", "localhost.evil.example", "192.0.2.1", "locks.example:80", ""]
        {
            let answer = page.get_from(host, path);
            assert!(matches!(&*answer.status, "400" | "403"), "{path} {host:?}: {answer:?}");
            let evil = page.get_from(&format!("{host}:{port}"), path);
            assert!(matches!(&*evil.status, "400" | "403"), "{path} {host:?}: {evil:?}");
        }
    }
    // A tunnel may have another port.
    for host in ["localhost:8000", "127.0.0.1", "[::1]:8000", "LOCALHOST", "locks.example:8443"] {
        assert_eq!(page.get_from(host, "/api/state").status, "200", "{host}");
    }
}

#[test]
fn the_page_revokes_nothing_by_default() {
    let server = RedisServer::start();
    let holder = holder(&server);
    let page = ServedPage::start(&server.url(), &[]);
    page.events().until("\"key\":\"job\"");
    assert!(page.get("/api/state").body.contains("\"actions\":false"));
    let answer = page.revoke(ACTION, "job");
    assert_eq!(answer.status, "403", "{answer:?}");
    assert!(answer.body.contains("read-only"), "{answer:?}");
    assert!(server.exists("job"));
    holder.send(Signal::TERM);
    assert_eq!(holder.end().code, Some(143), "it was not revoked");
}

#[test]
fn only_the_page_itself_revokes_and_only_if_it_is_allowed() {
    let server = RedisServer::start();
    let holder = holder(&server);
    let page = ServedPage::start(&server.url(), &["--allow-actions"]);
    assert!(page.warnings.contains("all users of this machine can revoke"), "{}", page.warnings);
    page.events().until("\"key\":\"job\"");
    assert!(page.get("/api/state").body.contains("\"actions\":true"));
    for headers in [
        "x-lock-dashboard: 1",
        "sec-fetch-site: same-origin",
        "sec-fetch-site: cross-site\r\nx-lock-dashboard: 1",
        "sec-fetch-site: same-site\r\nx-lock-dashboard: 1",
        "origin: http://evil.example\r\nx-lock-dashboard: 1",
    ] {
        let answer = page.revoke(headers, "job");
        assert_eq!(answer.status, "403", "{headers}: {answer:?}");
    }
    assert!(server.exists("job"));
    let answer = page.revoke(ACTION, "job");
    assert_eq!(answer.status, "200", "{answer:?}");
    assert_eq!(holder.end().code, Some(79), "it was revoked");
    page.send(Signal::TERM);
    let log = page.end().errors;
    assert_eq!(log.matches("has not revoked a lock").count(), 5, "{log}");
    assert!(log.contains("has asked holders to give up a lock key=\"job\""), "{log}");
}

#[test]
fn an_address_that_is_in_use_is_named() {
    let taken = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = taken.local_addr().expect("bound").to_string();
    let refused = outcome("memory:", &["serve", "--listen", &address]);
    assert_eq!(refused.code, Some(69), "{refused:?}");
    assert!(refused.errors.contains(&format!("cannot listen on {address}")), "{refused:?}");
    assert!(refused.errors.contains("another port with `--listen`"), "{refused:?}");
    // An address for documentation, which no machine has.
    let words = ["serve", "--allow-remote", "--listen", "192.0.2.1:7379"];
    assert_eq!(outcome("memory:", &words).code, Some(78));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_page_says_that_the_store_is_down_and_recovers() {
    let mut server = RedisServer::start();
    server.kill();
    let page = ServedPage::start(&server.url(), &[]);
    let mut events = page.events();
    events.until("\"problem\":{\"text\":");
    server.restart();
    let client = client(&server.url()).await;
    let _guard = client.lock("job").acquire().await.expect("free");
    events.until("\"problem\":null");
    events.until("\"key\":\"job\"");
    server.kill();
    events.until("\"problem\":{\"text\":");
    page.send(Signal::TERM);
    let ended = page.end();
    assert_eq!(ended.code, Some(143), "{ended:?}");
    assert!(ended.errors.contains("once the store answers"), "{ended:?}");
}

#[test]
fn a_store_that_rejects_the_credentials_ends_the_command() {
    let server = RedisServer::with(&["--requirepass", "right"]);
    let words = ["serve", "--listen", "127.0.0.1:0"];
    let refused = outcome(&server.url_as(":wrong-secret"), &words);
    assert_eq!(refused.code, Some(77), "{refused:?}");
    assert!(!refused.errors.contains("wrong-secret"), "{refused:?}");
}

#[test]
fn no_output_and_no_answer_contains_the_password() {
    let mut server = RedisServer::with(&["--requirepass", "secret-word"]);
    let page = ServedPage::start(&server.url(), &["-vvv", "--allow-actions"]);
    let mut seen = page.warnings.clone();
    let mut events = page.events();
    events.until("\"problem\":null");
    for path in ["/", "/api/state", "/api/lock?key=job", "/api/locks?search=secret"] {
        let answer = page.get(path);
        assert_eq!(answer.status, "200", "{path}: {answer:?}");
        seen += &(answer.head + &answer.body);
    }
    seen += &page.revoke(ACTION, "job").body;
    server.kill();
    events.until("\"problem\":{\"text\":");
    for path in ["/api/state", "/api/lock?key=job"] {
        seen += &page.get(path).body;
    }
    assert!(seen.contains("\"problem\":"), "{seen}");
    drop(events);
    page.send(Signal::TERM);
    seen += &page.end().errors;
    assert!(!seen.contains("secret-word"), "{seen}");
}

//! What is sent about locks.

use std::time::{Duration, Instant};

use futures_util::future::join_all;
use lock_runtime::{Identity, LockClient, Permits};
use lock_tests::RedisServer;
use serde_json::{Value, json};

use crate::site::{LEASE, Site, client, encoded, keys};

/// Texts that would do harm in a page, a path or a terminal.
const HOSTILE: [&str; 12] = [
    "<img src=x onerror=alert(1)>",
    "</script><script>alert(1)</script>",
    "\"'`\\",
    "..",
    ".",
    "a/b/../c",
    "?key=x&y#z%41%",
    "a\tb\nc\r\n\ndata: x\n\n",
    "\u{0}\u{1b}[31m",
    "\u{202e}txt.exe",
    "\u{1f512} schlüssel",
    "{{key}} ${key} <!-- token -->",
];

fn row<'a>(state: &'a Value, key: &str) -> &'a Value {
    let rows = state["rows"].as_array().expect("rows");
    rows.iter().find(|row| row["key"] == key).unwrap_or_else(|| panic!("{key:?}: {state:#}"))
}

#[tokio::test]
async fn the_state_has_locks_waits_measurements_and_clients() {
    let server = RedisServer::start();
    let identity = Identity::named("web-1").service("shop", "1.2.3");
    let one = LockClient::builder().url(server.url()).lease(LEASE).identity(identity);
    let one = one.connect().await.expect("up");
    let two = client(&server.url()).await;
    let site = Site::of(&two);
    site.until("both answer", |state| state["totals"]["clients"] == 2).await;
    let order = one.lock("order:7").template("order:<id>").acquire().await.expect("free");
    let permits = two.semaphore("pool", 3).permits(2).acquire().await;
    let permits = permits.expect("free");
    let reader = two.read_write("catalog").read().acquire().await.expect("free");
    let lock = two.lock("order:7").template("order:<id>").wait(LEASE * 30);
    let waiting = tokio::spawn(async move { lock.acquire().await.map(drop) });
    let state = site
        .until("a call waits", |state| {
            state["totals"]["held"] == 3
                && state["totals"]["waiting"] == 1
                && state["contention"][0]["waited"].as_f64().is_some_and(|waited| waited > 1000.0)
        })
        .await;
    assert_eq!(
        (&state["v"], &state["actions"], &state["problem"]),
        (&json!(1), &json!(false), &Value::Null)
    );
    let first = &state["rows"][0];
    assert_eq!(first["key"], "order:7", "the one that is waited for comes first");
    assert_eq!(
        (&first["template"], &first["calls"], &first["processes"]),
        (&json!("order:<id>"), &json!(1), &json!(1))
    );
    assert!(first["holder"].as_str().expect("a name").starts_with("web-1 ("), "{first}");
    assert_eq!(first["lease"], 2000, "{first}");
    assert!(first["left"].as_u64() <= Some(2000) && first["held"].as_u64().is_some(), "{first}");
    assert_eq!(row(&state, "catalog")["mode"], "read");
    assert_eq!(row(&state, "pool")["permits"], json!([Permits::new(2, 3).count(), 3]));
    let contention = &state["contention"][0];
    assert_eq!(
        (&contention["template"], &contention["waiting"]),
        (&json!("order:<id>"), &json!(1))
    );
    assert!(contention["in_use"].as_f64() > Some(0.1), "{contention}");
    assert!(state["history"].as_array().expect("samples").len() > 1);
    let clients = state["clients"].as_array().expect("clients");
    assert!(clients.iter().any(|it| it["label"].as_str().expect("a label").contains("shop 1.2.3")));
    order.release().await.expect("held");
    waiting.await.expect("no panic").expect("its turn");
    drop((permits, reader));
    // Measurements are asked for every five seconds.
    let is_over =
        |state: &Value| state["totals"]["held"] == 0 && state["contention"][0]["waiting"] == 0;
    let state = site.until("all is over", is_over).await;
    let contention = &state["contention"][0];
    assert_eq!(
        (&contention["grants"], &contention["waiting"]),
        (&json!(2), &json!(0)),
        "{state:#}"
    );
    assert!(contention["wait_p99"].as_f64() > Some(500.0), "{contention}");
    assert!(contention["hold_p50"].as_f64().is_some(), "{contention}");
}

#[tokio::test]
async fn a_lost_lock_is_shown_with_its_reason() {
    let client = client("memory:").await;
    let site = Site::of(&client);
    assert_eq!(site.state().await["losses"]["recent"], json!([]));
    let guard = client.lock("k").lease(Duration::from_millis(60)).acquire().await.expect("free");
    guard.lost().await;
    let state = site.until("the loss", |state| state["losses"]["recent"][0]["key"] == "k").await;
    let losses = &state["losses"];
    assert_eq!(losses["recent"][0]["reason"], "lease_over");
    let minutes = losses["minutes"].as_array().expect("minutes");
    let total: u64 = minutes.iter().filter_map(Value::as_u64).sum();
    assert_eq!((minutes.len(), total), (60, 1));
}

/// Only 1,000 losses are kept with their keys, of each client and in the dashboard.
#[tokio::test]
async fn more_losses_are_counted_than_are_kept() {
    let (one, two) = (client("memory:losses").await, client("memory:losses").await);
    let site = Site::of(&one);
    let lose = async |client: &LockClient, count: usize| {
        let mut guards = Vec::new();
        for n in 0..count {
            let lock = client.lock(format!("{count}:{n}")).lease(Duration::from_millis(50));
            guards.push(lock.acquire().await.expect("free"));
        }
        for guard in guards {
            guard.lost().await;
        }
    };
    let counted = |state: &Value| {
        let minutes = state["losses"]["minutes"].as_array().expect("minutes").iter();
        minutes.filter_map(Value::as_u64).sum::<u64>()
    };
    lose(&one, 600).await;
    lose(&two, 999).await;
    let state = site.until("all are counted", |state| counted(state) == 1599).await;
    assert_eq!(state["losses"]["more"], false);
    lose(&two, 1001).await;
    let state = site.until("some are forgotten", |state| state["losses"]["more"] == true).await;
    assert!(counted(&state) >= 1600, "{state:#}");
    let losses = &state["losses"];
    let sent = losses["recent"].as_array().map(Vec::len);
    assert_eq!((sent, &losses["rest"]), (Some(100), &json!(900)));
}

#[tokio::test]
async fn hostile_texts_are_sent_exactly() {
    let server = RedisServer::start();
    let client = client(&server.url()).await;
    let site = Site::of(&client);
    let mut guards = Vec::new();
    for key in HOSTILE {
        guards.push(client.lock(key).acquire().await.expect("free"));
    }
    let state = site.until("all are held", |state| keys(state).len() == HOSTILE.len()).await;
    let mut found = keys(&state);
    let mut expected = HOSTILE.to_vec();
    found.sort_unstable();
    expected.sort_unstable();
    assert_eq!(found, expected);
    for key in HOSTILE {
        {
            let path = format!("/api/lock?key={}", encoded(key));
            let answer = site.get(&path, &[]).await;
            assert_eq!(answer.header("content-type"), "application/json", "{path}");
            let lock = answer.json();
            assert_eq!((&lock["key"], &lock["problem"]), (&json!(key), &Value::Null), "{path}");
            assert_eq!(lock["store"]["holders"].as_array().map(Vec::len), Some(1), "{lock:#}");
            assert_eq!(lock["answers"][0]["key"], key);
            let token = server.command::<String>(&["GET", key]);
            assert!(!answer.text.contains(&token), "a token would let readers delete the lock");
        }
        let search = site.get(&format!("/api/locks?search={}", encoded(key)), &[]).await.json();
        assert!(keys(&search).contains(&key), "{key:?}: {search:#}");
    }
}

#[tokio::test]
async fn keys_have_the_namespace_and_are_read_with_it() {
    let server = RedisServer::start();
    let builder = LockClient::builder().url(server.url()).lease(LEASE).namespace("shop");
    let client = builder.connect().await.expect("up");
    let guard = client.lock("k").acquire().await.expect("free");
    let site = Site::of(&client);
    let state = site.until("one", |state| keys(state) == ["shop:k"]).await;
    assert_eq!(state["namespace"], "shop");
    let lock = site.get("/api/lock?key=shop:k", &[]).await.json();
    assert_eq!(lock["store"]["holders"].as_array().map(Vec::len), Some(1), "{lock:#}");
    assert_eq!(lock["store"]["complete"], true, "{lock:#}");
    // Not the key `shop:k` of the namespace, which would be `shop:shop:k`.
    for key in ["k", "shop", "shopk", "other:k"] {
        let answer = site.get(&format!("/api/lock?key={key}"), &[]).await;
        assert_eq!(answer.status, 400, "{key}");
        assert!(answer.json()["problem"].as_str().expect("why").contains("`shop:`"), "{answer:?}");
    }
    drop(guard);
}

/// Many have been sent a link to the same lock.
#[tokio::test]
async fn all_viewers_of_a_lock_share_what_is_read_from_the_store() {
    let server = RedisServer::start();
    let client = client(&server.url()).await;
    let _guard = client.lock("k").lease(LEASE * 30).acquire().await.expect("free");
    let site = Site::of(&client);
    site.get("/api/lock?key=other", &[]).await;
    let scripts = || server.calls("evalsha") + server.calls("evalsha_ro");
    let (before, begun) = (scripts(), Instant::now());
    let viewers = (0..50).map(|_| site.get("/api/lock?key=k", &[]));
    for lock in join_all(viewers).await {
        assert_eq!(lock.json()["store"]["layout"], "token", "{lock:?}");
    }
    let read = scripts() - before;
    // Once a second, by at most two scripts.
    assert!(read > 0 && read <= (begun.elapsed().as_secs() + 1) * 2, "{read} scripts");
}

#[tokio::test]
async fn a_key_that_is_free_or_invalid_is_shown_as_such() {
    let server = RedisServer::start();
    let client = client(&server.url()).await;
    let site = Site::of(&client);
    let free = site.get("/api/lock?key=free", &[]).await;
    assert_eq!((free.status.as_u16(), &free.json()["store"]), (200, &Value::Null));
    for path in ["/api/lock?key=", "/api/lock?key=lock_queue:x"] {
        let answer = site.get(path, &[]).await;
        assert_eq!(answer.status, 400, "{answer:?}");
        assert!(answer.json()["problem"].as_str().expect("a text").contains("key"), "{answer:?}");
    }
    let memory = Site::of(&LockClient::memory()).get("/api/lock?key=k", &[]).await.json();
    assert!(memory["problem"].as_str().expect("why").contains("memory"), "{memory:#}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hundred_thousand_locks_are_counted_and_few_are_sent() {
    let (clients, each) = (20_usize, 5_000_usize);
    let (mut all, mut guards) = (Vec::new(), Vec::new());
    for n in 0..clients {
        let builder = LockClient::builder().url("memory:many").lease(Duration::from_secs(3600));
        let builder = builder.identity(Identity::named(format!("web-{n}")));
        all.push(builder.connect().await.expect("memory"));
    }
    for n in 0..each {
        for (at, client) in all.iter().enumerate() {
            guards.push(client.lock(format!("order:{at}:{n}")).acquire().await.expect("free"));
        }
    }
    let site = Site::of(&all[0]);
    let count = clients * each;
    let state = site.until("all answer", |state| state["totals"]["held"] == count).await;
    assert_eq!(keys(&state).len(), 500);
    assert_eq!(state["rest"], count - 500);
    assert_eq!(state["totals"]["incomplete"], 0, "{}", state["totals"]);
    let answer = site.get("/api/state", &[]).await;
    assert!(answer.text.len() < 512 * 1024, "{} bytes", answer.text.len());
    let last = format!("order:{}:{}", clients - 1, each - 1);
    let found = site.get(&format!("/api/locks?search={last}"), &[]).await.json();
    assert_eq!(keys(&found), [last]);
    let found = site.get("/api/locks?search=ORDER", &[]).await.json();
    assert_eq!((keys(&found).len(), &found["rest"]), (500, &json!(count - 500)));
}

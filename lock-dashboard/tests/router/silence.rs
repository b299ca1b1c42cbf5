//! Processes that answer garbage or never, and stores that do not answer.

use lock_runtime::{Identity, LockClient};
use lock_tests::{Proxy, RedisServer, Toward};
use serde_json::Value;

use crate::site::{LEASE, Site, client, keys};

#[tokio::test]
async fn a_holder_that_does_not_answer_is_named_and_its_locks_stay() {
    let server = RedisServer::plain(&[]);
    let proxy = Proxy::to(server.port());
    let frozen = LockClient::builder().url(proxy.url()).identity(Identity::named("frozen-1"));
    let frozen = frozen.lease(LEASE * 30).connect().await.expect("up");
    let other = client(&server.plain_url()).await;
    let guard = frozen.lock("stuck").acquire().await.expect("free");
    let _own = other.lock("own").acquire().await.expect("free");
    let site = Site::of(&other);
    site.until("both answer", |state| state["totals"]["clients"] == 2 && keys(state).len() == 2)
        .await;
    proxy.blackhole(Toward::Client);
    let state = site.until("one is silent", |state| state["totals"]["unanswered"] == 1).await;
    let first = &state["rows"][0];
    assert_eq!(first["key"], "stuck", "the most interesting one");
    assert!(first["silent"].as_u64() > Some(0), "{first}");
    assert!(state["rows"][1]["silent"].is_null(), "{state:#}");
    let client = &state["clients"][0];
    assert!(client["label"].as_str().expect("a name").starts_with("frozen-1"), "{client}");
    assert!(client["silent"].as_u64() > Some(0), "{client}");
    // The store knows as well who has it.
    let lock = site.get("/api/lock?key=stuck", &[]).await.json();
    let holder = lock["store"]["holders"][0]["holder"].as_str().expect("a holder");
    assert!(holder.starts_with("frozen-1"), "{lock:#}");
    proxy.heal();
    site.until("it answers again", |state| {
        state["totals"]["unanswered"] == 0
            && state["rows"]
                .as_array()
                .is_some_and(|rows| rows.iter().all(|row| row["silent"].is_null()))
    })
    .await;
    drop(guard);
}

/// A client that has ended is not kept because another one is silent.
#[tokio::test]
async fn no_more_clients_are_silent_than_did_not_answer() {
    let server = RedisServer::plain(&[]);
    let proxy = Proxy::to(server.port());
    let frozen = LockClient::builder().url(proxy.url()).identity(Identity::named("frozen-1"));
    let frozen = frozen.lease(LEASE * 60).connect().await.expect("up");
    let guard = frozen.lock("stuck").acquire().await.expect("free");
    let other = client(&server.plain_url()).await;
    let site = Site::of(&other);
    let mut ended = Vec::new();
    for n in 0..3 {
        let builder = LockClient::builder().url(server.plain_url());
        let builder = builder.identity(Identity::named(format!("ended-{n}")));
        ended.push(builder.connect().await.expect("up"));
    }
    site.until("all answer", |state| state["totals"]["clients"] == 5).await;
    proxy.blackhole(Toward::Client);
    drop(ended);
    let silent = |state: &Value| {
        let clients = state["clients"].as_array().expect("clients").iter();
        let silent = clients.filter(|client| !client["silent"].is_null());
        silent.map(|client| client["label"].to_string()).collect::<Vec<_>>()
    };
    let is_one =
        |state: &Value| state["totals"]["unanswered"] == 1 && state["totals"]["clients"] == 1;
    let state = site.until("one is silent, and three have ended", is_one).await;
    let silent = silent(&state);
    assert!(silent.len() == 1 && silent[0].contains("frozen-1"), "{silent:?}");
    drop(guard);
}

#[tokio::test]
async fn garbage_on_the_channel_of_the_answers_changes_nothing() {
    let server = RedisServer::start();
    let client = client(&server.url()).await;
    let _guard = client.lock("k").acquire().await.expect("free");
    let site = Site::of(&client);
    site.until("held", |state| keys(state) == ["k"]).await;
    let channels = server.channels("lock_answer:*");
    let [channel] = &channels[..] else { panic!("{channels:?}") };
    let record = "record=hold\tkey=<b>\ttemplate=\theld=x\tleft=-1";
    let garbage = [
        "garbage".to_owned(),
        "v=1\tnumber=1\tfrom=x\tpage=0\tpages=1\tknown=1\n".to_owned() + record,
        "v=1\tnumber=99999\tfrom=\tpage=-1\tpages=0\n".to_owned(),
        "\u{0}".repeat(100_000),
    ];
    for _ in 0..20 {
        for text in &garbage {
            server.publish(channel, text);
        }
        assert_eq!(keys(&site.state().await), ["k"]);
    }
}

/// Such as a process of an older version, or somebody who monitors the channel.
#[tokio::test]
async fn a_listener_that_never_answers_is_counted() {
    let server = RedisServer::start();
    let client = client(&server.url()).await;
    let site = Site::of(&client);
    site.until("it answers", |state| state["totals"]["clients"] == 1).await;
    let mut connection = server.connection();
    let mut listener = connection.as_pubsub();
    listener.subscribe("lock_ask:").expect("subscribed");
    let state = site.until("it is counted", |state| state["totals"]["unanswered"] == 1).await;
    assert_eq!(state["totals"]["clients"], 1, "{state:#}");
    assert!(state["problem"].is_null(), "{state:#}");
}

#[tokio::test]
async fn a_store_that_does_not_answer_is_a_clear_message_without_secrets() {
    let server = RedisServer::with(&["--requirepass", "secret-word"]);
    let client = client(&server.url()).await;
    let _guard = client.lock("k").lease(LEASE * 300).acquire().await.expect("free");
    let site = Site::of(&client);
    site.until("held", |state| keys(state) == ["k"]).await;
    server.freeze();
    let state = site.until("a problem", |state| state["problem"].is_object()).await;
    let text = state["problem"]["text"].as_str().expect("a text");
    assert!(!text.is_empty() && !state.to_string().contains("secret-word"), "{text}");
    let lock = site.get("/api/lock?key=k", &[]).await;
    assert!(lock.json()["problem"].is_string() && !lock.text.contains("secret-word"), "{lock:?}");
    server.thaw();
    site.until("it recovers", |state| state["problem"].is_null() && keys(state) == ["k"]).await;
}

/// A process of another library, or one that has died: its lock is there until its lease ends.
#[tokio::test]
async fn a_key_that_nobody_holds_who_answers_is_shown_with_its_waiting_calls() {
    let server = RedisServer::start();
    let client = client(&server.url()).await;
    server.tell(&["SET", "foreign", "another-library", "PX", "600000"]);
    let lock = client.lock("foreign").wait(LEASE * 300);
    let waiting = tokio::spawn(async move { lock.acquire().await.map(drop) });
    let site = Site::of(&client);
    let state = site.until("it is shown", |state| keys(state) == ["foreign"]).await;
    let row = &state["rows"][0];
    assert!(row["holder"].is_null() && row["held"].is_null(), "{row}");
    assert_eq!((&row["calls"], &row["processes"]), (&1.into(), &1.into()), "{row}");
    let lock = site.get("/api/lock?key=foreign", &[]).await.json();
    assert_eq!(lock["store"]["layout"], "other_token", "{lock:#}");
    waiting.abort();
}

//! Requests of other sites, and revoking locks.

use std::time::Duration;

use lock_dashboard::Dashboard;
use lock_runtime::{LockClient, LostReason};
use lock_tests::RedisServer;
use tokio::time::timeout;

use crate::site::{ACTION, LEASE, OWN, Site, admin, request, revocable, revoke};

fn with_actions(client: &LockClient) -> Site {
    Site::new(Dashboard::new(admin(client)).allow_actions(true))
}

#[tokio::test]
async fn data_is_refused_to_other_sites() {
    let site = Site::of(&LockClient::memory());
    for path in ["/api/state", "/api/events", "/api/lock?key=k", "/api/locks?search=k"] {
        for from in ["cross-site", "same-site", "garbage"] {
            let answer = site.get(path, &[("sec-fetch-site", from)]).await;
            assert_eq!(answer.status, 403, "{path} {from}");
            assert!(answer.json()["problem"].as_str().expect("why").contains("another site"));
        }
    }
    for from in ["same-origin", "none"] {
        assert_eq!(site.get("/api/state", &[("sec-fetch-site", from)]).await.status, 200);
    }
    // A link to the page is no harm.
    assert_eq!(site.get("/", &[("sec-fetch-site", "cross-site")]).await.status, 200);
}

#[tokio::test]
async fn nothing_is_revoked_unless_it_is_allowed() {
    let client = revocable().await;
    let guard = client.lock("k").acquire().await.expect("free");
    let site = Site::of(&client);
    assert_eq!(site.state().await["actions"], false);
    let answer = revoke(&site, &[OWN, ACTION], r#"{"key":"k"}"#).await;
    assert_eq!(answer.status, 403);
    assert_eq!(
        answer.json()["problem"],
        "this dashboard is read-only: whoever runs it has not allowed actions"
    );
    assert!(guard.is_held());
}

#[tokio::test]
async fn only_the_page_itself_can_revoke() {
    let client = revocable().await;
    let guard = client.lock("k").acquire().await.expect("free");
    let site = with_actions(&client);
    let body = r#"{"key":"k"}"#;
    let requests: [&[(&str, &str)]; 7] = [
        &[],
        &[OWN],
        &[ACTION],
        &[("sec-fetch-site", "cross-site"), ACTION],
        &[("sec-fetch-site", "same-site"), ACTION],
        &[("sec-fetch-site", "none"), ACTION],
        // It could be a site whose name leads to the address of the page.
        &[("host", "evil.example"), ("origin", "http://evil.example"), ACTION],
    ];
    for headers in requests {
        let answer = revoke(&site, headers, body).await;
        assert_eq!(answer.status, 403, "{headers:?}");
        let answer = answer.json();
        let why = answer["problem"].as_str().expect("why");
        // The page may be that of a program whose options have other names.
        assert!(!why.is_empty() && !why.contains("allowed_hosts"), "{why}");
    }
    assert!(guard.is_held());
    let answer = revoke(&site, &[OWN, ACTION], body).await;
    assert_eq!((answer.status.as_u16(), &answer.json()["revoked"]), (200, &1.into()), "{answer:?}");
    let lost = timeout(Duration::from_secs(20), guard.lost()).await.expect("revoked");
    assert_eq!(lost, LostReason::Revoked);
}

/// Over http, a browser says only where the page is from.
#[tokio::test]
async fn the_page_can_revoke_over_http_if_its_hosts_are_known() {
    let client = revocable().await;
    let guard = client.lock("k").acquire().await.expect("free");
    let dashboard = Dashboard::new(admin(&client)).allow_actions(true);
    let site = Site::new(dashboard.allowed_hosts(["locks.example"]));
    let (host, body) = (("host", "locks.example:80"), r#"{"key":"k"}"#);
    let own = ("origin", "http://locks.example:80");
    for headers in [
        &[host, ACTION][..],
        &[host, own],
        &[host, ("origin", "null"), ACTION],
        &[host, ("origin", "http://evil.example"), ACTION],
        // A page over https names its site in another way.
        &[host, ("origin", "https://locks.example:80"), ACTION],
        &[host, own, ("origin", "http://evil.example"), ACTION],
        &[host, own, host, ACTION],
        &[host, own, ("sec-fetch-site", "cross-site"), ACTION],
        &[("host", "evil.example"), ("origin", "http://evil.example"), ACTION],
    ] {
        assert_eq!(revoke(&site, headers, body).await.status, 403, "{headers:?}");
    }
    assert!(guard.is_held());
    assert_eq!(revoke(&site, &[host, own, ACTION], body).await.status, 200);
}

/// The page comes from one replica, and the request gets to another one.
#[tokio::test]
async fn any_replica_can_revoke() {
    let client = revocable().await;
    let guard = client.lock("k").acquire().await.expect("free");
    let (one, two) = (with_actions(&client), with_actions(&client));
    let page = one.get("/", &[]).await;
    assert_eq!(page.text, two.get("/", &[]).await.text, "nothing in the page is of one replica");
    let answer = revoke(&two, &[OWN, ACTION], r#"{"key":"k"}"#).await;
    assert_eq!(answer.json()["revoked"], 1, "{answer:?}");
    drop(guard);
}

#[tokio::test]
async fn requests_for_other_hosts_are_refused() {
    let client = revocable().await;
    let guard = client.lock("k").acquire().await.expect("free");
    let dashboard = Dashboard::new(admin(&client)).allow_actions(true);
    let site = Site::new(dashboard.allowed_hosts(["localhost", "locks.example:8080"]));
    let paths = ["/", "/script.js", "/api/state", "/api/events", "/api/lock?key=k", "/api/x"];
    for host in ["evil.example", "localhost.evil.example", "locks.example", "localhost@evil", ""] {
        for path in paths {
            let answer = site.get(path, &[("host", host)]).await;
            assert_eq!(answer.status, 403, "{path} {host}");
            let why = "this host is not allowed here: whoever runs the dashboard has to allow it";
            assert_eq!(answer.json()["problem"], why);
        }
        let headers = [OWN, ACTION, ("host", host)];
        assert_eq!(revoke(&site, &headers, r#"{"key":"k"}"#).await.status, 403, "{host}");
    }
    assert!(guard.is_held());
    for host in ["localhost", "LOCALHOST:3000", "locks.example:8080"] {
        for path in ["/", "/script.js", "/api/state", "/api/lock?key=k"] {
            assert_eq!(site.get(path, &[("host", host)]).await.status, 200, "{path} {host}");
        }
    }
    let headers = [OWN, ACTION, ("host", "localhost")];
    assert_eq!(revoke(&site, &headers, r#"{"key":"k"}"#).await.status, 200);
}

#[tokio::test]
async fn a_lock_is_revoked_from_the_client_that_was_meant() {
    let server = RedisServer::start();
    let builder = LockClient::builder().url(server.url()).lease(LEASE).revocable(true);
    let client = builder.connect().await.expect("up");
    let guard = client.lock("k").acquire().await.expect("free");
    let site = with_actions(&client);
    let headers = [OWN, ACTION];
    let other = revoke(&site, &headers, r#"{"key":"k","client":"somebody"}"#).await.json();
    assert_eq!((&other["revoked"], guard.is_held()), (&0.into(), true));
    let state = site.until("held", |state| state["rows"][0]["client"].is_string()).await;
    let body = serde_json::json!({ "key": "k", "client": state["rows"][0]["client"] });
    let own = revoke(&site, &headers, &body.to_string()).await.json();
    assert_eq!(own["revoked"], 1, "{own:#}");
}

#[tokio::test]
async fn requests_that_make_no_sense_are_refused_with_a_reason() {
    let site = with_actions(&revocable().await);
    let headers = [OWN, ACTION];
    let long = format!("{{\"key\":\"{}\"}}", "x".repeat(100_000));
    for (body, status) in [
        ("", 400),
        ("garbage", 400),
        ("{}", 422),
        (r#"{"key":7}"#, 422),
        (r#"{"key":""}"#, 400),
        (&*long, 413),
    ] {
        let answer = revoke(&site, &headers, body).await;
        assert_eq!(answer.status, status, "{answer:?}");
        assert!(answer.json()["problem"].as_str().is_some_and(|why| !why.is_empty()));
    }
    let text = site.send(request("POST", "/api/revoke", &headers, r#"{"key":"k"}"#)).await;
    assert_eq!(text.status, 415);
    assert!(text.json()["problem"].is_string(), "{text:?}");
}

#[tokio::test]
async fn all_answers_of_the_api_are_json() {
    let site = with_actions(&revocable().await);
    let requests = [
        ("GET", "/api", 404),
        ("GET", "/api/", 404),
        ("GET", "/api/other", 404),
        ("DELETE", "/api/state", 405),
        ("POST", "/api/events", 405),
        ("GET", "/api/revoke", 405),
        ("GET", "/api/lock", 400),
        ("GET", "/api/locks", 400),
        ("GET", "/api/events?hidden=perhaps", 400),
        ("GET", "/api/lock?key=", 400),
    ];
    for (method, path, status) in requests {
        let answer = site.send(request(method, path, &[], "")).await;
        assert_eq!(answer.status, status, "{method} {path}");
        assert_eq!(answer.header("content-type"), "application/json", "{method} {path}");
        let answer = answer.json();
        assert_eq!(answer["v"], 1, "{method} {path}");
        assert!(!answer["problem"].as_str().expect("why").is_empty(), "{method} {path}");
    }
    let revoke = site.get("/api/revoke", &[]).await;
    assert_eq!(revoke.header("allow"), "POST");
}

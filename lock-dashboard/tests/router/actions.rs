//! Requests of other sites, and revoking locks.

use std::time::Duration;

use lock_dashboard::Dashboard;
use lock_runtime::{LockClient, LostReason};
use lock_tests::RedisServer;
use tokio::time::timeout;

use crate::site::{LEASE, PageAnswer, Site, admin, request};

async fn revocable() -> LockClient {
    let builder = LockClient::builder().url("memory:").lease(LEASE).revocable(true);
    builder.connect().await.expect("memory")
}

/// The token of the page.
async fn token(site: &Site) -> String {
    let page = site.get("/", &[]).await.text;
    let meta = page.split("name=\"lock-dashboard-token\" content=\"").nth(1).expect("a token");
    meta.split('"').next().expect("its end").to_owned()
}

async fn revoke(site: &Site, headers: &[(&str, &str)], body: &str) -> PageAnswer {
    let json = [("content-type", "application/json")];
    site.send(request("POST", "/api/revoke", &[&json[..], headers].concat(), body)).await
}

const OWN: (&str, &str) = ("sec-fetch-site", "same-origin");

#[tokio::test]
async fn data_is_refused_to_other_sites() {
    let site = Site::of(&LockClient::memory());
    for path in ["/api/state", "/api/events", "/api/locks/k", "/api/locks?search=k"] {
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
    assert!(!site.get("/", &[]).await.text.contains("lock-dashboard-token"));
    let forged = ("x-lock-dashboard-token", "");
    let answer = revoke(&site, &[OWN, forged], r#"{"key":"k"}"#).await;
    assert_eq!(answer.status, 403);
    assert!(answer.json()["problem"].as_str().expect("why").contains("read-only"), "{answer:?}");
    assert!(guard.is_held());
}

#[tokio::test]
async fn only_the_page_itself_can_revoke() {
    let client = revocable().await;
    let guard = client.lock("k").acquire().await.expect("free");
    let site = Site::new(Dashboard::new(admin(&client)).allow_actions(true));
    let token = token(&site).await;
    let wrong = token.chars().rev().collect::<String>();
    let longer = format!("{token}0");
    let with = |token| ("x-lock-dashboard-token", token);
    let body = r#"{"key":"k"}"#;
    let requests: [&[(&str, &str)]; 8] = [
        &[],
        &[OWN],
        &[with(&*token)],
        &[("sec-fetch-site", "cross-site"), with(&*token)],
        &[("sec-fetch-site", "same-site"), with(&*token)],
        &[("sec-fetch-site", "none"), with(&*token)],
        &[OWN, with(&*wrong)],
        &[OWN, with(&*longer)],
    ];
    for headers in requests {
        let answer = revoke(&site, headers, body).await;
        assert_eq!(answer.status, 403, "{headers:?}");
        assert!(!answer.text.contains(&token), "{headers:?}");
    }
    assert!(guard.is_held());
    assert_ne!(
        token,
        self::token(&Site::new(Dashboard::new(admin(&client)).allow_actions(true))).await
    );
    let answer = revoke(&site, &[OWN, with(&*token)], body).await;
    assert_eq!((answer.status.as_u16(), &answer.json()["revoked"]), (200, &1.into()), "{answer:?}");
    let lost = timeout(Duration::from_secs(20), guard.lost()).await.expect("revoked");
    assert_eq!(lost, LostReason::Revoked);
}

#[tokio::test]
async fn a_lock_is_revoked_from_the_client_that_was_meant() {
    let server = RedisServer::start();
    let builder = LockClient::builder().url(server.url()).lease(LEASE).revocable(true);
    let client = builder.connect().await.expect("up");
    let guard = client.lock("k").acquire().await.expect("free");
    let site = Site::new(Dashboard::new(admin(&client)).allow_actions(true));
    let token = token(&site).await;
    let headers = [OWN, ("x-lock-dashboard-token", &*token)];
    let other = revoke(&site, &headers, r#"{"key":"k","client":"somebody"}"#).await.json();
    assert_eq!((&other["revoked"], guard.is_held()), (&0.into(), true));
    let state = site.until("held", |state| state["rows"][0]["client"].is_string()).await;
    let body = serde_json::json!({ "key": "k", "client": state["rows"][0]["client"] });
    let own = revoke(&site, &headers, &body.to_string()).await.json();
    assert_eq!(own["revoked"], 1, "{own:#}");
}

#[tokio::test]
async fn requests_that_make_no_sense_are_refused_with_a_reason() {
    let site = Site::new(Dashboard::new(admin(&revocable().await)).allow_actions(true));
    let token = token(&site).await;
    let headers = [OWN, ("x-lock-dashboard-token", &*token)];
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
}

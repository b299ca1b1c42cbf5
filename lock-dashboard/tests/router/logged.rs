//! Requests to revoke a lock leave a line in the log, also if nothing is revoked.

use axum::{Extension, Router};
use lock_dashboard::{Dashboard, Operator};
use lock_runtime::LockClient;
use lock_tests::CapturedLog;

use crate::site::{ACTION, LEASE, OWN, REFRESH, Site, admin, request, revocable, revoke};

/// A site whose operator has this name, which only the log of one test contains.
fn site_of(client: &LockClient, operator: &str) -> Site {
    let dashboard = Dashboard::new(admin(client)).allow_actions(true).refresh(REFRESH);
    let dashboard = dashboard.allowed_hosts(["locks.example"]).router();
    let dashboard = dashboard.layer(Extension(Operator::new(operator)));
    Site(Router::new().nest("/admin/locks", dashboard))
}

/// The headers and the body of a request, the status of the answer, and words of the line.
type RefusedRequest<'a> = (&'a [(&'a str, &'a str)], &'a str, u16, &'a [&'a str]);

const HOST: (&str, &str) = ("host", "locks.example");

#[tokio::test]
async fn requests_to_revoke_are_logged_with_their_user() {
    let log = CapturedLog::here();
    let client = revocable().await;
    let guard = client.lock("logged:1").acquire().await.expect("free");
    let site = site_of(&client, "ada-lovelace");
    let answer = revoke(&site, &[HOST, OWN, ACTION], r#"{"key":"logged:1"}"#).await;
    assert_eq!(answer.status, 200, "{answer:?}");
    assert_eq!(log.lines(&["INFO", "ada-lovelace", "logged:1", "revoked=1"]).len(), 1);
    drop(guard);
}

#[tokio::test]
async fn each_refusal_is_logged_with_what_is_known_of_the_request() {
    let log = CapturedLog::here();
    let builder = LockClient::builder().url("memory:").namespace("shop").lease(LEASE);
    let site = site_of(&builder.connect().await.expect("memory"), "grace-hopper");
    let origin = ("origin", "https://locks.example");
    let evil = ("origin", "https://evil.example");
    let named = r#"{"key":"shop:job"}"#;
    let too_large = format!("{{\"key\":\"shop:{}\"}}", "x".repeat(100_000));
    let requests: [RefusedRequest<'_>; 11] = [
        (&[HOST, OWN, origin], named, 403, &["key=\"shop:job\"", "why=\"the header x-lock"]),
        (
            &[HOST, evil, ("sec-fetch-site", "cross-site"), ACTION],
            named,
            403,
            &["key=\"shop:job\"", "origin=\"https://evil.example\"", "why=\"another site"],
        ),
        (
            &[("host", "evil.example"), evil, ACTION],
            named,
            403,
            &["key=\"shop:job\"", "host=\"evil.example\"", "why=\"this host"],
        ),
        (&[HOST, OWN, ACTION, origin], r#"{"key":"job"}"#, 400, &["key=\"job\"", "the namespace"]),
        (&[HOST, OWN, ACTION, origin], r#"{"key":"shop:"}"#, 400, &["key=\"shop:\"", "why="]),
        (&[HOST, OWN, ACTION, origin], "garbage", 400, &["why=\"Failed to parse"]),
        (&[HOST, OWN, ACTION, origin], "{}", 422, &["missing field `key`"]),
        (
            &[HOST, OWN, ACTION, origin],
            r#"{"key":"shop:job","client":7}"#,
            422,
            &["key=\"shop:job\""],
        ),
        (&[HOST, OWN, ACTION, origin], &too_large, 413, &["why="]),
        // A long text is cut, and its control characters are escaped.
        (
            &[HOST, OWN, ACTION, origin],
            &format!("{{\"key\":\"\\n\\u202e{}\"}}", "x".repeat(1000)),
            400,
            &[&format!("key=\"\\n\\u{{202e}}{}…\"", "x".repeat(198))],
        ),
        (&[HOST, evil, ACTION], "{}", 403, &["origin=\"https://evil.example\"", "why="]),
    ];
    let lines = || log.lines(&["WARN", "grace-hopper", "has not revoked a lock"]);
    for (headers, body, status, words) in requests {
        let before = lines().len();
        let answer = revoke(&site, headers, body).await;
        assert_eq!(answer.status, status, "{headers:?}: {answer:?}");
        let lines = lines();
        assert_eq!(lines.len(), before + 1, "{headers:?}: {lines:#?}");
        let line = &lines[before];
        let has_origin =
            !headers.contains(&origin) || line.contains("origin=\"https://locks.example\"");
        assert!(has_origin && words.iter().all(|word| line.contains(word)), "{words:?}: {line}");
    }
    let before = lines().len();
    // Without a content type, and with other methods.
    let headers = [HOST, OWN, ACTION, origin];
    for (method, status) in [("POST", 415), ("GET", 405), ("PUT", 405), ("DELETE", 405)] {
        let answer = site.send(request(method, "/api/revoke", &headers, named)).await;
        assert_eq!(answer.status, status, "{method}");
    }
    let lines = lines();
    assert_eq!(lines.len(), before + 4, "{lines:#?}");
    assert!(lines[before..].iter().all(|line| line.contains("key=\"shop:job\"")), "{lines:#?}");
}

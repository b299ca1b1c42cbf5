//! A dashboard, and requests to it.

use std::time::Duration;

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::http::{HeaderMap, Request, StatusCode};
use lock_dashboard::Dashboard;
use lock_runtime::LockClient;
use lock_runtime::admin::LockAdmin;
use serde_json::Value;
use tokio::time::{Instant, sleep};
use tower::ServiceExt;

/// The lease of the tests.
pub(crate) const LEASE: Duration = Duration::from_secs(2);

/// How long an expected state may take on a busy machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(40);

/// The shortest interval between two rounds.
pub(crate) const REFRESH: Duration = Duration::from_millis(500);

/// A response.
#[derive(Debug)]
pub(crate) struct PageAnswer {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) text: String,
}

impl PageAnswer {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.text).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    pub(crate) fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", |value| value.to_str().expect("a text"))
    }
}

/// A service in which the dashboard is nested under `/admin/locks`.
#[derive(Clone)]
pub(crate) struct Site(pub(crate) Router);

impl Site {
    pub(crate) fn new(dashboard: Dashboard) -> Self {
        Self(Router::new().nest("/admin/locks", dashboard.refresh(REFRESH).router()))
    }

    pub(crate) fn of(client: &LockClient) -> Self {
        Self::new(Dashboard::new(admin(client)))
    }

    pub(crate) async fn send(&self, request: Request<Body>) -> PageAnswer {
        let response = self.0.clone().oneshot(request).await.expect("infallible");
        let (parts, body) = response.into_parts();
        let body = to_bytes(body, 10 * 1024 * 1024).await.expect("a body");
        let text = String::from_utf8(body.to_vec()).expect("a text");
        PageAnswer { status: parts.status, headers: parts.headers, text }
    }

    /// A request below the path of the dashboard.
    pub(crate) async fn get(&self, path: &str, headers: &[(&str, &str)]) -> PageAnswer {
        self.send(request("GET", path, headers, "")).await
    }

    /// The state, with its age and the history.
    pub(crate) async fn state(&self) -> Value {
        let answer = self.get("/api/state", &[]).await;
        assert_eq!(answer.status, 200, "{answer:?}");
        let mut whole = answer.json();
        let mut state = whole["state"].take();
        for field in ["age", "history"] {
            state[field] = whole[field].take();
        }
        state
    }

    /// Reads the state until it is as expected.
    pub(crate) async fn until(&self, what: &str, is_so: impl Fn(&Value) -> bool) -> Value {
        let begun = Instant::now();
        loop {
            let state = self.state().await;
            if is_so(&state) {
                return state;
            }
            assert!(begun.elapsed() < PATIENCE, "{what}: {state:#}");
            sleep(REFRESH / 5).await;
        }
    }
}

pub(crate) fn admin(client: &LockClient) -> LockAdmin {
    LockAdmin::new(client)
}

pub(crate) fn request(
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: &str,
) -> Request<Body> {
    // Nested routers have no slash at the end of their own path.
    let path = if path == "/" { "" } else { path };
    let mut request = Request::builder().method(method).uri(format!("/admin/locks{path}"));
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    request.body(Body::from(body.to_owned())).expect("a request")
}

/// A browser says so of requests of the page itself.
pub(crate) const OWN: (&str, &str) = ("sec-fetch-site", "same-origin");

/// The header that the page sends.
pub(crate) const ACTION: (&str, &str) = ("x-lock-dashboard", "1");

/// A request to revoke a lock.
pub(crate) async fn revoke(site: &Site, headers: &[(&str, &str)], body: &str) -> PageAnswer {
    let json = [("content-type", "application/json")];
    site.send(request("POST", "/api/revoke", &[&json[..], headers].concat(), body)).await
}

/// A client whose locks can be revoked.
pub(crate) async fn revocable() -> LockClient {
    let builder = LockClient::builder().url("memory:").lease(LEASE).revocable(true);
    builder.connect().await.expect("memory")
}

/// The keys of the rows.
pub(crate) fn keys(state: &Value) -> Vec<&str> {
    let rows = state["rows"].as_array().expect("rows");
    rows.iter().map(|row| row["key"].as_str().expect("a key")).collect()
}

pub(crate) async fn client(url: &str) -> LockClient {
    LockClient::builder().url(url).lease(LEASE).wait(LEASE * 30).connect().await.expect("up")
}

/// A text as a part of an address.
pub(crate) fn encoded(text: &str) -> String {
    let plain = |byte: &u8| byte.is_ascii_alphanumeric();
    let encode = |byte: u8| match byte {
        byte if plain(&byte) => char::from(byte).to_string(),
        byte => format!("%{byte:02X}"),
    };
    text.bytes().map(encode).collect()
}

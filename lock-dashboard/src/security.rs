//! Who may read and change what: headers of responses, and checks of requests.
//!
//! The service in which the page is nested knows its users. The checks here keep out other sites that use the
//! browser of such a user.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::uri::Authority;
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, Uri, header};
use axum::middleware::Next;
use axum::response::Response;

use crate::answers::problem;

/// The header that a request has to have that changes anything. A browser sends it to another site only if that site
/// allows it.
const ACTION_HEADER: &str = "x-lock-dashboard";

/// Why requests for other hosts are refused.
pub(crate) const OTHER_HOST: &str =
    "this host is not allowed here: whoever runs the dashboard has to allow it";

/// The header in which a browser says which site has made a request.
const FETCH_SITE: &str = "sec-fetch-site";

const HEADERS: [(HeaderName, &str); 7] = [
    (
        header::CONTENT_SECURITY_POLICY,
        "default-src 'self'; frame-ancestors 'none'; base-uri 'self'; form-action 'none'; object-src 'none'",
    ),
    (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (header::X_FRAME_OPTIONS, "DENY"),
    (header::REFERRER_POLICY, "no-referrer"),
    (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
    (HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
    (HeaderName::from_static("permissions-policy"), "camera=(), geolocation=(), microphone=()"),
];

/// Adds the headers of every response.
pub(crate) async fn add_headers(mut response: Response) -> Response {
    let headers = response.headers_mut();
    for (name, value) in HEADERS {
        headers.insert(name, HeaderValue::from_static(value));
    }
    headers.entry(header::CACHE_CONTROL).or_insert(HeaderValue::from_static("no-store"));
    response
}

/// The hosts under which the page may be requested; all of them if there are none.
#[derive(Debug, Clone, Default)]
pub(crate) struct AllowedHosts(Option<Arc<[String]>>);

impl AllowedHosts {
    pub(crate) fn new(hosts: impl Iterator<Item = String>) -> Self {
        Self(Some(hosts.map(|host| host.to_ascii_lowercase()).collect()))
    }

    fn is_set(&self) -> bool {
        self.0.is_some()
    }

    /// Whether a host, with or without a port, is allowed. An allowed host without a port is allowed with any port.
    fn allow(&self, host: &str) -> bool {
        let Some(allowed) = &self.0 else { return true };
        let Ok(authority) = host.to_ascii_lowercase().parse::<Authority>() else { return false };
        let has_user = authority.as_str().contains('@');
        let is_allowed =
            |allowed: &String| allowed == authority.as_str() || allowed == authority.host();
        !has_user && allowed.iter().any(is_allowed)
    }

    /// Whether all hosts are allowed that a request names, and there is one.
    pub(crate) fn allow_request(&self, uri: &Uri, headers: &HeaderMap) -> bool {
        if !self.is_set() {
            return true;
        }
        let authority = uri.authority().map(|authority| Some(authority.as_str()));
        let sent = headers.get_all(header::HOST).iter().map(|host| host.to_str().ok());
        let mut hosts = authority.into_iter().chain(sent).peekable();
        hosts.peek().is_some() && hosts.all(|host| host.is_some_and(|host| self.allow(host)))
    }
}

/// Refuses requests for other hosts: a site whose name leads to this address would pass for the page itself.
pub(crate) async fn refuse_other_hosts(
    State(hosts): State<AllowedHosts>,
    request: Request,
    next: Next,
) -> Response {
    if hosts.allow_request(request.uri(), request.headers()) {
        next.run(request).await
    } else {
        refused(OTHER_HOST)
    }
}

/// Refuses requests for data that another site has made.
pub(crate) async fn refuse_other_sites(request: Request, next: Next) -> Response {
    match request.headers().get(FETCH_SITE).map(HeaderValue::as_bytes) {
        // Not a browser, or a user who has entered the address.
        None | Some(b"same-origin" | b"none") => next.run(request).await,
        Some(_) => refused("another site has made this request"),
    }
}

/// Who may change something.
#[derive(Debug, Clone)]
pub(crate) struct ActionRules {
    pub(crate) are_allowed: bool,
    pub(crate) hosts: AllowedHosts,
}

impl ActionRules {
    /// Why a request may not change anything; `None` if it may.
    ///
    /// Nothing is remembered for it, so the page may come from another replica than the one that gets the request.
    pub(crate) fn refusal(&self, headers: &HeaderMap) -> Option<&'static str> {
        if !self.are_allowed {
            return Some("this dashboard is read-only: whoever runs it has not allowed actions");
        }
        if !headers.contains_key(ACTION_HEADER) {
            return Some("the header x-lock-dashboard is missing, which the page sends");
        }
        match headers.get(FETCH_SITE).map(HeaderValue::as_bytes) {
            Some(b"same-origin") => None,
            Some(_) => Some("another site has made this request"),
            // The origin of a site whose name leads to this address is its own host as well.
            None if self.hosts.is_set() && has_own_origin(headers) => None,
            None => Some(
                "the browser does not say that the page itself has made this request: it does so over https and on \
                 localhost, and elsewhere whoever runs the dashboard has to name the hosts that it allows",
            ),
        }
    }
}

/// Whether the only origin of a request is the host that it was sent to, over http: over https, a browser names its site.
fn has_own_origin(headers: &HeaderMap) -> bool {
    let only = |name| {
        let mut values = headers.get_all(name).iter();
        values.next().filter(|_| values.next().is_none())?.to_str().ok()
    };
    let origin = only(header::ORIGIN).and_then(|origin| origin.strip_prefix("http://"));
    origin.zip(only(header::HOST)).is_some_and(|(origin, host)| host.eq_ignore_ascii_case(origin))
}

fn refused(text: &str) -> Response {
    problem(StatusCode::FORBIDDEN, text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn allowed() -> AllowedHosts {
        let hosts = ["locks.example", "LOCALHOST:3000", "[::1]"];
        AllowedHosts::new(hosts.into_iter().map(ToOwned::to_owned))
    }

    #[test]
    fn a_host_is_allowed_with_any_port_or_with_its_own() {
        let allowed = allowed();
        for host in ["locks.example", "Locks.Example:8080", "localhost:3000", "[::1]:80"] {
            assert!(allowed.allow(host), "{host}");
        }
        for host in [
            "",
            "localhost",
            "localhost:80",
            "evil.example",
            "locks.example.evil.example",
            "locks.example@evil.example",
            "evil@locks.example",
            "a b",
        ] {
            assert!(!allowed.allow(host), "{host}");
        }
        assert!(AllowedHosts::default().allow("anything"));
    }

    #[test]
    fn all_hosts_of_a_request_have_to_be_allowed() {
        let host = |host: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(header::HOST, host.parse().expect("a value"));
            headers
        };
        let (own, other) = (host("locks.example"), host("evil.example"));
        let (path, own_uri) = (Uri::from_static("/x"), Uri::from_static("http://locks.example/x"));
        for (uri, headers, expected) in [
            (&path, &own, true),
            (&own_uri, &own, true),
            (&own_uri, &HeaderMap::new(), true),
            (&path, &other, false),
            (&own_uri, &other, false),
            (&path, &HeaderMap::new(), false),
            (&Uri::from_static("http://evil.example/x"), &own, false),
        ] {
            assert_eq!(allowed().allow_request(uri, headers), expected, "{uri} {headers:?}");
        }
        assert!(AllowedHosts::default().allow_request(&path, &HeaderMap::new()));
    }
}

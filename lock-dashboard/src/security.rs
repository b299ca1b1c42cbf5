//! Who may read and change what, as far as a browser tells: headers of responses, and checks of requests.
//!
//! The service in which the page is nested knows its users. The checks here keep out other sites that use the
//! browser of such a user.

use axum::extract::Request;
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use crate::api::problem;

/// The header with the token of the page.
const TOKEN_HEADER: &str = "x-lock-dashboard-token";

/// The header in which a browser tells which site has made a request.
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

/// A secret that only the page knows, so that no other site can send its requests.
#[derive(Clone)]
pub(crate) struct ActionToken(String);

impl ActionToken {
    /// `None` if the system has no random numbers.
    pub(crate) fn new() -> Option<Self> {
        let mut bytes = [0_u8; 16];
        getrandom::fill(&mut bytes).ok()?;
        Some(Self(format!("{:032x}", u128::from_be_bytes(bytes))))
    }

    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }

    /// Compares in a time that does not depend on the text.
    fn is(&self, text: &[u8]) -> bool {
        let differences = self.0.bytes().zip(text).map(|(own, other)| own ^ other);
        let differences = differences.fold(0, |all, one| all | one);
        text.len() == self.0.len() && differences == 0
    }
}

/// Adds the headers of every response.
pub(crate) async fn add_headers(mut response: Response) -> Response {
    let headers = response.headers_mut();
    for (name, value) in HEADERS {
        headers.insert(name, HeaderValue::from_static(value));
    }
    headers.entry(header::CACHE_CONTROL).or_insert(HeaderValue::from_static("no-store"));
    response
}

/// Refuses requests for data that another site has made.
pub(crate) async fn refuse_other_sites(request: Request, next: Next) -> Response {
    match request.headers().get(FETCH_SITE).map(HeaderValue::as_bytes) {
        // Not a browser, or a user who has entered the address.
        None | Some(b"same-origin" | b"none") => next.run(request).await,
        Some(_) => refused("another site has made this request"),
    }
}

/// Why a request may not change anything; `None` if it may.
pub(crate) fn refusal(headers: &HeaderMap, token: Option<&ActionToken>) -> Option<Response> {
    let Some(token) = token else {
        return Some(refused(
            "this dashboard is read-only: it was built without allow_actions(true)",
        ));
    };
    let site = headers.get(FETCH_SITE).map(HeaderValue::as_bytes);
    if site != Some(b"same-origin") {
        return Some(refused(
            "the browser does not say that the page itself has made this request (browsers do so over https and on localhost)",
        ));
    }
    let sent = headers.get(TOKEN_HEADER).map(HeaderValue::as_bytes);
    if !sent.is_some_and(|sent| token.is(sent)) {
        return Some(refused("the page is out of date: reload it"));
    }
    None
}

fn refused(text: &str) -> Response {
    (StatusCode::FORBIDDEN, problem(text)).into_response()
}

//! Revoking locks: the requests to do so, and the line in the log that each of them leaves.

use std::sync::Arc;

use axum::body::{Body, Bytes};
use axum::extract::{FromRequest, Request, State};
use axum::http::request::Parts;
use axum::http::{HeaderName, HeaderValue, Method, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::any;
use axum::{Json, Router};
use lock_runtime::admin::{LockAdmin, Revocation};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::answers::{WRONG_METHOD, as_json, outside, problem, status_of};
use crate::digest::json;
use crate::one_lock::without_namespace;
use crate::operator::Operator;
use crate::security::{ActionRules, OTHER_HOST};
use crate::view::VERSION;

/// The most characters of a text that the log repeats from a refused request.
const LONGEST_TEXT: usize = 200;

/// What revokes locks.
struct Revoker {
    admin: LockAdmin,
    rules: ActionRules,
}

/// The route `/revoke`. It checks hosts and sites itself, so that it can log each refusal.
pub(crate) fn route<S>(admin: LockAdmin, rules: ActionRules) -> Router<S>
where
    S: Clone + Send + Sync + 'static,
{
    Router::new().route("/revoke", any(revoke)).with_state(Arc::new(Revoker { admin, rules }))
}

#[derive(Deserialize)]
struct RevokeRequest {
    /// With the namespace.
    key: String,
    /// Only the hold of this client.
    client: Option<String>,
}

/// What a body names that may otherwise make no sense, for the log.
#[derive(Default, Deserialize)]
struct NamedLock {
    key: Option<Value>,
    client: Option<Value>,
}

impl NamedLock {
    fn of(body: &Bytes) -> Self {
        serde_json::from_slice(body).unwrap_or_default()
    }
}

/// Why a lock was not revoked.
struct RevocationRefusal {
    status: StatusCode,
    why: String,
}

impl RevocationRefusal {
    fn forbidden(why: &str) -> Self {
        Self { status: StatusCode::FORBIDDEN, why: why.to_owned() }
    }
}

/// Asks the holders of a lock to give it up.
async fn revoke(State(revoker): State<Arc<Revoker>>, request: Request) -> Response {
    let (head, body) = request.into_parts();
    let request = Request::from_parts(head.clone(), body);
    let body = Bytes::from_request(request, &()).await;
    let named = body.as_ref().map_or_else(|_| NamedLock::default(), NamedLock::of);
    let body =
        body.map_err(|error| RevocationRefusal { status: error.status(), why: error.body_text() });
    let revocation = match body {
        Ok(body) => revoker.revoke(&head, body).await,
        Err(refusal) => Err(revoker.check(&head).err().unwrap_or(refusal)),
    };
    match revocation {
        Ok(answer) => answer,
        Err(refusal) => {
            refusal.log(&head, &named);
            refusal.into_response()
        }
    }
}

impl Revoker {
    async fn revoke(&self, head: &Parts, body: Bytes) -> Result<Response, RevocationRefusal> {
        self.check(head)?;
        let request = Request::from_parts(head.clone(), Body::from(body));
        let request = Json::<RevokeRequest>::from_request(request, &()).await;
        let Json(RevokeRequest { key, client }) = request.map_err(|error| RevocationRefusal {
            status: error.status(),
            why: error.body_text(),
        })?;
        let namespace = self.admin.namespace();
        let short = without_namespace(namespace, &key).ok_or_else(|| RevocationRefusal {
            status: StatusCode::BAD_REQUEST,
            why: outside(namespace),
        })?;
        let revocation = match &client {
            Some(client) => self.admin.revoke_from(short, client).await,
            None => self.admin.revoke(short).await,
        };
        let Revocation { revoked, refused, unanswered, .. } = revocation.map_err(|error| {
            RevocationRefusal { status: status_of(&error), why: error.to_string() }
        })?;
        tracing::info!(
            operator = operator_of(head),
            key,
            client,
            revoked,
            refused,
            unanswered,
            "the dashboard has asked holders to give up a lock"
        );
        Ok(as_json(json(&RevokeAnswer { v: VERSION, revoked, refused, unanswered })))
    }

    /// Refuses requests that the page itself would not send.
    fn check(&self, head: &Parts) -> Result<(), RevocationRefusal> {
        if !self.rules.hosts.allow_request(&head.uri, &head.headers) {
            return Err(RevocationRefusal::forbidden(OTHER_HOST));
        }
        if head.method != Method::POST {
            let status = StatusCode::METHOD_NOT_ALLOWED;
            return Err(RevocationRefusal { status, why: WRONG_METHOD.to_owned() });
        }
        self.rules
            .refusal(&head.headers)
            .map_or(Ok(()), |why| Err(RevocationRefusal::forbidden(why)))
    }
}

#[derive(Serialize)]
struct RevokeAnswer {
    v: u32,
    revoked: u64,
    refused: u64,
    unanswered: Option<u64>,
}

impl RevocationRefusal {
    /// The subscriber escapes the texts.
    fn log(&self, head: &Parts, named: &NamedLock) {
        let header = |name: HeaderName| {
            let value = head.headers.get(name)?;
            Some(start(&String::from_utf8_lossy(value.as_bytes())))
        };
        let text = |value: &Value| value.as_str().map(start);
        tracing::warn!(
            operator = operator_of(head),
            key = named.key.as_ref().and_then(text),
            client = named.client.as_ref().and_then(text),
            origin = header(header::ORIGIN),
            host = header(header::HOST),
            why = start(&self.why),
            "the dashboard has not revoked a lock"
        );
    }
}

impl IntoResponse for RevocationRefusal {
    fn into_response(self) -> Response {
        let mut response = problem(self.status, &self.why);
        if self.status == StatusCode::METHOD_NOT_ALLOWED {
            response.headers_mut().insert(header::ALLOW, HeaderValue::from_static("POST"));
        }
        response
    }
}

fn operator_of(head: &Parts) -> Option<&str> {
    head.extensions.get::<Operator>().map(Operator::as_str)
}

/// The start of a long text.
fn start(text: &str) -> String {
    match text.char_indices().nth(LONGEST_TEXT) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

//! Answers that several routes have in common.

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use lock_runtime::LockError;
use serde::Serialize;

use crate::digest::json;
use crate::view::VERSION;

/// An error as JSON.
pub(crate) fn problem(status: StatusCode, text: &str) -> Response {
    #[derive(Serialize)]
    struct SentError<'a> {
        v: u32,
        problem: &'a str,
    }
    (status, as_json(json(&SentError { v: VERSION, problem: text }))).into_response()
}

pub(crate) fn as_json(body: String) -> Response {
    let content_type = HeaderValue::from_static("application/json");
    ([(header::CONTENT_TYPE, content_type)], body).into_response()
}

/// For addresses that the API does not have.
pub(crate) fn not_found() -> Response {
    problem(StatusCode::NOT_FOUND, "the dashboard has no such address")
}

pub(crate) fn wrong_method() -> Response {
    problem(StatusCode::METHOD_NOT_ALLOWED, WRONG_METHOD)
}

pub(crate) const WRONG_METHOD: &str = "this address is not for requests with this method";

/// The status of an answer that tells of this error.
pub(crate) fn status_of(error: &LockError) -> StatusCode {
    match error {
        LockError::InvalidKey { .. } => StatusCode::BAD_REQUEST,
        _ => StatusCode::SERVICE_UNAVAILABLE,
    }
}

/// Why a key is refused that is not in the namespace.
pub(crate) fn outside(namespace: &str) -> String {
    format!("the key does not begin with the namespace `{namespace}:`")
}

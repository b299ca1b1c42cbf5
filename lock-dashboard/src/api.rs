//! The routes.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::rejection::JsonRejection;
use axum::extract::{DefaultBodyLimit, OriginalUri, Path, Query, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router, middleware};
use futures_util::Stream;
use futures_util::stream::unfold;
use lock_runtime::LockError;
use lock_runtime::admin::LockAdmin;
use serde::{Deserialize, Serialize};

use crate::assets::Asset;
use crate::digest::json;
use crate::hub::{Hub, Pace, Viewer};
use crate::locks::LockRow;
use crate::one_lock::{OneLock, without_namespace};
use crate::security::{self, ActionToken};
use crate::view::VERSION;

/// The longest body of a request. A key has at most 4 KiB, and may be escaped.
const LONGEST_BODY: usize = 64 * 1024;

/// A browser connects again after this time.
const RECONNECT: Duration = Duration::from_secs(1);

struct DashboardState {
    hub: Arc<Hub>,
    /// `None` for a page that changes nothing.
    token: Option<ActionToken>,
}

pub(crate) fn routes(admin: LockAdmin, allow_actions: bool, refresh: Duration) -> Router {
    let token = allow_actions.then(ActionToken::new).flatten();
    let site = Arc::new(DashboardState { hub: Hub::new(admin, refresh, token.is_some()), token });
    let data = Router::new()
        .route("/api/state", get(state))
        .route("/api/events", get(events))
        .route("/api/locks", get(search))
        .route("/api/locks/{key}", get(one_lock))
        .route("/api/revoke", post(revoke))
        .route_layer(middleware::from_fn(security::refuse_other_sites));
    let files = Asset::files().fold(Router::new(), |files, (name, file)| {
        let send = async move |request: HeaderMap| file.response(&request);
        files.route(&format!("/{name}"), get(send))
    });
    Router::new()
        .route("/", get(page))
        .merge(files)
        .merge(data)
        .layer(DefaultBodyLimit::max(LONGEST_BODY))
        .layer(middleware::map_response(security::add_headers))
        .with_state(site)
}

type WithState = State<Arc<DashboardState>>;

/// An error as JSON.
pub(crate) fn problem(text: &str) -> Response {
    #[derive(Serialize)]
    struct SentError<'a> {
        v: u32,
        problem: &'a str,
    }
    as_json(json(&SentError { v: VERSION, problem: text }))
}

fn as_json(body: String) -> Response {
    let content_type = HeaderValue::from_static("application/json");
    ([(header::CONTENT_TYPE, content_type)], body).into_response()
}

fn failed(error: &LockError) -> Response {
    let status = match error {
        LockError::InvalidKey { .. } => StatusCode::BAD_REQUEST,
        _ => StatusCode::SERVICE_UNAVAILABLE,
    };
    (status, problem(&error.to_string())).into_response()
}

async fn page(
    State(site): WithState,
    OriginalUri(uri): OriginalUri,
    request: HeaderMap,
) -> Response {
    Asset::page(uri.path(), site.token.as_ref()).response(&request)
}

async fn state(State(site): WithState) -> Response {
    as_json(site.hub.viewer(Pace::Live).next().await.complete())
}

#[derive(Deserialize)]
struct EventsQuery {
    /// The page is hidden.
    #[serde(default)]
    hidden: bool,
}

async fn events(
    State(site): WithState,
    Query(query): Query<EventsQuery>,
) -> Sse<impl Stream<Item = Result<Event, Infallible>>> {
    let pace = if query.hidden { Pace::Hidden } else { Pace::Live };
    let viewer = site.hub.viewer(pace);
    Sse::new(unfold(Streaming { viewer, state: None, is_first: true }, Streaming::next))
        .keep_alive(KeepAlive::new())
}

/// The events for one viewer: the history, and then a state for each round.
struct Streaming {
    viewer: Viewer,
    /// The state that follows the history.
    state: Option<String>,
    is_first: bool,
}

impl Streaming {
    async fn next(mut self) -> Option<(Result<Event, Infallible>, Self)> {
        if let Some(state) = self.state.take() {
            return Some((Ok(Event::default().event("state").data(state)), self));
        }
        let view = self.viewer.next().await;
        let event = if std::mem::take(&mut self.is_first) {
            self.state = Some(view.state.clone());
            Event::default().event("history").retry(RECONNECT).data(view.history.clone())
        } else {
            Event::default().event("state").data(view.state.clone())
        };
        Some((Ok(event), self))
    }
}

#[derive(Deserialize)]
struct SearchQuery {
    search: Option<String>,
    /// Also for keys such as `..`, which a browser cannot send in a path.
    key: Option<String>,
}

/// The locks whose key, template, function or holder contains a text, among all locks of the last round.
async fn search(State(site): WithState, Query(query): Query<SearchQuery>) -> Response {
    #[derive(Serialize)]
    struct Found<'a> {
        v: u32,
        rows: Vec<&'a LockRow>,
        rest: usize,
    }
    if let Some(key) = query.key {
        return look_at(&site, &key).await;
    }
    let text = query.search.unwrap_or_default();
    let view = site.hub.viewer(Pace::Live).next().await;
    let searching = tokio::task::spawn_blocking(move || {
        let (rows, count) = view.locks.search(&text);
        let rest = count - rows.len();
        json(&Found { v: VERSION, rows, rest })
    });
    match searching.await {
        Ok(found) => as_json(found),
        Err(_) => StatusCode::SERVICE_UNAVAILABLE.into_response(),
    }
}

async fn one_lock(State(site): WithState, Path(key): Path<String>) -> Response {
    look_at(&site, &key).await
}

async fn look_at(site: &DashboardState, key: &str) -> Response {
    let view = site.hub.viewer(Pace::Live).next().await;
    match OneLock::read(site.hub.admin(), key, &view.locks).await {
        Ok(lock) => as_json(json(&lock)),
        Err(error) => failed(&error),
    }
}

#[derive(Deserialize)]
struct RevokeRequest {
    /// With the namespace.
    key: String,
    /// Only the hold of this client.
    client: Option<String>,
}

/// Asks the holders of a lock to give it up.
async fn revoke(
    State(site): WithState,
    headers: HeaderMap,
    request: Result<Json<RevokeRequest>, JsonRejection>,
) -> Response {
    #[derive(Serialize)]
    struct RevokeAnswer {
        v: u32,
        revoked: usize,
        refused: usize,
        unanswered: Option<usize>,
    }
    if let Some(refusal) = security::refusal(&headers, site.token.as_ref()) {
        return refusal;
    }
    let RevokeRequest { key, client } = match request {
        Ok(Json(request)) => request,
        Err(rejection) => {
            return (rejection.status(), problem(&rejection.body_text())).into_response();
        }
    };
    let (admin, short) = (site.hub.admin(), without_namespace(site.hub.admin(), &key));
    let revocation = match &client {
        Some(client) => admin.revoke_from(short, client).await,
        None => admin.revoke(short).await,
    };
    match revocation {
        Ok(it) => {
            tracing::info!(key, client, revoked = it.revoked, "the dashboard has revoked a lock");
            let (v, revoked, refused) = (VERSION, it.revoked, it.refused);
            as_json(json(&RevokeAnswer { v, revoked, refused, unanswered: it.unanswered }))
        }
        Err(error) => failed(&error),
    }
}

//! The routes.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::rejection::{JsonRejection, QueryRejection};
use axum::extract::{DefaultBodyLimit, OriginalUri, Query, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{any, get, post};
use axum::{Extension, Json, Router, middleware};
use lock_runtime::LockError;
use serde::{Deserialize, Serialize};
use tokio::sync::Semaphore;
use tokio::time::timeout;

use crate::Dashboard;
use crate::assets::Asset;
use crate::digest::json;
use crate::hub::{Hub, Pace};
use crate::locks::LockRow;
use crate::one_lock::{OneLock, StoreReader, without_namespace};
use crate::operator::Operator;
use crate::security::{self, ActionRules, refused};
use crate::streams::{EventStream, ShutdownSignal};
use crate::view::{VERSION, View};

/// The longest body of a request. A key has at most 4 KiB, and may be escaped.
const LONGEST_BODY: usize = 64 * 1024;

/// How long a request waits for the answers of the processes or of the store.
const PATIENCE: Duration = Duration::from_secs(30);

/// The searches that run at the same time. Others wait.
const SEARCHES: usize = 2;

struct DashboardState {
    hub: Arc<Hub>,
    actions: ActionRules,
    shutdown: ShutdownSignal,
    searches: Arc<Semaphore>,
    reader: StoreReader,
}

pub(crate) fn routes(dashboard: Dashboard) -> Router {
    let Dashboard { admin, allow_actions, refresh, allowed_hosts, shutdown } = dashboard;
    let site = Arc::new(DashboardState {
        hub: Hub::new(admin, refresh, allow_actions),
        actions: ActionRules { are_allowed: allow_actions, hosts: allowed_hosts.clone() },
        shutdown,
        searches: Arc::new(Semaphore::new(SEARCHES)),
        reader: StoreReader::default(),
    });
    let data = Router::new()
        .route("/state", get(state))
        .route("/events", get(events))
        .route("/locks", get(search))
        .route("/lock", get(one_lock))
        .method_not_allowed_fallback(async || not_here(StatusCode::METHOD_NOT_ALLOWED))
        // All other addresses, as JSON.
        .route("/{*other}", any(async || not_here(StatusCode::NOT_FOUND)))
        .layer(middleware::from_fn(security::refuse_other_sites));
    // It has rules of its own, and logs each refusal.
    let actions = Router::new()
        .route("/revoke", post(revoke))
        .method_not_allowed_fallback(async || not_here(StatusCode::METHOD_NOT_ALLOWED));
    let files = Asset::files().fold(Router::new(), |files, (name, file)| {
        let send = async move |request: HeaderMap| file.response(&request);
        files.route(&format!("/{name}"), get(send))
    });
    Router::new()
        .route("/", get(page))
        .merge(files)
        .nest("/api", data.merge(actions))
        .layer(DefaultBodyLimit::max(LONGEST_BODY))
        .layer(middleware::from_fn_with_state(allowed_hosts, security::refuse_other_hosts))
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

fn not_here(status: StatusCode) -> Response {
    (status, problem("the dashboard has no such address, or not for this method")).into_response()
}

fn bad_query(rejection: &QueryRejection) -> Response {
    (rejection.status(), problem(&rejection.body_text())).into_response()
}

fn late() -> Response {
    let text = format!("no answer within {PATIENCE:?}");
    (StatusCode::SERVICE_UNAVAILABLE, problem(&text)).into_response()
}

impl DashboardState {
    /// The last view, or the next one if nobody has watched.
    async fn view(&self) -> Result<Arc<View>, Response> {
        let mut viewer = self.hub.viewer(Pace::Live);
        timeout(PATIENCE, viewer.next()).await.map_err(|_| late())
    }
}

async fn page(OriginalUri(uri): OriginalUri, request: HeaderMap) -> Response {
    Asset::page(uri.path()).response(&request)
}

async fn state(State(site): WithState) -> Result<Response, Response> {
    let view = site.view().await?;
    // The two parts are JSON already, and may be large.
    let [state, history] = [&view.state, &view.history].map(|part| String::from_utf8_lossy(part));
    let age = view.age();
    Ok(as_json(format!(r#"{{"v":{VERSION},"age":{age},"state":{state},"history":{history}}}"#)))
}

#[derive(Deserialize)]
struct EventsQuery {
    /// The page is hidden.
    #[serde(default)]
    hidden: bool,
}

async fn events(
    State(site): WithState,
    query: Result<Query<EventsQuery>, QueryRejection>,
) -> Result<Response, Response> {
    let Query(query) = query.map_err(|rejection| bad_query(&rejection))?;
    let pace = if query.hidden { Pace::Hidden } else { Pace::Live };
    Ok(EventStream::new(site.hub.viewer(pace), site.shutdown.clone()).response())
}

#[derive(Deserialize)]
struct SearchQuery {
    search: String,
}

/// The locks whose key, template, function or holder contains a text, among all locks of the last round.
async fn search(
    State(site): WithState,
    query: Result<Query<SearchQuery>, QueryRejection>,
) -> Result<Response, Response> {
    #[derive(Serialize)]
    struct Found<'a> {
        v: u32,
        age: u64,
        rows: Vec<&'a LockRow>,
        rest: usize,
    }
    let Query(SearchQuery { search }) = query.map_err(|rejection| bad_query(&rejection))?;
    let permit = timeout(PATIENCE, Arc::clone(&site.searches).acquire_owned()).await;
    let permit = permit.map_err(|_| late())?;
    let view = site.view().await?;
    let searching = tokio::task::spawn_blocking(move || {
        // Also if nobody waits for the result any more.
        let _permit = permit;
        let (rows, count) = view.locks.search(&search);
        let rest = count - rows.len();
        json(&Found { v: VERSION, age: view.age(), rows, rest })
    });
    match searching.await {
        Ok(found) => Ok(as_json(found)),
        Err(_) => {
            Err((StatusCode::INTERNAL_SERVER_ERROR, problem("the search failed")).into_response())
        }
    }
}

#[derive(Deserialize)]
struct LockQuery {
    /// With the namespace.
    key: String,
}

async fn one_lock(
    State(site): WithState,
    query: Result<Query<LockQuery>, QueryRejection>,
) -> Result<Response, Response> {
    let Query(LockQuery { key }) = query.map_err(|rejection| bad_query(&rejection))?;
    let short = without_namespace(site.hub.admin().namespace(), &key);
    let short = short.ok_or_else(|| foreign_key(&site))?;
    let view = site.view().await?;
    match timeout(PATIENCE, site.reader.read(site.hub.admin(), short)).await {
        Ok(Ok(read)) => Ok(as_json(json(&OneLock::new(&key, read, &view, &site.hub)))),
        Ok(Err(error)) => Err(failed(&error)),
        Err(_) => Err(late()),
    }
}

/// For a key that is not in the namespace.
fn foreign_key(site: &DashboardState) -> Response {
    let namespace = site.hub.admin().namespace();
    let text = format!("the key does not begin with the namespace `{namespace}:`");
    (StatusCode::BAD_REQUEST, problem(&text)).into_response()
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
    operator: Option<Extension<Operator>>,
    headers: HeaderMap,
    request: Result<Json<RevokeRequest>, JsonRejection>,
) -> Result<Response, Response> {
    #[derive(Serialize)]
    struct RevokeAnswer {
        v: u32,
        revoked: u64,
        refused: u64,
        unanswered: Option<u64>,
    }
    let operator = operator.as_ref().map(|Extension(operator)| operator.as_str());
    if let Some(why) = site.actions.refusal(&headers) {
        tracing::warn!(operator, why, "the dashboard has refused to revoke a lock");
        return Err(refused(why));
    }
    let Json(RevokeRequest { key, client }) = request.map_err(|rejection| {
        (rejection.status(), problem(&rejection.body_text())).into_response()
    })?;
    let admin = site.hub.admin();
    let short = without_namespace(admin.namespace(), &key);
    let short = short.ok_or_else(|| foreign_key(&site))?;
    let revocation = match &client {
        Some(client) => admin.revoke_from(short, client).await,
        None => admin.revoke(short).await,
    };
    match revocation {
        Ok(it) => {
            let answer = RevokeAnswer {
                v: VERSION,
                revoked: it.revoked,
                refused: it.refused,
                unanswered: it.unanswered,
            };
            let RevokeAnswer { revoked, refused, unanswered, .. } = answer;
            tracing::info!(
                operator,
                key,
                client,
                revoked,
                refused,
                unanswered,
                "the dashboard has asked holders to give up a lock"
            );
            Ok(as_json(json(&answer)))
        }
        Err(error) => {
            tracing::warn!(operator, key, client, %error, "the dashboard could not revoke a lock");
            Err(failed(&error))
        }
    }
}

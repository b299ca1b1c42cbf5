//! The routes.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::rejection::QueryRejection;
use axum::extract::{DefaultBodyLimit, OriginalUri, Query, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::Response;
use axum::routing::{any, get};
use axum::{Router, middleware};
use serde::{Deserialize, Serialize};
use tokio::sync::Semaphore;
use tokio::time::timeout;

use crate::Dashboard;
use crate::answers::{as_json, not_found, outside, problem, status_of, wrong_method};
use crate::assets::Asset;
use crate::digest::json;
use crate::hub::{Hub, Pace};
use crate::locks::LockRow;
use crate::one_lock::{OneLock, StoreReader, without_namespace};
use crate::revocation;
use crate::security::{self, ActionRules};
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
    shutdown: ShutdownSignal,
    searches: Arc<Semaphore>,
    reader: StoreReader,
}

pub(crate) fn routes(dashboard: Dashboard) -> Router {
    let Dashboard { admin, allow_actions, refresh, allowed_hosts, shutdown } = dashboard;
    let rules = ActionRules { are_allowed: allow_actions, hosts: allowed_hosts.clone() };
    let actions = revocation::route(admin.clone(), rules);
    let site = Arc::new(DashboardState {
        hub: Hub::new(admin, refresh, allow_actions),
        shutdown,
        searches: Arc::new(Semaphore::new(SEARCHES)),
        reader: StoreReader::default(),
    });
    let data = Router::new()
        .route("/state", get(state))
        .route("/events", get(events))
        .route("/locks", get(search))
        .route("/lock", get(one_lock))
        .method_not_allowed_fallback(async || wrong_method())
        // All other addresses, as JSON.
        .route("/{*other}", any(async || not_found()))
        .layer(middleware::from_fn(security::refuse_other_sites));
    let files = Asset::files().fold(Router::new(), |files, (name, file)| {
        let send = async move |request: HeaderMap| file.response(&request);
        files.route(&format!("/{name}"), get(send))
    });
    Router::new()
        .route("/", get(page))
        .merge(files)
        .nest("/api", data)
        .route("/api", any(async || not_found()))
        .route("/api/", any(async || not_found()))
        .layer(middleware::from_fn_with_state(allowed_hosts, security::refuse_other_hosts))
        .nest("/api", actions)
        .layer(DefaultBodyLimit::max(LONGEST_BODY))
        .layer(middleware::map_response(security::add_headers))
        .with_state(site)
}

type WithState = State<Arc<DashboardState>>;

fn bad_query(rejection: &QueryRejection) -> Response {
    problem(rejection.status(), &rejection.body_text())
}

fn late() -> Response {
    let text = format!("no answer within {PATIENCE:?}");
    problem(StatusCode::SERVICE_UNAVAILABLE, &text)
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
        Err(_) => Err(problem(StatusCode::INTERNAL_SERVER_ERROR, "the search failed")),
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
    let namespace = site.hub.admin().namespace();
    let short = without_namespace(namespace, &key)
        .ok_or_else(|| problem(StatusCode::BAD_REQUEST, &outside(namespace)))?;
    let view = site.view().await?;
    match timeout(PATIENCE, site.reader.read(site.hub.admin(), short)).await {
        Ok(Ok(read)) => Ok(as_json(json(&OneLock::new(&key, read, &view, &site.hub)))),
        Ok(Err(error)) => Err(problem(status_of(&error), &error.to_string())),
        Err(_) => Err(late()),
    }
}

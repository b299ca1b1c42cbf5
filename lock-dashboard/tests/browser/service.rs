//! A service that listens on a port and has the dashboard.

use std::net::SocketAddr;

use axum::Router;
use axum::extract::Request;
use axum::http::StatusCode;
use axum::middleware::{Next, from_fn};
use axum::response::IntoResponse;
use lock_dashboard::Dashboard;
use lock_runtime::LockClient;
use lock_runtime::admin::LockAdmin;
use tokio::net::TcpListener;
use tokio::task::AbortHandle;

use crate::browser::PATIENCE;

/// A running service. Ended when dropped.
pub(crate) struct DashboardService {
    address: SocketAddr,
    serving: AbortHandle,
}

impl DashboardService {
    pub(crate) async fn start(client: &LockClient) -> Self {
        Self::serve(Self::dashboard(client)).await
    }

    /// The page is sent, but its user has no session any more.
    pub(crate) async fn start_signed_out(client: &LockClient) -> Self {
        let check = async |request: Request, next: Next| {
            if request.uri().path().contains("/api/") {
                return StatusCode::UNAUTHORIZED.into_response();
            }
            next.run(request).await
        };
        Self::serve(Self::dashboard(client).layer(from_fn(check))).await
    }

    fn dashboard(client: &LockClient) -> Router {
        // A client that is slow to answer is not what these tests are about.
        let admin = LockAdmin::new(client).answer_timeout(PATIENCE / 3);
        Dashboard::new(admin).allow_actions(true).router()
    }

    async fn serve(dashboard: Router) -> Self {
        let service = Router::new().nest("/admin/locks", dashboard);
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.expect("a free port");
        let address = listener.local_addr().expect("bound");
        let serving = tokio::spawn(async move { axum::serve(listener, service).await });
        Self { address, serving: serving.abort_handle() }
    }

    /// The address of the page.
    pub(crate) fn page(&self) -> String {
        format!("http://localhost:{}/admin/locks", self.address.port())
    }
}

impl Drop for DashboardService {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

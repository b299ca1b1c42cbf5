//! A service that listens on a port and has the dashboard.

use std::net::SocketAddr;

use axum::Router;
use lock_dashboard::Dashboard;
use lock_runtime::LockClient;
use lock_runtime::admin::LockAdmin;
use tokio::net::TcpListener;
use tokio::task::AbortHandle;

/// A running service. Ended when dropped.
pub(crate) struct DashboardService {
    address: SocketAddr,
    serving: AbortHandle,
}

impl DashboardService {
    pub(crate) async fn start(client: &LockClient) -> Self {
        Self::start_on(client, ([127, 0, 0, 1], 0).into()).await
    }

    async fn start_on(client: &LockClient, address: SocketAddr) -> Self {
        let dashboard = Dashboard::new(LockAdmin::new(client)).allow_actions(true).router();
        let service = Router::new().nest("/admin/locks", dashboard);
        let listener = TcpListener::bind(address).await.expect("a free port");
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

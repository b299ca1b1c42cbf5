//! Opening connections to members.

use std::time::Duration;

use hyper_util::client::legacy::connect::HttpConnector;
use tokio::net::TcpStream;
use tonic::codegen::StdError;
use tonic::codegen::http::Uri;
use tower::ServiceExt;

/// How long a connection attempt may take.
pub(super) const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);

/// Tries all addresses of the member's host.
pub(super) async fn open_socket(member: Uri) -> Result<TcpStream, StdError> {
    let mut connector = HttpConnector::new();
    connector.set_nodelay(true);
    connector.set_connect_timeout(Some(CONNECT_TIMEOUT));
    Ok(connector.oneshot(member).await?.into_inner())
}

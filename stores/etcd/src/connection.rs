//! Opening connections to members.

use std::time::Duration;

use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tonic::codegen::StdError;
use tonic::codegen::http::Uri;
use tower::ServiceExt;

use super::joined_writes::JoinedWrites;

/// How long a connection attempt may take.
pub(super) const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);

/// A connection without TLS.
pub(super) async fn connect(member: Uri) -> Result<TokioIo<JoinedWrites<TcpStream>>, StdError> {
    Ok(TokioIo::new(JoinedWrites::new(open_socket(member).await?)))
}

/// Tries all addresses of the member's host.
pub(super) async fn open_socket(member: Uri) -> Result<TcpStream, StdError> {
    let mut connector = HttpConnector::new();
    connector.set_nodelay(true);
    connector.set_connect_timeout(Some(CONNECT_TIMEOUT));
    Ok(connector.oneshot(member).await?.into_inner())
}

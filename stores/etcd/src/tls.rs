//! TLS of the connections to etcd.

use tonic::transport::{Channel, Endpoint};

use lock_core::error::LockError;

/// The TLS settings of a store. There are none in a build without TLS.
#[derive(Clone)]
pub(super) struct EtcdTls(
    #[cfg(feature = "tls")] std::sync::Arc<lock_core::store::tls::Tls>,
    #[cfg(not(feature = "tls"))] std::convert::Infallible,
);

#[cfg(feature = "tls")]
impl EtcdTls {
    pub(super) fn new(options: lock_core::tls::TlsOptions) -> Result<Self, LockError> {
        Ok(Self(std::sync::Arc::new(lock_core::store::tls::Tls::new(options)?)))
    }

    /// The connection to a member, which is opened when it is first needed.
    pub(super) fn channel(&self, endpoint: &Endpoint, member: &str) -> Channel {
        use std::sync::Arc;

        use tonic::codegen::http::Uri;

        let (tls, member): (_, Arc<str>) = (Arc::clone(&self.0), member.into());
        endpoint.connect_with_connector_lazy(tower::service_fn(move |uri: Uri| {
            let (tls, member) = (Arc::clone(&tls), Arc::clone(&member));
            async move { handshake::connect(&tls, &uri, &member).await }
        }))
    }
}

#[cfg(not(feature = "tls"))]
impl EtcdTls {
    pub(super) fn missing() -> LockError {
        super::address::invalid(
            "this build has no TLS for `etcds://`; enable the feature `tls` of `lock-runtime`",
        )
    }

    pub(super) fn channel(&self, _: &Endpoint, _: &str) -> Channel {
        match self.0 {}
    }
}

#[cfg(feature = "tls")]
mod handshake {
    use std::sync::Arc;

    use hyper_util::client::legacy::connect::HttpConnector;
    use hyper_util::rt::TokioIo;
    use tokio::net::TcpStream;
    use tokio_rustls::TlsConnector;
    use tokio_rustls::client::TlsStream;
    use tonic::codegen::StdError;
    use tonic::codegen::http::Uri;
    use tower::ServiceExt;

    use super::super::errors::UnusableServer;
    use super::super::member_list::CONNECT_TIMEOUT;
    use lock_core::store::store_error::StoreError;
    use lock_core::store::tls::{Tls, permanent};

    /// The protocol that both sides agree on.
    const HTTP_2: &[u8] = b"h2";

    /// Opens a connection. Certificate files that have changed are read again.
    pub(super) async fn connect(
        tls: &Arc<Tls>,
        uri: &Uri,
        member: &str,
    ) -> Result<TokioIo<TlsStream<TcpStream>>, StdError> {
        let unusable = |problem: StoreError| StdError::from(UnusableServer(problem));
        let host = uri.host().unwrap_or_default().trim_matches(['[', ']']);
        let socket = open_socket(uri.clone()).await?;
        let mut config = tls.config().await.map_err(unusable)?.as_ref().clone();
        config.alpn_protocols = vec![HTTP_2.to_vec()];
        let has_certificate = config.client_auth_cert_resolver.has_certs();
        let name = tls.name_of(host).map_err(unusable)?;
        let secured = TlsConnector::from(Arc::new(config)).connect(name, socket).await;
        let secured =
            secured.map_err(|error| match permanent(&error, member, has_certificate) {
                Some(problem) => unusable(problem),
                None => StdError::from(error),
            })?;
        Ok(TokioIo::new(secured))
    }

    /// Tries all addresses of the member's host.
    async fn open_socket(member: Uri) -> Result<TcpStream, StdError> {
        let mut connector = HttpConnector::new();
        connector.set_nodelay(true);
        connector.set_connect_timeout(Some(CONNECT_TIMEOUT));
        Ok(connector.oneshot(member).await?.into_inner())
    }
}

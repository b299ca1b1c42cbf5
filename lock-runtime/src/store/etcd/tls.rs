//! TLS of the connections to etcd.

use tonic::transport::Endpoint;

#[cfg(not(feature = "tls"))]
use super::address::invalid;
use crate::error::LockError;

/// The TLS settings of a store.
#[derive(Debug, Clone, Default)]
pub(super) struct EtcdTls {
    #[cfg(feature = "tls")]
    pub(super) options: Option<crate::tls::TlsOptions>,
}

/// The settings with the certificates that they name. There are none in a build without TLS.
pub(super) struct EtcdCertificates(
    #[cfg(feature = "tls")] tonic::transport::ClientTlsConfig,
    #[cfg(not(feature = "tls"))] std::convert::Infallible,
);

impl EtcdTls {
    #[cfg(feature = "tls")]
    pub(super) fn read(&self) -> Result<EtcdCertificates, LockError> {
        use tonic::transport::{Certificate, ClientTlsConfig, Identity};

        let read = |path: &std::path::Path| {
            std::fs::read(path)
                .map_err(|cause| wrong(format!("cannot read {}: {cause}", path.display())))
        };
        let options = self.options.clone().unwrap_or_default();
        if options.config.is_some() {
            return Err(wrong(
                "a rustls configuration cannot be used with etcd; name files".into(),
            ));
        }
        let mut config = ClientTlsConfig::new();
        config = match &options.ca {
            Some(path) => config.ca_certificate(Certificate::from_pem(read(path)?)),
            None => config.with_native_roots(),
        };
        match (&options.certificate, &options.key) {
            (Some(certificate), Some(key)) => {
                config = config.identity(Identity::from_pem(read(certificate)?, read(key)?));
            }
            (None, None) => {}
            _ => {
                let problem = "a client certificate needs two files: the certificate and its key";
                return Err(wrong(problem.into()));
            }
        }
        if let Some(name) = &options.server_name {
            config = config.domain_name(name);
        }
        Ok(EtcdCertificates(config))
    }

    #[cfg(not(feature = "tls"))]
    #[expect(clippy::unused_self, reason = "there are no settings")]
    pub(super) fn read(&self) -> Result<EtcdCertificates, LockError> {
        Err(invalid(
            "this build has no TLS for `etcds://`; enable the feature `tls` of `lock-runtime`",
        ))
    }
}

/// An endpoint that uses these certificates.
#[cfg(feature = "tls")]
pub(super) fn with_certificates(
    endpoint: Endpoint,
    certificates: &EtcdCertificates,
) -> Result<Endpoint, LockError> {
    let wrong = |cause| wrong(format!("invalid TLS options: {cause}"));
    endpoint.tls_config(certificates.0.clone()).map_err(wrong)
}

#[cfg(not(feature = "tls"))]
pub(super) fn with_certificates(
    _: Endpoint,
    certificates: &EtcdCertificates,
) -> Result<Endpoint, LockError> {
    match certificates.0 {}
}

#[cfg(feature = "tls")]
fn wrong(problem: String) -> LockError {
    LockError::Config { option: "tls", problem }
}

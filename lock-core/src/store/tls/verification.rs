//! How much of the certificate of a server is verified.

use std::sync::Arc;

use tokio_rustls::rustls::client::WebPkiServerVerifier;
use tokio_rustls::rustls::client::danger::{
    HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier,
};
use tokio_rustls::rustls::crypto::{
    CryptoProvider, verify_tls12_signature, verify_tls13_signature,
};
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use tokio_rustls::rustls::{
    CertificateError, DigitallySignedStruct, Error, RootCertStore, SignatureScheme,
};

/// What has to be true of the certificate of a server, so that a client uses it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verification {
    /// A trusted authority has issued it for the name of the server.
    Full,
    /// A trusted authority has issued it, for any name.
    Authority,
    /// Nothing: the connection is encrypted, but the server may be any server.
    Nothing,
}

/// Verifies less than rustls does on its own. The server still has to have the key of its certificate.
#[derive(Debug)]
pub(super) struct WeakVerifier {
    provider: Arc<CryptoProvider>,
    /// Verifies the issuer. `None` if any certificate is accepted.
    issuer: Option<Arc<WebPkiServerVerifier>>,
}

impl WeakVerifier {
    /// Accepts the certificates of these authorities, or all certificates.
    pub(super) fn new(
        provider: &Arc<CryptoProvider>,
        roots: Option<RootCertStore>,
    ) -> Result<Arc<Self>, String> {
        let issuer = match roots {
            Some(roots) => {
                let provider = Arc::clone(provider);
                let builder = WebPkiServerVerifier::builder_with_provider(roots.into(), provider);
                Some(builder.build().map_err(|error| error.to_string())?)
            }
            None => None,
        };
        Ok(Arc::new(Self { provider: Arc::clone(provider), issuer }))
    }
}

impl ServerCertVerifier for WeakVerifier {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let Some(issuer) = &self.issuer else { return Ok(ServerCertVerified::assertion()) };
        match issuer.verify_server_cert(certificate, intermediates, name, ocsp, now) {
            // The name is checked last.
            Err(Error::InvalidCertificate(
                CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
            )) => Ok(ServerCertVerified::assertion()),
            verified => verified,
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls12_signature(message, certificate, signature, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls13_signature(message, certificate, signature, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}

//! Explains failed handshakes: which of them another attempt would meet as well, and what to do.

use std::io;

use tokio_rustls::rustls::{AlertDescription, CertificateError, Error, InvalidMessage};

use crate::store::store_error::StoreError;

/// Explains an error that another attempt would meet as well. `server` is the server's address.
pub fn permanent(error: &io::Error, server: &str, has_certificate: bool) -> Option<StoreError> {
    explain(error.get_ref()?.downcast_ref()?, server, has_certificate)
}

fn explain(error: &Error, server: &str, has_certificate: bool) -> Option<StoreError> {
    Some(match error {
        Error::InvalidCertificate(problem) => {
            let problem = explain_certificate(problem);
            config_error(
                "tls",
                format!("the certificate of {server} cannot be verified: {problem}"),
            )
        }
        Error::InvalidMessage(InvalidMessage::InvalidContentType) => {
            config_error("url", speaks_no_tls(server))
        }
        Error::AlertReceived(alert) => return explain_alert(*alert, server, has_certificate),
        Error::PeerIncompatible(_) | Error::NoApplicationProtocol | Error::InconsistentKeys(_) => {
            config_error("tls", format!("cannot use TLS with {server}: {error}"))
        }
        _ => return None,
    })
}

/// The problem of a server's certificate.
fn explain_certificate(problem: &CertificateError) -> String {
    use CertificateError as Bad;

    match problem {
        Bad::UnknownIssuer => "its issuer is not trusted; trust the issuer's certificate, such as \
                               with `tls_ca`"
            .into(),
        Bad::Expired | Bad::ExpiredContext { .. } => "it has expired".into(),
        Bad::NotValidYet | Bad::NotValidYetContext { .. } => "it is not valid yet".into(),
        Bad::NotValidForNameContext { presented, .. } if presented.is_empty() => {
            "it has no subject alternative name; the common name is not used".into()
        }
        Bad::NotValidForName | Bad::NotValidForNameContext { .. } => {
            "it was issued for another name; connect to that name, or give it as `tls_server_name`"
                .into()
        }
        Bad::Revoked => "it was revoked".into(),
        // Reported as text only.
        other if format!("{other:?}").contains("CaUsedAsEndEntity") => {
            "it is the certificate of an authority and not of a server; issue a certificate for \
             the server"
                .into()
        }
        other if format!("{other:?}").contains("UnsupportedCertVersion") => {
            "it is not a certificate of version 3".into()
        }
        other => other.to_string(),
    }
}

/// The problem that the server reports about the handshake.
fn explain_alert(
    alert: AlertDescription,
    server: &str,
    has_certificate: bool,
) -> Option<StoreError> {
    use AlertDescription as Alert;

    const FILES: &str = "name the files of one with `tls_cert` and `tls_key`";
    Some(match alert {
        Alert::CertificateRequired | Alert::BadCertificate if !has_certificate => {
            StoreError::Denied(format!("{server} requires a client certificate; {FILES}"))
        }
        // Servers with TLS 1.2 report both in the same way.
        Alert::HandshakeFailure if !has_certificate => StoreError::Denied(format!(
            "{server} rejected the handshake: it requires a client certificate, or has no cipher \
             suite in common with this client; {FILES}"
        )),
        Alert::CertificateRequired
        | Alert::UnknownCA
        | Alert::BadCertificate
        | Alert::CertificateExpired
        | Alert::CertificateRevoked
        | Alert::CertificateUnknown
        | Alert::UnsupportedCertificate
        | Alert::AccessDenied
        | Alert::DecryptError
            if has_certificate =>
        {
            StoreError::Denied(format!("{server} rejected the client certificate: {alert:?}"))
        }
        Alert::CloseNotify
        | Alert::InternalError
        | Alert::UserCanceled
        | Alert::BadRecordMac
        | Alert::UnexpectedMessage => return None,
        _ => config_error("tls", format!("{server} rejected the handshake: {alert:?}")),
    })
}

pub fn config_error(option: &'static str, problem: String) -> StoreError {
    StoreError::Config { option, problem }
}

/// The problem of a server that does not answer in TLS.
pub fn speaks_no_tls(server: &str) -> String {
    format!(
        "{server} does not use TLS; begin the URL with the scheme without TLS, such as `redis` instead of \
         `rediss`, or use the server's TLS port"
    )
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tokio_rustls::rustls::OtherError;
    use tokio_rustls::rustls::pki_types::ServerName;

    use super::*;

    /// What an error is reported as, with and without a client certificate.
    fn reported(error: &Error) -> [Option<StoreError>; 2] {
        [false, true].map(|has_certificate| explain(error, "host:1", has_certificate))
    }

    #[test]
    fn alerts_about_certificates_are_permanent() {
        use AlertDescription as Alert;

        for (alert, without, with) in [
            (Alert::CertificateRequired, "requires a client certificate", "rejected the client"),
            (Alert::BadCertificate, "requires a client certificate", "rejected the client"),
            (Alert::HandshakeFailure, "or has no cipher suite", "the handshake: HandshakeFailure"),
            (Alert::UnknownCA, "rejected the handshake", "rejected the client certificate"),
            (Alert::ProtocolVersion, "rejected the handshake", "rejected the handshake"),
            (Alert::NoApplicationProtocol, "rejected the handshake", "rejected the handshake"),
        ] {
            let errors = reported(&Error::AlertReceived(alert));
            for (error, words) in errors.into_iter().zip([without, with]) {
                let text = error.expect("a permanent error").to_string();
                assert!(text.starts_with("host:1 ") && text.contains(words), "{alert:?}: {text}");
            }
        }
    }

    #[test]
    fn what_the_configuration_causes_is_permanent() {
        for (error, option, words) in [
            (Error::InvalidCertificate(CertificateError::Revoked), "tls", "it was revoked"),
            (Error::InvalidMessage(InvalidMessage::InvalidContentType), "url", "does not use TLS"),
            (Error::NoApplicationProtocol, "tls", "cannot use TLS with host:1"),
        ] {
            let error = io::Error::new(io::ErrorKind::InvalidData, error);
            let Some(StoreError::Config { option: named, problem }) =
                permanent(&error, "host:1", false)
            else {
                panic!("{error} is not permanent")
            };
            assert_eq!(named, option, "{problem}");
            assert!(problem.contains("host:1") && problem.contains(words), "{problem}");
        }
    }

    #[test]
    fn what_may_be_a_fault_of_the_network_is_not_permanent() {
        for error in [
            Error::AlertReceived(AlertDescription::InternalError),
            Error::InvalidMessage(InvalidMessage::MessageTooLarge),
            Error::DecryptError,
            Error::General("…".into()),
        ] {
            assert_eq!(reported(&error), [None, None], "{error:?}");
        }
    }

    #[test]
    fn unusual_certificates_are_explained() {
        let name = ServerName::try_from("localhost").expect("a name");
        let context = |presented: Vec<String>| CertificateError::NotValidForNameContext {
            expected: name.clone(),
            presented,
        };
        assert!(explain_certificate(&context(Vec::new())).contains("no subject alternative name"));
        let other = explain_certificate(&context(vec!["elsewhere".into()]));
        assert!(other.contains("`tls_server_name`"), "{other}");
        for (text, words) in [
            ("CaUsedAsEndEntity", "the certificate of an authority"),
            ("UnsupportedCertVersion", "not a certificate of version 3"),
            ("another problem", "another problem"),
        ] {
            let problem = OtherError(Arc::new(io::Error::other(text)));
            let explained = explain_certificate(&CertificateError::Other(problem));
            assert!(explained.contains(words), "{explained}");
        }
    }
}

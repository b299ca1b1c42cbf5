//! The files with certificates and keys. No error shows a part of them.

use std::path::Path;
use std::sync::Arc;
use std::time::SystemTime;

use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::{self, PemObject};
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::{ClientConfig, RootCertStore};

use super::verification::{Verification, WeakVerifier};
use crate::tls::TlsOptions;

/// Differs if a file has changed or was replaced. Empty if there is no such file.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct FileState {
    modified: Option<SystemTime>,
    length: u64,
    /// The device, the number of the file there, and when its name or its permissions changed.
    #[cfg(unix)]
    identity: (u64, u64, i64, i64),
}

impl FileState {
    pub(super) fn of(path: &Path) -> Self {
        #[cfg(unix)]
        use std::os::unix::fs::MetadataExt;

        let Ok(metadata) = std::fs::metadata(path) else { return Self::default() };
        Self {
            modified: metadata.modified().ok(),
            length: metadata.len(),
            #[cfg(unix)]
            identity: (metadata.dev(), metadata.ino(), metadata.ctime(), metadata.ctime_nsec()),
        }
    }
}

/// Reads the certificates.
pub(super) fn read(
    options: &TlsOptions,
    verification: Verification,
) -> Result<ClientConfig, String> {
    // A provider of its own: the process may have several, and then has no default one.
    let provider = Arc::new(ring::default_provider());
    let builder = ClientConfig::builder_with_provider(Arc::clone(&provider));
    let builder = builder.with_safe_default_protocol_versions().map_err(|e| e.to_string())?;
    let weak = |roots| Ok::<_, String>(WeakVerifier::new(&provider, roots)? as Arc<_>);
    let builder = match verification {
        Verification::Full => builder.with_root_certificates(roots(options)?),
        Verification::Authority => {
            builder.dangerous().with_custom_certificate_verifier(weak(Some(roots(options)?))?)
        }
        Verification::Nothing => builder.dangerous().with_custom_certificate_verifier(weak(None)?),
    };
    let (Some(certificate), Some(key)) = (&options.certificate, &options.key) else {
        return Ok(builder.with_no_client_auth());
    };
    let chain = certificates("tls_cert", certificate)?;
    let private = PrivateKeyDer::from_pem_file(key);
    let private = private.map_err(|error| unusable("tls_key", key, &explain_pem(&error)))?;
    let builder = builder.with_client_auth_cert(chain, private);
    builder.map_err(|error| unusable("tls_cert", certificate, &error))
}

/// The authorities that are trusted.
fn roots(options: &TlsOptions) -> Result<RootCertStore, String> {
    let mut roots = RootCertStore::empty();
    match &options.ca {
        Some(path) => {
            for certificate in certificates("tls_ca", path)? {
                roots.add(certificate).map_err(|error| unusable("tls_ca", path, &error))?;
            }
        }
        None => {
            let found = rustls_native_certs::load_native_certs();
            roots.add_parsable_certificates(found.certs);
            if roots.is_empty() {
                let cause = found.errors.first().map(|error| format!(" ({error})"));
                return Err(format!(
                    "the operating system has no trusted certificates{}; install its \
                     `ca-certificates`, or name the authority's file with `tls_ca`",
                    cause.unwrap_or_default()
                ));
            }
        }
    }
    Ok(roots)
}

/// The certificates of a file, at least one.
fn certificates(option: &str, path: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    let certificates = CertificateDer::pem_file_iter(path).and_then(Iterator::collect);
    let certificates: Vec<_> =
        certificates.map_err(|error| unusable(option, path, &explain_pem(&error)))?;
    if certificates.is_empty() {
        return Err(unusable(option, path, &"it contains no certificate in PEM format"));
    }
    Ok(certificates)
}

/// Explains why a file cannot be used. Errors of the format show parts of the file, which may be a
/// private key.
fn explain_pem(error: &pem::Error) -> String {
    match error {
        pem::Error::Io(error) => error.to_string(),
        pem::Error::NoItemsFound => "it contains no such item in PEM format, unencrypted".into(),
        _ => "it is not in PEM format; the line breaks may be lost".into(),
    }
}

fn unusable(option: &str, path: &Path, error: &dyn std::fmt::Display) -> String {
    format!("`{option}`: cannot use {}: {error}", path.display())
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::path::PathBuf;

    use super::*;

    /// A new directory for temporary files.
    fn directory(test: &str) -> PathBuf {
        let name = format!("lock-tls-{test}-{}", std::process::id());
        let directory = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&directory).expect("a temporary directory");
        directory
    }

    #[test]
    fn a_file_that_changes_has_another_state() {
        let directory = directory("state");
        let file = directory.join("ca.pem");
        assert_eq!(FileState::of(&file), FileState::default());
        std::fs::write(&file, "one").expect("a temporary file");
        let first = FileState::of(&file);
        assert_eq!(FileState::of(&file), first);
        std::fs::write(&file, "longer").expect("a temporary file");
        assert_ne!(FileState::of(&file), first);
        std::fs::remove_dir_all(directory).expect("a temporary directory");
    }

    #[test]
    fn the_problem_of_a_file_is_explained() {
        let end_marker = Vec::new();
        for (error, words) in [
            (pem::Error::Io(io::Error::other("the disk is gone")), "the disk is gone"),
            (pem::Error::NoItemsFound, "contains no such item"),
            (pem::Error::MissingSectionEnd { end_marker }, "not in PEM format"),
        ] {
            let explained = explain_pem(&error);
            assert!(explained.contains(words), "{explained}");
        }
    }

    #[test]
    fn no_part_of_a_file_is_shown() {
        let directory = directory("content");
        let file = directory.join("key.pem");
        for content in [
            "-----BEGIN PRIVATE KEY----- c4nary -----END PRIVATE KEY-----",
            "-----BEGIN PRIVATE KEY-----\nc4nary!\n-----END PRIVATE KEY-----",
            "-----BEGIN c4nary",
            "-----BEGIN PRIVATE KEY-----\nc4nary",
            "c4nary",
        ] {
            std::fs::write(&file, content).expect("a temporary file");
            let options = TlsOptions::new().ca_file(&file);
            let problem = read(&options, Verification::Full).map(drop).expect_err("no certificate");
            assert!(!problem.contains("c4nary"), "{problem}");
            assert!(!problem.contains("99, 52, 110"), "{problem}");
            assert!(problem.starts_with("`tls_ca`: cannot use "), "{problem}");
        }
        std::fs::remove_dir_all(directory).expect("a temporary directory");
    }
}

//! A certificate authority for a single test.

use std::fs;
use std::path::{Path, PathBuf};

use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose,
};
use tempfile::TempDir;
use time::{Duration, OffsetDateTime};

/// An authority and the identity of servers.
pub(crate) type Certificates = (Authority, ServerIdentity);

/// An authority with a new key. Its files are deleted when it is dropped.
#[derive(Debug)]
pub struct Authority {
    issuer: Issuer<'static, KeyPair>,
    certificate: String,
    file: PathBuf,
    directory: TempDir,
}

/// When a certificate is valid.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Validity {
    /// From yesterday until tomorrow.
    Now,
    /// Until yesterday.
    Past,
    /// From tomorrow.
    Future,
}

/// The files of a certificate and its private key.
#[derive(Debug)]
pub struct ServerIdentity {
    certificate: PathBuf,
    key: PathBuf,
}

impl Authority {
    /// A new authority.
    #[must_use]
    pub fn new() -> Self {
        let key = KeyPair::generate().expect("a key");
        let mut params = params(&[], Validity::Now);
        // OpenSSL finds an issuer by its name.
        let name = format!("authority {:016x} of a test", fastrand::u64(..));
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let certificate = params.self_signed(&key).expect("a certificate").pem();
        let directory = tempfile::tempdir().expect("a temporary directory");
        let file = directory.path().join("ca.pem");
        fs::write(&file, &certificate).expect("a temporary file");
        Self { issuer: Issuer::new(params, key), certificate, file, directory }
    }

    /// The file with the authority's certificate.
    #[must_use]
    pub fn file(&self) -> &Path {
        &self.file
    }

    /// Adds the certificate of another authority to the [`file`](Self::file), which then trusts
    /// both.
    pub fn also_trust(&self, other: &Self) {
        replace(&self.file, &format!("{}{}", self.certificate, other.certificate));
    }

    /// Issues a certificate for these host names, of a server or a client.
    #[must_use]
    pub fn issue(&self, names: &[&str], validity: Validity) -> ServerIdentity {
        let unique = fs::read_dir(self.directory.path()).expect("a directory").count();
        let file = |kind| self.directory.path().join(format!("{unique}.{kind}"));
        let identity = ServerIdentity { certificate: file("crt"), key: file("key") };
        self.reissue(&identity, names, validity);
        identity
    }

    /// Replaces the files of an identity by a new certificate and a new key.
    pub fn reissue(&self, identity: &ServerIdentity, names: &[&str], validity: Validity) {
        let key = KeyPair::generate().expect("a key");
        let mut params = params(names, validity);
        params.extended_key_usages =
            vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        let certificate = params.signed_by(&key, &self.issuer).expect("a certificate");
        replace(&identity.key, &key.serialize_pem());
        replace(&identity.certificate, &certificate.pem());
    }
}

impl Default for Authority {
    fn default() -> Self {
        Self::new()
    }
}

impl ServerIdentity {
    /// The file with the certificate.
    #[must_use]
    pub fn certificate(&self) -> &Path {
        &self.certificate
    }

    /// The file with the private key.
    #[must_use]
    pub fn key(&self) -> &Path {
        &self.key
    }
}

fn params(names: &[&str], validity: Validity) -> CertificateParams {
    let names: Vec<String> = names.iter().map(ToString::to_string).collect();
    let mut params = CertificateParams::new(names).expect("host names");
    let (now, day) = (OffsetDateTime::now_utc(), Duration::DAY);
    (params.not_before, params.not_after) = match validity {
        Validity::Now => (now - day, now + day),
        Validity::Past => (now - 2 * day, now - day),
        Validity::Future => (now + day, now + 2 * day),
    };
    params
}

/// Replaces a file as a whole, as programs that rotate certificates do.
fn replace(file: &Path, content: &str) {
    let new = file.with_extension("new");
    fs::write(&new, content).and_then(|()| fs::rename(&new, file)).expect("a temporary file");
}

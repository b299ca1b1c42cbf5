//! TLS to PostgreSQL.

use lock_runtime::store::POSTGRES_SCHEMA;
use lock_runtime::{LockClient, LockError, TlsOptions};
use lock_tests::{Authority, DatabaseServer, Validity};
use tokio_postgres::NoTls;

/// A server with a certificate for this name, and its authority.
struct SecureDatabase {
    server: DatabaseServer,
    authority: Authority,
}

impl SecureDatabase {
    async fn new(name: &str, settings: &[&str]) -> Self {
        let authority = Authority::new();
        let identity = authority.issue(&[name], Validity::Now);
        let tls = ["ssl=on", "ssl_cert_file=server.crt", "ssl_key_file=server.key"];
        let files = [
            ("server.crt", identity.certificate()),
            ("server.key", identity.key()),
            ("ca.crt", authority.file()),
        ];
        let server = DatabaseServer::postgres_alone(&[&tls, settings].concat(), &files);
        let plain = format!("{}?sslmode=disable", server.url("postgres"));
        let (session, connection) = tokio_postgres::connect(&plain, NoTls).await.expect("it is up");
        tokio::spawn(connection);
        session.batch_execute(POSTGRES_SCHEMA).await.expect("valid SQL");
        Self { server, authority }
    }

    /// With this host, to which the certificate may belong.
    fn url(&self, host: &str, parameters: &str) -> String {
        format!("postgres://test@{host}:{}/postgres?{parameters}", self.server.port())
    }

    /// How many connections of the lock client use TLS, and how many do not.
    async fn connections(&self) -> (i64, i64) {
        let plain = format!("{}?sslmode=disable", self.server.url("postgres"));
        let (session, connection) = tokio_postgres::connect(&plain, NoTls).await.expect("it is up");
        tokio::spawn(connection);
        let sql = "SELECT count(*) FILTER (WHERE ssl), count(*) FILTER (WHERE NOT ssl) \
                   FROM pg_stat_ssl JOIN pg_stat_activity USING (pid) WHERE application_name LIKE 'lock-runtime%'";
        let row = session.query_one(sql, &[]).await.expect("a view of the system");
        (row.get(0), row.get(1))
    }

    /// Acquires a lock, and returns the connections.
    async fn used_by(&self, url: &str) -> (i64, i64) {
        let client = LockClient::connect(url).await.expect("a server that can be verified");
        let guard = client.lock("k").acquire().await.expect("free");
        let connections = self.connections().await;
        guard.release().await.expect("held");
        client.shutdown().await.expect("released");
        connections
    }
}

async fn problem(url: &str) -> String {
    match LockClient::connect(url).await.map(drop) {
        Err(LockError::Config { problem, .. }) => problem,
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn each_mode_verifies_what_it_says() {
    let server = SecureDatabase::new("localhost", &[]).await;
    let ca = format!("sslrootcert={}", server.authority.file().display());
    let other = Authority::new();
    let other = format!("sslrootcert={}", other.file().display());
    for mode in ["verify-full", "verify-ca", "require"] {
        let (secure, plain) =
            server.used_by(&server.url("localhost", &format!("sslmode={mode}&{ca}"))).await;
        assert!(secure > 0 && plain == 0, "{mode}: {secure} and {plain}");
        let untrusted = problem(&server.url("localhost", &format!("sslmode={mode}&{other}"))).await;
        assert!(untrusted.contains("its issuer is not trusted"), "{mode}: {untrusted}");
    }
    // Another name.
    let full = problem(&server.url("127.0.0.1", &format!("sslmode=verify-full&{ca}"))).await;
    assert!(full.contains("issued for another name"), "{full}");
    for weaker in [
        format!("sslmode=verify-ca&{ca}"),
        format!("sslmode=verify-full&{ca}&tls_server_name=localhost"),
    ] {
        let (secure, _) = server.used_by(&server.url("127.0.0.1", &weaker)).await;
        assert!(secure > 0, "{weaker}");
    }
    // No authority: those of the operating system, or none at all.
    let system = problem(&server.url("localhost", "sslmode=verify-full")).await;
    assert!(
        system.contains("not trusted") || system.contains("no trusted certificates"),
        "{system}"
    );
    for unverified in ["sslmode=require", "sslmode=prefer", ""] {
        let (secure, plain) = server.used_by(&server.url("127.0.0.1", unverified)).await;
        assert!(secure > 0 && plain == 0, "{unverified}: {secure} and {plain}");
    }
    // The control: connections that use no TLS are seen.
    let (secure, plain) = server.used_by(&server.url("localhost", "sslmode=disable")).await;
    assert!(secure == 0 && plain > 0, "{secure} and {plain}");
}

#[tokio::test]
async fn options_of_the_program_are_those_of_the_url() {
    let server = SecureDatabase::new("localhost", &["ssl_ca_file=ca.crt"]).await;
    let options = || TlsOptions::new().ca_file(server.authority.file());
    let client = LockClient::builder().url(server.url("localhost", "")).tls(options());
    let client = client.connect().await.expect("a server that can be verified");
    client.lock("k").acquire().await.expect("free").release().await.expect("held");
    assert_eq!(server.connections().await.1, 0);
    let elsewhere = LockClient::builder().url(server.url("127.0.0.1", "")).tls(options());
    let elsewhere = elsewhere.connect().await.map(drop);
    assert!(matches!(elsewhere, Err(LockError::Config { option: "tls", .. })), "{elsewhere:?}");
    let identity = server.authority.issue(&["client"], Validity::Now);
    let with_certificate = options().client_certificate(identity.certificate(), identity.key());
    let client = LockClient::builder().url(server.url("localhost", "")).tls(with_certificate);
    let client = client.connect().await.expect("a certificate of the authority");
    client.lock("k").acquire().await.expect("free").release().await.expect("held");
    let expired = server.authority.issue(&["client"], Validity::Past);
    let expired = options().client_certificate(expired.certificate(), expired.key());
    let client = LockClient::builder().url(server.url("localhost", "")).tls(expired);
    let refused = client.connect().await.map(drop);
    assert!(matches!(refused, Err(LockError::Denied { .. })), "{refused:?}");
    let both = LockClient::builder().url(server.url("localhost", "tls_ca=a")).tls(options());
    let both = both.connect().await.map(drop);
    assert!(matches!(both, Err(LockError::Config { option: "url", .. })), "{both:?}");
}

#[tokio::test]
async fn a_server_without_tls_is_an_error_that_says_so() {
    let server = DatabaseServer::postgres();
    let problem = problem(&format!("{}?sslmode=verify-full", server.url("postgres"))).await;
    assert!(problem.contains("does not use TLS"), "{problem}");
}

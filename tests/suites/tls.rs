//! Connections with TLS. A problem that another attempt would meet as well is reported at once, and
//! says what to do.

use std::time::Instant;

use lock_runtime::{LockClient, LockError, TlsOptions};
use lock_tests::{Authority, RedisServer, Validity, running_time};

use crate::support::{LEASE, client, count_under_contention};

const HOST: &[&str] = &["localhost"];

/// A server whose certificate is valid for `localhost`.
fn server(authority: &Authority) -> RedisServer {
    RedisServer::with_tls(authority, &authority.issue(HOST, Validity::Now), &[])
}

/// The error of a client that cannot connect. It comes before another attempt would be made.
async fn refusal(url: &str) -> LockError {
    let begun = Instant::now();
    let error = LockClient::connect(url).await.expect_err("the connection is refused");
    assert!(running_time(begun) < LEASE * 3, "{:?}: {error}", begun.elapsed());
    assert!(!error.is_transient(), "{error:?}");
    error
}

fn problem(error: &LockError, of: &str) -> String {
    match error {
        LockError::Config { option, problem, .. } if *option == of => problem.clone(),
        other => panic!("{other:?}"),
    }
}

/// What a client is told whose own certificate is missing or not trusted.
async fn denial(url: &str) -> String {
    match refusal(url).await {
        LockError::Denied { cause, .. } => cause,
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn locks_work_over_tls() {
    let authority = Authority::new();
    let server = server(&authority);
    let by_url = client(&server.trusted_tls_url()).await;
    let options = TlsOptions::new().ca_file(authority.file());
    let by_builder = LockClient::builder().url(server.tls_url()).tls(options).lease(LEASE);
    let by_builder = by_builder.wait(LEASE * 20).connect().await.expect("trusted");
    count_under_contention([&by_url, &by_builder], 100).await;

    // Renewals and wake-ups use connections of their own.
    let guard = by_url.lock("k").acquire().await.expect("free");
    let waiting = tokio::spawn(async move { by_builder.lock("k").acquire().await.map(drop) });
    tokio::time::sleep(LEASE * 2).await;
    assert!(guard.is_held());
    let begun = Instant::now();
    guard.release().await.expect("held");
    waiting.await.expect("no panic").expect("granted");
    assert!(running_time(begun) < LEASE / 2, "woken by the release: {:?}", begun.elapsed());
}

#[tokio::test]
async fn a_certificate_that_cannot_be_verified_is_refused_at_once() {
    let (authority, other) = (Authority::new(), Authority::new());
    for (issuer, names, validity, expected) in [
        (&other, HOST, Validity::Now, "`tls_ca`"),
        (&authority, &["elsewhere"][..], Validity::Now, "`tls_server_name`"),
        (&authority, HOST, Validity::Past, "it has expired"),
        (&authority, HOST, Validity::Future, "it is not valid yet"),
    ] {
        let server = RedisServer::with_tls(&authority, &issuer.issue(names, validity), &[]);
        let problem = problem(&refusal(&server.trusted_tls_url()).await, "tls");
        assert!(problem.contains(expected), "{problem}");
        assert!(problem.contains("localhost:"), "{problem}");
    }
}

#[tokio::test]
async fn the_authorities_of_the_system_do_not_include_that_of_a_test() {
    let server = server(&Authority::new());
    let problem = problem(&refusal(&server.tls_url()).await, "tls");
    assert!(problem.contains("issuer is not trusted"), "{problem}");
}

#[tokio::test]
async fn a_certificate_for_another_name_is_accepted_under_that_name() {
    let authority = Authority::new();
    let identity = authority.issue(&["elsewhere"], Validity::Now);
    let server = RedisServer::with_tls(&authority, &identity, &[]);
    let url = format!("{}&tls_server_name=elsewhere", server.trusted_tls_url());
    let client = LockClient::connect(url).await.expect("trusted");
    client.lock("k").run(async {}).await.expect("free");
}

#[tokio::test]
async fn a_server_may_require_a_client_certificate() {
    let (authority, other) = (Authority::new(), Authority::new());
    let required = ["--tls-auth-clients", "yes"];
    for versions in ["TLSv1.2", "TLSv1.3"] {
        let options = [&required[..], &["--tls-protocols", versions]].concat();
        let identity = authority.issue(HOST, Validity::Now);
        let server = RedisServer::with_tls(&authority, &identity, &options);
        let cause = denial(&server.trusted_tls_url()).await;
        assert!(cause.contains("`tls_cert`"), "{versions}: {cause}");

        let with = |issuer: &Authority| {
            let identity = issuer.issue(&["client"], Validity::Now);
            let (certificate, key) = (identity.certificate(), identity.key());
            let files = format!("&tls_cert={}&tls_key={}", certificate.display(), key.display());
            server.trusted_tls_url() + &files
        };
        let cause = denial(&with(&other)).await;
        assert!(cause.contains("rejected the client certificate"), "{versions}: {cause}");

        let client = LockClient::connect(with(&authority)).await.expect("trusted");
        client.lock("k").run(async {}).await.expect("free");
    }
}

#[tokio::test]
async fn a_port_without_tls_and_a_port_with_tls_are_told_apart() {
    let authority = Authority::new();
    let server = server(&authority);
    let plain = format!("rediss://localhost:{}", server.port());
    let without = problem(&refusal(&plain).await, "url");
    assert!(
        without.contains("does not use TLS") && without.contains("`redis` instead"),
        "{without}"
    );

    let with = problem(&refusal(&server.tls_url().replace("rediss", "redis")).await, "url");
    assert!(with.contains("uses TLS") && with.contains("`rediss` instead"), "{with}");
}

#[tokio::test]
async fn files_that_cannot_be_used_are_named() {
    let authority = Authority::new();
    let server = server(&authority);
    let identity = authority.issue(&["client"], Validity::Now);
    let (certificate, key) = (identity.certificate().display(), identity.key().display());
    let trusted = server.trusted_tls_url();
    for (url, option) in [
        (format!("{}?tls_ca=/no/such/file", server.tls_url()), "tls_ca"),
        (format!("{}?tls_ca={key}", server.tls_url()), "tls_ca"),
        (format!("{trusted}&tls_cert={key}&tls_key={key}"), "tls_cert"),
        (format!("{trusted}&tls_cert={certificate}&tls_key={certificate}"), "tls_key"),
    ] {
        let problem = problem(&refusal(&url).await, "tls");
        assert!(problem.starts_with(&format!("`{option}`: cannot use /")), "{problem}");
    }
}

/// Without waiting for the end of its `wait`, and without an attempt to repeat it.
#[tokio::test]
async fn a_call_reports_a_certificate_that_has_become_invalid() {
    let authority = Authority::new();
    let identity = authority.issue(HOST, Validity::Now);
    let mut server = RedisServer::with_tls(&authority, &identity, &[]);
    let client = client(&server.trusted_tls_url()).await;
    client.lock("k").run(async {}).await.expect("free");
    authority.reissue(&identity, HOST, Validity::Past);
    server.restart();
    let begun = Instant::now();
    let outcome = client.lock("k").wait(LEASE * 20).acquire().await.map(drop);
    let problem = problem(&outcome.expect_err("the certificate has expired"), "tls");
    assert!(problem.contains("it has expired"), "{problem}");
    assert!(running_time(begun) < LEASE * 5, "{:?}", begun.elapsed());
}

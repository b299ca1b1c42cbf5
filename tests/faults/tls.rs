//! Faults of connections with TLS.

use lock_runtime::LockError;
use lock_tests::{Authority, CapturedLog, Proxy, RedisServer, Toward, Validity};
use tokio::time::sleep;

use crate::support::{
    LEASE, acquire_many, assert_all_held, client, client_with_lease, until, until_idle,
};

const HOST: &[&str] = &["localhost"];

/// The URL of a server with TLS through a proxy.
fn through(proxy: &Proxy, authority: &Authority) -> String {
    let url = proxy.url().replace("redis://127.0.0.1", "rediss://localhost");
    format!("{url}?tls_ca={}", authority.file().display())
}

#[tokio::test]
async fn certificates_are_replaced_while_locks_are_held() {
    let (old, new) = (Authority::new(), Authority::new());
    let identity = old.issue(HOST, Validity::Now);
    let server = RedisServer::with_tls(&old, &identity, &["--tls-auth-clients", "yes"]);
    let own = old.issue(&["client"], Validity::Now);
    let (certificate, key) = (own.certificate().display(), own.key().display());
    let url = format!("{}&tls_cert={certificate}&tls_key={key}", server.trusted_tls_url());
    // Long enough for the handshakes on a busy machine.
    let lease = LEASE * 6;
    let client = client_with_lease(&url, lease).await;
    let guards = acquire_many(&client, 1000).await;

    // First both authorities are trusted, then the certificates of the new one are used, and then
    // all connections are made again.
    old.also_trust(&new);
    let file = |path: &std::path::Path| path.to_str().expect("a path in UTF-8").to_owned();
    let reload = || {
        server.tell(&["CONFIG", "SET", "tls-ca-cert-file", &file(old.file())]);
        server.tell(&["CONFIG", "SET", "tls-cert-file", &file(identity.certificate())]);
    };
    new.reissue(&identity, HOST, Validity::Now);
    new.reissue(&own, &["client"], Validity::Now);
    reload();
    let new_only = file(new.file());
    for trusted in [file(old.file()), file(old.file()), new_only] {
        // In the end, the server trusts the new authority only.
        server.tell(&["CONFIG", "SET", "tls-ca-cert-file", &trusted]);
        server.kill_all_connections();
        sleep(lease / 6).await;
        client.lock("other").run(async {}).await.expect("the new connection is trusted");
    }
    sleep(lease * 2 / 3).await;
    assert_all_held(&guards);
    drop(guards);
    let free = || server.key_count() == 0;
    assert!(until(LEASE * 5, free).await.is_some(), "all keys are released");
}

#[tokio::test]
async fn certificates_stay_in_use_when_their_file_becomes_invalid() {
    let (log, authority) = (CapturedLog::here(), Authority::new());
    let server = RedisServer::with_tls(&authority, &authority.issue(HOST, Validity::Now), &[]);
    let client = client(&server.trusted_tls_url()).await;
    std::fs::write(authority.file(), "no certificate").expect("a temporary file");
    for _ in 0..3 {
        server.kill_all_connections();
        client.lock("k").run(async {}).await.expect("the earlier certificates are used");
    }
    let file = authority.file().display().to_string();
    let warned = || log.lines(&["WARN", "cannot read the changed TLS certificates", &file]).len();
    assert!(until(LEASE * 10, || warned() > 0).await.is_some());
    sleep(LEASE / 2).await;
    assert_eq!(warned(), 1);
}

/// A client that has never connected checks after a while whether the port uses TLS at all.
#[tokio::test]
async fn a_slow_handshake_is_not_mistaken_for_a_port_without_tls() {
    let authority = Authority::new();
    let server = RedisServer::with_tls(&authority, &authority.issue(HOST, Validity::Now), &[]);
    let proxy = Proxy::to(server.tls_port());
    proxy.blackhole(Toward::Client);
    let url = through(&proxy, &authority);
    let heal = async {
        sleep(LEASE * 2).await;
        proxy.heal();
    };
    let (client, ()) = tokio::join!(client_with_lease(&url, LEASE * 30), heal);
    client.lock("k").run(async {}).await.expect("free");
}

/// A handshake that gets no answer, and one whose connection is closed, are faults of the network
/// like others: the call is `Unavailable`, and a later one connects.
#[tokio::test]
async fn a_handshake_that_is_cut_is_unavailable_and_repeated() {
    let authority = Authority::new();
    let server = RedisServer::with_tls(&authority, &authority.issue(HOST, Validity::Now), &[]);
    let proxy = Proxy::to(server.tls_port());
    let client = client_with_lease(&through(&proxy, &authority), LEASE * 30).await;
    let guard = client.lock("held").acquire().await.expect("free");
    for is_silent in [true, false] {
        if is_silent {
            proxy.blackhole(Toward::Client);
        } else {
            proxy.refuse(true);
        }
        proxy.reset();
        match client.lock("k").wait(LEASE).acquire().await.map(drop) {
            Err(LockError::Unavailable { .. }) => {}
            other => panic!("silent: {is_silent}: {other:?}"),
        }
        proxy.heal();
        client.lock("k").run(async {}).await.expect("the handshake is repeated");
    }
    assert!(guard.is_held());
    guard.release().await.expect("held");
    until_idle(&client, LEASE * 10).await;
}

//! Wrong URLs, foreign servers, users, certificates and values.

use std::time::Duration;

use lock_runtime::admin::LockAdmin;
use lock_runtime::{LockClient, LockError, LostReason, TlsOptions};
use lock_tests::support::{LEASE, until};
use lock_tests::{Authority, CapturedLog, EtcdCluster, EtcdOptions, RedisServer, Validity};
use tokio::io::AsyncWriteExt;

use crate::support::{LONG, RENEWED, client, patient_client, revokes_too_early};

async fn refused(url: &str) -> LockError {
    match LockClient::connect(url).await {
        Ok(_) => panic!("{url} is accepted"),
        Err(error) => error,
    }
}

#[tokio::test]
async fn a_wrong_url_is_a_configuration_error_without_its_secret() {
    for url in [
        "etcd://",
        "etcd://a,a",
        "etcd://a:0",
        "etcd://a?x=1",
        "etcd://u:geheim@a/path",
        "etcd://u:geheim@a,a",
    ] {
        let error = refused(url).await;
        assert!(matches!(error, LockError::Config { option: "url", .. }), "{url}: {error:?}");
        assert!(!format!("{error} {error:?}").contains("geheim"), "{error}");
    }
    let lazy = LockClient::builder().url("etcd://a").connect_lazy().map(drop);
    assert!(matches!(lazy, Err(LockError::Config { option: "url", .. })), "{lazy:?}");
}

#[tokio::test]
async fn a_server_that_is_down_is_unavailable() {
    let error = refused("etcd://127.0.0.1:1").await;
    assert!(matches!(error, LockError::Unavailable { .. }), "{error:?}");
    assert!(error.to_string().contains("127.0.0.1:1"), "{error}");
}

#[tokio::test]
async fn what_to_change_is_said_about_a_server_that_is_no_etcd_3() {
    let (redis, etcd) = (RedisServer::start(), EtcdCluster::single());
    // As etcd before version 3.
    let older = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address_of_older = older.local_addr().expect("an address").to_string();
    tokio::spawn(async move {
        while let Ok((mut socket, _)) = older.accept().await {
            let answer = b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n";
            let _ = socket.write_all(answer).await;
        }
    });
    let secured = EtcdCluster::start(1, &EtcdOptions { tls: true, ..EtcdOptions::default() });
    let addresses =
        [redis.address().clone(), address_of_older, format!("127.0.0.1:{}", secured.port(0))];
    for address in addresses {
        // It is unavailable if it has closed the connection before its answer was read.
        match refused(&format!("etcd://{address}")).await {
            LockError::Config { option: "url", problem: said, .. }
            | LockError::Unavailable { cause: said, .. } => {
                for part in [&*address, "2379", "etcds://"] {
                    assert!(said.contains(part), "{said}");
                }
            }
            error => panic!("{address}: {error:?}"),
        }
    }
    // Another member may be one.
    let url = format!("etcd://{},127.0.0.1:{}", redis.address(), etcd.port(0));
    for _ in 0..4 {
        let guard = client(&url).await.lock("k").acquire().await.expect("a lock");
        guard.release().await.expect("a release");
    }
}

#[tokio::test]
async fn a_member_that_is_down_does_not_matter() {
    let etcd = EtcdCluster::single();
    let url = format!("etcd://127.0.0.1:1,127.0.0.1:{}", etcd.port(0));
    for _ in 0..5 {
        let client = client(&url).await;
        let guard = client.lock("k").acquire().await.expect("a lock");
        guard.release().await.expect("a release");
    }
}

#[tokio::test]
async fn a_key_with_another_value_has_the_wrong_format() {
    let etcd = EtcdCluster::single();
    let client = client(&etcd.url()).await;
    etcd.control(&["put", "k", "something"]);
    for lock in [client.lock("k"), client.lock("k").lease(RENEWED)] {
        let error = lock.acquire().await.map(drop);
        assert!(matches!(error, Err(LockError::WrongFormat { .. })), "{error:?}");
    }
    assert_eq!(etcd.value("k").as_deref(), Some("something"));
    let inspected = LockAdmin::new(&client).inspect("k").await.map(drop);
    assert!(matches!(inspected, Err(LockError::WrongFormat { .. })), "{inspected:?}");
}

/// Together, the values of others are more than a client reads as one answer.
#[tokio::test]
async fn a_scan_passes_over_large_values_of_others() {
    let etcd = EtcdCluster::single();
    let client = client(&etcd.url()).await;
    let large = "x".repeat(120_000);
    for number in 0..45 {
        etcd.control(&["put", &format!("k{number}"), &large]);
    }
    let guards = (
        client.lock("k").acquire().await.expect("free"),
        client.lock("kz").acquire().await.expect("free"),
    );
    let (admin, mut found) = (LockAdmin::new(&client), Vec::new());
    let mut scan = admin.scan("k*").pause(0);
    while let Some(locks) = scan.next().await.expect("an answer") {
        found.extend(locks.into_iter().map(|lock| lock.key));
    }
    assert_eq!(found, ["k", "kz"]);
    drop(guards);
}

/// Users with passwords. `locks` may use the keys that begin with `own`.
pub(crate) fn with_users(options: &[&str]) -> EtcdCluster {
    let more = options.iter().map(ToString::to_string).collect();
    let etcd = EtcdCluster::start(1, &EtcdOptions { more, ..EtcdOptions::default() });
    etcd.control(&["user", "add", "root:root"]);
    etcd.control(&["user", "grant-role", "root", "root"]);
    etcd.control(&["user", "add", "locks:geheim"]);
    etcd.control(&["role", "add", "locks"]);
    etcd.control(&["role", "grant-permission", "locks", "readwrite", "--prefix=true", "own"]);
    etcd.control(&["user", "grant-role", "locks", "locks"]);
    etcd.control(&["auth", "enable"]);
    etcd
}

#[tokio::test]
async fn users_get_what_they_may_have() {
    let etcd = with_users(&["--bcrypt-cost=4"]);
    let client = client(&etcd.url_with("locks:geheim@")).await;
    client.ready().await.expect("it is ready");
    let guard = client.lock("own:1").acquire().await.expect("a lock");
    let denied = client.lock("other").acquire().await.map(drop);
    assert!(matches!(denied, Err(LockError::Denied { .. })), "{denied:?}");
    guard.release().await.expect("a release");
    for login in ["locks:wrong@", "nobody:geheim@", ""] {
        let error = refused(&etcd.url_with(login)).await;
        assert!(matches!(error, LockError::Denied { .. }), "{login}: {error:?}");
        assert!(!error.to_string().contains("geheim"), "{error}");
    }
}

#[tokio::test]
async fn a_user_without_authentication_is_a_configuration_error() {
    let etcd = EtcdCluster::single();
    let error = refused(&etcd.url_with("locks:geheim@")).await;
    assert!(matches!(error, LockError::Config { option: "url", .. }), "{error:?}");
    assert!(error.to_string().contains("auth enable"), "{error}");
}

#[tokio::test]
async fn a_client_logs_in_again_when_its_token_has_expired() {
    let mut etcd = with_users(&["--bcrypt-cost=4", "--auth-token-ttl=1"]);
    let client = client(&etcd.url_with("locks:geheim@")).await;
    let held = client.lock("own:held").acquire().await.expect("a lock");
    tokio::time::sleep(LEASE * 4).await;
    let guard = client.lock("own:1").acquire().await.expect("a lock");
    guard.release().await.expect("a release");
    assert!(held.is_held());
    // A member that has restarted knows no tokens.
    etcd.restart(0);
    let guard = client.lock("own:1").acquire().await.expect("a lock");
    guard.release().await.expect("a release");
}

/// The next renewal, which would notice it as well, comes later.
#[tokio::test]
async fn a_key_is_watched_although_the_login_of_the_earlier_watches_has_expired() {
    let etcd = with_users(&["--bcrypt-cost=4", "--auth-token-ttl=1"]);
    let client = patient_client(&etcd.url_with("locks:geheim@"), LONG * 6).await;
    let held = client.lock("own:1").acquire().await.expect("a lock");
    tokio::time::sleep(LEASE * 4).await;
    let guard = client.lock("own:2").acquire().await.expect("a lock");
    etcd.control(&["--user=root:root", "del", "own:2"]);
    let lost = tokio::time::timeout(LONG, guard.lost()).await;
    assert_eq!(lost.expect("the key is watched"), LostReason::Gone);
    held.release().await.expect("a release");
}

/// A lock that cannot be released stays for as long as the lease of the other locks, unless it is deleted later.
#[tokio::test]
async fn a_release_that_was_refused_is_made_up_for() {
    let etcd = with_users(&["--bcrypt-cost=4"]);
    let root = |arguments: &[&str]| etcd.control(&[&["--user=root:root"], arguments].concat());
    root(&["role", "grant-permission", "locks", "readwrite", "--prefix=true", "rest"]);
    // A release also reads the key. A user who may not even write it cannot renew the lease in new versions.
    root(&["role", "add", "writers"]);
    root(&["role", "grant-permission", "writers", "write", "--prefix=true", "own"]);
    root(&["user", "grant-role", "locks", "writers"]);
    let client = client(&etcd.url_with("locks:geheim@")).await;
    let held = client.lock("rest:held").acquire().await.expect("a lock");
    let left = client.lock("own:left").acquire().await.expect("a lock");
    root(&["role", "revoke-permission", "--prefix=true", "locks", "own"]);
    drop(left);
    // The client does not release a key any more whose lease must have ended.
    tokio::time::sleep(RENEWED + LEASE * 8).await;
    let exists = || root(&["get", "--keys-only", "own:left"]).contains("own:left");
    assert!(exists() && held.is_held());
    root(&["role", "grant-permission", "locks", "readwrite", "--prefix=true", "own"]);
    until(LEASE * 30, || !exists()).await.expect("the key that was left is deleted");
    assert!(held.is_held(), "the other lock keeps its lease");
}

/// All locks of a client share a lease, and new versions renew it only for a user who may write all its keys.
#[tokio::test]
async fn a_permission_that_is_revoked_does_not_end_the_locks_on_other_keys() {
    let etcd = with_users(&["--bcrypt-cost=4"]);
    let root = |arguments: &[&str]| etcd.control(&[&["--user=root:root"], arguments].concat());
    root(&["role", "grant-permission", "locks", "readwrite", "--prefix=true", "rest"]);
    let client = client(&etcd.url_with("locks:geheim@")).await;
    let held = client.lock("rest:held").acquire().await.expect("a lock");
    let left = client.lock("own:left").acquire().await.expect("a lock");
    root(&["role", "revoke-permission", "--prefix=true", "locks", "own"]);
    tokio::time::sleep(RENEWED * 4).await;
    assert!(held.is_held(), "the other lock is lost");
    let next = client.lock("rest:next").acquire().await.expect("a lock");
    tokio::time::sleep(RENEWED * 2).await;
    assert!(held.is_held() && next.is_held(), "the other locks are lost");
    drop(left);
}

#[tokio::test]
async fn a_full_database_is_unavailable_until_it_has_room() {
    let more = vec!["--quota-backend-bytes=200000".to_owned()];
    let etcd = EtcdCluster::start(1, &EtcdOptions { more, ..EtcdOptions::default() });
    let client = LockClient::builder().url(etcd.url()).lease(RENEWED).wait(LEASE).connect().await;
    let client = client.expect("a member is up");
    let held = client.lock("held").acquire().await.expect("a lock");
    let value = "v".repeat(20_000);
    let mut is_full = false;
    for number in 0..50 {
        is_full = is_full || !etcd.tries(&["put", &format!("fill{number}"), &value]);
    }
    assert!(is_full);
    let error = client.lock("k").acquire().await.map(drop);
    match error {
        Err(LockError::Unavailable { cause, .. }) => {
            assert!(cause.contains("defragment"), "{cause}");
        }
        other => panic!("{other:?}"),
    }
    assert!(matches!(client.ready().await, Err(LockError::Unavailable { .. })));
    tokio::time::sleep(RENEWED * 2).await;
    assert!(held.is_held(), "a lock is renewed although the database is full");
    held.release().await.expect("a release needs no room");
    etcd.control(&["del", "--prefix", "fill"]);
    let status = etcd.control(&["endpoint", "status", "--write-out=fields"]);
    let revision = status.lines().find_map(|line| line.strip_prefix("\"Revision\" : "));
    etcd.control(&["compact", revision.expect("a revision").trim()]);
    etcd.control(&["defrag"]);
    etcd.control(&["alarm", "disarm"]);
    let guard = client.lock("k").wait(LEASE * 20).acquire().await.expect("a lock");
    guard.release().await.expect("a release");
    client.ready().await.expect("it is ready");
}

/// Newer versions tell the status of a member to the user `root` only.
#[tokio::test]
async fn a_user_is_not_ready_while_the_database_is_full() {
    let etcd = with_users(&["--bcrypt-cost=4", "--quota-backend-bytes=200000"]);
    let client = client(&etcd.url_with("locks:geheim@")).await;
    client.ready().await.expect("it is ready");
    let root = |arguments: &[&str]| etcd.tries(&[&["--user=root:root"], arguments].concat());
    let value = "v".repeat(20_000);
    assert!((0..50).any(|number| !root(&["put", &format!("fill{number}"), &value])));
    let error = client.ready().await;
    assert!(matches!(error, Err(LockError::Unavailable { .. })), "{error:?}");
    assert!(root(&["alarm", "disarm"]));
    client.ready().await.expect("it is ready");
}

#[tokio::test]
async fn locks_work_over_tls() {
    let etcd = EtcdCluster::start(1, &EtcdOptions { tls: true, ..EtcdOptions::default() });
    let tls = TlsOptions::new().ca_file(etcd.authority());
    let client =
        LockClient::builder().url(etcd.url()).tls(tls.clone()).lease(RENEWED).connect().await;
    let client = client.expect("a member is up");
    let guard = client.lock("k").acquire().await.expect("a lock");
    guard.release().await.expect("a release");
    // The same by the URL alone.
    let by_url = etcd.url() + &format!("?tls_ca={}", etcd.authority().display());
    LockClient::connect(&by_url).await.expect("a member is up");
    let twice = LockClient::builder().url(by_url).tls(tls.clone()).connect().await;
    assert!(matches!(twice.map(drop), Err(LockError::Config { option: "url", .. })));
    // An authority that nobody trusts, and a URL without TLS.
    let error = refused(&etcd.url()).await;
    assert!(matches!(error, LockError::Config { option: "tls", .. }), "{error:?}");
    assert!(error.to_string().contains("not trusted"), "{error}");
    let plain = etcd.url().replace("etcds", "etcd");
    let both = LockClient::builder().url(plain).tls(tls).connect().await;
    assert!(matches!(both.map(drop), Err(LockError::Config { option: "tls", .. })));
}

#[tokio::test]
async fn a_client_shows_its_certificate_and_reads_it_again() {
    let options = EtcdOptions { tls: true, client_certificates: true, ..EtcdOptions::default() };
    let mut etcd = EtcdCluster::start(1, &options);
    let tls = TlsOptions::new().ca_file(etcd.authority());
    let without = LockClient::builder().url(etcd.url()).tls(tls.clone()).connect().await.map(drop);
    match without {
        Err(LockError::Unavailable { cause, .. }) => {
            assert!(cause.contains("`tls_cert` and `tls_key`"), "{cause}");
        }
        Err(LockError::Denied { .. }) => {}
        other => panic!("{other:?}"),
    }
    let own = etcd.client_certificate();
    let tls = tls.client_certificate(own.certificate(), own.key());
    let by_url = format!(
        "?tls_ca={}&tls_cert={}&tls_key={}",
        etcd.authority().display(),
        own.certificate().display(),
        own.key().display()
    );
    LockClient::connect(&(etcd.url() + &by_url)).await.expect("a member is up");
    let builder = LockClient::builder().url(etcd.url()).tls(tls).lease(RENEWED).wait(LEASE * 4);
    let client = builder.connect().await.expect("a member is up");
    let guard = client.lock("k").acquire().await.expect("a lock");
    guard.release().await.expect("a release");
    // The next connection shows what the files have by then.
    Authority::new().reissue(&own, &["client"], Validity::Now);
    etcd.restart(0);
    let refused = client.lock("k").acquire().await.map(drop);
    assert!(refused.is_err(), "the certificate is not read again");
}

#[tokio::test]
async fn a_short_lease_is_warned_about_and_works() {
    let etcd = EtcdCluster::single();
    let client = LockClient::builder().url(etcd.url()).lease(LEASE * 3 / 2).connect().await;
    let client = client.expect("a member is up");
    let guard = client.lock("k").acquire().await.expect("a lock");
    tokio::time::sleep(Duration::from_secs(4)).await;
    assert!(guard.is_held());
}

#[tokio::test]
async fn a_version_that_may_free_locks_too_early_is_warned_about_once() {
    let log = CapturedLog::warnings();
    let etcd = EtcdCluster::single();
    let (version, address) = (etcd.version(), format!("127.0.0.1:{}", etcd.port(0)));
    let client = client(&etcd.url()).await;
    let warnings = || log.lines(&["may free locks too early", &version, &address]);
    if revokes_too_early(&version) {
        until(LEASE * 10, || !warnings().is_empty()).await.expect("a warning");
    }
    let guard = client.lock("k").acquire().await.expect("a lock");
    guard.release().await.expect("a release");
    client.ready().await.expect("it is ready");
    drop(client);
    tokio::time::sleep(LEASE / 2).await;
    assert_eq!(warnings().len(), usize::from(revokes_too_early(&version)), "{:?}", warnings());
}

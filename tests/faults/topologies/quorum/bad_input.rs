//! Servers that make no quorum, and locks that a quorum does not have.

use std::time::Duration;

use lock_runtime::admin::LockAdmin;
use lock_runtime::{LockClient, LockError, WireFormat};
use lock_tests::{Authority, Proxy, Quorum, RedisServer, Validity};

use super::{LONG, quorum_client};
use crate::support::{LEASE, until};

/// The option and the problem of a client or a call that is not possible.
fn refused<T: std::fmt::Debug>(outcome: Result<T, LockError>) -> (&'static str, String) {
    match outcome {
        Err(LockError::Config { option, problem, .. }) => (option, problem),
        other => panic!("{other:?}"),
    }
}

fn assert_refused<T: std::fmt::Debug>(outcome: Result<T, LockError>, option: &str, words: &str) {
    let (named, problem) = refused(outcome);
    assert_eq!(named, option, "{problem}");
    assert!(problem.contains(words), "{problem}");
    assert!(!problem.contains("c4nary"), "{problem}");
}

#[tokio::test]
async fn servers_that_are_not_independent_are_refused() {
    let quorum = Quorum::new(2);
    let port = quorum.server(0).port();
    let replica = RedisServer::plain(&["--replicaof", "127.0.0.1", &port.to_string()]);
    let node = RedisServer::start_node();
    let urls = |third: String| [quorum.urls(), vec![third]].concat();
    let same = format!("redis://localhost:{port}");
    let twice = LockClient::quorum(urls(same)).await;
    assert_refused(twice, "quorum", "are the same server, or parts of one cluster");
    assert_refused(LockClient::quorum(urls(replica.plain_url())).await, "quorum", "is a replica");
    let of_cluster = LockClient::quorum(urls(node.plain_url())).await;
    assert_refused(
        of_cluster,
        "url",
        "independent of each other; name servers that belong to no cluster",
    );
}

#[tokio::test]
async fn servers_of_different_versions_are_refused() {
    let quorum = Quorum::new(3);
    let last = Proxy::to(quorum.server(2).port());
    let mut urls = quorum.urls();
    urls[2] = last.url();
    let same = LockClient::quorum(urls.clone()).await.expect("servers of one version");
    same.shutdown().await.expect("drained");
    let info: String = quorum.server(2).command(&["INFO"]);
    let line = |name: &str| info.lines().find(|line| line.starts_with(name));
    let version = line("valkey_version:").or_else(|| line("redis_version:")).expect("a version");
    let (name, number) = version.split_once(':').expect("a number");
    let newer = format!("{name}:{}", "9".repeat(number.len()));
    last.rewrite_replies(version, &newer);
    let upgraded = LockClient::quorum(urls).await;
    assert_refused(upgraded, "quorum", "use one version for all servers, and upgrade them while");
}

#[tokio::test]
async fn the_number_of_servers_is_odd_and_they_are_named_once() {
    let host = "redis+redlock://user:c4nary@one";
    for (url, words) in [
        (host.to_owned(), "one server"),
        (format!("{host},two"), "2 servers"),
        (format!("{host},two,three,four"), "name an odd number"),
        (format!("{host},two,one:6379"), "a host twice"),
        (format!("{host},two,"), "host 3 of the list is empty"),
        (format!("{host},two,three/c4nary"), "not a number"),
        ("redis+redlock://".to_owned(), "names no host"),
    ] {
        assert_refused(LockClient::connect(url).await, "url", words);
    }
    assert_refused(LockClient::quorum([""; 0]).await, "quorum", "no server");
    let twice = ["redis://:c4nary@one", "redis://two", "redis://one"];
    assert_refused(LockClient::quorum(twice).await, "quorum", "one:6379 is named twice");
    let both = LockClient::builder().url("memory:").quorum(["memory:"; 3]).connect().await;
    assert_refused(both, "quorum", "choose one");
    let shown = format!("{:?}", LockClient::builder().quorum(twice).url(host));
    assert!(!shown.contains("c4nary"), "{shown}");
}

#[tokio::test]
async fn locks_that_a_quorum_does_not_have_are_errors_that_say_so() {
    let quorum = Quorum::start(3);
    let client = quorum_client(&quorum).await;
    let reader = client.read_write("k").read().acquire().await;
    assert_refused(reader, "mode", "a quorum has no read-write locks");
    let permit = client.semaphore("k", 2).acquire().await;
    assert_refused(permit, "permits", "a quorum has no semaphores");
    let fair = client.lock("k").fair().acquire().await;
    assert_refused(fair, "fair", "has no queues");
    let redisson = client.lock("k").wire_format(WireFormat::Redisson).acquire().await;
    assert_refused(redisson, "wire_format", "a quorum has no locks in other formats");
    let periodic = client.periodic("k", Duration::from_secs(60)).run(async {}).await;
    assert_refused(periodic, "every", "a quorum has no records of runs");
    let builder = LockClient::builder().url(quorum.url()).wire_format(WireFormat::Timestamp);
    assert_refused(builder.connect().await, "wire_format", "in the format `Token`");
    let clients = LockAdmin::new(&client).clients().await;
    assert_refused(clients, "url", "connect to one of the servers");
    // One of the servers leads to the clients of the quorum.
    let at_server = LockClient::connect(quorum.urls().remove(0)).await.expect("up");
    let found = LockAdmin::new(&at_server).clients().await.expect("answers");
    assert_eq!(found.answers.len(), 2, "{found:?}");
    // The call for a run had the lock, and a release waits for a majority only.
    let freed = until(LEASE * 5, || quorum.having("k").is_empty()).await;
    assert!(freed.is_some(), "left at {:?}", quorum.having("k"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_server_may_have_a_password_of_its_own() {
    let secret: &[&str] = &["--requirepass", "c4nary"];
    let quorum = Quorum::with(&[secret, &["--requirepass", "other"], &[]]);
    let url = |index: usize, login: &str| quorum.server(index).url_as(login);
    let urls = [url(0, ":c4nary"), url(1, ":other"), quorum.server(2).plain_url()];
    let builder = LockClient::builder().quorum(urls).lease(LEASE).wait(LONG);
    builder.connect().await.expect("logged in").lock("k").run(async {}).await.expect("granted");
    let wrong = [url(0, ":c4nary-2"), url(1, ":other"), quorum.server(2).plain_url()];
    match LockClient::quorum(wrong).await {
        Err(LockError::Denied { cause, .. }) => {
            assert!(cause.contains(&quorum.server(0).address()), "{cause}");
            assert!(!cause.contains("c4nary"), "{cause}");
        }
        other => panic!("{other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_quorum_works_over_tls_with_one_set_of_credentials() {
    let authority = Authority::new();
    let identity = authority.issue(&["127.0.0.1"], Validity::Now);
    let options = ["--requirepass", "c4nary"];
    let servers: Vec<_> =
        (0..3).map(|_| RedisServer::with_tls(&authority, &identity, &options)).collect();
    let hosts: Vec<_> =
        servers.iter().map(|server| format!("127.0.0.1:{}", server.tls_port())).collect();
    let (hosts, ca) = (hosts.join(","), authority.file().display().to_string());
    let url = format!("rediss+redlock://:c4nary@{hosts}/3?tls_ca={ca}");
    let client = LockClient::builder().url(url).lease(LEASE).wait(LONG).connect().await;
    let client = client.expect("the certificates are trusted");
    client.lock("k").run(async {}).await.expect("granted");
    client.shutdown().await.expect("drained");
}

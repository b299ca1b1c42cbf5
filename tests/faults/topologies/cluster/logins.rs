//! Connections to the nodes of a cluster that are logged out.

use std::sync::{Arc, Mutex};
use std::time::Instant;

use lock_runtime::{Credentials, LockClient, LockClientBuilder, LockError};
use lock_tests::{Cluster, Proxy};

use super::{LONG_LEASE, errors, was_renewed_since};
use crate::support::{assert_all_held, until};

/// Sets the password of the user of all nodes.
fn set_password(cluster: &Cluster, password: &str) {
    let password = format!(">{password}");
    for node in 0..cluster.size() {
        let user = ["ACL", "SETUSER", "locker", "on", "resetpass", &password, "~*", "&*", "+@all"];
        cluster.node(node).tell(&user);
    }
}

/// Logs out the connection of the renewals to one node, in the middle of a batch, and calls `before`
/// before that.
async fn assert_a_batch_is_repeated(
    cluster: &Cluster,
    builder: LockClientBuilder,
    before: impl FnOnce(),
) {
    let behind = cluster.node(1).port();
    let proxy = Proxy::to(behind);
    let own = proxy.port();
    let builder = builder
        .address_map(move |host, port| (host.to_owned(), if port == behind { own } else { port }));
    let client = builder.lease(LONG_LEASE).connect().await.expect("the password is right");
    let (here, elsewhere) = (cluster.keys_of(1, 20), cluster.keys_of(2, 5));
    let mut guards = Vec::new();
    for key in here.iter().chain(&elsewhere) {
        guards.push(client.lock(&**key).acquire().await.expect("free"));
    }
    before();
    let connections = proxy.connections();
    proxy.log_out_before(&here[10]);
    let is_refused = || errors(cluster, 1, "NOAUTH") > 0;
    assert!(until(LONG_LEASE, is_refused).await.is_some(), "a batch is refused");
    let since = Instant::now();
    for key in &here {
        until(LONG_LEASE, || was_renewed_since(cluster, 1, key, since)).await;
        assert_all_held(&guards);
    }
    assert!(proxy.connections() > connections, "a new connection is used");
    for guard in guards {
        guard.release().await.expect("held");
    }
    assert_eq!(client.stats().lost, 0);
}

/// Starts a cluster that needs a password.
fn start() -> Cluster {
    let cluster = Cluster::with(&["--requirepass", "any", "--masterauth", "any"]);
    set_password(&cluster, "first");
    cluster
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn renewals_over_a_connection_that_is_logged_out_are_repeated_over_another_one() {
    let cluster = start();
    let url = cluster.url().replace("://", "://locker:first@");
    assert_a_batch_is_repeated(&cluster, LockClient::builder().url(url), || {}).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn renewals_over_a_connection_that_is_logged_out_are_repeated_with_another_password() {
    let (cluster, password) = (start(), Arc::new(Mutex::new("first")));
    let source = Arc::clone(&password);
    let builder = LockClient::builder().url(cluster.url()).credentials(move || {
        let password = *source.lock().expect("no panic");
        async move { Ok::<_, LockError>(Credentials::new(password).user("locker")) }
    });
    let change = || {
        set_password(&cluster, "second");
        *password.lock().expect("no panic") = "second";
    };
    assert_a_batch_is_repeated(&cluster, builder, change).await;
}

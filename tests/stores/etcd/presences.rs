//! Who the clients are that have locks in etcd.

use lock_runtime::admin::{LockAdmin, StoredHolder};
use lock_runtime::{Identity, LockClient, LockError};
use lock_tests::support::{LEASE, until};
use lock_tests::{EtcdCluster, running_time};

use crate::inputs::with_users;
use crate::support::{LONG, RENEWED};

async fn client_in(url: &str, namespace: &str, identity: Identity) -> LockClient {
    let client = LockClient::builder().url(url).namespace(namespace).identity(identity);
    client.lease(RENEWED).wait(LEASE).connect().await.expect("a member is up")
}

/// The only holder of a lock.
async fn holder(client: &LockClient, key: &str) -> StoredHolder {
    let lock = LockAdmin::new(client).inspect(key).await.expect("an answer").expect("it is held");
    <[StoredHolder; 1]>::try_from(lock.holders).expect("one holder").into_iter().next().expect("it")
}

#[tokio::test]
async fn the_process_of_a_holder_is_known_in_its_namespace() {
    let etcd = EtcdCluster::single();
    let identity = Identity::named("web-3").service("shop", "1.4.2");
    let one = client_in(&etcd.url(), "shop", identity).await;
    let two = client_in(&etcd.url(), "shop", Identity::of_process()).await;
    let guard = one.lock("order:1").acquire().await.expect("free");
    // It is written in the background.
    until(LONG, || etcd.presences().len() == 1).await.expect("a presence");
    let found = holder(&two, "order:1").await.client;
    let shown = format!("web-3 (pid {}, shop 1.4.2)", std::process::id());
    assert_eq!(found.to_string(), shown);
    assert!(found.id.is_some_and(|id| etcd.presences()[0].contains(&id)));
    match two.lock("order:1").acquire().await.map(drop) {
        Err(error @ LockError::Busy { .. }) => {
            assert!(error.to_string().contains(&shown), "{error}");
        }
        other => panic!("{other:?}"),
    }
    // A reader without the namespace does not find it.
    let outside = client_in(&etcd.url(), "", Identity::none()).await;
    let found = holder(&outside, "shop:order:1").await.client;
    assert!(found.process.is_none() && found.id.is_some(), "{found:?}");
    // All of them end with their leases.
    guard.release().await.expect("held");
    drop((one, two, outside));
    until(LONG * 3, || etcd.presences().is_empty()).await.expect("nothing is left");
}

#[tokio::test]
async fn a_client_without_an_identity_has_no_presence() {
    let etcd = EtcdCluster::single();
    let client = client_in(&etcd.url(), "shop", Identity::none()).await;
    let guard = client.lock("k").acquire().await.expect("free");
    tokio::time::sleep(LEASE).await;
    assert_eq!(etcd.presences(), Vec::<String>::new());
    // It knows itself.
    assert!(holder(&client, "k").await.client.id.is_some());
    guard.release().await.expect("held");
}

/// The user may use the keys that begin with `own`.
#[tokio::test]
async fn a_user_needs_no_permission_for_presences() {
    let etcd = with_users(&["--bcrypt-cost=4"]);
    let url = etcd.url_with("locks:geheim@");
    for (namespace, key, is_known) in [("", "own:k", false), ("own", "k", true)] {
        let one = client_in(&url, namespace, Identity::of_process()).await;
        let two = client_in(&url, namespace, Identity::of_process()).await;
        let guard = one.lock(key).acquire().await.expect("a lock");
        let process = async || holder(&two, key).await.client.process;
        if is_known {
            let began = std::time::Instant::now();
            while process().await.is_none() {
                assert!(running_time(began) < LONG, "the presence is not written");
                tokio::time::sleep(LEASE / 50).await;
            }
        } else {
            tokio::time::sleep(LEASE).await;
            assert_eq!(process().await, None);
        }
        // The lease is renewed, although it could have a key that the user may not write.
        tokio::time::sleep(RENEWED).await;
        assert!(guard.is_held());
        guard.release().await.expect("held");
    }
}

//! Renewals that race with releases. [`simulated::renewals`](crate::simulated) has more of them.

use std::time::Duration;

use lock_runtime::{Identity, LockClient};
use lock_tests::RedisServer;
use tokio::task::JoinSet;
use tokio::time::sleep;

use crate::support::{LEASE, until_idle};

/// Takes `holds` keys at once, and frees each key after a time of its own by a release or a drop.
pub(crate) async fn hold_and_release(
    client: &LockClient,
    holds: u32,
    time: impl Fn(u32) -> Duration,
) {
    let mut running = JoinSet::new();
    for n in 0..holds {
        let (client, time) = (client.clone(), time(n));
        running.spawn(async move {
            let guard = client.lock(format!("k{n}")).acquire().await.expect("free");
            sleep(time).await;
            if n % 2 == 0 {
                guard.release().await.expect("held");
            }
        });
    }
    while let Some(done) = running.join_next().await {
        done.expect("no panic");
    }
}

/// All releases are at the time of the renewal. No renewal is sent later.
#[tokio::test(flavor = "multi_thread")]
async fn a_thousand_releases_that_race_with_renewals_leave_no_key() {
    let server = RedisServer::start();
    // Long enough for a busy machine to renew a thousand locks in time.
    let lease = LEASE * 4;
    // Without a presence, which is written with the same command.
    let builder = LockClient::builder().url(server.url()).lease(lease).identity(Identity::none());
    let client = builder.connect().await.expect("up");
    hold_and_release(&client, 1000, |n| lease * 31 / 100 + lease * (n % 10) / 250).await;
    until_idle(&client, lease).await;
    assert_eq!(server.key_count(), 0);
    let looked = server.calls("get");
    sleep(lease).await;
    assert_eq!(server.calls("get"), looked, "no renewal is sent after the release");
    assert_eq!(server.calls("set"), 1000, "each key is taken once, and none is created again");
}

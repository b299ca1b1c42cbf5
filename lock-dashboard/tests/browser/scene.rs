//! A shop with several services that compete for locks, for the looks of the page.

use std::sync::Arc;
use std::time::Duration;

use lock_runtime::{Identity, LockClient, LockError, distributed_lock, with_client};
use lock_tests::RedisServer;
use tokio::task::JoinSet;
use tokio::time::sleep;

/// A key that would do harm in a page that takes it for markup.
pub(crate) const HOSTILE: &str = "<img src=x onerror=\"document.title='harmed'\">";

#[distributed_lock(key = "order:<id>", wait = "30s")]
async fn pay_order(id: u64, work: Duration) -> Result<(), LockError> {
    let _ = id;
    sleep(work).await;
    Ok(())
}

#[distributed_lock(key = "stock:<item>", wait = "300ms")]
async fn count_stock(item: &str, work: Duration) -> Result<(), LockError> {
    let _ = item;
    sleep(work).await;
    Ok(())
}

#[distributed_lock(key = "report:monthly")]
async fn write_monthly_report() -> Result<(), LockError> {
    sleep(Duration::from_secs(3600)).await;
    Ok(())
}

/// The services, which run until this is dropped.
pub(crate) struct Scene {
    pub(crate) client: LockClient,
    _work: JoinSet<()>,
}

impl Scene {
    pub(crate) async fn start(server: &RedisServer) -> Self {
        let names = [("web-1", "shop"), ("web-2", "shop"), ("billing-7d9f-x2k", "billing")];
        let mut clients = Vec::new();
        for (name, service) in names {
            let identity = Identity::named(name).service(service, "1.4.2");
            let builder = LockClient::builder()
                .url(server.url())
                .identity(identity)
                .revocable(service == "shop");
            clients.push(builder.lease(Duration::from_secs(20)).connect().await.expect("up"));
        }
        let client = clients[0].clone();
        let clients = Arc::new(clients);
        let mut work = JoinSet::new();
        for n in 0..12_u64 {
            let client = clients[usize::try_from(n).expect("small") % 3].clone();
            work.spawn(with_client(client, async move {
                for round in 0_u64.. {
                    let pause = Duration::from_millis(40 + (n * 37 + round * 53) % 400);
                    let _ = pay_order(n % 4, pause).await;
                    let _ = count_stock(["pen", "gift"][usize::from(n % 2 == 0)], pause / 3).await;
                    sleep(pause / 2).await;
                }
            }));
        }
        work.spawn(with_client(clients[2].clone(), async { drop(write_monthly_report().await) }));
        for (n, client) in clients.iter().enumerate() {
            let client = client.clone();
            work.spawn(hold(client, n));
        }
        Self { client, _work: work }
    }
}

/// Holds some locks of other kinds, and loses some.
async fn hold(client: LockClient, n: usize) {
    let hour = Duration::from_secs(3600);
    let fixed = client.lock(format!("export:2024-0{}", n + 1)).template("export:<month>");
    let fixed = fixed.lease(Duration::from_secs(90)).acquire().await;
    let permits = client.semaphore("pool:mailers", 8).permits(2).acquire().await;
    let reader = client.read_write("catalog").read().acquire().await;
    for _ in 0..3 + n {
        let short = client.lock(format!("sync:eu-west-{n}")).template("sync:<region>");
        if let Ok(guard) = short.lease(Duration::from_millis(700)).acquire().await {
            guard.lost().await;
        }
        sleep(Duration::from_millis(900)).await;
    }
    let hostile = client.lock(HOSTILE).template("upload:<name>").wait(hour).acquire().await;
    sleep(hour).await;
    drop((fixed, permits, reader, hostile));
}

//! What counts for the last five minutes.

use lock_runtime::LockClient;
use lock_runtime::admin::LockAdmin;

use super::*;

const LEASE: Duration = Duration::from_secs(60);

fn seconds(count: u64) -> Duration {
    Duration::from_secs(count)
}

/// A client that uses locks, and one who asks it.
struct Asked {
    client: LockClient,
    admin: LockAdmin,
}

impl Asked {
    fn new() -> Self {
        let client = LockClient::memory();
        let admin = LockAdmin::new(&client);
        Self { client, admin }
    }

    async fn use_lock(&self) {
        let lock = self.client.lock("k").template("t").lease(LEASE);
        lock.acquire().await.expect("free").release().await.expect("held");
    }

    async fn add_to(&self, window: &mut ContentionWindow, at: Instant) -> Increments {
        window.add(&self.admin.snapshots().await.expect("up"), at)
    }
}

#[tokio::test]
async fn what_happened_while_nobody_watched_is_not_part_of_the_last_minutes() {
    let (asked, start) = (Asked::new(), Instant::now());
    let mut window = ContentionWindow::new(seconds(1));
    let _held = asked.client.lock("long").template("long").acquire().await.expect("free");
    let lock = asked.client.lock("long").template("long").wait(LEASE);
    let waiting = tokio::spawn(async move { lock.acquire().await.map(drop) });
    while asked.client.stats().queued == 0 {
        tokio::task::yield_now().await;
    }
    asked.use_lock().await;
    let none = Increments::default();
    assert_eq!(asked.add_to(&mut window, start).await, none, "the first one");
    asked.use_lock().await;
    let added = asked.add_to(&mut window, start + seconds(5)).await;
    assert_eq!(added, Increments { grants: 1, over: seconds(5) });
    // Nobody watches for two minutes.
    asked.use_lock().await;
    let added = asked.add_to(&mut window, start + seconds(125)).await;
    assert_eq!(added, none);
    assert_eq!(window.covered(), seconds(5));
    let rows = window.rows();
    let of = |template| rows.iter().find(|row| row.template == template).expect("it was used");
    assert_eq!((of("t").grants, of("long").waited), (1, 5000.0));
    assert_eq!(of("t").line.iter().flatten().count(), 1);
    let added = asked.add_to(&mut window, start + seconds(130)).await;
    assert_eq!(added, Increments { grants: 0, over: seconds(5) });
    waiting.abort();
}

#[tokio::test]
async fn measurements_are_forgotten_after_five_minutes() {
    let (asked, start) = (Asked::new(), Instant::now());
    let mut window = ContentionWindow::new(seconds(1));
    asked.add_to(&mut window, start).await;
    asked.use_lock().await;
    asked.add_to(&mut window, start + seconds(5)).await;
    assert_eq!(window.rows()[0].grants, 1);
    asked.add_to(&mut window, start + seconds(299)).await;
    assert_eq!(window.rows()[0].grants, 1);
    asked.add_to(&mut window, start + seconds(301)).await;
    assert_eq!((window.rows()[0].grants, window.covered()), (0, seconds(2)));
}

#[tokio::test]
async fn snapshots_are_due_every_five_seconds() {
    let (asked, start) = (Asked::new(), Instant::now());
    let mut window = ContentionWindow::new(seconds(1));
    assert!(window.is_due(start));
    asked.add_to(&mut window, start).await;
    assert!(window.is_due(start + seconds(1)), "there are numbers soon");
    asked.add_to(&mut window, start + seconds(1)).await;
    assert!(!window.is_due(start + seconds(5)) && window.is_due(start + seconds(6)));
}

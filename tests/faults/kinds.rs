//! Locks of several kinds that are held and waited for during a fault, for tests of topologies.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use lock_runtime::LockClient;
use lock_tests::{RedisServer, TestedHold, TestedKind, left_of_locks, within};
use tokio::task::JoinSet;
use tokio::time::sleep;

use crate::support::{LEASE, client_with_lease, until, until_idle};

/// What is held, and what waits for it: two readers before a writer, a writer before two readers, and so on.
const CONTESTS: [(&[TestedKind], &[TestedKind]); 7] = [
    (&[TestedKind::Reader, TestedKind::Reader], &[TestedKind::Writer]),
    (&[TestedKind::Writer], &[TestedKind::Reader, TestedKind::Reader]),
    (&[TestedKind::Permits], &[TestedKind::Permits, TestedKind::Permits]),
    (&[TestedKind::Fair], &[TestedKind::Fair, TestedKind::Fair]),
    (&[TestedKind::Set], &[TestedKind::Plain, TestedKind::Plain]),
    (&[TestedKind::Leader], &[TestedKind::Leader]),
    (&[TestedKind::Run], &[TestedKind::Run]),
];

/// The number of keys of a [`KindContention`].
pub(crate) const CONTESTED: usize = CONTESTS.len();

/// Locks of readers, writers, permits, fair calls, a set, a leader and a run that two clients hold and
/// another one waits for.
pub(crate) struct KindContention {
    holders: [LockClient; 2],
    waiter: LockClient,
    contests: Vec<KindContest>,
}

struct KindContest {
    key: String,
    held: Vec<TestedHold>,
    waits: JoinSet<()>,
    /// Whether those that wait must not have the lock.
    is_held: Arc<AtomicBool>,
}

impl KindContention {
    /// Connects the clients. All locks are held, and the calls for them wait at this server.
    pub(crate) async fn start(
        url: &str,
        lease: Duration,
        (server, keys): (&RedisServer, Vec<String>),
    ) -> Self {
        let holders = [client_with_lease(url, lease).await, client_with_lease(url, lease).await];
        let waiter = client_with_lease(url, lease).await;
        let mut contests = Vec::new();
        for ((held, waits), key) in CONTESTS.iter().zip(keys) {
            let mut contest = KindContest::start(key, (&holders, held)).await;
            contest.add_waits(&waiter, waits);
            let wait = until(LEASE * 20, || server.queued(&contest.key) > 0).await;
            assert!(wait.is_some(), "nobody waits for {}", contest.key);
            contests.push(contest);
        }
        Self { holders, waiter, contests }
    }

    /// The keys.
    pub(crate) fn keys(&self) -> impl Iterator<Item = &str> {
        self.contests.iter().map(|contest| contest.key.as_str())
    }

    /// Lets each client use this free lock, so that each of them knows where the locks are now.
    pub(crate) async fn use_all_clients(&self, key: &str) {
        for client in self.holders.iter().chain([&self.waiter]) {
            client.lock(key).wait(LEASE * 20).run(async {}).await.expect("served");
        }
    }

    /// Asserts that all locks are held still, and that each call gets its lock within `limit` after the
    /// release, one after the other. Then nothing is left at this server.
    pub(crate) async fn end(self, limit: Duration, server: &RedisServer) {
        let Self { holders, waiter, contests } = self;
        for contest in contests {
            contest.end(limit).await;
        }
        for client in holders.iter().chain([&waiter]) {
            assert_eq!(client.stats().lost, 0, "locks were lost");
            until_idle(client, LEASE * 20).await;
        }
        let is_empty = until(LEASE * 20, || left_of_locks(server).is_empty()).await;
        assert!(is_empty.is_some(), "{:?} are left", left_of_locks(server));
    }
}

impl KindContest {
    async fn start(key: String, (holders, kinds): (&[LockClient; 2], &[TestedKind])) -> Self {
        let mut held = Vec::new();
        for (kind, client) in kinds.iter().zip(holders) {
            let acquired = kind.acquire(client, &key, LEASE * 60).await.expect("up");
            held.push(acquired.expect("free"));
        }
        Self { key, held, waits: JoinSet::new(), is_held: Arc::new(AtomicBool::new(true)) }
    }

    fn add_waits(&mut self, client: &LockClient, kinds: &[TestedKind]) {
        let inside = Arc::new(AtomicU32::new(0));
        for kind in kinds.iter().copied() {
            let (client, key) = (client.clone(), self.key.clone());
            let (is_held, inside) = (Arc::clone(&self.is_held), Arc::clone(&inside));
            self.waits.spawn(async move {
                let hold = kind.acquire(&client, &key, LEASE * 200).await.expect("its turn");
                assert!(!is_held.load(Ordering::SeqCst), "{kind:?} granted although it is held");
                let others = inside.fetch_add(1, Ordering::SeqCst);
                assert!(others == 0 || kind == TestedKind::Reader, "two holders of {kind:?}");
                sleep(LEASE / 50).await;
                inside.fetch_sub(1, Ordering::SeqCst);
                hold.expect("its turn").release().await.expect("held");
            });
        }
    }

    async fn end(mut self, limit: Duration) {
        let key = &self.key;
        assert!(self.held.iter().all(TestedHold::is_held), "{key} is held still");
        assert!(self.waits.try_join_next().is_none(), "{key} was granted although it is held");
        self.is_held.store(false, Ordering::SeqCst);
        for hold in self.held {
            hold.release().await.expect("held");
        }
        while let Some(served) = within(limit, self.waits.join_next()).await.expect("its turn") {
            served.expect("no violation");
        }
    }
}

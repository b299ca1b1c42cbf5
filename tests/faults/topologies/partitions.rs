//! A network that is parted, with a master and a sentinel on one side, and its replicas and most
//! sentinels on the other side.

use std::time::Duration;

use lock_runtime::{LockClient, LockClientBuilder, LockError, LockGuard, LostReason, Replicas};
use lock_tests::{DOWN_AFTER, Expected, Side, SplitSentinels, Violation, within};
use tokio::task::JoinHandle;

use crate::support::{FaultFixture, LEASE, start_keeper, take, until};

/// The lease of most locks. A lock of a master that is cut off is free at the other side after it.
const SHORT_LEASE: Duration = LEASE.saturating_mul(2);

/// Longer than a partition.
const LONG_LEASE: Duration = Duration::from_secs(60);

/// How soon a client must have noticed a change.
const SOON: Duration = Duration::from_secs(7);

/// How long a master with `min-replicas-max-lag 1` may grant locks after it has been cut off. The
/// server counts in whole seconds, once a second.
const MAX_LAG: Duration = Duration::from_secs(3);

/// A client on each side, of which the one beside the master has two locks, and all servers.
struct Parted {
    servers: SplitSentinels,
    fixture: FaultFixture,
    near: LockClient,
    far: LockClient,
    keeper: JoinHandle<Result<(), LockError>>,
    kept: LockGuard,
}

impl Parted {
    /// Parts the network when all servers have both locks.
    async fn start(
        servers: SplitSentinels,
        with: impl Fn(LockClientBuilder) -> LockClientBuilder,
    ) -> Self {
        let fixture = FaultFixture::new().await;
        let connect = async |side| {
            let builder = servers.client(side).lease(SHORT_LEASE).wait(LONG_LEASE);
            with(builder).connect().await.expect("up")
        };
        let (near, far) = (connect(Side::Near).await, connect(Side::Far).await);
        let (keeper, _) = start_keeper(&near, &fixture).await;
        let kept = near.lock("kept").lease(LONG_LEASE).acquire().await.expect("free");
        let have_both = || {
            (1..3).all(|index| ["k", "kept"].iter().all(|key| servers.server(index).exists(key)))
        };
        assert!(until(SOON, have_both).await.is_some(), "the replicas have the locks");
        servers.part();
        Self { servers, fixture, near, far, keeper, kept }
    }

    /// Tries to acquire a lock of the master that is cut off.
    async fn try_near(&self, number: usize) -> Result<Option<LockGuard>, LockError> {
        self.near.lock(format!("near:{number}")).try_acquire().await
    }

    /// Asserts that the master that is cut off grants nothing for a while. The errors contain
    /// `words`.
    async fn assert_nothing_is_granted(&self, words: &str) {
        for number in 0..10 {
            match self.try_near(number).await {
                Err(LockError::Unavailable { cause, .. }) => {
                    assert!(cause.contains(words), "{cause}");
                }
                Ok(_) => panic!("granted by a master that is cut off"),
                Err(error) => panic!("{error:?}"),
            }
            tokio::time::sleep(LEASE / 20).await;
        }
    }

    /// Acquires the lock that the client on the near side has or had, at the promoted server.
    async fn take_far(&self) -> usize {
        let promoted = self.servers.wait_for_another_master(1).await;
        let taken = within(LONG_LEASE / 2, take(&self.far, &self.fixture)).await;
        taken.expect("the lock is free at the end of its lease").expect("granted");
        promoted
    }

    /// Makes the network whole. The first server becomes a replica, and its client follows.
    async fn heal(&self, promoted: usize) {
        self.servers.heal();
        let moves = async {
            loop {
                if let Ok(guard) = self.near.lock("moves").acquire().await
                    && self.servers.server(promoted).exists("moves")
                {
                    guard.release().await.expect("held");
                    return;
                }
            }
        };
        within(LONG_LEASE / 2, moves).await.expect("the client moves to the new master");
        self.servers.wait_until_demoted().await;
    }
}

fn assert_lost(ended: &Result<(), LockError>, expected: LostReason) {
    let is_expected = matches!(ended, Err(LockError::Lost { reason, .. }) if *reason == expected);
    assert!(is_expected, "{ended:?}");
}

/// The sentinels take the master for down only after it grants nothing any more and its last locks
/// have ended.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_master_that_is_cut_off_grants_nothing_with_min_replicas() {
    let options = ["--min-replicas-to-write", "1", "--min-replicas-max-lag", "1"];
    let down_after = MAX_LAG + SHORT_LEASE + LEASE;
    let servers = SplitSentinels::start(down_after, &options).await;
    let parted = Parted::start(servers, |builder| builder).await;
    let is_refused = async {
        let mut number = 0;
        while parted.try_near(number).await.is_ok() {
            number += 1;
            tokio::time::sleep(LEASE / 20).await;
        }
    };
    within(MAX_LAG + LEASE, is_refused).await.expect("the master notices that it is cut off");
    parted.assert_nothing_is_granted("NOREPLICAS").await;
    let promoted = parted.take_far().await;
    parted.assert_nothing_is_granted("NOREPLICAS").await;
    // As if the replication had been delayed.
    parted.servers.server(promoted).tell(&["DEL", "kept"]);
    parted.heal(promoted).await;
    let reason = within(SOON, parted.kept.lost()).await.expect("the loss is noticed");
    assert_eq!(reason, LostReason::Failover);
    let ended = parted.keeper.await.expect("no panic");
    parted.fixture.assert_history(Expected::EVERYTHING);
    assert_lost(&ended, LostReason::RenewalFailed);
}

/// The control of the other tests.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_master_that_is_cut_off_grants_locks_if_nothing_prevents_it() {
    let servers = SplitSentinels::start(DOWN_AFTER, &[]).await;
    let parted = Parted::start(servers, |builder| builder).await;
    let promoted = parted.take_far().await;
    let late = parted.near.lock("late").lease(LONG_LEASE).acquire().await.expect("granted");
    let both = parted.far.lock("late").acquire().await.expect("granted");
    both.release().await.expect("held");
    assert!(!parted.keeper.is_finished(), "the lease is renewed");
    parted.heal(promoted).await;
    let reason = within(SOON, late.lost()).await.expect("the loss is noticed");
    assert_eq!(reason, LostReason::Failover);
    let ended = within(SOON, parted.keeper).await.expect("the loss is noticed");
    assert_lost(&ended.expect("no panic"), LostReason::Failover);
    assert!(parted.kept.is_held(), "the new master has it");
    let violations = parted.fixture.violations(Expected::EVERYTHING);
    let is_overlap = |violation: &Violation| matches!(violation, Violation::Overlap { .. });
    assert!(violations.iter().any(is_overlap), "both sides have held the lock: {violations:?}");
}

async fn assert_replicas_are_required(replicas: Replicas) {
    let servers = SplitSentinels::start(DOWN_AFTER, &[]).await;
    let parted = Parted::start(servers, |builder| builder.acknowledged_by(replicas)).await;
    let words = "`acknowledged_by` requires";
    parted.assert_nothing_is_granted(words).await;
    let promoted = parted.take_far().await;
    parted.assert_nothing_is_granted(words).await;
    parted.heal(promoted).await;
    assert!(parted.kept.is_held(), "the new master has it");
    let ended = parted.keeper.await.expect("no panic");
    parted.fixture.assert_history(Expected::EVERYTHING);
    assert_lost(&ended, LostReason::RenewalFailed);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_grant_of_a_master_that_is_cut_off_counts_if_all_replicas_are_required() {
    assert_replicas_are_required(Replicas::All).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_grant_of_a_master_that_is_cut_off_counts_if_a_replica_is_required() {
    assert_replicas_are_required(Replicas::from(1)).await;
}

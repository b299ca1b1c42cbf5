//! Records of runs.

use std::time::Duration;

use super::fixture::{CheckedLocks, CheckedStore, new_key, owner};
use crate::replicas::RequiredReplicas;
use crate::store::contract::{Extension, Resource};
use crate::store::owner::OwnerId;
use crate::store::periods::{RunEnd, RunEnded, RunLabel, RunStart, RunStarted};

const PERIOD: Duration = Duration::from_secs(3600);

/// How long a record of such a period is kept.
const KEPT: Duration = Duration::from_secs(10 * 3600);

/// A run of the owner with this number. Each has one run.
struct Run<'a> {
    key: &'a str,
    locks: &'a CheckedLocks,
    owners: &'a [OwnerId; 3],
    owner: usize,
}

impl Run<'_> {
    fn label(&self) -> RunLabel {
        RunLabel { by: format!("owner {}", self.owner), kept: KEPT }
    }

    async fn start(&self, attempt: u32) -> RunStarted {
        let (run, owner) = (&self.label(), self.owners[self.owner]);
        let (every, counts, acknowledged_by) = (PERIOD, false, RequiredReplicas::NONE);
        let key = self.key;
        let start = RunStart { key, owner, run, every, counts, attempt, acknowledged_by };
        self.locks.locks.start_run(start).await.expect("an answer")
    }

    async fn end(&self, began: u64, failed: bool) -> RunEnded {
        let (run, owner) = (&self.label(), self.owners[self.owner]);
        let (began, counts) = (Some(began), !failed);
        let (key, acknowledged_by) = (self.key, RequiredReplicas::NONE);
        let end = RunEnd { key, owner, run, began, counts, failed, acknowledged_by };
        self.locks.locks.end_run(end).await.expect("an answer")
    }
}

/// A period has one run that counts, and one that has failed may be repeated. Only the owner of the key changes its record.
/// Checks nothing if the store has no records of runs.
///
/// # Panics
///
/// If the store breaks its contract.
pub async fn a_period_has_one_run(store: CheckedStore) {
    let locks = store.connect().await;
    if !locks.locks.has(Extension::Runs) {
        return;
    }
    // A period may end during the check.
    for _ in 0..2 {
        if has_one_run(&locks).await {
            return;
        }
    }
    panic!("a second run in a period");
}

/// Whether no further run may begin in the period of the last one.
async fn has_one_run(locks: &CheckedLocks) -> bool {
    let (key, owners) = (new_key(), [owner(), owner(), owner()]);
    let resource = Resource::exclusive(&key);
    let takes = async |owner: usize| {
        assert!(locks.takes(resource, owners[owner]).await, "a free key was not granted");
    };
    let last_run = async || locks.locks.last_run(&key).await.expect("an answer");
    let run = |owner| Run { key: &key, locks, owners: &owners, owner };
    assert_eq!(last_run().await, None, "there was no run");
    assert_eq!(run(0).start(1).await, RunStarted::Gone, "nobody has the key");
    takes(0).await;
    assert_eq!(run(1).start(1).await, RunStarted::Taken, "another owner has the key");
    let RunStarted::At(failed) = run(0).start(1).await else { panic!("the first run") };
    assert_eq!(run(0).start(2).await, RunStarted::At(failed), "the same run");
    assert_eq!(run(1).end(failed, false).await, RunEnded::Taken, "another owner has the key");
    assert_eq!(run(0).end(failed, true).await, RunEnded::Recorded);
    let record = last_run().await.expect("there was a run");
    assert_eq!((record.began, &*record.by, record.is_held), (failed, "owner 0", true));
    assert!(record.ended.is_some_and(|(_, has_failed)| has_failed), "{record:?}");
    locks.frees(resource, owners[0]).await;
    takes(1).await;
    let RunStarted::At(began) = run(1).start(1).await else {
        panic!("a run that has failed is not repeated")
    };
    assert_eq!(run(1).end(began, false).await, RunEnded::Recorded);
    locks.frees(resource, owners[1]).await;
    let record = last_run().await.expect("there was a run");
    assert_eq!((record.began, &*record.by, record.is_held), (began, "owner 1", false));
    assert!(record.ended.is_some_and(|(_, has_failed)| !has_failed), "{record:?}");
    takes(2).await;
    let again = run(2).start(1).await;
    locks.frees(resource, owners[2]).await;
    match again {
        RunStarted::Ran(left) => assert!(left <= PERIOD, "{left:?} are left of {PERIOD:?}"),
        RunStarted::At(_) => return false,
        other => panic!("the owner of a free key: {other:?}"),
    }
    true
}

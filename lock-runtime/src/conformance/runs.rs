//! Records of runs.

use std::time::Duration;

use super::fixture::{CheckedLocks, CheckedStore, Fixture, LONG};
use crate::replicas::RequiredReplicas;
use crate::store::contract::Extension;
use crate::store::periods::{RunEnd, RunEnded, RunLabel, RunStart, RunStarted};

/// A period that does not end during a check: the next one begins in 2105.
const PERIOD: Duration = Duration::from_secs(1 << 32);

/// A run of the owner with this number.
struct Run<'a> {
    fixture: &'a Fixture,
    locks: &'a CheckedLocks,
    owner: usize,
}

impl Run<'_> {
    fn label(&self) -> RunLabel {
        RunLabel { by: format!("owner {}", self.owner), kept: LONG }
    }

    async fn start(&self, attempt: u32) -> RunStarted {
        let (run, owner) = (&self.label(), self.fixture.owners[self.owner]);
        let (every, counts, acknowledged_by) = (PERIOD, false, RequiredReplicas::NONE);
        let key = &*self.fixture.key;
        let start = RunStart { key, owner, run, every, counts, attempt, acknowledged_by };
        self.locks.locks.start_run(start).await.expect("an answer")
    }

    async fn end(&self, began: u64, failed: bool) -> RunEnded {
        let (run, owner) = (&self.label(), self.fixture.owners[self.owner]);
        let (began, counts) = (Some(began), !failed);
        let (key, acknowledged_by) = (&*self.fixture.key, RequiredReplicas::NONE);
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
    let (fixture, locks) = (Fixture::new(), store.connect().await);
    if !locks.locks.has(Extension::Runs) {
        return;
    }
    let last_run = async || locks.locks.last_run(&fixture.key).await.expect("an answer");
    let run = |owner| Run { fixture: &fixture, locks: &locks, owner };
    assert_eq!(last_run().await, None, "there was no run");
    assert_eq!(run(0).start(1).await, RunStarted::Gone, "nobody has the key");
    fixture.acquire(&locks, 0, LONG).await;
    assert_eq!(run(1).start(1).await, RunStarted::Taken, "another owner has the key");
    let RunStarted::At(failed) = run(0).start(1).await else { panic!("the first run") };
    assert_eq!(run(0).start(2).await, RunStarted::At(failed), "the same run");
    assert_eq!(run(1).end(failed, false).await, RunEnded::Taken, "another owner has the key");
    assert_eq!(run(0).end(failed, true).await, RunEnded::Recorded);
    let record = last_run().await.expect("there was a run");
    assert_eq!((record.began, &*record.by, record.is_held), (failed, "owner 0", true));
    assert!(record.ended.is_some_and(|(_, has_failed)| has_failed), "{record:?}");
    fixture.free(&locks, 0).await;
    fixture.acquire(&locks, 1, LONG).await;
    let RunStarted::At(began) = run(1).start(1).await else {
        panic!("a run that has failed is not repeated")
    };
    assert!(began >= failed, "the clock of the store goes back");
    assert_eq!(run(1).end(began, false).await, RunEnded::Recorded);
    fixture.free(&locks, 1).await;
    let record = last_run().await.expect("there was a run");
    assert_eq!((record.began, &*record.by, record.is_held), (began, "owner 1", false));
    assert!(record.ended.is_some_and(|(at, failed)| at >= began && !failed), "{record:?}");
    fixture.acquire(&locks, 0, LONG).await;
    match run(0).start(1).await {
        RunStarted::Ran(left) => assert!(left <= PERIOD, "{left:?} are left of {PERIOD:?}"),
        other => panic!("a second run in a period: {other:?}"),
    }
    fixture.free(&locks, 0).await;
}

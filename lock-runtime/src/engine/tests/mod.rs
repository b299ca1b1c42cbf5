//! The engine against a store that injects faults.

mod acquisition;
mod ending;
mod fairness;
mod fencing;
mod handoff;
mod handoff_terms;
mod renewal;
mod shutdown;

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use tokio::time::{resume, sleep, timeout};

use super::fairness::limit::HandoffLimit;
use super::handoff::Hold;
use super::lease::Terms;
use super::shutdown::wait_until;
use super::testing::{
    LEASE, RENEWED_LEASE, Request, TestEngine, acquire, assert_nothing_left, claim, engine,
    engine_on, engine_with, extension, hold_in, is_free, new_owner, owner, release, request, take,
};
use crate::clock::BootInstant;
use crate::error::{LockError, LostReason};
use crate::store::contract::{Acquired, Lane, Left, LockStore, Released, Resource, SendTrace};
use crate::store::faulty::{Fault, FaultyStore};
use crate::store::memory::MemoryStore;
use crate::timeout::{RequestTimeout, Wait};

/// An acquisition that its test polls.
type PendingAcquisition = Pin<Box<dyn Future<Output = Result<Hold, LockError>> + Send>>;

/// An acquisition that waits for the holder. It was polled once.
fn queue(engine: &TestEngine, request: Request) -> PendingAcquisition {
    let engine = engine.clone();
    let mut waiting: PendingAcquisition = Box::pin(async move { acquire(&engine, request).await });
    assert!(poll(&mut waiting).is_none(), "another task has the lock");
    waiting
}

/// The result of an acquisition, if one poll completes it.
fn poll(waiting: &mut PendingAcquisition) -> Option<Result<Hold, LockError>> {
    match waiting.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(outcome) => Some(outcome),
        Poll::Pending => None,
    }
}

/// A request for the key `k` with a fixed lease.
fn fixed(lease: Duration) -> Request {
    request(Some(lease))
}

/// Whether the key `k` becomes free within `limit`.
async fn becomes_free(store: &FaultyStore, limit: Duration) -> bool {
    let freed = async {
        while !is_free(store).await {
            sleep(LEASE / 100).await;
        }
    };
    timeout(limit, freed).await.is_ok()
}

/// The rest of the lease of the key `k`, which is taken, according to the store.
async fn left(store: &FaultyStore) -> Duration {
    let (claim, trace) = (claim(new_owner(), LEASE), SendTrace::default());
    match store.try_acquire(claim, RequestTimeout::of(LEASE), &trace).await {
        Ok(Acquired::Busy(Left::Time(left))) => left,
        other => panic!("{other:?}"),
    }
}

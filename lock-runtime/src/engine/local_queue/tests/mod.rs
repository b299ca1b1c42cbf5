//! Unit tests of the local queues, without a store.

mod holders;
mod stalled;

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use super::queue::EMPTY_SLOTS;
use super::*;
use crate::runtime::Caller;
use crate::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// No lock is handed off in these tests, so there is no value of this type.
#[derive(Debug)]
enum NoLock {}

impl HandedOff for NoLock {
    type ToNext = ();

    fn set_grant(&mut self, _: u64) {
        match *self {}
    }

    fn grant(&self) -> u64 {
        match *self {}
    }

    fn decline(self) {
        match self {}
    }
}

type TestQueues = LocalQueues<NoLock>;
type Permit = super::Permit<NoLock>;
type Waiter = super::Waiter<NoLock>;
type Offer = super::Offer<NoLock>;

fn key() -> Arc<str> {
    Arc::from("k")
}

/// The permit of the free key.
fn permit(queues: &Arc<TestQueues>) -> Permit {
    match queues.enter(&key(), false) {
        Entered::Permit(permit) => permit,
        other => panic!("{other:?}"),
    }
}

/// A waiter that was polled once.
fn waiter(queues: &Arc<TestQueues>) -> Waiter {
    match queues.enter(&key(), false) {
        Entered::Queued(mut waiter) => {
            assert!(poll(&mut waiter).is_pending());
            waiter
        }
        other => panic!("{other:?}"),
    }
}

fn poll(waiter: &mut Waiter) -> Poll<Option<Offer>> {
    Pin::new(waiter).poll(&mut Context::from_waker(Waker::noop()))
}

/// The permit, if a poll of the waiter takes it.
fn takes(waiter: &mut Waiter) -> Option<Permit> {
    match poll(waiter) {
        Poll::Ready(Some(Offer::Permit(permit))) => Some(permit),
        Poll::Ready(other) => panic!("{other:?}"),
        Poll::Pending => None,
    }
}

/// Makes two checks, after which an offer that was not taken goes to further waiters.
fn check_twice(queues: &Arc<TestQueues>) {
    queues.check();
    queues.check();
}

#[test]
fn waiters_get_the_permit_in_fifo_order() {
    let queues = Arc::new(TestQueues::default());
    let permit = permit(&queues);
    let (mut first, mut second) = (waiter(&queues), waiter(&queues));
    assert!(takes(&mut first).is_none());
    drop(permit);
    assert!(takes(&mut second).is_none());
    let permit = takes(&mut first).expect("on offer");
    drop(permit);
    drop(takes(&mut second).expect("on offer"));
    drop((first, second));
    assert_eq!(queues.keys(), 0);
}

#[test]
fn a_waiter_that_gave_up_is_skipped() {
    let queues = Arc::new(TestQueues::default());
    let permit = permit(&queues);
    let (first, mut second) = (waiter(&queues), waiter(&queues));
    drop(first);
    assert_eq!(queues.queued(), 1);
    drop(permit);
    assert!(takes(&mut second).is_some());
}

#[test]
fn an_offer_goes_to_the_next_waiter_if_the_first_gives_up() {
    let queues = Arc::new(TestQueues::default());
    let permit = permit(&queues);
    let (first, mut second) = (waiter(&queues), waiter(&queues));
    drop(permit);
    drop(first);
    drop(takes(&mut second).expect("on offer"));
    drop(second);
    assert_eq!((queues.keys(), queues.queued()), (0, 0));
}

#[test]
fn nothing_remains_if_all_waiters_give_up() {
    let queues = Arc::new(TestQueues::default());
    let permit = permit(&queues);
    let (first, second) = (waiter(&queues), waiter(&queues));
    drop(permit);
    drop((second, first));
    assert_eq!((queues.keys(), queues.queued()), (0, 0));
}

#[test]
fn waiters_that_give_up_behind_another_one_leave_no_slots() {
    let queues = Arc::new(TestQueues::default());
    let permit = permit(&queues);
    let mut first = waiter(&queues);
    let mut others: VecDeque<Waiter> = (0..10).map(|_| waiter(&queues)).collect();
    for _ in 0..10_000 {
        others.push_back(waiter(&queues));
        others.pop_front();
    }
    assert_eq!(queues.queued(), 11);
    let slots = queues.lock().by_key[&queues.key(&key())].contention().waiters.slots();
    assert!(slots <= 2 * 11 + EMPTY_SLOTS + 1, "{slots}");
    drop(permit);
    assert!(takes(&mut first).is_some(), "in FIFO order");
}

#[test]
fn a_waker_is_dropped_while_the_queues_are_unlocked() {
    struct LocksOnDrop(Arc<TestQueues>);
    impl Drop for LocksOnDrop {
        fn drop(&mut self) {
            // Deadlocks if the queues are locked.
            assert_eq!(self.0.keys(), 1);
        }
    }
    impl std::task::Wake for LocksOnDrop {
        fn wake(self: Arc<Self>) {}
    }
    let queues = Arc::new(TestQueues::default());
    let _permit = permit(&queues);
    for give_up in [true, false] {
        let mut waiter = waiter(&queues);
        let waker = Waker::from(Arc::new(LocksOnDrop(Arc::clone(&queues))));
        assert!(Pin::new(&mut waiter).poll(&mut Context::from_waker(&waker)).is_pending());
        drop(waker);
        if give_up {
            drop(waiter);
        } else {
            assert!(poll(&mut waiter).is_pending(), "with another waker");
        }
    }
}

#[test]
fn a_waker_is_called_while_the_queues_are_unlocked_and_may_panic() {
    struct PanickingWaker(Arc<TestQueues>);
    impl std::task::Wake for PanickingWaker {
        fn wake(self: Arc<Self>) {
            assert_eq!(self.0.queued(), 2);
            // Deadlocks if the queues are locked.
            assert_eq!(self.0.keys(), 1);
            WOKEN.store(true, Ordering::Relaxed);
            panic!("as planned");
        }
    }
    static WOKEN: std::sync::atomic::AtomicBool = std::sync::atomic::AtomicBool::new(false);
    let queues = Arc::new(TestQueues::default());
    let permit = permit(&queues);
    let (mut first, _second) = (waiter(&queues), waiter(&queues));
    let waker = Waker::from(Arc::new(PanickingWaker(Arc::clone(&queues))));
    assert!(Pin::new(&mut first).poll(&mut Context::from_waker(&waker)).is_pending());
    drop(permit);
    assert!(WOKEN.load(Ordering::Relaxed));
    assert!(takes(&mut first).is_some());
}

#[test]
fn forgotten_keys_free_their_memory() {
    let queues = Arc::new(TestQueues::default());
    let permits: Vec<Permit> = (0..100 * crate::capacity::KEPT)
        .map(|n| match queues.enter(&Arc::from(n.to_string()), false) {
            Entered::Permit(permit) => permit,
            other => panic!("{other:?}"),
        })
        .collect();
    drop(permits);
    let capacity = queues.lock().by_key.capacity();
    assert!(capacity <= 4 * crate::capacity::KEPT, "{capacity}");
}

#[test]
fn a_single_attempt_at_a_taken_key_gets_the_status() {
    let queues = Arc::new(TestQueues::default());
    let permit = permit(&queues);
    permit.set_status(&KeyStatus::HeldHere(Caller::here()));
    assert!(matches!(queues.enter(&key(), true), Entered::Busy(KeyStatus::HeldHere(_))));
    assert_eq!(queues.queued(), 0);
    drop(permit);
    assert!(matches!(queues.enter(&key(), true), Entered::Permit(_)));
}

#[test]
fn closing_the_queues_ends_all_waits() {
    let queues = Arc::new(TestQueues::default());
    let permit = permit(&queues);
    let (mut stalled, mut other) = (waiter(&queues), waiter(&queues));
    drop(permit);
    // After this, the first waiter is stalled.
    check_twice(&queues);
    queues.close();
    assert_eq!(queues.queued(), 0);
    assert!(matches!(poll(&mut stalled), Poll::Ready(None)));
    assert!(matches!(poll(&mut other), Poll::Ready(None)));
    assert!(matches!(queues.enter(&key(), false), Entered::Closed));
    assert_eq!((queues.keys(), queues.queued()), (0, 0), "the offer is dropped");
}

#[test]
fn the_status_of_a_key_outlives_a_permit_holder() {
    let queues = Arc::new(TestQueues::default());
    let permit = permit(&queues);
    let mut waiter = waiter(&queues);
    permit.set_status(&KeyStatus::Unreachable("down".into()));
    drop(permit);
    let permit = takes(&mut waiter).expect("on offer");
    assert_eq!(queues.status(&key()), KeyStatus::Unreachable("down".into()));
    permit.set_status(&KeyStatus::Yielded);
    assert_eq!(queues.status(&key()), KeyStatus::Yielded);
}

#[test]
fn callers_of_different_keys_do_not_wait_for_each_other() {
    let queues = Arc::new(TestQueues::default());
    let _permit = permit(&queues);
    assert!(matches!(queues.enter(&Arc::from("other"), false), Entered::Permit(_)));
}

//! Waiters that are not polled.

use super::*;

#[test]
fn a_waiter_that_is_not_polled_keeps_its_place_and_blocks_no_other_waiter() {
    let queues = Arc::new(TestQueues::default());
    let permit = permit(&queues);
    let (mut first, mut second) = (waiter(&queues), waiter(&queues));
    let mut third = waiter(&queues);
    drop(permit);
    queues.check();
    assert!(takes(&mut second).is_none(), "the first waiter has some time");
    queues.check();
    let permit = takes(&mut second).expect("the first waiter was not polled");
    assert!(takes(&mut third).is_none());
    assert!(takes(&mut first).is_none(), "the offer was taken");
    drop(permit);
    assert!(takes(&mut third).is_none(), "the first waiter kept its place");
    drop(takes(&mut first).expect("on offer"));
    drop(takes(&mut third).expect("on offer"));
    assert_eq!((queues.keys(), queues.queued()), (0, 0));
}

#[test]
fn a_stalled_waiter_takes_an_offer_when_it_is_polled_again() {
    let queues = Arc::new(TestQueues::default());
    let permit = permit(&queues);
    let mut first = waiter(&queues);
    let (mut second, third) = (waiter(&queues), waiter(&queues));
    drop(permit);
    check_twice(&queues);
    let permit = takes(&mut first).expect("no other caller took the offer");
    assert!(takes(&mut second).is_none());
    drop((permit, third));
    drop(takes(&mut second).expect("on offer"));
    assert_eq!((queues.keys(), queues.queued()), (0, 0));
}

#[test]
fn a_waiter_that_stalled_behind_an_empty_slot_returns_once() {
    for give_up in [false, true] {
        let queues = Arc::new(TestQueues::default());
        let permit = permit(&queues);
        let (mut first, mut second) = (waiter(&queues), waiter(&queues));
        let (mut third, mut last) = (waiter(&queues), waiter(&queues));
        drop(permit);
        check_twice(&queues);
        queues.check();
        // The first three are stalled, the last was woken.
        let permit = takes(&mut third).expect("an offer");
        assert!(takes(&mut second).is_none());
        assert!(takes(&mut first).is_none());
        drop(permit);
        check_twice(&queues);
        // Now the first and the last are stalled.
        let permit = takes(&mut second).expect("an offer");
        if give_up {
            drop(last);
        } else {
            assert!(takes(&mut last).is_none());
            drop(permit);
            drop(takes(&mut first).expect("on offer"));
            drop(takes(&mut last).expect("on offer"));
        }
        drop(first);
        assert_eq!(queues.keys(), usize::from(give_up));
        assert_eq!(queues.queued(), 0);
    }
}

#[test]
fn many_waiters_that_are_not_polled_cost_few_checks() {
    let queues = Arc::new(TestQueues::default());
    let permit = permit(&queues);
    let stalled: Vec<Waiter> = (0..100).map(|_| waiter(&queues)).collect();
    let mut last = waiter(&queues);
    drop(permit);
    let checks = (1..100).find(|_| {
        queues.check();
        takes(&mut last).is_some()
    });
    assert!(checks.is_some_and(|checks| checks <= 8), "{checks:?}");
    drop(stalled);
    assert_eq!((queues.keys(), queues.queued()), (0, 0));
}

#[test]
fn two_waiters_are_woken_for_an_offer_while_one_is_stalled() {
    let queues = Arc::new(TestQueues::default());
    let permit = permit(&queues);
    let (_one, mut two) = (waiter(&queues), waiter(&queues));
    let (_three, mut four) = (waiter(&queues), waiter(&queues));
    drop(permit);
    check_twice(&queues);
    drop(takes(&mut two).expect("the first waiter was not polled"));
    assert!(takes(&mut four).is_some(), "without another check");
}

#[test]
fn the_next_caller_gets_the_offer_while_all_waiters_are_stalled() {
    for once in [true, false] {
        let queues = Arc::new(TestQueues::default());
        let permit = permit(&queues);
        let mut first = waiter(&queues);
        drop(permit);
        queues.check();
        assert!(matches!(queues.enter(&key(), true), Entered::Busy(_)));
        assert_eq!(queues.check().again, None, "no waiter is awake");
        let Entered::Offered(offer, _) = queues.enter(&key(), once) else { panic!("on offer") };
        assert!(takes(&mut first).is_none(), "the caller has the offer");
        drop(offer);
        assert!(takes(&mut first).is_some());
    }
}

#[test]
fn each_offer_is_checked_once_per_check() {
    let queues = Arc::new(TestQueues::default());
    for _ in 0..5 {
        // The key is forgotten each time, but remains in the list.
        let permit = permit(&queues);
        let mut waiter = waiter(&queues);
        drop(permit);
        drop(takes(&mut waiter).expect("on offer"));
    }
    let permit = permit(&queues);
    let (mut first, mut second) = (waiter(&queues), waiter(&queues));
    drop(permit);
    queues.check();
    assert!(takes(&mut second).is_none(), "the first waiter has some time");
    assert!(takes(&mut first).is_some());
}

/// The first call of the waker panics.
#[test]
fn each_waiter_is_woken_once_per_offer() {
    struct CountingWaker(AtomicUsize);
    impl std::task::Wake for CountingWaker {
        fn wake(self: Arc<Self>) {
            assert!(self.0.fetch_add(1, Ordering::Relaxed) > 0, "the first call panics");
        }
    }
    let queues = Arc::new(TestQueues::default());
    let permit = permit(&queues);
    let woken = Arc::new(CountingWaker(AtomicUsize::new(0)));
    let waker = Waker::from(Arc::clone(&woken));
    let mut waiters: Vec<Waiter> = (0..4).map(|_| waiter(&queues)).collect();
    for waiter in &mut waiters {
        assert!(Pin::new(waiter).poll(&mut Context::from_waker(&waker)).is_pending());
    }
    drop(permit);
    assert_eq!(woken.0.load(Ordering::Relaxed), 1);
    check_twice(&queues);
    assert_eq!(woken.0.load(Ordering::Relaxed), 3, "two more");
    queues.check();
    assert_eq!(woken.0.load(Ordering::Relaxed), 4, "and the last");
    queues.check();
    assert_eq!(woken.0.load(Ordering::Relaxed), 4, "none of them again");
}

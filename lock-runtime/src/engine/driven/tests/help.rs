//! Futures that the notifier thread polls in place of their callers.

use super::*;

#[tokio::test]
async fn the_permit_of_an_unpolled_call_goes_to_the_next_waiter_and_the_call_keeps_its_place() {
    let TestCall { queues, mut driven, wake, .. } = waiting_call();
    let (mut second, mut third) = (queue(&queues), queue(&queues));
    wake.send(()).expect("the call waits");
    check(&queues, 2);
    let permit = takes(&mut second).expect("the call was polled in place of its caller");
    assert!(poll(&mut driven).is_pending(), "the caller is too late");
    assert!(takes(&mut third).is_none());
    drop(permit);
    assert!(takes(&mut third).is_none(), "the call is first in the queue");
    drop(permit_at_next_poll(&mut driven));
    drop(takes(&mut third).expect("on offer"));
    drop((driven, second, third));
    assert_eq!((queues.keys(), queues.queued()), (0, 0));
}

#[tokio::test]
async fn a_caller_that_polls_in_time_keeps_its_permit() {
    let TestCall { queues, mut driven, wake, .. } = waiting_call();
    let mut second = queue(&queues);
    wake.send(()).expect("the call waits");
    check(&queues, 1);
    let permit = permit_at_next_poll(&mut driven);
    check(&queues, 2);
    assert!(takes(&mut second).is_none());
    drop(permit);
    assert!(takes(&mut second).is_some());
}

#[tokio::test]
async fn a_future_that_was_not_woken_is_not_polled_in_place_of_its_caller() {
    let (wake, _woken) = oneshot::channel();
    let polls = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&polls);
    let TestCall { queues, mut driven, .. } = call_of(wake, |permit| {
        Box::pin(poll_fn(move |_| {
            counted.fetch_add(1, Ordering::Relaxed);
            let _ = &permit;
            Poll::Pending
        }))
    });
    assert!(poll(&mut driven).is_pending());
    let _second = queue(&queues);
    check(&queues, 4);
    assert_eq!(polls.load(Ordering::Relaxed), 1);
}

/// A call that has lost its permit and is back in the queue. The waiter behind it, for which it
/// lost the permit, has given up.
fn requeued_call() -> TestCall {
    let mut call = waiting_call();
    let second = queue(&call.queues);
    let wake = std::mem::replace(&mut call.wake, oneshot::channel().0);
    wake.send(()).expect("the call waits");
    check(&call.queues, 1);
    let findings = call.queues.check();
    drop(second);
    findings.carry_out();
    call
}

#[tokio::test]
async fn a_requeued_call_gets_the_permit_if_there_are_no_other_waiters() {
    let TestCall { queues, mut driven, .. } = requeued_call();
    drop(permit_at_next_poll(&mut driven));
    assert_eq!((queues.keys(), queues.queued()), (0, 0));
}

#[tokio::test]
async fn an_offer_that_a_requeued_call_has_not_taken_goes_to_the_next_caller() {
    let TestCall { queues, mut driven, .. } = requeued_call();
    let Entered::Offered(offer, _) = queues.enter(&Arc::from("k"), true) else { panic!("offered") };
    assert!(poll(&mut driven).is_pending());
    drop(offer);
    drop(permit_at_next_poll(&mut driven));
    assert_eq!((queues.keys(), queues.queued()), (0, 0));
}

#[tokio::test]
async fn nothing_is_left_of_a_requeued_call_that_is_cancelled() {
    let TestCall { queues, driven, abandoned, .. } = requeued_call();
    drop(driven);
    assert_eq!((queues.keys(), queues.queued()), (0, 0));
    assert_eq!(abandoned.load(Ordering::Relaxed), 0, "there was no outcome");
}

#[tokio::test]
async fn a_call_is_not_requeued_after_the_queue_is_closed() {
    let TestCall { queues, mut driven, wake, .. } = waiting_call();
    queues.close();
    wake.send(()).expect("the call waits");
    check(&queues, 2);
    assert!(matches!(poll(&mut driven), Poll::Ready(None)));
    assert_eq!((queues.keys(), queues.queued()), (0, 0));
}

#[tokio::test]
async fn an_outcome_that_the_caller_does_not_take_is_abandoned() {
    let TestCall { queues, driven, wake, abandoned, .. } = waiting_call();
    queues.close();
    wake.send(()).expect("the call waits");
    check(&queues, 2);
    drop(driven);
    assert_eq!(abandoned.load(Ordering::Relaxed), 1);
}

/// Otherwise callers on a runtime that is often blocked would keep the permit from each other.
#[tokio::test]
async fn a_caller_gets_twice_the_time_after_each_loss() {
    let TestCall { queues, shared, mut driven, wake: _wake, .. } = waiting_call();
    let mut checks = Vec::new();
    for losses in [0, 1, 2, MAX_DOUBLINGS] {
        shared.losses.store(losses, Ordering::Relaxed);
        assert!(poll(&mut driven).is_pending());
        checks.push((1..1000).find(|_| shared.is_stalled(false)).expect("at one of the checks"));
        assert!(shared.is_stalled(false), "its time is over");
        assert!(poll(&mut driven).is_pending());
        assert!(!shared.is_stalled(true) && shared.is_stalled(true), "at a shutdown");
    }
    // The last one is limited by `longest_delay`, which is a second.
    assert_eq!(checks, [2, 4, 8, 100]);
    assert_eq!(queues.keys(), 1);
    let requeued = requeued_call();
    assert_eq!(requeued.shared.losses.load(Ordering::Relaxed), 1);
}

/// The caller polls during the notifier's poll, right after the future has woken itself.
#[tokio::test]
async fn a_caller_that_polls_during_a_poll_by_the_notifier_is_woken_afterwards() {
    let slot: Arc<std::sync::Mutex<Option<Driven<Option<Permit>>>>> = Arc::default();
    let woken = Arc::new(WakeFlag::default());
    let (own_slot, own_waker) = (Arc::clone(&slot), Waker::from(Arc::clone(&woken)));
    let (wake, _woken) = oneshot::channel();
    let TestCall { queues, driven, shared, .. } = call_of(wake, |permit| {
        Box::pin(poll_fn(move |cx| {
            let _ = &permit;
            cx.waker().wake_by_ref();
            if let Some(driven) = &mut *own_slot.lock().expect("no panic") {
                let polled = Pin::new(driven).poll(&mut Context::from_waker(&own_waker));
                assert!(polled.is_pending());
            }
            Poll::Pending
        }))
    });
    *slot.lock().expect("no panic") = Some(driven);
    let _second = queue(&queues);
    shared.help();
    assert!(woken.0.load(Ordering::Relaxed), "otherwise the caller would wait forever");
    drop(slot.lock().expect("no panic").take());
}

/// For example, a timer panics when it is polled after the end of its runtime.
#[tokio::test]
async fn a_future_that_panics_is_reported_to_the_caller_as_failed() {
    let (wake, _woken) = oneshot::channel();
    let TestCall { queues, mut driven, shared, .. } = call_of(wake, |permit| {
        let mut polls = 0;
        Box::pin(poll_fn(move |_| {
            let _ = &permit;
            polls += 1;
            assert!(polls < 2, "as planned");
            Poll::Pending
        }))
    });
    assert!(poll(&mut driven).is_pending());
    shared.help();
    assert!(matches!(poll(&mut driven), Poll::Ready(None)));
    assert_eq!(queues.keys(), 0);
}

//! Futures that are dropped because their runtime is blocked, or because they take too many polls.

use super::*;

#[tokio::test]
async fn a_revoked_call_keeps_its_place() {
    let TestCall { queues, shared, mut driven, wake, .. } = waiting_call();
    let mut second = queue(&queues);
    let woken = Arc::new(WakeFlag::default());
    let waker = Waker::from(Arc::clone(&woken));
    assert!(Pin::new(&mut driven).poll(&mut Context::from_waker(&waker)).is_pending());
    shared.revoke();
    assert!(wake.is_closed(), "the future is dropped");
    assert!(woken.0.load(Ordering::Relaxed), "the caller has to poll the queue now");
    let permit = takes(&mut second).expect("on offer");
    assert!(poll(&mut driven).is_pending());
    drop(permit);
    drop(permit_at_next_poll(&mut driven));
    assert_eq!((queues.keys(), queues.queued()), (0, 0));
}

#[tokio::test]
async fn a_call_that_no_longer_has_its_permit_is_not_revoked() {
    let (wake, woken) = oneshot::channel();
    let TestCall { queues, shared, mut driven, wake, .. } = call_of(wake, |permit| {
        drop(permit);
        Box::pin(async move {
            woken.await.expect("sent");
            None
        })
    });
    assert!(poll(&mut driven).is_pending());
    assert_eq!(queues.keys(), 0);
    shared.revoke();
    wake.send(()).expect("the call still waits");
    assert!(matches!(poll(&mut driven), Poll::Ready(None)));
}

#[tokio::test]
async fn a_call_is_revoked_even_after_the_queue_is_closed() {
    let TestCall { queues, shared, mut driven, wake, .. } = waiting_call();
    queues.close();
    shared.revoke();
    assert!(wake.is_closed(), "the future is dropped");
    assert_eq!(queues.keys(), 0);
    assert!(matches!(poll(&mut driven), Poll::Ready(None)));
}

/// Otherwise the notifier thread could poll it forever, and the waiters behind it would starve.
#[tokio::test]
async fn a_future_that_is_always_ready_but_never_completes_is_revoked_after_a_few_polls() {
    let (wake, _woken) = oneshot::channel();
    let TestCall { queues, mut driven, .. } = call_of(wake, |permit| {
        Box::pin(poll_fn(move |cx| {
            let _ = &permit;
            cx.waker().wake_by_ref();
            Poll::Pending
        }))
    });
    assert!(poll(&mut driven).is_pending());
    let mut second = queue(&queues);
    check(&queues, 2 + MAX_STEPS as usize);
    assert!(takes(&mut second).is_some());
}

#[tokio::test]
async fn a_poll_or_an_answered_ping_resets_the_count_of_patrols() {
    let TestCall { shared, mut driven, wake: _wake, .. } = waiting_call();
    assert_eq!((shared.patrol(), shared.patrol()), (1, 2));
    Arc::clone(&shared).ping();
    tokio::task::yield_now().await;
    assert_eq!(shared.patrol(), 1);
    assert!(poll(&mut driven).is_pending());
    assert_eq!(shared.patrol(), 1, "the caller has polled");
}

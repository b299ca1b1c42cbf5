//! Tasks that wait for the loss of a lock.

use std::pin::pin;

use super::*;

#[tokio::test]
async fn a_task_that_waits_for_the_loss_is_notified() {
    let (_queues, hold) = renewed(BootInstant::now());
    let (reason, ()) = tokio::join!(hold.lost(), async {
        tokio::task::yield_now().await;
        hold.lease().lose(LostReason::Gone, || {});
        hold.lease().notify_of_loss();
    });
    assert_eq!(reason, LostReason::Gone);
    assert_eq!(hold.lost().await, LostReason::Gone, "a later wait resolves as well");
}

/// The background thread does not have the lease, so it sends no notification.
#[tokio::test]
async fn a_task_that_waits_for_the_loss_notices_the_deadline_by_itself() {
    let short = fixed(Duration::from_millis(50));
    let (_queues, hold) = granted(BootInstant::now(), &short);
    let start = BootInstant::now();
    let extended = async {
        hold.extended(BootInstant::now(), short.term * 3);
        hold.lost().await
    };
    let (first, second) = tokio::join!(hold.lost(), extended);
    assert_eq!((first, second), (LostReason::LeaseOver, LostReason::LeaseOver));
    assert!(BootInstant::now().since(start) >= short.term * 2, "not before the new deadline");
    assert!(hold.lease().expire(|| {}).is_some(), "the loss was not recorded before");
}

#[test]
fn a_wait_for_the_loss_needs_no_runtime() {
    let (_queues, hold) = renewed(BootInstant::now());
    let mut lost = pin!(hold.lost());
    let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
    assert!(lost.as_mut().poll(&mut cx).is_pending());
    hold.lease().lose(LostReason::Gone, || {});
    hold.lease().notify_of_loss();
    assert_eq!(lost.poll(&mut cx), std::task::Poll::Ready(LostReason::Gone));
}

/// A paused clock jumps from timer to timer while no task is ready.
#[tokio::test(start_paused = true)]
async fn a_timer_that_fires_before_the_deadline_causes_no_busy_loop() {
    let (_queues, hold) = renewed(BootInstant::now());
    let mut lost = pin!(hold.lost());
    let start = tokio::time::Instant::now();
    assert!(tokio::time::timeout(TERM * 1000, lost.as_mut()).await.is_err(), "not lost");
    assert!(start.elapsed() >= TERM * 1000);
    hold.lease().lose(LostReason::Gone, || {});
    hold.lease().notify_of_loss();
    assert_eq!(lost.await, LostReason::Gone);
}

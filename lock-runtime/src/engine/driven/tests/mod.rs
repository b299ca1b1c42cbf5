//! Unit tests of driven futures, with a local queue and without a store.

mod help;
mod revoke;

use std::sync::atomic::AtomicUsize;

use tokio::sync::oneshot;

use super::*;
use crate::engine::handoff::{LocalQueues, Offer, Permit, Waiter};
use crate::engine::local_queue::{Entered, Requeued};

/// Work whose outcome is the permit itself.
#[derive(Default)]
struct PermitWork {
    abandoned: Arc<AtomicUsize>,
}

impl Work for PermitWork {
    type Outcome = Option<Permit>;
    type Resumed = Offer;
    type Value = Option<Permit>;

    fn finish(&self, outcome: Option<Permit>) -> Option<Permit> {
        outcome
    }

    fn settle(&self, outcome: Option<Permit>, position: &QueuePosition) -> Settled<Self> {
        let settled = self.revoke(position);
        drop(outcome);
        settled.unwrap_or(Settled::Done(None))
    }

    fn revoke(&self, position: &QueuePosition) -> Option<Settled<Self>> {
        match position.requeue() {
            Requeued::Queued(waiter) => {
                Some(Settled::Queued(Box::pin(async { waiter.await.ok_or(None) })))
            }
            Requeued::Closed => Some(Settled::Done(None)),
            Requeued::Over => None,
        }
    }

    fn longest_delay(&self) -> Duration {
        Duration::from_secs(1)
    }

    fn failed(&self, _: &str) -> Option<Permit> {
        None
    }

    fn resume(&self, offer: Offer) -> (u64, Boxed<Option<Permit>>) {
        let number = offer.grant();
        (number, Box::pin(async { Some(permit_of(offer)) }))
    }

    fn abandon(&self, outcome: Option<Permit>) {
        self.abandoned.fetch_add(1, Ordering::Relaxed);
        drop(outcome);
    }
}

fn permit_of(offer: Offer) -> Permit {
    match offer {
        Offer::Permit(permit) => permit,
        Offer::Handoff(_) => panic!("no lock is handed off here"),
    }
}

/// A call that has the permit.
struct TestCall {
    queues: Arc<LocalQueues>,
    /// The number of outcomes that were abandoned.
    abandoned: Arc<AtomicUsize>,
    shared: Arc<SharedWork<PermitWork>>,
    driven: Driven<Option<Permit>>,
    /// Completes the future of the call.
    wake: oneshot::Sender<()>,
}

/// A call whose future waits for a message. It was polled once.
fn waiting_call() -> TestCall {
    let (wake, woken) = oneshot::channel();
    let mut call = call_of(wake, |permit| {
        Box::pin(async move {
            woken.await.expect("sent");
            Some(permit)
        })
    });
    assert!(poll(&mut call.driven).is_pending());
    call
}

/// A call with this future.
fn call_of(
    wake: oneshot::Sender<()>,
    running: impl FnOnce(Permit) -> Boxed<Option<Permit>>,
) -> TestCall {
    let queues = Arc::new(LocalQueues::default());
    let Entered::Permit(permit) = queues.enter(&Arc::from("k"), false) else { panic!("free") };
    let (work, position) = (PermitWork::default(), permit.position(0));
    let abandoned = Arc::clone(&work.abandoned);
    let shared =
        SharedWork::new(work, (position, Box::default()), Handle::current(), running(permit));
    let driven = Driven::new(Arc::clone(&shared) as _);
    TestCall { queues, abandoned, shared, driven, wake }
}

/// Polls for the caller.
fn poll(driven: &mut Driven<Option<Permit>>) -> Poll<Option<Permit>> {
    Pin::new(driven).poll(&mut Context::from_waker(Waker::noop()))
}

/// The permit, which the caller gets at its next poll.
fn permit_at_next_poll(driven: &mut Driven<Option<Permit>>) -> Permit {
    match poll(driven) {
        Poll::Ready(Some(permit)) => permit,
        other => panic!("{other:?}"),
    }
}

/// A waiter of the key that was polled once.
fn queue(queues: &Arc<LocalQueues>) -> Waiter {
    let Entered::Queued(mut waiter) = queues.enter(&Arc::from("k"), false) else { panic!("taken") };
    assert!(takes(&mut waiter).is_none());
    waiter
}

/// The permit, if a poll of the waiter takes it.
fn takes(waiter: &mut Waiter) -> Option<Permit> {
    match Pin::new(waiter).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(offer) => offer.map(permit_of),
        Poll::Pending => None,
    }
}

/// Checks the queues, as the notifier thread does.
fn check(queues: &LocalQueues, times: usize) {
    for _ in 0..times {
        queues.check().carry_out();
    }
}

/// A waker that records that it was called.
#[derive(Default)]
struct WakeFlag(AtomicBool);

impl Wake for WakeFlag {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::Relaxed);
    }
}

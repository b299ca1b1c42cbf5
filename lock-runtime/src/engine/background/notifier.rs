//! The notifier thread, which calls user code: the wakers of callers.
//!
//! A waker belongs to the runtime of the task that it wakes, so it may block or panic. The
//! background thread therefore calls no wakers. It sends a [`Notice`] to this thread for every loss
//! and for every permit that goes to a waiter. The store's wake-ups arrive on this thread as well.
//! Each waker is called separately, so a panic does not keep other tasks asleep. A waker that
//! blocks, against the contract of [`Waker`](std::task::Waker), delays the wake-ups behind it, as
//! it would on any thread. It delays no renewal and no deadline, because tasks that await a body or
//! a loss have their own timers.
//!
//! While the local queues have offers, this thread checks them every [`CHECK_INTERVAL`], so that
//! waiters that are not polled block no other waiters; see
//! [`local_queue`](crate::engine::local_queue). The thread also polls the futures of callers that
//! hold a permit and do not poll them; see [`driven`](crate::engine::driven). These futures contain
//! only the library's own code.

use std::sync::Arc;

use crate::engine::handoff::{Handoff, Lease, LocalQueues, Permit};
use crate::engine::local_queue::{CHECK_INTERVAL, HandedOff};
use crate::sync::atomic::{AtomicBool, Ordering};
use crate::sync::{Mutex, Notify, lock, time};
use crate::user_code::contained;

#[derive(Debug)]
pub(crate) enum Notice {
    /// A lease was lost. The notifier wakes the tasks that wait for the loss.
    Lost(Arc<Lease>),
    /// A permit is free. The notifier drops it, which wakes the next waiter.
    Permit(Permit),
    /// A lock must not linger any more. The notifier frees it.
    Declined(Handoff),
}

/// The state that the thread shares with the senders of notices.
#[derive(Debug)]
pub(crate) struct Notifier {
    notices: Mutex<Vec<Notice>>,
    queues: Arc<LocalQueues>,
    /// Notified when a notice is sent, and when `closing` is set.
    wake: Notify,
    /// Set when no more notices will be sent.
    closing: AtomicBool,
}

impl Notifier {
    pub(crate) fn new(queues: Arc<LocalQueues>) -> Arc<Self> {
        let (notices, wake) = (Mutex::default(), Notify::new());
        Arc::new(Self { notices, queues, wake, closing: AtomicBool::new(false) })
    }

    pub(super) fn queues(&self) -> &LocalQueues {
        &self.queues
    }

    /// Sends a notice. Never blocks.
    pub(crate) fn send(&self, notice: Notice) {
        lock(&self.notices).push(notice);
        self.wake.notify_one();
    }

    /// Ends the thread after the last notice.
    pub(crate) fn close(&self) {
        self.closing.store(true, Ordering::Release);
        self.wake.notify_one();
    }

    /// Processes notices until it is closed.
    pub(crate) async fn run(&self) {
        // After a panic this is not the first run, and there may be offers already.
        let mut next_check = Some(time::Instant::now());
        loop {
            // Read before the notices, so that none of the last ones is missed.
            let closing = self.closing.load(Ordering::Acquire);
            self.process();
            if next_check.is_some_and(|at| at <= time::Instant::now()) {
                let findings = self.queues.check();
                next_check = findings.again.map(|pause| time::Instant::now() + pause);
                findings.carry_out();
            }
            if closing {
                return;
            }
            let check = async {
                match next_check {
                    Some(at) => time::sleep_until(at).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                // The order does not matter: no branch takes anything from another one.
                biased;
                () = self.wake.notified() => {}
                () = self.queues.check_needed() => {
                    let soon = time::Instant::now() + CHECK_INTERVAL;
                    next_check = Some(next_check.map_or(soon, |at| at.min(soon)));
                }
                () = check => {}
            }
        }
    }

    fn process(&self) {
        let notices = std::mem::take(&mut *lock(&self.notices));
        for notice in notices {
            contained(|| match notice {
                Notice::Lost(lease) => lease.notify_of_loss(),
                Notice::Permit(permit) => drop(permit),
                Notice::Declined(lock) => lock.decline(),
            });
        }
    }
}

//! The thread that calls foreign code: wakers of callers, and whatever they run.
//!
//! A waker belongs to the runtime of the task that it wakes, so it may block or panic. The thread
//! that renews leases calls none: it leaves here what callers have to be told, a loss or a pass for
//! the next in a queue. The store's wake-ups arrive on this thread as well. Each waker is called on
//! its own, so one that panics keeps nobody else asleep. One that blocks, against the contract of
//! [`Waker`](std::task::Waker), delays the wake-ups behind it until it returns, as it would on any
//! thread; it delays no renewal and no deadline, because those who await a body or a loss have a
//! timer of their own.
//!
//! While something is on offer in the local queues, this thread comes back every [`LOOK`] and has
//! it passed on from waiters that are not polled, see [`gate`](super::gate). In the same way it goes
//! on in the place of callers that have a pass and are not polled, see [`driven`](super::driven):
//! what it polls there is the library's own code.

use std::sync::{Arc, PoisonError};

use super::gate::{Gates, LOOK, Pass};
use super::lease::Lease;
use crate::foreign::contained;
use crate::sync::atomic::{AtomicBool, Ordering};
use crate::sync::{Mutex, Notify, time};

/// Something that callers have to be told.
#[derive(Debug)]
pub(crate) enum Notice {
    /// A lease was lost: for those who wait for that.
    Lost(Arc<Lease>),
    /// A pass is free: for the next in the queue of its key.
    Free(Pass),
}

/// What the thread shares with those who leave notices.
#[derive(Debug)]
pub(crate) struct Notifier {
    notices: Mutex<Vec<Notice>>,
    gates: Arc<Gates>,
    /// Told when there is a notice, or an end.
    wake: Notify,
    /// Nobody leaves any more notices.
    closing: AtomicBool,
}

impl Notifier {
    pub(crate) fn new(gates: Arc<Gates>) -> Arc<Self> {
        let (notices, wake) = (Mutex::default(), Notify::new());
        Arc::new(Self { notices, gates, wake, closing: AtomicBool::new(false) })
    }

    /// Leaves something to be told. Never blocks.
    pub(crate) fn leave(&self, notice: Notice) {
        self.notices.lock().unwrap_or_else(PoisonError::into_inner).push(notice);
        self.wake.notify_one();
    }

    /// Ends the thread once everything is told.
    pub(crate) fn close(&self) {
        self.closing.store(true, Ordering::Release);
        self.wake.notify_one();
    }

    /// Tells what is left here, until it is closed.
    pub(crate) async fn run(&self) {
        // There may be offers already, if this is not the first run.
        let mut next_look = Some(time::Instant::now());
        loop {
            // Read before the notices, so that none which was left before the end is forgotten.
            let closing = self.closing.load(Ordering::Acquire);
            self.tell();
            if next_look.is_some_and(|at| at <= time::Instant::now()) {
                let findings = self.gates.look();
                next_look = findings.again.map(|pause| time::Instant::now() + pause);
                findings.carry_out();
            }
            if closing {
                return;
            }
            let look = async {
                match next_look {
                    Some(at) => time::sleep_until(at).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                // Whichever comes first in this order: no arm takes anything from another.
                biased;
                () = self.wake.notified() => {}
                () = self.gates.unattended() => {
                    let soon = time::Instant::now() + LOOK;
                    next_look = Some(next_look.map_or(soon, |at| at.min(soon)));
                }
                () = look => {}
            }
        }
    }

    fn tell(&self) {
        let notices = {
            let mut notices = self.notices.lock().unwrap_or_else(PoisonError::into_inner);
            std::mem::take(&mut *notices)
        };
        for notice in notices {
            contained(|| match notice {
                Notice::Lost(lease) => lease.tell_of_loss(),
                Notice::Free(pass) => drop(pass),
            });
        }
    }
}

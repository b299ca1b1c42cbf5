//! The local queues: one FIFO queue per key, inside this process.
//!
//! Each key has one [`Permit`]. A caller needs the permit to acquire the lock: only its holder
//! sends acquire requests for the key, and keeps the permit while it holds the lock. All other
//! callers of this process wait in the queue, in FIFO order, and cost the store nothing. A waiter
//! gives up by dropping its [`Waiter`]. Readers and calls for permits have queues of their own, and some
//! calls have one alone; see [`entering`].
//!
//! A permit that is dropped is *offered* to the first waiter. The lock itself may come with the
//! permit, as a [`HandedOff`] value. The offer stays in the queue until a waiter is polled and
//! takes it. A waiter that gives up, or that is not polled, therefore blocks no other waiter:
//!
//! * If a waiter that was woken for an offer gives up, the next waiter is woken.
//! * If an offer has not been taken by the second check ([`CHECK_INTERVAL`] apart), two more
//!   waiters are woken, then four, and so on. The first waiter that is polled takes the offer.
//!   Waiters that were woken and not polled are *stalled*: they keep their places, and take an
//!   offer when they are polled again, but no offer waits for them. A queue with stalled waiters
//!   wakes two waiters for each offer.
//! * While all waiters are stalled, the next caller that enters the queue gets the offer. A lock is
//!   not kept for stalled waiters: it is released, and only the permit stays on offer.
//!
//! The holder of a permit may not be polled either while other callers wait for the key. A holder
//! that waits for an answer or a release is therefore [registered](PermitHolder). If its future is
//! ready and is not polled, the notifier thread polls it; see [`driven`](super::driven).
//!
//! Keeps the promises that waiting is cheap, and that there is no starvation.

mod check;
mod entering;
mod holder;
mod lingering;
mod permit;
mod queue;
mod queues;
#[cfg(test)]
mod tests;

pub(crate) use self::entering::{Entered, OthersWait};
pub(crate) use self::holder::PermitHolder;
pub(crate) use self::permit::{Offer, Permit, QueuePosition, Requeued, Waiter};
pub(crate) use self::queue::{HandedOff, KeyStatus};
pub(crate) use self::queues::{CHECK_INTERVAL, LocalQueues};

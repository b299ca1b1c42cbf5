//! Fair calls: each call of a process has a claim of its own in the queue of the store.
//!
//! The clients of the model of the queue are calls here, and several of them belong to one process. A call
//! begins with the script, because a plain `SET` would look at no queue. If a process crashes, all of its
//! calls are gone. Without plain takes, the order of the calls has no exception.

use crate::check::{holds, violates};
use crate::queue::{self, FIFO, NO_LOST_RELEASE, Queue, REACHED};

/// Calls of these processes. They begin in order, and their requests arrive in any order.
fn fair_calls(processes: &'static [usize]) -> Queue {
    Queue { requests: &[1, 1, 1], processes, takes: false, ..Queue::default() }
}

#[test]
fn fair_calls_get_the_lock_in_the_order_of_their_arrival() {
    for processes in [&[0, 0, 1], &[0, 1, 0]] {
        holds(Queue { crashes: true, ..fair_calls(processes) }, 30_000);
    }
}

#[test]
fn late_requests_of_two_fair_calls_of_a_process_leave_nothing_behind() {
    let calls = fair_calls(&[0, 0]);
    holds(
        Queue { requests: &[2, 2], time_outs: true, renews: true, crashes: true, ..calls },
        25_000,
    );
}

#[test]
fn a_lock_that_is_handed_off_in_its_process_passes_a_call_of_another_process() {
    violates(Queue { claims_keep_order: false, ..fair_calls(&[0, 1, 0]) }, FIFO);
}

#[test]
fn a_transfer_to_a_call_of_a_killed_process_keeps_the_lock_from_the_next_one() {
    let kept = Queue { gone_are_skipped: false, crashes: true, ..fair_calls(&[0, 0, 1]) };
    violates(kept, REACHED);
}

#[test]
fn a_message_with_the_ticket_of_an_earlier_place_of_a_fair_call_leads_to_two_holders() {
    let uncompared = Queue { tickets_are_compared: false, ..fair_calls(&[0, 0, 1]) };
    violates(Queue { requests: &[1, 3, 1], ..uncompared }, queue::EXCLUSION);
}

#[test]
fn a_release_that_transfers_nothing_leaves_a_free_lock_to_nobody() {
    violates(Queue { releases_transfer: false, ..fair_calls(&[0, 0, 1]) }, NO_LOST_RELEASE);
}

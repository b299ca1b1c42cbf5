//! Futures that are dropped after each possible number of polls, while the network is faulty.

use std::time::Duration;

use lock_tests::simulation::Simulation;

use super::{builder, holds_within, idle, locks};
use crate::cancellation::{ApiCall, CALLS};
use crate::support::polled;

/// It does not end during a test.
const LONG: Duration = Duration::from_secs(600);

/// How long a client may need to clean up, and to get the next lock, after the fault: requests in the background are up to a
/// second apart.
const SOON: Duration = Duration::from_secs(8);

/// A network with a fault, and a client.
struct Fault<'a> {
    lease: Duration,
    wait: Duration,
    /// Begins the fault, after the preparations on a working network.
    begin: &'a dyn Fn(&Simulation),
    /// The time within which the key must be free during the fault, if it can be freed.
    free: Option<Duration>,
}

/// Drops each call after each number of polls, until it completes. Returns the number of drops.
fn drop_everywhere(fault: &Fault<'_>) -> usize {
    Simulation::run(0, async |simulation| {
        let client = builder(simulation, "one", fault.lease).wait(fault.wait).connect();
        let client = client.await.expect("up");
        client.lock("k").run(async {}).await.expect("free");
        let tasks_at_rest = simulation.other_tasks();
        let is_free = || locks(simulation).is_empty();
        let mut drops = 0;
        for call in CALLS {
            for times in 0.. {
                let guard = match call {
                    ApiCall::Release => Some(client.lock("k").acquire().await.expect("free")),
                    _ => None,
                };
                (fault.begin)(simulation);
                let done = polled(call.make(client.clone(), guard), times, LONG).await;
                let done = done.expect("the call is woken until it completes");
                if let Some(free) = fault.free {
                    let is_freed = holds_within(free, is_free).await;
                    assert!(is_freed, "{call:?}, {times} polls: the key still exists");
                }
                simulation.heal();
                let is_freed = holds_within(Duration::from_secs(5), is_free).await;
                assert!(is_freed, "{call:?}, {times} polls: the key still exists after the fault");
                idle(&client, SOON).await;
                let have_ended =
                    holds_within(SOON, || simulation.other_tasks() <= tasks_at_rest).await;
                assert!(have_ended, "{call:?}, {times} polls: {} tasks", simulation.other_tasks());
                let guard = client.lock("k").wait(SOON).acquire().await.expect("free");
                guard.release().await.expect("held");
                drops += 1;
                if done {
                    break;
                }
            }
        }
        drops
    })
}

#[test]
fn a_call_dropped_at_any_poll_leaves_nothing_on_a_slow_server() {
    let begin = |simulation: &Simulation| simulation.delay(Duration::from_millis(40));
    let (free, wait) = (Some(Duration::from_secs(2)), Duration::from_secs(20));
    let drops = drop_everywhere(&Fault { lease: LONG, wait, begin: &begin, free });
    assert!(drops > 3 * CALLS.len(), "{drops}");
}

/// The server gets all requests, and all its replies are held back.
#[test]
fn a_call_dropped_at_any_poll_leaves_nothing_on_a_server_whose_answers_are_lost() {
    let begin = |simulation: &Simulation| simulation.hold_replies("one");
    let (free, wait) = (Some(Duration::from_secs(5)), Duration::from_secs(3));
    let drops = drop_everywhere(&Fault { lease: LONG, wait, begin: &begin, free });
    assert!(drops > 2 * CALLS.len(), "{drops}");
}

/// The network is cut when the call starts, and recovers after the call was dropped and its lease has ended.
#[test]
fn a_call_dropped_at_any_poll_leaves_nothing_on_an_unreachable_server() {
    let lease = Duration::from_secs(1);
    let begin = |simulation: &Simulation| simulation.cut_off("one");
    let drops =
        drop_everywhere(&Fault { lease, wait: lease * 2, begin: &begin, free: Some(lease * 2) });
    assert!(drops > 3 * CALLS.len(), "{drops}");
}

//! Requests whose replies are lost, and requests that arrive after their caller has given up.

use std::time::Duration;

use lock_runtime::{LockClient, LockError};
use lock_tests::simulation::{RequestFault, Simulation};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use super::{builder, holds_within, idle, locks};

const LEASE: Duration = Duration::from_secs(1);

/// A client whose lease outlasts the test.
async fn client(simulation: &Simulation) -> LockClient {
    let client = builder(simulation, "one", LEASE * 60).connect().await.expect("up");
    client.lock("warm").run(async {}).await.expect("free");
    client
}

#[test]
fn an_acquisition_whose_answer_was_lost_does_not_wait_for_itself() {
    Simulation::run(0, async |simulation| {
        let client = client(simulation).await;
        for n in 1..=20 {
            simulation.fail_next("SET", RequestFault::LostReply);
            let begun = Instant::now();
            let lock = client.lock("k").wait(LEASE * 5);
            let guard = lock.acquire().await.expect("the retry finds its own token");
            assert_eq!(simulation.failed(), n, "the reply was lost");
            assert!(begun.elapsed() < LEASE, "{:?}", begun.elapsed());
            assert_eq!(locks(simulation), ["k"]);
            guard.release().await.expect("held");
            assert!(!simulation.exists("k"), "the key is freed by the release");
        }
        idle(&client, LEASE * 5).await;
    });
}

#[test]
fn a_request_that_is_cut_off_is_sent_again() {
    Simulation::run(0, async |simulation| {
        let client = client(simulation).await;
        for command in ["SET", "EVALSHA"] {
            simulation.fail_next(command, RequestFault::Cut);
            let lock = client.lock("k").wait(LEASE * 5);
            match lock.acquire().await.expect("the retry is granted").release().await {
                // If the release was cut off, it continues in the background.
                Ok(()) | Err(LockError::Unavailable { .. }) => {}
                other => panic!("{command}: {other:?}"),
            }
            let is_freed = holds_within(LEASE, || !simulation.exists("k")).await;
            assert!(is_freed, "{command}: the key still exists");
        }
        assert_eq!(simulation.failed(), 2);
        idle(&client, LEASE * 5).await;
    });
}

#[test]
fn a_request_that_arrives_after_its_caller_gave_up_is_undone() {
    Simulation::run(0, async |simulation| {
        let client = client(simulation).await;
        let other = builder(simulation, "two", LEASE).connect().await.expect("up");
        for wait in [LEASE / 20, LEASE / 4] {
            simulation.fail_next("SET", RequestFault::HeldBack);
            let outcome = client.lock("k").wait(wait).acquire().await;
            assert!(matches!(outcome, Err(LockError::Unavailable { .. })), "{outcome:?}");
            assert!(!simulation.exists("k"), "the request is still in flight");
            simulation.deliver();
            assert!(simulation.exists("k"), "the request arrives");
            // Attempts to free the key are up to a second apart.
            let is_freed = holds_within(LEASE * 2, || !simulation.exists("k")).await;
            assert!(is_freed, "not undone: left for {} ms", simulation.pttl("k"));
            other.lock("k").acquire().await.expect("free").release().await.expect("held");
        }
    });
}

/// Requests without an answer do not keep their connection open, so no more of them are sent.
#[test]
fn a_silent_connection_is_closed() {
    for quarantine in [None, Some(LEASE)] {
        Simulation::run(0, async |simulation| {
            let client = builder(simulation, "one", LEASE);
            let client = match quarantine {
                Some(quarantine) => client.quarantine(quarantine),
                None => client,
            };
            let client = client.connect().await.expect("up");
            let before = simulation.connections();
            simulation.hold_replies("one");
            // Longer than the answer about a quarantine counts that the connect has got.
            let outcome = client.lock("k").wait(LEASE * 3).acquire().await;
            assert!(matches!(outcome, Err(LockError::Unavailable { .. })), "{outcome:?}");
            let is_open = |connection| simulation.connections().contains(connection);
            let is_closed = holds_within(LEASE * 3, || !before.iter().all(is_open)).await;
            assert!(is_closed, "all of {before:?} are open");
        });
    }
}

/// No client undoes such a request. The key expires with its lease.
#[test]
fn the_key_of_a_request_that_arrives_very_late_expires_with_its_lease() {
    Simulation::run(0, async |simulation| {
        let client = client(simulation).await;
        simulation.fail_next("SET", RequestFault::HeldBack);
        // Long enough for another attempt over another connection.
        let lock = client.lock("k").lease(LEASE).wait(LEASE * 5);
        let guard = lock.acquire().await.expect("granted over another connection");
        guard.release().await.expect("held");
        idle(&client, LEASE * 5).await;
        simulation.deliver();
        assert!(simulation.exists("k"), "the request arrives");
        assert!(holds_within(LEASE, || !simulation.exists("k")).await, "it expires");
        client.lock("k").acquire().await.expect("free").release().await.expect("held");
    });
}

/// The release has already returned, and a successor holds the key.
#[test]
fn a_late_release_does_not_free_the_key_of_a_successor() {
    Simulation::run(0, async |simulation| {
        let client = client(simulation).await;
        let guard = client.lock("k").lease(LEASE).acquire().await.expect("free");
        simulation.fail_next("EVALSHA", RequestFault::HeldBack);
        drop(guard.release().await);
        // The key is released over another connection, or its lease ends.
        assert!(holds_within(LEASE, || !simulation.exists("k")).await, "the key is free");
        idle(&client, LEASE * 5).await;
        simulation.set("k", "stranger", LEASE);
        let released = simulation.calls("evalsha");
        simulation.deliver();
        assert!(simulation.calls("evalsha") > released, "the request arrives");
        assert!(simulation.exists("k"), "the key belongs to the successor");
    });
}

/// The first attempt is lost, and the second one is held up. The third attempt is granted, and its
/// lease is extended. Then the second attempt arrives.
#[test]
fn a_late_attempt_does_not_shorten_the_lease() {
    Simulation::run(0, async |simulation| {
        let client = client(simulation).await;
        simulation.fail_next("SET", RequestFault::LostReply);
        simulation.fail_next("EVALSHA", RequestFault::HeldBack);
        let (brief, long) = (LEASE * 30, client.lock("k").lease(LEASE * 60));
        let body = async {
            assert_eq!(simulation.failed(), 2, "two attempts failed");
            let _inner = long.acquire().await.expect("shared, and extended");
            let extended = simulation.pttl("k");
            let calls = simulation.calls("evalsha");
            simulation.deliver();
            assert!(simulation.calls("evalsha") > calls, "the request arrives");
            (extended, simulation.pttl("k"))
        };
        let lock = client.lock("k").lease(brief);
        let (extended, now) = lock.run(body).await.expect("the third attempt is granted");
        assert!(extended > 50_000, "{extended}");
        assert!(now > 50_000, "shortened: {now} after {extended}");
    });
}

/// The replies to the burst take longer than one response timeout to arrive.
#[test]
fn a_burst_of_requests_causes_no_error() {
    const TASKS: usize = 3_500;
    /// Bytes per second. In a response timeout of two seconds, that is far less than the 5 bytes of each reply to an
    /// acquire, and far more than the replies to all requests that may be in flight.
    const RATE: u32 = 7_500;
    Simulation::run(0, async |simulation| {
        let client = client(simulation).await;
        simulation.limit_replies(RATE);
        let mut burst = JoinSet::new();
        for n in 0..TASKS {
            // A fixed lease, so that the background renews nothing.
            let lock = client.lock(format!("k{n}")).lease(LEASE * 60);
            burst.spawn(async move { lock.acquire().await?.release().await });
        }
        let mut errors = Vec::new();
        while let Some(outcome) = burst.join_next().await {
            errors.extend(outcome.expect("no panic").err());
        }
        assert!(errors.is_empty(), "{} errors, such as {:?}", errors.len(), errors.first());
        assert_eq!(locks(simulation), [""; 0]);
    });
}

/// The requests ahead get no reply in time, and the later requests have to wait for them.
#[test]
fn a_request_queued_for_too_long_is_not_sent() {
    const IN_FLIGHT: u64 = 1024;
    const MORE: u64 = 200;
    Simulation::run(0, async |simulation| {
        let client = client(simulation).await;
        let before = simulation.calls("set");
        let sent = || simulation.calls("set") - before;
        // Longer than the patience of the first requests, which is shorter than the response timeout.
        simulation.hold_replies("one");
        let (mut burst, mut later) = (JoinSet::new(), JoinSet::new());
        let ask = |burst: &mut JoinSet<_>, from, many, wait| {
            for n in from..from + many {
                let lock = client.lock(format!("k{n}")).wait(wait);
                burst.spawn(async move { lock.acquire().await.map(drop) });
            }
        };
        ask(&mut burst, 0, IN_FLIGHT, LEASE * 7 / 4);
        sleep(LEASE / 2).await;
        assert_eq!(sent(), IN_FLIGHT, "the requests are in flight");
        ask(&mut later, IN_FLIGHT, MORE, LEASE / 8);
        let mut waited = 0;
        let mut count = |outcome: Result<(), LockError>| match outcome {
            Err(LockError::Unavailable { cause, .. }) => {
                waited += u64::from(cause.contains("was not sent"));
            }
            other => panic!("{other:?}"),
        };
        later.join_all().await.into_iter().for_each(&mut count);
        burst.join_all().await.into_iter().for_each(&mut count);
        assert_eq!((sent(), waited), (IN_FLIGHT, MORE), "were sent");
        simulation.heal();
        idle(&client, LEASE * 5).await;
        assert_eq!(locks(simulation), [""; 0], "the other requests are undone");
    });
}

/// Each answer extends the time for those behind it, but not beyond the end of the wait.
#[test]
fn calls_end_at_their_timeout_while_other_answers_arrive() {
    const CALLS: usize = 1000;
    /// Bytes per second: the replies of 5 bytes take five seconds to arrive.
    const RATE: u32 = 1000;
    Simulation::run(0, async |simulation| {
        let client = client(simulation).await;
        simulation.limit_replies(RATE);
        let began = Instant::now();
        let mut burst = JoinSet::new();
        for n in 0..CALLS {
            let lock = client.lock(format!("k{n}")).wait(LEASE / 2);
            burst.spawn(async move { lock.acquire().await.map(drop) });
        }
        let mut unanswered = 0;
        while let Some(outcome) = burst.join_next().await {
            unanswered += usize::from(outcome.expect("no panic").is_err());
        }
        let took = began.elapsed();
        assert!(unanswered > CALLS / 2, "{unanswered} of {CALLS} got no answer");
        assert!(took < LEASE, "the calls took {took:?}");
        simulation.heal();
        idle(&client, LEASE * 5).await;
    });
}

/// Locks work normally on a slow network.
#[test]
fn locks_work_on_a_slow_network() {
    Simulation::run(0, async |simulation| {
        let client = builder(simulation, "one", LEASE).connect().await.expect("up");
        simulation.delay(LEASE / 20);
        let begun = Instant::now();
        let guard = client.lock("k").acquire().await.expect("free");
        assert!(begun.elapsed() < LEASE / 2, "{:?}", begun.elapsed());
        sleep(LEASE * 3 / 2).await;
        assert!(guard.is_held(), "renewed");
        guard.release().await.expect("held");
        assert!(!simulation.exists("k"));
    });
}

//! How an acquisition treats the answers of the store.

use super::scripted_store::{
    ONCE, ScriptedStore, busy, engine, granted, refused, request, unknown,
};
use super::so_far::AttemptsSoFar;
use super::*;
use crate::clock::BootInstant;
use crate::engine::testing::LEASE;
use crate::holder::{Holder, HolderKind};
use crate::runtime::Caller;
use crate::store::contract::{Acquired, Left, SendTrace, StoreError};
use crate::sync::{lock, time};
use crate::timeout::{Timeout, Wait};

/// The result of a call that gets these answers, and whether each of its attempts was fresh.
async fn outcome(
    wait: Wait,
    answers: impl IntoIterator<Item = Result<Acquired, StoreError>>,
) -> (Result<(), LockError>, Vec<bool>) {
    let store = ScriptedStore::of(answers);
    let outcome = acquire(engine(&store), request(&store, wait), |engine, hold, _| {
        engine.release_in_background(&hold, true);
    });
    (outcome.await.map_err(|error| *error), store.attempts())
}

fn cause(outcome: &Result<(), LockError>) -> &str {
    match outcome {
        Err(LockError::Unavailable { cause, .. }) => cause,
        other => panic!("{other:?}"),
    }
}

fn holder(outcome: Result<(), LockError>) -> Holder {
    match outcome {
        Err(LockError::Busy { holder, .. }) => holder,
        other => panic!("{other:?}"),
    }
}

/// The error of a call that times out now. `status` is the status of the key at this instant, and
/// `seen` is the result of the store's last check, which was made this long afterwards.
fn timeout_error(
    status: impl FnOnce(BootInstant) -> KeyStatus,
    seen: Option<(Left, Duration)>,
) -> LockError {
    let store = ScriptedStore::of([]);
    let engine = engine(&store);
    // After the engine has started, because that takes a while.
    let now = BootInstant::now();
    *lock(&store.last_check) = seen.map(|(left, later)| (left, now.after(later)));
    let timeout = Timeout::new(ONCE);
    failed(&timeout, &engine, &request(&store, ONCE), status(now))
}

/// The holder that a call reports after this status of the key.
fn holder_of(status: KeyStatus) -> Holder {
    holder(Err(timeout_error(|_| status, None)))
}

/// The same if the caller has found the key taken, with this rest of the lease.
fn holder_after_busy(left: Left, seen: Option<(Left, Duration)>) -> Holder {
    holder(Err(timeout_error(|now| KeyStatus::HeldElsewhere(left, now), seen)))
}

/// Whether this rest of a lease is reported, less the time since.
fn is_about(holder: &Holder, left: Duration) -> bool {
    holder.kind == HolderKind::Elsewhere
        && holder.lease_left.is_some_and(|about| about <= left && about + LEASE * 10 > left)
}

#[tokio::test]
async fn busy_reports_the_holder_that_was_seen_last() {
    assert_eq!(holder_of(KeyStatus::HeldHere(Caller::here())), Holder::new(HolderKind::ThisTask));
    let other = tokio::spawn(async { Caller::here() }).await.expect("no panic");
    assert_eq!(holder_of(KeyStatus::HeldHere(other)), Holder::new(HolderKind::ThisProcess));
    assert_eq!(holder_of(KeyStatus::Yielded), Holder::new(HolderKind::Elsewhere));
    let (found, later) = (Left::Time(LEASE * 90), Duration::from_nanos(1));
    let seen = Left::Time(LEASE * 50);
    assert!(is_about(&holder_after_busy(found, None), LEASE * 90));
    assert!(is_about(&holder_after_busy(found, Some((seen, later))), LEASE * 50));
    // A check at the same instant is not newer.
    assert!(is_about(&holder_after_busy(found, Some((seen, Duration::ZERO))), LEASE * 90));
    assert_eq!(
        holder_after_busy(found, Some((Left::Forever, later))),
        Holder::new(HolderKind::NoExpiry)
    );
    assert_eq!(holder_after_busy(Left::Unknown, None), Holder::new(HolderKind::Elsewhere));
}

#[tokio::test]
async fn a_caller_behind_an_unanswered_request_gets_unavailable() {
    // The request has not begun yet.
    let soon = |now: BootInstant| KeyStatus::Acquiring(now.after(LEASE * 10));
    assert_eq!(holder(Err(timeout_error(soon, None))), Holder::new(HolderKind::ThisProcess));
    // The response timeout is a third of a lease.
    let ago = |now: BootInstant| {
        let ago = u64::try_from((LEASE / 12).as_nanos()).expect("short");
        KeyStatus::Acquiring(BootInstant::from_nanos(now.as_nanos() - ago))
    };
    assert!(cause(&Err(timeout_error(ago, None))).contains("has not answered"));
    assert_eq!(cause(&Err(timeout_error(|_| KeyStatus::Unreachable("down".into()), None))), "down");
}

#[tokio::test]
async fn a_single_attempt_asks_once_more_for_the_rest_of_the_lease() {
    let left = Left::Time(LEASE * 9);
    let (busy_twice, attempts) = outcome(ONCE, [busy(Left::Unknown), busy(left)]).await;
    assert!(holder(busy_twice).lease_left.is_some());
    assert_eq!(attempts, [true, false]);
    for failure in [refused("down"), unknown("lost")] {
        let (once, _) = outcome(ONCE, [busy(Left::Unknown), failure]).await;
        assert_eq!(
            holder(once),
            Holder::new(HolderKind::Elsewhere),
            "the first answer is sufficient"
        );
    }
    let (unknown_twice, attempts) = outcome(ONCE, [busy(Left::Unknown), busy(Left::Unknown)]).await;
    assert_eq!(holder(unknown_twice), Holder::new(HolderKind::Elsewhere));
    assert_eq!(attempts, [true, false], "a store that does not know it is not asked for ever");
    let (once, attempts) = outcome(ONCE, [refused("down")]).await;
    assert_eq!((cause(&once), attempts), ("down", vec![true]));
}

/// The connection may have been lost while it was idle, and the next request has another one.
#[tokio::test]
async fn a_single_attempt_without_an_answer_is_repeated_once() {
    let (granted, attempts) = outcome(ONCE, [unknown("lost"), granted()]).await;
    assert_eq!((granted, attempts), (Ok(()), vec![true, false]));
    let (taken, attempts) = outcome(ONCE, [unknown("lost"), busy(Left::Unknown)]).await;
    assert_eq!(holder(taken), Holder::new(HolderKind::Elsewhere));
    assert_eq!(attempts, [true, false]);
    for failure in [refused("down"), unknown("again")] {
        let (twice, attempts) = outcome(ONCE, [unknown("lost"), failure]).await;
        assert_eq!(
            (cause(&twice), attempts),
            ("lost", vec![true, false]),
            "the first error counts"
        );
    }
}

#[tokio::test]
async fn a_waiting_caller_tries_again_and_is_granted_the_lock() {
    let wait = Wait::For(LEASE * 10);
    for failure in [refused("down"), unknown("lost"), busy(Left::Time(Duration::ZERO))] {
        let (granted, attempts) = outcome(wait, [failure.clone(), granted()]).await;
        assert_eq!(granted, Ok(()), "{failure:?}");
        assert_eq!(attempts, [true, false]);
    }
}

/// A timeout may be the rest of a deadline, and very short.
#[tokio::test(start_paused = true)]
async fn a_call_with_a_short_timeout_makes_at_least_one_attempt() {
    for wait in [Duration::from_nanos(1), Duration::from_millis(1), Duration::from_millis(100)] {
        let store = ScriptedStore::of([granted()]);
        *lock(&store.delay) = LEASE / 6;
        let engine = engine(&store);
        let granted = acquire(engine, request(&store, Wait::For(wait)), |engine, hold, _| {
            engine.release_in_background(&hold, true);
        });
        assert_eq!(granted.await, Ok(()), "{wait:?}");
        // A silent store is waited for no longer than the response timeout.
        let begun = time::Instant::now();
        let (silent, attempts) = outcome(Wait::For(wait), []).await;
        assert_eq!(cause(&silent), "silent");
        assert_eq!(attempts, [true]);
        assert!(begun.elapsed() < LEASE, "{:?}", begun.elapsed());
    }
}

#[tokio::test]
async fn an_error_that_waiting_cannot_cure_is_returned_immediately() {
    let found = || "list".to_owned();
    let wrong = StoreError::WrongFormat { key: "k".into(), expected: "string", found: found() };
    let (wrong, attempts) = outcome(Wait::Forever, [Err(wrong)]).await;
    let key = "k".to_owned();
    let expected = LockError::wrong_format(key, "string", found());
    assert_eq!((wrong, attempts), (Err(expected), vec![true]));
    let (denied, attempts) = outcome(Wait::Forever, [Err(StoreError::Denied("no".into()))]).await;
    assert_eq!((denied, attempts), (Err(LockError::denied("no")), vec![true]));
}

#[tokio::test]
async fn unavailable_reports_the_last_error_of_the_store() {
    let wait = Wait::For(LEASE * 5);
    let (refusals, attempts) = outcome(wait, (0..99).map(|n| refused(&format!("{n}")))).await;
    let attempts = attempts.len();
    // There may have been no time for another attempt after the last error.
    let last: usize = cause(&refusals).parse().expect("a number");
    assert!(last + 2 >= attempts && attempts > 2, "{last} of {attempts}");
    // The key was found taken, and the store is silent since.
    let (silent, _) = outcome(Wait::For(LEASE * 3), [busy(Left::Time(LEASE / 9))]).await;
    assert_eq!(cause(&silent), "silent");
}

/// The timeout ends during an attempt, shortly after an answer.
#[tokio::test(start_paused = true)]
async fn an_attempt_that_the_timeout_cuts_off_does_not_replace_a_recent_answer() {
    let wait = Wait::For(LEASE / 4);
    // An answer is recent for a response timeout, which is longer than this wait.
    let (cut_off, attempts) = outcome(wait, [busy(Left::Time(Duration::ZERO))]).await;
    assert!(holder(cut_off).kind == HolderKind::Elsewhere);
    assert!(attempts.len() <= 2);
    // Without any answer, the store is unavailable.
    let (cut_off, _) = outcome(wait, []).await;
    assert_eq!(cause(&cut_off), "silent");
    // An error of the store is not replaced either.
    let (cut_off, _) = outcome(wait, [refused("down")]).await;
    assert_eq!(cause(&cut_off), "down");
}

/// A store that was polled shortly before the end of a wait has not had the time to answer.
#[tokio::test]
async fn an_attempt_without_time_does_not_replace_an_old_answer() {
    let store = ScriptedStore::of([]);
    let engine = engine(&store);
    let response_timeout = engine.config().response_timeout;
    let status = |within: Duration, answered: bool| {
        let request = request(&store, Wait::For(LEASE));
        let mut so_far = AttemptsSoFar::new(request.timeout, None);
        if answered {
            so_far.busy(Left::Forever);
        }
        // The answer is old by now.
        crate::clock::sleep_through(response_timeout * 2);
        let (trace, answer) = (SendTrace::default(), Err(StoreError::Unknown("silent".into())));
        let attempt = Attempt::new(&trace, within, answer, &request.terms);
        so_far.failed(attempt, None, &engine, &request.terms).expect("another attempt may help");
        so_far.known
    };
    let was_answered = |known| matches!(known, Some(KeyStatus::HeldElsewhere(..)));
    assert!(was_answered(status(response_timeout / 5, true)));
    assert!(!was_answered(status(response_timeout / 3, true)), "it had time");
    assert!(!was_answered(status(response_timeout / 5, false)), "there was no answer");
}

/// Each acquisition allocates its future. It is so small that the allocator needs no lock (1,032
/// bytes in glibc).
#[tokio::test]
async fn the_future_of_an_acquisition_is_small() {
    let store = ScriptedStore::of([]);
    let (engine, request) = (engine(&store), request(&store, Wait::Forever));
    let (runtime, timeout) = (Handle::current().id(), Timeout::new(Wait::Forever));
    let call = PendingCall { engine, runtime, request };
    let acquisition = Acquisition::new(&call, None, false).expect("randomness");
    let size = size_of_val(&acquisition.run(timeout, None, None, None));
    assert!(size <= 1032, "{size} bytes");
}

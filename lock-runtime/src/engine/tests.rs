//! The engine against a store that misbehaves.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{sleep, timeout};

use super::contender::{Request, acquire};
use super::lease::Terms;
use super::*;
use crate::store::faulty::{Fault, FaultyStore};
use crate::store::{Attempt, Claim, MemoryStore, Token};

const LEASE: Duration = Duration::from_millis(300);

fn engine() -> (Arc<FaultyStore>, Arc<Engine>) {
    let store = Arc::new(FaultyStore::new(MemoryStore::new()));
    let config = Config {
        namespace: String::new(),
        watchdog: LEASE,
        max_hold: None,
        wait: Wait::For(LEASE * 10),
        response_timeout: LEASE / 3,
    };
    let engine = Engine::start(config, Arc::clone(&store) as Arc<dyn LockStore>);
    (store, engine)
}

fn request(lease: Option<Duration>) -> Request {
    let terms = Terms {
        term: lease.unwrap_or(LEASE),
        renewed: lease.is_none(),
        max_hold: None,
        min_hold: Duration::ZERO,
    };
    Request { key: Arc::from("k"), wait: Wait::For(LEASE * 10), terms }
}

/// Whether the key is to be had in the store itself.
async fn is_free(store: &FaultyStore) -> bool {
    let token = Token::random().expect("randomness");
    let claim = Claim { key: "k", token: &token, lease: LEASE, fresh: true };
    let free = store.try_acquire(claim, LEASE).await == Ok(Attempt::Granted);
    if free {
        store.release("k", &token, Duration::ZERO, Lane::Keeper).await.expect("up");
    }
    free
}

/// Everything that the engine keeps about locks is gone again.
async fn assert_nothing_left(engine: &Engine) {
    settled(LEASE * 10, || engine.gates.keys() == 0 && engine.open() == 0).await;
    assert_eq!((engine.gates.keys(), engine.gates.queued(), engine.open()), (0, 0, 0));
}

#[tokio::test]
async fn an_acquire_whose_reply_was_lost_tries_again_with_its_token() {
    let (store, engine) = engine();
    store.next_acquires([Fault::LoseReply]);
    // It would wait for its own key if it came with another token.
    let lease = timeout(LEASE / 2, acquire(&engine, request(Some(LEASE * 10)))).await;
    let lease = lease.expect("at once").expect("granted");
    assert!(!is_free(&store).await);
    engine.release(&lease).await.expect("held");
    assert!(is_free(&store).await);
    assert_nothing_left(&engine).await;
}

#[tokio::test]
async fn an_acquire_that_is_dropped_after_its_request_ran_is_undone() {
    let (store, engine) = engine();
    store.next_acquires([Fault::HangAfter]);
    let cut = timeout(LEASE / 10, acquire(&engine, request(Some(LEASE * 100)))).await;
    assert!(cut.is_err());
    assert_nothing_left(&engine).await;
    assert!(is_free(&store).await);
}

/// The control of the test above: without the engine, the same request stays.
#[tokio::test]
async fn a_bare_request_that_is_dropped_after_it_ran_is_not() {
    let (store, _engine) = engine();
    store.next_acquires([Fault::HangAfter]);
    let token = Token::random().expect("randomness");
    let claim = Claim { key: "k", token: &token, lease: LEASE * 100, fresh: true };
    let cut = timeout(LEASE / 10, store.try_acquire(claim, LEASE * 100)).await;
    assert!(cut.is_err());
    sleep(LEASE).await;
    assert!(!is_free(&store).await);
}

#[tokio::test]
async fn a_store_that_refuses_for_a_while_is_waited_out() {
    let (store, engine) = engine();
    store.next_acquires([Fault::Refuse, Fault::Hang, Fault::Refuse]);
    let lease = acquire(&engine, request(None)).await.expect("within the wait");
    engine.release(&lease).await.expect("held");
    assert_nothing_left(&engine).await;
}

#[tokio::test]
async fn a_store_that_never_answers_is_unavailable() {
    let (store, engine) = engine();
    store.next_acquires([Fault::Hang; 100]);
    let request = Request { wait: Wait::For(LEASE), ..request(None) };
    match acquire(&engine, request).await.map(drop) {
        Err(LockError::Unavailable { key: Some(key), waited, cause }) => {
            assert_eq!((key.as_str(), cause.as_str()), ("k", "told to lose the reply"));
            assert!(waited >= LEASE, "{waited:?}");
        }
        other => panic!("{other:?}"),
    }
    assert_nothing_left(&engine).await;
}

#[tokio::test]
async fn those_who_queue_behind_a_store_in_trouble_hear_of_it() {
    let (store, engine) = engine();
    store.next_acquires([Fault::Refuse; 100]);
    let request = Request { wait: Wait::For(LEASE), ..request(None) };
    let (first, second) =
        tokio::join!(acquire(&engine, request.clone()), acquire(&engine, request));
    for outcome in [first, second] {
        assert!(matches!(outcome, Err(LockError::Unavailable { .. })), "{outcome:?}");
    }
    assert_nothing_left(&engine).await;
}

#[tokio::test]
async fn renewals_that_fail_and_then_work_lose_nothing() {
    let (store, engine) = engine();
    let lease = acquire(&engine, request(None)).await.expect("free");
    store.next_renewals([Fault::Refuse, Fault::LoseReply]);
    sleep(LEASE * 2).await;
    assert!(lease.is_valid(BootInstant::now()));
    assert!(!is_free(&store).await);
    engine.release(&lease).await.expect("held");
    assert_nothing_left(&engine).await;
}

#[tokio::test]
async fn renewals_that_never_answer_lose_the_lock_at_its_deadline() {
    let (store, engine) = engine();
    store.next_renewals([Fault::Hang; 100]);
    let lease = acquire(&engine, request(None)).await.expect("free");
    let reason = timeout(LEASE * 3 / 2, lease.lost()).await.expect("by then");
    assert_eq!(reason, LostReason::RenewalFailed);
    assert!(lease.age() >= LEASE * 9 / 10, "not before: {:?}", lease.age());
    assert_nothing_left(&engine).await;
    assert!(is_free(&store).await);
}

#[tokio::test]
async fn one_renewal_that_hangs_delays_no_other() {
    let (store, engine) = engine();
    let stuck = acquire(&engine, request(None)).await.expect("free");
    store.next_renewals([Fault::Hang]);
    sleep(LEASE / 2).await;
    let other = Request { key: Arc::from("other"), ..request(None) };
    let other = acquire(&engine, other).await.expect("free");
    stuck.lost().await;
    sleep(LEASE).await;
    assert!(other.is_valid(BootInstant::now()));
    engine.release(&other).await.expect("held");
}

#[tokio::test]
async fn a_release_that_is_dropped_half_way_goes_on() {
    let (store, engine) = engine();
    let lease = acquire(&engine, request(Some(LEASE * 100))).await.expect("free");
    store.next_releases([Fault::Hang]);
    let cut = timeout(LEASE / 10, engine.release(&lease)).await;
    assert!(cut.is_err());
    assert_nothing_left(&engine).await;
    assert!(is_free(&store).await);
}

#[tokio::test]
async fn a_release_that_fails_says_so_and_goes_on() {
    let (store, engine) = engine();
    let lease = acquire(&engine, request(Some(LEASE * 100))).await.expect("free");
    store.next_releases([Fault::Refuse]);
    match engine.release(&lease).await {
        Err(LockError::Unavailable { cause, .. }) => assert!(cause.contains("goes on"), "{cause}"),
        other => panic!("{other:?}"),
    }
    assert_nothing_left(&engine).await;
    assert!(is_free(&store).await);
}

#[tokio::test]
async fn a_shutdown_ends_the_holds_of_those_who_do_not_finish() {
    let (store, engine) = engine();
    let lease = acquire(&engine, request(Some(LEASE * 100))).await.expect("free");
    let holder = async {
        assert_eq!(lease.lost().await, LostReason::ShutDown);
        assert!(!lease.is_valid(BootInstant::now()));
        // Its body may be in the middle of a poll, so it keeps the key until it is done.
        assert!(!is_free(&store).await);
        engine.release_in_background(&lease);
    };
    let (open, ()) = tokio::join!(engine.shut_down(LEASE / 10), holder);
    assert_eq!(open, 0);
    assert!(is_free(&store).await);
    assert!(matches!(acquire(&engine, request(None)).await, Err(LockError::ShutDown)));
}

#[tokio::test]
async fn a_shutdown_does_not_forget_those_who_never_finish() {
    let (store, engine) = engine();
    let lease = acquire(&engine, request(None)).await.expect("free");
    assert_eq!(engine.shut_down(LEASE / 10).await, 1, "longer than until its next renewal");
    assert!(matches!(engine.release(&lease).await, Err(LockError::Lost { .. })));
    assert!(is_free(&store).await);
}

#[tokio::test]
async fn a_lock_that_is_granted_after_the_shutdown_began_is_not_used() {
    let (store, engine) = engine();
    // Held by somebody else, so that the contender sleeps; then an answer on its way.
    let other = Token::random().expect("randomness");
    let claim = Claim { key: "k", token: &other, lease: LEASE * 100, fresh: true };
    assert_eq!(store.try_acquire(claim, LEASE).await, Ok(Attempt::Granted));
    let asleep = acquire(&engine, request(None));
    let shutdown = async {
        sleep(LEASE / 10).await;
        engine.shut_down(LEASE * 10).await
    };
    let start = BootInstant::now();
    let (outcome, open) = tokio::join!(asleep, shutdown);
    assert!(matches!(outcome, Err(LockError::ShutDown)), "{outcome:?}");
    assert_eq!(open, 0);
    assert!(BootInstant::now().since(start) < LEASE, "told at once");
    assert_nothing_left(&engine).await;
}

#[tokio::test]
async fn a_shutdown_waits_for_a_release_that_somebody_else_awaits() {
    let (store, engine) = engine();
    let lease = acquire(&engine, request(Some(LEASE * 100))).await.expect("free");
    store.next_releases([Fault::Hang]);
    let releasing = timeout(LEASE / 2, engine.release(&lease));
    let shutdown = async {
        tokio::task::yield_now().await;
        engine.shut_down(LEASE * 10).await
    };
    let (released, open) = tokio::join!(releasing, shutdown);
    assert!(released.is_err(), "cut, so it goes on in the background");
    assert_eq!(open, 0);
    assert!(is_free(&store).await);
}

#[tokio::test]
async fn those_who_queue_behind_a_first_try_without_an_answer_are_not_told_that_it_is_busy() {
    let (store, engine) = engine();
    store.next_acquires([Fault::Hang; 100]);
    let first = acquire(&engine, request(None));
    let second = async {
        sleep(LEASE / 20).await;
        acquire(&engine, Request { wait: Wait::For(LEASE / 4), ..request(None) }).await
    };
    tokio::select! {
        outcome = first => panic!("{outcome:?}"),
        outcome = second => {
            assert!(matches!(outcome, Err(LockError::Unavailable { .. })), "{outcome:?}");
        }
    }
}

#[tokio::test]
async fn a_try_that_the_end_of_the_wait_cuts_short_leaves_a_busy_lock_busy() {
    let (store, engine) = engine();
    let other = Token::random().expect("randomness");
    let claim = Claim { key: "k", token: &other, lease: LEASE * 100, fresh: true };
    assert_eq!(store.try_acquire(claim, LEASE).await, Ok(Attempt::Granted));
    // The second try comes as soon as the subscription is live.
    store.next_acquires([Fault::None, Fault::Hang]);
    let request = Request { wait: Wait::For(LEASE / 6), ..request(None) };
    let outcome = acquire(&engine, request).await;
    assert!(matches!(outcome, Err(LockError::Busy { .. })), "{outcome:?}");
    assert_nothing_left(&engine).await;
}

#[tokio::test]
async fn a_request_that_comes_late_after_a_successful_hold_is_undone() {
    let (store, engine) = engine();
    store.next_acquires([Fault::Hang]);
    let lease = acquire(&engine, request(Some(LEASE * 100))).await.expect("the second try");
    let token = lease.token().clone();
    engine.release(&lease).await.expect("held");
    // The first try arrives now.
    let claim = Claim { key: "k", token: &token, lease: LEASE * 100, fresh: true };
    assert_eq!(store.try_acquire(claim, LEASE).await, Ok(Attempt::Granted));
    assert_nothing_left(&engine).await;
    assert!(is_free(&store).await);
}

#[tokio::test]
async fn a_shutdown_counts_what_it_could_not_release() {
    let (store, engine) = engine();
    let lease = acquire(&engine, request(Some(LEASE * 100))).await.expect("free");
    // One is asked at once, in case that it needs no time.
    store.next_releases([Fault::Hang; 2]);
    engine.release_in_background(&lease);
    assert_eq!(engine.shut_down(LEASE).await, 1);
}

#[tokio::test]
async fn a_fencing_token_is_asked_for_until_there_is_one() {
    let (store, engine) = engine();
    let lease = acquire(&engine, request(None)).await.expect("free");
    store.next_fences([Fault::Refuse, Fault::LoseReply]);
    let fence = engine.fencing_token(&lease).await.expect("held");
    store.next_fences([Fault::Hang]);
    let again = timeout(LEASE, engine.fencing_token(&lease)).await.expect("without the store");
    assert_eq!(again, Ok(fence), "a hold has one");
    engine.release(&lease).await.expect("held");
}

#[tokio::test]
async fn a_request_for_a_fencing_token_that_is_dropped_spoils_nothing() {
    let (store, engine) = engine();
    let lease = acquire(&engine, request(None)).await.expect("free");
    for fault in [Fault::Hang, Fault::HangAfter] {
        store.next_fences([fault]);
        assert!(timeout(LEASE / 10, engine.fencing_token(&lease)).await.is_err());
    }
    engine.fencing_token(&lease).await.expect("held");
    engine.release(&lease).await.expect("held");
    assert_nothing_left(&engine).await;
}

#[tokio::test]
async fn who_waits_for_a_fencing_token_hears_of_the_loss() {
    let (store, engine) = engine();
    let lease = acquire(&engine, request(Some(LEASE))).await.expect("free");
    store.next_fences([Fault::Hang]);
    match timeout(LEASE * 2, engine.fencing_token(&lease)).await.expect("at the deadline") {
        Err(LockError::Lost { reason, .. }) => assert_eq!(reason, LostReason::LeaseOver),
        other => panic!("{other:?}"),
    }
    // What it has been given before is of no use to it any more either.
    assert!(engine.fencing_token(&lease).await.is_err());
}

#[tokio::test]
async fn a_store_that_gives_no_fencing_token_is_unavailable_and_the_lock_still_held() {
    let (store, engine) = engine();
    let lease = acquire(&engine, request(None)).await.expect("free");
    store.next_fences([Fault::Refuse; 1000]);
    match engine.fencing_token(&lease).await {
        Err(LockError::Unavailable { key, waited, .. }) => {
            assert_eq!(key.as_deref(), Some("k"));
            assert!(waited >= LEASE * 5, "{waited:?}");
        }
        other => panic!("{other:?}"),
    }
    assert!(lease.is_valid(BootInstant::now()));
    engine.release(&lease).await.expect("held");
}

/// Nothing has run under it, so there is nothing to keep the key for.
#[tokio::test]
async fn a_lock_that_a_shutdown_refuses_is_not_kept_for_its_minimum() {
    let (store, engine) = engine();
    store.next_acquires([Fault::Slow(LEASE / 3)]);
    let mut request = request(None);
    request.terms.min_hold = LEASE * 1000;
    let shutdown = async {
        sleep(LEASE / 10).await;
        engine.shut_down(LEASE * 10).await
    };
    let (refused, open) = tokio::join!(acquire(&engine, request), shutdown);
    assert_eq!(refused.map(drop), Err(LockError::ShutDown));
    assert_eq!(open, 0);
    assert!(is_free(&store).await);
}

/// It is over, and whether its key is free nobody can tell.
#[tokio::test]
async fn a_hold_whose_release_gets_no_answer_is_not_reported_as_busy() {
    let (store, engine) = engine();
    let lease = acquire(&engine, request(Some(LEASE * 100))).await.expect("free");
    store.next_releases([Fault::Hang; 10]);
    let releasing = engine.release(&lease);
    let asking = async {
        sleep(LEASE / 4).await;
        let wait = Wait::For(LEASE / 10);
        acquire(&engine, Request { wait, ..request(None) }).await.map(drop)
    };
    tokio::select! {
        released = releasing => panic!("{released:?}"),
        outcome = asking => {
            assert!(matches!(outcome, Err(LockError::Unavailable { .. })), "{outcome:?}");
        }
    }
}

/// Each for its own wait, and not for those of all before it.
#[tokio::test]
async fn those_who_ask_for_a_fencing_token_together_wait_together() {
    let (store, engine) = engine();
    let lease = acquire(&engine, request(None)).await.expect("free");
    store.next_fences(std::iter::repeat_n(Fault::Refuse, 10_000));
    let start = tokio::time::Instant::now();
    let (one, two, three) = tokio::join!(
        engine.fencing_token(&lease),
        engine.fencing_token(&lease),
        engine.fencing_token(&lease)
    );
    for outcome in [one, two, three] {
        assert!(matches!(outcome, Err(LockError::Unavailable { .. })), "{outcome:?}");
    }
    assert!(start.elapsed() < LEASE * 15, "{:?}", start.elapsed());
    engine.release(&lease).await.expect("held");
}

#[tokio::test]
async fn an_extension_that_fails_leaves_no_minimum_behind() {
    let (store, engine) = engine();
    let lease = acquire(&engine, request(Some(LEASE * 10))).await.expect("free");
    store.next_renewals([Fault::LoseReply]);
    engine.extend(&lease, None, LEASE * 1000).await.expect_err("no answer");
    engine.release(&lease).await.expect("held");
    assert!(is_free(&store).await);
}

/// Renewals share the connection of the background releases.
#[tokio::test]
async fn a_burst_of_background_releases_is_sent_bit_by_bit() {
    let (store, engine) = engine();
    let mut leases = Vec::new();
    for n in 0..2000 {
        let key = Arc::from(format!("k{n}"));
        let request = Request { key, ..request(Some(LEASE * 100)) };
        leases.push(acquire(&engine, request).await.expect("free"));
    }
    store.next_releases(std::iter::repeat_n(Fault::Slow(LEASE / 10), 10_000));
    for lease in &leases {
        engine.release_in_background(lease);
    }
    assert_nothing_left(&engine).await;
    assert!(store.most_releases_at_once() <= 500, "{}", store.most_releases_at_once());
}

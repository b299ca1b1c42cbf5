//! The engine against a store that misbehaves.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{sleep, timeout};

use super::contender::{self, Request};
use super::lease::Terms;
use super::*;
use crate::store::faulty::{Fault, FaultyStore};
use crate::store::{Attempt, Claim, MemoryStore, Patience, Token, Trace};

pub(super) const LEASE: Duration = Duration::from_millis(300);

fn engine() -> (Arc<FaultyStore>, Arc<Engine>) {
    engine_with(Limits::default())
}

fn engine_with(turn: Limits) -> (Arc<FaultyStore>, Arc<Engine>) {
    engine_on(Arc::new(FaultyStore::new(MemoryStore::new())), turn)
}

fn engine_on(store: Arc<FaultyStore>, turn: Limits) -> (Arc<FaultyStore>, Arc<Engine>) {
    let engine = engine_of(Arc::clone(&store) as _, turn);
    (store, engine)
}

#[cfg(not(lock_shuttle))]
pub(super) fn engine_on_store(store: Arc<dyn LockStore>) -> Arc<Engine> {
    engine_of(store, Limits::default())
}

fn engine_of(store: Arc<dyn LockStore>, turn: Limits) -> Arc<Engine> {
    let config = Config {
        namespace: String::new(),
        format: WireFormat::default(),
        watchdog: LEASE,
        max_hold: None,
        wait: Wait::For(LEASE * 10),
        response_timeout: LEASE / 3,
        turn,
    };
    Engine::start(config, store)
}

fn request(lease: Option<Duration>) -> Request {
    let terms = Terms {
        term: lease.unwrap_or(LEASE),
        renewed: lease.is_none(),
        max_hold: None,
        min_hold: Duration::ZERO,
    };
    let (key, format) = (Arc::from("k"), WireFormat::default());
    Request { key, format, wait: Wait::For(LEASE * 10), terms }
}

async fn acquire(engine: &Arc<Engine>, request: Request) -> Result<Hold, LockError> {
    let hold = contender::acquire(Arc::clone(engine), request, |_, hold| hold).await;
    hold.map_err(|error| *error)
}

/// Whether the key is to be had in the store itself.
async fn is_free(store: &FaultyStore) -> bool {
    let token = Token::random().expect("randomness");
    let claim = Claim { key: "k", token: &token, lease: LEASE, fresh: true };
    let free = store.try_acquire(claim, Patience::of(LEASE), &Trace::default()).await
        == Ok(Attempt::Granted);
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
    engine.release(&lease, true).await.expect("held");
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

/// Nobody is to rely on renewals that nobody sends.
#[tokio::test]
async fn a_keeper_thread_that_has_panicked_is_told_of_and_ends_its_locks() {
    let (store, engine) = engine();
    let hold = acquire(&engine, request(Some(LEASE * 10))).await.expect("free");
    let other = Request { key: Arc::from("other"), ..request(None) };
    let other = acquire(&engine, other).await.expect("free");
    store.panic_once();
    engine.release_in_background(&hold);
    assert!(settled(LEASE * 10, || engine.is_kept(None).is_err()).await);
    match acquire(&engine, request(None)).await {
        Err(LockError::Unavailable { cause, .. }) => assert!(cause.contains("has panicked")),
        other => panic!("{other:?}"),
    }
    assert!(timeout(LEASE * 10, other.lost()).await.is_ok(), "it is not renewed any more");
}

#[tokio::test]
async fn the_threads_of_a_client_end_with_it() {
    let (store, engine) = engine();
    let hold = acquire(&engine, request(None)).await.expect("free");
    engine.release(&hold, true).await.expect("held");
    drop((hold, engine));
    assert!(settled(LEASE * 10, || Arc::strong_count(&store) == 1).await, "they have the store");
}

/// The control of the test above: without the engine, the same request stays.
#[tokio::test]
async fn a_bare_request_that_is_dropped_after_it_ran_is_not() {
    let (store, _engine) = engine();
    store.next_acquires([Fault::HangAfter]);
    let token = Token::random().expect("randomness");
    let claim = Claim { key: "k", token: &token, lease: LEASE * 100, fresh: true };
    let cut =
        timeout(LEASE / 10, store.try_acquire(claim, Patience::of(LEASE * 100), &Trace::default()))
            .await;
    assert!(cut.is_err());
    sleep(LEASE).await;
    assert!(!is_free(&store).await);
}

#[tokio::test]
async fn a_store_that_refuses_for_a_while_is_waited_out() {
    let (store, engine) = engine();
    store.next_acquires([Fault::Refuse, Fault::Hang, Fault::Refuse]);
    let lease = acquire(&engine, request(None)).await.expect("within the wait");
    engine.release(&lease, true).await.expect("held");
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
    // Long enough for three tries on a machine that is busy with something else, and due at once.
    let mut terms = request(None).terms;
    terms.term = LEASE * 40;
    let third = u64::try_from((terms.term / 3).as_nanos()).expect("a few seconds");
    let sent = BootInstant::from_nanos(BootInstant::now().as_nanos() - third);
    let token = Token::random().expect("randomness");
    let claim = Claim { key: "k", token: &token, lease: terms.term, fresh: true };
    let granted = store.try_acquire(claim, Patience::of(LEASE), &Trace::default()).await;
    assert_eq!(granted, Ok(Attempt::Granted));
    let lease = Hold::new("k".into(), token, &terms, sent, None, None, false);
    let granted_until = lease.deadline();
    store.next_renewals([Fault::Refuse, Fault::LoseReply]);
    engine.keeper().watch(lease.lease());
    // Only a renewal that was answered moves the deadline, which also ends by a loss.
    while lease.deadline() == granted_until {
        sleep(LEASE / 100).await;
    }
    assert!(lease.deadline() > granted_until, "{:?}", lease.loss());
    assert!(!is_free(&store).await);
    engine.release(&lease, true).await.expect("held");
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
    engine.release(&other, true).await.expect("held");
}

#[tokio::test]
async fn a_release_that_is_dropped_half_way_goes_on() {
    let (store, engine) = engine();
    let lease = acquire(&engine, request(Some(LEASE * 100))).await.expect("free");
    store.next_releases([Fault::Hang]);
    let cut = timeout(LEASE / 10, engine.release(&lease, true)).await;
    assert!(cut.is_err());
    assert_nothing_left(&engine).await;
    assert!(is_free(&store).await);
}

#[tokio::test]
async fn a_release_that_fails_says_so_and_goes_on() {
    let (store, engine) = engine();
    let lease = acquire(&engine, request(Some(LEASE * 100))).await.expect("free");
    store.next_releases([Fault::Refuse]);
    match engine.release(&lease, true).await.map_err(|error| *error) {
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
    let outcome = engine.release(&lease, true).await.map_err(|error| *error);
    assert!(matches!(outcome, Err(LockError::Lost { .. })));
    assert!(is_free(&store).await);
}

#[tokio::test]
async fn a_lock_that_is_granted_after_the_shutdown_began_is_not_used() {
    let (store, engine) = engine();
    // Held by somebody else, so that the contender sleeps; then an answer on its way.
    let other = Token::random().expect("randomness");
    let claim = Claim { key: "k", token: &other, lease: LEASE * 100, fresh: true };
    assert_eq!(
        store.try_acquire(claim, Patience::of(LEASE), &Trace::default()).await,
        Ok(Attempt::Granted)
    );
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
    let releasing = timeout(LEASE / 2, engine.release(&lease, true));
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
    assert_eq!(
        store.try_acquire(claim, Patience::of(LEASE), &Trace::default()).await,
        Ok(Attempt::Granted)
    );
    // The second try comes as soon as the subscription is live.
    store.next_acquires([Fault::None, Fault::Hang]);
    let request = Request { wait: Wait::For(LEASE / 6), ..request(None) };
    let outcome = acquire(&engine, request).await;
    assert!(matches!(outcome, Err(LockError::Busy { .. })), "{outcome:?}");
    assert_nothing_left(&engine).await;
}

#[tokio::test]
async fn a_try_that_the_end_of_the_wait_cuts_short_leaves_the_store_its_last_words() {
    let (store, engine) = engine();
    store.next_acquires([Fault::Refuse, Fault::Hang]);
    // Shorter than the store may take for one answer.
    let request = Request { wait: Wait::For(LEASE / 6), ..request(None) };
    match acquire(&engine, request).await.map(drop) {
        Err(LockError::Unavailable { cause, .. }) => assert_eq!(cause, "told to refuse"),
        other => panic!("{other:?}"),
    }
    assert_nothing_left(&engine).await;
}

#[tokio::test]
async fn a_request_that_comes_late_after_a_successful_hold_is_undone() {
    let (store, engine) = engine();
    store.next_acquires([Fault::Hang]);
    let lease = acquire(&engine, request(Some(LEASE * 100))).await.expect("the second try");
    let token = lease.token().clone();
    engine.release(&lease, true).await.expect("held");
    // The first try arrives now.
    let claim = Claim { key: "k", token: &token, lease: LEASE * 100, fresh: true };
    assert_eq!(
        store.try_acquire(claim, Patience::of(LEASE), &Trace::default()).await,
        Ok(Attempt::Granted)
    );
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
    engine.release(&lease, true).await.expect("held");
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
    engine.release(&lease, true).await.expect("held");
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
    engine.release(&lease, true).await.expect("held");
}

#[tokio::test]
async fn a_wait_for_a_fencing_token_that_ends_in_a_request_says_what_the_store_said_before() {
    let (store, engine) = engine();
    let lease = acquire(&engine, request(Some(LEASE * 100))).await.expect("free");
    store.next_fences([Fault::Refuse, Fault::Hang]);
    match engine.fencing_token(&lease).await {
        Err(LockError::Unavailable { cause, .. }) => assert_eq!(cause, "told to refuse"),
        other => panic!("{other:?}"),
    }
    engine.release(&lease, true).await.expect("held");
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
    let releasing = engine.release(&lease, true);
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
    // Not renewed, so that no renewal can be too late.
    let lease = acquire(&engine, request(Some(LEASE * 100))).await.expect("free");
    store.next_fences(std::iter::repeat_n(Fault::Refuse, 10_000));
    let asking = async {
        tokio::join!(
            engine.fencing_token(&lease),
            engine.fencing_token(&lease),
            engine.fencing_token(&lease)
        )
    };
    // A pause of the whole test makes both ready, and then the first counts.
    let (one, two, three) = tokio::select! {
        biased;
        outcomes = asking => outcomes,
        () = sleep(LEASE * 15) => panic!("one waits for longer than the wait of one"),
    };
    for outcome in [one, two, three] {
        assert!(matches!(outcome, Err(LockError::Unavailable { .. })), "{outcome:?}");
    }
    engine.release(&lease, true).await.expect("held");
}

#[tokio::test]
async fn an_extension_that_fails_leaves_no_minimum_behind() {
    let (store, engine) = engine();
    let lease = acquire(&engine, request(Some(LEASE * 10))).await.expect("free");
    store.next_renewals([Fault::LoseReply]);
    engine.extend(&lease, None, LEASE * 1000).await.expect_err("no answer");
    engine.release(&lease, true).await.expect("held");
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

mod handover {
    use std::pin::Pin;
    use std::task::{Context, Poll, Waker};

    use super::*;
    use crate::store::Released;

    type Waiting = Pin<Box<dyn Future<Output = Result<Hold, LockError>> + Send>>;

    /// One who has asked, and waits for the holder.
    fn queue(engine: &Arc<Engine>, request: Request) -> Waiting {
        let engine = Arc::clone(engine);
        let mut waiting: Waiting = Box::pin(async move { acquire(&engine, request).await });
        assert!(poll(&mut waiting).is_none(), "somebody has it");
        waiting
    }

    fn poll(waiting: &mut Waiting) -> Option<Result<Hold, LockError>> {
        match waiting.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(outcome) => Some(outcome),
            Poll::Pending => None,
        }
    }

    /// What a waiter has without anything that happens elsewhere.
    fn at_once(waiting: &mut Waiting) -> Hold {
        poll(waiting).expect("no round trip").expect("granted")
    }

    fn fixed(lease: Duration) -> Request {
        request(Some(lease))
    }

    #[tokio::test]
    async fn the_lock_goes_to_the_next_without_the_store() {
        let (store, engine) = engine();
        let first = acquire(&engine, request(None)).await.expect("free");
        let (mut second, mut third) =
            (queue(&engine, request(None)), queue(&engine, request(None)));
        // The first release that the store hears of fails.
        store.next_releases([Fault::Refuse]);
        engine.release(&first, true).await.expect("passed on");
        let second = at_once(&mut second);
        assert!(poll(&mut third).is_none(), "one at a time");
        engine.release_in_background(&second);
        let third = at_once(&mut third);
        assert_eq!(third.token(), first.token(), "it is one lease");
        assert_eq!(engine.stats().held, 1);
        engine.release(&third, true).await.expect_err("that one it hears of");
        assert_nothing_left(&engine).await;
        assert!(is_free(&store).await);
    }

    #[tokio::test]
    async fn it_is_renewed_for_whoever_has_it() {
        let (store, engine) = engine();
        let mut hold = acquire(&engine, request(None)).await.expect("free");
        let end = BootInstant::now().after(LEASE * 4);
        while BootInstant::now() < end {
            sleep(LEASE / 10).await;
            let mut next = queue(&engine, request(None));
            assert!(hold.is_valid(BootInstant::now()));
            engine.release(&hold, true).await.expect("held");
            hold = next.as_mut().await.expect("passed on, or acquired anew");
            assert!(!is_free(&store).await);
        }
        engine.release(&hold, true).await.expect("held");
        assert_nothing_left(&engine).await;
    }

    #[tokio::test]
    async fn who_gives_up_with_the_lock_in_hand_passes_it_on() {
        let (store, engine) = engine();
        let first = acquire(&engine, request(None)).await.expect("free");
        let (second, mut third) = (queue(&engine, request(None)), queue(&engine, request(None)));
        engine.release(&first, true).await.expect("passed on");
        drop(second);
        let third = at_once(&mut third);
        let fourth = queue(&engine, request(None));
        engine.release_in_background(&third);
        drop(fourth);
        assert_nothing_left(&engine).await;
        assert!(is_free(&store).await, "nobody wanted it any more");
    }

    #[tokio::test]
    async fn a_guard_of_before_does_nothing_to_the_hold_after_it() {
        let (_store, engine) = engine();
        let first = acquire(&engine, request(None)).await.expect("free");
        let fence = engine.fencing_token(&first).await.expect("held");
        let mut second = queue(&engine, request(None));
        engine.release(&first, true).await.expect("passed on");
        let second = at_once(&mut second);
        engine.release(&first, true).await.expect("it has ended, and that is all");
        engine.release_in_background(&first);
        assert!(second.is_valid(BootInstant::now()));
        assert!(engine.fencing_token(&second).await.expect("held") > fence);
        engine.release(&second, true).await.expect("held");
        assert_nothing_left(&engine).await;
    }

    #[tokio::test]
    async fn a_waiter_with_a_fixed_lease_has_it_renewed_to_that() {
        let (store, engine) = engine();
        let first = acquire(&engine, fixed(LEASE)).await.expect("free");
        let mut second = queue(&engine, fixed(LEASE * 2));
        sleep(LEASE / 2).await;
        store.next_releases([Fault::Refuse]);
        let before = BootInstant::now();
        engine.release(&first, true).await.expect("passed on");
        let second = second.as_mut().await.expect("by a renewal");
        assert_eq!(second.token(), first.token());
        assert!(!second.is_renewed());
        assert!(second.deadline() > before.after(LEASE * 3 / 2), "its own");
        store.next_releases([Fault::None]);
        sleep(LEASE).await;
        assert!(!is_free(&store).await);
        let _ = engine.release(&second, true).await;
        assert_nothing_left(&engine).await;
    }

    #[tokio::test]
    async fn a_waiter_with_a_shorter_lease_acquires_it_anew() {
        let (store, engine) = engine();
        let first = acquire(&engine, fixed(LEASE * 10)).await.expect("free");
        let mut second = queue(&engine, fixed(LEASE));
        engine.release(&first, true).await.expect("passed on");
        let second = second.as_mut().await.expect("by way of the store");
        assert_ne!(second.token(), first.token());
        sleep(LEASE * 2).await;
        assert!(is_free(&store).await, "the store keeps it for no longer than was asked");
        assert!(second.was_lost().is_some());
        assert_nothing_left(&engine).await;
    }

    #[tokio::test]
    async fn a_renewal_that_fails_for_the_next_leaves_nothing() {
        for fault in [Fault::Refuse, Fault::LoseReply] {
            let (store, engine) = engine();
            let first = acquire(&engine, fixed(LEASE)).await.expect("free");
            let mut second = queue(&engine, fixed(LEASE));
            store.next_renewals([fault]);
            engine.release(&first, true).await.expect("passed on");
            let second = second.as_mut().await.expect("by way of the store");
            assert_ne!(second.token(), first.token(), "{fault:?}");
            engine.release(&second, true).await.expect("held");
            assert_nothing_left(&engine).await;
            assert!(is_free(&store).await);
        }
    }

    #[tokio::test]
    async fn one_who_gives_up_while_it_is_renewed_for_him_passes_it_on() {
        let (store, engine) = engine();
        let first = acquire(&engine, fixed(LEASE * 3)).await.expect("free");
        let mut second = queue(&engine, fixed(LEASE * 3));
        let mut third = queue(&engine, fixed(LEASE * 3));
        store.next_renewals([Fault::Hang]);
        engine.release(&first, true).await.expect("passed on");
        assert!(poll(&mut second).is_none(), "its renewal is on the way");
        drop(second);
        let third = third.as_mut().await.expect("by a renewal");
        assert_eq!(third.token(), first.token());
        engine.release(&third, true).await.expect("held");
        assert_nothing_left(&engine).await;
        assert!(is_free(&store).await);
    }

    #[tokio::test]
    async fn a_key_that_is_to_stay_taken_is_not_passed_on() {
        let (store, engine) = engine();
        let kept = |min_hold| {
            let request = fixed(LEASE);
            Request { terms: Terms { min_hold, ..request.terms }, ..request }
        };
        let first = acquire(&engine, kept(LEASE)).await.expect("free");
        let start = BootInstant::now();
        let second = queue(&engine, request(None));
        engine.release(&first, true).await.expect("held");
        let second = second.await.expect("later");
        assert!(BootInstant::now().since(start) > LEASE * 3 / 4, "its time was not over");
        engine.release(&second, true).await.expect("held");
        // One who asks for that himself has it renewed.
        let first = acquire(&engine, fixed(LEASE)).await.expect("free");
        let second = queue(&engine, kept(LEASE * 2));
        engine.release(&first, true).await.expect("passed on");
        let second = second.await.expect("by a renewal");
        engine.release(&second, true).await.expect("held");
        assert!(!is_free(&store).await);
        sleep(LEASE * 2).await;
        assert!(is_free(&store).await);
        assert_nothing_left(&engine).await;
    }

    #[tokio::test]
    async fn the_end_of_a_maximum_hold_is_the_hold_s_own() {
        let (_store, engine) = engine();
        let bounded = || {
            let request = request(None);
            Request { terms: Terms { max_hold: Some(LEASE), ..request.terms }, ..request }
        };
        let first = acquire(&engine, bounded()).await.expect("free");
        let mut second = queue(&engine, bounded());
        sleep(LEASE * 3 / 5).await;
        engine.release(&first, true).await.expect("held");
        let second = second.as_mut().await.expect("passed on");
        sleep(LEASE * 3 / 5).await;
        assert!(second.is_valid(BootInstant::now()), "it began later");
        assert_eq!(timeout(LEASE, second.lost()).await, Ok(LostReason::MaxHold));
        let _ = engine.release(&second, true).await;
        assert_nothing_left(&engine).await;
    }

    #[tokio::test]
    async fn a_shutdown_takes_what_is_on_its_way() {
        let (store, engine) = engine();
        let first = acquire(&engine, request(None)).await.expect("free");
        let mut second = queue(&engine, request(None));
        engine.release(&first, true).await.expect("passed on");
        let left = tokio::spawn({
            let engine = Arc::clone(&engine);
            async move { engine.shut_down(LEASE * 10).await }
        });
        sleep(LEASE / 10).await;
        assert!(matches!(poll(&mut second), Some(Err(LockError::ShutDown))));
        assert_eq!(left.await.expect("no panic"), 0);
        assert_nothing_left(&engine).await;
        assert!(is_free(&store).await);
    }

    /// How many holds of one process follow each other while another process waits.
    async fn in_a_row(turn: Limits) -> usize {
        let memory = MemoryStore::new();
        let near = engine_on(Arc::new(FaultyStore::new(Arc::clone(&memory) as _)), turn).1;
        let far = engine_on(Arc::new(FaultyStore::new(memory)), turn).1;
        let mut hold = acquire(&near, request(None)).await.expect("free");
        let waiting = tokio::spawn(async move {
            let hold = acquire(&far, request(None)).await.expect("in the end");
            far.release(&hold, true).await.expect("held");
        });
        while near.store.others("k", WireFormat::Token).await != Ok(1) {
            tokio::task::yield_now().await;
        }
        let mut holds = 1;
        while !waiting.is_finished() {
            let next = queue(&near, request(None));
            near.release(&hold, true).await.expect("held");
            hold = next.await.expect("in the end");
            holds += 1;
        }
        near.release(&hold, true).await.expect("held");
        waiting.await.expect("no panic");
        assert_nothing_left(&near).await;
        holds - 1
    }

    #[tokio::test]
    async fn after_a_turn_it_is_the_others_turn() {
        let long = LEASE * 100;
        // The last of a turn asks, and the one behind it hears the answer.
        assert_eq!(in_a_row(Limits { holds: 8, time: long }).await, 9);
        assert_eq!(in_a_row(Limits { holds: 0, time: long }).await, 1);
        assert_eq!(in_a_row(Limits { holds: 8, time: Duration::ZERO }).await, 1);
    }

    #[tokio::test]
    async fn a_turn_that_nobody_can_ask_about_ends_as_well() {
        for fault in [Fault::Refuse, Fault::LoseReply] {
            let (store, engine) = engine_with(Limits { holds: 2, time: LEASE * 100 });
            store.next_questions([fault]);
            let first = acquire(&engine, request(None)).await.expect("free");
            let mut hold = first.clone();
            for _ in 0..3 {
                let next = queue(&engine, request(None));
                engine.release(&hold, true).await.expect("held");
                hold = next.await.expect("one way or the other");
            }
            assert_ne!(hold.token(), first.token(), "the key was freed in between");
            engine.release(&hold, true).await.expect("held");
            assert_nothing_left(&engine).await;
        }
    }

    #[tokio::test]
    async fn who_drops_the_question_leaves_it_to_the_next() {
        let (store, engine) = engine_with(Limits { holds: 4, time: LEASE * 100 });
        store.next_questions([Fault::Hang]);
        let first = acquire(&engine, request(None)).await.expect("free");
        let mut hold = first.clone();
        for _ in 0..20 {
            let next = queue(&engine, request(None));
            // Cut off while it asks, if it does.
            let _ = timeout(LEASE / 20, engine.release(&hold, true)).await;
            hold = next.await.expect("passed on");
        }
        assert_eq!(hold.token(), first.token(), "nobody else waits, so nobody else had it");
        engine.release(&hold, true).await.expect("held");
        assert_nothing_left(&engine).await;
    }

    /// Whose lease cannot be had as it is.
    #[tokio::test]
    async fn who_frees_the_key_to_acquire_it_anew_lets_others_go_first() {
        let memory = MemoryStore::new();
        let store = |memory: &Arc<MemoryStore>| Arc::new(FaultyStore::new(Arc::clone(memory) as _));
        let near = engine_on(store(&memory), Limits::default()).1;
        let far = engine_on(store(&memory), Limits::default()).1;
        let first = acquire(&near, fixed(LEASE * 10)).await.expect("free");
        let mut second = queue(&near, fixed(LEASE));
        let mut other = queue(&far, request(None));
        near.release(&first, true).await.expect("passed on");
        assert!(poll(&mut second).is_none(), "it has woken another one");
        let hold = other.as_mut().await.expect("its turn");
        far.release(&hold, true).await.expect("held");
        let second = second.await.expect("afterwards");
        near.release(&second, true).await.expect("held");
        assert_nothing_left(&near).await;
        assert_nothing_left(&far).await;
    }

    #[tokio::test]
    async fn a_lock_that_comes_to_one_who_does_not_take_it_is_freed() {
        let (store, engine) = engine();
        let first = acquire(&engine, request(None)).await.expect("free");
        // Its task is not polled again, for a while.
        let second = queue(&engine, request(None));
        engine.release(&first, true).await.expect("passed on");
        assert!(!is_free(&store).await);
        sleep(LEASE * 2).await;
        assert!(is_free(&store).await, "it is renewed for nobody");
        let second = second.await.expect("acquired anew");
        assert_ne!(second.token(), first.token());
        engine.release(&second, true).await.expect("held");
        assert_nothing_left(&engine).await;
    }

    /// The last one who is awake gives up before anybody has looked after the offer.
    #[tokio::test]
    async fn a_lock_on_offer_is_not_kept_for_those_who_are_stalled() {
        let (store, engine) = engine();
        let long = || fixed(LEASE * 100);
        let first = acquire(&engine, long()).await.expect("free");
        let stalled = queue(&engine, long());
        engine.release(&first, true).await.expect("passed on");
        while !is_free(&store).await {
            sleep(LEASE / 100).await;
        }
        let second = acquire(&engine, long()).await.expect("nobody comes for the pass");
        let awake = queue(&engine, long());
        engine.release(&second, true).await.expect("passed on");
        drop(awake);
        let freed = timeout(LEASE, async {
            while !is_free(&store).await {
                sleep(LEASE / 100).await;
            }
        });
        assert!(freed.await.is_ok(), "it is kept for one that nobody polls");
        drop(stalled);
        assert_nothing_left(&engine).await;
    }

    #[tokio::test]
    async fn a_shutdown_frees_what_nobody_takes() {
        let (store, engine) = engine();
        let first = acquire(&engine, request(Some(LEASE * 100))).await.expect("free");
        let second = queue(&engine, request(Some(LEASE * 100)));
        engine.release(&first, true).await.expect("passed on");
        let shutdown = tokio::spawn({
            let engine = Arc::clone(&engine);
            async move { engine.shut_down(Duration::ZERO).await }
        });
        sleep(LEASE / 2).await;
        assert!(is_free(&store).await);
        assert_eq!(second.await.map(drop), Err(LockError::ShutDown));
        assert_eq!(shutdown.await.expect("no panic"), 0);
    }

    #[tokio::test]
    async fn one_for_whom_a_silent_store_was_to_renew_is_not_told_that_it_is_busy() {
        let (store, engine) = engine();
        let first = acquire(&engine, request(None)).await.expect("free");
        let patient = |lease| Request { wait: Wait::For(LEASE / 2), ..fixed(lease) };
        let (second, third) =
            (queue(&engine, patient(LEASE * 9)), queue(&engine, patient(LEASE * 9)));
        store.next_renewals([Fault::Hang; 9]);
        store.next_releases([Fault::Hang; 9]);
        store.next_acquires([Fault::Hang; 9]);
        engine.release_in_background(&first);
        let (second, third) = tokio::join!(second, third);
        for outcome in [second.map(drop), third.map(drop)] {
            assert!(matches!(outcome, Err(LockError::Unavailable { .. })), "{outcome:?}");
        }
    }

    #[tokio::test]
    async fn those_who_will_not_wait_for_long_step_back_for_less() {
        let memory = MemoryStore::new();
        let store = |memory: &Arc<MemoryStore>| Arc::new(FaultyStore::new(Arc::clone(memory) as _));
        let near = engine_on(store(&memory), Limits::default()).1;
        let far = engine_on(store(&memory), Limits::default()).1;
        let hold = acquire(&near, request(None)).await.expect("free");
        let waiting = queue(&far, request(None));
        let served = tokio::spawn(async move {
            let hold = waiting.await.expect("its turn");
            far.release(&hold, true).await.expect("held");
        });
        near.release(&hold, true).await.expect("held");
        let request = Request { wait: Wait::For(Duration::from_millis(7)), ..request(None) };
        let mut holds = 0;
        while !served.is_finished() && holds < 100 {
            if let Ok(hold) = acquire(&near, request.clone()).await {
                near.release(&hold, true).await.expect("held");
                holds += 1;
            }
        }
        served.await.expect("no panic");
        assert!(holds < 20, "{holds} before it");
        assert_nothing_left(&near).await;
    }

    /// Those who share a lock ask for it again and again, with nobody in the queue in between.
    #[tokio::test]
    async fn a_lock_that_was_passed_on_is_kept_for_a_moment_for_who_comes_next() {
        let (store, engine) = engine();
        let first = acquire(&engine, request(None)).await.expect("free");
        let mut second = queue(&engine, request(None));
        engine.release(&first, true).await.expect("passed on");
        let second = at_once(&mut second);
        // The first release that the store hears of fails.
        store.next_releases([Fault::Refuse]);
        let mut releasing = engine.release(&second, true);
        let mut cx = Context::from_waker(Waker::noop());
        assert!(Pin::new(&mut releasing).poll(&mut cx).is_pending());
        let mut third = queue(&engine, request(None));
        releasing.await.expect("passed on");
        let third = at_once(&mut third);
        assert_eq!(third.token(), first.token());
        // Dropped while it is kept, it is freed all the same.
        let mut releasing = engine.release(&third, true);
        assert!(Pin::new(&mut releasing).poll(&mut cx).is_pending());
        drop(releasing);
        assert_nothing_left(&engine).await;
        assert!(is_free(&store).await);
    }

    #[tokio::test]
    async fn a_step_back_for_nobody_is_short() {
        let (store, engine) = engine();
        // Listens, and never comes.
        let deaf = store.subscribe("k", WireFormat::Token);
        let start = BootInstant::now();
        for _ in 0..100 {
            let hold = acquire(&engine, request(None)).await.expect("free");
            engine.release(&hold, true).await.expect("held");
        }
        assert!(BootInstant::now().since(start) < LEASE, "after a few times it is not done again");
        assert_eq!(
            store
                .release("k", &Token::random().expect("random"), Duration::ZERO, Lane::Keeper)
                .await,
            Ok(Released::Gone)
        );
        drop(deaf);
        assert_nothing_left(&engine).await;
    }

    #[tokio::test]
    async fn a_wait_that_is_shorter_than_a_step_back_still_tries() {
        let (store, engine) = engine();
        let _deaf = store.subscribe("k", WireFormat::Token);
        let hold = acquire(&engine, request(None)).await.expect("free");
        engine.release(&hold, true).await.expect("held");
        for wait in [Duration::ZERO, Duration::from_millis(1)] {
            let request = Request { wait: Wait::For(wait), ..request(None) };
            let hold = acquire(&engine, request).await.expect("free");
            engine.release(&hold, true).await.expect("held");
        }
        assert_nothing_left(&engine).await;
    }
}

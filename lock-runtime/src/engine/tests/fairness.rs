//! Fairness between processes.

use tokio::time::Instant;

use super::*;

/// The number of consecutive holds of one process while another process waits.
async fn consecutive_holds(handoff_limit: HandoffLimit) -> usize {
    let memory = MemoryStore::new();
    let near = engine_on(Arc::new(FaultyStore::new(Arc::clone(&memory) as _)), handoff_limit).1;
    let far = engine_on(Arc::new(FaultyStore::new(memory)), handoff_limit).1;
    let mut hold = acquire(&near, request(None)).await.expect("free");
    let waiting = tokio::spawn(async move {
        let hold = acquire(&far, request(None)).await.expect("granted");
        far.release(&hold, true).await.expect("held");
    });
    while near.store().count_waiters(Resource::exclusive("k"), Lane::Caller).await != Ok(1) {
        tokio::task::yield_now().await;
    }
    let mut holds = 1;
    while !waiting.is_finished() {
        let next = queue(&near, request(None));
        near.release(&hold, true).await.expect("held");
        hold = next.await.expect("granted");
        holds += 1;
    }
    near.release(&hold, true).await.expect("held");
    waiting.await.expect("no panic");
    assert_nothing_left(&near).await;
    holds - 1
}

#[tokio::test]
async fn another_process_gets_the_lock_at_the_handoff_limit() {
    let long = LEASE * 100;
    // The last hold within the limit has the waiters counted, and one more hold passes before the
    // answer.
    assert_eq!(consecutive_holds(HandoffLimit { holds: 8, time: long }).await, 9);
    assert_eq!(consecutive_holds(HandoffLimit { holds: 0, time: long }).await, 1);
    assert_eq!(consecutive_holds(HandoffLimit { holds: 8, time: Duration::ZERO }).await, 1);
}

#[tokio::test]
async fn a_tenure_ends_if_the_waiters_cannot_be_counted() {
    for fault in [Fault::Refuse, Fault::LoseReply] {
        let (store, engine) = engine_with(HandoffLimit { holds: 2, time: LEASE * 100 });
        store.next_counts([fault]);
        let first = acquire(&engine, request(None)).await.expect("free");
        let mut hold = first.clone();
        for _ in 0..3 {
            let next = queue(&engine, request(None));
            engine.release(&hold, true).await.expect("held");
            hold = next.await.expect("handed off, or acquired anew");
        }
        assert_ne!(owner(&hold), owner(&first), "the key was freed in between");
        engine.release(&hold, true).await.expect("held");
        assert_nothing_left(&engine).await;
    }
}

#[tokio::test]
async fn a_dropped_count_of_waiters_is_repeated() {
    let (store, engine) = engine_with(HandoffLimit { holds: 4, time: LEASE * 100 });
    store.next_counts([Fault::Hang]);
    let first = acquire(&engine, request(None)).await.expect("free");
    let mut hold = first.clone();
    for _ in 0..20 {
        let next = queue(&engine, request(None));
        // A release that counts the waiters is dropped before the answer. Its waiter is polled
        // meanwhile, because the lock would not be kept for an unpolled one.
        let (_, granted) = tokio::join!(timeout(LEASE / 20, engine.release(&hold, true)), next);
        hold = granted.expect("handed off");
    }
    assert!(store.counts() > 1, "an abandoned count is repeated");
    assert_eq!(owner(&hold), owner(&first), "no other process waits, so the key was not freed");
    engine.release(&hold, true).await.expect("held");
    assert_nothing_left(&engine).await;
}

/// The lease cannot be handed off as it is, because the waiter asks for other terms. Time is paused,
/// so that the pause for the other process is not over before it was polled.
#[tokio::test(start_paused = true)]
async fn a_process_that_frees_the_key_to_acquire_it_anew_yields_to_other_processes() {
    let memory = MemoryStore::new();
    let store = |memory: &Arc<MemoryStore>| Arc::new(FaultyStore::new(Arc::clone(memory) as _));
    let near = engine_on(store(&memory), HandoffLimit::default()).1;
    let far = engine_on(store(&memory), HandoffLimit::default()).1;
    let first = acquire(&near, fixed(LEASE * 20)).await.expect("free");
    let mut second = queue(&near, fixed(LEASE * 10));
    let mut other = queue(&far, request(None));
    near.release(&first, true).await.expect("handed off");
    assert!(poll(&mut second).is_none(), "the release has woken another process");
    let hold = other.as_mut().await.expect("granted first");
    resume();
    far.release(&hold, true).await.expect("held");
    let second = second.await.expect("afterwards");
    near.release(&second, true).await.expect("held");
    assert_nothing_left(&near).await;
    assert_nothing_left(&far).await;
}

#[tokio::test]
async fn calls_with_short_timeouts_yield_for_a_part_of_them() {
    let memory = MemoryStore::new();
    let store = |memory: &Arc<MemoryStore>| Arc::new(FaultyStore::new(Arc::clone(memory) as _));
    let near = engine_on(store(&memory), HandoffLimit::default()).1;
    let far = engine_on(store(&memory), HandoffLimit::default()).1;
    let hold = acquire(&near, request(None)).await.expect("free");
    let waiting = queue(&far, request(None));
    let served = tokio::spawn(async move {
        let hold = waiting.await.expect("granted");
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
    assert!(holds < 20, "{holds} holds before it");
    assert_nothing_left(&near).await;
}

/// Time is paused, so that only the pauses count.
#[tokio::test(start_paused = true)]
async fn a_process_stops_yielding_if_no_other_process_comes() {
    let (store, engine) = engine();
    // It listens for releases, and never asks for the key.
    let idle = store.subscribe(Resource::exclusive("k"), new_owner(), LEASE);
    let start = Instant::now();
    for _ in 0..100 {
        let hold = acquire(&engine, request(None)).await.expect("free");
        engine.release(&hold, true).await.expect("held");
    }
    resume();
    assert!(start.elapsed() < LEASE, "the process stops yielding after a few pauses in vain");
    let gone = store.release(release(new_owner()), Lane::Background).await;
    assert_eq!(gone, Ok(Released::Gone));
    drop(idle);
    assert_nothing_left(&engine).await;
}

#[tokio::test]
async fn a_call_with_a_timeout_shorter_than_the_pause_still_makes_an_attempt() {
    let (store, engine) = engine();
    let _idle = store.subscribe(Resource::exclusive("k"), new_owner(), LEASE);
    let hold = acquire(&engine, request(None)).await.expect("free");
    engine.release(&hold, true).await.expect("held");
    for wait in [Duration::ZERO, Duration::from_millis(1)] {
        let request = Request { wait: Wait::For(wait), ..request(None) };
        let hold = acquire(&engine, request).await.expect("free");
        engine.release(&hold, true).await.expect("held");
    }
    assert_nothing_left(&engine).await;
}

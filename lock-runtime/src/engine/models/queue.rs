//! The race of a claim that gives up with the release that gives the key to it.
//!
//! Two processes wait for a lock of a third one. A call of the first one is dropped at any of its
//! steps, with or without another call of its process that takes its place over. The holder releases
//! the lock meanwhile, by a release that gives it to the first claim in the queue. The model asserts
//! that each hold has its key, that all calls that stay get the lock, and that nothing is left. In
//! the control, a claim that gives up stays in the queue.

use super::*;
use crate::store::contract::Queueing;

/// Acquires the lock, and releases it in the background.
async fn hold_and_release(process: Process) {
    let hold = acquire(&process.engine, request()).await.expect("the task waits without a limit");
    process.network.assert_owns_key_in_store(&hold);
    yield_now().await;
    process.network.assert_owns_key_in_store(&hold);
    process.engine.release_in_background(&hold, true);
}

/// Two processes wait, and a call of one of them gives up.
async fn race(first: Acquire) {
    let network = Network::new();
    let [holder, one, two] =
        [(); 3].map(|()| Process::with(Arc::clone(&network), HandoffLimit::default()));
    let hold = holder.hold(request()).await;
    let clock = spawn(time::run());
    let dropped = spawn(first(one.engine.clone()));
    let mut staying = vec![spawn(hold_and_release(two.clone()))];
    if thread_rng().r#gen() {
        staying.push(spawn(hold_and_release(one.clone())));
    }
    pause().await;
    holder.engine.release_in_background(&hold, true);
    pause().await;
    dropped.abort();
    if let Ok(Some(hold)) = dropped.await {
        network.assert_owns_key_in_store(&hold);
        one.engine.release_in_background(&hold, true);
    }
    for task in staying {
        task.await.expect("not aborted");
    }
    let all = [holder, one, two];
    for process in &all {
        process.wait_until_settled(0).await;
    }
    clock.abort();
    for process in &all {
        process.assert_nothing_left().await;
    }
}

/// A claim that stands in the queue, and does not leave it when its call is dropped.
async fn wait_without_leaving(engine: TestEngine) -> Option<Hold> {
    let (owner, store) = (new_owner(), Arc::clone(engine.store()));
    // The claim seems to wait for as long as its subscription is there.
    std::mem::forget(store.subscribe(Resource::exclusive("k"), owner, TERM));
    let claim = Claim { fresh: false, queueing: Queueing::Woken, ..claim(owner, TERM) };
    let _ = store.try_acquire(claim, NO_TIMEOUT, &SendTrace::default()).await;
    std::future::pending().await
}

#[test]
fn a_claim_that_gives_up_passes_the_key_on() {
    explore(|| race(regular_acquire));
}

#[test]
#[should_panic(expected = "the key is still taken")]
fn a_claim_that_stays_in_the_queue_keeps_the_key() {
    find_failure(|| race(|engine| MaybeReady::pending(wait_without_leaving(engine))));
}

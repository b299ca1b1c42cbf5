//! The race of a dropped acquisition with its grant.
//!
//! An acquisition is dropped at any of its steps, with or without another task that waits for the
//! same key. The other participants are the background thread, which sends the undo, and the store.
//! The model asserts that the other task gets the lock, and that nothing is left. In the control,
//! the acquisition has no undo.

use super::*;

/// An acquisition is dropped at any point.
async fn race(first: Acquire) {
    let process = Process::start();
    let clock = spawn(time::run());
    let dropped = spawn(first(process.engine.clone()));
    let other = thread_rng().r#gen::<bool>().then(|| {
        let (engine, network) = (process.engine.clone(), Arc::clone(&process.network));
        spawn(async move {
            let hold = acquire(&engine, request()).await.expect("the task waits without a limit");
            network.assert_owns_key(&hold);
            engine.release_in_background(&hold, true);
        })
    });
    pause().await;
    dropped.abort();
    if let Ok(Some(hold)) = dropped.await {
        process.network.assert_owns_key(&hold);
        process.engine.release_in_background(&hold, true);
    }
    if let Some(other) = other {
        other.await.expect("not aborted");
    }
    clock.abort();
    process.assert_nothing_left().await;
}

#[test]
fn a_dropped_acquisition_leaves_nothing() {
    explore(|| race(regular_acquire));
}

#[test]
#[should_panic(expected = "the key is still taken")]
fn a_dropped_acquisition_without_an_undo_leaves_its_key() {
    find_failure(|| race(|engine| MaybeReady::pending(acquire_without_safeguards(engine))));
}

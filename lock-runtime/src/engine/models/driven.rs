//! Races of callers that have the permit of a key, or wait for it, and are no longer polled.
//!
//! Several callers acquire one key and release it. Some of them are polled a few times, and then
//! not again until the others have finished. One more caller makes single attempts. A task checks
//! the queues over and over, as the notifier thread does. The model asserts that every polled
//! caller gets the lock, that one caller at a time has it, and that nothing is left. The control
//! makes no checks.

use super::*;

/// The number of callers that wait for the lock.
const CALLERS: usize = 3;

type BoxedCall = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Whether a caller has the lock.
type LockInUse = Arc<StdMutex<bool>>;

/// Acquires the lock, and releases it.
async fn hold(engine: TestEngine, in_use: LockInUse) {
    let hold = acquire(&engine, request()).await.expect("the caller waits without a limit");
    use_and_release(&engine, &hold, &in_use).await;
}

/// Makes single attempts to acquire the lock until one succeeds, and releases the lock.
async fn hold_without_waiting(engine: TestEngine, in_use: LockInUse) {
    let attempt = || Request { wait: Wait::For(Duration::ZERO), ..request() };
    loop {
        yield_randomly(12).await;
        if let Ok(hold) = acquire(&engine, attempt()).await {
            return use_and_release(&engine, &hold, &in_use).await;
        }
    }
}

async fn use_and_release(engine: &TestEngine, hold: &Hold, in_use: &LockInUse) {
    assert!(!std::mem::replace(&mut *lock(in_use), true), "two callers have the lock");
    yield_now().await;
    *lock(in_use) = false;
    engine.release(hold, true).await.expect("the lock is held");
}

/// Polls a call a few times, with pauses. Returns whether it has completed.
async fn poll_a_few_times(call: &mut BoxedCall) -> bool {
    for _ in 0..thread_rng().gen_range(1..6) {
        let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
        if call.as_mut().poll(&mut cx).is_ready() {
            return true;
        }
        yield_randomly(12).await;
    }
    false
}

/// Some callers are no longer polled after a while, at any point of their calls.
async fn race(check: fn(&LocalQueues)) {
    let process = Process::start();
    let in_use = LockInUse::default();
    let checks = {
        let engine = process.engine.clone();
        spawn(async move {
            loop {
                yield_randomly(6).await;
                check(engine.queues());
            }
        })
    };
    let (mut polled, mut unpolled) = (Vec::new(), Vec::new());
    for caller in 0..CALLERS {
        let call = hold(process.engine.clone(), Arc::clone(&in_use));
        let mut call: BoxedCall = Box::pin(call);
        if caller + 1 < CALLERS && thread_rng().r#gen() {
            let is_done = poll_a_few_times(&mut call).await;
            let is_in_use = *lock(&in_use);
            match (is_done, is_in_use) {
                (true, _) => {}
                // The call may have stopped while it holds the lock. Only its caller can release
                // the lock then.
                (false, true) => call.await,
                (false, false) => unpolled.push(call),
            }
        } else {
            polled.push(spawn(call));
        }
    }
    let attempts = spawn(hold_without_waiting(process.engine.clone(), Arc::clone(&in_use)));
    for caller in polled {
        caller.await.expect("a polled caller gets the lock");
    }
    attempts.await.expect("an attempt gets the lock");
    // A call that is polled again gets the lock, and a dropped call leaves nothing.
    for call in unpolled {
        if thread_rng().r#gen() {
            call.await;
        } else {
            drop(call);
        }
    }
    checks.abort();
    process.assert_nothing_left().await;
}

#[test]
fn an_unpolled_permit_holder_does_not_block_other_callers() {
    explore_less(2, || race(|queues| queues.check().carry_out()));
}

#[test]
#[should_panic(expected = "exceeded max_steps")]
fn without_checks_an_unpolled_permit_holder_blocks_other_callers() {
    find_failure(|| race(|_| {}));
}

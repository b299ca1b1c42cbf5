//! The races of callers that have the pass of a key, and are polled now and then, or never again.

use super::*;

/// How many want the lock.
const CALLERS: usize = 3;

type Step = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Where there is one at a time.
type Hands = Arc<StdMutex<bool>>;

/// Takes the lock, and gives it back.
async fn hold(engine: Arc<Engine>, taken: Hands) {
    let hold = acquire(&engine, request()).await.expect("its turn");
    assert!(!std::mem::replace(&mut *lock(&taken), true), "in two hands");
    yield_now().await;
    *lock(&taken) = false;
    engine.release(&hold, true).await.expect("held");
}

/// Has the lock in the end, without ever waiting for it.
async fn try_now_and_then(engine: Arc<Engine>, taken: Hands) {
    let once = || Request { wait: Wait::For(Duration::ZERO), ..request() };
    loop {
        up_to(12).await;
        if let Ok(hold) = acquire(&engine, once()).await {
            assert!(!std::mem::replace(&mut *lock(&taken), true), "in two hands");
            yield_now().await;
            *lock(&taken) = false;
            return engine.release(&hold, true).await.expect("held");
        }
    }
}

/// Polls a future a few times, with pauses; false if it goes on.
async fn poll_a_few_times(step: &mut Step) -> bool {
    for _ in 0..thread_rng().gen_range(1..6) {
        let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
        if step.as_mut().poll(&mut cx).is_ready() {
            return true;
        }
        up_to(12).await;
    }
    false
}

/// Some are not polled any more after a while, wherever they have got by then; the others have their
/// turn all the same, and nothing is left of any of them.
async fn race(look: fn(&Gates)) {
    let process = Process::start();
    let taken = Hands::default();
    let looks = {
        let engine = Arc::clone(&process.engine);
        spawn(async move {
            loop {
                up_to(6).await;
                look(&engine.gates);
            }
        })
    };
    let (mut polled, mut forgotten) = (Vec::new(), Vec::new());
    for caller in 0..CALLERS {
        let step = hold(Arc::clone(&process.engine), Arc::clone(&taken));
        let mut step: Step = Box::pin(step);
        if caller + 1 < CALLERS && thread_rng().r#gen() {
            let is_done = poll_a_few_times(&mut step).await;
            let is_taken = *lock(&taken);
            match (is_done, is_taken) {
                (true, _) => {}
                // It may have stopped in its body, where nobody can go on for it.
                (false, true) => step.await,
                (false, false) => forgotten.push(step),
            }
        } else {
            polled.push(spawn(step));
        }
    }
    let tries = spawn(try_now_and_then(Arc::clone(&process.engine), Arc::clone(&taken)));
    for caller in polled {
        caller.await.expect("whoever is polled is served");
    }
    tries.await.expect("the key is free for one who tries, too");
    // Whoever comes back is served as well; whoever gives up leaves nothing.
    for step in forgotten {
        if thread_rng().r#gen() {
            step.await;
        } else {
            drop(step);
        }
    }
    looks.abort();
    process.assert_nothing_left().await;
}

#[test]
fn whoever_has_the_pass_and_is_not_polled_keeps_nobody_waiting() {
    explore_less(2, || race(|gates| gates.look().carry_out()));
}

#[test]
#[should_panic(expected = "exceeded max_steps")]
fn it_keeps_everybody_waiting_if_nobody_goes_on_for_it() {
    find(|| race(|_| {}));
}

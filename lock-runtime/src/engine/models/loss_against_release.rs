//! Races of a loss with a release.
//!
//! Two tasks share a hold and leave it, a third task waits for its loss, and a fourth one declares
//! it lost, as the background thread does. The model asserts that either the loss or the release
//! ends the hold: an error is returned and `lost()` resolves if it was lost, and neither happens if
//! it was released. The key is freed once. In the first control, the last holder checks for a loss
//! only before it leaves. The second control shows why `lost()` registers before it checks.

use super::super::release::AfterLeave;
use super::*;
use crate::store::contract::Mode;

type EndHold = fn(TestEngine, Hold) -> MaybeReady<'static, Result<(), Box<LockError>>>;

/// Two tasks share a hold and leave it while it is lost.
async fn race(end: EndHold) {
    let process = Process::start();
    let (engine, network) = (process.engine.clone(), Arc::clone(&process.network));
    let hold = process.hold(fixed()).await;
    let reasons = [LostReason::RenewalFailed, LostReason::ShutDown];
    let reason = reasons[thread_rng().gen_range(0..2)];
    let watcher = {
        let hold = hold.clone();
        spawn(async move { hold.lost().await })
    };
    let declare_lost = {
        let (engine, hold) = (engine.clone(), hold.clone());
        spawn(async move { engine.background().lose(hold.lease(), reason) })
    };
    let second_holder = {
        let (engine, hold) = (engine.clone(), hold.clone());
        spawn(async move {
            if !hold.join(Mode::Exclusive) {
                return Ok(());
            }
            network.assert_owns_key(&hold);
            end(engine, hold).await
        })
    };
    let first = end(engine.clone(), hold.clone()).await;
    let second = second_holder.await.expect("not aborted");
    declare_lost.await.expect("not aborted");
    let lost = hold.loss().is_some();
    let failed = first.is_err() || second.is_err();
    assert_eq!(failed, lost, "an error means a loss: {first:?}, {second:?}");
    if lost {
        assert_eq!(watcher.await.expect("not aborted"), reason);
    } else {
        pause().await;
        assert!(!watcher.is_finished(), "a released hold is not lost");
        watcher.abort();
    }
    // The clock does not advance meanwhile, so the lease cannot expire.
    process.wait_until_settled(0).await;
    assert_eq!(process.network.freed(), 1);
    process.assert_nothing_left().await;
}

#[test]
fn a_hold_ends_either_by_a_loss_or_by_a_release_and_all_its_tasks_agree_on_which() {
    explore(|| {
        race(|engine, hold| MaybeReady::pending(async move { engine.release(&hold, true).await }))
    });
}

#[test]
#[should_panic(expected = "an error means a loss")]
fn a_loss_is_missed_if_the_last_holder_checks_for_it_only_before_it_leaves() {
    find_failure(|| {
        race(|engine, hold| {
            MaybeReady::pending(async move {
                let lost = hold.loss();
                let (_, AfterLeave::Free(permit)) = engine.leave(&hold, true, BootInstant::now())
                else {
                    return lost.map_or(Ok(()), |lost| Err(lost.into()));
                };
                engine.free(hold.lease(), permit).await.0.expect("the store is up");
                Ok(())
            })
        })
    });
}

/// The loss of a lease, reduced to a flag and its notification.
#[derive(Default)]
struct LossSignal {
    lost: Mutex<bool>,
    notify: Notify,
}

impl LossSignal {
    /// Waits for the loss, and checks the flag before it registers for the notification.
    async fn wait(&self) {
        loop {
            if *self.lost.lock().expect("not poisoned") {
                return;
            }
            self.notify.notified().await;
        }
    }
}

#[test]
#[should_panic(expected = "deadlock")]
fn a_loss_is_missed_if_a_task_checks_for_it_before_it_registers_for_the_notification() {
    find_failure(|| async {
        let signal = Arc::new(LossSignal::default());
        let waiter = {
            let signal = Arc::clone(&signal);
            spawn(async move { signal.wait().await })
        };
        *signal.lost.lock().expect("not poisoned") = true;
        signal.notify.notify_waiters();
        waiter.await.expect("not aborted");
    });
}

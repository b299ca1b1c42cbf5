//! The start of the background threads, and the loop of the thread that renews leases.

#[cfg(not(all(test, lock_shuttle)))]
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use tokio::runtime;

use super::renewal;
use super::shared::BackgroundState;
use crate::clock::BootInstant;
#[cfg(not(all(test, lock_shuttle)))]
use crate::safeguard::Safeguard;
use crate::store::contract::{Backend, BackgroundRuntimes};
use crate::store::hold_reports::HoldReports;
use crate::sync::atomic::Ordering;
use crate::sync::{spawn_task, time};

/// The longest time for which the thread of a dropped client continues its cleanups.
const LAST_CLEANUPS: Duration = Duration::from_secs(5);

#[cfg(not(all(test, lock_shuttle)))]
pub(super) fn spawn(shared: &Arc<BackgroundState>, backend: &dyn Backend) -> std::io::Result<()> {
    #[cfg(feature = "testing")]
    if backend.runs_on_the_callers_runtime() {
        spawn_tasks(shared, backend);
        return Ok(());
    }
    let notifier = Arc::clone(&shared.notifier);
    let wake_ups = start_thread("lock-notifier", move |runtime| {
        // Panics of user code are caught where it is called. This loop is for bugs of the engine.
        while catch_unwind(AssertUnwindSafe(|| runtime.block_on(notifier.run()))).is_err() {}
    })?;
    let _ = shared.wake_ups.set(wake_ups.clone());
    let reports = hold_reports(shared);
    if !Safeguard::BackgroundThread.is_on() {
        let renewals = runtime::Handle::current();
        backend.adopt(&BackgroundRuntimes { renewals, wake_ups }, reports);
        tokio::spawn(run(Arc::clone(shared)));
        return Ok(());
    }
    let background = Arc::clone(shared);
    let (begin, started) = std::sync::mpsc::sync_channel::<()>(1);
    let renewals = start_thread("lock-background", move |runtime| {
        // The loop begins only after the store has adopted this runtime. `recv` fails only if the
        // starting thread panicked.
        if started.recv().is_ok() {
            let guard = PanicGuard(&background);
            runtime.block_on(run(Arc::clone(&background)));
            std::mem::forget(guard);
        }
        background.notifier.close();
    });
    let renewals = renewals.inspect_err(|_| shared.notifier.close())?;
    backend.adopt(&BackgroundRuntimes { renewals, wake_ups }, reports);
    // The thread waits for this message, so the send cannot fail.
    let _ = begin.send(());
    Ok(())
}

/// Starts a thread with a runtime. Returns a handle to the runtime.
#[cfg(not(all(test, lock_shuttle)))]
fn start_thread(
    name: &str,
    work: impl FnOnce(&runtime::Runtime) + Send + 'static,
) -> std::io::Result<runtime::Handle> {
    let (started, outcome) = std::sync::mpsc::sync_channel(1);
    std::thread::Builder::new().name(name.into()).spawn(move || {
        // Built here, because a runtime must not be dropped inside another one.
        match runtime::Builder::new_current_thread().enable_all().build() {
            // The receiver is missing only if the starting thread panicked.
            Ok(runtime) => {
                let _ = started.send(Ok(runtime.handle().clone()));
                work(&runtime);
            }
            Err(error) => {
                let _ = started.send(Err(error));
            }
        }
    })?;
    outcome.recv().unwrap_or_else(|gone| Err(std::io::Error::other(gone)))
}

/// In a model, the threads are tasks.
#[cfg(all(test, lock_shuttle))]
#[expect(clippy::unnecessary_wraps, reason = "as for the thread")]
pub(super) fn spawn(shared: &Arc<BackgroundState>, backend: &dyn Backend) -> std::io::Result<()> {
    spawn_tasks(shared, backend);
    Ok(())
}

/// Instead of threads, starts tasks of the current runtime.
#[cfg(any(all(test, lock_shuttle), feature = "testing"))]
fn spawn_tasks(shared: &Arc<BackgroundState>, backend: &dyn Backend) {
    let here = runtime::Handle::current();
    let runtimes = BackgroundRuntimes { renewals: here.clone(), wake_ups: here };
    backend.adopt(&runtimes, hold_reports(shared));
    let notifier = Arc::clone(&shared.notifier);
    spawn_task(async move { notifier.run().await });
    let background = Arc::clone(shared);
    spawn_task(async move {
        run(Arc::clone(&background)).await;
        background.notifier.close();
    });
}

/// What the store calls when its data has moved, or when keys have changed that it watches. The store
/// must not keep the state alive, because the leases in the state keep the store alive.
fn hold_reports(shared: &Arc<BackgroundState>) -> HoldReports {
    let shared = Arc::downgrade(shared);
    HoldReports::new(move |report| {
        if let Some(shared) = shared.upgrade() {
            shared.reported(report);
        }
    })
}

/// Ends all locks if the thread panics.
#[cfg(not(all(test, lock_shuttle)))]
struct PanicGuard<'a>(&'a Arc<BackgroundState>);

#[cfg(not(all(test, lock_shuttle)))]
impl Drop for PanicGuard<'_> {
    fn drop(&mut self) {
        // This code runs while the thread unwinds, where another panic would abort the process.
        let fail = || self.0.fail("the background thread has panicked".into());
        let _ = catch_unwind(AssertUnwindSafe(fail));
    }
}

/// Wakes the loop when a batch of cleanups has ended.
struct WakeOnDrop(Arc<BackgroundState>);

impl Drop for WakeOnDrop {
    fn drop(&mut self) {
        self.0.wake.notify_one();
    }
}

async fn run(shared: Arc<BackgroundState>) {
    let mut last_cleanups_end = None;
    loop {
        shared.verify_if_moved();
        shared.verify_changed();
        shared.watch_lingering();
        shared.count_waiters();
        let due = shared.schedule.due(BootInstant::now());
        for lease in &due.expired {
            shared.expire(lease);
        }
        renewal::start(&shared, due.renew);
        for lease in &due.over {
            shared.give_back_permit(lease);
        }
        while let Some(batch) = shared.cleanups.next(BootInstant::now()) {
            let is_immediate = batch.is_immediate();
            let done = WakeOnDrop(Arc::clone(&shared));
            let send = async move { batch.send(&done.0.cleanups).await };
            match shared.wake_ups.get().filter(|_| is_immediate) {
                // Such a store wakes waiters during the release, so the request runs on the
                // notifier thread.
                Some(wake_ups) => {
                    wake_ups.spawn(send);
                }
                None => {
                    spawn_task(send);
                }
            }
        }

        let now = BootInstant::now();
        let mut next = due.next.into_iter().chain(shared.cleanups.next_later()).min();
        if shared.closing.load(Ordering::Acquire) {
            let end = *last_cleanups_end.get_or_insert_with(|| now.after(LAST_CLEANUPS));
            if shared.cleanups.open() == 0 || now >= end {
                return;
            }
            next = Some(next.map_or(end, |next| next.min(end)));
        }
        let Some(next) = next else {
            shared.wake.notified().await;
            continue;
        };
        tokio::select! {
            // The order does not matter: no branch takes anything from another one.
            biased;
            () = shared.wake.notified() => {}
            () = time::sleep(next.since(now)) => {}
        }
    }
}

//! Log events that must not block the code that emits them.
//!
//! A `tracing` subscriber is user code. It may block, for example because standard output is a pipe
//! whose reader stalls, and it may panic. Neither may delay or end a renewal, a deadline or a
//! wake-up. Code on a background thread, or code that holds a lock or is halfway through a change,
//! therefore passes its event to [`emit`], which never blocks. One thread per process calls the
//! subscriber. The queue in front of this thread is bounded: while the subscriber is too slow,
//! events are dropped and counted, and the count is logged when the subscriber continues.
//!
//! Keeps the promise that a body never outlives its lock, even if the subscriber blocks.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};

use tracing::Level;
use tracing::level_filters::LevelFilter;

use crate::user_code::contained;

/// The largest number of events that wait for the subscriber.
const CAPACITY: usize = 1024;

type Event = Box<dyn FnOnce() + Send>;

/// The queue of events, and its counters.
struct Log {
    queue: SyncSender<Event>,
    /// Events in the queue or being emitted.
    pending: AtomicUsize,
    /// Events that were dropped because the queue was full, since the process started.
    dropped: AtomicU64,
}

static LOG: OnceLock<Log> = OnceLock::new();

fn log() -> &'static Log {
    LOG.get_or_init(|| {
        let (queue, events) = sync_channel(CAPACITY);
        // If the thread cannot be started, the receiver is dropped, and all events count as
        // dropped.
        let _ = std::thread::Builder::new().name("lock-log".into()).spawn(move || write(&events));
        Log { queue, pending: AtomicUsize::new(0), dropped: AtomicU64::new(0) }
    })
}

/// Runs `event`, which is one call of a `tracing` macro, on the log thread. Never blocks.
///
/// `level` is the level of the event. A debug or trace event that no subscriber enables is not
/// queued.
pub fn emit(level: Level, event: impl FnOnce() + Send + 'static) {
    // More important events are always queued, because they may also go to the `log` crate.
    if level >= Level::DEBUG && level > LevelFilter::current() {
        return;
    }
    // In a model, a thread outside of its scheduler would make schedules unrepeatable.
    if cfg!(lock_shuttle) {
        return event();
    }
    let log = log();
    log.pending.fetch_add(1, Ordering::Relaxed);
    if log.queue.try_send(Box::new(event)).is_err() {
        log.pending.fetch_sub(1, Ordering::Relaxed);
        log.dropped.fetch_add(1, Ordering::Relaxed);
    }
}

/// Drops a value on the log thread, because its destructor is user code. If the subscriber is too slow, or there is
/// no log thread, the value is never dropped.
pub fn drop_there(value: impl Send + 'static) {
    if cfg!(lock_shuttle) {
        return drop(value);
    }
    let log = log();
    log.pending.fetch_add(1, Ordering::Relaxed);
    let sent = log.queue.try_send(Box::new(move || drop(value)));
    if let Err(TrySendError::Full(unsent) | TrySendError::Disconnected(unsent)) = sent {
        log.pending.fetch_sub(1, Ordering::Relaxed);
        std::mem::forget(unsent);
    }
}

/// The number of events of this process that were dropped because the subscriber was too slow.
pub fn dropped() -> u64 {
    LOG.get().map_or(0, |log| log.dropped.load(Ordering::Relaxed))
}

/// Whether all queued events have been emitted.
pub fn is_idle() -> bool {
    LOG.get().is_none_or(|log| log.pending.load(Ordering::Relaxed) == 0)
}

/// Emits events until the process ends.
fn write(events: &Receiver<Event>) {
    let mut reported = 0;
    while let Ok(event) = events.recv() {
        // A panic of the subscriber must not end this thread; the panic hook has reported it.
        contained(event);
        let dropped = dropped();
        if dropped > reported {
            let lost = dropped - reported;
            reported = dropped;
            contained(|| {
                tracing::warn!(
                    target: "lock_runtime::events",
                    events = lost,
                    "log events were dropped because the subscriber was too slow"
                );
            });
        }
        log().pending.fetch_sub(1, Ordering::Relaxed);
    }
}

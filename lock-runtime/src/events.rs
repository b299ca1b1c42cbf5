//! Log events of the background threads, emitted from a thread of their own.
//!
//! A `tracing` subscriber is foreign code: it may block, because standard output is a pipe whose
//! reader stalls, and it may panic. Neither may delay or end a renewal, a deadline or a wake-up. So
//! code that runs on a background thread, or with anything locked or half done, hands its event to
//! [`emit`], which never blocks; one thread per process calls the subscriber. The queue between them
//! is bounded: while the subscriber is too slow, events are dropped and counted, and the count is
//! logged as soon as the subscriber is back.
//!
//! Keeps the promise that a body never outlives its lock, whatever the log does.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use tracing::Level;
use tracing::level_filters::LevelFilter;

use crate::foreign::contained;
use crate::protection::Protection;

/// How many events may wait for the subscriber.
const CAPACITY: usize = 1024;

type Event = Box<dyn FnOnce() + Send>;

/// The queue, and what became of the events that were put into it.
struct Log {
    queue: SyncSender<Event>,
    /// Events in the queue or being emitted.
    pending: AtomicUsize,
    /// Events that found the queue full, since the process began.
    dropped: AtomicU64,
}

static LOG: OnceLock<Log> = OnceLock::new();

fn log() -> &'static Log {
    LOG.get_or_init(|| {
        let (queue, events) = sync_channel(CAPACITY);
        // Without a thread the receiver is dropped, and every event is counted as dropped.
        let _ = std::thread::Builder::new().name("lock-log".into()).spawn(move || write(&events));
        Log { queue, pending: AtomicUsize::new(0), dropped: AtomicU64::new(0) }
    })
}

/// Has the log thread run `event`, which is one call of a `tracing` macro. Never blocks.
///
/// `level` is that of the event; a detail that no subscriber listens to is not queued.
pub(crate) fn emit(level: Level, event: impl FnOnce() + Send + 'static) {
    // Of important events the subscriber decides, because the `log` crate may listen as well.
    if level >= Level::DEBUG && level > LevelFilter::current() {
        return;
    }
    // In a model a thread that its scheduler does not know of would make no schedule repeatable.
    if cfg!(all(test, lock_shuttle)) || !Protection::LogThread.is_on() {
        return event();
    }
    let log = log();
    log.pending.fetch_add(1, Ordering::Relaxed);
    if log.queue.try_send(Box::new(event)).is_err() {
        log.pending.fetch_sub(1, Ordering::Relaxed);
        log.dropped.fetch_add(1, Ordering::Relaxed);
    }
}

/// How many events of this process were dropped because the subscriber was too slow.
pub(crate) fn dropped() -> u64 {
    LOG.get().map_or(0, |log| log.dropped.load(Ordering::Relaxed))
}

/// Whether all events that were queued have been emitted.
pub(crate) fn is_idle() -> bool {
    LOG.get().is_none_or(|log| log.pending.load(Ordering::Relaxed) == 0)
}

/// Emits the events, one after the other, for as long as the process lives.
fn write(events: &Receiver<Event>) {
    let mut reported = 0;
    while let Ok(event) = events.recv() {
        // A subscriber that panics has said so by its panic; the next event gets its chance.
        contained(event);
        let dropped = dropped();
        if dropped > reported {
            let lost = dropped - reported;
            reported = dropped;
            contained(|| {
                tracing::warn!(
                    events = lost,
                    "log events were dropped, the subscriber was too slow"
                );
            });
        }
        log().pending.fetch_sub(1, Ordering::Relaxed);
    }
}

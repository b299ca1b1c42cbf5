//! The mutexes, atomics, tasks and timers of the standard library and tokio.
//!
//! In a build for the models of `engine/models`, types that the scheduler of the models controls
//! replace them, and time is simulated.

#[cfg(lock_shuttle)]
pub mod model;

#[cfg(not(lock_shuttle))]
pub use {
    std::sync::{Mutex, MutexGuard, atomic},
    tokio::{spawn as spawn_task, sync::Notify, task::yield_now, time},
};

#[cfg(lock_shuttle)]
pub use {
    model::{Notify, oneshot, spawn_task, time},
    shuttle::future::yield_now,
    shuttle::sync::{Mutex, MutexGuard, atomic},
};

/// Locks `mutex`. Poisoning is ignored: the data behind these mutexes is plain, and every change to
/// it is complete before any call that could panic.
pub fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

//! What the engine shares, spawns and waits with: the standard library's and tokio's.
//!
//! Built for the models of `engine/models.rs`, each of these is one that the models' scheduler sees,
//! and time is the models' own.

#[cfg(all(test, lock_shuttle))]
pub(crate) mod model;

#[cfg(not(all(test, lock_shuttle)))]
pub(crate) use {
    std::sync::{Mutex, MutexGuard, atomic},
    tokio::{spawn as spawn_task, sync::Notify, task::yield_now, time},
};

#[cfg(all(test, lock_shuttle))]
pub(crate) use {
    model::{Notify, oneshot, spawn_task, time},
    shuttle::future::yield_now,
    shuttle::sync::{Mutex, MutexGuard, atomic},
};

//! What operators and other clients ask: who holds a lock, who waits for it, and its end by force.

pub(crate) mod asker;
pub(crate) mod deletion;
mod inspection;
mod lock_holder;
mod questions;
mod scan;

//! Changes of the mode of a hold.

use super::layout::Mode;
use super::owner::OwnerId;
use crate::replicas::RequiredReplicas;

/// A hold whose mode changes.
#[derive(Debug, Clone, Copy)]
pub struct ModeChange<'a> {
    pub key: &'a str,
    pub owner: OwnerId,
    /// [`Read`](Mode::Read) or [`Write`](Mode::Write).
    pub to: Mode,
    /// The replicas that have to acknowledge the change.
    pub acknowledged_by: RequiredReplicas,
}

/// The answer to a [`ModeChange`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ModeChanged {
    Done,
    /// There are other readers, or a claim waits. The hold is that of a reader, as before.
    Busy,
    /// The hold has ended.
    Gone,
    /// The hold has ended, and a writer has the key.
    Taken,
}

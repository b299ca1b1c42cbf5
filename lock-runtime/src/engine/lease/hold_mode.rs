//! The mode of a hold.

use crate::clock::BootInstant;
use crate::store::contract::Mode;

/// The mode of a hold, and whether other readers of this process may join it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "each is one independent fact")]
pub(super) struct HoldMode {
    pub(super) mode: Mode,
    /// Since when.
    pub(super) since: BootInstant,
    pub(super) is_shared: bool,
    /// The number of readers that waited when the hold was shared, and that have not joined it yet.
    pub(super) awaited: usize,
    /// Whether a request is in progress that changes the mode.
    pub(super) is_changing: bool,
    /// Whether the mode was ever changed, or may have been.
    pub(super) has_changed: bool,
    /// Whether a request may arrive late that makes a reader of the holder.
    pub(super) may_be_downgraded: bool,
}

impl HoldMode {
    pub(super) fn of(mode: Mode) -> Self {
        Self {
            mode,
            since: BootInstant::PAST,
            is_shared: false,
            awaited: 0,
            is_changing: false,
            has_changed: false,
            may_be_downgraded: false,
        }
    }
}

/// Whether a reader has joined the hold of others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Joined {
    Yes {
        /// Whether the number of claims that wait has to be requested.
        counts: bool,
    },
    /// The reader asks for other terms.
    Differs,
    /// No more readers can join: the limit is reached, or the lease may end soon.
    Full,
    /// The hold has ended.
    Over,
}

/// Whether the mode of a hold can be changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum MayChange {
    Yes,
    /// The hold has the mode, and no request is necessary.
    IsSo,
    /// The hold has several holders.
    Shared,
    /// Another change is in progress.
    InProgress,
    /// A request of an earlier change could still take effect.
    Uncertain,
    /// The hold has ended.
    Over,
}

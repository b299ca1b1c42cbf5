//! Claims to several resources at once.

use std::time::Duration;

use super::owner::OwnerId;

/// Keys of one slot can be claimed at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Slot(pub u16);

impl Slot {
    /// The slot of a store that has only one.
    pub const ONLY: Self = Self(0);
}

/// One attempt to take several resources, or none of them. Each of them is excluded as by
/// [`Mode::Exclusive`](super::contract::Mode::Exclusive).
#[derive(Debug, Clone, Copy)]
pub struct SetClaim<'a> {
    /// The keys, of one slot.
    pub keys: &'a [&'a str],
    /// The owner of all of them.
    pub owner: OwnerId,
    /// How long each lease lasts unless it is renewed.
    pub term: Duration,
}

/// The answer to a [`SetClaim`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SetAcquired {
    /// All resources were taken, each for the requested term.
    Granted,
    /// Nothing was taken, because the resource with this index is not free, or others wait for it.
    Busy(usize),
}

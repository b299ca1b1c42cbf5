//! The parts of a store.

/// The part of a store that serves a key, such as a node of a cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Place(u64);

impl Place {
    /// The place of a store that has only one part.
    pub const ONLY: Self = Self(0);

    /// One of several places.
    pub const fn numbered(number: u64) -> Self {
        Self(number)
    }
}

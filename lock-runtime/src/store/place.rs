//! The parts of a store.

/// The part of a store that serves a key, such as a node of a cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Place(u64);

impl Place {
    /// The place of a store that has only one part.
    pub(crate) const ONLY: Self = Self(0);

    /// One of several places.
    #[cfg(any(test, feature = "redis"))]
    pub(crate) const fn numbered(number: u64) -> Self {
        Self(number)
    }
}

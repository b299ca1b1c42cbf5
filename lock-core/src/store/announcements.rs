//! What the holders of resources announce about themselves.

use std::time::Duration;

use super::owner::OwnerId;

/// What the holder of a resource says about itself. It counts as long as this owner has the resource.
#[derive(Debug, Clone, Copy)]
pub struct Announcement<'a> {
    pub key: &'a str,
    pub owner: OwnerId,
    /// The number of a term of office, a space, and a name.
    pub text: &'a str,
    /// How long the store keeps it.
    pub keep: Duration,
}

/// The answer to an [`Announcement`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Announced {
    Done,
    /// The key does not exist any more.
    Gone,
    /// The key has another owner.
    Taken,
}

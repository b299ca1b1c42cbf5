//! What a store can do.

use std::time::Duration;

/// The capabilities of a store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "each is one independent capability")]
pub struct Capabilities {
    /// Whether the store can keep a resource taken for some time after its release.
    pub keeps_after_release: bool,
    /// Whether the store can renew a lease to another term than it was granted for.
    pub renews_to_any_length: bool,
    /// Whether the store can count the processes that wait for a resource.
    pub counts_waiters: bool,
    /// Whether the store takes `acknowledged_by` into account, or has no replicas that could lose a lock.
    pub acknowledges: bool,
    /// Whether claims can wait in queues of the store.
    pub queues: bool,
    /// Whether a claim that was given a resource has to make an attempt all the same.
    pub verifies_transfers: bool,
    /// Whether each attempt of an acquisition needs an owner of its own, because the store undoes
    /// attempts by itself, and the undo of one must not affect the next.
    pub owner_per_attempt: bool,
    /// The shortest lease of a lock.
    pub shortest_lease: Duration,
}

impl Capabilities {
    /// Those of a store of which nothing is known.
    pub const PLAIN: Self = Self {
        keeps_after_release: false,
        counts_waiters: false,
        acknowledges: false,
        ..Self::ALL
    };

    pub const ALL: Self = Self {
        keeps_after_release: true,
        renews_to_any_length: true,
        counts_waiters: true,
        acknowledges: true,
        queues: false,
        verifies_transfers: false,
        owner_per_attempt: false,
        shortest_lease: Duration::ZERO,
    };
}

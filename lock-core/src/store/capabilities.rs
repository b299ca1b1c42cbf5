//! What a store can do.

use std::time::Duration;

use super::layout::Layout;
use super::store_error::StoreError;

/// What a store may have besides acquiring, renewing and releasing locks. A call that needs an extension that the store lacks
/// fails before a request is sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Extension {
    /// Claims can wait in queues of the store.
    Queues,
    /// The store can keep a resource taken for some time after its release.
    KeptKeys,
    /// The store takes `acknowledged_by` into account, or has no replicas that could lose a lock.
    Acknowledgements,
    /// The store has records of runs.
    Runs,
    /// The holder of a resource can announce something about itself.
    Announcements,
    /// The store issues fencing tokens.
    Tokens,
    /// Several resources can be taken in one step, if they are in one [slot](super::contract::LockStore::slot).
    SeveralKeys,
}

impl Extension {
    /// The error of a call that needs this extension, from a store that is [called](super::contract::LockStore::shown) `shown`.
    pub fn lacking(self, shown: &str) -> StoreError {
        let (option, what) = match self {
            Self::Queues => ("fair", "queues; remove `fair`"),
            Self::KeptKeys => {
                ("min_hold", "keys that stay taken after their release; remove `min_hold`")
            }
            Self::Acknowledgements => {
                ("acknowledged_by", "replicas that acknowledge locks; remove `acknowledged_by`")
            }
            Self::Runs => ("every", "records of runs"),
            Self::Announcements => ("leader", "announcements of leaders"),
            Self::Tokens => ("store", "fencing tokens"),
            Self::SeveralKeys => ("keys", "locks of several keys in one step"),
        };
        StoreError::lacking(shown, option, what)
    }
}

impl Layout {
    /// Fails unless these are plain locks, with the error of a call that needs locks in this layout, from a store that is
    /// [called](super::contract::LockStore::shown) `shown` and has plain locks only.
    pub fn plain_only(self, shown: &str) -> Result<(), StoreError> {
        let (option, what) = match self {
            Self::TOKEN => return Ok(()),
            Self::Wire(_) => ("wire_format", "locks in other formats than `Token`"),
            Self::ReadWrite => ("mode", "read-write locks"),
            Self::Semaphore => ("permits", "semaphores"),
            Self::Vote => ("quorum", "votes"),
        };
        Err(StoreError::lacking(shown, option, what))
    }
}

/// A set of extensions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Extensions(u16);

impl Extensions {
    /// No extension.
    pub const NONE: Self = Self(0);

    /// These extensions.
    pub const fn of(extensions: &[Extension]) -> Self {
        let (mut all, mut rest) = (Self::NONE, extensions);
        while let [first, others @ ..] = rest {
            (all, rest) = (all.with(*first), others);
        }
        all
    }

    /// These, and another one.
    #[must_use]
    pub const fn with(self, extension: Extension) -> Self {
        Self(self.0 | 1 << extension as u16)
    }

    /// These, except one.
    #[must_use]
    pub const fn without(self, extension: Extension) -> Self {
        Self(self.0 & !(1 << extension as u16))
    }

    /// Those that are in both sets.
    #[must_use]
    pub const fn intersection(self, others: Self) -> Self {
        Self(self.0 & others.0)
    }

    /// Whether this extension is one of them.
    pub const fn contains(self, extension: Extension) -> bool {
        self.0 & 1 << extension as u16 != 0
    }
}

/// The capabilities of a store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "each is one independent capability")]
pub struct Capabilities {
    /// What it has besides the required requests.
    pub extensions: Extensions,
    /// Whether the store can renew a lease to another term than it was granted for.
    pub renews_to_any_length: bool,
    /// Whether the store can count the processes that wait for a resource.
    pub counts_waiters: bool,
    /// Whether a claim that was given a resource has to make an attempt all the same.
    pub verifies_transfers: bool,
    /// Whether each attempt of an acquisition needs an owner of its own, because the store undoes
    /// attempts by itself, and the undo of one must not affect the next.
    pub owner_per_attempt: bool,
    /// The shortest lease of a lock.
    pub shortest_lease: Duration,
}

impl Capabilities {
    /// Those of a store that has the required requests only.
    pub const PLAIN: Self = Self {
        extensions: Extensions::NONE,
        renews_to_any_length: true,
        counts_waiters: false,
        verifies_transfers: false,
        owner_per_attempt: false,
        shortest_lease: Duration::ZERO,
    };

    /// The same, and these extensions.
    pub const fn with(extensions: &[Extension]) -> Self {
        Self { extensions: Extensions::of(extensions), ..Self::PLAIN }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_set_has_the_extensions_that_it_was_made_of() {
        let set = Extensions::of(&[Extension::Queues, Extension::Tokens]);
        assert!(set.contains(Extension::Queues) && set.contains(Extension::Tokens));
        assert!(!set.contains(Extension::Runs) && !Extensions::NONE.contains(Extension::Queues));
        let common =
            set.intersection(Extensions::NONE.with(Extension::Queues).with(Extension::Runs));
        assert_eq!(common, Extensions::of(&[Extension::Queues]));
    }
}

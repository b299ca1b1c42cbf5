//! What operators read from a store.

use std::fmt;
use std::time::Duration;

use crate::store::layout::Mode;

/// What a store knows about a key that is taken. `Debug` does not show the owner.
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct StoredLease {
    /// The full key, with the namespace of the client.
    pub key: String,
    /// The token of the owner. `None` for a key that stays taken after its release.
    pub owner: Option<String>,
    /// The rest of the lease, or of the time for which the key is kept. `None` if it never ends.
    pub left: Option<Duration>,
    /// The mode in which the owner has the key.
    pub mode: Mode,
}

impl StoredLease {
    /// The lease of the only owner of a key.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// use lock_runtime::store::runner::StoredLease;
    ///
    /// let left = Duration::from_secs(7);
    /// let lease = StoredLease::new("order:1", "kX3_8fRtq.AABrmE8eHkD2vXnq4mTjP5", Some(left));
    /// assert_eq!(lease.left, Some(left));
    /// ```
    #[must_use]
    pub fn new(key: impl Into<String>, owner: impl Into<String>, left: Option<Duration>) -> Self {
        Self { key: key.into(), owner: Some(owner.into()), left, mode: Mode::Exclusive }
    }

    /// The same, in another mode.
    #[must_use]
    pub fn in_mode(self, mode: Mode) -> Self {
        Self { mode, ..self }
    }

    /// A key that stays taken after its release.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// use lock_runtime::store::runner::StoredLease;
    ///
    /// assert_eq!(StoredLease::kept("order:1", Duration::from_secs(7)).owner, None);
    /// ```
    #[must_use]
    pub fn kept(key: impl Into<String>, left: Duration) -> Self {
        Self { key: key.into(), owner: None, left: Some(left), mode: Mode::Exclusive }
    }
}

impl fmt::Debug for StoredLease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("StoredLease");
        shown.field("key", &self.key).field("is_kept", &self.owner.is_none());
        shown.field("left", &self.left).field("mode", &self.mode).finish_non_exhaustive()
    }
}

/// A request for a part of the keys that are taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct LeaseScan<'a> {
    /// What the keys begin with. May be empty.
    pub prefix: &'a str,
    /// Where this part begins: the [`next`](LeasePage::next) of the one before; `None` for the first part.
    pub from: Option<&'a [u8]>,
    /// The most leases that are wanted.
    pub limit: usize,
}

impl<'a> LeaseScan<'a> {
    /// A request for tests of a store, for the first part.
    ///
    /// # Examples
    ///
    /// ```
    /// use lock_runtime::store::runner::LeaseScan;
    ///
    /// let scan = LeaseScan::new("order:", 100).from(b"order:1");
    /// assert_eq!((scan.prefix, scan.limit), ("order:", 100));
    /// ```
    #[must_use]
    pub fn new(prefix: &'a str, limit: usize) -> Self {
        Self { prefix, from: None, limit }
    }

    /// The same, for a later part.
    #[must_use]
    pub fn from(self, from: &'a [u8]) -> Self {
        Self { from: Some(from), ..self }
    }
}

/// A part of the keys that are taken.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct LeasePage {
    /// The leases, which may be none.
    pub leases: Vec<StoredLease>,
    /// Where the next part begins, in a form that only the store understands. `None` at the end.
    pub next: Option<Vec<u8>>,
}

impl LeasePage {
    /// A part with these leases, behind which the next part begins, if there is one.
    ///
    /// # Examples
    ///
    /// ```
    /// use lock_runtime::store::runner::{LeasePage, StoredLease};
    ///
    /// let lease = StoredLease::new("order:1", "kX3_8fRtq.AABrmE8eHkD2vXnq4mTjP5", None);
    /// let page = LeasePage::new(vec![lease], Some(b"order:1".to_vec()));
    /// assert_eq!(page.leases[0].key, "order:1");
    /// ```
    #[must_use]
    pub fn new(leases: Vec<StoredLease>, next: Option<Vec<u8>>) -> Self {
        Self { leases, next }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stored_lease_does_not_show_its_owner() {
        let lease = StoredLease::new("k", "c4nary", Some(Duration::from_secs(1)));
        let shown =
            format!("{lease:?} {:?}", LeasePage { leases: vec![lease.clone()], next: None });
        assert!(shown.contains("\"k\"") && !shown.contains("c4nary"), "{shown}");
    }
}

//! Who has a lock, as far as the store knows.

use std::time::SystemTime;

use super::owner::OwnerId;
use crate::client_info::ClientInfo;

/// The holder of a key.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct KeyHolder {
    pub(crate) client: ClientInfo,
    /// When its acquisition began, by its own clock.
    pub(crate) began: Option<SystemTime>,
}

impl KeyHolder {
    /// A holder with this owner id; `None` after the release of a lock that stays for its `min_hold`.
    pub(crate) fn of(owner: Option<OwnerId>) -> Self {
        Self { began: owner.map(OwnerId::began), ..Self::default() }
    }
}

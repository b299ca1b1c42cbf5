//! One holder of one lock, as its client and the store know it.

use std::cmp::Reverse;
use std::time::{Duration, SystemTime};

use clap::ValueEnum;
use lock_runtime::admin::{HoldInfo, LockState, StoredHolder, StoredLayout};
use lock_runtime::{ClientInfo, LockMode, Permits};
use serde::Serialize;

use crate::output::records::{ClientRecord, cell, optional_seconds, rfc3339, unknown};
use crate::span;

/// The names of the [cells](ListedLock::cells).
pub(crate) const HEADER: [&str; 6] = ["KEY", "HELD", "LEFT", "WAITING", "HOLDER", "FUNCTION"];

/// What the caller should know about a lock with very many holders.
pub(crate) const INCOMPLETE: &str =
    "of more than 1,000 readers or permits, only those are shown whose leases end first";

/// One holder of one lock, or a key for which calls wait and whose holder is not known. Programs read these fields:
/// their names and meanings stay as they are.
#[derive(Debug, Clone, Default, Serialize)]
pub(crate) struct ListedLock {
    /// Without the namespace.
    pub(crate) key: String,
    /// How the lock is written in the store, if it was asked.
    pub(crate) layout: Option<&'static str>,
    #[serde(rename = "client")]
    pub(crate) holder: Option<ClientRecord>,
    /// Whether the holder itself has answered. `false` if all clients that could be asked have answered, and it is none
    /// of them: it has died, or its connection is interrupted. `None` if that is not known.
    pub(crate) answers: Option<bool>,
    pub(crate) function: Option<String>,
    template: Option<String>,
    pub(crate) since: Option<String>,
    #[serde(rename = "held_seconds", serialize_with = "optional_seconds")]
    pub(crate) held_for: Option<Duration>,
    #[serde(rename = "left_seconds", serialize_with = "optional_seconds")]
    pub(crate) left: Option<Duration>,
    /// Whether the key expires.
    pub(crate) expires: Option<bool>,
    renewed: Option<bool>,
    pub(crate) mode: Option<&'static str>,
    pub(crate) permits: Option<u32>,
    /// Whether the lock was released, and its key stays for its `min_hold`.
    pub(crate) released: Option<bool>,
    pub(crate) fencing_token: Option<u64>,
    /// What the store knows the hold by, for `delete`.
    pub(crate) token: Option<String>,
    /// The calls of all clients that wait for the key. `None` if the clients could not be asked.
    pub(crate) waiting: Option<u64>,
}

impl ListedLock {
    /// A key whose holder is not known.
    pub(crate) fn without_holder(key: String, waiting: u64) -> Self {
        Self { key, waiting: Some(waiting), ..Self::default() }
    }

    /// The holders of a lock that the store knows, and whose leases have not ended.
    pub(crate) fn stored(state: LockState) -> Vec<Self> {
        let LockState { key, layout, mut holders, .. } = state;
        holders.retain(|holder| !has_ended(layout, holder));
        let row = |holder: StoredHolder| Self {
            key: key.clone(),
            layout: Some(layout.as_str()),
            holder: Some(ClientRecord::from(&holder.client)),
            since: since(holder.held_for),
            held_for: holder.held_for,
            left: holder.lease_left,
            expires: Some(holder.lease_left.is_some()),
            mode: holder.mode.map(LockMode::as_str),
            permits: holder.permits.map(Permits::count),
            released: Some(holder.is_released),
            token: Some(holder.token.as_str().to_owned()).filter(|token| !token.is_empty()),
            ..Self::default()
        };
        holders.into_iter().map(row).collect()
    }

    /// The cells of a table: key, time held, time left, waiting calls, holder and function.
    pub(crate) fn cells(&self) -> [String; 6] {
        let is_kept = self.released == Some(true) && self.token.is_none();
        let holder = self.holder.as_ref().filter(|_| !is_kept);
        let left = match self.expires {
            Some(false) => "never".to_owned(),
            _ => self.left.map_or_else(unknown, span::show),
        };
        [
            self.key.clone(),
            self.held_for.map_or_else(unknown, span::show),
            left,
            cell(self.waiting.as_ref()),
            holder.map_or_else(unknown, |holder| holder.shown.clone()),
            cell(self.function.as_ref()),
        ]
    }

    /// Adds what the holder itself has answered, which is more exact than what the store knows.
    pub(crate) fn with_answer(self, client: &ClientInfo, hold: HoldInfo) -> Self {
        Self {
            holder: Some(client.into()),
            answers: Some(true),
            function: hold.function,
            template: Some(hold.template),
            since: since(Some(hold.held_for)),
            held_for: Some(hold.held_for),
            left: Some(hold.lease_left),
            expires: Some(true),
            renewed: Some(hold.is_renewed),
            mode: hold.mode.map(LockMode::as_str),
            permits: hold.permits.map(Permits::count),
            fencing_token: hold.fencing_token,
            ..self
        }
    }
}

/// An order of the rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum RowOrder {
    /// By key
    Key,
    /// The oldest locks first
    Age,
    /// The locks that end soonest first
    Left,
    /// The locks with the most waiting calls first
    Waiting,
}

impl RowOrder {
    pub(crate) fn sort(self, rows: &mut [ListedLock]) {
        rows.sort_by(|one, other| one.key.cmp(&other.key));
        match self {
            Self::Key => {}
            Self::Age => rows.sort_by_key(|row| Reverse(row.held_for)),
            // Those without a known end last.
            Self::Left => rows.sort_by_key(|row| row.left.unwrap_or(Duration::MAX)),
            Self::Waiting => rows.sort_by_key(|row| Reverse(row.waiting)),
        }
    }
}

/// Whether the lease of a holder has ended. The keys of other layouts vanish then, but a time stays in the store until
/// the next holder overwrites it.
pub(crate) fn has_ended(layout: StoredLayout, holder: &StoredHolder) -> bool {
    layout == StoredLayout::Timestamp && holder.lease_left.is_some_and(|left| left.is_zero())
}

fn since(held_for: Option<Duration>) -> Option<String> {
    SystemTime::now().checked_sub(held_for?).map(rfc3339)
}

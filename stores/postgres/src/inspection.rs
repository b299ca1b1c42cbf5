//! What operators read from the table.

use std::time::Duration;

use tokio_postgres::Row;
use tokio_postgres::types::Type;

use super::pool::ConnectionPool;
use super::session_name::client_of;
use super::statements::{CLIENTS, INSPECT, SCAN};
use lock_core::client_info::ClientInfo;
use lock_core::store::contract::Mode;
use lock_core::store::layout::Shares;
use lock_core::store::runner::{LeasePage, LeaseScan, StoredLease};
use lock_core::store::store_error::StoreError;

/// The leases of the holders of a key.
pub(super) async fn inspect(
    pool: &ConnectionPool,
    key: &str,
) -> Result<Vec<StoredLease>, StoreError> {
    let rows = pool.query(INSPECT, &[(&key.as_bytes(), Type::BYTEA)]).await?;
    Ok(rows.iter().filter_map(stored).collect())
}

/// The leases of the next keys that begin with a prefix, in their order.
pub(super) async fn scan(
    pool: &ConnectionPool,
    scan: LeaseScan<'_>,
) -> Result<LeasePage, StoreError> {
    let from = scan.from.unwrap_or(scan.prefix.as_bytes());
    let end = end_of(scan.prefix);
    let limit = i64::try_from(scan.limit).unwrap_or(i64::MAX);
    let rows = pool
        .query(SCAN, &[(&from, Type::BYTEA), (&end, Type::BYTEA), (&limit, Type::INT8)])
        .await?;
    // Several rows in a sequence may be about one key.
    let keys = rows.chunk_by(|one, next| one.get::<_, &[u8]>(2) == next.get::<_, &[u8]>(2));
    let is_last = keys.count() < scan.limit;
    let last: Option<&[u8]> = rows.last().map(|row| row.get(2)).filter(|_| !is_last);
    // The first one behind it.
    let next = last.map(|key| [key, b"\0"].concat());
    Ok(LeasePage::new(rows.iter().filter_map(stored).collect(), next))
}

/// The clients with these ids that are connected.
pub(super) async fn clients(
    pool: &ConnectionPool,
    ids: &[String],
) -> Result<Vec<ClientInfo>, StoreError> {
    let rows = pool.query(CLIENTS, &[(&ids, Type::TEXT_ARRAY)]).await?;
    let known: Vec<_> = rows.iter().filter_map(|row| client_of(row.get(0))).collect();
    // Of several names for an id, only one can be true.
    let names = |id: &Option<String>| known.iter().filter(|client| client.id == *id).count();
    Ok(known.iter().filter(|client| names(&client.id) == 1).cloned().collect())
}

/// The lease of a row. `None` if it has just ended, or if the key is no text, and so not that of a lock.
fn stored(row: &Row) -> Option<StoredLease> {
    let key = String::from_utf8(row.get(2)).ok()?;
    let (owner, left): (Option<String>, Option<f64>) = (row.get(0), row.get(1));
    let left = left.map(|left| Duration::try_from_secs_f64(left).ok());
    // An endless one has no rest.
    let left = if left == Some(None) { return None } else { left.flatten() };
    let mode = match (row.get::<_, Option<i64>>(3), row.get::<_, Option<i64>>(4)) {
        (Some(count), Some(capacity)) => {
            Shares { count: count.try_into().ok()?, capacity: capacity.try_into().ok()? }.mode()?
        }
        _ if owner.as_ref().is_some_and(|owner| owner.starts_with('(')) => return None,
        _ => Mode::Exclusive,
    };
    let mut lease = StoredLease::new(key, "", left).in_mode(mode);
    lease.owner = owner.filter(|owner| !owner.starts_with("kept:"));
    Some(lease)
}

/// The first key behind all that begin with a prefix; `None` if there is none.
fn end_of(prefix: &str) -> Option<Vec<u8>> {
    let mut end = prefix.as_bytes().to_vec();
    // No text has the byte 255.
    *end.last_mut()? += 1;
    Some(end)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_a_prefix_is_behind_all_keys_that_begin_with_it() {
        assert_eq!(end_of(""), None);
        for prefix in ["shop:", "é", "\u{10ffff}"] {
            let end = end_of(prefix).expect("an end");
            assert!([prefix, "\u{10ffff}\u{10ffff}"].concat().into_bytes() < end);
            assert!(prefix.as_bytes() < &*end && end.len() == prefix.len());
        }
    }
}

//! What operators read from etcd.

use std::collections::HashMap;
use std::time::Duration;

use super::errors::EtcdFailure;
use super::members::{Members, Method};
use super::messages::{
    KeyValue, Operation, OperationResponse, RangeRequest, RangeResponse, TxnRequest, TxnResponse,
};
use super::presence;
use super::transactions::{KEPT, Owned, is_token, operation, seen};
use lock_core::client_info::ClientInfo;
use lock_core::join::join_all;
use lock_core::store::runner::{LeasePage, LeaseScan, StoredLease};

/// The number of clients that are looked up with one transaction, which may have 128 operations.
const CLIENTS_AT_ONCE: usize = 100;

/// The number of leases whose rests are asked for at the same time. Renewals go over the same connection.
const LEASES_AT_ONCE: usize = 16;

/// The lease of keys that have none.
const NO_LEASE: i64 = 0;

impl Members {
    /// What a key holds.
    pub(super) async fn inspect(&self, key: &str) -> Result<Vec<StoredLease>, EtcdFailure> {
        let range = RangeRequest { key: key.as_bytes().to_vec(), ..RangeRequest::default() };
        let read = self.read(range).await?;
        seen(&Owned::new(key, ""), read.kvs.first())?;
        self.stored(&read.kvs).await
    }

    /// The next locks whose keys begin with a prefix, in the order of the keys.
    pub(super) async fn scan(&self, scan: LeaseScan<'_>) -> Result<LeasePage, EtcdFailure> {
        let (first, range_end) = range_of(scan.prefix);
        let key = scan.from.map_or(first, <[u8]>::to_vec);
        let mut range =
            RangeRequest { key, range_end, limit: i64::try_from(scan.limit).unwrap_or(i64::MAX) };
        let read = loop {
            match self.read(range.clone()).await {
                // There are large values of others.
                Err(failure) if failure.is_too_large() && range.limit > 1 => range.limit /= 2,
                read => break read?,
            }
        };
        let last = read.kvs.last().filter(|_| read.more);
        // The first one behind it.
        let next = last.map(|last| [&last.key[..], b"\0"].concat());
        Ok(LeasePage::new(self.stored(&read.kvs).await?, next))
    }

    /// What the clients with these ids tell about themselves, as far as they have this namespace.
    pub(super) async fn clients(
        &self,
        ids: &[String],
        namespace: &str,
    ) -> Result<Vec<ClientInfo>, EtcdFailure> {
        let mut clients = Vec::new();
        for ids in ids.chunks(CLIENTS_AT_ONCE) {
            let ranges = ids.iter().map(|id| presence::range_of(namespace, id));
            let found = self.read_all(ranges).await?;
            let found = ids.iter().zip(&found);
            clients.extend(found.filter_map(|(id, read)| presence::told(id, read.kvs.first()?)));
        }
        Ok(clients)
    }

    /// Reads keys.
    async fn read(&self, range: RangeRequest) -> Result<RangeResponse, EtcdFailure> {
        let missing = || EtcdFailure::Unknown("an answer without the keys".to_owned());
        self.read_all([range]).await?.pop().ok_or_else(missing)
    }

    /// Reads several ranges of keys at the same revision. The answers are in their order.
    async fn read_all(
        &self,
        ranges: impl IntoIterator<Item = RangeRequest>,
    ) -> Result<Vec<RangeResponse>, EtcdFailure> {
        let ranges = ranges.into_iter().map(|range| operation(Operation::Range(range)));
        let request = TxnRequest { success: ranges.collect(), ..TxnRequest::default() };
        let answer: TxnResponse = self.call(Method::TXN, &request).await?;
        let read = answer.responses.into_iter().map(|response| match response.response {
            Some(OperationResponse::Range(range)) => range,
            _ => RangeResponse::default(),
        });
        Ok(read.collect())
    }

    /// The locks among these keys, with the rests of their leases. Costs one request for each lease.
    async fn stored(&self, found: &[KeyValue]) -> Result<Vec<StoredLease>, EtcdFailure> {
        let locks: Vec<_> = found.iter().filter_map(|kv| Some((kv.lease, lock_of(kv)?))).collect();
        let mut leases: Vec<i64> = locks.iter().map(|(lease, _)| *lease).collect();
        leases.sort_unstable();
        leases.dedup();
        let mut by_lease = HashMap::with_capacity(leases.len());
        for leases in leases.chunks(LEASES_AT_ONCE) {
            let rests = join_all(leases.iter().map(|lease| self.left_of(*lease))).await;
            for (lease, rest) in leases.iter().zip(rests) {
                by_lease.insert(*lease, rest?);
            }
        }
        let stored = locks.into_iter().filter_map(|(lease, mut lock)| {
            let left = by_lease.get(&lease)?;
            // The lease has ended in the meantime, and with it the key.
            lock.left = if lease == NO_LEASE { None } else { Some((*left)?) };
            Some(lock)
        });
        Ok(stored.collect())
    }

    /// The rest of the lease of a key, which may have none.
    async fn left_of(&self, lease: i64) -> Result<Option<Duration>, EtcdFailure> {
        if lease == NO_LEASE { Ok(None) } else { self.rest_of_lease(lease).await }
    }
}

/// The lock that a key is, without its rest. `None` for the keys of others, and for those beside a lock.
fn lock_of(kv: &KeyValue) -> Option<StoredLease> {
    let key = std::str::from_utf8(&kv.key).ok()?;
    let token = kv.value.strip_prefix(KEPT.as_bytes());
    let is_kept = token.is_some();
    let token = token.unwrap_or(&kv.value);
    let owner = std::str::from_utf8(token).ok().filter(|_| is_token(token))?;
    Some(if is_kept {
        StoredLease::kept(key, Duration::ZERO)
    } else {
        StoredLease::new(key, owner, None)
    })
}

/// The first key that begins with a prefix, and the first one behind all of them, as etcd names them.
fn range_of(prefix: &str) -> (Vec<u8>, Vec<u8>) {
    let mut end = prefix.as_bytes().to_vec();
    match end.last_mut() {
        // No text has the byte 255.
        Some(last) => *last += 1,
        None => return (b"\0".to_vec(), b"\0".to_vec()),
    }
    (prefix.as_bytes().to_vec(), end)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lock(key: &[u8], value: &str) -> Option<StoredLease> {
        let (key, value) = (key.to_vec(), value.as_bytes().to_vec());
        lock_of(&KeyValue { key, value, ..KeyValue::default() })
    }

    #[test]
    fn a_key_is_a_lock_if_its_value_is_a_token() {
        let token = "a".repeat(32);
        assert_eq!(lock(b"k", &token), Some(StoredLease::new("k", &token, None)));
        let kept = format!("{KEPT}{token}");
        assert_eq!(lock(b"k", &kept), Some(StoredLease::kept("k", Duration::ZERO)));
        for (key, value) in [(&b"k"[..], "value"), (b"k", ""), (b"k\xff/wanted", &token)] {
            assert_eq!(lock(key, value), None);
        }
    }

    #[test]
    fn a_range_has_all_keys_with_a_prefix() {
        assert_eq!(range_of(""), (vec![0], vec![0]));
        assert_eq!(range_of("shop:"), (b"shop:".to_vec(), b"shop;".to_vec()));
        let (_, end) = range_of("\u{10ffff}");
        assert!("\u{10ffff}\u{10ffff}".as_bytes() < &*end);
    }
}

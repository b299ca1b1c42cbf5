//! What a client tells about itself, for those who want to know who holds a lock.
//!
//! A client writes it once for each of its shared leases, as another key of that lease, so it is there for as long as the
//! client may hold renewed locks. The name of the key has the id with which the tokens of the client's owners begin, and the
//! number of the lease: a lease that is retired, or that a late request finds, takes no presence from another one.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::sleep;
use tracing::Level;

use super::errors::EtcdFailure;
use super::members::{Members, Method};
use super::messages::{KeyValue, Operation, PutRequest, RangeRequest, TxnRequest, TxnResponse};
use super::transactions::operation;
use lock_core::client_info::{ClientInfo, LONGEST_PRESENCE};
use lock_core::events;
use lock_core::sync::atomic::{AtomicBool, Ordering};

/// What follows the namespace in the names of these keys. The first byte occurs in no text, and so in no key of a lock.
const CLIENTS: &[u8] = b"\xff/client/";

/// How often it is written at most while etcd does not answer, and the pause in between.
const ATTEMPTS: usize = 10;
const PAUSE: Duration = Duration::from_secs(1);

/// The presence of a client.
pub(super) struct LeasePresence {
    /// What the names of the presences of all clients begin with that have the namespace of this one.
    beginning: Vec<u8>,
    id: String,
    text: String,
    is_denied: AtomicBool,
}

impl LeasePresence {
    pub(super) fn new(client: &ClientInfo, namespace: &str) -> Self {
        let id = client.id.clone().unwrap_or_default();
        let (text, is_denied) = (client.to_presence(), AtomicBool::new(false));
        Self { beginning: beginning(namespace), id, text, is_denied }
    }

    /// Writes it beside a new lease, in the background. If that fails, others see the id of the client alone.
    pub(super) fn write(self: &Arc<Self>, members: &Arc<Members>, lease: i64) {
        if self.is_denied.load(Ordering::Relaxed) {
            return;
        }
        let key = [&*name(&self.beginning, &self.id), lease.to_string().as_bytes()].concat();
        let value = self.text.clone().into_bytes();
        let put = PutRequest { key, value, lease, ..PutRequest::default() };
        let success = vec![operation(Operation::Put(put))];
        let request = TxnRequest { success, ..TxnRequest::default() };
        let (presence, members) = (Arc::clone(self), Arc::clone(members));
        tokio::spawn(async move {
            for _ in 0..ATTEMPTS {
                let written: Result<TxnResponse, _> = members.call(Method::TXN, &request).await;
                match written {
                    Ok(_) | Err(EtcdFailure::LeaseGone) => return,
                    Err(denied) if denied.is_missing_permission() => {
                        return presence.denied(&denied);
                    }
                    // Perhaps there is no leader now.
                    Err(_) => sleep(PAUSE).await,
                }
            }
        });
    }

    fn denied(&self, denied: &EtcdFailure) {
        if self.is_denied.swap(true, Ordering::Relaxed) {
            return;
        }
        let cause = denied.text();
        events::emit(Level::INFO, move || {
            tracing::info!(
                target: "lock_runtime::store::etcd",
                cause,
                "cannot write the presence of this client, so others do not see which process holds its locks"
            );
        });
    }
}

/// The range of the presences of a client, of which one is enough.
pub(super) fn range_of(namespace: &str, id: &str) -> RangeRequest {
    let key = name(&beginning(namespace), id);
    // The name ends with a `/`, which `0` follows.
    let mut range_end = key.clone();
    if let Some(last) = range_end.last_mut() {
        *last += 1;
    }
    RangeRequest { key, range_end, limit: 1 }
}

/// What a presence tells about the client with this id.
pub(super) fn told(id: &str, found: &KeyValue) -> Option<ClientInfo> {
    let text = Some(&found.value).filter(|text| text.len() <= LONGEST_PRESENCE)?;
    Some(ClientInfo::of_presence(text).with_id(id))
}

fn beginning(namespace: &str) -> Vec<u8> {
    let separator: &[u8] = if namespace.is_empty() { b"" } else { b":" };
    [namespace.as_bytes(), separator, CLIENTS].concat()
}

fn name(beginning: &[u8], id: &str) -> Vec<u8> {
    [beginning, id.as_bytes(), b"/"].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_presence_is_in_the_range_of_its_client_and_in_no_other() {
        for namespace in ["", "shop"] {
            let of_lease = |id: &str| [&*name(&beginning(namespace), id), b"31"].concat();
            let RangeRequest { key, range_end, .. } = range_of(namespace, "kX3_8fRtq");
            let is_in_range = |id| (&key..&range_end).contains(&&of_lease(id));
            assert!(is_in_range("kX3_8fRtq"));
            assert!(!["kX3_8fRtr", "kX3_8fRtq0", "kX3_8fRt"].into_iter().any(is_in_range));
            assert!(std::str::from_utf8(&key).is_err(), "no lock has this key");
        }
    }

    #[test]
    fn a_text_that_is_too_long_tells_nothing() {
        let told = |length: usize| {
            let value = [b"v=1\nname=web-3\n".to_vec(), vec![b'x'; length]].concat();
            told("kX3_8fRtq", &KeyValue { value, ..KeyValue::default() })
        };
        let known = told(10).expect("a presence");
        assert_eq!(
            (known.id.as_deref(), known.name.as_deref()),
            (Some("kX3_8fRtq"), Some("web-3"))
        );
        assert_eq!(told(LONGEST_PRESENCE), None);
    }
}

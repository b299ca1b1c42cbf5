//! The transactions that wait until they are sent together.

use std::sync::Arc;

use super::errors::EtcdFailure;
use super::messages::{TxnRequest, TxnResponse};
use lock_core::store::joiner::{JoinLimits, JoinableRequest, RequestJoiner};

/// How transactions are sent. By default, etcd refuses more than 128 operations in one, those of the longest part included.
const LIMITS: JoinLimits = JoinLimits { in_flight: 8, together: 48 };

/// A transaction about one key.
pub(super) struct KeyTxn {
    pub(super) key: Vec<u8>,
    pub(super) request: TxnRequest,
}

impl JoinableRequest for KeyTxn {
    fn key(&self) -> &[u8] {
        &self.key
    }
}

/// Transactions of one kind.
pub(super) type TxnJoiner = RequestJoiner<KeyTxn, Result<TxnResponse, EtcdFailure>>;

/// The transactions of a runtime.
pub(super) struct JoinedTxns {
    pub(super) claims: Arc<TxnJoiner>,
    /// Not together with claims, which etcd refuses when its database is full.
    pub(super) releases: Arc<TxnJoiner>,
}

impl JoinedTxns {
    pub(super) fn new() -> Self {
        Self { claims: TxnJoiner::new(LIMITS), releases: TxnJoiner::new(LIMITS) }
    }
}

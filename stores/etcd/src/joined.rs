//! Transactions of acquires and releases that are sent together, as parts of one.
//!
//! etcd writes each transaction to its log on its own, and answers it on its own: both cost more than the change of a key.
//! The parts of a transaction have comparisons of their own, which are all made before any part changes something. So no
//! two parts are about one key.
//!
//! Many versions of etcd check the permissions of the user, and the room in the database, for the operations of a transaction
//! itself, but not for those inside its parts. They check both branches, so the branch that is never taken reads each key and what
//! is beside it, and repeats the change of the key.
//!
//! A claim that is given up after it was taken out of the queue may still be sent, as any claim: see `holds.rs`.

use std::sync::Arc;

use super::batch::{JoinedTxns, KeyTxn, TxnJoiner};
use super::errors::EtcdFailure;
use super::members::{Members, Method};
use super::messages::{
    Operation, OperationResponse, RangeRequest, RequestOp, TxnRequest, TxnResponse,
};
use super::transactions::{BEHIND, Owned};
use lock_core::join::join_all;
use lock_core::store::joiner::JoinTurn;

impl Members {
    /// Sends a transaction that gives this key to an owner, perhaps together with others. It is not sent again.
    pub(super) async fn claim_joined(
        &self,
        owned: &Owned,
        request: TxnRequest,
    ) -> Result<TxnResponse, EtcdFailure> {
        let joiner = Arc::clone(&self.joined().claims);
        self.join(&joiner, owned, request).await
    }

    /// The same, for a transaction that frees this key.
    pub(super) async fn release_joined(
        &self,
        owned: &Owned,
        request: TxnRequest,
    ) -> Result<TxnResponse, EtcdFailure> {
        let joiner = Arc::clone(&self.joined().releases);
        self.join(&joiner, owned, request).await
    }

    fn joined(&self) -> Arc<JoinedTxns> {
        self.joined.here(|| Arc::new(JoinedTxns::new()))
    }

    async fn join(
        &self,
        joiner: &Arc<TxnJoiner>,
        owned: &Owned,
        request: TxnRequest,
    ) -> Result<TxnResponse, EtcdFailure> {
        let request = KeyTxn { key: owned.key.as_bytes().to_vec(), request };
        let mut batch = match joiner.turn(request).await {
            Some(JoinTurn::Answered(answer)) => return answer,
            Some(JoinTurn::Sends(batch)) => batch,
            None => return Err(unanswered()),
        };
        let requests = batch.take();
        let answers = self.send_joined(requests).await;
        batch.tell(answers).unwrap_or_else(|| Err(unanswered()))
    }

    async fn send_joined(&self, requests: Vec<KeyTxn>) -> Vec<Result<TxnResponse, EtcdFailure>> {
        let send_one =
            |KeyTxn { request, .. }| async move { self.call(Method::TXN_ONCE, &request).await };
        if requests.len() == 1 {
            return join_all(requests.into_iter().map(send_one)).await;
        }
        let parts = requests.iter().map(|KeyTxn { request, .. }| RequestOp {
            operation: Some(Operation::Txn(request.clone())),
        });
        // Without a comparison, nothing of `failure` is carried out.
        let failure = requests.iter().flat_map(checked).collect();
        let all = TxnRequest { success: parts.collect(), failure, ..TxnRequest::default() };
        let answered: Result<TxnResponse, _> = self.call(Method::TXN_ONCE, &all).await;
        match answered {
            Ok(answer) => (0..requests.len()).map(|part| answer_of(&answer, part)).collect(),
            // It had no effect, and each of them would fail.
            Err(EtcdFailure::LeaseGone) if have_one_lease(&requests) => {
                requests.iter().map(|_| Err(EtcdFailure::LeaseGone)).collect()
            }
            // The same, and perhaps only one of them would.
            Err(failure) if failure.may_be_of_part() => {
                join_all(requests.into_iter().map(send_one)).await
            }
            Err(failure) => requests.iter().map(|_| Err(failure.clone())).collect(),
        }
    }
}

/// Whether all keys would get the same lease, as those of locks that are renewed.
fn have_one_lease(requests: &[KeyTxn]) -> bool {
    let lease = |KeyTxn { request, .. }: &KeyTxn| match request
        .success
        .first()
        .and_then(|first| first.operation.as_ref())
    {
        Some(Operation::Put(put)) => Some(put.lease),
        _ => None,
    };
    requests.windows(2).all(|pair| lease(&pair[0]) == lease(&pair[1]))
}

/// What etcd has to check for a part: a look at the key and what is beside it, and the change of the key.
fn checked(KeyTxn { key, request }: &KeyTxn) -> Vec<RequestOp> {
    let range_end = [&key[..], BEHIND].concat();
    let read = RangeRequest { key: key.clone(), range_end, ..RangeRequest::default() };
    let read = RequestOp { operation: Some(Operation::Range(read)) };
    [Some(read), request.success.first().cloned()].into_iter().flatten().collect()
}

/// The answer to a part of a transaction.
fn answer_of(all: &TxnResponse, part: usize) -> Result<TxnResponse, EtcdFailure> {
    let response = all.responses.get(part).and_then(|part| part.response.as_ref());
    let Some(OperationResponse::Txn(answer)) = response else { return Err(unanswered()) };
    // Its own header is empty.
    Ok(TxnResponse { header: all.header.clone(), ..answer.clone() })
}

fn unanswered() -> EtcdFailure {
    EtcdFailure::Unknown("no answer".to_owned())
}

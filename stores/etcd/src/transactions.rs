//! The transactions about keys, and what their answers say.
//!
//! The value of a key is the token of its owner, or, after a release with a minimum hold, that token behind `kept:`.
//! A fencing token is the revision of the last change of the key, plus an offset that is nearly always zero: it is raised
//! if a call with several keys asks for a token above the revision of etcd, and is then stored beside the key.
//!
//! Another key says that a client waits for the lock. So a release knows whether it has to leave the lock to others. The mark
//! of a wait that was given up ends with the next release, or with its lease, which no client extends.

use super::errors::EtcdFailure;
use super::members::{Members, Method};
use super::messages::{
    Compare, CompareTarget, Compared, DeleteRangeRequest, DeleteRangeResponse, KeyValue, Operation,
    OperationResponse, PutRequest, RangeRequest, RequestOp, TxnRequest, TxnResponse,
};
use lock_core::safeguard::Safeguard;
pub(super) use lock_core::store::runner::Owned;
use lock_core::store::store_error::StoreError;

/// The length of a token.
const TOKEN: usize = 32;

/// What the value of a key begins with that stays taken after its release.
pub(super) const KEPT: &str = "kept:";

/// What follows a key in the name of its offset. The first byte occurs in no text, and so in no key of a lock.
const OFFSET: &[u8] = b"\xff/fence";

/// What follows a key in the name of the mark that a client waits for it.
const WANTED: &[u8] = b"\xff/wanted";

/// What follows a key in a name behind all of these.
pub(super) const BEHIND: &[u8] = b"\xff\xff";

/// What a key holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SeenKey {
    /// Nothing.
    Gone,
    /// The owner has it, with this lease.
    Own { lease: i64 },
    /// Another owner has it, or it stays taken after a release. For an owner that had it: also a value that is no owner.
    Taken { lease: i64 },
}

/// An answer to a transaction about a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct TxnAnswer<T> {
    pub(super) what: T,
    /// The revision of the store after it.
    pub(super) revision: i64,
    /// The raft term in which the member that has answered was.
    pub(super) raft_term: u64,
}

/// The answer to a claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Claimed {
    /// The owner has the key, with this lease and this fencing token.
    Granted { lease: i64, fence: u64 },
    /// Another owner has it, with this lease.
    Busy { lease: i64 },
}

impl Members {
    /// Gives the key to the owner, if nobody has it; otherwise marks it as wanted, if there is a lease for that. Not sent again:
    /// the answer to a second request would say nothing about the first one, which may arrive after the release.
    pub(super) async fn claim(
        &self,
        owned: &Owned,
        lease: i64,
        of_mark: Option<i64>,
    ) -> Result<TxnAnswer<Claimed>, EtcdFailure> {
        let is_free = if Safeguard::OnlyIfFree.is_on() {
            vec![is_absent(owned.key.as_bytes().to_vec())]
        } else {
            Vec::new()
        };
        let mut failure =
            vec![range(owned.key.as_bytes().to_vec()), range(beside(&owned.key, OFFSET))];
        if let Some(lease) = of_mark {
            failure.push(operation(Operation::Txn(mark(owned, lease))));
        }
        let request = TxnRequest {
            compare: is_free,
            success: vec![put(owned, lease), range(beside(&owned.key, OFFSET))],
            failure,
        };
        let answer = self.claim_joined(owned, request).await.map_err(EtcdFailure::of_write)?;
        if self.is_foreign(answer.header.as_ref()) {
            let problem = "the member belongs to another cluster now";
            return Err(EtcdFailure::Unknown(problem.to_owned()));
        }
        let offset = read_offset(&owned.key, found(&answer, 1)).map_err(|failure| {
            // The key may have been written.
            if answer.succeeded { EtcdFailure::Unknown(failure.text()) } else { failure }
        })?;
        let fence = |revision: i64| u64::try_from(revision).unwrap_or_default() + offset;
        let what = if answer.succeeded {
            Claimed::Granted { lease, fence: fence(revision(&answer)) }
        } else {
            match (seen(owned, found(&answer, 0))?, found(&answer, 0)) {
                (SeenKey::Own { lease }, Some(kv)) => {
                    Claimed::Granted { lease, fence: fence(kv.mod_revision) }
                }
                (SeenKey::Taken { lease }, _) => Claimed::Busy { lease },
                // The comparison has found a key.
                _ => return Err(EtcdFailure::Unknown("an answer without the key".to_owned())),
            }
        };
        Ok(answered(&answer, what))
    }

    /// Marks a key as wanted, for as long as this lease lasts.
    pub(super) async fn mark_wanted(&self, owned: &Owned, lease: i64) -> Result<(), EtcdFailure> {
        let _: TxnResponse = self.call(Method::TXN, &mark(owned, lease)).await?;
        Ok(())
    }

    /// What the key holds.
    pub(super) async fn look_at(&self, owned: &Owned) -> Result<TxnAnswer<SeenKey>, EtcdFailure> {
        let read = vec![range(owned.key.as_bytes().to_vec())];
        let request = TxnRequest { success: read, ..TxnRequest::default() };
        let answer: TxnResponse = self.call(Method::TXN, &request).await?;
        Ok(answered(&answer, seen(owned, found(&answer, 0))?))
    }

    /// What the keys hold. All are read at the same revision. A key with a foreign value is taken.
    pub(super) async fn look(
        &self,
        all: &[&Owned],
    ) -> Result<TxnAnswer<Vec<SeenKey>>, EtcdFailure> {
        let read = all.iter().map(|owned| range(owned.key.as_bytes().to_vec())).collect();
        self.seen_by(all, TxnRequest { success: read, ..TxnRequest::default() }).await
    }

    /// The same, but the answer is short if all keys have these owners and leases.
    pub(super) async fn verify(
        &self,
        all: &[(&Owned, i64)],
    ) -> Result<TxnAnswer<Vec<SeenKey>>, EtcdFailure> {
        let owned: Vec<&Owned> = all.iter().map(|(owned, _)| *owned).collect();
        let is_unchanged = all.iter().flat_map(|(owned, lease)| {
            [is_own(owned), compare(&owned.key, CompareTarget::Lease, Compared::Lease(*lease))]
        });
        let read = owned.iter().map(|owned| range(owned.key.as_bytes().to_vec())).collect();
        let request =
            TxnRequest { compare: is_unchanged.collect(), success: Vec::new(), failure: read };
        let answer = self.seen_by(&owned, request).await?;
        if answer.what.is_empty() {
            let seen = all.iter().map(|(_, lease)| SeenKey::Own { lease: *lease }).collect();
            return Ok(TxnAnswer { what: seen, ..answer });
        }
        Ok(answer)
    }

    async fn seen_by(
        &self,
        all: &[&Owned],
        request: TxnRequest,
    ) -> Result<TxnAnswer<Vec<SeenKey>>, EtcdFailure> {
        let answer: TxnResponse = self.call(Method::TXN, &request).await?;
        let count = answer.responses.len();
        let read = all.iter().take(count).enumerate();
        let seen = read.map(|(number, owned)| seen_by_holder(owned, found(&answer, number)));
        let seen = seen.collect();
        Ok(answered(&answer, seen))
    }

    /// Gives the key the lease `to`, if the owner has it with the lease `from`. Otherwise, nothing changes: another request
    /// may have given it a longer one.
    pub(super) async fn attach(
        &self,
        owned: &Owned,
        (from, to): (i64, i64),
    ) -> Result<TxnAnswer<SeenKey>, EtcdFailure> {
        let mut checks = vec![is_own(owned)];
        checks.push(compare(&owned.key, CompareTarget::Lease, Compared::Lease(from)));
        let request = change_if(checks, owned, vec![put(owned, to)]);
        let answer: TxnResponse = self.call(Method::TXN, &request).await?;
        Ok(answered(&answer, changed(owned, &answer, to)))
    }

    /// Frees the key, if the owner has it. `Own` means that the owner had it. Also returns whether it was wanted.
    pub(super) async fn delete(
        &self,
        owned: &Owned,
    ) -> Result<(TxnAnswer<SeenKey>, bool), EtcdFailure> {
        let changes =
            vec![delete(owned.key.as_bytes().to_vec()), delete(beside(&owned.key, WANTED))];
        let request = change_if(release_checks(owned), owned, changes);
        let answer = self.release_joined(owned, request).await?;
        let was_wanted = matches!(
            answer.responses.get(1).and_then(|response| response.response.as_ref()),
            Some(OperationResponse::Delete(DeleteRangeResponse { deleted: 1.. }))
        );
        Ok((answered(&answer, changed(owned, &answer, 0)), was_wanted))
    }

    /// The key stays taken with this lease, if the owner has it. `Own` means that the owner had it.
    pub(super) async fn keep(
        &self,
        owned: &Owned,
        lease: i64,
    ) -> Result<TxnAnswer<SeenKey>, EtcdFailure> {
        let kept = PutRequest {
            key: owned.key.as_bytes().to_vec(),
            value: format!("{KEPT}{}", owned.owner).into_bytes(),
            lease,
            ..PutRequest::default()
        };
        let changes = vec![operation(Operation::Put(kept))];
        let request = change_if(release_checks(owned), owned, changes);
        let answer: Result<TxnResponse, _> = self.call(Method::TXN_ONCE, &request).await;
        let answer = answer.map_err(EtcdFailure::of_write)?;
        Ok(answered(&answer, changed(owned, &answer, lease)))
    }

    /// A fencing token for the owner, of at least this number. `Err` if the owner does not have the key.
    pub(super) async fn raise_fence(
        &self,
        owned: &Owned,
        at_least: u64,
    ) -> Result<Result<u64, SeenKey>, EtcdFailure> {
        let offset_key = beside(&owned.key, OFFSET);
        loop {
            // The key is written again, with its value and its lease.
            let request = TxnRequest {
                compare: vec![is_own(owned)],
                success: vec![touch(owned), range(offset_key.clone())],
                failure: vec![range(owned.key.as_bytes().to_vec())],
            };
            let answer: TxnResponse = self.call(Method::TXN, &request).await?;
            if !answer.succeeded {
                return Ok(Err(seen_by_holder(owned, found(&answer, 0))));
            }
            let revision = u64::try_from(revision(&answer)).unwrap_or_default();
            let before = found(&answer, 1);
            let offset = read_offset(&owned.key, before)?;
            if revision + offset >= at_least {
                return Ok(Ok(revision + offset));
            }
            // The next revision is above this one, so the next token is high enough.
            let raised = PutRequest {
                key: offset_key.clone(),
                value: (at_least - revision).to_string().into_bytes(),
                ..PutRequest::default()
            };
            let unchanged = Compare {
                target: CompareTarget::ModRevision.into(),
                key: offset_key.clone(),
                with: Some(Compared::ModRevision(before.map_or(0, |kv| kv.mod_revision))),
            };
            let request = TxnRequest {
                compare: vec![is_own(owned), unchanged],
                success: vec![operation(Operation::Put(raised))],
                failure: Vec::new(),
            };
            let _: TxnResponse = self.call(Method::TXN, &request).await?;
        }
    }
}

fn answered<T>(answer: &TxnResponse, what: T) -> TxnAnswer<T> {
    let raft_term = answer.header.as_ref().map_or(0, |header| header.raft_term);
    TxnAnswer { what, revision: revision(answer), raft_term }
}

fn revision(answer: &TxnResponse) -> i64 {
    answer.header.as_ref().map_or(0, |header| header.revision)
}

/// The key that an operation of a transaction has read.
fn found(answer: &TxnResponse, number: usize) -> Option<&KeyValue> {
    match answer.responses.get(number)?.response.as_ref()? {
        OperationResponse::Range(range) => range.kvs.first(),
        _ => None,
    }
}

pub(super) fn seen(owned: &Owned, found: Option<&KeyValue>) -> Result<SeenKey, EtcdFailure> {
    let Some(KeyValue { value, lease, .. }) = found else { return Ok(SeenKey::Gone) };
    if value == owned.owner.as_bytes() {
        return Ok(SeenKey::Own { lease: *lease });
    }
    let token = value.strip_prefix(KEPT.as_bytes()).unwrap_or(value);
    if is_token(token) {
        return Ok(SeenKey::Taken { lease: *lease });
    }
    Err(wrong_format(&owned.key, "token of an owner", value.len()))
}

/// Like [`seen`], for an owner that had the key: any other value means that it has lost it.
fn seen_by_holder(owned: &Owned, found: Option<&KeyValue>) -> SeenKey {
    seen(owned, found).unwrap_or(SeenKey::Taken { lease: 0 })
}

pub(super) fn is_token(value: &[u8]) -> bool {
    let is_letter = |letter: &u8| letter.is_ascii_alphanumeric() || b"-_.".contains(letter);
    value.len() == TOKEN && value.iter().all(is_letter)
}

fn wrong_format(key: &str, expected: &'static str, length: usize) -> EtcdFailure {
    let found = format!("value of {length} bytes");
    EtcdFailure::Refused(StoreError::WrongFormat { key: key.to_owned(), expected, found })
}

/// A key beside that of a lock.
fn beside(key: &str, what: &[u8]) -> Vec<u8> {
    [key.as_bytes(), what].concat()
}

/// Marks a key as wanted, if it is not marked.
fn mark(owned: &Owned, lease: i64) -> TxnRequest {
    let key = beside(&owned.key, WANTED);
    let put = PutRequest { key: key.clone(), lease, ..PutRequest::default() };
    let success = vec![operation(Operation::Put(put))];
    TxnRequest { compare: vec![is_absent(key)], success, failure: Vec::new() }
}

fn is_absent(key: Vec<u8>) -> Compare {
    let absent = Some(Compared::CreateRevision(0));
    Compare { target: CompareTarget::CreateRevision.into(), key, with: absent }
}

fn read_offset(key: &str, found: Option<&KeyValue>) -> Result<u64, EtcdFailure> {
    let Some(KeyValue { value, .. }) = found else { return Ok(0) };
    let text = std::str::from_utf8(value).ok();
    let offset = text.and_then(|text| text.parse::<u64>().ok()).filter(|offset| *offset < 1 << 62);
    offset.ok_or_else(|| wrong_format(key, "number that is added to fencing tokens", value.len()))
}

/// What has to be true of a key that is released.
fn release_checks(owned: &Owned) -> Vec<Compare> {
    if Safeguard::OnlyOwnerReleases.is_on() { vec![is_own(owned)] } else { Vec::new() }
}

/// Carries out these operations if all checks hold. Otherwise, reads the key.
fn change_if(checks: Vec<Compare>, owned: &Owned, success: Vec<RequestOp>) -> TxnRequest {
    let failure = vec![range(owned.key.as_bytes().to_vec())];
    TxnRequest { compare: checks, success, failure }
}

/// What the answer to such a transaction says. `lease` is that of the key after the operations.
fn changed(owned: &Owned, answer: &TxnResponse, lease: i64) -> SeenKey {
    if answer.succeeded { SeenKey::Own { lease } } else { seen_by_holder(owned, found(answer, 0)) }
}

fn compare(key: &str, target: CompareTarget, with: Compared) -> Compare {
    Compare { target: target.into(), key: key.as_bytes().to_vec(), with: Some(with) }
}

fn is_own(owned: &Owned) -> Compare {
    let token = owned.owner.as_bytes().to_vec();
    compare(&owned.key, CompareTarget::Value, Compared::Value(token))
}

pub(super) fn operation(operation: Operation) -> RequestOp {
    RequestOp { operation: Some(operation) }
}

fn range(key: Vec<u8>) -> RequestOp {
    operation(Operation::Range(RangeRequest { key, ..RangeRequest::default() }))
}

fn put(Owned { key, owner, .. }: &Owned, lease: i64) -> RequestOp {
    operation(Operation::Put(PutRequest {
        key: key.as_bytes().to_vec(),
        value: owner.as_bytes().to_vec(),
        lease,
        ..PutRequest::default()
    }))
}

fn touch(Owned { key, .. }: &Owned) -> RequestOp {
    operation(Operation::Put(PutRequest {
        key: key.as_bytes().to_vec(),
        ignore_value: true,
        ignore_lease: true,
        ..PutRequest::default()
    }))
}

fn delete(key: Vec<u8>) -> RequestOp {
    operation(Operation::Delete(DeleteRangeRequest { key }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kv(value: &str) -> KeyValue {
        KeyValue { value: value.as_bytes().to_vec(), lease: 7, ..KeyValue::default() }
    }

    #[test]
    fn a_value_is_a_token_or_a_kept_one() {
        let (own, other) = ("a".repeat(32), "B-_.0".repeat(7)[..32].to_owned());
        let owned = Owned::new("k", &own);
        assert_eq!(seen(&owned, None), Ok(SeenKey::Gone));
        assert_eq!(seen(&owned, Some(&kv(&own))), Ok(SeenKey::Own { lease: 7 }));
        for taken in [other.clone(), format!("kept:{own}"), format!("kept:{other}")] {
            assert_eq!(seen(&owned, Some(&kv(&taken))), Ok(SeenKey::Taken { lease: 7 }));
        }
        for foreign in ["", "value", "kept:", "kept:value", &"ä".repeat(16), &"a".repeat(33)] {
            let error = seen(&owned, Some(&kv(foreign))).map_err(EtcdFailure::into_error);
            assert!(matches!(error, Err(StoreError::WrongFormat { .. })), "{foreign}");
            assert_eq!(seen_by_holder(&owned, Some(&kv(foreign))), SeenKey::Taken { lease: 0 });
        }
    }

    #[test]
    fn an_offset_is_a_number() {
        assert_eq!(read_offset("k", None), Ok(0));
        assert_eq!(read_offset("k", Some(&kv("41"))), Ok(41));
        for other in ["", "-1", "x", "99999999999999999999", &u64::MAX.to_string()] {
            assert!(read_offset("k", Some(&kv(other))).is_err(), "{other}");
        }
    }
}

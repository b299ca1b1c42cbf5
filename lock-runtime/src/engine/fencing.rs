//! Fencing tokens: numbers that increase from holder to holder of a key.
//!
//! A lease cannot stop a write that is already in flight. The resource can stop it, by rejecting a
//! token that is below the highest one that it has received. (The idea comes from Lamport, and from
//! the sequencers of Chubby; the name is Kleppmann's,
//! <https://martin.kleppmann.com/2016/02/08/how-to-do-distributed-locking.html>.) The store issues
//! tokens only to the owner of a key. The token of a hold is therefore issued before the next hold
//! begins, and is below the token of the next hold.
//!
//! A token is issued on request, so that holders without a need for it have no cost. There is one
//! token per hold, so that the writes of one hold do not reject each other.

use std::sync::Arc;

use super::acquire::PAUSES;
use super::core::Engine;
use super::handoff::{Hold, Lease};
use crate::backoff::Backoff;
use crate::error::{LockError, LostReason};
use crate::join::join_all;
use crate::maybe_ready::MaybeReady;
use crate::runtime;
use crate::store::contract::{Extension, Fenced, Mode, StoreError};
use crate::sync::time;
use crate::timeout::{Timeout, Wait};

impl Engine {
    /// Returns the fencing token of a hold.
    ///
    /// Cancel safe: a request without an answer has no effect on the lock.
    pub(crate) async fn fencing_token(&self, hold: &Hold) -> Result<u64, LockError> {
        runtime::checked()?;
        let (option, problem) = match hold.lease().mode() {
            Mode::Read => {
                ("mode", "a reader has no fencing token, because it excludes no other readers")
            }
            Mode::Permits(_) => {
                ("permits", "a semaphore has no fencing tokens, because it has several holders")
            }
            Mode::Exclusive | Mode::Write => ("", ""),
        };
        if !option.is_empty() {
            return Err(LockError::config(option, problem));
        }
        let timeout = self.holder_timeout();
        let fence = hold.fence();
        // The last error of the store, which is reported after a timeout during a request.
        let mut refusal = None;
        // One request serves all callers. Each caller waits no longer than its own timeout.
        let asking = fence.get_or_try_init(|| self.ask_for_fence(hold, 0, &timeout, &mut refusal));
        let asked = timeout.limit(asking).await;
        let missing = "the store has issued no fencing token yet";
        let token = in_time(asked, (hold, &timeout), refusal, missing)?;
        hold.loss().map_or(Ok(*token), Err)
    }

    /// Returns one fencing token for several holds: the highest of their own tokens. It is above the
    /// tokens of all earlier holds of each key. The store then raises the last token of each other key
    /// to it, so it is below the tokens of all later holds.
    ///
    /// Cancel safe: a request without an answer has no effect on the locks.
    pub(crate) async fn fencing_token_of(&self, holds: &[&Hold]) -> Result<u64, LockError> {
        loop {
            let own = join_all(holds.iter().map(|hold| self.fencing_token(hold))).await;
            let own: Vec<u64> = own.into_iter().collect::<Result<_, _>>()?;
            let highest = own.iter().copied().max().unwrap_or_default();
            let lower: Vec<_> =
                holds.iter().zip(own).filter(|(_, token)| *token < highest).collect();
            if lower.is_empty() {
                return Ok(highest);
            }
            // Another set that has one of these keys may raise its token further meanwhile.
            let lower = lower.into_iter().map(|(hold, _)| self.raise_fence(hold, highest));
            join_all(lower).await.into_iter().collect::<Result<Vec<()>, _>>()?;
        }
    }

    /// Gives a hold this token, which is above its own one.
    async fn raise_fence(&self, hold: &Hold, token: u64) -> Result<(), LockError> {
        let timeout = self.holder_timeout();
        let mut refusal = None;
        let asking = self.ask_for_fence(hold, token, &timeout, &mut refusal);
        let asked = timeout.limit(asking).await;
        in_time(asked, (hold, &timeout), refusal, "the store has not answered yet")?;
        hold.raise_fence(token);
        hold.loss().map_or(Ok(()), Err)
    }

    /// The longest time for which a request of a holder is repeated. Even with a shorter wait, the store has the time for one answer.
    pub(super) fn holder_timeout(&self) -> Timeout {
        Timeout::new(match self.config().wait {
            Wait::For(wait) => Wait::For(wait.max(self.config().response_timeout)),
            Wait::Forever => Wait::Forever,
        })
    }

    async fn ask_for_fence(
        &self,
        hold: &Hold,
        at_least: u64,
        timeout: &Timeout,
        refusal: &mut Option<String>,
    ) -> Result<u64, LockError> {
        tokio::select! {
            fence = self.ask_while_held(hold, at_least, timeout, refusal) => fence,
            reason = hold.lost() => Err(hold.lease().lost_to(reason)),
        }
    }

    async fn ask_while_held(
        &self,
        hold: &Hold,
        at_least: u64,
        timeout: &Timeout,
        refusal: &mut Option<String>,
    ) -> Result<u64, LockError> {
        let locked = hold.lease().locked();
        locked.store.require(Extension::Tokens).map_err(|error| error.about(&locked.key))?;
        let fence = || locked.store.fence(locked.resource(), locked.owner, at_least);
        let outcome = |fenced| match fenced {
            Fenced::With(fence) => Ok(Ok(fence)),
            Fenced::Refused(cause) => Ok(Err(cause)),
            Fenced::Gone => Err(LostReason::Gone),
            Fenced::Taken => Err(LostReason::Taken),
        };
        let issued = self.repeat_while_held(hold, timeout, refusal, (fence, outcome)).await?;
        issued.map_err(|cause| unavailable(hold.lease(), timeout, cause))
    }

    /// Sends a request about a hold until the store answers it, or the timeout ends. Ends the hold if
    /// the answer is that it was lost.
    pub(super) async fn repeat_while_held<'s, A: Unpin, T>(
        &self,
        hold: &Hold,
        timeout: &Timeout,
        refusal: &mut Option<String>,
        (request, outcome): (
            impl Fn() -> MaybeReady<'s, Result<A, StoreError>>,
            impl Fn(A) -> Result<T, LostReason>,
        ),
    ) -> Result<T, LockError> {
        let mut backoff = Backoff::new(PAUSES.0, PAUSES.1);
        let lease = hold.lease();
        loop {
            if let Some(lost) = hold.loss() {
                return Err(lost);
            }
            match request().await.map(&outcome) {
                Ok(Ok(done)) => return Ok(done),
                Ok(Err(reason)) => return Err(self.end_lost(hold, reason)),
                Err(StoreError::Denied(cause)) => return Err(LockError::denied(cause)),
                Err(StoreError::Config { option, problem }) => {
                    return Err(LockError::config(option, problem));
                }
                Err(StoreError::WrongFormat { key, expected, found }) => {
                    return Err(self.wrong_format(key, expected, found));
                }
                Err(StoreError::Refused(cause) | StoreError::Unknown(cause)) => {
                    let pause = backoff.pause();
                    if timeout.ends_within(pause) {
                        return Err(unavailable(lease, timeout, cause));
                    }
                    *refusal = Some(cause);
                    time::sleep(pause).await;
                }
            }
        }
    }
}

/// The result of a request about a hold, if there was one before the timeout. Otherwise the error has
/// the last refusal, or else says what is `missing`.
pub(super) fn in_time<T>(
    asked: Option<Result<T, LockError>>,
    (hold, timeout): (&Hold, &Timeout),
    refusal: Option<String>,
    missing: &str,
) -> Result<T, LockError> {
    let cause = || refusal.unwrap_or_else(|| missing.to_owned());
    asked.unwrap_or_else(|| Err(unavailable(hold.lease(), timeout, cause())))
}

fn unavailable(lease: &Arc<Lease>, timeout: &Timeout, cause: String) -> LockError {
    let key = Some(lease.key().as_ref().to_owned());
    LockError::unavailable(key, timeout.elapsed(), cause)
}

//! Fencing tokens.

use super::fixture::{CheckedStore, Fixture, LONG};
use crate::store::contract::{Extension, Fenced};

const GRANTS: usize = 10;

/// The tokens of the grants of a key rise, and are no less than what is asked for. Checks nothing if the store issues none.
///
/// # Panics
///
/// If the store breaks its contract.
pub async fn tokens_rise(one: CheckedStore, two: CheckedStore) {
    let (fixture, one, two) = (Fixture::new(), one.connect().await, two.connect().await);
    if !one.locks.has(Extension::Tokens) {
        return;
    }
    let mut last = None;
    for grant in 0..GRANTS {
        let (locks, owner) = ([&one, &two][grant % 2], grant % 2);
        let delivered = fixture.acquire(locks, owner, LONG).await;
        let fence =
            async |at_least| locks.fence(&fixture.key, fixture.owners[owner], at_least).await;
        let token = match delivered {
            Some(token) => token,
            None => match fence(0).await {
                Ok(Fenced::With(token)) => {
                    let wanted = token + 1000;
                    match fence(wanted).await {
                        Ok(Fenced::With(token)) if token >= wanted => token,
                        other => panic!("a token of at least {wanted}: {other:?}"),
                    }
                }
                other => panic!("a token for the owner: {other:?}"),
            },
        };
        assert!(last < Some(token), "the token {token} comes after {last:?}");
        last = Some(token);
        fixture.free(locks, owner).await;
    }
}

/// Only the owner gets a token. Checks nothing if the store issues none.
///
/// # Panics
///
/// If the store breaks its contract.
pub async fn tokens_are_for_the_owner_only(store: CheckedStore) {
    let (fixture, locks) = (Fixture::new(), store.connect().await);
    let fence = async |owner: usize| locks.fence(&fixture.key, fixture.owners[owner], 0).await;
    if !locks.locks.has(Extension::Tokens) {
        return;
    }
    assert_eq!(fence(0).await, Ok(Fenced::Gone), "nobody has the key");
    fixture.acquire(&locks, 0, LONG).await;
    assert_eq!(fence(1).await, Ok(Fenced::Taken), "another owner has the key");
    fixture.free(&locks, 0).await;
    assert_eq!(fence(0).await, Ok(Fenced::Gone), "the key was released");
}

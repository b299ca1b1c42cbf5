//! Fencing tokens.

use super::fixture::{Fixture, LONG};
use crate::store::StoreError;
use crate::store::{FencingOutcome, Store};

const GRANTS: usize = 10;

/// The tokens of the grants of a key rise, and are no less than what is asked for. Checks nothing if the store issues none.
///
/// # Panics
///
/// If the store breaks its contract.
pub async fn tokens_rise<S: Store>(one: S, two: S) {
    let fixture = Fixture::new(&[&one, &two]).await;
    let mut last = None;
    for grant in 0..GRANTS {
        let (store, owner) = ([&one, &two][grant % 2], grant % 2);
        let delivered = fixture.acquire(store, owner, LONG).await;
        let token = match delivered {
            Some(token) => token,
            None => match store.fence(fixture.fence(owner)).await {
                Ok(FencingOutcome::Token(token)) => {
                    let wanted = token + 1000;
                    match store.fence(fixture.fence(owner).at_least(wanted)).await {
                        Ok(FencingOutcome::Token(token)) if token >= wanted => token,
                        other => panic!("a token of at least {wanted}: {other:?}"),
                    }
                }
                Err(StoreError::Config { .. }) if last.is_none() => {
                    return fixture.free(store, owner).await;
                }
                other => panic!("a token for the owner: {other:?}"),
            },
        };
        assert!(last < Some(token), "the token {token} comes after {last:?}");
        last = Some(token);
        fixture.free(store, owner).await;
    }
}

/// Only the owner gets a token. Checks nothing if the store issues none.
///
/// # Panics
///
/// If the store breaks its contract.
pub async fn tokens_are_for_the_owner_only<S: Store>(store: &S) {
    let fixture = Fixture::new(&[store]).await;
    match store.fence(fixture.fence(0)).await {
        Err(StoreError::Config { .. }) => return,
        issued => assert_eq!(issued, Ok(FencingOutcome::Gone), "nobody has the key"),
    }
    fixture.acquire(store, 0, LONG).await;
    let issued = store.fence(fixture.fence(1)).await;
    assert_eq!(issued, Ok(FencingOutcome::Taken), "another owner has the key");
    fixture.free(store, 0).await;
    let issued = store.fence(fixture.fence(0)).await;
    assert_eq!(issued, Ok(FencingOutcome::Gone), "the key was released");
}

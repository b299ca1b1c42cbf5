//! What the holders of keys announce.

use super::fixture::{CheckedStore, Fixture, LONG};
use crate::store::announcements::{Announced, Announcement};
use crate::store::contract::Extension;

/// An announcement counts as long as its owner has the key. Checks nothing if the store has no announcements.
///
/// # Panics
///
/// If the store breaks its contract.
pub async fn an_announcement_ends_with_its_hold(store: CheckedStore) {
    let (fixture, locks) = (Fixture::new(), store.connect().await);
    if !locks.locks.has(Extension::Announcements) {
        return;
    }
    let announce = async |owner: usize, text| {
        let (key, owner) = (&*fixture.key, fixture.owners[owner]);
        let announcement = Announcement { key, owner, text, keep: LONG };
        locks.locks.announce(announcement).await.expect("an answer")
    };
    let announced = async || {
        let announced = locks.locks.announced(&fixture.key).await.expect("an answer");
        announced.map(|(text, _)| text)
    };
    assert_eq!(announce(0, "1 nobody").await, Announced::Gone, "nobody has the key");
    fixture.acquire(&locks, 0, LONG).await;
    assert_eq!(announced().await, None, "nothing was announced");
    assert_eq!(announce(1, "1 other").await, Announced::Taken, "another owner has the key");
    for text in ["1 first", "2 the second \u{1f512}"] {
        assert_eq!(announce(0, text).await, Announced::Done);
        assert_eq!(announced().await.as_deref(), Some(text));
    }
    fixture.free(&locks, 0).await;
    assert_eq!(announced().await, None, "the hold has ended");
    fixture.acquire(&locks, 1, LONG).await;
    assert_eq!(announced().await, None, "the next hold has announced nothing");
    fixture.free(&locks, 1).await;
}

//! The other kinds of locks that Redisson has.

use lock_runtime::{
    Holder, HolderKind, Lock, LockClient, LockError, LockGuard, LostReason, WireFormat,
};
use lock_tests::within;

use crate::clients::REDISSON;
use crate::fixture::{InteropFixture, LEASE, WOKEN};

/// Kinds that are a hash with the name of the lock.
const HASHES: [&str; 5] = ["read", "write", "fair", "fenced", "spin"];

/// What this library says of such a hash, unless it is a lock in the format `Redisson`.
fn found(kind: &str) -> &'static str {
    if matches!(kind, "read" | "write") { "Redisson read-write lock" } else { "hash" }
}

fn other_kinds_of_this_library(client: &LockClient, key: &str) -> [Lock; 3] {
    let (read_write, semaphore) = (client.read_write(key), client.semaphore(key, 2));
    [read_write.read(), read_write.write(), semaphore.permits(1)]
        .map(|lock| lock.wire_format(WireFormat::Token))
}

/// Kinds that are a number with the name of the lock.
const NUMBERS: [&str; 2] = ["semaphore", "permits"];

#[tokio::test]
async fn other_kinds_of_redisson_fail_at_a_lock_in_the_format_token() {
    let fixture = InteropFixture::with(&REDISSON).await;
    let mut peer = fixture.peer().await;
    let lock = fixture.lock().wire_format(WireFormat::Token).lease(LEASE * 60);
    let guard = lock.acquire().await.expect("free");
    let before = fixture.value();
    for kind in HASHES {
        let reply = peer.ask(&format!("acquire-kind {kind} k")).await;
        assert!(reply.starts_with("error") && reply.contains("WRONGTYPE"), "{kind}: {reply}");
    }
    for kind in NUMBERS {
        let reply = peer.ask(&format!("acquire-kind {kind} k")).await;
        assert!(reply.starts_with("error"), "{kind}: {reply}");
    }
    assert_eq!(fixture.value(), before);
    guard.release().await.expect("held");
}

#[tokio::test]
async fn locks_in_the_format_token_are_refused_at_other_kinds_of_redisson() {
    let fixture = InteropFixture::with(&REDISSON).await;
    let mut peer = fixture.peer().await;
    let token = |kind: &str| fixture.lock_client.lock(kind).wire_format(WireFormat::Token);
    for kind in HASHES {
        peer.tell(&format!("acquire-kind {kind} {kind}")).await;
        match token(kind).acquire().await {
            Err(LockError::WrongFormat { key, found, .. }) => {
                assert_eq!((&*key, &*found), (kind, self::found(kind)));
            }
            other => panic!("{kind}: {other:?}"),
        }
    }
    for kind in NUMBERS {
        peer.tell(&format!("acquire-kind {kind} {kind}")).await;
        // Other clients have numbers as owners, so this is the lock of somebody who sets no expiry.
        match token(kind).wait(LEASE / 4).acquire().await {
            Err(LockError::Busy { holder: Holder { kind: HolderKind::NoExpiry, .. }, .. }) => {}
            other => panic!("{kind}: {other:?}"),
        }
        let value: u64 = fixture.server.command(&["GET", kind]);
        assert_eq!(value, 2, "{kind} was not changed");
    }
}

#[tokio::test]
async fn all_kinds_of_redisson_fail_at_read_write_locks_and_semaphores_of_this_library() {
    let fixture = InteropFixture::with(&REDISSON).await;
    let mut peer = fixture.peer().await;
    for lock in other_kinds_of_this_library(&fixture.lock_client, "k") {
        let guard = lock.lease(LEASE * 60).acquire().await.expect("free");
        let dump = || fixture.server.command::<Vec<u8>>(&["DUMP", "k"]);
        let before = dump();
        for kind in HASHES.into_iter().chain(NUMBERS) {
            let reply = peer.ask(&format!("acquire-kind {kind} k")).await;
            assert!(reply.starts_with("error") && reply.contains("WRONGTYPE"), "{kind}: {reply}");
        }
        let reply = peer.ask("acquire k 0 0").await;
        assert!(reply.starts_with("error") && reply.contains("WRONGTYPE"), "plain: {reply}");
        assert_eq!(dump(), before);
        guard.release().await.expect("held");
    }
}

#[tokio::test]
async fn read_write_locks_and_semaphores_are_refused_at_all_kinds_of_redisson() {
    let fixture = InteropFixture::with(&REDISSON).await;
    let mut peer = fixture.peer().await;
    for kind in HASHES.into_iter().chain(NUMBERS) {
        peer.tell(&format!("acquire-kind {kind} {kind}")).await;
        let expected = if NUMBERS.contains(&kind) { "string" } else { self::found(kind) };
        let before: Vec<u8> = fixture.server.command(&["DUMP", kind]);
        for lock in other_kinds_of_this_library(&fixture.lock_client, kind) {
            match lock.acquire().await {
                Err(LockError::WrongFormat { found, .. }) => assert_eq!(found, expected, "{kind}"),
                other => panic!("{kind}: {other:?}"),
            }
        }
        assert_eq!(fixture.server.command::<Vec<u8>>(&["DUMP", kind]), before, "{kind}");
    }
}

#[tokio::test]
async fn locks_in_the_format_redisson_are_shared_with_no_other_kind_than_the_plain_lock() {
    let fixture = InteropFixture::with(&REDISSON).await;
    let mut peer = fixture.peer().await;
    for kind in HASHES {
        peer.tell(&format!("acquire-kind {kind} {kind}")).await;
        let outcome = fixture.lock_client.lock(kind).wait(LEASE / 4).acquire().await;
        let is_expected = match &outcome {
            Err(LockError::WrongFormat { found, .. }) => {
                matches!(kind, "read" | "write") && found == "Redisson read-write lock"
            }
            // They exclude plain locks, and so this library.
            Err(LockError::Busy { .. }) => matches!(kind, "fair" | "fenced" | "spin"),
            _ => false,
        };
        assert!(is_expected, "{kind}: {outcome:?}");
    }
    for kind in NUMBERS {
        peer.tell(&format!("acquire-kind {kind} {kind}")).await;
        match fixture.lock_client.lock(kind).acquire().await {
            Err(LockError::WrongFormat { found, .. }) => assert_eq!(found, "string"),
            other => panic!("{kind}: {other:?}"),
        }
    }
}

/// Holds the lock with a body, which is dropped when the lock is lost.
async fn loss(guard: &LockGuard) -> LostReason {
    within(WOKEN, guard.lost()).await.expect("the loss is noticed")
}

/// Redisson grants it, which no other client can prevent. This library notices it, and its body is
/// dropped.
#[tokio::test]
async fn a_read_write_lock_of_redisson_is_granted_although_this_library_has_the_lock() {
    for kind in ["read", "write"] {
        let fixture = InteropFixture::with(&REDISSON).await;
        let mut peer = fixture.peer().await;
        let guard = fixture.lock().acquire().await.expect("free");
        assert_eq!(peer.ask(&format!("acquire-kind {kind} k")).await, "ok", "{kind}");
        assert_eq!(loss(&guard).await, LostReason::Taken, "{kind}");
        drop(guard);
        // The release has not touched the lock of the peer.
        assert!(fixture.server.exists("k"), "{kind}");
        peer.tell(&format!("release-kind {kind} k")).await;
    }
}

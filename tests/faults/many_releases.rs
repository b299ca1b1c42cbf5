//! Releases that begin at the same time.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use lock_runtime::{Identity, LockClient, LockError, LockGuard, LostReason};
use lock_tests::support::outcomes_of;
use lock_tests::{RedisServer, within};

use crate::support::{LEASE, until, until_idle};

/// Long enough that nothing is renewed, and no request times out, in a test.
const LONG_LEASE: Duration = LEASE.saturating_mul(60);

const LOCKS: usize = 100;

async fn client(url: &str) -> LockClient {
    // Without a presence, so that nothing else is sent.
    let builder = LockClient::builder().url(url).lease(LONG_LEASE).wait(LONG_LEASE);
    builder.identity(Identity::none()).connect().await.expect("up")
}

fn key(number: usize) -> String {
    format!("own:{number}")
}

async fn hold(client: &LockClient, count: usize) -> Vec<LockGuard> {
    let mut guards = Vec::new();
    for number in 0..count {
        guards.push(client.lock(key(number)).acquire().await.expect("free"));
    }
    guards
}

/// The outcomes of releases that begin at the same time.
async fn release_all(guards: Vec<LockGuard>) -> Vec<Result<(), LockError>> {
    outcomes_of(guards.into_iter().map(|guard| tokio::spawn(guard.release())).collect()).await
}

#[tokio::test]
async fn releases_at_the_same_time_have_their_own_outcomes() {
    const GONE: usize = 20;
    const TAKEN: usize = 40;
    const OTHER_KIND: usize = 60;
    const WANTED: usize = 80;
    let server = RedisServer::plain(&[]);
    let (one, two) = (client(&server.url()).await, client(&server.url()).await);
    assert_eq!(server.keys(), Vec::<String>::new());
    let guards = hold(&one, LOCKS).await;
    server.tell(&["DEL", &key(GONE)]);
    server.tell(&["SET", &key(TAKEN), "another owner"]);
    server.tell(&["DEL", &key(OTHER_KIND)]);
    server.tell(&["HSET", &key(OTHER_KIND), "field", "value"]);
    let waiting = tokio::spawn(two.lock(key(WANTED)).acquire());
    assert!(until(LONG_LEASE, || server.queued(&key(WANTED)) == 1).await.is_some(), "it waits");
    let outcomes = release_all(guards).await;
    for (number, outcome) in outcomes.into_iter().enumerate() {
        let lost = match outcome {
            Ok(()) => None,
            Err(LockError::Lost { reason, .. }) => Some(reason),
            Err(error) => panic!("{number}: {error}"),
        };
        let expected = match number {
            GONE => Some(LostReason::Gone),
            TAKEN | OTHER_KIND => Some(LostReason::Taken),
            _ => None,
        };
        assert_eq!(lost, expected, "{number}");
    }
    let given = waiting.await.expect("no panic").expect("the lock was given to it");
    let mut keys = server.keys();
    // On a busy machine, the lock was held for so long that its release has left a gap in the queue.
    keys.retain(|key| !key.starts_with("lock_queue:"));
    keys.sort();
    assert_eq!(keys, [key(TAKEN), key(OTHER_KIND), key(WANTED)]);
    given.release().await.expect("a release");
}

#[tokio::test]
async fn a_release_that_is_denied_denies_no_other_one() {
    let server = RedisServer::plain(&[]);
    server.tell(&["ACL", "SETUSER", "locker", "on", ">password", "~*", "&*", "+@all"]);
    let client = client(&server.url_as("locker:password")).await;
    let mut guards = hold(&client, LOCKS).await;
    guards[LOCKS / 2] = client.lock("other").acquire().await.expect("free");
    server.tell(&["ACL", "SETUSER", "locker", "resetkeys", "~own:*", "~lock_queue:*"]);
    for (number, outcome) in release_all(guards).await.into_iter().enumerate() {
        match outcome {
            Ok(()) => assert_ne!(number, LOCKS / 2),
            Err(LockError::Denied { .. }) => assert_eq!(number, LOCKS / 2, "denied with others"),
            Err(error) => panic!("{number}: {error}"),
        }
    }
    server.tell(&["ACL", "SETUSER", "locker", "~*"]);
    until_idle(&client, LONG_LEASE).await;
}

type BegunRelease = Pin<Box<dyn Future<Output = Result<(), LockError>> + Send>>;

/// Begins releases, and polls each once.
fn begin(guards: Vec<LockGuard>) -> Vec<BegunRelease> {
    let begun = guards.into_iter().map(|guard| {
        let mut release: BegunRelease = Box::pin(guard.release());
        let polled = release.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        assert!(matches!(polled, Poll::Pending), "it needs an answer");
        release
    });
    begun.collect()
}

#[tokio::test]
async fn a_release_that_is_not_polled_or_dropped_delays_no_other_one() {
    let server = RedisServer::plain(&[]);
    let client = client(&server.url()).await;
    for drops in [false, true] {
        let mut guards = hold(&client, LOCKS).await;
        let others = guards.split_off(LOCKS / 2);
        let mut begun = begin(guards);
        if drops {
            begun.clear();
        }
        let released = within(LONG_LEASE / 6, release_all(others)).await.expect("in time");
        assert!(released.iter().all(Result::is_ok));
        let is_free = || server.keys().is_empty();
        assert!(until(LONG_LEASE / 6, is_free).await.is_some(), "a key is left: {drops}");
        drop(begun);
        until_idle(&client, LONG_LEASE).await;
    }
}

/// Begins releases on a new runtime, and ends that.
fn begin_and_end(client: &LockClient) -> Vec<BegunRelease> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.expect("a runtime");
    runtime.block_on(async { begin(hold(client, LOCKS).await) })
}

#[tokio::test]
async fn releases_of_a_runtime_that_ends_are_made_in_the_background() {
    let server = RedisServer::plain(&[]);
    let client = client(&server.url()).await;
    let begun = std::thread::scope(|scope| {
        scope.spawn(|| begin_and_end(&client)).join().expect("no panic")
    });
    for release in begun {
        let outcome = within(LONG_LEASE, release).await.expect("it ends");
        assert!(matches!(outcome, Err(LockError::Unavailable { .. })), "{outcome:?}");
    }
    let is_free = || server.keys().is_empty();
    assert!(until(LONG_LEASE / 6, is_free).await.is_some(), "a key is left");
    until_idle(&client, LONG_LEASE).await;
    assert_eq!(client.stats().lost, 0);
}

#[tokio::test]
async fn a_release_that_is_awaited_outside_of_a_runtime_is_an_error_and_is_made_in_the_background()
{
    let server = RedisServer::plain(&[]);
    let client = client(&server.url()).await;
    let mut begun: Vec<BegunRelease> = Vec::new();
    for guard in hold(&client, LOCKS).await {
        begun.push(Box::pin(guard.release()));
    }
    let outcomes = std::thread::spawn(move || {
        let mut cx = Context::from_waker(Waker::noop());
        begun.into_iter().map(|mut one| one.as_mut().poll(&mut cx)).collect::<Vec<_>>()
    });
    for outcome in outcomes.join().expect("no panic") {
        assert!(matches!(outcome, Poll::Ready(Err(_)) | Poll::Pending), "{outcome:?}");
    }
    let is_free = || server.keys().is_empty();
    assert!(until(LONG_LEASE / 6, is_free).await.is_some(), "a key is left");
    until_idle(&client, LONG_LEASE).await;
}

//! The stores that make up a quorum.

use std::sync::Mutex;

use super::*;
use lock_core::error::LockError;
use lock_core::store::profile::StoreProfile;

/// A store with this profile.
struct Described(Arc<dyn LockStore>, Arc<Mutex<StoreProfile>>);

impl Backend for Described {
    fn adopt(&self, _: &BackgroundRuntimes, _: HoldReports) {}

    fn profile(&self) -> lock_core::store::contract::StoreAnswer<'_, StoreProfile> {
        lock_core::maybe_ready::MaybeReady::ready(Ok(self.1.lock().expect("test").clone()))
    }

    fn handle(&self, _: Layout) -> Result<Arc<dyn LockStore>, StoreError> {
        Ok(Arc::clone(&self.0))
    }
}

fn described(profiles: [StoreProfile; 3]) -> QuorumBackend {
    changing(&profiles.map(|profile| Arc::new(Mutex::new(profile))))
}

/// Stores whose profiles may change.
fn changing(profiles: &[Arc<Mutex<StoreProfile>>; 3]) -> QuorumBackend {
    let member = |(number, profile)| {
        let store = MemoryBackend::new().locks(Layout::Vote);
        (
            Arc::new(Described(store, Arc::clone(profile))) as Arc<dyn Backend>,
            format!("store {number}"),
        )
    };
    quorum_of(profiles.iter().enumerate().map(member).collect())
}

fn quorum_of(members: Vec<(Arc<dyn Backend>, String)>) -> QuorumBackend {
    QuorumBackend::new(members, server_timeout(LEASE)).expect("they have votes")
}

fn profile(server: &str) -> StoreProfile {
    let version = Some("redis 8".to_owned());
    StoreProfile { servers: vec![server.to_owned()], is_replica: false, version }
}

#[tokio::test]
async fn stores_that_are_not_independent_are_refused() {
    let [a, b, c] = ["a", "b", "c"].map(profile);
    let replica = StoreProfile { is_replica: true, ..c.clone() };
    let older = StoreProfile { version: Some("redis 7".to_owned()), ..c.clone() };
    let overlapping = StoreProfile { servers: vec!["c".into(), "b".into()], ..c.clone() };
    described([a.clone(), b.clone(), c]).connect().await.expect("independent");
    described(Default::default()).connect().await.expect("nothing is known");
    for (third, words) in [
        (a.clone(), "store 2 and store 0 are the same server"),
        (overlapping, "store 2 and store 1 are the same server"),
        (replica, "store 2 is a replica"),
        (older, "store 2 runs redis 7, and store 0 runs redis 8"),
    ] {
        match described([a.clone(), b.clone(), third]).connect().await {
            Err(LockError::Config { option: "quorum", problem, .. }) => {
                assert!(problem.contains(words), "{problem}");
            }
            other => panic!("the same server votes twice: {other:?}"),
        }
    }
}

/// A client that connects later checks the stores before their first votes.
#[tokio::test]
async fn a_store_that_is_not_independent_has_no_vote() {
    let [a, b] = ["a", "b"].map(profile);
    let quorum = described([a.clone(), a.clone(), b]);
    let locks = plain_locks(&quorum);
    assert!(is_granted(&claim(&*locks, owner(), LEASE).await), "two stores of three");
    let quorum = described([a.clone(), a.clone(), a]);
    let locks = plain_locks(&quorum);
    let claimed = claim(&*locks, owner(), LEASE).await;
    let is_refused = matches!(claimed, Err(StoreError::Config { option: "quorum", .. }));
    assert!(is_refused, "one server is a majority: {claimed:?}");
}

/// The name of a server may lead to another one at any time.
#[tokio::test]
async fn a_server_that_takes_the_place_of_another_one_votes_after_a_check() {
    let profiles = ["a", "b", "c"].map(|name| Arc::new(Mutex::new(profile(name))));
    let stores =
        [0; 3].map(|_| Arc::new(FaultyStore::new(MemoryBackend::new().locks(Layout::Vote))));
    let members = stores.iter().zip(&profiles).enumerate().map(|(number, (store, profile))| {
        let described = Described(Arc::clone(store) as Arc<dyn LockStore>, Arc::clone(profile));
        (Arc::new(described) as Arc<dyn Backend>, format!("store {number}"))
    });
    let quorum = quorum_of(members.collect());
    let locks = plain_locks(&quorum);
    let first = owner();
    assert!(is_granted(&claim(&*locks, first, LEASE).await), "three servers");
    locks.release(release(first), Lane::Caller).await.expect("held");
    // The second name leads to the first server, and the third server does not grant the lock.
    *profiles[1].lock().expect("test") = profile("a");
    stores[1].reconnect();
    stores[2].next_acquires([Fault::Refuse]);
    let claimed = claim(&*locks, owner(), LEASE).await;
    assert!(!is_granted(&claimed), "a server has voted twice: {claimed:?}");
}

#[tokio::test]
async fn a_store_that_was_refused_votes_when_another_one_has_taken_its_place() {
    let profiles = ["a", "a", "a"].map(|name| Arc::new(Mutex::new(profile(name))));
    let quorum = changing(&profiles);
    let locks = plain_locks(&quorum);
    assert!(!is_granted(&claim(&*locks, owner(), LEASE).await), "one server votes three times");
    *profiles[1].lock().expect("test") = profile("b");
    let end = Instant::now() + LEASE * 10;
    while !is_granted(&claim(&*locks, owner(), LEASE).await) {
        assert!(Instant::now() < end, "the other server is not admitted");
        sleep(LEASE / 100).await;
    }
}

/// They are upgraded one after the other, while clients stay connected.
#[tokio::test]
async fn stores_of_different_versions_vote_for_clients_that_are_connected() {
    let newer = StoreProfile { version: Some("redis 9".to_owned()), ..profile("c") };
    let quorum =
        described([profile("a"), newer, StoreProfile { is_replica: true, ..profile("b") }]);
    let locks = plain_locks(&quorum);
    assert!(is_granted(&claim(&*locks, owner(), LEASE).await), "two servers of three");
    assert!(quorum.connect().await.is_err(), "a client that connects");
}

#[tokio::test]
async fn other_kinds_of_locks_are_errors_that_say_so() {
    let quorum = FaultyQuorum::of(3);
    for (layout, option) in [(Layout::ReadWrite, "mode"), (Layout::Semaphore, "permits")] {
        match quorum.backend.handle(layout).map(drop) {
            Err(StoreError::Config { option: named, problem }) => {
                assert_eq!(named, option);
                assert!(problem.contains("a quorum has no"), "{problem}");
            }
            other => panic!("{other:?}"),
        }
    }
}

//! Requests that go together, and what a release knows of those who wait.

use lock_runtime::store::{
    Claim, EtcdStore, Lane, Layout, OpenStore, OwnerId, Release, Released, RequestTimeout,
    SendTrace, Settings,
};
use lock_runtime::{LockClient, LockError, LockGuard, LostReason};
use lock_tests::EtcdCluster;
use lock_tests::support::{LEASE, outcomes_of, until, until_idle};
use tokio::task::JoinHandle;

use crate::inputs::with_users;
use crate::support::{client, patient_client, request_counts};

/// More than are sent one by one, and more than one transaction has.
const CALLS: usize = 100;

/// The outcomes of calls that begin at the same time.
async fn try_all(
    client: &LockClient,
    keys: &[String],
) -> Vec<Result<Option<LockGuard>, LockError>> {
    let calls = keys.iter().map(|key| tokio::spawn(client.lock(key.as_str()).try_acquire()));
    outcomes_of(calls.collect()).await
}

/// The outcomes of these calls, which begin while etcd does not answer, and the number of transactions for them.
async fn while_frozen<T: Send + 'static>(
    etcd: &EtcdCluster,
    client: &LockClient,
    calls: impl FnOnce() -> Vec<JoinHandle<T>>,
) -> (Vec<T>, u64) {
    let before = request_counts(etcd).transactions;
    // So that the lease of the client is fresh.
    client.lock("own").acquire().await.expect("a lock").release().await.expect("a release");
    etcd.freeze(0);
    let calls = calls();
    tokio::time::sleep(LEASE / 5).await;
    etcd.thaw(0);
    let outcomes = outcomes_of(calls).await;
    (outcomes, request_counts(etcd).transactions - before)
}

fn keys() -> Vec<String> {
    (0..CALLS).map(|number| format!("own:{number}")).collect()
}

#[tokio::test]
async fn calls_at_the_same_time_share_transactions_and_have_their_own_outcomes() {
    let etcd = EtcdCluster::single();
    let url = etcd.url();
    let connect = || patient_client(&url, LEASE * 30);
    let (one, two) = (connect().await, connect().await);
    let keys = keys();
    let taken: Vec<_> = keys.iter().step_by(3).cloned().collect();
    let others = try_all(&two, &taken).await;
    let calls = || keys.iter().map(|key| tokio::spawn(one.lock(key.as_str()).try_acquire()));
    let (outcomes, sent) = while_frozen(&etcd, &one, || calls().collect()).await;
    assert!(sent < CALLS as u64 / 2, "{sent} transactions for {CALLS} acquires");
    let mut guards = Vec::new();
    for (number, outcome) in outcomes.into_iter().enumerate() {
        let guard = outcome.expect("an answer");
        assert_eq!(guard.is_none(), number % 3 == 0, "{number}");
        guards.extend(guard);
    }
    let mut tokens = Vec::new();
    for guard in &guards {
        tokens.push(guard.fencing_token().await.expect("a token"));
    }
    for (guard, value) in guards.iter().zip(&tokens) {
        let printed = etcd.control(&["get", "--write-out=fields", guard.key()]);
        let revision = format!("\"ModRevision\" : {value}\n");
        assert!(printed.contains(&revision), "{printed} of {value}");
    }
    // The holders are told of these, and their releases find nothing.
    let gone: Vec<_> = guards.iter().step_by(5).map(|guard| guard.key().to_owned()).collect();
    for key in &gone {
        etcd.control(&["del", key]);
    }
    let names: Vec<_> = guards.iter().map(|guard| guard.key().to_owned()).collect();
    let releases = || guards.into_iter().map(|guard| tokio::spawn(guard.release()));
    let (outcomes, sent) = while_frozen(&etcd, &one, || releases().collect()).await;
    assert!(sent < names.len() as u64 / 2, "{sent} transactions for {} releases", names.len());
    for (key, outcome) in names.iter().zip(outcomes) {
        match outcome {
            Ok(()) => assert!(!gone.contains(key), "{key}"),
            Err(LockError::Lost { reason: LostReason::Gone, .. }) => {
                assert!(gone.contains(key), "{key}");
            }
            Err(error) => panic!("{key}: {error}"),
        }
    }
    drop(others);
    until_idle(&two, LEASE * 10).await;
    assert!(etcd.keys("").is_empty());
}

/// Versions of etcd do not check whether a user may make the parts of a transaction.
#[tokio::test]
async fn a_call_that_is_refused_refuses_no_other_one() {
    let etcd = with_users(&["--bcrypt-cost=4"]);
    let client = patient_client(&etcd.url_with("locks:geheim@"), LEASE * 30).await;
    let mut keys = keys();
    keys[CALLS / 2] = "other".to_owned();
    let calls = || keys.iter().map(|key| tokio::spawn(client.lock(key.as_str()).try_acquire()));
    let (outcomes, sent) = while_frozen(&etcd, &client, || calls().collect()).await;
    assert!(sent < CALLS as u64 * 2, "{sent} transactions");
    for (key, outcome) in keys.iter().zip(outcomes) {
        match outcome {
            Ok(Some(_)) => assert_ne!(key, "other", "granted without permission"),
            Err(LockError::Denied { .. }) => assert_eq!(key, "other"),
            other => panic!("{key}: {other:?}"),
        }
    }
}

/// The lease of a client is revoked while it makes calls: they are made again, with another lease.
#[tokio::test]
async fn calls_go_on_when_the_shared_lease_was_revoked() {
    let etcd = EtcdCluster::single();
    let client = patient_client(&etcd.url(), LEASE * 30).await;
    client.lock("k").acquire().await.expect("a lock").release().await.expect("a release");
    for lease in etcd.leases() {
        etcd.control(&["lease", "revoke", &lease]);
    }
    for outcome in try_all(&client, &keys()).await {
        drop(outcome.expect("an answer").expect("a free lock"));
    }
}

/// The name of the mark of a key.
fn mark(key: &str) -> String {
    format!("{key}\u{fffd}/wanted")
}

#[tokio::test]
async fn a_release_knows_whether_others_wait() {
    let etcd = EtcdCluster::single();
    let timeout = LEASE * 10;
    let store = EtcdStore::new(&etcd.url()).expect("a URL");
    let client = store.open(&Settings::new(LEASE * 30, timeout)).expect("a client");
    let locks = client.handle(Layout::TOKEN).expect("plain locks");
    let [one, two] = [(), ()].map(|()| OwnerId::new().expect("randomness"));
    let acquire = async |owner, renewed, fresh| {
        let (claim, trace) = (Claim::exclusive("k", owner, LEASE * 10), SendTrace::default());
        let claim = Claim { renewed, fresh, ..claim };
        let acquired = locks.try_acquire(claim, RequestTimeout::of(timeout), &trace).await;
        acquired.expect("an answer").is_grant()
    };
    let release = async |owner| locks.release(Release::exclusive("k", owner), Lane::Caller).await;
    for renewed in [true, false] {
        assert!(acquire(one, renewed, true).await);
        assert!(!acquire(two, renewed, true).await);
        assert_eq!(release(one).await, Ok(Released::Freed { woken: 0 }));
        assert!(acquire(one, renewed, false).await);
        assert!(!acquire(two, renewed, false).await);
        assert!(!acquire(two, renewed, false).await, "it is marked once");
        assert_eq!(etcd.keys("").len(), 2, "the key and its mark: {:?}", etcd.keys(""));
        assert_eq!(release(one).await, Ok(Released::Freed { woken: 1 }));
        assert!(acquire(two, renewed, false).await);
        assert_eq!(release(two).await, Ok(Released::Freed { woken: 0 }));
        assert!(etcd.keys("").is_empty());
    }
}

#[tokio::test]
async fn a_wait_that_is_given_up_leaves_a_mark_until_the_release() {
    let etcd = EtcdCluster::single();
    let (one, two) = (client(&etcd.url()).await, client(&etcd.url()).await);
    let is_marked = || etcd.keys("k").contains(&mark("k"));
    let held = one.lock("k").acquire().await.expect("a lock");
    assert!(two.lock("k").try_acquire().await.expect("an answer").is_none());
    assert!(!is_marked(), "a try writes nothing");
    let waiting = tokio::spawn(two.lock("k").acquire());
    until(LEASE * 20, is_marked).await.expect("a waiting call marks the key");
    waiting.abort();
    waiting.await.map(drop).expect_err("aborted");
    assert!(is_marked());
    held.release().await.expect("a release");
    until(LEASE * 20, || etcd.keys("").is_empty()).await.expect("nothing is left");
}

/// The rest of the lease of a mark, in seconds.
fn rest_of_mark(etcd: &EtcdCluster, key: &str) -> u64 {
    let number_in = |text: &str, before: &str| {
        let (_, rest) = text.split_once(before).expect("etcdctl shows it");
        let digits: String = rest.chars().take_while(char::is_ascii_digit).collect();
        digits.parse::<u64>().expect("a number")
    };
    // The mark is the second one.
    let printed = etcd.control(&["get", "--prefix", "--write-out=fields", key]);
    let (_, of_mark) = printed.split_once("/wanted").expect("a mark");
    let lease = format!("{:x}", number_in(of_mark, "\"Lease\" : "));
    number_in(&etcd.control(&["lease", "timetolive", &lease]), "remaining(")
}

/// So it ends also if nobody releases the lock.
#[tokio::test]
async fn no_client_extends_the_lease_of_a_mark() {
    let etcd = EtcdCluster::single();
    let (one, two) = (client(&etcd.url()).await, client(&etcd.url()).await);
    let _held = one.lock("k").acquire().await.expect("a lock");
    let waiting = tokio::spawn(two.lock("k").acquire());
    until(LEASE * 20, || etcd.keys("k").contains(&mark("k"))).await.expect("a mark");
    let rest = rest_of_mark(&etcd, "k");
    assert!((31..=60).contains(&rest), "{rest}");
    let began = std::time::Instant::now();
    let another = two.lock("another").acquire().await.expect("a lock");
    tokio::time::sleep(std::time::Duration::from_secs(3)).await;
    assert!(another.is_held(), "renewed with the shared lease");
    let passed = began.elapsed().as_secs();
    assert!(rest_of_mark(&etcd, "k") < rest, "after {passed} s");
    waiting.abort();
}

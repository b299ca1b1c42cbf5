//! Faults of leaders and candidates.

use lock_runtime::{LeaderInfo, LockClient};
use lock_tests::{Expected, Helper, Proxy, RedisServer, Toward, running_time, within};
use tokio::time::{Instant, sleep, timeout};

use crate::support::{FaultFixture, LEASE, client, client_with_lease, number, until};

/// The leader in the terms after `last`.
async fn leader_after(client: &LockClient, last: u64) -> LeaderInfo {
    let start = Instant::now();
    loop {
        let leader = client.leadership("k").leader().await.expect("the store is up");
        if let Some(leader) = leader.filter(|leader| leader.term > last) {
            return leader;
        }
        assert!(running_time(start) < LEASE * 10, "there is no leader");
        sleep(LEASE / 100).await;
    }
}

/// The position of the process with this leader's name.
fn position(candidates: &[Helper], leader: &LeaderInfo) -> usize {
    let is_leader = |helper: &Helper| leader.name.contains(&format!("pid {})", helper.id()));
    candidates.iter().position(is_leader).expect("one of the processes")
}

/// The leader and another candidate are killed with SIGKILL and replaced, or the leader is suspended for
/// longer than its lease.
#[tokio::test]
async fn there_is_never_more_than_one_leader_although_leaders_are_killed_and_suspended() {
    let mut fixture = FaultFixture::new().await;
    let client = client(&fixture.server.url()).await;
    let count = number("LOCK_LEADER_CANDIDATES", 4);
    let mut candidates: Vec<Helper> = (0..count).map(|_| fixture.candidate()).collect();
    let mut term = 0;
    for round in 0..number("LOCK_LEADER_ROUNDS", 5) {
        let leader = leader_after(&client, term).await;
        term = leader.term;
        let at = position(&candidates, &leader);
        sleep(LEASE * fastrand::u32(1..20) / 20).await;
        if round % 2 == 0 {
            for victim in [at, fastrand::usize(..count)] {
                fixture.kill(&mut candidates[victim]);
                candidates[victim] = fixture.candidate();
            }
        } else {
            candidates[at].freeze();
            sleep(LEASE * fastrand::u32(15..30) / 10).await;
            candidates[at].thaw();
        }
    }
    leader_after(&client, term).await;
    for candidate in &mut candidates {
        fixture.kill(candidate);
    }
    // A process may be suspended in the middle of a poll.
    fixture.assert_history(Expected { exclusion: true, no_stale_write: false });
}

#[tokio::test]
async fn a_leader_that_cannot_reach_the_server_is_replaced_after_its_body_was_dropped() {
    let server = RedisServer::start();
    let proxy = Proxy::to(server.port());
    let (cut, other) = (client_with_lease(&proxy.url(), LEASE).await, client(&server.url()).await);
    let (started, mut terms) = tokio::sync::mpsc::unbounded_channel();
    let leadership = cut.leadership("k");
    let leading = tokio::spawn(async move {
        let last = leadership.run(|term| {
            let started = started.clone();
            async move {
                let (end, ended) = tokio::sync::oneshot::channel::<()>();
                started.send((term, end)).expect("awaited");
                ended.await.expect("told to end");
            }
        });
        last.await
    });
    let (first, end) = terms.recv().await.expect("elected");
    proxy.partition();
    let leader = within(LEASE * 5, other.leadership("k").campaign()).await.expect("soon");
    let leader = leader.expect("elected");
    // Its body is not polled any more, and dropped as soon as its task runs.
    let is_dropped = until(LEASE / 2, || end.is_closed()).await.is_some();
    assert!(is_dropped, "the body of the former leader was dropped before");
    assert!(leader.term() > first);
    proxy.heal();
    sleep(LEASE).await;
    assert!(terms.try_recv().is_err(), "one leader at a time");
    leader.resign().await.expect("it led");
    let (again, end) = within(LEASE * 5, terms.recv()).await.expect("soon").expect("elected");
    assert!(again > first);
    end.send(()).expect("the body runs");
    assert_eq!(leading.await.expect("no panic"), Ok(()));
}

/// An observer waits while the server cannot be reached, and then says who leads.
#[tokio::test]
async fn an_observer_survives_an_outage() {
    let server = RedisServer::start();
    let proxy = Proxy::to(server.port());
    let far = client_with_lease(&proxy.url(), LEASE).await;
    let near = client_with_lease(&server.url(), LEASE * 20).await;
    let mut leaders = far.leadership("k").observe();
    assert_eq!(leaders.next().await, Ok(None));
    proxy.blackhole(Toward::Client);
    let leader = near.leadership("k").named("near").campaign().await.expect("no leader");
    let during = timeout(LEASE * 2, leaders.next()).await;
    assert!(during.is_err(), "it waits");
    proxy.heal();
    let seen = within(LEASE * 10, leaders.next()).await.expect("soon").expect("reachable");
    assert_eq!(seen.map(|leader| leader.term), Some(leader.term()));
    drop(leader);
    let gone = within(LEASE * 10, leaders.next()).await.expect("soon");
    assert_eq!(gone, Ok(None));
}

//! The wire format `Timestamp`, shared with clients that use `SETNX` and `GETSET` in separate
//! steps.

use std::time::Duration;

use lock_runtime::{Holder, HolderKind, LockError, LostReason, WireFormat};
use lock_tests::{RedisServer, running_time};
use tokio::time::{Instant, sleep};

use super::peers::{PeerLock, Stepwise};
use super::{FormatFixture, abandon_lock, builder, connect};
use crate::support::{LEASE, helper, milliseconds, until};

async fn fixture() -> FormatFixture {
    FormatFixture::new(WireFormat::Timestamp).await
}

/// A time in the past, as in the lock of a crashed client.
fn over() -> u64 {
    Stepwise::now() - 5
}

fn in_ten_leases() -> u64 {
    Stepwise::now() + u64::try_from((LEASE * 10).as_millis()).expect("short")
}

#[tokio::test]
async fn the_value_is_the_time_of_expiry() {
    let fixture = fixture().await;
    let before = Stepwise::now();
    let guard = fixture.one.lock("k").acquire().await.expect("free");
    let value: u64 = fixture.server.command(&["GET", "k"]);
    let lease = u64::try_from(LEASE.as_millis()).expect("short");
    assert!(
        (before + lease - 1..=Stepwise::now() + lease).contains(&value),
        "{value} from {before}"
    );
    let renewed = || fixture.server.command::<u64>(&["GET", "k"]) > value;
    assert!(until(LEASE, renewed).await.is_some(), "not renewed from {value} within a lease");
    guard.release().await.expect("held");
}

/// The key of an expired lock still exists, because other clients set no expiry on the key.
#[tokio::test]
async fn an_expired_lock_can_be_acquired() {
    let fixture = fixture().await;
    fixture.server.tell(&["SET", "k", &over().to_string()]);
    let guard =
        fixture.one.lock("k").try_acquire().await.expect("up").expect("the old lock has expired");
    assert!(fixture.server.pttl("k") > 0);
    guard.release().await.expect("held");
    fixture.server.tell(&["SET", "k", &format!("{}.25", over())]);
    let guard = fixture
        .one
        .lock("k")
        .try_acquire()
        .await
        .expect("up")
        .expect("a time with a fraction has also expired");
    guard.release().await.expect("held");
}

#[tokio::test]
async fn a_peer_whose_swap_comes_too_late_does_not_get_the_lock() {
    let fixture = fixture().await;
    let mut late = Stepwise::new(&fixture.server, "k");
    assert!(late.set_if_absent(over()));
    assert!(late.sees_it_expired());
    let guard = fixture.one.lock("k").acquire().await.expect("the old lock has expired");
    assert!(!late.swap(in_ten_leases()), "the new lock has not expired");
    // The key now contains the time of the late client, which does not hold the lock. The holder
    // cannot distinguish this from a lock of another client.
    match guard.lost().await {
        LostReason::Taken => {}
        other => panic!("{other:?}"),
    }
    assert!(fixture.two.lock("k").try_acquire().await.expect("up").is_none());
}

/// If the key expired between the second and the third step of a peer, the peer would not get the
/// lock, but its time would remain in the key.
#[tokio::test]
async fn an_expired_key_still_exists_at_the_next_step_of_a_peer() {
    let fixture = fixture().await;
    let _left = abandon_lock(&fixture, LEASE / 4).await;
    let mut peer = Stepwise::new(&fixture.server, "k");
    assert!(until(LEASE * 10, || peer.sees_it_expired()).await.is_some());
    sleep(LEASE / 2).await;
    assert!(peer.swap(in_ten_leases()));
    assert_eq!(fixture.server.pttl("k"), -1, "the key of the peer has no expiry");
}

#[tokio::test]
async fn the_peer_that_swaps_first_gets_the_lock() {
    let fixture = fixture().await;
    let (mut one, mut two) =
        (Stepwise::new(&fixture.server, "k"), Stepwise::new(&fixture.server, "k"));
    assert!(one.set_if_absent(over()));
    assert!(two.sees_it_expired() && two.swap(in_ten_leases()));
    assert!(fixture.one.lock("k").try_acquire().await.expect("up").is_none());
    assert!(two.unlock());
    assert!(fixture.one.lock("k").try_acquire().await.expect("up").is_some());
}

/// A peer and a client of this library race for an expired lock, many times. Exactly one gets it.
#[tokio::test]
async fn exactly_one_of_two_racing_clients_gets_an_expired_lock() {
    let fixture = fixture().await;
    for round in 0..200 {
        fixture.server.tell(&["SET", "k", &over().to_string()]);
        let mut peer = Stepwise::new(&fixture.server, "k");
        let thread =
            std::thread::spawn(move || peer.sees_it_expired() && peer.swap(in_ten_leases()));
        let lock = fixture.one.lock("k").lease(LEASE * 10);
        let guard = lock.try_acquire().await.expect("up");
        let taken = thread.join().expect("no panic");
        assert!(guard.is_some() != taken, "round {round}: {guard:?}, taken by the peer: {taken}");
        fixture.server.tell(&["DEL", "k"]);
        drop(guard);
    }
}

/// A lock that is about to expire may be taken over at any moment.
#[tokio::test]
async fn an_expired_lock_is_neither_renewed_nor_released() {
    let server = RedisServer::with_own_clock(&[]);
    // No renewal comes before the clock is set.
    let client = builder(&server.url(), WireFormat::Timestamp).lease(LEASE * 4);
    let client = client.connect().await.expect("up");
    for renew in [true, false] {
        let guard = client.lock("k").acquire().await.expect("free");
        // The lease ends by the clock of the server, but the keys still exist.
        for key in server.keys() {
            server.tell(&["PEXPIRE", &key, "600000"]);
        }
        let value: String = server.command(&["GET", "k"]);
        server.set_clock(60);
        if renew {
            assert_eq!(guard.lost().await, LostReason::Gone);
        } else {
            match guard.release().await {
                Err(LockError::Lost { reason, .. }) => assert_eq!(reason, LostReason::Gone),
                other => panic!("{other:?}"),
            }
        }
        assert_eq!(server.command::<String>(&["GET", "k"]), value);
        server.set_clock(0);
        server.tell(&["DEL", "k"]);
    }
}

/// The key was deleted by another client, and then created again with the same time.
#[tokio::test]
async fn a_key_recreated_with_the_same_time_is_a_foreign_lock() {
    let fixture = fixture().await;
    let guard = fixture.one.lock("k").acquire().await.expect("free");
    let value: String = fixture.server.command(&["GET", "k"]);
    fixture.server.tell(&["SET", "k", &value]);
    match guard.release().await {
        Err(LockError::Lost { reason, .. }) => assert_eq!(reason, LostReason::Taken),
        other => panic!("{other:?}"),
    }
    assert_eq!(fixture.server.command::<String>(&["GET", "k"]), value);
}

/// Clients of this library use the clock of the server.
#[tokio::test]
async fn the_clock_of_a_client_does_not_matter() {
    let server = RedisServer::with_own_clock(&[]);
    server.set_clock(-3600);
    let (one, two) = (
        connect(WireFormat::Timestamp, &server).await,
        connect(WireFormat::Timestamp, &server).await,
    );
    let guard = one.lock("k").acquire().await.expect("free");
    sleep(LEASE * 2).await;
    assert!(guard.is_held() && two.lock("k").try_acquire().await.expect("up").is_none());
    guard.release().await.expect("held");
    assert!(two.lock("k").try_acquire().await.expect("up").is_some());
}

/// A time in seconds, read as milliseconds, would be in 1970, and every lock would be free.
#[tokio::test]
async fn times_in_another_notation_are_the_wrong_format() {
    let fixture = fixture().await;
    let seconds = (Stepwise::now() + 60_000) / 1000;
    for value in [
        seconds.to_string(),
        format!("{seconds}.5"),
        format!("{}000", Stepwise::now()),
        "0".into(),
        String::new(),
        "-1700000000000".into(),
        "0x18bcfe56800".into(),
        "1700000000e13".into(),
        " 1700000000000".into(),
        "1700000000000\n".into(),
        // A backtracking pattern could take very long on this value.
        format!("{}x", "1".repeat(80_000)),
    ] {
        fixture.server.tell(&["SET", "k", &value]);
        let asked = Instant::now();
        match fixture.one.lock("k").acquire().await {
            Err(LockError::WrongFormat { expected, .. }) => assert_eq!(expected, "Unix time in ms"),
            other => panic!("{value:?}: {other:?}"),
        }
        assert!(running_time(asked) < LEASE, "{:?}", asked.elapsed());
        assert_eq!(fixture.server.command::<String>(&["GET", "k"]), value);
    }
}

#[tokio::test]
async fn a_lock_of_a_peer_without_expiry_ends_at_its_time() {
    let fixture = fixture().await;
    let (start, lease) = (Instant::now(), LEASE * 2);
    assert!(Stepwise::new(&fixture.server, "k").try_lock(lease));
    assert_eq!(fixture.server.pttl("k"), -1, "the key of the peer has no expiry");
    match fixture.one.lock("k").wait(LEASE / 4).acquire().await {
        Err(LockError::Busy {
            holder: Holder { kind: HolderKind::Elsewhere, lease_left: Some(left), .. },
            ..
        }) => {
            assert!(left < lease, "{left:?}");
        }
        other => panic!("{other:?}"),
    }
    let _guard = fixture.one.lock("k").acquire().await.expect("free after the lease");
    let taken = start.elapsed();
    assert!(taken + Duration::from_millis(2) >= lease, "{taken:?}");
    assert!(running_time(start + lease) < lease / 2, "{taken:?}");
}

/// Other clients set no expiry on a time. A value with an expiry is therefore a token that only
/// looks like a time.
#[tokio::test]
async fn a_token_that_looks_like_a_past_time_is_busy() {
    let fixture = fixture().await;
    let (start, lease, value) = (Instant::now(), LEASE * 2, "1700000000000");
    fixture.server.tell(&["SET", "k", value, "PX", &milliseconds(lease)]);
    match fixture.one.lock("k").wait(LEASE / 4).acquire().await {
        Err(LockError::Busy {
            holder: Holder { kind: HolderKind::Elsewhere, lease_left: Some(left), .. },
            ..
        }) => {
            assert!(left > LEASE && left < lease, "{left:?}");
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(fixture.server.command::<String>(&["GET", "k"]), value);
    let guard = fixture.one.lock("k").acquire().await.expect("free after the expiry");
    let taken = start.elapsed();
    assert!(taken + Duration::from_millis(2) >= lease, "{taken:?}");
    assert!(running_time(start + lease) < lease / 2, "{taken:?}");
    guard.release().await.expect("held");
}

/// The key exists for a minute after the lease, and is not mistaken for such a token.
#[tokio::test]
async fn the_lock_of_a_killed_process_is_free_when_its_time_has_passed() {
    let fixture = fixture().await;
    let mut holder =
        helper(&["hold", &fixture.server.url(), "k", &milliseconds(LEASE), "Timestamp"]);
    assert_eq!(holder.line(), "held");
    holder.kill();
    let until: u64 = fixture.server.command(&["GET", "k"]);
    let guard = fixture.one.lock("k").acquire().await.expect("free after the lease");
    let late = Stepwise::now().checked_sub(until).expect("not before the end of the lease");
    let late = Duration::from_millis(late);
    assert!(running_time(Instant::now() - late) < LEASE / 2, "{late:?}");
    guard.release().await.expect("held");
}

/// The key exists for a minute after `min_hold`, and is not mistaken for such a token.
#[tokio::test]
async fn a_lock_with_min_hold_is_free_when_its_time_has_passed() {
    let fixture = fixture().await;
    let (start, minimum) = (Instant::now(), LEASE * 2);
    fixture.two.lock("k").min_hold(minimum).run(async {}).await.expect("free");
    let stays = fixture.server.pttl("k");
    assert!(stays > 60_000, "{stays} ms");
    let guard = fixture.one.lock("k").acquire().await.expect("free after `min_hold`");
    let taken = start.elapsed();
    assert!(taken + Duration::from_millis(2) >= minimum, "{taken:?}");
    assert!(running_time(start + minimum) < minimum / 2, "{taken:?}");
    guard.release().await.expect("held");
}

/// A renewal writes the value, which a server without memory refuses.
#[tokio::test]
async fn a_lock_is_lost_on_a_server_that_is_out_of_memory() {
    let fixture = fixture().await;
    let guard = fixture.one.lock("k").acquire().await.expect("free");
    fixture.server.tell(&["CONFIG", "SET", "maxmemory", "1"]);
    assert_eq!(guard.lost().await, LostReason::RenewalFailed);
    fixture.server.tell(&["CONFIG", "SET", "maxmemory", "0"]);
    fixture.two.lock("k").run(async {}).await.expect("free after the lease");
}

#[tokio::test]
async fn a_key_with_the_prefix_of_owner_keys_is_invalid() {
    let fixture = fixture().await;
    match fixture.one.lock("lock_owner:{12}:k").acquire().await {
        Err(LockError::InvalidKey { problem, .. }) => assert!(problem.contains("lock_owner:")),
        other => panic!("{other:?}"),
    }
}

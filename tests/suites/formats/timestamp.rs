//! `SETNX` and `GETSET`, beside those who go one step at a time.

use std::time::Duration;

use lock_runtime::{Holder, LockError, LostReason, WireFormat};
use lock_tests::RedisServer;
use tokio::time::{Instant, sleep};

use super::peers::{Old, Peer};
use super::{Scene, leave_behind, speaking};
use crate::support::{LEASE, helper, milliseconds, until};

async fn scene() -> Scene {
    Scene::new(WireFormat::Timestamp).await
}

/// In the past, as of one who has crashed.
fn over() -> u64 {
    Old::now() - 5
}

fn in_ten_leases() -> u64 {
    Old::now() + u64::try_from((LEASE * 10).as_millis()).expect("short")
}

#[tokio::test]
async fn the_value_is_when_it_expires() {
    let scene = scene().await;
    let before = Old::now();
    let guard = scene.one.lock("k").acquire().await.expect("free");
    let value: u64 = scene.server.command(&["GET", "k"]);
    let lease = u64::try_from(LEASE.as_millis()).expect("short");
    assert!((before + lease - 1..=Old::now() + lease).contains(&value), "{value} from {before}");
    let renewed = || scene.server.command::<u64>(&["GET", "k"]) > value;
    assert!(until(LEASE, renewed).await.is_some(), "{value} for a lease");
    guard.release().await.expect("held");
}

/// A key that has expired is there all the same, because others give theirs no expiry.
#[tokio::test]
async fn one_that_is_over_is_taken_over() {
    let scene = scene().await;
    scene.server.tell(&["SET", "k", &over().to_string()]);
    let guard = scene.one.lock("k").try_acquire().await.expect("up").expect("it is over");
    assert!(scene.server.pttl("k") > 0);
    guard.release().await.expect("held");
    scene.server.tell(&["SET", "k", &format!("{}.25", over())]);
    let guard = scene.one.lock("k").try_acquire().await.expect("up").expect("with a fraction, too");
    guard.release().await.expect("held");
}

#[tokio::test]
async fn who_sees_it_expired_and_swaps_too_late_gets_nothing() {
    let scene = scene().await;
    let mut late = Old::new(&scene.server, "k");
    assert!(late.set_if_absent(over()));
    assert!(late.sees_it_expired());
    let guard = scene.one.lock("k").acquire().await.expect("it is over");
    assert!(!late.swap(in_ten_leases()), "ours is not over");
    // What is there now is nobody's, and cannot be told from somebody's.
    match guard.lost().await {
        LostReason::Taken => {}
        other => panic!("{other:?}"),
    }
    assert!(scene.two.lock("k").try_acquire().await.expect("up").is_none());
}

/// A key that vanished between their second step and their third would be nobody's, and taken.
#[tokio::test]
async fn those_who_find_it_over_find_it_there_at_their_next_step_too() {
    let scene = scene().await;
    let _left = leave_behind(&scene, LEASE / 4).await;
    let mut theirs = Old::new(&scene.server, "k");
    assert!(until(LEASE, || theirs.sees_it_expired()).await.is_some());
    sleep(LEASE / 2).await;
    assert!(theirs.swap(in_ten_leases()));
    assert_eq!(scene.server.pttl("k"), -1, "it is theirs, and stays so");
}

#[tokio::test]
async fn who_swaps_first_has_it() {
    let scene = scene().await;
    let (mut one, mut two) = (Old::new(&scene.server, "k"), Old::new(&scene.server, "k"));
    assert!(one.set_if_absent(over()));
    assert!(two.sees_it_expired() && two.swap(in_ten_leases()));
    assert!(scene.one.lock("k").try_acquire().await.expect("up").is_none());
    assert!(two.unlock());
    assert!(scene.one.lock("k").try_acquire().await.expect("up").is_some());
}

/// Theirs and ours, all of them after a lock that is over, many times: one of them gets it.
#[tokio::test]
async fn of_those_who_race_for_an_expired_one_one_has_it() {
    let scene = scene().await;
    for round in 0..200 {
        scene.server.tell(&["SET", "k", &over().to_string()]);
        let mut theirs = Old::new(&scene.server, "k");
        let thread =
            std::thread::spawn(move || theirs.sees_it_expired() && theirs.swap(in_ten_leases()));
        let ours = scene.one.lock("k").lease(LEASE * 10);
        let ours = ours.try_acquire().await.expect("up");
        let theirs = thread.join().expect("no panic");
        assert!(ours.is_some() != theirs, "round {round}: ours {} theirs {theirs}", ours.is_some());
        scene.server.tell(&["DEL", "k"]);
        drop(ours);
    }
}

/// One that is nearly over may be swapped at any moment.
#[tokio::test]
async fn one_that_is_over_is_neither_renewed_nor_released() {
    let server = RedisServer::with_own_clock(&[]);
    let client = speaking(WireFormat::Timestamp, &server).await;
    for renew in [true, false] {
        let guard = client.lock("k").acquire().await.expect("free");
        // The time is over, and the keys are there.
        for key in server.command::<Vec<String>>(&["KEYS", "*"]) {
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

/// Theirs, made in the very millisecond in which ours was deleted by one who did not look whose it was.
#[tokio::test]
async fn the_same_time_does_not_make_it_ours() {
    let scene = scene().await;
    let guard = scene.one.lock("k").acquire().await.expect("free");
    let value: String = scene.server.command(&["GET", "k"]);
    scene.server.tell(&["SET", "k", &value]);
    match guard.release().await {
        Err(LockError::Lost { reason, .. }) => assert_eq!(reason, LostReason::Taken),
        other => panic!("{other:?}"),
    }
    assert_eq!(scene.server.command::<String>(&["GET", "k"]), value);
}

/// All of ours go by the server's clock.
#[tokio::test]
async fn the_clock_of_a_client_does_not_matter() {
    let server = RedisServer::with_own_clock(&[]);
    server.set_clock(-3600);
    let (one, two) = (
        speaking(WireFormat::Timestamp, &server).await,
        speaking(WireFormat::Timestamp, &server).await,
    );
    let guard = one.lock("k").acquire().await.expect("free");
    sleep(LEASE * 2).await;
    assert!(guard.is_held() && two.lock("k").try_acquire().await.expect("up").is_none());
    guard.release().await.expect("held");
    assert!(two.lock("k").try_acquire().await.expect("up").is_some());
}

/// Seconds would be milliseconds of 1970, and every lock free.
#[tokio::test]
async fn other_times_are_another_format() {
    let scene = scene().await;
    let seconds = (Old::now() + 60_000) / 1000;
    for value in [
        seconds.to_string(),
        format!("{seconds}.5"),
        format!("{}000", Old::now()),
        "0".into(),
        String::new(),
        "-1700000000000".into(),
        "0x18bcfe56800".into(),
        "1700000000e13".into(),
        " 1700000000000".into(),
        "1700000000000\n".into(),
        // Of which a pattern can try all the ways to divide it.
        format!("{}x", "1".repeat(80_000)),
    ] {
        scene.server.tell(&["SET", "k", &value]);
        let asked = Instant::now();
        match scene.one.lock("k").acquire().await {
            Err(LockError::WrongFormat { expected, .. }) => assert_eq!(expected, "Unix time in ms"),
            other => panic!("{value:?}: {other:?}"),
        }
        assert!(asked.elapsed() < LEASE, "{:?}", asked.elapsed());
        assert_eq!(scene.server.command::<String>(&["GET", "k"]), value);
    }
}

#[tokio::test]
async fn a_lock_without_expiry_still_ends() {
    let scene = scene().await;
    let (start, lease) = (Instant::now(), LEASE * 2);
    assert!(Old::new(&scene.server, "k").try_lock(lease));
    assert_eq!(scene.server.pttl("k"), -1, "theirs have none");
    match scene.one.lock("k").wait(LEASE / 4).acquire().await {
        Err(LockError::Busy { holder: Holder::Elsewhere(Some(left)), .. }) => {
            assert!(left < lease, "{left:?}");
        }
        other => panic!("{other:?}"),
    }
    let _guard = scene.one.lock("k").acquire().await.expect("it ends");
    let taken = start.elapsed();
    assert!(taken + Duration::from_millis(2) >= lease && taken < lease * 5 / 4, "{taken:?}");
}

/// Others give theirs no expiry, so what has one is somebody's token, and only looks like a time.
#[tokio::test]
async fn a_token_that_looks_like_a_time_that_is_over_is_waited_for() {
    let scene = scene().await;
    let (start, lease, value) = (Instant::now(), LEASE * 2, "1700000000000");
    scene.server.tell(&["SET", "k", value, "PX", &milliseconds(lease)]);
    match scene.one.lock("k").wait(LEASE / 4).acquire().await {
        Err(LockError::Busy { holder: Holder::Elsewhere(Some(left)), .. }) => {
            assert!(left > LEASE && left < lease, "{left:?}");
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(scene.server.command::<String>(&["GET", "k"]), value);
    let guard = scene.one.lock("k").acquire().await.expect("it expires");
    let taken = start.elapsed();
    assert!(taken + Duration::from_millis(2) >= lease && taken < lease * 5 / 4, "{taken:?}");
    guard.release().await.expect("held");
}

/// The key stays for a minute after it, and is told from such a token.
#[tokio::test]
async fn what_a_killed_process_of_ours_has_held_is_taken_over_when_its_time_is_over() {
    let scene = scene().await;
    let mut ours = helper(&["hold", &scene.server.url(), "k", &milliseconds(LEASE), "Timestamp"]);
    assert_eq!(ours.line(), "held");
    ours.kill();
    let until: u64 = scene.server.command(&["GET", "k"]);
    let guard = scene.one.lock("k").acquire().await.expect("in the end");
    let late = Old::now().checked_sub(until).expect("not before");
    assert!(Duration::from_millis(late) < LEASE / 4, "{late} ms");
    guard.release().await.expect("held");
}

/// Likewise.
#[tokio::test]
async fn a_lock_that_was_to_stay_is_taken_over_when_that_is_over() {
    let scene = scene().await;
    let (start, minimum) = (Instant::now(), LEASE * 2);
    scene.two.lock("k").min_hold(minimum).run(async {}).await.expect("free");
    let stays = scene.server.pttl("k");
    assert!(stays > 60_000, "{stays} ms");
    let guard = scene.one.lock("k").acquire().await.expect("in the end");
    let taken = start.elapsed();
    assert!(taken + Duration::from_millis(2) >= minimum, "{taken:?}");
    assert!(taken < minimum * 5 / 4, "{taken:?}");
    guard.release().await.expect("held");
}

/// Renewing it is writing it, which a server without memory refuses.
#[tokio::test]
async fn a_server_that_is_out_of_memory_costs_the_lock() {
    let scene = scene().await;
    let guard = scene.one.lock("k").acquire().await.expect("free");
    scene.server.tell(&["CONFIG", "SET", "maxmemory", "1"]);
    assert_eq!(guard.lost().await, LostReason::RenewalFailed);
    scene.server.tell(&["CONFIG", "SET", "maxmemory", "0"]);
    scene.two.lock("k").run(async {}).await.expect("its time is over");
}

#[tokio::test]
async fn the_names_of_owners_are_no_keys() {
    let scene = scene().await;
    match scene.one.lock("lock_owner:{12}:k").acquire().await {
        Err(LockError::InvalidKey { problem, .. }) => assert!(problem.contains("lock_owner:")),
        other => panic!("{other:?}"),
    }
}

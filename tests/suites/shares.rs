//! The shares of read-write locks and semaphores in Redis: what a key says is taken, is what its holders have.

use std::collections::BTreeSet;
use std::time::Duration;

use fastrand::Rng;
use lock_runtime::{Lock, LockClient};
use lock_tests::RedisServer;
use lock_tests::support::until_idle;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};

use crate::support::{LEASE, client};

const CLIENTS: usize = 3;
const TASKS: usize = 24;

/// The lease of holds that nobody releases.
const SHORT: Duration = Duration::from_millis(60);

const KEYS: [&str; 2] = ["shared", "permits"];

fn pause(rng: &mut Rng) -> Duration {
    Duration::from_micros(rng.u64(0..3000))
}

fn any_lock(client: &LockClient, rng: &mut Rng) -> Lock {
    match rng.u8(0..4) {
        0 => client.read_write(KEYS[0]).write(),
        1 | 2 => client.read_write(KEYS[0]).read(),
        _ => client.semaphore(KEYS[1], 5).permits(rng.u32(1..=5)),
    }
}

/// Acquires a lock, and does something with it, or gives up.
async fn one_call(client: &LockClient, rng: &mut Rng) {
    let lock = any_lock(client, rng).wait(LEASE / 10);
    let way = rng.u8(0..9);
    let lock = match way {
        0 => lock.min_hold(SHORT / 3),
        1 => lock.lease(SHORT),
        _ => lock,
    };
    let limit = if way == 2 { pause(rng) / 4 } else { LEASE };
    let Ok(Ok(guard)) = timeout(limit, lock.acquire()).await else { return };
    sleep(pause(rng)).await;
    match way {
        1 => std::mem::forget(guard),
        3 | 4 => drop(guard),
        5 | 6 => {
            if let Some(hold) = guard.read_write() {
                let _ = hold.try_upgrade().await;
                sleep(pause(rng)).await;
            }
            if let Some(hold) = guard.read_write() {
                let _ = hold.downgrade().await;
            }
            let _ = guard.release().await;
        }
        _ => drop(guard.release().await),
    }
}

/// The sums that the keys have at one time: what is taken, and what the holders have.
fn sums(server: &RedisServer) -> Vec<(i64, i64)> {
    let sum = |key: &&str| {
        let members: Vec<(String, f64)> = server.command(&["ZRANGE", key, "0", "-1", "WITHSCORES"]);
        let ((first, taken), holders) = members.split_first()?;
        assert_eq!(first, "taken", "the sum comes first: {members:?}");
        assert!(!holders.is_empty(), "a key without holders is deleted");
        let shares = |name: &str| name.rsplit('/').nth(1)?.parse::<i64>().ok();
        let shares = holders.iter().map(|(name, _)| shares(name).expect("`owner/shares/capacity`"));
        #[expect(clippy::cast_possible_truncation, reason = "a whole number")]
        let taken = *taken as i64;
        Some((taken, shares.sum()))
    };
    KEYS.iter().filter_map(sum).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_taken_is_what_the_holders_have() {
    let server = RedisServer::start();
    let mut clients = Vec::new();
    for _ in 0..CLIENTS {
        clients.push(client(&server.url()).await);
    }
    let seed = fastrand::u64(..);
    let (end, mut tasks) = (Instant::now() + LEASE * 3, JoinSet::new());
    for task in 0..TASKS {
        let client = clients[task % CLIENTS].clone();
        tasks.spawn(async move {
            let mut rng = Rng::with_seed(seed.wrapping_add(task as u64));
            while Instant::now() < end {
                one_call(&client, &mut rng).await;
            }
        });
    }
    let looks = std::thread::spawn(move || {
        let mut found = BTreeSet::new();
        while Instant::now() < end {
            for (taken, of_holders) in sums(&server) {
                assert_eq!(taken, of_holders, "the seed is {seed}");
                found.insert(taken);
            }
        }
        (server, found)
    });
    tasks.join_all().await;
    let looked = tokio::task::spawn_blocking(|| looks.join()).await.expect("no panic");
    let (server, found) = looked.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    // One reader and several, a writer, and each number of permits.
    let expected = [1, 2, 3, 4, 5, 10_000_000_000];
    assert!(expected.iter().all(|sum| found.contains(sum)), "too little was seen: {found:?}");
    for client in &clients {
        until_idle(client, LEASE * 20).await;
    }
    for (taken, of_holders) in sums(&server) {
        assert_eq!(taken, of_holders, "the seed is {seed}");
    }
}

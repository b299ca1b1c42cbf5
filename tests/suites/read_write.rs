//! Read-write locks.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use lock_runtime::{
    HolderKind, Lock, LockClient, LockError, LockMode, ReadWriteLock, ReleaseMode, WireFormat,
    distributed_lock, with_client,
};
use lock_tests::support::{of_read_write, until_idle};
use lock_tests::within;
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::support::{LEASE, Pair, on_every_store, until};
use crate::waits::{
    FOREIGN, LONG, assert_foreign_values_are_errors, assert_wrong_kind, held, is_free, its_turn,
    queued, release, waiting,
};

fn lock(client: &LockClient) -> ReadWriteLock {
    client.read_write("k")
}

/// A reader that shares no hold with others of its process.
fn lone_reader(client: &LockClient) -> Lock {
    lock(client).read().lease(LONG).wait(LONG)
}

fn writer(client: &LockClient) -> Lock {
    lock(client).write().lease(LONG).wait(LONG)
}

on_every_store! {
    async fn any_number_of_readers_or_one_writer_has_the_lock(pair: Pair) {
        let Pair { one, two, .. } = &pair;
        for (first, other) in [(one, one), (one, two)] {
            for first in [lock(first).read(), lone_reader(first)] {
                let reader = held(first).await;
                assert_eq!(reader.mode(), Some(LockMode::Read));
                for other in [lock(other).read(), lone_reader(other)] {
                    assert!(is_free(other).await, "readers do not exclude each other");
                }
                assert!(!is_free(writer(other)).await, "a reader excludes writers");
                release(reader).await;
            }
            let writer_guard = held(writer(first)).await;
            assert_eq!(writer_guard.mode(), Some(LockMode::Write));
            assert!(!is_free(lock(other).read()).await, "a writer excludes readers");
            assert!(!is_free(writer(other)).await, "a writer excludes writers");
            release(writer_guard).await;
        }
        assert!(is_free(writer(two)).await);
        let plain = held(one.lock("other")).await;
        assert_eq!(plain.mode(), None);
        if let Some(server) = &pair.server {
            assert!(!server.exists("k"), "nothing is left");
        }
    }

    async fn a_reader_that_ends_leaves_the_others_in(pair: Pair) {
        let Pair { one, two, .. } = &pair;
        let (first, second) = (held(lone_reader(one)).await, held(lone_reader(two)).await);
        let third = held(lock(two).read()).await;
        for guard in [second, first] {
            release(guard).await;
            assert!(third.is_held() && !is_free(writer(one)).await);
        }
        release(third).await;
        assert!(is_free(writer(one)).await);
    }

    async fn a_reader_with_a_fixed_lease_ends_alone(pair: Pair) {
        let Pair { one, two, .. } = &pair;
        let short = held(lone_reader(one).lease(LEASE)).await;
        let long = held(lone_reader(two)).await;
        short.lost().await;
        assert!(long.is_held() && !is_free(writer(one)).await);
        let error = short.release().await.expect_err("its lease is over");
        assert!(matches!(error, LockError::Lost { .. }), "{error:?}");
        release(long).await;
        // On the server, its lease may last for a moment longer.
        release(held(writer(one)).await).await;
    }

    /// The order is: the readers that are in, the first writer, all readers that wait, the next writer.
    async fn readers_and_writers_are_served_in_the_order_of_arrival(pair: Pair) {
        let Pair { one, two, .. } = &pair;
        let first = held(lone_reader(one)).await;
        let writer_1 = waiting(&pair, writer(two), 0).await;
        let readers =
            [waiting(&pair, lone_reader(one), 1).await, waiting(&pair, lone_reader(two), 2).await];
        let writer_2 = waiting(&pair, lock(&one.clone()).write().lease(LONG).wait(LONG), 3).await;
        let late = waiting(&pair, lone_reader(two), 4).await;
        assert!(!is_free(lone_reader(one)).await, "a reader does not overtake a writer that waits");
        release(first).await;
        let writer_1 = its_turn(writer_1).await;
        assert!(!writer_2.is_finished() && readers.iter().all(|reader| !reader.is_finished()));
        release(writer_1).await;
        let mut inside = Vec::new();
        for reader in readers {
            inside.push(its_turn(reader).await);
        }
        assert!(!writer_2.is_finished() && !late.is_finished(), "the readers before the writer");
        for reader in inside {
            release(reader).await;
        }
        let writer_2 = its_turn(writer_2).await;
        assert!(!late.is_finished(), "it came after the writer");
        release(writer_2).await;
        release(its_turn(late).await).await;
        assert!(is_free(writer(two)).await);
    }

    async fn a_writer_that_gives_up_lets_the_readers_in(pair: Pair) {
        let Pair { one, two, .. } = &pair;
        let first = held(lone_reader(one)).await;
        let writer = waiting(&pair, writer(two), 0).await;
        let reader = waiting(&pair, lone_reader(one), 1).await;
        writer.abort();
        assert!(writer.await.is_err());
        release(its_turn(reader).await).await;
        let impatient = lock(two).write().wait(LEASE / 4).acquire().await;
        let Err(LockError::Busy { holder, .. }) = impatient else { panic!("{impatient:?}") };
        assert!(holder.kind == HolderKind::Elsewhere, "{holder:?}");
        assert!(until(LEASE * 5, || queued(&pair) == 0).await.is_some(), "it has left the queue");
        assert!(is_free(lone_reader(two)).await);
        release(first).await;
    }

    async fn a_writer_in_the_body_of_a_reader_would_deadlock(pair: Pair) {
        let read = lock(&pair.one).read();
        let write = lock(&pair.one).write().wait(LEASE);
        let nested = read.run(async {
            let nested = write.run(async {}).await;
            read.run(async {}).await.expect("a reader shares the hold");
            nested
        });
        let error = nested.await.expect("free").expect_err("a reader is no writer");
        assert!(
            matches!(&error, LockError::WouldDeadlock { key, .. } if key == "k"),
            "a writer in the body of a reader fails at once: {error:?}"
        );
        assert!(!error.is_transient());
        write.run(async {
            write.run(async {}).await.expect("a writer shares the hold of a writer");
            read.run(async {}).await.expect("and so does a reader");
        }).await.expect("free");
        let elsewhere = read.run(async { lock(&pair.two).write().try_acquire().await });
        assert!(elsewhere.await.expect("free").expect("store is up").is_none());
    }

    async fn a_writer_becomes_a_reader_and_lets_the_other_readers_in(pair: Pair) {
        let Pair { one, two, .. } = &pair;
        let guard = held(lock(one).write()).await;
        let token = guard.fencing_token().await.expect("a writer");
        let reader = waiting(&pair, lone_reader(two), 0).await;
        let writer = waiting(&pair, writer(two), 1).await;
        of_read_write(&guard).downgrade().await.expect("held");
        assert_eq!(guard.mode(), Some(LockMode::Read));
        let reader = its_turn(reader).await;
        assert!(!writer.is_finished(), "no writer comes in between");
        let error = guard.fencing_token().await.expect_err("a reader");
        assert!(matches!(&error, LockError::Config { option: "mode", .. }), "{error:?}");
        of_read_write(&guard).downgrade().await.expect("it is a reader already");
        assert!(!of_read_write(&guard).try_upgrade().await.expect("held"), "there is another reader");
        release(reader).await;
        assert!(!of_read_write(&guard).try_upgrade().await.expect("held"), "a writer waits");
        release(guard).await;
        let writer = its_turn(writer).await;
        assert!(writer.fencing_token().await.expect("a writer") > token);
        release(writer).await;
    }

    async fn the_only_reader_becomes_a_writer(pair: Pair) {
        let Pair { one, two, .. } = &pair;
        let guard = held(lock(one).read()).await;
        let same = held(lock(one).read()).await;
        assert!(!of_read_write(&guard).try_upgrade().await.expect("held"), "another task shares the hold");
        release(same).await;
        let other = held(lock(two).read()).await;
        assert!(!of_read_write(&guard).try_upgrade().await.expect("held"), "another process reads");
        release(other).await;
        assert!(of_read_write(&guard).try_upgrade().await.expect("held"));
        assert_eq!(guard.mode(), Some(LockMode::Write));
        assert!(of_read_write(&guard).try_upgrade().await.expect("held"), "it is a writer already");
        guard.fencing_token().await.expect("a writer");
        for client in [one, two] {
            assert!(!is_free(lock(client).read()).await && !is_free(lock(client).write()).await);
        }
        release(guard).await;
        assert!(is_free(lock(one).write()).await && is_free(lock(two).read()).await);
    }

    async fn a_writer_with_nested_guards_does_not_become_a_reader(pair: Pair) {
        let write = || lock(&pair.one).write();
        let body = async {
            let nested = held(write()).await;
            let refused = of_read_write(&nested).downgrade().await.expect_err("the body writes");
            release(nested).await;
            refused
        };
        let error = write().run(body).await.expect("free");
        let LockError::Config { option: "mode", problem, .. } = &error else { panic!("{error:?}") };
        assert!(problem.contains("nested"), "{problem}");
        assert!(is_free(lock(&pair.two).write()).await, "the body has released both");
    }

    async fn other_locks_have_no_modes(pair: Pair) {
        let guard = held(pair.one.lock("k")).await;
        assert!(guard.read_write().is_none());
        let error = lock(&pair.two).read().acquire().await.expect_err("another layout");
        assert_wrong_kind(&error, "string", "read-write lock");
        release(guard).await;
        for mode in [LockMode::Read, LockMode::Write] {
            let lock = match mode {
                LockMode::Read => lock(&pair.one).read(),
                LockMode::Write => lock(&pair.one).write(),
            };
            let guard = held(lock).await;
            let error = pair.two.lock("k").acquire().await.expect_err("another layout");
            assert_wrong_kind(&error, "read-write lock", "string");
            let set = pair.two.lock_all(["a", "k"]).wait(LEASE / 4).acquire().await;
            assert!(set.is_err(), "a set needs a free key");
            release(guard).await;
        }
    }

    async fn options_that_do_not_fit_are_errors(pair: Pair) {
        let read = || lock(&pair.one).read();
        let write = || lock(&pair.one).write();
        for (lock, option) in [
            (read().fair(), "fair"),
            (write().fair(), "fair"),
            (read().linger(LEASE / 10), "linger"),
            (read().wire_format(WireFormat::Redisson), "wire_format"),
            (write().wire_format(WireFormat::Timestamp), "wire_format"),
            (read().min_hold(LEASE), "min_hold"),
        ] {
            let error = lock.acquire().await.expect_err(option);
            let LockError::Config { option: named, .. } = error else { panic!("{error:?}") };
            assert_eq!(named, option);
        }
    }

    async fn min_hold_keeps_readers_and_writers_out_after_a_writer(pair: Pair) {
        let Pair { one, two, .. } = &pair;
        for next in [lone_reader(two), writer(two)] {
            let began = Instant::now();
            release(held(lock(one).write().min_hold(LEASE)).await).await;
            release(held(next).await).await;
            assert!(began.elapsed() >= LEASE, "the writer was kept");
        }
    }

    /// The release told the first claim that the lock becomes free soon, and nobody else.
    async fn a_call_that_gives_up_during_a_min_hold_does_not_delay_the_next_one(pair: Pair) {
        let Pair { one, two, .. } = &pair;
        let read_write = (writer(one), lone_reader(two));
        let plain = (one.lock("k").lease(LONG), two.lock("k").lease(LONG).wait(LONG).fair());
        for (kept, waits) in [read_write, plain] {
            let kept = held(kept.min_hold(LEASE)).await;
            let first = waiting(&pair, waits.clone(), 0).await;
            let second = waiting(&pair, waits, 1).await;
            release(kept).await;
            tokio::time::sleep(LEASE / 10).await;
            first.abort();
            assert!(first.await.is_err());
            let next = within(LEASE * 5, second).await.expect("it learns when the lock is free");
            release(next.expect("no panic")).await;
        }
    }

    /// Readers of several tasks and clients see no writer, and writers nobody.
    async fn a_counter_is_changed_by_writers_only(pair: Pair) {
        let (readers, writers) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let mut tasks = JoinSet::new();
        for n in 0..24 {
            let client = if n % 2 == 0 { pair.one.clone() } else { pair.two.clone() };
            let (readers, writers) = (Arc::clone(&readers), Arc::clone(&writers));
            tasks.spawn(async move {
                for _ in 0..10 {
                    if n % 4 < 3 {
                        let body = async {
                            readers.fetch_add(1, Ordering::SeqCst);
                            assert_eq!(writers.load(Ordering::SeqCst), 0, "a writer beside a reader");
                            tokio::task::yield_now().await;
                            readers.fetch_sub(1, Ordering::SeqCst);
                        };
                        lock(&client).read().wait(LONG).run(body).await.expect("its turn");
                    } else {
                        let body = async {
                            assert_eq!(writers.fetch_add(1, Ordering::SeqCst), 0, "two writers");
                            assert_eq!(readers.load(Ordering::SeqCst), 0, "a reader beside a writer");
                            tokio::task::yield_now().await;
                            writers.fetch_sub(1, Ordering::SeqCst);
                        };
                        lock(&client).write().wait(LONG).run(body).await.expect("its turn");
                    }
                }
            });
        }
        while let Some(task) = tasks.join_next().await {
            task.expect("no violation");
        }
        until_idle(&pair.one, LEASE * 5).await;
        until_idle(&pair.two, LEASE * 5).await;
        assert!(is_free(writer(&pair.one)).await, "nothing is left");
    }

    async fn a_release_in_the_background_frees_the_lock(pair: Pair) {
        let Pair { one, two, .. } = &pair;
        for held_by_one in [lock(one).read(), lock(one).write()] {
            held_by_one.clone().release_mode(ReleaseMode::Background).run(async {}).await.expect("free");
            release(held(writer(two)).await).await;
            drop(held(held_by_one).await);
            release(held(writer(two)).await).await;
        }
    }

    async fn an_annotated_function_has_a_mode(pair: Pair) {
        #[distributed_lock(key = "k", mode = "read", guard = guard)]
        async fn read() -> Result<Option<LockMode>, LockError> {
            Ok(guard.mode())
        }

        #[distributed_lock(key = "k", mode = "write", wait = "0s", on_busy = Ok(false))]
        async fn write() -> Result<bool, LockError> {
            Ok(true)
        }

        #[distributed_lock(key = "k", mode = mode, guard = guard)]
        async fn either(mode: LockMode) -> Result<Option<LockMode>, LockError> {
            Ok(guard.mode())
        }

        let Pair { one, two, .. } = &pair;
        assert_eq!(with_client(one.clone(), read()).await, Ok(Some(LockMode::Read)));
        for mode in [LockMode::Read, LockMode::Write] {
            assert_eq!(with_client(one.clone(), either(mode)).await, Ok(Some(mode)));
        }
        let reader = held(lock(two).read()).await;
        assert_eq!(with_client(one.clone(), read()).await, Ok(Some(LockMode::Read)));
        assert_eq!(with_client(one.clone(), write()).await, Ok(false));
        release(reader).await;
        assert_eq!(with_client(one.clone(), write()).await, Ok(true));
    }

    async fn a_writer_that_lingers_keeps_no_reader_of_its_process_out(pair: Pair) {
        let lock = lock(&pair.one);
        lock.write().linger(LEASE * 3 / 10).run(async {}).await.expect("free");
        let reader = lock.read().wait(LEASE / 6).acquire().await.expect("not kept");
        release(reader).await;
        let guard = held(lock.write().linger(LEASE / 4)).await;
        of_read_write(&guard).downgrade().await.expect("held");
        let shared = held(lock.read()).await;
        release(guard).await;
        assert!(!is_free(writer(&pair.two)).await, "a reader that joined is still in");
        release(shared).await;
        assert!(is_free(writer(&pair.two)).await, "a reader does not linger");
    }

    async fn changes_of_the_mode_at_the_same_time_do_not_interfere(pair: Pair) {
        let guard = held(lock(&pair.one).read()).await;
        for _ in 0..20 {
            let (up, down) = tokio::join!(of_read_write(&guard).try_upgrade(), of_read_write(&guard).downgrade());
            for error in [up.err(), down.err()].into_iter().flatten() {
                assert!(matches!(&error, LockError::Config { option: "mode", .. }), "{error:?}");
            }
            let is_alone = guard.mode() == Some(LockMode::Write);
            assert_eq!(is_free(lock(&pair.two).read()).await, !is_alone);
        }
        of_read_write(&guard).downgrade().await.expect("held");
        release(guard).await;
    }
}

/// Other values under the key are neither changed nor taken for locks.
#[tokio::test]
async fn other_values_are_not_changed() {
    let pair = Pair::redis().await;
    let server = pair.server.as_ref().expect("a server");
    let now = "1790000000000";
    let uuid = "f81d4fae-7dec-11d0-a765-00a0c91e6bf6";
    // The last one is a reader of a version before this format.
    let reader = (&*format!("1{now}"), "kX3_8fRtq.AABrmE8eHkD2vXnq4mTjP5");
    for (score, member) in [("1", "a player"), (now, uuid), ("9e18", uuid), reader] {
        server.tell(&["DEL", "k"]);
        server.tell(&["ZADD", "k", score, member]);
        for call in [lock(&pair.one).read(), lock(&pair.one).write()] {
            let error = call.acquire().await.expect_err("no lock");
            assert!(matches!(&error, LockError::WrongFormat { .. }), "{error:?}");
            // A call that is dropped is undone.
            drop(tokio::time::timeout(Duration::ZERO, call.acquire()).await);
            until_idle(&pair.one, LEASE * 5).await;
        }
        assert_eq!(server.command::<usize>(&["ZCARD", "k"]), 1, "{member} is still there");
    }
    server.tell(&["DEL", "k"]);
    // A queue of another type holds nobody back.
    let guard = held(lock(&pair.one).read()).await;
    let waits = waiting(&pair, lock(&pair.two).write().lease(LONG).wait(LONG), 0).await;
    let queue: Vec<String> = server.command(&["KEYS", "lock_queue:*"]);
    waits.abort();
    until_idle(&pair.two, LEASE * 5).await;
    release(guard).await;
    for (_, set) in FOREIGN.iter().filter(|(kind, _)| *kind != "zset") {
        let guard = held(lock(&pair.one).read()).await;
        let mut set = set.to_vec();
        set[1] = &queue[0];
        server.tell(&set);
        let waits = tokio::spawn(lock(&pair.two).write().wait(LONG).acquire());
        tokio::time::sleep(LEASE / 5).await;
        release(guard).await;
        let polls =
            its_turn(tokio::spawn(async { waits.await.expect("no panic").expect("its turn") }));
        release(polls.await).await;
        server.tell(&["DEL", &queue[0]]);
    }
    let locks = [lock(&pair.one).read(), lock(&pair.one).write()];
    for lock in locks {
        let call = async || lock.acquire().await.expect_err("no lock");
        assert_foreign_values_are_errors(server, &pair.one, "read-write lock", call).await;
    }
}

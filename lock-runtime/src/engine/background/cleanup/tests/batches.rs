//! The queues of cleanups, and their batches.

use super::*;

#[test]
fn cleanups_of_one_instant_are_all_kept() {
    let (cleanups, (store, owner)) = (cleanups(), store());
    let at = BootInstant::now();
    for _ in 0..2 {
        cleanups.push(released(&store, owner));
        let mut queues = cleanups.lock();
        let pending = queues.ready[0].pending.pop_front().expect("pushed");
        queues.push_later(at, pending);
    }
    let batch = cleanups.next(at).expect("both are due");
    assert_eq!(batch.len(), 2);
    assert!(cleanups.next_later().is_none());
}

/// The lanes that have a queue.
fn lanes_of(cleanups: &Cleanups) -> Vec<Lane> {
    cleanups.lock().ready.iter().map(|queue| queue.lane).collect()
}

#[test]
fn empty_lanes_are_removed() {
    let (cleanups, (store, owner)) = (cleanups(), store());
    let lanes = [(); 4].map(|()| {
        let runtime = runtime::Builder::new_current_thread().build().expect("a runtime");
        runtime.handle().id()
    });
    for runtime in [lanes[0], lanes[1]] {
        cleanups.push(undo(&store, owner, Some(Origin { runtime, connection: None })));
    }
    let batches: Vec<_> = std::iter::from_fn(|| cleanups.next(BootInstant::now())).collect();
    assert_eq!(
        (batches.len(), lanes_of(&cleanups).len()),
        (3, 3),
        "one lane is that of the background thread"
    );
    // Nothing is queued, and each lane has a batch in flight.
    let handle = Arc::clone(&store) as Arc<dyn LockStore>;
    cleanups.lock().queue(Lane::Runtime(lanes[2]), &handle, Place::ONLY);
    assert_eq!(lanes_of(&cleanups).len(), 4);
    for runtime in [lanes[0], lanes[1]] {
        cleanups.lock().queue(Lane::Runtime(runtime), &handle, Place::ONLY).in_flight = 0;
    }
    cleanups.lock().queue(Lane::Runtime(lanes[3]), &handle, Place::ONLY);
    assert_eq!(lanes_of(&cleanups), [Lane::Background, Lane::Runtime(lanes[3])]);
}

#[tokio::test]
async fn the_number_of_batches_in_flight_is_limited_per_lane() {
    let ((store, _), cleanups) = (store(), cleanups());
    for _ in 0..10 * BATCH {
        cleanups.push(released(&store, new_owner()));
    }
    let now = BootInstant::now();
    let batches: Vec<Batch> = std::iter::from_fn(|| cleanups.next(now)).collect();
    assert_eq!(batches.len(), BATCHES_PER_LANE);
    assert!(batches.iter().all(|batch| batch.len() == BATCH));
    for batch in batches {
        batch.send(&cleanups).await;
        assert!(cleanups.next(now).is_some(), "another batch may be sent");
    }
}

#[tokio::test]
async fn a_blocked_lane_does_not_delay_other_lanes() {
    let ((store, owner), cleanups) = (store(), cleanups());
    let stuck: Vec<Batch> = (0..10 * BATCH)
        .map(|_| cleanups.push(undo(&store, owner, Some(sent_over(1)))))
        .map_while(|()| cleanups.next(BootInstant::now()))
        .filter(|batch| batch.lane() != Lane::Background)
        .collect();
    assert!(stuck.len() <= BATCHES_PER_LANE);
    while let Some(batch) = cleanups.next(BootInstant::now()) {
        assert_eq!(batch.lane(), Lane::Background);
        batch.send(&cleanups).await;
    }
}

#[tokio::test]
async fn a_blocked_place_does_not_delay_other_places() {
    let ((store, _), cleanups) = (store(), cleanups());
    let push = |key: &str| {
        let cleanup = released(&store, new_owner());
        let locked = Locked { key: Arc::from(key), ..cleanup.locked.clone() };
        cleanups.push(Cleanup { locked, ..cleanup });
    };
    store.set_place("stuck", Place::numbered(1));
    for _ in 0..10 * BATCH {
        push("stuck");
    }
    let now = BootInstant::now();
    let stuck: Vec<Batch> = std::iter::from_fn(|| cleanups.next(now)).collect();
    assert_eq!(stuck.len(), BATCHES_PER_LANE);
    push("k");
    let batch = cleanups.next(now).expect("another place");
    assert_eq!(batch.len(), 1);
}

#[tokio::test]
async fn a_dropped_batch_is_sent_again() {
    let ((store, owner), cleanups) = (store(), cleanups());
    acquire(&store, owner).await.expect("free");
    store.next_releases([Fault::Hang]);
    cleanups.push(released(&store, owner));
    let batch = cleanups.next(BootInstant::now()).expect("a batch");
    assert!(tokio::time::timeout(LEASE / 100, batch.send(&cleanups)).await.is_err());
    send_all(&cleanups).await;
    assert!(is_free(&store).await);
}

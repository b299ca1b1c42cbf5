//! Races of waiters that give up, or are not polled, for the permit of a local queue.
//!
//! In the first model, some waiters give up after a time or are dropped at any point. It asserts
//! that one task at a time has the permit, that the permit is never lost, and that the waiters that
//! stay get it in FIFO order. In its control, a waiter gives up and keeps its offer. In the second
//! model, some waiters are polled rarely or never, while a task checks the queue as the notifier
//! thread does. It asserts that each polled waiter gets the permit. Its control makes no checks.

use super::*;

const WAITERS: usize = 5;

/// What a waiter does when its time is over.
type GiveUp = fn(Waiter);

/// Some waiters stay in the queue. Others give up after a time, or are dropped at any point.
async fn race(give_up: GiveUp) {
    let queues = Arc::new(LocalQueues::default());
    let key: Arc<str> = Arc::from("k");
    let Entered::Permit(first) = queues.enter(&key, false) else { panic!("the key is free") };
    let in_use = Arc::new(StdMutex::new(true));
    let served = Arc::new(StdMutex::new(Vec::new()));
    let clock = spawn(time::run());
    let (mut staying, mut leaving) = (Vec::new(), Vec::new());
    for place in 0..WAITERS {
        let Entered::Queued(mut waiter) = queues.enter(&key, false) else {
            panic!("the permit is taken")
        };
        let end = time::Instant::now() + TERM.mul_f64(thread_rng().r#gen());
        let (in_use, served) = (Arc::clone(&in_use), Arc::clone(&served));
        // The last waiter stays, so that a lost permit causes a deadlock.
        let stays = place + 1 == WAITERS || thread_rng().r#gen();
        let waiter = spawn(async move {
            let offer = if stays {
                waiter.await
            } else {
                match time::timeout_at(end, &mut waiter).await {
                    Ok(offer) => offer,
                    Err(_) => {
                        shuttle::thread::yield_now();
                        return give_up(waiter);
                    }
                }
            };
            let permit = offer.expect("the queue is open");
            assert!(!std::mem::replace(&mut *lock(&in_use), true), "two tasks have the permit");
            lock(&served).push(place);
            // There is no await until the permit is dropped. A task that is dropped therefore
            // leaves `in_use` correct.
            shuttle::thread::yield_now();
            *lock(&in_use) = false;
            drop(permit);
        });
        if stays { &mut staying } else { &mut leaving }.push(waiter);
    }
    let release = spawn(async move {
        pause().await;
        *lock(&in_use) = false;
        drop(first);
    });
    for waiter in &leaving {
        pause().await;
        if thread_rng().r#gen() {
            waiter.abort();
        }
    }
    for task in staying.into_iter().chain([release]) {
        task.await.expect("not aborted");
    }
    for task in leaving {
        drop(task.await);
    }
    clock.abort();
    assert!(lock(&served).is_sorted(), "not in FIFO order: {:?}", lock(&served));
    assert_eq!((queues.keys(), queues.queued()), (0, 0), "no permit is in use");
}

/// Some waiters are not polled for a while, or never again. Meanwhile a task checks the offers.
async fn race_with_checks(check: fn(&LocalQueues)) {
    let queues = Arc::new(LocalQueues::default());
    let key: Arc<str> = Arc::from("k");
    let Entered::Permit(first) = queues.enter(&key, false) else { panic!("the key is free") };
    let in_use = Arc::new(StdMutex::new(true));
    let (mut polled, mut unpolled) = (Vec::new(), Vec::new());
    for place in 0..WAITERS {
        let Entered::Queued(mut waiter) = queues.enter(&key, false) else {
            panic!("the permit is taken")
        };
        if thread_rng().r#gen() && place + 1 < WAITERS {
            assert!(poll_once(&mut waiter).is_none());
            unpolled.push(waiter);
            continue;
        }
        let in_use = Arc::clone(&in_use);
        polled.push(spawn(async move {
            let permit = loop {
                // Like a branch of a `select!` loop that is not polled for a while.
                yield_randomly(3).await;
                if let Some(permit) = poll_once(&mut waiter) {
                    break permit;
                }
            };
            assert!(!std::mem::replace(&mut *lock(&in_use), true), "two tasks have the permit");
            shuttle::thread::yield_now();
            *lock(&in_use) = false;
            drop(permit);
        }));
    }
    let checks = {
        let queues = Arc::clone(&queues);
        spawn(async move {
            loop {
                yield_randomly(3).await;
                check(&queues);
            }
        })
    };
    pause().await;
    *lock(&in_use) = false;
    drop(first);
    for waiter in polled {
        waiter.await.expect("a polled waiter gets the permit");
    }
    checks.abort();
    // The other waiters get the permit last, in their order.
    for mut waiter in unpolled {
        drop(poll_once(&mut waiter).expect("no other waiter has the permit"));
    }
    assert_eq!((queues.keys(), queues.queued()), (0, 0), "no permit is in use");
}

fn poll_once(waiter: &mut Waiter) -> Option<Offer> {
    let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
    match Pin::new(waiter).poll(&mut cx) {
        std::task::Poll::Ready(offer) => Some(offer.expect("the queue is open")),
        std::task::Poll::Pending => None,
    }
}

#[test]
fn a_polled_waiter_gets_the_permit_even_if_other_waiters_are_not_polled() {
    explore(|| race_with_checks(|queues| queues.check().carry_out()));
}

#[test]
#[should_panic(expected = "exceeded max_steps")]
fn without_checks_an_unpolled_waiter_blocks_the_waiters_behind_it() {
    find_failure(|| race_with_checks(|_| {}));
}

#[test]
fn the_permit_is_neither_lost_nor_duplicated_when_waiters_give_up() {
    explore(|| race(drop));
}

#[test]
#[should_panic(expected = "deadlock")]
fn the_permit_is_lost_if_a_waiter_gives_up_and_keeps_its_offer() {
    find_failure(|| {
        race(|mut waiter| {
            let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
            let offer = std::pin::pin!(&mut waiter).poll(&mut cx);
            std::mem::forget(offer);
        })
    });
}

//! Holders of a permit that are not polled.

use super::super::check::{Findings, MAX_VISITS};
use super::super::queues::PATROL_INTERVAL;
use super::*;

/// A holder that is not polled.
#[derive(Debug, Default)]
struct UnpolledHolder {
    ready: AtomicBool,
    seen: AtomicBool,
    patrols: AtomicUsize,
    calls: std::sync::Mutex<Vec<&'static str>>,
}

impl UnpolledHolder {
    fn record(&self, call: &'static str) {
        self.calls.lock().expect("no panic").push(call);
    }
}

impl PermitHolder for UnpolledHolder {
    fn is_ready(&self) -> bool {
        self.ready.load(Ordering::Relaxed)
    }

    fn is_stalled(&self, _: bool) -> bool {
        self.seen.swap(true, Ordering::Relaxed)
    }

    fn patrol(&self) -> u32 {
        u32::try_from(self.patrols.fetch_add(1, Ordering::Relaxed) + 1).expect("few")
    }

    fn ping(self: Arc<Self>) {
        self.record("ping");
    }

    fn help(self: Arc<Self>) {
        self.record("help");
    }

    fn revoke(self: Arc<Self>) {
        self.record("revoke");
    }
}

fn carry_out_patrol(queues: &TestQueues) {
    let mut findings = Findings::default();
    queues.patrol(&mut queues.lock(), &mut findings);
    findings.carry_out();
}

#[test]
fn a_ready_holder_is_helped_at_the_second_check_while_others_wait() {
    for ready_first in [true, false] {
        let queues = Arc::new(TestQueues::default());
        let permit = permit(&queues);
        let holder = Arc::new(UnpolledHolder::default());
        holder.ready.store(ready_first, Ordering::Relaxed);
        permit.position(0).register(Arc::clone(&holder) as _);
        assert_eq!(queues.check().again, None, "no waiter");
        let waiting = waiter(&queues);
        holder.ready.store(true, Ordering::Relaxed);
        permit.position(0).holder_is_ready();
        queues.check().carry_out();
        assert!(holder.calls.lock().expect("no panic").is_empty(), "its caller has some time");
        queues.check().carry_out();
        assert_eq!(*holder.calls.lock().expect("no panic"), ["help"]);
        permit.granted();
        assert_ne!(queues.check().again, Some(CHECK_INTERVAL), "the holder has the lock");
        drop((waiting, permit));
        assert_eq!((queues.keys(), queues.queued()), (0, 0));
    }
}

#[test]
fn a_ready_holder_is_helped_after_a_single_attempt_by_another_caller() {
    let queues = Arc::new(TestQueues::default());
    let permit = permit(&queues);
    let holder = Arc::new(UnpolledHolder::default());
    holder.ready.store(true, Ordering::Relaxed);
    permit.position(0).register(Arc::clone(&holder) as _);
    assert!(matches!(queues.enter(&key(), true), Entered::Busy(KeyStatus::Acquiring(_))));
    for _ in 0..2 {
        queues.check().carry_out();
    }
    assert_eq!(*holder.calls.lock().expect("no panic"), ["help"]);
    let Requeued::Queued(mut waiter) = permit.position(0).requeue() else { panic!("open") };
    drop(permit);
    // The next caller gets the offer.
    let Entered::Offered(offer, _) = queues.enter(&key(), true) else { panic!("on offer") };
    assert!(takes(&mut waiter).is_none());
    drop(offer);
    assert!(takes(&mut waiter).is_some());
    assert_eq!((queues.keys(), queues.queued()), (0, 0));
}

#[test]
fn a_holder_on_a_silent_runtime_is_pinged_and_then_revoked() {
    let queues = Arc::new(TestQueues::new(PATROL_INTERVAL * 2));
    let permit = permit(&queues);
    let holder = Arc::new(UnpolledHolder::default());
    let _first = waiter(&queues);
    permit.position(0).register(Arc::clone(&holder) as _);
    assert!(queues.check().again.is_some(), "there is a waiter");
    holder.patrols.store(0, Ordering::Relaxed);
    for expected in [&[][..], &["ping"], &["ping"], &["ping", "revoke"]] {
        carry_out_patrol(&queues);
        assert_eq!(*holder.calls.lock().expect("no panic"), expected);
    }
}

/// The two events are concurrent, and neither has seen the other.
#[test]
fn the_patrol_finds_a_holder_that_became_ready_as_the_first_waiter_came() {
    let queues = Arc::new(TestQueues::default());
    let permit = permit(&queues);
    let holder = Arc::new(UnpolledHolder::default());
    permit.position(0).register(Arc::clone(&holder) as _);
    let _waiting = waiter(&queues);
    holder.ready.store(true, Ordering::Relaxed);
    assert!(queues.lock().to_check.is_empty());
    carry_out_patrol(&queues);
    for _ in 0..2 {
        queues.check().carry_out();
    }
    assert_eq!(*holder.calls.lock().expect("no panic"), ["help"]);
}

#[test]
fn forgotten_keys_are_removed_from_the_patrol() {
    let queues = Arc::new(TestQueues::default());
    let mut kept = Vec::new();
    for _ in 0..5 {
        kept.clear();
        let permit = permit(&queues);
        permit.position(0).register(Arc::new(UnpolledHolder::default()));
        let waiting = waiter(&queues);
        kept.push((waiting, permit));
    }
    assert_eq!(queues.lock().to_patrol.len(), 5);
    carry_out_patrol(&queues);
    assert_eq!(queues.lock().to_patrol.len(), 1);
}

#[test]
fn a_patrol_visits_a_part_of_many_holders() {
    let queues = Arc::new(TestQueues::default());
    let kept: Vec<_> = (0..MAX_VISITS * 2)
        .map(|n| {
            let key = Arc::from(n.to_string());
            let Entered::Permit(permit) = queues.enter(&key, false) else { panic!("free") };
            let holder = Arc::new(UnpolledHolder::default());
            permit.position(0).register(Arc::clone(&holder) as _);
            let Entered::Queued(waiter) = queues.enter(&key, false) else { panic!("taken") };
            (holder, waiter, permit)
        })
        .collect();
    let visited = || {
        let visits = kept.iter().map(|(holder, ..)| holder.patrols.load(Ordering::Relaxed));
        visits.sum::<usize>()
    };
    for patrols in 1..=4 {
        carry_out_patrol(&queues);
        assert_eq!(visited(), MAX_VISITS * patrols);
    }
    assert!(kept.iter().all(|(holder, ..)| holder.patrols.load(Ordering::Relaxed) == 2));
}

#[test]
fn a_holder_cannot_act_after_the_end_of_its_grant() {
    let queues = Arc::new(TestQueues::default());
    let permit = permit(&queues);
    let late = permit.position(0);
    let (mut second, _third) = (waiter(&queues), waiter(&queues));
    drop(permit);
    let permit = takes(&mut second).expect("on offer");
    late.register(Arc::new(UnpolledHolder::default()));
    late.granted();
    assert!(queues.lock().by_key[&queues.key(&key())].holder.is_none());
    assert!(matches!(queues.status(&key()), KeyStatus::Acquiring(_)));
    assert!(matches!(late.requeue(), Requeued::Over));
    assert_eq!(queues.queued(), 1);
    let holder = Arc::new(UnpolledHolder::default());
    permit.position(second.number()).register(Arc::clone(&holder) as _);
    late.register(Arc::new(UnpolledHolder::default()));
    late.granted();
    assert!(queues.lock().by_key[&queues.key(&key())].holder.is_some());
}

#[test]
fn a_holder_cannot_requeue_after_the_queues_are_closed() {
    let queues = Arc::new(TestQueues::default());
    let permit = permit(&queues);
    assert!(matches!(queues.enter(&key(), true), Entered::Busy(_)));
    queues.close();
    assert!(matches!(permit.position(0).requeue(), Requeued::Closed));
    drop(permit);
    assert_eq!((queues.keys(), queues.queued()), (0, 0));
}

#[test]
fn a_check_is_requested_when_it_is_needed_earlier_than_planned() {
    let queues = Arc::new(TestQueues::default());
    let check_is_needed = || {
        let mut needed = std::pin::pin!(queues.check_needed());
        needed.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_ready()
    };
    assert!(!check_is_needed(), "nothing to check");
    let permit = permit(&queues);
    let holder = Arc::new(UnpolledHolder::default());
    permit.position(0).register(Arc::clone(&holder) as _);
    let mut waiter = waiter(&queues);
    assert!(check_is_needed(), "a waiter behind a holder");
    queues.check();
    holder.ready.store(true, Ordering::Relaxed);
    permit.position(0).holder_is_ready();
    assert!(check_is_needed(), "the holder is ready");
    permit.position(0).holder_is_ready();
    assert!(!check_is_needed(), "already planned");
    queues.check();
    drop(permit);
    assert!(!check_is_needed(), "a check is planned");
    drop(takes(&mut waiter).expect("on offer"));
    assert_ne!(queues.check().again, Some(CHECK_INTERVAL));
}

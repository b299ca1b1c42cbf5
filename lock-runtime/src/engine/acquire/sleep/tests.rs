use std::sync::Arc;

use super::super::scripted_store::{ONCE, ScriptedStore, request};
use super::*;
use crate::engine::testing::{LEASE, new_owner};
use crate::store::contract::{LockStore, Resource};

/// The shortest and the longest of many sleeps.
fn range(sleep: Sleep, is_woken: bool) -> (Duration, Duration) {
    let pauses = || (0..1000).map(|_| sleep.remaining(is_woken, None));
    (pauses().min().expect("many"), pauses().max().expect("many"))
}

/// A sleep until the end of a lease of which this was left just now.
fn just_now(left: Left) -> Sleep {
    // Later than now, so that no part of the sleep is over during the test.
    Sleep::Holder(left, BootInstant::now().after(Duration::from_secs(60)))
}

#[test]
fn an_acquisition_that_would_be_woken_sleeps_for_ten_seconds_or_more() {
    let (shortest, longest) = range(just_now(Left::Forever), true);
    assert!(shortest >= LONGEST_SLEEP, "{shortest:?}");
    assert!(longest <= LONGEST_SLEEP.mul_f64(1.25), "{longest:?}");
    assert!(longest > shortest + LONGEST_SLEEP / 8, "sleeps are spread: {shortest:?} {longest:?}");
}

#[test]
fn an_acquisition_that_would_not_be_woken_sleeps_for_a_second_or_less() {
    let (shortest, longest) = range(just_now(Left::Forever), false);
    assert!(shortest >= SAFETY_POLL.mul_f64(0.75), "{shortest:?}");
    assert!(longest <= SAFETY_POLL, "{longest:?}");
    assert!(longest > shortest + SAFETY_POLL / 8, "sleeps are spread: {shortest:?} {longest:?}");
}

#[test]
fn an_acquisition_sleeps_until_shortly_after_the_end_of_a_known_lease() {
    let left = Duration::from_millis(400);
    let (shortest, longest) = range(just_now(Left::Time(left)), true);
    let resolution = Duration::from_millis(1);
    assert!(shortest >= left + resolution, "{shortest:?}");
    assert!(longest <= left + resolution + SPREAD, "{longest:?}");
    assert!(longest > shortest + SPREAD / 2, "sleeps are spread: {shortest:?} {longest:?}");
    // The spread of a short lease is small.
    let left = Duration::from_millis(8);
    let (_, longest) = range(just_now(Left::Time(left)), true);
    assert!(longest <= left + resolution + left / 4, "{longest:?}");
    // The time since the answer counts.
    let earlier = BootInstant::now();
    std::thread::sleep(Duration::from_millis(50));
    let pause =
        Sleep::Holder(Left::Time(Duration::from_millis(400)), earlier).remaining(true, None);
    assert!(pause <= Duration::from_millis(351) + SPREAD, "{pause:?}");
    assert_eq!(Sleep::Holder(Left::Time(left), earlier).remaining(true, None), Duration::ZERO);
}

#[test]
fn an_acquisition_asks_again_soon_if_the_rest_of_the_lease_is_unknown() {
    for is_woken in [true, false] {
        let (shortest, longest) = range(just_now(Left::Unknown), is_woken);
        assert!(longest <= SAFETY_POLL / 10, "{longest:?}");
        assert!(shortest >= SAFETY_POLL / 20, "{shortest:?}");
    }
    assert_eq!(Sleep::Pause(LEASE).remaining(true, None), LEASE);
}

#[test]
fn claims_notice_the_death_of_a_holder_one_after_the_other() {
    let sleep = just_now(Left::Time(LEASE));
    let earliest =
        |ahead| (0..100).map(|_| sleep.remaining(true, Some(ahead))).min().expect("many");
    assert!(earliest(0) <= LEASE + SPREAD);
    assert!(earliest(2) >= LEASE + DELAY_BY_PLACE);
    assert!(earliest(1_000_000) <= LEASE + SAFETY_POLL + SPREAD * 2);
}

#[test]
fn a_claim_that_hears_no_messages_asks_more_often_the_fewer_come_before_it() {
    let longest =
        |ahead| (0..100).map(|_| just_now(Left::Forever).remaining(false, Some(ahead))).max();
    assert!(longest(0) <= Some(POLL_BY_PLACE));
    assert!(longest(3) > Some(POLL_BY_PLACE * 2));
    assert!(longest(usize::MAX) <= Some(SAFETY_POLL));
}

fn is_ready(future: impl Future) -> bool {
    let mut future = std::pin::pin!(future);
    let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
    future.as_mut().poll(&mut cx).is_ready()
}

fn subscribed(store: &Arc<ScriptedStore>) -> WakeSource {
    let mut source = WakeSource::default();
    source.subscribe(&request(store, ONCE), new_owner());
    source
}

#[tokio::test]
async fn nothing_wakes_an_acquisition_that_has_not_subscribed() {
    let mut source = WakeSource::default();
    assert!(!source.is_live() && source.last_check().is_none());
    assert_eq!(source.was_taken(BootInstant::now()), None);
    assert!(!is_ready(source.woken()));
    assert!(is_ready(source.yielded()), "there is no yield");
}

#[tokio::test]
async fn a_subscription_wakes_the_acquisition_once_when_it_becomes_live() {
    let store = ScriptedStore::of([]);
    let mut source = subscribed(&store);
    assert!(source.is_live());
    assert!(is_ready(source.woken()), "a release may have come before the subscription");
    assert!(!is_ready(source.woken()));
    store.channels().wake("k", true);
    assert!(is_ready(source.woken()));
}

#[tokio::test(start_paused = true)]
async fn a_yield_ends_after_the_releases_of_others_or_after_a_pause() {
    let store = ScriptedStore::of([]);
    let channels = Arc::clone(store.channels());
    // This release was received before the yield, and does not count.
    let _other = store.subscribe(Resource::exclusive("k"), new_owner(), LEASE);
    channels.wake("k", true);
    let due = Yield { releases: 2, pause: LEASE };
    let mut source = WakeSource::default();
    source.yield_to_others(&request(&store, ONCE), new_owner(), due);
    assert!(source.tried_since_live, "the live subscription is no reason to try");
    assert_eq!(source.was_taken(BootInstant::PAST), Some(false));
    assert_eq!(source.was_taken(BootInstant::now()), Some(true), "the key was taken");
    let begun = time::Instant::now();
    source.yielded().await;
    assert_eq!(begun.elapsed(), LEASE, "no other process has taken the key");
    channels.wake("k", true);
    assert_eq!(source.was_taken(BootInstant::PAST), Some(true));
    let begun = time::Instant::now();
    source.yielded().await;
    // The wake-up above, and then nothing.
    assert_eq!(begun.elapsed(), LEASE, "one more release is missing");
    channels.wake("k", true);
    let begun = time::Instant::now();
    source.yielded().await;
    assert_eq!(begun.elapsed(), Duration::ZERO, "both releases were received");
}

#[cfg(feature = "redis")]
mod checks {
    use super::*;
    use crate::store::subscriptions::{CheckResult, DueCheck, Subscriptions};

    /// Has the store check the key, and find it taken with this rest of the lease.
    fn check(channels: &Subscriptions, left: Left) {
        let DueCheck::Now(listeners) = channels.due(BootInstant::now().after(LEASE * 10), 9) else {
            panic!("a listener is subscribed")
        };
        let found = listeners.into_iter().map(|listener| (listener, None, CheckResult::Busy(left)));
        channels.checked(found, BootInstant::now());
    }

    #[tokio::test]
    async fn a_later_check_by_the_store_counts_like_an_answer_while_checks_continue() {
        let store = Arc::new(ScriptedStore::default());
        let channels =
            Arc::clone(store.channels.get_or_init(|| Subscriptions::remote(Arc::default())));
        let source = subscribed(&store);
        assert!(!source.is_live());
        assert!(channels.subscribed(&[Arc::from("k")]).is_empty());
        assert!(source.is_live());
        let asked = BootInstant::now();
        let asleep = Sleep::Holder(Left::Time(LEASE), asked);
        assert!(source.checked_since(asleep).is_none(), "the key was not checked yet");
        check(&channels, Left::Time(LEASE * 2));
        let seen = source.last_check().expect("the key was checked");
        assert!(seen.0 == Left::Time(LEASE * 2) && seen.1 >= asked);
        assert!(matches!(
            source.checked_since(asleep),
            Some(Sleep::Holder(Left::Time(left), at)) if left == LEASE * 2 && at == seen.1
        ));
        assert!(
            source.checked_since(Sleep::Pause(LEASE)).is_none(),
            "the pause does not depend on the holder"
        );
        let later = BootInstant::now();
        let asked = Sleep::Holder(Left::Time(LEASE), later);
        assert!(source.checked_since(asked).is_none(), "the last answer is newer than the check");
        let asked = Sleep::Holder(Left::Time(LEASE), seen.1);
        assert!(source.checked_since(asked).is_none(), "the last answer is as new as the check");
        // A lease that has ended by now is a reason to try.
        check(&channels, Left::Time(Duration::ZERO));
        std::thread::sleep(Duration::from_millis(5));
        assert!(source.checked_since(asleep).is_none());
        check(&channels, Left::Forever);
        assert!(source.checked_since(asleep).is_some());
        channels.disconnected();
        assert!(source.checked_since(asleep).is_none(), "the store no longer checks the key");
    }
}

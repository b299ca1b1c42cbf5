//! What a contender makes of answers, wake-ups and looks, with a store that gives the answers.

use std::collections::VecDeque;

use super::super::tests::{LEASE, engine_on_store};
use super::*;
use crate::store::{
    Background, Fenced, Lane, Patience, Release as StoreRelease, Released, ReleasedBatch, Renewal,
    Renewed, WakeUps as Channels,
};
use crate::sync::Mutex;

const ONCE: Wait = Wait::For(Duration::ZERO);

/// Gives the answers that it was given, and then none.
#[derive(Default)]
struct Script {
    answers: Mutex<VecDeque<Result<Attempt, StoreError>>>,
    /// Whether each try was fresh.
    tries: Mutex<Vec<bool>>,
    seen: Mutex<Option<(Left, BootInstant)>>,
    channels: std::sync::OnceLock<Arc<Channels>>,
}

impl Script {
    fn of(answers: impl IntoIterator<Item = Result<Attempt, StoreError>>) -> Arc<Self> {
        let script = Self::default();
        *script.answers.lock().expect("test") = answers.into_iter().collect();
        script.channels.get_or_init(Channels::local);
        Arc::new(script)
    }

    fn tries(&self) -> Vec<bool> {
        self.tries.lock().expect("test").clone()
    }
}

impl LockStore for Script {
    fn try_acquire<'a>(
        &'a self,
        claim: Claim<'a>,
        patience: Patience,
        trace: &'a Trace,
    ) -> Eventually<'a, Result<Attempt, StoreError>> {
        Eventually::pending(async move {
            trace.sent(1);
            self.tries.lock().expect("test").push(claim.fresh);
            let answer = self.answers.lock().expect("test").pop_front();
            match answer {
                Some(answer) => answer,
                None => {
                    time::sleep(patience.answer.min(patience.total)).await;
                    Err(StoreError::Unknown("silent".into()))
                }
            }
        })
    }

    fn renew<'a>(
        &'a self,
        batch: &'a [Renewal<'a>],
        _: Lane,
    ) -> Eventually<'a, Vec<Result<Renewed, StoreError>>> {
        Eventually::ready(vec![Ok(Renewed::Extended); batch.len()])
    }

    fn release<'a>(
        &'a self,
        _: &'a str,
        _: &'a Token,
        _: Duration,
        _: Lane,
    ) -> Eventually<'a, Result<Released, StoreError>> {
        Eventually::ready(Ok(Released::Freed { others: 0 }))
    }

    fn release_all<'a>(
        &'a self,
        batch: &'a [StoreRelease<'a>],
        _: Lane,
    ) -> Eventually<'a, ReleasedBatch> {
        let answers = vec![Ok(Released::Freed { others: 0 }); batch.len()];
        Eventually::ready(ReleasedBatch { connection: None, answers })
    }

    fn fence<'a>(&'a self, _: &'a str, _: &'a Token) -> Eventually<'a, Result<Fenced, StoreError>> {
        Eventually::ready(Ok(Fenced::With(1)))
    }

    fn others<'a>(
        &'a self,
        _: &'a str,
        _: WireFormat,
    ) -> Eventually<'a, Result<usize, StoreError>> {
        Eventually::ready(Ok(0))
    }

    fn subscribe(&self, key: &str, format: WireFormat) -> Subscription {
        self.channels.get().expect("made with it").listen(key, key, format)
    }

    fn seen(&self, _: &str, _: WireFormat) -> Option<(Left, BootInstant)> {
        *self.seen.lock().expect("test")
    }

    fn adopt(&self, _: &Background) {}
}

#[expect(clippy::unnecessary_wraps, reason = "as the answers beside it")]
fn busy(left: Left) -> Result<Attempt, StoreError> {
    Ok(Attempt::Busy(left))
}

fn refused(cause: &str) -> Result<Attempt, StoreError> {
    Err(StoreError::Refused(cause.into()))
}

fn unknown(cause: &str) -> Result<Attempt, StoreError> {
    Err(StoreError::Unknown(cause.into()))
}

fn request(wait: Wait) -> Request {
    let (max_hold, min_hold) = (None, Duration::ZERO);
    let terms = Terms { term: LEASE, renewed: false, max_hold, min_hold };
    Request { key: Arc::from("k"), format: WireFormat::default(), wait, terms }
}

/// How a call ends that gets these answers.
async fn outcome(
    wait: Wait,
    answers: impl IntoIterator<Item = Result<Attempt, StoreError>>,
) -> (Result<(), LockError>, Vec<bool>) {
    let store = Script::of(answers);
    let engine = engine_on_store(Arc::clone(&store) as _);
    let outcome = acquire(engine, request(wait), |engine, hold| {
        engine.release_in_background(&hold);
    });
    (outcome.await.map_err(|error| *error), store.tries())
}

fn cause(outcome: &Result<(), LockError>) -> &str {
    match outcome {
        Err(LockError::Unavailable { cause, .. }) => cause,
        other => panic!("{other:?}"),
    }
}

fn holder(outcome: Result<(), LockError>) -> Holder {
    match outcome {
        Err(LockError::Busy { holder, .. }) => holder,
        other => panic!("{other:?}"),
    }
}

mod pauses {
    use super::*;

    /// The shortest and the longest of many.
    fn range(rest: Rest, is_woken: bool) -> (Duration, Duration) {
        let pauses = || (0..1000).map(|_| rest.pause(is_woken));
        (pauses().min().expect("many"), pauses().max().expect("many"))
    }

    fn just_now(left: Left) -> Rest {
        // A little later than now, so that none of it is over.
        Rest::Holder(left, BootInstant::now().after(Duration::from_secs(60)))
    }

    #[test]
    fn one_that_would_be_woken_looks_for_itself_every_ten_seconds_or_more() {
        let (shortest, longest) = range(just_now(Left::Forever), true);
        assert!(shortest >= LONGEST_SLEEP, "{shortest:?}");
        assert!(longest <= LONGEST_SLEEP.mul_f64(1.25), "{longest:?}");
        assert!(
            longest > shortest + LONGEST_SLEEP / 8,
            "they are spread: {shortest:?} {longest:?}"
        );
    }

    #[test]
    fn one_that_would_not_be_woken_looks_every_second_or_less() {
        let (shortest, longest) = range(just_now(Left::Forever), false);
        assert!(shortest >= SAFETY_POLL.mul_f64(0.75), "{shortest:?}");
        assert!(longest <= SAFETY_POLL, "{longest:?}");
        assert!(longest > shortest + SAFETY_POLL / 8, "they are spread: {shortest:?} {longest:?}");
    }

    #[test]
    fn one_that_knows_when_the_lease_ends_sleeps_until_then_and_a_little_longer() {
        let left = Duration::from_millis(400);
        let (shortest, longest) = range(just_now(Left::Time(left)), true);
        let grain = Duration::from_millis(1);
        assert!(shortest >= left + grain, "{shortest:?}");
        assert!(longest <= left + grain + SPREAD, "{longest:?}");
        assert!(longest > shortest + SPREAD / 2, "they are spread: {shortest:?} {longest:?}");
        // Of a short lease only a little.
        let left = Duration::from_millis(8);
        let (_, longest) = range(just_now(Left::Time(left)), true);
        assert!(longest <= left + grain + left / 4, "{longest:?}");
        // What is over of it by now is not slept through again.
        let earlier = BootInstant::now();
        std::thread::sleep(Duration::from_millis(50));
        let pause = Rest::Holder(Left::Time(Duration::from_millis(400)), earlier).pause(true);
        assert!(pause <= Duration::from_millis(351) + SPREAD, "{pause:?}");
        assert_eq!(Rest::Holder(Left::Time(left), earlier).pause(true), Duration::ZERO);
    }

    #[test]
    fn one_that_knows_nothing_of_the_lease_asks_soon() {
        for is_woken in [true, false] {
            let (shortest, longest) = range(just_now(Left::Unknown), is_woken);
            assert!(longest <= SAFETY_POLL / 10, "{longest:?}");
            assert!(shortest >= SAFETY_POLL / 20, "{shortest:?}");
        }
        assert_eq!(Rest::Pause(LEASE).pause(true), LEASE);
    }
}

mod wake_ups {
    use super::*;

    fn is_ready(future: impl Future) -> bool {
        let mut future = std::pin::pin!(future);
        let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
        future.as_mut().poll(&mut cx).is_ready()
    }

    fn subscribed(store: &Script) -> WakeUps {
        let mut wake_ups = WakeUps::default();
        wake_ups.subscribe(store, &request(ONCE));
        wake_ups
    }

    #[tokio::test]
    async fn before_it_has_subscribed_nothing_wakes_it() {
        let mut wake_ups = WakeUps::default();
        assert!(!wake_ups.is_live() && wake_ups.seen().is_none());
        assert_eq!(wake_ups.others_came(BootInstant::now()), None);
        assert!(!is_ready(wake_ups.next()));
        assert!(is_ready(wake_ups.let_others_go()), "nobody is to be let go");
    }

    #[tokio::test]
    async fn the_subscription_wakes_it_once_when_it_becomes_live() {
        let store = Script::of([]);
        let mut wake_ups = subscribed(&store);
        assert!(wake_ups.is_live());
        assert!(is_ready(wake_ups.next()), "a release may have come before");
        assert!(!is_ready(wake_ups.next()));
        store.channels.get().expect("made").wake("k", true);
        assert!(is_ready(wake_ups.next()));
    }

    #[tokio::test(start_paused = true)]
    async fn others_are_let_go_until_they_were_heard_or_do_not_come() {
        let store = Script::of([]);
        let channels = Arc::clone(store.channels.get().expect("made"));
        // Heard before, and no part of it.
        let _other = store.subscribe("k", WireFormat::default());
        channels.wake("k", true);
        let step = StepBack { others: 2, pause: LEASE };
        let mut wake_ups = WakeUps::default();
        wake_ups.step_back(&*store, &request(ONCE), step);
        assert!(wake_ups.was_live, "that is no reason to try");
        assert_eq!(wake_ups.others_came(BootInstant::PAST), Some(false));
        assert_eq!(wake_ups.others_came(BootInstant::now()), Some(true), "the key was taken");
        let begun = time::Instant::now();
        wake_ups.let_others_go().await;
        assert_eq!(begun.elapsed(), LEASE, "none of them has come");
        channels.wake("k", true);
        assert_eq!(wake_ups.others_came(BootInstant::PAST), Some(true));
        let begun = time::Instant::now();
        wake_ups.let_others_go().await;
        // The wake-up above, and then nothing.
        assert_eq!(begun.elapsed(), LEASE, "there is one more to come");
        channels.wake("k", true);
        let begun = time::Instant::now();
        wake_ups.let_others_go().await;
        assert_eq!(begun.elapsed(), Duration::ZERO, "both were heard");
    }

    #[cfg(feature = "redis")]
    mod looks {
        use super::*;
        use crate::store::{Due, Found};

        /// Has the store look at the key, and find it taken for so long.
        fn look(channels: &Channels, left: Left) {
            let Due::Now(listeners) = channels.due(BootInstant::now().after(LEASE * 10), 9) else {
                panic!("one is subscribed")
            };
            channels.looked(listeners.into_iter().map(|listener| (listener, Found::Busy(left))));
        }

        #[tokio::test]
        async fn what_the_store_has_seen_since_counts_while_it_goes_on_looking() {
            let store = Script::default();
            let channels = Arc::clone(store.channels.get_or_init(Channels::remote));
            let wake_ups = subscribed(&store);
            assert!(!wake_ups.is_live());
            assert!(channels.subscribed(&[Arc::from("k")]).is_empty());
            assert!(wake_ups.is_live());
            let asked = BootInstant::now();
            let asleep = Rest::Holder(Left::Time(LEASE), asked);
            assert!(wake_ups.seen_since(asleep).is_none(), "nothing yet");
            look(&channels, Left::Time(LEASE * 2));
            let seen = wake_ups.seen().expect("it has looked");
            assert!(seen.0 == Left::Time(LEASE * 2) && seen.1 >= asked);
            assert!(matches!(
                wake_ups.seen_since(asleep),
                Some(Rest::Holder(Left::Time(left), at)) if left == LEASE * 2 && at == seen.1
            ));
            assert!(
                wake_ups.seen_since(Rest::Pause(LEASE)).is_none(),
                "it was not asleep for that"
            );
            let later = BootInstant::now();
            let asked = Rest::Holder(Left::Time(LEASE), later);
            assert!(wake_ups.seen_since(asked).is_none(), "it knows more than that");
            let asked = Rest::Holder(Left::Time(LEASE), seen.1);
            assert!(wake_ups.seen_since(asked).is_none(), "it knows as much");
            // A lease that is over by now is a reason to try.
            look(&channels, Left::Time(Duration::ZERO));
            std::thread::sleep(Duration::from_millis(5));
            assert!(wake_ups.seen_since(asleep).is_none());
            look(&channels, Left::Forever);
            assert!(wake_ups.seen_since(asleep).is_some());
            channels.disconnected();
            assert!(wake_ups.seen_since(asleep).is_none(), "it does not look any more");
        }
    }
}

mod errors {
    use super::*;

    /// What one is told who gives up knowing this, and what the store has seen, each so long ago.
    fn told(news: impl FnOnce(BootInstant) -> News, seen: Option<(Left, Duration)>) -> LockError {
        let store = Script::of([]);
        let engine = engine_on_store(Arc::clone(&store) as _);
        // Not before, because that takes a while.
        let now = BootInstant::now();
        *store.seen.lock().expect("test") = seen.map(|(left, later)| (left, now.after(later)));
        let budget = Budget::new(ONCE);
        spent(&budget, &engine, &request(ONCE), news(now))
    }

    fn holder_of(news: News) -> Holder {
        holder(Err(told(|_| news, None)))
    }

    /// Of one who has met a lock that has so much left.
    fn holder_met(left: Left, seen: Option<(Left, Duration)>) -> Holder {
        holder(Err(told(|now| News::Elsewhere(left, now), seen)))
    }

    /// Some time may have gone by since.
    fn is_about(holder: &Holder, left: Duration) -> bool {
        matches!(holder, Holder::Elsewhere(Some(about)) if *about <= left && *about + LEASE > left)
    }

    #[tokio::test]
    async fn the_holder_is_the_one_that_was_met_last() {
        assert_eq!(holder_of(News::Here(Caller::here())), Holder::ThisTask);
        let other = tokio::spawn(async { Caller::here() }).await.expect("no panic");
        assert_eq!(holder_of(News::Here(other)), Holder::ThisProcess);
        assert_eq!(holder_of(News::Others), Holder::Elsewhere(None));
        let (met, later) = (Left::Time(LEASE * 90), Duration::from_nanos(1));
        let seen = Left::Time(LEASE * 50);
        assert!(is_about(&holder_met(met, None), LEASE * 90));
        assert!(is_about(&holder_met(met, Some((seen, later))), LEASE * 50));
        // What was seen at that instant is not news.
        assert!(is_about(&holder_met(met, Some((seen, Duration::ZERO))), LEASE * 90));
        assert_eq!(holder_met(met, Some((Left::Forever, later))), Holder::NoExpiry);
        assert_eq!(holder_met(Left::Unknown, None), Holder::Elsewhere(None));
    }

    #[tokio::test]
    async fn one_who_was_asking_for_long_is_waiting_for_the_store() {
        // It has not even begun.
        let soon = |now: BootInstant| News::Asking(now.after(LEASE * 10));
        assert_eq!(holder(Err(told(soon, None))), Holder::ThisProcess);
        // The response timeout is a third of a lease.
        let ago = |now: BootInstant| {
            let ago = u64::try_from((LEASE / 12).as_nanos()).expect("short");
            News::Asking(BootInstant::from_nanos(now.as_nanos() - ago))
        };
        assert!(cause(&Err(told(ago, None))).contains("has not answered"));
        assert_eq!(cause(&Err(told(|_| News::Trouble("down".into()), None))), "down");
    }
}

mod answers {
    use super::*;

    #[tokio::test]
    async fn one_who_tries_once_asks_a_second_time_for_what_is_in_the_way() {
        let left = Left::Time(LEASE * 9);
        let (busy_twice, tries) = outcome(ONCE, [busy(Left::Unknown), busy(left)]).await;
        assert!(matches!(holder(busy_twice), Holder::Elsewhere(Some(_))));
        assert_eq!(tries, [true, false]);
        for failure in [refused("down"), unknown("lost")] {
            let (once, _) = outcome(ONCE, [busy(Left::Unknown), failure]).await;
            assert_eq!(holder(once), Holder::Elsewhere(None), "it has its answer");
        }
        for failure in [refused("down"), unknown("lost")] {
            let (once, tries) = outcome(ONCE, [failure]).await;
            assert!(["down", "lost"].contains(&cause(&once)));
            assert_eq!(tries, [true]);
        }
    }

    #[tokio::test]
    async fn one_who_waits_tries_again_and_is_granted() {
        let wait = Wait::For(LEASE * 10);
        for failure in [refused("down"), unknown("lost"), busy(Left::Time(Duration::ZERO))] {
            let (granted, tries) = outcome(wait, [failure.clone(), Ok(Attempt::Granted)]).await;
            assert_eq!(granted, Ok(()), "{failure:?}");
            assert_eq!(tries, [true, false]);
        }
    }

    #[tokio::test]
    async fn what_cannot_be_helped_is_told_at_once() {
        let found = || "list".to_owned();
        let wrong = StoreError::WrongFormat { key: "k".into(), expected: "string", found: found() };
        let (wrong, tries) = outcome(Wait::Forever, [Err(wrong)]).await;
        let key = "k".to_owned();
        let expected = LockError::WrongFormat { key, expected: "string", found: found() };
        assert_eq!((wrong, tries), (Err(expected), vec![true]));
        let (denied, tries) = outcome(Wait::Forever, [Err(StoreError::Denied("no".into()))]).await;
        assert_eq!((denied, tries), (Err(LockError::Denied { cause: "no".into() }), vec![true]));
    }

    #[tokio::test]
    async fn the_last_trouble_is_what_one_hears() {
        let wait = Wait::For(LEASE);
        let (refusals, tries) = outcome(wait, (0..99).map(|n| refused(&format!("{n}")))).await;
        let tries = tries.len();
        // The last one may have come when there was no time left.
        let last: usize = cause(&refusals).parse().expect("a number");
        assert!(last + 2 >= tries && tries > 2, "{last} of {tries}");
        // A busy lock that the store says nothing of any more.
        let (silent, _) = outcome(Wait::For(LEASE * 3), [busy(Left::Time(LEASE / 9))]).await;
        assert_eq!(cause(&silent), "silent");
    }

    /// The wait ends in the middle of a try, when the store has just answered.
    #[tokio::test]
    async fn a_try_that_is_cut_short_takes_nothing_from_a_recent_answer() {
        let wait = Wait::For(LEASE / 4);
        // An answer is recent for a response timeout, which is longer than that.
        let (cut_short, tries) = outcome(wait, [busy(Left::Time(Duration::ZERO))]).await;
        assert!(matches!(holder(cut_short), Holder::Elsewhere(_)));
        assert!(tries.len() <= 2);
        // Without any answer it is the store that one has waited for.
        let (cut_short, _) = outcome(wait, []).await;
        assert_eq!(cause(&cut_short), "silent");
        // What the store said of itself stands as well.
        let (cut_short, _) = outcome(wait, [refused("down")]).await;
        assert_eq!(cause(&cut_short), "down");
    }
}

use std::sync::Arc;

use super::*;
use crate::store::layout::Layout;
use crate::store::owner::OwnerId;

fn is_ready(future: impl Future<Output = ()>) -> bool {
    let mut future = std::pin::pin!(future);
    let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
    future.as_mut().poll(&mut cx).is_ready()
}

fn listen(subscriptions: &Arc<Subscriptions>, key: &str) -> Subscription {
    subscriptions.listen(key, key, Layout::TOKEN, owner())
}

fn owner() -> OwnerId {
    OwnerId::new().expect("randomness")
}

#[test]
fn a_wake_up_before_the_wait_is_not_lost() {
    let subscriptions = Subscriptions::local();
    let (one, other) = (listen(&subscriptions, "a"), listen(&subscriptions, "b"));
    subscriptions.wake("a", true);
    assert!(is_ready(one.woken()));
    assert!(!is_ready(one.woken()), "each release is one wake-up");
    assert!(!is_ready(other.woken()));
}

#[test]
fn a_local_subscription_is_live_at_once_and_leaves_nothing_behind() {
    let subscriptions = Subscriptions::local();
    let both = [listen(&subscriptions, "a"), listen(&subscriptions, "a")];
    assert!(is_ready(both[0].live()));
    assert_eq!(subscriptions.channels().by_name["a"].listeners.len(), 2);
    drop(both);
    assert!(!subscriptions.channels().by_name.contains_key("a"));
    assert!(subscriptions.channels().by_name.is_empty());
}

mod remote {
    use std::time::Duration;

    use super::*;
    use crate::clock::BootInstant;
    use crate::store::hold_reports::ChangedKeys;
    use crate::store::left::Left;
    use crate::store::queueing::{QueueTicket, Queued};
    use crate::store::subscriptions::channels::GATHER;
    use crate::store::subscriptions::waiting_claim::CHECK_INTERVAL;

    fn names(names: &[&str]) -> Vec<Arc<str>> {
        names.iter().map(|name| Arc::from(*name)).collect()
    }

    fn wanted(subscriptions: &Subscriptions) -> Vec<Arc<str>> {
        subscriptions.take_wanted(|_| true)
    }

    /// Confirms the subscriptions of these channels.
    fn subscribe(subscriptions: &Subscriptions, channels: &[&str]) {
        assert_eq!(subscriptions.subscribed(&names(channels)), names(&[]));
    }

    #[test]
    fn a_subscription_is_live_from_its_confirmation_until_the_connection_is_lost() {
        let subscriptions = Subscriptions::remote(Arc::default());
        let subscription = listen(&subscriptions, "a");
        assert!(!is_ready(subscription.live()) && !subscriptions.is_live("a"));
        assert_eq!(wanted(&subscriptions), names(&["a"]));

        subscribe(&subscriptions, &["a"]);
        assert!(is_ready(subscription.live()) && subscriptions.is_live("a"));
        assert!(wanted(&subscriptions).is_empty());

        subscriptions.disconnected();
        assert!(!is_ready(subscription.live()));
        assert!(is_ready(subscription.woken()), "the message of a release may be lost");
        assert_eq!(wanted(&subscriptions), names(&["a"]));

        subscribe(&subscriptions, &["a"]);
        assert!(
            is_ready(subscription.woken()),
            "a release may have come before the new subscription"
        );
    }

    #[test]
    fn the_loss_of_some_channels_does_not_affect_the_others() {
        let subscriptions = Subscriptions::remote(Arc::default());
        let (lost, kept) = (listen(&subscriptions, "a"), listen(&subscriptions, "b"));
        drop(listen(&subscriptions, "c"));
        assert_eq!(wanted(&subscriptions), names(&["a", "b"]));
        let idle = listen(&subscriptions, "c");
        subscribe(&subscriptions, &["a", "b", "c"]);
        drop(idle);
        subscriptions.disconnected_some(names(&["a", "c", "never"]).iter());
        assert!(is_ready(lost.woken()) && !is_ready(lost.live()));
        assert!(!is_ready(kept.woken()) && is_ready(kept.live()));
        assert_eq!(wanted(&subscriptions), names(&["a"]));
        assert_eq!(due(&subscriptions, CHECK_INTERVAL).len(), 1, "the lost one is not checked");
        subscribe(&subscriptions, &["a"]);
        assert!(is_ready(lost.woken()), "a release may have been missed");
        assert!(!subscriptions.is_live("c"));
    }

    #[test]
    fn a_confirmation_that_comes_after_a_loss_does_not_count() {
        let subscriptions = Subscriptions::remote(Arc::default());
        let _subscription = listen(&subscriptions, "a");
        let (losses, taken) = (subscriptions.losses(), wanted(&subscriptions));
        subscriptions.disconnected();
        assert!(subscriptions.subscribed_since(&taken[0], losses).is_empty());
        assert!(!subscriptions.is_live("a"));
        assert_eq!(wanted(&subscriptions), taken);
        assert!(subscriptions.subscribed_since(&taken[0], losses + 1).is_empty());
        assert!(subscriptions.is_live("a"));
    }

    #[test]
    fn listeners_are_woken_once_if_their_channel_is_live_again_at_once() {
        let subscriptions = Subscriptions::remote(Arc::default());
        let (one, other) = (listen(&subscriptions, "a"), listen(&subscriptions, "b"));
        subscribe(&subscriptions, &["a", "b"]);
        subscriptions.resubscribe(names(&["a", "b", "never"]).iter());
        assert!(!one.is_live() && !is_ready(one.woken()) && !is_ready(other.woken()));
        assert!(due(&subscriptions, CHECK_INTERVAL).is_empty(), "they are not checked");
        assert_eq!(wanted(&subscriptions), names(&["a", "b"]));
        subscribe(&subscriptions, &["a"]);
        assert!(one.is_live() && is_ready(one.woken()), "a release may have been missed");
        assert!(!is_ready(one.woken()) && !is_ready(other.woken()));
        subscriptions.want_again(names(&["b"]));
        assert!(is_ready(other.woken()), "it has to poll from now on");
        subscriptions.want_again(names(&["b"]));
        assert!(!is_ready(other.woken()), "it polls already");
        subscribe(&subscriptions, &["b"]);
        assert!(is_ready(other.woken()));
    }

    #[test]
    fn each_channel_is_requested_once_and_in_parts() {
        let subscriptions = Subscriptions::remote(Arc::default());
        let listeners = ["c", "a", "b", "a"].map(|key| listen(&subscriptions, key));
        let mut fits = [true, true].into_iter();
        assert_eq!(subscriptions.take_wanted(|_| fits.next().is_some()), names(&["a", "b"]));
        subscriptions.want_again(names(&["a", "b"]));
        subscribe(&subscriptions, &["b"]);
        assert_eq!(wanted(&subscriptions), names(&["a", "c"]));
        subscriptions.want_again(names(&["a", "b", "c"]));
        drop(listeners);
        assert!(wanted(&subscriptions).is_empty(), "there are no more listeners");
        assert_eq!(subscriptions.subscribed(&names(&["a"])), names(&["a"]));
    }

    #[test]
    fn releases_by_others_are_counted_without_own_releases() {
        let subscriptions = Subscriptions::remote(Arc::default());
        let subscription = listen(&subscriptions, "a");
        subscriptions.own_release("a").published();
        subscribe(&subscriptions, &["a"]);
        subscriptions.wake("a", true);
        assert_eq!(
            subscription.releases(),
            1,
            "no message is expected for a release before the channel was live"
        );

        let (own, failed) = (subscriptions.own_release("a"), subscriptions.own_release("a"));
        drop(failed);
        subscriptions.wake("a", true);
        own.published();
        assert_eq!(subscription.releases(), 1);
        assert!(is_ready(subscription.woken()), "the key may be free nevertheless");
        subscriptions.wake("a", true);
        assert_eq!(subscription.releases(), 2);
        subscriptions.own_release("a").published();
        subscriptions.wake("a", true);
        assert_eq!(subscription.releases(), 2, "the message of the own release arrived later");

        subscriptions.own_release("a").published();
        subscriptions.disconnected();
        subscribe(&subscriptions, &["a"]);
        subscriptions.wake("a", true);
        assert_eq!(
            subscription.releases(),
            3,
            "no message of the own release is expected after a reconnection"
        );
    }

    #[test]
    fn a_subscription_remains_for_a_while_for_the_next_listener() {
        let subscriptions = Subscriptions::remote(Arc::default());
        drop(listen(&subscriptions, "never live"));
        assert!(subscriptions.is_empty());

        let subscription = listen(&subscriptions, "a");
        assert!(!subscriptions.is_empty());
        subscribe(&subscriptions, &["a"]);
        drop(subscription);
        assert!(subscriptions.take_idle(Duration::from_secs(3600)).is_empty());
        assert!(is_ready(listen(&subscriptions, "a").live()));
        let staying = listen(&subscriptions, "a");
        assert!(subscriptions.take_idle(Duration::ZERO).is_empty());
        drop(staying);
        assert_eq!(subscriptions.take_idle(Duration::ZERO), names(&["a"]));
        assert!(subscriptions.is_empty());
        let late = subscriptions.subscribed(&names(&["a"]));
        assert_eq!(late, names(&["a"]), "a channel without listeners is unsubscribed again");
    }

    /// The listeners whose checks are due after this time.
    fn due(subscriptions: &Subscriptions, after: Duration) -> Vec<Arc<Listener>> {
        match subscriptions.due(BootInstant::now().after(after), 2) {
            DueCheck::Now(listeners) => listeners,
            DueCheck::At(_) | DueCheck::Never => Vec::new(),
        }
    }

    #[test]
    fn keys_of_live_subscriptions_are_checked_every_second() {
        let subscriptions = Subscriptions::remote(Arc::default());
        let one = listen(&subscriptions, "a");
        assert!(
            matches!(subscriptions.due(BootInstant::now(), 1), DueCheck::Never),
            "the subscription is not live"
        );
        subscribe(&subscriptions, &["a"]);
        let other = listen(&subscriptions, "a");
        assert!(due(&subscriptions, Duration::ZERO).is_empty(), "both listeners have just asked");
        for _ in 0..3 {
            let checked = due(&subscriptions, CHECK_INTERVAL);
            assert_eq!(checked.len(), 2, "both listeners at once");
            assert!(
                due(&subscriptions, CHECK_INTERVAL * 9).is_empty(),
                "their checks are in progress"
            );
            let found = CheckResult::Busy(Left::Forever);
            let sent = BootInstant::now().after(CHECK_INTERVAL);
            subscriptions
                .checked(checked.into_iter().map(|listener| (listener, None, found)), sent);
            assert_eq!(one.last_check(), Some((Left::Forever, sent)));
            assert!(!is_ready(one.woken()));
        }
        let last_check = subscriptions.last_check("a", Layout::TOKEN);
        assert_eq!(last_check.map(|(left, _)| left), Some(Left::Forever));
        let checked = due(&subscriptions, CHECK_INTERVAL);
        drop(other);
        subscriptions.checked(
            checked.into_iter().map(|listener| (listener, None, CheckResult::Free)),
            BootInstant::now(),
        );
        assert!(is_ready(one.woken()), "the key seems to be free");
        assert_eq!(due(&subscriptions, CHECK_INTERVAL).len(), 1, "one listener has left");
        drop(one);
        assert!(subscriptions.channels().checks.is_empty());
    }

    #[test]
    fn the_tasks_that_subscribe_and_check_are_notified_when_there_is_work() {
        let subscriptions = Subscriptions::remote(Arc::default());
        assert!(!is_ready(subscriptions.wanted()));
        let _subscription = subscriptions.listen("channel", "key", Layout::ReadWrite, owner());
        assert!(is_ready(subscriptions.wanted()));
        assert!(!is_ready(subscriptions.planned()), "the subscription is not live");
        subscribe(&subscriptions, &["channel"]);
        assert!(is_ready(subscriptions.planned()));
        let checked = due(&subscriptions, CHECK_INTERVAL);
        assert_eq!((checked[0].key(), checked[0].layout()), ("key", Layout::ReadWrite));
        assert!(!is_ready(subscriptions.planned()), "the check is in progress");
        subscriptions.checked(
            checked.into_iter().map(|listener| (listener, None, CheckResult::Free)),
            BootInstant::now(),
        );
        assert!(is_ready(subscriptions.planned()), "the next check");
    }

    #[test]
    fn a_check_is_due_in_the_last_quarter_of_the_interval() {
        for _ in 0..20 {
            let subscriptions = Subscriptions::remote(Arc::default());
            let _subscription = listen(&subscriptions, "a");
            let before = BootInstant::now();
            subscribe(&subscriptions, &["a"]);
            let DueCheck::At(at) = subscriptions.due(before, 1) else { panic!("not due yet") };
            assert!(at.since(before) >= CHECK_INTERVAL * 3 / 4);
            assert!(at <= BootInstant::now().after(CHECK_INTERVAL));
        }
    }

    #[test]
    fn nothing_is_checked_while_the_connection_is_lost() {
        let subscriptions = Subscriptions::remote(Arc::default());
        let subscription = listen(&subscriptions, "a");
        subscribe(&subscriptions, &["a"]);
        let checked = due(&subscriptions, CHECK_INTERVAL);
        subscriptions.disconnected();
        subscriptions.checked(
            checked.into_iter().map(|listener| (listener, None, CheckResult::Failed)),
            BootInstant::now(),
        );
        assert!(due(&subscriptions, CHECK_INTERVAL).is_empty());
        assert!(is_ready(subscription.woken()), "its acquisition has to ask the store");
    }

    /// A claim in a queue, whose client hears messages.
    fn waiting(subscriptions: &Arc<Subscriptions>) -> (Subscription, OwnerId) {
        let (owner, layout) = (owner(), Layout::TOKEN);
        let claim = (owner, crate::store::layout::Mode::Exclusive, Duration::from_secs(9));
        let subscription = subscriptions.wait_in_queue("client", "k", layout, claim);
        subscribe(subscriptions, &["client"]);
        (subscription, owner)
    }

    fn queued(ticket: u64, ahead: usize) -> Queued {
        Queued { left: Left::Forever, ticket: QueueTicket(ticket), ahead }
    }

    fn transfer(ticket: u64) -> QueueMessage {
        QueueMessage::Transfer { ticket: QueueTicket(ticket), term: Duration::from_secs(3) }
    }

    #[test]
    fn a_message_wakes_only_the_claim_that_it_is_about() {
        let subscriptions = Subscriptions::remote(Arc::default());
        let ((one, owner), (other, _)) = (waiting(&subscriptions), waiting(&subscriptions));
        let sent = BootInstant::now();
        one.queued(queued(7, 0), sent);
        subscriptions.received("client", owner, transfer(7));
        assert!(is_ready(one.woken()) && !is_ready(other.woken()));
        let given = one.take_transfer().expect("its turn");
        assert_eq!((given.not_before, given.term), (sent, Duration::from_secs(3)));
        assert_eq!(one.take_transfer(), None, "each message counts once");
        subscriptions.received("client", owner, QueueMessage::Attempt { after: GATHER });
        assert!(is_ready(one.woken()));
        assert!(one.take_pause().is_some_and(|until| until > BootInstant::now()));
        assert_eq!(one.take_pause(), None);
        drop(one);
        subscriptions.received("client", owner, transfer(7));
        subscriptions.received("unknown", owner, transfer(7));
    }

    #[test]
    fn a_message_about_another_stay_in_the_queue_does_not_count() {
        let subscriptions = Subscriptions::remote(Arc::default());
        let (subscription, owner) = waiting(&subscriptions);
        subscriptions.received("client", owner, transfer(7));
        assert_eq!(subscription.take_transfer(), None, "it does not stand in the queue");
        // The message may come before the answer.
        subscriptions.received("client", owner, transfer(7));
        subscription.queued(queued(7, 0), BootInstant::now());
        assert!(subscription.take_transfer().is_some());
        subscriptions.received("client", owner, transfer(7));
        subscription.queued(queued(8, 0), BootInstant::now());
        assert_eq!(subscription.take_transfer(), None);
    }

    #[test]
    fn a_check_confirms_the_stay_that_it_was_about() {
        let subscriptions = Subscriptions::remote(Arc::default());
        let (subscription, owner) = waiting(&subscriptions);
        let sent = BootInstant::now();
        let (later, found) = (sent.after(CHECK_INTERVAL), CheckResult::Queued(Left::Forever, 3));
        for (asked, not_before) in [(7, later), (6, sent)] {
            subscription.queued(queued(7, 5), sent);
            let listener = Arc::clone(&subscription.listener);
            let checked = (listener, Some(QueueTicket(asked)), found);
            subscriptions.checked([checked].into_iter(), later);
            subscriptions.received("client", owner, transfer(7));
            assert_eq!(subscription.take_transfer().map(|it| it.not_before), Some(not_before));
        }
        assert_eq!(subscription.ahead(), Some(5));
    }

    #[test]
    fn a_claim_is_checked_only_if_it_has_not_heard_from_the_store() {
        for (ahead, parts) in [(0, 3), (63, 3), (64, 6)] {
            let subscriptions = Subscriptions::remote(Arc::default());
            let (subscription, _) = waiting(&subscriptions);
            let heard = BootInstant::now().after(CHECK_INTERVAL * 10);
            subscription.queued(queued(7, ahead), heard);
            let next = heard.after(CHECK_INTERVAL / 4 * parts);
            let due =
                |at| matches!(subscriptions.due(at, 1), DueCheck::Now(due) if !due.is_empty());
            assert!(!due(heard), "{ahead}");
            assert!(due(next), "{ahead}");
        }
    }

    #[test]
    fn the_channel_of_a_client_stays_subscribed_for_longer() {
        let (subscriptions, interval) = (Subscriptions::remote(Arc::default()), GATHER);
        let (subscription, _) = waiting(&subscriptions);
        assert_eq!(subscriptions.next_look(interval), None);
        let key = listen(&subscriptions, "a");
        assert_eq!(subscriptions.next_look(interval), Some(interval));
        subscribe(&subscriptions, &["a"]);
        drop((subscription, key));
        assert_eq!(subscriptions.take_idle(Duration::ZERO), names(&["a"]));
        assert!(subscriptions.next_look(interval) > Some(interval));
        assert!(subscriptions.is_live("client"));
        let (again, _) = waiting(&subscriptions);
        assert!(again.is_live());
        drop(again);
        subscriptions.disconnected();
        assert!(subscriptions.is_empty(), "it is subscribed again when a claim waits");
    }

    /// The claims that are checked at once.
    fn due_now(subscriptions: &Subscriptions) -> usize {
        match subscriptions.due(BootInstant::now(), 10) {
            DueCheck::Now(due) => due.iter().inspect(|one| one.set_watched(true)).count(),
            _ => 0,
        }
    }

    #[test]
    fn a_reported_change_makes_a_check_of_the_first_claim_due() {
        let can_watch = Arc::default();
        let subscriptions = Subscriptions::remote(Arc::clone(&can_watch));
        let (first, owner) = waiting(&subscriptions);
        let key = Arc::<str>::from(first.listener.key());
        first.queued(queued(7, 0), BootInstant::now());
        first.watch();
        assert_eq!(due_now(&subscriptions), 0, "the store cannot report changes");
        can_watch.store(true, std::sync::atomic::Ordering::Relaxed);
        first.queued(queued(7, 1), BootInstant::now());
        first.watch();
        assert_eq!(due_now(&subscriptions), 0, "it is not the first one");
        first.queued(queued(7, 0), BootInstant::now());
        first.watch();
        assert_eq!(due_now(&subscriptions), 1, "a check begins the reports");
        let changed = |keys| {
            subscriptions.changed(keys);
            due_now(&subscriptions)
        };
        assert_eq!(changed(ChangedKeys::These(names(&["another"]))), 0);
        assert_eq!(changed(ChangedKeys::These(vec![Arc::clone(&key)])), 1);
        assert_eq!(changed(ChangedKeys::Any), 0, "not again so soon");
        first.listener.set_watched(true);
        subscriptions.received("client", owner, transfer(7));
        assert_eq!(changed(ChangedKeys::These(vec![key])), 0, "the change was the transfer");
    }
}

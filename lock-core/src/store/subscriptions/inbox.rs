//! Channels whose messages are read one by one, such as questions about this client.
//!
//! Such a channel has no listeners, and stays subscribed until its [`Inbox`] is dropped. While the connection
//! is lost, its messages are lost.

use std::sync::Arc;

use super::channels::{Channel, Subscriptions};
use super::inbox_queue::{InboxLimits, InboxQueue, InboxState};

/// The messages of one channel.
#[derive(Debug)]
pub struct Inbox {
    subscriptions: Arc<Subscriptions>,
    name: Arc<str>,
    queue: Arc<InboxQueue>,
}

impl Subscriptions {
    /// Subscribes to a channel whose messages are read one by one.
    pub fn inbox(self: &Arc<Self>, name: &str, limits: InboxLimits) -> Inbox {
        let (name, queue) = (Arc::<str>::from(name), InboxQueue::new(limits));
        let mut channels = self.channels();
        let channel = Channel { inbox: Some(Arc::clone(&queue)), ..Channel::of_client() };
        channels.by_name.insert(Arc::clone(&name), channel);
        channels.wanted.insert(Arc::clone(&name));
        drop(channels);
        self.wanted_some.notify_one();
        Inbox { subscriptions: Arc::clone(self), name, queue }
    }

    /// Passes a message on to the inbox of its channel. Returns whether there is one.
    pub fn deliver(&self, channel: &str, message: &[u8]) -> bool {
        let inbox = self.channels().by_name.get(channel).and_then(|channel| channel.inbox.clone());
        inbox.inspect(|inbox| inbox.receive(message)).is_some()
    }

    /// Tells the inboxes of these channels that the user lacks the permission to subscribe.
    pub fn denied<'a>(&self, names: impl Iterator<Item = &'a Arc<str>>, cause: &str) {
        let inboxes: Vec<_> = {
            let channels = self.channels();
            names.filter_map(|name| channels.by_name.get(name)?.inbox.clone()).collect()
        };
        for inbox in inboxes {
            inbox.set_state(InboxState::Denied(cause.to_owned()));
            inbox.announce();
        }
    }
}

impl Inbox {
    /// See [`InboxQueue::next`].
    pub async fn next(&self) -> Vec<u8> {
        self.queue.next().await
    }

    /// See [`InboxQueue::interruptions`].
    pub fn interruptions(&self) -> u64 {
        self.queue.interruptions()
    }

    /// See [`InboxQueue::clear`].
    pub fn clear(&self) {
        self.queue.clear();
    }

    /// See [`InboxQueue::live`].
    pub async fn live(&self) -> Result<u64, String> {
        self.queue.live().await
    }
}

impl Drop for Inbox {
    fn drop(&mut self) {
        let mut channels = self.subscriptions.channels();
        if let Some(channel) = channels.by_name.get_mut(&self.name) {
            channel.inbox = None;
            // From now on, it lingers no longer than the channel of a key.
            channel.is_of_client = false;
            channels.of_keys += 1;
            channels.abandon(&self.name, false);
        }
        drop(channels);
        // To unsubscribe it soon.
        self.subscriptions.wanted_some.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::time::timeout;

    use super::super::inbox_queue::room_of;
    use super::*;

    const MOMENT: Duration = Duration::from_millis(10);

    const LIMITS: InboxLimits = InboxLimits { longest: 100, room: 1000 };

    fn subscriptions() -> Arc<Subscriptions> {
        Subscriptions::remote(Arc::default())
    }

    fn wanted(subscriptions: &Subscriptions) -> Vec<Arc<str>> {
        subscriptions.take_wanted(|_| true)
    }

    #[tokio::test(start_paused = true)]
    async fn messages_are_read_in_their_order() {
        let subscriptions = subscriptions();
        let inbox = subscriptions.inbox("c", LIMITS);
        assert!(subscriptions.deliver("c", b"1") && subscriptions.deliver("c", b"2"));
        assert!(!subscriptions.deliver("other", b"3"));
        assert_eq!([inbox.next().await, inbox.next().await], [b"1".to_vec(), b"2".to_vec()]);
        assert!(timeout(MOMENT, inbox.next()).await.is_err());
    }

    #[tokio::test(start_paused = true)]
    async fn too_many_messages_are_dropped() {
        let subscriptions = subscriptions();
        let limits = InboxLimits { room: 2 * room_of(b"1234"), ..LIMITS };
        let inbox = subscriptions.inbox("c", limits);
        assert!(subscriptions.deliver("c", &[b'x'; 101]), "it is dropped, because it is too long");
        for message in [&b"1234"[..], b""] {
            for _ in 0..100 {
                subscriptions.deliver("c", message);
            }
            for _ in 0..2 {
                assert_eq!(inbox.next().await, message, "there is room again");
            }
            assert!(timeout(MOMENT, inbox.next()).await.is_err());
        }
    }

    #[tokio::test(start_paused = true)]
    async fn messages_that_are_cleared_leave_their_room_to_others() {
        let subscriptions = subscriptions();
        let limits = InboxLimits { room: room_of(b"old"), ..LIMITS };
        let inbox = subscriptions.inbox("c", limits);
        subscriptions.deliver("c", b"old");
        inbox.clear();
        assert!(timeout(MOMENT, inbox.next()).await.is_err());
        subscriptions.deliver("c", b"new");
        assert_eq!(inbox.next().await, b"new");
    }

    #[tokio::test(start_paused = true)]
    async fn an_inbox_is_subscribed_again_after_a_disconnection() {
        let subscriptions = subscriptions();
        let inbox = subscriptions.inbox("c", LIMITS);
        assert!(timeout(MOMENT, inbox.live()).await.is_err());
        for interruptions in 0..2 {
            let names = wanted(&subscriptions);
            assert_eq!(names, [Arc::from("c")]);
            assert!(subscriptions.subscribed(&names).is_empty());
            assert_eq!(inbox.live().await, Ok(interruptions));
            assert!(subscriptions.take_idle(Duration::ZERO).is_empty());
            subscriptions.disconnected();
            assert!(timeout(MOMENT, inbox.live()).await.is_err());
        }
        subscriptions.disconnected_some([Arc::from("c")].iter());
        assert_eq!(wanted(&subscriptions), [Arc::from("c")]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_missing_permission_is_told() {
        let subscriptions = subscriptions();
        let inbox = subscriptions.inbox("c", LIMITS);
        let names = wanted(&subscriptions);
        subscriptions.denied(names.iter(), "no permission");
        assert_eq!(inbox.live().await, Err("no permission".to_owned()));
        subscriptions.want_again(names);
        subscriptions.subscribed(&wanted(&subscriptions));
        assert_eq!(inbox.live().await, Ok(0), "the user has it now");
    }

    #[tokio::test]
    async fn an_inbox_that_is_dropped_is_unsubscribed() {
        let subscriptions = subscriptions();
        drop(subscriptions.inbox("c", LIMITS));
        assert!(subscriptions.is_empty() && wanted(&subscriptions).is_empty());
        let inbox = subscriptions.inbox("c", LIMITS);
        subscriptions.subscribed(&wanted(&subscriptions));
        assert!(subscriptions.is_quiet(), "it is no channel of a key");
        drop(inbox);
        assert!(timeout(MOMENT, subscriptions.wanted()).await.is_ok(), "it is unsubscribed soon");
        assert_eq!(subscriptions.next_look(MOMENT), Some(MOMENT));
        assert_eq!(subscriptions.take_idle(Duration::ZERO), [Arc::from("c")]);
        assert!(subscriptions.is_empty() && subscriptions.next_look(MOMENT).is_none());
    }

    /// The call that waits for the channel is one of the program.
    #[tokio::test]
    async fn a_waker_that_panics_or_uses_the_channels_harms_nobody() {
        use std::task::{Context, Wake, Waker};

        struct HostileWaker(Arc<Subscriptions>);

        impl Wake for HostileWaker {
            fn wake(self: Arc<Self>) {
                // Would never return if the channels were locked.
                assert!(self.0.is_quiet());
                panic!("as planned");
            }
        }

        let subscriptions = subscriptions();
        let inbox = subscriptions.inbox("c", LIMITS);
        let waker = Waker::from(Arc::new(HostileWaker(Arc::clone(&subscriptions))));
        let mut live = Box::pin(inbox.live());
        assert!(live.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
        let names = wanted(&subscriptions);
        subscriptions.subscribed(&names);
        assert_eq!(live.await, Ok(0));
        let mut next = Box::pin(inbox.next());
        assert!(next.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
        subscriptions.deliver("c", b"1");
        assert_eq!(next.await, b"1");
        subscriptions.disconnected();
        let mut live = Box::pin(inbox.live());
        assert!(live.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
        subscriptions.denied(names.iter(), "no permission");
        assert_eq!(live.await, Err("no permission".to_owned()));
    }
}

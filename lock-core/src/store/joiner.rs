//! Requests that are sent together.
//!
//! A server works longer for a request than for the lock that it is about. Up to a number of requests at one time, each is
//! sent on its own, at once. The ones after that wait until one of those has ended, and are then sent together.
//!
//! One of the requests that go together sends all of them, as a part of its own future: no task has to end with them. It is the
//! last one, which has the most time left.

use std::collections::VecDeque;
use std::sync::Arc;

use tokio::sync::oneshot;

use crate::sync::{Mutex, lock};

/// How many requests are sent.
#[derive(Debug, Clone, Copy)]
pub struct JoinLimits {
    /// At one time.
    pub in_flight: usize,
    /// Together, as one.
    pub together: usize,
}

/// A request that can be sent together with others.
pub trait JoinableRequest {
    /// The key that it is about. Requests about one key are not sent together.
    fn key(&self) -> &[u8];
}

/// Requests of one kind, on one runtime.
pub struct RequestJoiner<Q: JoinableRequest, A> {
    limits: JoinLimits,
    state: Mutex<JoinerState<Q, A>>,
}

struct JoinerState<Q: JoinableRequest, A> {
    in_flight: usize,
    /// Empty unless as many are in flight as may be.
    queue: VecDeque<QueuedRequest<Q, A>>,
    /// The number of flights that have ended, and were not passed on yet.
    ended: usize,
    /// Whether a flight is being passed on.
    is_passing: bool,
}

struct QueuedRequest<Q: JoinableRequest, A> {
    request: Q,
    turn: oneshot::Sender<JoinTurn<Q, A>>,
}

/// What a request is told.
pub enum JoinTurn<Q: JoinableRequest, A> {
    /// It was sent together with others.
    Answered(A),
    /// It sends these.
    Sends(JoinedBatch<Q, A>),
}

/// Requests that are to be sent now, and the right to do so, which passes on to the next ones when this is dropped.
pub struct JoinedBatch<Q: JoinableRequest, A> {
    joiner: Arc<RequestJoiner<Q, A>>,
    /// The request of the sender; `None` after it was taken.
    own: Option<Q>,
    /// Those of others that were not taken.
    unsent: Vec<QueuedRequest<Q, A>>,
    /// Those of others that were taken.
    turns: Vec<oneshot::Sender<JoinTurn<Q, A>>>,
}

impl<Q: JoinableRequest, A> RequestJoiner<Q, A> {
    pub fn new(limits: JoinLimits) -> Arc<Self> {
        let queue = VecDeque::new();
        let state = JoinerState { in_flight: 0, queue, ended: 0, is_passing: false };
        Arc::new(Self { limits, state: Mutex::new(state) })
    }

    /// Waits until a request was sent, or has to be. `None` if another one has sent it, and has ended without answers: it may
    /// have had an effect.
    ///
    /// If the future is dropped, and the request has not been taken out of a batch, it is not sent.
    pub async fn turn(self: &Arc<Self>, request: Q) -> Option<JoinTurn<Q, A>> {
        let told = {
            let mut state = lock(&self.state);
            if state.in_flight < self.limits.in_flight {
                state.in_flight += 1;
                return Some(JoinTurn::Sends(self.batch(request, Vec::new())));
            }
            let (turn, told) = oneshot::channel();
            state.queue.push_back(QueuedRequest { request, turn });
            told
        };
        told.await.ok()
    }

    fn batch(self: &Arc<Self>, own: Q, unsent: Vec<QueuedRequest<Q, A>>) -> JoinedBatch<Q, A> {
        let joiner = Arc::clone(self);
        JoinedBatch { joiner, own: Some(own), unsent, turns: Vec::new() }
    }
}

impl<Q: JoinableRequest, A> JoinerState<Q, A> {
    /// The requests that go next; none if nobody waits.
    fn next(&mut self, together: usize) -> Vec<QueuedRequest<Q, A>> {
        let mut next: Vec<QueuedRequest<Q, A>> = Vec::new();
        while next.len() < together
            && let Some(queued) = self.queue.pop_front()
        {
            let is_same = |other: &QueuedRequest<Q, A>| other.request.key() == queued.request.key();
            if queued.turn.is_closed() {
                // It was given up.
            } else if next.iter().any(is_same) {
                self.queue.push_front(queued);
                break;
            } else {
                next.push(queued);
            }
        }
        next
    }
}

impl<Q: JoinableRequest, A> JoinedBatch<Q, A> {
    /// The number of requests at most.
    pub fn most(&self) -> usize {
        usize::from(self.own.is_some()) + self.unsent.len()
    }

    /// The requests, which are sent now: those that were given up before are left out.
    pub fn take(&mut self) -> Vec<Q> {
        let mut requests: Vec<Q> = self.own.take().into_iter().collect();
        for QueuedRequest { request, turn } in self.unsent.drain(..) {
            if !turn.is_closed() {
                requests.push(request);
                self.turns.push(turn);
            }
        }
        requests
    }

    /// Whether one of the requests that were taken has not been given up since.
    pub fn is_wanted(&self, number: usize) -> bool {
        let Some(number) = number.checked_sub(1) else { return true };
        self.turns.get(number).is_some_and(|turn| !turn.is_closed())
    }

    /// Tells the answers to the requests that were taken, in their order. Returns that of the sender.
    pub fn tell(mut self, answers: impl IntoIterator<Item = A>) -> Option<A> {
        let turns = std::mem::take(&mut self.turns);
        // The next requests go first.
        drop(self);
        let mut answers = answers.into_iter();
        let own = answers.next();
        for (turn, answer) in turns.into_iter().zip(answers) {
            // It may have been given up.
            let _ = turn.send(JoinTurn::Answered(answer));
        }
        own
    }
}

impl<Q: JoinableRequest, A> Drop for JoinedBatch<Q, A> {
    fn drop(&mut self) {
        let joiner = &self.joiner;
        let mut state = lock(&joiner.state);
        // The request that was to send these was given up.
        for queued in self.unsent.drain(..).rev() {
            state.queue.push_front(queued);
        }
        state.ended += 1;
        // To tell a request may drop it, and its batch with it. The outer call passes that on.
        if state.is_passing {
            return;
        }
        state.is_passing = true;
        while state.ended > 0 {
            state.ended -= 1;
            let mut next = state.next(joiner.limits.together);
            let Some(QueuedRequest { request, turn }) = next.pop() else {
                state.in_flight -= 1;
                continue;
            };
            let batch = joiner.batch(request, next);
            drop(state);
            // If that request has just been given up, the batch is dropped here.
            drop(turn.send(JoinTurn::Sends(batch)));
            state = lock(&joiner.state);
        }
        state.is_passing = false;
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::future::poll_fn;
    use std::pin::Pin;
    use std::rc::Rc;
    use std::task::{Context, Poll, Wake, Waker};
    use std::time::Duration;

    use tokio::task::{LocalSet, yield_now};
    use tokio::time::{Instant, sleep, timeout};

    use super::*;

    const LIMITS: JoinLimits = JoinLimits { in_flight: 2, together: 3 };
    const TRIP: Duration = Duration::from_millis(10);

    impl JoinableRequest for &'static str {
        fn key(&self) -> &[u8] {
            self.as_bytes()
        }
    }

    type Sent = Rc<RefCell<Vec<String>>>;

    /// Sends keys to a server that takes a while.
    async fn send(requests: Vec<&'static str>, sent: Sent) -> Vec<String> {
        sent.borrow_mut().push(requests.join("+"));
        sleep(TRIP).await;
        requests.into_iter().map(str::to_uppercase).collect()
    }

    /// The joiner, and what was sent.
    #[derive(Clone)]
    struct SentRequests(Arc<RequestJoiner<&'static str, String>>, Sent);

    impl SentRequests {
        fn new() -> Self {
            Self(RequestJoiner::new(LIMITS), Sent::default())
        }

        async fn ask(self, key: &'static str) -> Option<String> {
            match self.0.turn(key).await? {
                JoinTurn::Answered(answer) => Some(answer),
                JoinTurn::Sends(mut batch) => {
                    let answers = send(batch.take(), self.1).await;
                    batch.tell(answers)
                }
            }
        }

        fn sent(&self) -> String {
            self.1.borrow().join(" ")
        }

        fn assert_idle(&self) {
            let state = lock(&self.0.state);
            assert_eq!((state.in_flight, state.queue.len()), (0, 0));
        }
    }

    /// Runs a test with simulated time.
    fn simulate(test: impl Future<Output = ()>) {
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = runtime.enable_time().start_paused(true).build().expect("a runtime");
        LocalSet::new().block_on(&runtime, test);
    }

    #[test]
    fn requests_go_together_while_as_many_are_in_flight_as_may_be() {
        simulate(async {
            let (server, began) = (SentRequests::new(), Instant::now());
            let asked = ["a", "b", "c", "d", "e", "f"].map(|key| {
                let answer = tokio::task::spawn_local(server.clone().ask(key));
                async move { answer.await.expect("no panic") }
            });
            for (answer, expected) in asked.into_iter().zip(["A", "B", "C", "D", "E", "F"]) {
                assert_eq!(answer.await.as_deref(), Some(expected));
            }
            assert_eq!(server.sent(), "a b e+c+d f");
            assert_eq!(began.elapsed(), TRIP * 2);
            server.assert_idle();
        });
    }

    #[test]
    fn requests_about_one_key_do_not_go_together() {
        simulate(async {
            let server = SentRequests::new();
            for key in ["a", "b", "c", "c", "d"] {
                tokio::task::spawn_local(server.clone().ask(key));
            }
            sleep(TRIP * 3).await;
            assert_eq!(server.sent(), "a b c d+c", "one key twice");
            server.assert_idle();
        });
    }

    /// A request that waits is given up, and so is one that sends others, before it begins and after that.
    #[test]
    fn what_is_given_up_keeps_no_other_request_from_its_answer() {
        simulate(async {
            let server = SentRequests::new();
            for key in ["a", "b"] {
                tokio::task::spawn_local(server.clone().ask(key));
            }
            yield_now().await;
            let waiting = tokio::task::spawn_local(server.clone().ask("c"));
            let follower = tokio::task::spawn_local(server.clone().ask("d"));
            yield_now().await;
            let mut sender = Box::pin(server.clone().ask("e"));
            assert!(is_pending(&mut sender).await);
            waiting.abort();
            sleep(TRIP + TRIP / 2).await;
            // It has its turn, and has not begun.
            drop(sender);
            assert_eq!(follower.await.expect("no panic").as_deref(), Some("D"));
            assert_eq!(server.sent(), "a b d");
            server.assert_idle();

            for key in ["f", "g"] {
                tokio::task::spawn_local(server.clone().ask(key));
            }
            yield_now().await;
            let follower = tokio::task::spawn_local(server.clone().ask("h"));
            yield_now().await;
            let sender = timeout(TRIP + TRIP / 2, server.clone().ask("i")).await;
            assert!(sender.is_err(), "it is slower than that");
            assert_eq!(follower.await.expect("no panic"), None, "its request was sent");
            assert_eq!(server.sent(), "a b d f g i+h");
            server.assert_idle();
        });
    }

    /// A joiner that sends as much as it may, and a part of that.
    fn busy_joiner() -> (SentRequests, JoinedBatch<&'static str, String>) {
        let server = SentRequests::new();
        lock(&server.0.state).in_flight = LIMITS.in_flight;
        let batch = server.0.batch("a", Vec::new());
        (server, batch)
    }

    #[tokio::test]
    async fn what_was_given_up_before_a_batch_is_taken_is_not_sent() {
        let (server, first) = busy_joiner();
        let [mut given_up, mut other, mut sender] =
            ["b", "c", "d"].map(|key| Box::pin(server.0.turn(key)));
        for turn in [&mut given_up, &mut other, &mut sender] {
            assert!(is_pending(turn).await);
        }
        drop(first);
        let Some(JoinTurn::Sends(mut batch)) = sender.await else { panic!("it has its turn") };
        drop(given_up);
        assert_eq!(batch.most(), 3);
        assert_eq!(batch.take(), ["d", "c"]);
        assert!(batch.is_wanted(0) && batch.is_wanted(1) && !batch.is_wanted(2));
        assert_eq!(batch.tell(["D".to_owned(), "C".to_owned()]).as_deref(), Some("D"));
        assert!(matches!(other.await, Some(JoinTurn::Answered(answer)) if answer == "C"));
    }

    /// As when a runtime ends, whose requests are dropped when they are woken.
    #[tokio::test]
    async fn requests_that_are_dropped_when_they_are_woken_take_no_stack() {
        type Waiting = Pin<Box<dyn Future<Output = Option<JoinTurn<&'static str, String>>> + Send>>;
        struct DroppedWhenWoken(Mutex<Option<Waiting>>);
        impl Wake for DroppedWhenWoken {
            fn wake(self: Arc<Self>) {
                let dropped = lock(&self.0).take();
                drop(dropped);
            }
        }
        let (server, first) = busy_joiner();
        for _ in 0..20_000 {
            let joiner = Arc::clone(&server.0);
            let mut turn: Waiting = Box::pin(async move { joiner.turn("b").await });
            let waiting = Arc::new(DroppedWhenWoken(Mutex::new(None)));
            let waker = Waker::from(Arc::clone(&waiting));
            assert!(turn.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
            *lock(&waiting.0) = Some(turn);
        }
        drop(first);
        let state = lock(&server.0.state);
        assert_eq!((state.in_flight, state.queue.len()), (LIMITS.in_flight - 1, 0));
    }

    /// Polls a future once.
    async fn is_pending(future: &mut (impl Future + Unpin)) -> bool {
        poll_fn(|cx| Poll::Ready(Pin::new(&mut *future).poll(cx).is_pending())).await
    }

    /// Many requests at random, some of which are given up: all others have their own answers, and nothing is left.
    #[tokio::test(flavor = "multi_thread", worker_threads = 4)]
    async fn each_request_has_its_own_answer() {
        struct Numbered(usize, [u8; 8]);
        impl JoinableRequest for Numbered {
            fn key(&self) -> &[u8] {
                &self.1
            }
        }
        let joiner = RequestJoiner::new(JoinLimits { in_flight: 3, together: 5 });
        let tasks = (0..2_000_usize).map(|number| {
            let joiner = Arc::clone(&joiner);
            let patience = Duration::from_micros(fastrand::u64(..20_000));
            tokio::spawn(async move {
                let request = Numbered(number, (number as u64 % 50).to_be_bytes());
                let answer = async {
                    match joiner.turn(request).await? {
                        JoinTurn::Answered(answer) => Some(answer),
                        JoinTurn::Sends(mut batch) => {
                            assert!(batch.most() <= 5);
                            let requests = batch.take();
                            sleep(Duration::from_micros(fastrand::u64(..500))).await;
                            batch.tell(requests.into_iter().map(|request| request.0))
                        }
                    }
                };
                let answer = match number % 4 {
                    0 => timeout(patience, answer).await.unwrap_or_default(),
                    _ => answer.await,
                };
                assert!(answer.is_none_or(|answer| answer == number));
            })
        });
        for task in tasks.collect::<Vec<_>>() {
            task.await.expect("no panic");
        }
        let state = lock(&joiner.state);
        assert_eq!((state.in_flight, state.queue.len()), (0, 0));
    }
}

//! Requests that are sent together.
//!
//! A server works longer for a request than for the lock that it is about. Up to a number of requests at one time, each is
//! sent on its own, at once. The ones after that wait until one of those has ended, and are then sent together.
//!
//! The first of the requests that go together sends all of them, as a part of its own future: no task has to end with them.

use std::collections::VecDeque;
use std::sync::Arc;

use tokio::sync::oneshot;

use crate::safeguard::Safeguard;
use crate::sync::{Mutex, lock};

/// How many requests are sent.
#[derive(Debug, Clone, Copy)]
pub(crate) struct JoinLimits {
    /// At one time.
    pub(crate) in_flight: usize,
    /// Together, as one.
    pub(crate) together: usize,
}

/// A request that can be sent together with others.
pub(crate) trait JoinableRequest {
    /// The key that it is about. Requests about one key are not sent together.
    fn key(&self) -> &[u8];
}

/// Requests of one kind, on one runtime.
pub(crate) struct RequestJoiner<Q: JoinableRequest, A> {
    limits: JoinLimits,
    state: Mutex<JoinerState<Q, A>>,
}

struct JoinerState<Q: JoinableRequest, A> {
    in_flight: usize,
    /// Empty unless as many are in flight as may be.
    queue: VecDeque<QueuedRequest<Q, A>>,
}

struct QueuedRequest<Q: JoinableRequest, A> {
    request: Q,
    turn: oneshot::Sender<JoinTurn<Q, A>>,
}

/// What a request that waits is told.
enum JoinTurn<Q: JoinableRequest, A> {
    /// It was sent together with others.
    Answered(A),
    /// It sends this, and what the flight says.
    Sends(Q, Flight<Q, A>),
}

/// The right to send a request, together with these. When it is dropped, the next ones have it.
struct Flight<Q: JoinableRequest, A> {
    joiner: Arc<RequestJoiner<Q, A>>,
    unsent: Vec<QueuedRequest<Q, A>>,
}

impl<Q: JoinableRequest, A> RequestJoiner<Q, A> {
    pub(crate) fn new(limits: JoinLimits) -> Arc<Self> {
        let state = JoinerState { in_flight: 0, queue: VecDeque::new() };
        Arc::new(Self { limits, state: Mutex::new(state) })
    }

    /// The answer to a request. `send` sends it, perhaps with others, and returns the answers in the order of the requests.
    /// `None` if another request has sent it, and has ended without answers: it may have had an effect.
    ///
    /// If the future is dropped before the request is sent, it is not sent.
    pub(crate) async fn join<F>(
        self: &Arc<Self>,
        request: Q,
        send: impl FnOnce(Vec<Q>) -> F,
    ) -> Option<A>
    where
        F: Future<Output = Vec<A>>,
    {
        let (request, mut flight) = match self.begin(request) {
            Ok(begun) => begun,
            Err(turn) => match turn.await.ok()? {
                JoinTurn::Answered(answer) => return Some(answer),
                JoinTurn::Sends(request, flight) => (request, flight),
            },
        };
        let mut requests = vec![request];
        let mut turns = Vec::new();
        for QueuedRequest { request, turn } in flight.unsent.drain(..) {
            requests.push(request);
            turns.push(turn);
        }
        let mut answers = send(requests).await.into_iter();
        // The next requests go first.
        drop(flight);
        let own = answers.next();
        for (turn, answer) in turns.into_iter().zip(answers) {
            // It may have been given up.
            let _ = turn.send(JoinTurn::Answered(answer));
        }
        own
    }

    /// The right to send a request, or what it waits for.
    #[expect(clippy::type_complexity, reason = "used once")]
    fn begin(
        self: &Arc<Self>,
        request: Q,
    ) -> Result<(Q, Flight<Q, A>), oneshot::Receiver<JoinTurn<Q, A>>> {
        let mut state = lock(&self.state);
        if state.in_flight < self.limits.in_flight {
            state.in_flight += 1;
            return Ok((request, Flight { joiner: Arc::clone(self), unsent: Vec::new() }));
        }
        let (turn, told) = oneshot::channel();
        state.queue.push_back(QueuedRequest { request, turn });
        Err(told)
    }

    /// The requests that go next; none if nobody waits.
    fn next(&self) -> Vec<QueuedRequest<Q, A>> {
        let mut state = lock(&self.state);
        let mut next: Vec<QueuedRequest<Q, A>> = Vec::new();
        while next.len() < self.limits.together
            && let Some(queued) = state.queue.pop_front()
        {
            let is_same = |other: &QueuedRequest<Q, A>| other.request.key() == queued.request.key();
            if queued.turn.is_closed() {
                // It was given up.
            } else if next.iter().any(is_same) && Safeguard::JoinedKeysDiffer.is_on() {
                state.queue.push_front(queued);
                break;
            } else {
                next.push(queued);
            }
        }
        if next.is_empty() {
            state.in_flight -= 1;
        }
        next
    }
}

impl<Q: JoinableRequest, A> Drop for Flight<Q, A> {
    fn drop(&mut self) {
        if !self.unsent.is_empty() {
            // The request that was to send them was given up.
            let mut state = lock(&self.joiner.state);
            for queued in self.unsent.drain(..).rev() {
                state.queue.push_front(queued);
            }
        }
        let mut next = self.joiner.next().into_iter();
        let Some(QueuedRequest { request, turn }) = next.next() else { return };
        let flight = Flight { joiner: Arc::clone(&self.joiner), unsent: next.collect() };
        // If that request has just been given up, the flight is dropped here.
        drop(turn.send(JoinTurn::Sends(request, flight)));
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::future::poll_fn;
    use std::pin::Pin;
    use std::rc::Rc;
    use std::task::Poll;
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
    struct Server(Arc<RequestJoiner<&'static str, String>>, Sent);

    impl Server {
        fn new() -> Self {
            Self(RequestJoiner::new(LIMITS), Sent::default())
        }

        async fn ask(self, key: &'static str) -> Option<String> {
            let sent = self.1;
            self.0.join(key, |requests| send(requests, sent)).await
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
            let (server, began) = (Server::new(), Instant::now());
            let asked = ["a", "b", "c", "d", "e", "f"].map(|key| {
                let answer = tokio::task::spawn_local(server.clone().ask(key));
                async move { answer.await.expect("no panic") }
            });
            for (answer, expected) in asked.into_iter().zip(["A", "B", "C", "D", "E", "F"]) {
                assert_eq!(answer.await.as_deref(), Some(expected));
            }
            assert_eq!(server.sent(), "a b c+d+e f");
            assert_eq!(began.elapsed(), TRIP * 2);
            server.assert_idle();
        });
    }

    #[test]
    fn requests_about_one_key_do_not_go_together() {
        simulate(async {
            let server = Server::new();
            for key in ["a", "b", "c", "c", "d"] {
                tokio::task::spawn_local(server.clone().ask(key));
            }
            sleep(TRIP * 3).await;
            assert_eq!(server.sent(), "a b c c+d", "one key twice");
            server.assert_idle();
        });
    }

    /// A request that waits is given up, and so is one that sends others, before it begins and after that.
    #[test]
    fn what_is_given_up_keeps_no_other_request_from_its_answer() {
        simulate(async {
            let server = Server::new();
            for key in ["a", "b"] {
                tokio::task::spawn_local(server.clone().ask(key));
            }
            yield_now().await;
            let waiting = tokio::task::spawn_local(server.clone().ask("c"));
            yield_now().await;
            let mut leader = Box::pin(server.clone().ask("d"));
            assert!(is_pending(&mut leader).await);
            let follower = tokio::task::spawn_local(server.clone().ask("e"));
            yield_now().await;
            waiting.abort();
            sleep(TRIP + TRIP / 2).await;
            // It has its turn, and has not begun.
            drop(leader);
            assert_eq!(follower.await.expect("no panic").as_deref(), Some("E"));
            assert_eq!(server.sent(), "a b e");
            server.assert_idle();

            for key in ["f", "g"] {
                tokio::task::spawn_local(server.clone().ask(key));
            }
            yield_now().await;
            let patient = timeout(TRIP + TRIP / 2, server.clone().ask("h"));
            let leader = tokio::task::spawn_local(patient);
            yield_now().await;
            let follower = tokio::task::spawn_local(server.clone().ask("i"));
            assert!(leader.await.expect("no panic").is_err(), "it is slower than that");
            assert_eq!(follower.await.expect("no panic"), None, "its request was sent");
            assert_eq!(server.sent(), "a b e f g h+i");
            server.assert_idle();
        });
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
                let answer = joiner.join(request, |requests| async move {
                    assert!(requests.len() <= 5);
                    sleep(Duration::from_micros(fastrand::u64(..500))).await;
                    requests.into_iter().map(|request| request.0).collect()
                });
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

    #[cfg(lock_controls)]
    #[test]
    fn controls_of_joiner() {
        crate::safeguard::assert_fails_without(
            "joined-keys-differ",
            "store::joiner::tests::requests_about_one_key_do_not_go_together",
            "one key twice",
        );
    }
}

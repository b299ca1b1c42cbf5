//! The queue at each key, inside this process.
//!
//! Whoever wants a key takes its [`Pass`] first. There is one pass per key: its owner is the only
//! one of this process who talks to the store about the key, and keeps the pass while it holds the
//! lock. All others queue, first come, first served, and cost the store nothing. A pass that is
//! dropped, for whatever reason, goes to the next in the queue, so nobody can be forgotten; one
//! who gives up leaves the queue by dropping its [`Ticket`].
//!
//! Keeps the promise that waiting is cheap.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, PoisonError};

use crate::clock::BootInstant;
use crate::store::Left;
use crate::sync::{Mutex, MutexGuard, oneshot};

/// The queues of all keys of one client.
#[derive(Debug, Default)]
pub(crate) struct Gates {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// A key is here exactly while its pass is with somebody.
    gates: HashMap<Arc<str>, Gate>,
    /// No more queueing; set once, at shutdown.
    closed: bool,
}

#[derive(Debug)]
struct Gate {
    /// By ticket number, so that the first is the one who has waited longest and one who gives up
    /// is found at once.
    queue: BTreeMap<u64, oneshot::Sender<Pass>>,
    next_ticket: u64,
    /// What the owner of the pass last learnt, or the one before: the others in the queue report it
    /// when they give up.
    news: News,
}

impl Gate {
    fn new() -> Self {
        Self { queue: BTreeMap::new(), next_ticket: 0, news: News::Asking(BootInstant::now()) }
    }
}

/// What is known about why a key is not to be had.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum News {
    /// Somebody in this process is finding out, since then.
    Asking(BootInstant),
    /// Somebody in this process has it.
    Here,
    /// Somebody else has it; learnt then.
    Elsewhere(Left, BootInstant),
    /// The store cannot tell.
    Trouble(String),
}

/// The answer to [`Gates::enter`].
#[derive(Debug)]
pub(crate) enum Entry {
    Open(Pass),
    Queued(Ticket),
    Closed,
}

impl Gates {
    /// Takes the pass of `key`, or a place in its queue.
    pub(crate) fn enter(self: &Arc<Self>, key: &Arc<str>) -> Entry {
        let mut state = self.state();
        if state.closed {
            return Entry::Closed;
        }
        let Some(gate) = state.gates.get_mut(key) else {
            state.gates.insert(Arc::clone(key), Gate::new());
            return Entry::Open(Pass { gates: Some(Arc::clone(self)), key: Arc::clone(key) });
        };
        let (sender, turn) = oneshot::channel();
        let number = gate.next_ticket;
        gate.next_ticket += 1;
        gate.queue.insert(number, sender);
        Entry::Queued(Ticket { gates: Arc::clone(self), key: Arc::clone(key), number, turn })
    }

    /// What the owner of the pass last learnt.
    pub(crate) fn news(&self, key: &str) -> News {
        let known = self.state().gates.get(key).map(|gate| gate.news.clone());
        known.unwrap_or_else(|| News::Asking(BootInstant::now()))
    }

    /// Sends everybody in the queues home and lets nobody in any more.
    pub(crate) fn close(&self) {
        let mut state = self.state();
        state.closed = true;
        for gate in state.gates.values_mut() {
            gate.queue.clear();
        }
    }

    /// How many tasks are queued, over all keys.
    pub(crate) fn queued(&self) -> usize {
        self.state().gates.values().map(|gate| gate.queue.len()).sum()
    }

    /// How many keys are held or contended for.
    pub(crate) fn keys(&self) -> usize {
        self.state().gates.len()
    }

    fn pass_on(self: &Arc<Self>, key: &Arc<str>) {
        loop {
            let next = {
                let mut state = self.state();
                let Some(gate) = state.gates.get_mut(key) else { return };
                let Some((_, next)) = gate.queue.pop_first() else {
                    state.gates.remove(key);
                    return;
                };
                if gate.news == News::Here {
                    gate.news = News::Asking(BootInstant::now());
                }
                next
            };
            let pass = Pass { gates: Some(Arc::clone(self)), key: Arc::clone(key) };
            match next.send(pass) {
                Ok(()) => return,
                // It gave up just now. Not dropped as a pass, which would come back here.
                Err(mut pass) => pass.gates = None,
            }
        }
    }

    /// Plain data; every change to it is complete before anything that could panic.
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The right to talk to the store about a key. Goes to the next in the queue when dropped.
#[derive(Debug)]
pub(crate) struct Pass {
    /// `None` once the right is with somebody else.
    gates: Option<Arc<Gates>>,
    key: Arc<str>,
}

impl Pass {
    /// Leaves word for those who give up behind us.
    pub(crate) fn tell(&self, news: &News) {
        let Some(gates) = &self.gates else { return };
        if let Some(gate) = gates.state().gates.get_mut(&self.key) {
            gate.news.clone_from(news);
        }
    }
}

impl Drop for Pass {
    fn drop(&mut self) {
        if let Some(gates) = self.gates.take() {
            gates.pass_on(&self.key);
        }
    }
}

/// A place in the queue; given up when dropped.
#[derive(Debug)]
pub(crate) struct Ticket {
    gates: Arc<Gates>,
    key: Arc<str>,
    number: u64,
    turn: oneshot::Receiver<Pass>,
}

impl Ticket {
    /// Resolves when it is our turn; `None` when the gates were closed instead.
    ///
    /// Dropping it loses nothing: a pass that was on its way goes to the next.
    pub(crate) async fn turn(&mut self) -> Option<Pass> {
        (&mut self.turn).await.ok()
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        if let Some(gate) = self.gates.state().gates.get_mut(&self.key) {
            gate.queue.remove(&self.number);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::task::{Context, Poll, Waker};

    fn key() -> Arc<str> {
        Arc::from("k")
    }

    fn open(gates: &Arc<Gates>) -> Pass {
        match gates.enter(&key()) {
            Entry::Open(pass) => pass,
            other => panic!("{other:?}"),
        }
    }

    fn queue(gates: &Arc<Gates>) -> Ticket {
        match gates.enter(&key()) {
            Entry::Queued(ticket) => ticket,
            other => panic!("{other:?}"),
        }
    }

    fn poll(ticket: &mut Ticket) -> Poll<Option<Pass>> {
        std::pin::pin!(ticket.turn()).poll(&mut Context::from_waker(Waker::noop()))
    }

    fn has_turn(ticket: &mut Ticket) -> Option<Pass> {
        match poll(ticket) {
            Poll::Ready(pass) => pass,
            Poll::Pending => None,
        }
    }

    #[test]
    fn the_pass_goes_round_in_order_of_arrival() {
        let gates = Arc::new(Gates::default());
        let pass = open(&gates);
        let (mut first, mut second) = (queue(&gates), queue(&gates));
        assert!(has_turn(&mut first).is_none());
        drop(pass);
        assert!(has_turn(&mut second).is_none());
        let pass = has_turn(&mut first).expect("its turn");
        drop(pass);
        drop(has_turn(&mut second).expect("its turn"));
        drop((first, second));
        assert_eq!(gates.keys(), 0);
    }

    #[test]
    fn one_who_gave_up_is_skipped() {
        let gates = Arc::new(Gates::default());
        let pass = open(&gates);
        let (first, mut second) = (queue(&gates), queue(&gates));
        drop(first);
        assert_eq!(gates.queued(), 1);
        drop(pass);
        assert!(has_turn(&mut second).is_some());
    }

    #[test]
    fn one_who_gives_up_between_grant_and_receipt_passes_it_on() {
        let gates = Arc::new(Gates::default());
        let pass = open(&gates);
        let (first, mut second) = (queue(&gates), queue(&gates));
        drop(pass);
        drop(first);
        drop(has_turn(&mut second).expect("its turn"));
        drop(second);
        assert_eq!(gates.keys(), 0);
    }

    #[test]
    fn closing_sends_everybody_home() {
        let gates = Arc::new(Gates::default());
        let _pass = open(&gates);
        let mut ticket = queue(&gates);
        gates.close();
        assert!(matches!(poll(&mut ticket), Poll::Ready(None)));
        assert!(matches!(gates.enter(&key()), Entry::Closed));
    }

    #[test]
    fn news_go_with_the_pass() {
        let gates = Arc::new(Gates::default());
        let pass = open(&gates);
        let mut ticket = queue(&gates);
        pass.tell(&News::Trouble("down".into()));
        drop(pass);
        let pass = has_turn(&mut ticket).expect("its turn");
        assert_eq!(gates.news("k"), News::Trouble("down".into()));
        pass.tell(&News::Here);
        assert_eq!(gates.news("k"), News::Here);
    }

    #[test]
    fn keys_do_not_wait_for_each_other() {
        let gates = Arc::new(Gates::default());
        let _pass = open(&gates);
        assert!(matches!(gates.enter(&Arc::from("other")), Entry::Open(_)));
    }
}

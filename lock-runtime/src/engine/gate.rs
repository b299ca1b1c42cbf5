//! The queue at each key, inside this process.
//!
//! Whoever wants a key takes its [`Pass`] first. There is one pass per key: its owner is the only
//! one of this process who talks to the store about the key, and keeps the pass while it holds the
//! lock. All others queue, first come, first served, and cost the store nothing. A pass that is
//! dropped, for whatever reason, goes to the next in the queue, so nobody can be forgotten; one
//! who gives up leaves the queue by dropping its [`Ticket`]. With the pass may come the lock itself,
//! see [`handover`](super::handover).
//!
//! Keeps the promise that waiting is cheap.

use std::collections::{HashMap, VecDeque};
use std::pin::Pin;
use std::sync::{Arc, PoisonError};
use std::task::{Context, Poll};

use super::courtesy::{Courtesies, StepBack};
use super::handover::Inherited;
use crate::clock::BootInstant;
use crate::store::Left;
use crate::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use crate::sync::{Mutex, MutexGuard, oneshot};

/// The queues of all keys of one client.
#[derive(Debug, Default)]
pub(crate) struct Gates {
    state: Mutex<State>,
    /// How many are queued, over all keys. Changed with `state` locked; read without, by those who
    /// only want to know whether there is anybody.
    queued: AtomicUsize,
    /// Whether anything is owed to other processes; likewise.
    owing: AtomicBool,
}

#[derive(Debug, Default)]
struct State {
    /// A key is here exactly while its pass is with somebody.
    gates: HashMap<Arc<str>, Gate>,
    /// What is owed to other processes, also at keys that nobody has any more.
    courtesies: Courtesies,
    /// No more queueing; set once, at shutdown.
    closed: bool,
}

#[derive(Debug)]
struct Gate {
    queue: Queue,
    /// What the owner of the pass last learnt, or the one before: the others in the queue report it
    /// when they give up.
    news: News,
}

impl Gate {
    fn new() -> Self {
        Self { queue: Queue::default(), news: News::Asking(BootInstant::now()) }
    }
}

/// Those who wait for a pass, the one who has waited longest first.
#[derive(Debug, Default)]
struct Queue {
    /// By ticket number; those who gave up are left as empty places until there are many.
    places: VecDeque<(u64, Option<oneshot::Sender<Turn>>)>,
    next_ticket: u64,
    /// How many places are not empty.
    waiting: usize,
}

/// How many empty places a queue may have, besides as many as there are others.
const EMPTY_PLACES: usize = 64;

impl Queue {
    fn push(&mut self, waiter: oneshot::Sender<Turn>) -> u64 {
        let number = self.next_ticket;
        self.next_ticket += 1;
        self.places.push_back((number, Some(waiter)));
        self.waiting += 1;
        number
    }

    fn pop(&mut self) -> Option<oneshot::Sender<Turn>> {
        loop {
            let (_, place) = self.places.pop_front()?;
            if place.is_some() {
                self.waiting -= 1;
                return place;
            }
        }
    }

    /// False if it had its turn before.
    fn give_up(&mut self, number: u64) -> bool {
        let place = self.places.binary_search_by_key(&number, |(number, _)| *number);
        let gone = place.is_ok_and(|place| self.places[place].1.take().is_some());
        self.waiting -= usize::from(gone);
        if self.places.len() > 2 * self.waiting + EMPTY_PLACES {
            self.places.retain(|(_, place)| place.is_some());
        }
        gone
    }
}

/// What comes to the first in the queue.
#[derive(Debug)]
pub(crate) enum Turn {
    /// The right to ask the store.
    Free(Pass),
    /// The lock as well.
    Held(Inherited),
}

/// What is known about why a key is not to be had.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum News {
    /// Somebody in this process is finding out, since then.
    Asking(BootInstant),
    /// Somebody in this process has it.
    Here,
    /// Others were woken by a release of this process, and are let go first.
    Others,
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
    /// For one who will not queue.
    Taken(News),
    Closed,
}

impl Gates {
    /// Takes the pass of `key`, or unless it is only for `once` a place in its queue.
    pub(crate) fn enter(self: &Arc<Self>, key: &Arc<str>, once: bool) -> Entry {
        let mut state = self.state();
        if state.closed {
            return Entry::Closed;
        }
        let Some(gate) = state.gates.get_mut(key) else {
            state.gates.insert(Arc::clone(key), Gate::new());
            return Entry::Open(Pass::new(self, key));
        };
        if once {
            return Entry::Taken(gate.news.clone());
        }
        let (sender, turn) = oneshot::channel();
        let number = gate.queue.push(sender);
        self.queued.fetch_add(1, Ordering::Relaxed);
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
            while gate.queue.pop().is_some() {
                self.queued.fetch_sub(1, Ordering::Relaxed);
            }
        }
    }

    /// How many tasks are queued, over all keys.
    pub(crate) fn queued(&self) -> usize {
        self.queued.load(Ordering::Relaxed)
    }

    /// How many keys are held or contended for.
    pub(crate) fn keys(&self) -> usize {
        self.state().gates.len()
    }

    /// What is owed to other processes before this one tries for `key`.
    pub(crate) fn owed(&self, key: &str) -> Option<StepBack> {
        if !self.owing.load(Ordering::Relaxed) {
            return None;
        }
        self.state().courtesies.owed(key, BootInstant::now())
    }

    /// Others were let go first, and came, or none of them.
    pub(crate) fn stepped_back(&self, key: &str, came: bool) {
        self.state().courtesies.stepped_back(key, came, BootInstant::now());
    }

    /// A release of the key has woken so many other processes.
    fn released(&self, state: &mut State, key: &Arc<str>, others: usize) {
        state.courtesies.released(key, others);
        self.owing.store(!state.courtesies.is_empty(), Ordering::Relaxed);
    }

    /// Takes the first out of the queue of `key`; without one the key is forgotten.
    fn next(&self, key: &Arc<str>, freed: Option<usize>) -> Option<oneshot::Sender<Turn>> {
        let mut state = self.state();
        if let Some(others) = freed {
            self.released(&mut state, key, others);
        }
        let gate = state.gates.get_mut(key)?;
        let next = gate.queue.pop();
        if next.is_none() {
            state.gates.remove(key);
            return None;
        }
        self.queued.fetch_sub(1, Ordering::Relaxed);
        if gate.news == News::Here {
            gate.news = News::Asking(BootInstant::now());
        }
        next
    }

    fn pass_on(self: &Arc<Self>, key: &Arc<str>, mut freed: Option<usize>) {
        while let Some(next) = self.next(key, freed.take()) {
            match next.send(Turn::Free(Pass::new(self, key))) {
                // It gave up just now. Not dropped as a pass, which would come back here.
                Err(Turn::Free(mut pass)) => pass.gates = None,
                Ok(()) | Err(Turn::Held(_)) => return,
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
    /// How many others the release of the key has woken, once it was released.
    freed: Option<usize>,
}

impl Pass {
    fn new(gates: &Arc<Gates>, key: &Arc<str>) -> Self {
        Self { gates: Some(Arc::clone(gates)), key: Arc::clone(key), freed: None }
    }

    /// Leaves word for those who give up behind us.
    pub(crate) fn tell(&self, news: &News) {
        let Some(gates) = &self.gates else { return };
        if let Some(gate) = gates.state().gates.get_mut(&self.key) {
            gate.news.clone_from(news);
        }
    }

    /// The key was freed, which has woken so many other processes.
    pub(crate) fn freed(&mut self, others: usize) {
        self.freed = Some(others);
    }

    /// The pass stays where it is, so what the release has woken is owed by its owner.
    pub(crate) fn owe(&mut self) {
        if let (Some(gates), Some(others)) = (&self.gates, self.freed.take()) {
            gates.released(&mut gates.state(), &self.key, others);
        }
    }

    /// Takes the first out of the queue, to be given this pass.
    pub(crate) fn next_in_queue(&self) -> Option<oneshot::Sender<Turn>> {
        let gates = self.gates.as_ref()?;
        let mut state = gates.state();
        let next = state.gates.get_mut(&self.key)?.queue.pop()?;
        gates.queued.fetch_sub(1, Ordering::Relaxed);
        Some(next)
    }
}

impl Drop for Pass {
    fn drop(&mut self) {
        if let Some(gates) = self.gates.take() {
            gates.pass_on(&self.key, self.freed.take());
        }
    }
}

/// A place in the queue; given up when dropped.
#[derive(Debug)]
pub(crate) struct Ticket {
    gates: Arc<Gates>,
    key: Arc<str>,
    number: u64,
    turn: oneshot::Receiver<Turn>,
}

/// Resolves when it is our turn; to `None` when the gates were closed instead.
///
/// Dropping it loses nothing: a pass that was on its way goes to the next, and a lock with it.
impl Future for Ticket {
    type Output = Option<Turn>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Turn>> {
        Pin::new(&mut self.turn).poll(cx).map(Result::ok)
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        // It had its turn, or was sent home.
        if self.turn.is_terminated() {
            return;
        }
        let mut state = self.gates.state();
        if let Some(gate) = state.gates.get_mut(&self.key)
            && gate.queue.give_up(self.number)
        {
            self.gates.queued.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::task::Waker;

    fn key() -> Arc<str> {
        Arc::from("k")
    }

    fn open(gates: &Arc<Gates>) -> Pass {
        match gates.enter(&key(), false) {
            Entry::Open(pass) => pass,
            other => panic!("{other:?}"),
        }
    }

    fn queue(gates: &Arc<Gates>) -> Ticket {
        match gates.enter(&key(), false) {
            Entry::Queued(ticket) => ticket,
            other => panic!("{other:?}"),
        }
    }

    fn poll(ticket: &mut Ticket) -> Poll<Option<Turn>> {
        Pin::new(ticket).poll(&mut Context::from_waker(Waker::noop()))
    }

    fn has_turn(ticket: &mut Ticket) -> Option<Pass> {
        match poll(ticket) {
            Poll::Ready(Some(Turn::Free(pass))) => Some(pass),
            Poll::Ready(other) => panic!("{other:?}"),
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
    fn those_who_give_up_behind_a_patient_one_leave_no_place() {
        let gates = Arc::new(Gates::default());
        let pass = open(&gates);
        let mut patient = queue(&gates);
        let mut others: VecDeque<Ticket> = (0..10).map(|_| queue(&gates)).collect();
        for _ in 0..10_000 {
            others.push_back(queue(&gates));
            others.pop_front();
        }
        assert_eq!(gates.queued(), 11);
        let places = gates.state().gates[&key()].queue.places.len();
        assert!(places <= 2 * 11 + EMPTY_PLACES + 1, "{places}");
        drop(pass);
        assert!(has_turn(&mut patient).is_some(), "who has waited longest is first");
    }

    #[test]
    fn who_will_not_queue_hears_what_is_known() {
        let gates = Arc::new(Gates::default());
        let pass = open(&gates);
        pass.tell(&News::Here);
        assert!(matches!(gates.enter(&key(), true), Entry::Taken(News::Here)));
        assert_eq!(gates.queued(), 0);
        drop(pass);
        assert!(matches!(gates.enter(&key(), true), Entry::Open(_)));
    }

    #[test]
    fn closing_sends_everybody_home() {
        let gates = Arc::new(Gates::default());
        let _pass = open(&gates);
        let mut ticket = queue(&gates);
        gates.close();
        assert!(matches!(poll(&mut ticket), Poll::Ready(None)));
        assert!(matches!(gates.enter(&key(), false), Entry::Closed));
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
        assert!(matches!(gates.enter(&Arc::from("other"), false), Entry::Open(_)));
    }
}

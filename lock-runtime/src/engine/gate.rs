//! The queue at each key, inside this process.
//!
//! Whoever wants a key takes its [`Pass`] first. There is one pass per key: its owner is the only
//! one of this process who talks to the store about the key, and keeps the pass while it holds the
//! lock. All others queue, first come, first served, and cost the store nothing. A waiter gives up
//! by dropping its [`Ticket`].
//!
//! A pass that is dropped, for whatever reason, is *offered* to the first waiter; with it may come
//! the lock itself, see [`handover`](super::handover). The offer stays here, with the queue, until a
//! waiter takes it when it is polled. So a waiter that gives up, or is not polled, keeps nothing
//! from the others:
//!
//! * When a waiter that was told of an offer gives up, the next one is told.
//! * An offer that nobody has taken at the second look ([`LOOK`] apart) goes to the waiters behind:
//!   two more are told, then four, and so on, and whoever is polled first takes it. Those who were
//!   told and did not come count as *stalled*: they keep their places, and take an offer when they
//!   are polled again, but nobody waits for them any more. While a queue has any, two waiters are
//!   told of each offer.
//! * While all waiters are stalled, an offer goes to the next call that asks for the key. A lock is
//!   not kept for them: it is released, and only the pass is offered ([`Gates::look`]).
//!
//! Keeps the promise that waiting is cheap, and that nobody is passed over.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::{Arc, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use super::courtesy::{Courtesies, StepBack};
use super::handover::Inherited;
use crate::clock::BootInstant;
use crate::protection::Protection;
use crate::room::Peak;
use crate::runtime::Caller;
use crate::store::Left;
use crate::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use crate::sync::{Mutex, MutexGuard, Notify};

/// The time between two looks at the offers: more than a runtime needs to poll a task that it was
/// told to, on a busy machine too.
pub(crate) const LOOK: Duration = Duration::from_millis(10);

/// How many waiters are told of one offer at a time, at the most.
const MOST_TOLD: usize = 64;

/// The queues of all keys of one client.
#[derive(Debug, Default)]
pub(crate) struct Gates {
    state: Mutex<State>,
    /// How many are queued, over all keys. Changed with `state` locked; read without, by those who
    /// only want to know whether there is anybody.
    queued: AtomicUsize,
    /// Whether anything is owed to other processes; likewise.
    owing: AtomicBool,
    /// Told when there is an offer and nobody looks after the offers.
    unattended: Notify,
}

#[derive(Debug, Default)]
struct State {
    /// A key is here exactly while its pass is with somebody, or on offer.
    gates: HashMap<Arc<str>, Gate>,
    peak: Peak,
    /// What is owed to other processes, also at keys that nobody has any more.
    courtesies: Courtesies,
    /// The keys at which something was on offer since the last look, each once.
    offers: Vec<Arc<str>>,
    /// Whether somebody comes to look at them.
    attended: bool,
    /// No more queueing; set once, at shutdown.
    closed: bool,
}

#[derive(Debug)]
struct Gate {
    queue: Queue,
    /// What the owner of the pass last learnt, or the one before: the others in the queue report it
    /// when they give up.
    news: News,
    /// What the first waiter that comes may take. Only while there are waiters.
    offer: Option<Turn>,
    /// How many offers there have been.
    made: u64,
    /// Their number at the last look.
    looked_at: u64,
    /// How many waiters were told of this offer at a time.
    told: usize,
    /// Whether the key is among [`State::offers`].
    listed: bool,
}

impl Gate {
    fn new() -> Self {
        let news = News::Asking(BootInstant::now());
        let (offer, queue) = (None, Queue::default());
        Self { queue, news, offer, made: 0, looked_at: 0, told: 1, listed: false }
    }

    /// Offers something to the first waiters.
    fn offer(&mut self, turn: Turn, wakers: &mut Wakers) {
        if matches!((&turn, &self.news), (Turn::Free(_), News::Here(_))) {
            self.news = News::Asking(BootInstant::now());
        }
        self.offer = Some(turn);
        self.made += 1;
        self.told = if self.queue.stalled.is_empty() { 1 } else { 2 };
        self.queue.tell(self.told, wakers);
    }

    /// Hands over what is on offer.
    fn take(&mut self) -> Option<Turn> {
        let turn = self.offer.take();
        if let Some(Turn::Held(_)) = turn {
            self.news = News::Here(Caller::here());
        }
        turn
    }

    /// Looks at the offer again. Returns a lock that none of the waiters comes for.
    fn look(&mut self, wakers: &mut Wakers) -> Option<Turn> {
        if self.looked_at != self.made {
            self.looked_at = self.made;
            return None;
        }
        self.queue.stall();
        self.told = (self.told * 2).min(MOST_TOLD);
        self.queue.tell(self.told, wakers);
        self.offer.take_if(|turn| self.queue.waiting == 0 && matches!(turn, Turn::Held(_)))
    }
}

/// Those who wait for a pass, the one who has waited longest first.
#[derive(Debug, Default)]
struct Queue {
    /// By ticket number; those who gave up are left as empty places until there are many.
    places: VecDeque<(u64, Option<Place>)>,
    next_ticket: u64,
    /// How many places are not empty.
    waiting: usize,
    /// The tickets of those who were told of an offer and did not come.
    stalled: BTreeSet<u64>,
}

/// One waiter.
#[derive(Debug, Default)]
struct Place {
    /// Wakes its task. `None` before its first poll, and once it was woken.
    waker: Option<Waker>,
    /// It was told of an offer since it was last polled, and may take the one that is there.
    told: bool,
}

/// How many empty places a queue may have, besides as many as there are others.
const EMPTY_PLACES: usize = 64;

impl Queue {
    fn push(&mut self) -> u64 {
        let number = self.next_ticket;
        self.next_ticket += 1;
        self.places.push_back((number, Some(Place::default())));
        self.waiting += 1;
        number
    }

    fn is_empty(&self) -> bool {
        self.waiting == 0 && self.stalled.is_empty()
    }

    fn len(&self) -> usize {
        self.waiting + self.stalled.len()
    }

    /// Whether a waiter may take what is on offer.
    fn was_told(&self, number: u64) -> bool {
        match self.position(number) {
            Ok(at) => self.places[at].1.as_ref().is_some_and(|place| place.told),
            Err(_) => self.stalled.contains(&number),
        }
    }

    /// Tells the first so many waiters of an offer, unless they know.
    fn tell(&mut self, first: usize, wakers: &mut Wakers) {
        while let Some((_, None)) = self.places.front() {
            self.places.pop_front();
        }
        let waiting = self.places.iter_mut().filter_map(|(_, place)| place.as_mut());
        for place in waiting.take(first) {
            place.told = true;
            wakers.extend(place.waker.take());
        }
    }

    /// Those who were told and have not come are stalled.
    fn stall(&mut self) {
        for (number, place) in &mut self.places {
            if place.take_if(|place| place.told).is_some() {
                self.waiting -= 1;
                self.stalled.insert(*number);
            }
        }
    }

    /// A waiter was polled and has found nothing: it waits, at its own place. Returns the waker that
    /// it had before.
    fn wait(&mut self, number: u64, waker: Waker) -> Option<Waker> {
        let place = Place { waker: Some(waker), told: false };
        match self.position(number) {
            Ok(at) => self.places[at].1.replace(place)?.waker,
            Err(at) => {
                if self.stalled.remove(&number) {
                    self.places.insert(at, (number, Some(place)));
                    self.waiting += 1;
                }
                None
            }
        }
    }

    /// Takes a waiter out. False if it is not here.
    fn remove(&mut self, number: u64) -> bool {
        let gone = match self.position(number) {
            Ok(at) => self.places[at].1.take().is_some(),
            Err(_) => return self.stalled.remove(&number),
        };
        self.waiting -= usize::from(gone);
        if self.places.len() > 2 * self.waiting + EMPTY_PLACES {
            self.places.retain(|(_, place)| place.is_some());
        }
        gone
    }

    /// Sends everybody home; returns how many there were.
    fn clear(&mut self, wakers: &mut Wakers) -> usize {
        let waiters = self.len();
        for (_, place) in self.places.drain(..) {
            wakers.extend(place.and_then(|place| place.waker));
        }
        self.waiting = 0;
        self.stalled.clear();
        waiters
    }

    fn position(&self, number: u64) -> Result<usize, usize> {
        self.places.binary_search_by_key(&number, |(number, _)| *number)
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
    /// This caller, of this process, has it.
    Here(Caller),
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
    /// On offer, and none of those who wait comes for it.
    Offered(Turn),
    Queued(Ticket),
    /// For one who will not queue.
    Taken(News),
    Closed,
}

/// Those to wake once nothing is locked any more: wakers are foreign code.
#[derive(Debug, Default)]
struct Wakers {
    first: Option<Waker>,
    more: Vec<Waker>,
}

impl Wakers {
    fn extend(&mut self, waker: Option<Waker>) {
        match waker {
            Some(waker) if self.first.is_some() => self.more.push(waker),
            Some(waker) => self.first = Some(waker),
            None => {}
        }
    }

    /// One that panics keeps nobody else asleep.
    fn wake(self) {
        for waker in self.first.into_iter().chain(self.more) {
            let _ = catch_unwind(AssertUnwindSafe(|| waker.wake()));
        }
    }
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
        if gate.queue.waiting == 0
            && let Some(turn) = gate.take()
        {
            return Entry::Offered(turn);
        }
        if once {
            return Entry::Taken(gate.news.clone());
        }
        let number = gate.queue.push();
        self.queued.fetch_add(1, Ordering::Relaxed);
        let (gates, key) = (Arc::clone(self), Arc::clone(key));
        Entry::Queued(Ticket { gates, key, number, is_over: false })
    }

    /// What the owner of the pass last learnt.
    pub(crate) fn news(&self, key: &str) -> News {
        let known = self.state().gates.get(key).map(|gate| gate.news.clone());
        known.unwrap_or_else(|| News::Asking(BootInstant::now()))
    }

    /// Sends everybody in the queues home and lets nobody in any more.
    pub(crate) fn close(&self) {
        let (mut wakers, mut offers) = (Wakers::default(), Vec::new());
        {
            let mut state = self.state();
            state.closed = true;
            for gate in state.gates.values_mut() {
                self.queued.fetch_sub(gate.queue.clear(&mut wakers), Ordering::Relaxed);
                offers.extend(gate.offer.take());
            }
        }
        wakers.wake();
        drop(offers);
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

    /// Resolves when there is an offer after which nobody looks.
    pub(crate) async fn unattended(&self) {
        self.unattended.notified().await;
    }

    /// Looks at all offers: one that was there at the last look too, goes to waiters behind.
    ///
    /// Returns the locks that none of their waiters comes for, which are to be released, and
    /// whether to look again after [`LOOK`].
    pub(crate) fn look(&self) -> (Vec<Inherited>, bool) {
        let (mut wakers, mut unwanted) = (Wakers::default(), Vec::new());
        let is_to_go_on = {
            let mut state = self.state();
            let State { gates, offers, attended, .. } = &mut *state;
            offers.retain(|key| {
                let Some(gate) = gates.get_mut(key) else { return false };
                if gate.offer.is_some()
                    && Protection::OffersGoOn.is_on()
                    && let Some(Turn::Held(inherited)) = gate.look(&mut wakers)
                {
                    unwanted.push(inherited);
                }
                // While nobody is awake to take it, there is nothing to look after.
                gate.listed = gate.offer.is_some() && gate.queue.waiting > 0;
                gate.listed
            });
            *attended = !offers.is_empty();
            *attended
        };
        wakers.wake();
        (unwanted, is_to_go_on)
    }

    /// Offers a lock to those who wait for `key`; gives it back if there is nobody who is awake.
    pub(crate) fn offer(&self, key: &Arc<str>, inherited: Inherited) -> Result<(), Inherited> {
        let (mut wakers, mut state) = (Wakers::default(), self.state());
        match state.gates.get_mut(key) {
            Some(gate) if gate.queue.waiting > 0 => gate.offer(Turn::Held(inherited), &mut wakers),
            _ => return Err(inherited),
        }
        self.attend(&mut state, key);
        drop(state);
        wakers.wake();
        Ok(())
    }

    /// Sees to it that somebody looks after the offers, of which one was made at `key`.
    fn attend(&self, state: &mut State, key: &Arc<str>) {
        let State { gates, offers, attended, .. } = state;
        if let Some(gate) = gates.get_mut(key).filter(|gate| !gate.listed) {
            gate.listed = true;
            offers.push(Arc::clone(key));
            if !std::mem::replace(attended, true) {
                self.unattended.notify_one();
            }
        }
    }

    /// A release of the key has woken so many other processes.
    fn released(&self, state: &mut State, key: &Arc<str>, others: usize) {
        state.courtesies.released(key, others);
        self.owing.store(!state.courtesies.is_empty(), Ordering::Relaxed);
    }

    /// Offers the pass of `key` to those who wait for it; without any the key is forgotten.
    fn pass_on(self: &Arc<Self>, key: &Arc<str>, freed: Option<usize>) {
        let (mut wakers, mut state) = (Wakers::default(), self.state());
        if let Some(others) = freed {
            self.released(&mut state, key, others);
        }
        let Some(gate) = state.gates.get_mut(key) else { return };
        if gate.queue.is_empty() {
            let State { gates, peak, .. } = &mut *state;
            let before = gates.len();
            gates.remove(key);
            peak.give_back(gates, before);
            return;
        }
        gate.offer(Turn::Free(Pass::new(self, key)), &mut wakers);
        if gate.queue.waiting > 0 {
            self.attend(&mut state, key);
        }
        drop(state);
        wakers.wake();
    }

    /// Plain data; every change to it is complete before anything that could panic.
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The right to talk to the store about a key. Offered to those in the queue when dropped.
#[derive(Debug)]
pub(crate) struct Pass {
    gates: Arc<Gates>,
    key: Arc<str>,
    /// How many others the release of the key has woken, once it was released.
    freed: Option<usize>,
}

impl Pass {
    fn new(gates: &Arc<Gates>, key: &Arc<str>) -> Self {
        Self { gates: Arc::clone(gates), key: Arc::clone(key), freed: None }
    }

    /// Leaves word for those who give up behind us.
    pub(crate) fn tell(&self, news: &News) {
        if let Some(gate) = self.gates.state().gates.get_mut(&self.key) {
            gate.news.clone_from(news);
        }
    }

    /// The key was freed, which has woken so many other processes.
    pub(crate) fn freed(&mut self, others: usize) {
        self.freed = Some(others);
    }

    /// The pass stays where it is, so what the release has woken is owed by its owner.
    pub(crate) fn owe(&mut self) {
        if let Some(others) = self.freed.take() {
            self.gates.released(&mut self.gates.state(), &self.key, others);
        }
    }

    pub(crate) fn gates(&self) -> &Arc<Gates> {
        &self.gates
    }
}

impl Drop for Pass {
    fn drop(&mut self) {
        self.gates.pass_on(&self.key, self.freed.take());
    }
}

/// A place in the queue; given up when dropped.
#[derive(Debug)]
pub(crate) struct Ticket {
    gates: Arc<Gates>,
    key: Arc<str>,
    number: u64,
    /// It had its turn, or was sent home.
    is_over: bool,
}

/// Resolves when it is our turn; to `None` when the gates were closed instead.
///
/// Dropping it loses nothing: what was on offer for it is taken by the next.
impl Future for Ticket {
    type Output = Option<Turn>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Turn>> {
        // Foreign code, so not with the state locked, and neither is the drop of another.
        let mut waker = Some(cx.waker().clone());
        let (turn, _before) = {
            let ticket = &mut *self;
            let mut state = ticket.gates.state();
            if state.closed {
                ticket.is_over = true;
                return Poll::Ready(None);
            }
            // A key stays while there are waiters.
            let Some(gate) = state.gates.get_mut(&ticket.key) else { return Poll::Pending };
            if gate.offer.is_some() && gate.queue.was_told(ticket.number) {
                ticket.is_over = gate.queue.remove(ticket.number);
                ticket.gates.queued.fetch_sub(1, Ordering::Relaxed);
                (gate.take(), None)
            } else {
                let waker = waker.take();
                (None, waker.and_then(|waker| gate.queue.wait(ticket.number, waker)))
            }
        };
        match turn {
            Some(turn) => Poll::Ready(Some(turn)),
            None => Poll::Pending,
        }
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        if self.is_over {
            return;
        }
        let mut wakers = Wakers::default();
        let unwanted = {
            let mut state = self.gates.state();
            let Some(gate) = state.gates.get_mut(&self.key) else { return };
            if !gate.queue.remove(self.number) {
                return;
            }
            self.gates.queued.fetch_sub(1, Ordering::Relaxed);
            if gate.offer.is_some() {
                // It may have been the one that was told.
                gate.queue.tell(gate.told, &mut wakers);
            }
            gate.offer.take_if(|_| gate.queue.is_empty())
        };
        wakers.wake();
        drop(unwanted);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key() -> Arc<str> {
        Arc::from("k")
    }

    fn open(gates: &Arc<Gates>) -> Pass {
        match gates.enter(&key(), false) {
            Entry::Open(pass) => pass,
            other => panic!("{other:?}"),
        }
    }

    /// One who has been polled once.
    fn queue(gates: &Arc<Gates>) -> Ticket {
        match gates.enter(&key(), false) {
            Entry::Queued(mut ticket) => {
                assert!(poll(&mut ticket).is_pending());
                ticket
            }
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

    /// What happens when nobody comes for an offer in time.
    fn look_twice(gates: &Arc<Gates>) -> bool {
        gates.look();
        gates.look().1
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
    fn one_who_gives_up_between_offer_and_receipt_leaves_it_to_the_next() {
        let gates = Arc::new(Gates::default());
        let pass = open(&gates);
        let (first, mut second) = (queue(&gates), queue(&gates));
        drop(pass);
        drop(first);
        drop(has_turn(&mut second).expect("its turn"));
        drop(second);
        assert_eq!((gates.keys(), gates.queued()), (0, 0));
    }

    #[test]
    fn an_offer_that_everybody_gives_up_leaves_nothing() {
        let gates = Arc::new(Gates::default());
        let pass = open(&gates);
        let (first, second) = (queue(&gates), queue(&gates));
        drop(pass);
        drop((second, first));
        assert_eq!((gates.keys(), gates.queued()), (0, 0));
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
    fn one_who_is_not_polled_keeps_its_place_and_nobody_waits_for_it() {
        let gates = Arc::new(Gates::default());
        let pass = open(&gates);
        let (mut first, mut second) = (queue(&gates), queue(&gates));
        let mut third = queue(&gates);
        drop(pass);
        gates.look();
        assert!(has_turn(&mut second).is_none(), "the first has some time");
        gates.look();
        let pass = has_turn(&mut second).expect("the first has not come");
        assert!(has_turn(&mut third).is_none());
        assert!(has_turn(&mut first).is_none(), "it was too late");
        drop(pass);
        assert!(has_turn(&mut third).is_none(), "the first is at its old place");
        drop(has_turn(&mut first).expect("its turn"));
        drop(has_turn(&mut third).expect("its turn"));
        assert_eq!((gates.keys(), gates.queued()), (0, 0));
    }

    #[test]
    fn a_stalled_one_that_comes_back_while_there_is_an_offer_takes_it() {
        let gates = Arc::new(Gates::default());
        let pass = open(&gates);
        let mut first = queue(&gates);
        let (mut second, third) = (queue(&gates), queue(&gates));
        drop(pass);
        look_twice(&gates);
        let pass = has_turn(&mut first).expect("nobody else was faster");
        assert!(has_turn(&mut second).is_none());
        drop((pass, third));
        drop(has_turn(&mut second).expect("its turn"));
        assert_eq!((gates.keys(), gates.queued()), (0, 0));
    }

    #[test]
    fn many_who_are_not_polled_cost_few_looks() {
        let gates = Arc::new(Gates::default());
        let pass = open(&gates);
        let stalled: Vec<Ticket> = (0..100).map(|_| queue(&gates)).collect();
        let mut last = queue(&gates);
        drop(pass);
        let looks = (1..100).find(|_| {
            gates.look();
            has_turn(&mut last).is_some()
        });
        assert!(looks.is_some_and(|looks| looks <= 8), "{looks:?}");
        drop(stalled);
        assert_eq!((gates.keys(), gates.queued()), (0, 0));
    }

    #[test]
    fn while_one_is_stalled_two_are_told_at_a_time() {
        let gates = Arc::new(Gates::default());
        let pass = open(&gates);
        let (_one, mut two) = (queue(&gates), queue(&gates));
        let (_three, mut four) = (queue(&gates), queue(&gates));
        drop(pass);
        look_twice(&gates);
        drop(has_turn(&mut two).expect("the one before it has not come"));
        assert!(has_turn(&mut four).is_some(), "without another look");
    }

    #[test]
    fn while_all_are_stalled_an_offer_goes_to_who_asks() {
        for once in [true, false] {
            let gates = Arc::new(Gates::default());
            let pass = open(&gates);
            let mut first = queue(&gates);
            drop(pass);
            gates.look();
            assert!(matches!(gates.enter(&key(), true), Entry::Taken(_)));
            assert!(!gates.look().1, "there is nobody to look after");
            let Entry::Offered(turn) = gates.enter(&key(), once) else { panic!("on offer") };
            assert!(has_turn(&mut first).is_none(), "it is in other hands");
            drop(turn);
            assert!(has_turn(&mut first).is_some());
        }
    }

    #[test]
    fn a_waker_is_called_with_nothing_locked_and_may_panic() {
        struct Rude(Arc<Gates>);
        impl std::task::Wake for Rude {
            fn wake(self: Arc<Self>) {
                assert_eq!(self.0.queued(), 2);
                // Would block for ever if the state were locked.
                assert_eq!(self.0.keys(), 1);
                panic!("as planned");
            }
        }
        let gates = Arc::new(Gates::default());
        let pass = open(&gates);
        let (mut first, _second) = (queue(&gates), queue(&gates));
        let rude = Waker::from(Arc::new(Rude(Arc::clone(&gates))));
        assert!(Pin::new(&mut first).poll(&mut Context::from_waker(&rude)).is_pending());
        drop(pass);
        assert!(has_turn(&mut first).is_some());
    }

    #[test]
    fn keys_that_nobody_has_any_more_keep_no_memory() {
        let gates = Arc::new(Gates::default());
        let passes: Vec<Pass> = (0..100 * crate::room::KEPT)
            .map(|n| match gates.enter(&Arc::from(n.to_string()), false) {
                Entry::Open(pass) => pass,
                other => panic!("{other:?}"),
            })
            .collect();
        drop(passes);
        let room = gates.state().gates.capacity();
        assert!(room <= 4 * crate::room::KEPT, "{room}");
    }

    #[test]
    fn who_will_not_queue_hears_what_is_known() {
        let gates = Arc::new(Gates::default());
        let pass = open(&gates);
        pass.tell(&News::Here(Caller::here()));
        assert!(matches!(gates.enter(&key(), true), Entry::Taken(News::Here(_))));
        assert_eq!(gates.queued(), 0);
        drop(pass);
        assert!(matches!(gates.enter(&key(), true), Entry::Open(_)));
    }

    #[test]
    fn closing_sends_everybody_home() {
        let gates = Arc::new(Gates::default());
        let pass = open(&gates);
        let (mut ticket, mut told) = (queue(&gates), queue(&gates));
        drop(pass);
        gates.close();
        assert!(matches!(poll(&mut ticket), Poll::Ready(None)));
        assert!(matches!(poll(&mut told), Poll::Ready(None)));
        assert!(matches!(gates.enter(&key(), false), Entry::Closed));
        assert_eq!((gates.keys(), gates.queued()), (0, 0), "what was on offer is dropped");
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
        pass.tell(&News::Others);
        assert_eq!(gates.news("k"), News::Others);
    }

    #[test]
    fn keys_do_not_wait_for_each_other() {
        let gates = Arc::new(Gates::default());
        let _pass = open(&gates);
        assert!(matches!(gates.enter(&Arc::from("other"), false), Entry::Open(_)));
    }
}

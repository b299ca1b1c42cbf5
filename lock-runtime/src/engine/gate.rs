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
//! The owner of a pass may not be polled either, while others wait behind it. So an owner that waits
//! for something is [known](Owner) here; one that could go on and is not polled is helped, see
//! [`driven`](super::driven).
//!
//! Keeps the promise that waiting is cheap, and that nobody is passed over.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::hash::{BuildHasher, BuildHasherDefault, Hash, Hasher, RandomState};
use std::pin::Pin;
use std::sync::{Arc, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use super::courtesy::{Courtesies, StepBack};
use super::handover::Inherited;
use crate::clock::BootInstant;
use crate::foreign::contained;
use crate::protection::Protection;
use crate::room::Peak;
use crate::runtime::Caller;
use crate::store::Left;
use crate::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use crate::sync::{Mutex, MutexGuard, Notify};

/// The time between two looks at the offers: more than a runtime needs to poll a task that it was
/// told to, on a busy machine too.
pub(crate) const LOOK: Duration = Duration::from_millis(10);

/// The time between two looks at owners that are not known to be able to go on.
const PATROL: Duration = Duration::from_millis(250);

/// How many owners are visited in one patrol, at the most.
const MOST_PATROLLED: usize = 1_000;

/// How many waiters are told of one offer at a time, at the most.
const MOST_TOLD: usize = 64;

/// A key and its hash, which is made once for all look-ups of an acquisition.
#[derive(Debug, Clone)]
struct Key {
    hash: u64,
    name: Arc<str>,
}

impl Hash for Key {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.hash);
    }
}

impl PartialEq for Key {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.name, &other.name) || self.name == other.name
    }
}

impl Eq for Key {}

/// Takes the hash of a [`Key`] as it is.
#[derive(Debug, Default)]
struct AsItIs(u64);

impl Hasher for AsItIs {
    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = self.0.rotate_left(8) ^ u64::from(*byte);
        }
    }

    fn write_u64(&mut self, hash: u64) {
        self.0 = hash;
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

/// The queues of all keys of one client.
#[derive(Debug)]
pub(crate) struct Gates {
    /// For so many patrols in a row nothing may be heard from an owner's runtime.
    patience: u32,
    /// Makes the hashes of keys: a random one, because others may choose the keys.
    hasher: RandomState,
    state: Mutex<State>,
    /// How many are queued, over all keys. Changed with `state` locked; read without, by those who
    /// only want to know whether there is anybody.
    queued: AtomicUsize,
    /// Whether anything is owed to other processes; likewise.
    owing: AtomicBool,
    /// As in `state`; likewise.
    closed: AtomicBool,
    /// Told when somebody is to look after something, or sooner than it was to be.
    unattended: Notify,
}

#[cfg(test)]
impl Default for Gates {
    fn default() -> Self {
        Self::new(Duration::from_secs(3))
    }
}

#[derive(Debug, Default)]
struct State {
    /// A key is here exactly while its pass is with somebody, or on offer.
    gates: HashMap<Key, Gate, BuildHasherDefault<AsItIs>>,
    peak: Peak,
    /// What is owed to other processes, also at keys that nobody has any more.
    courtesies: Courtesies,
    /// The keys at which something was on offer since the last look. One may be here twice that has
    /// been forgotten meanwhile.
    ///
    /// Also those whose owner was told to go on while others waited.
    offers: Vec<Key>,
    /// The keys at which somebody waits behind an owner that waits for something itself, and the first
    /// [`Gate::turn`] there: one that was forgotten and is back is another.
    behind: VecDeque<(Key, u64)>,
    /// How often a pass has come to an owner.
    turns: u64,
    /// How soon somebody comes to look at them.
    attended: Option<Duration>,
    /// How many looks there have been.
    looks: u64,
    /// When the last patrol was.
    patrol: BootInstant,
    /// No more queueing; set once, at shutdown.
    closed: bool,
}

#[derive(Debug)]
struct Gate {
    queue: Queue,
    /// What the owner of the pass last learnt, or the one before: the others in the queue report it
    /// when they give up.
    news: News,
    /// The number of its owner's turn; and of its first owner's.
    turn: u64,
    first_turn: u64,
    /// Who has the pass, while it waits for something.
    owner: Option<Arc<dyn Owner>>,
    /// Somebody has come meanwhile who would not queue.
    asked: bool,
    /// What the first waiter that comes may take. Only while there are waiters.
    offer: Option<Turn>,
    /// How many offers there have been.
    made: u64,
    /// Their number at the last look.
    looked_at: u64,
    /// The number of that look.
    look: u64,
    /// How many waiters were told of this offer at a time.
    told: usize,
    /// Whether the key is among [`State::offers`].
    listed: bool,
    /// Whether it is among [`State::behind`].
    patrolled: bool,
}

impl Gate {
    fn new(turn: u64) -> Self {
        Self {
            queue: Queue::default(),
            news: News::Asking(BootInstant::now()),
            turn,
            first_turn: turn,
            owner: None,
            asked: false,
            offer: None,
            made: 0,
            looked_at: 0,
            look: 0,
            told: 1,
            listed: false,
            patrolled: false,
        }
    }

    /// Whether anybody is awake who wants what its owner has.
    fn is_wanted(&self) -> bool {
        self.queue.waiting > 0 || self.asked
    }

    /// Whether its owner is to be looked after.
    fn has_owner(&self, closed: bool) -> bool {
        self.owner.is_some() && (self.is_wanted() || closed)
    }

    /// It waits for nothing any more, or somebody else has the pass.
    fn take_owner(&mut self) -> Option<Arc<dyn Owner>> {
        self.asked = false;
        self.owner.take()
    }

    /// Whether its owner could go on, and somebody waits for that.
    fn has_told_owner(&self, closed: bool) -> bool {
        self.has_owner(closed) && self.owner.as_ref().is_some_and(|owner| owner.is_told())
    }

    /// Offers something to the first waiters.
    fn offer(&mut self, turn: Turn, wakers: &mut Wakers) {
        if matches!((&turn, &self.news), (Turn::Free(_), News::Here(_))) {
            self.news = News::Asking(BootInstant::now());
        }
        self.turn = 0;
        self.offer = Some(turn);
        self.made += 1;
        self.told = if self.queue.stalled.is_empty() { 1 } else { 2 };
        self.queue.tell(self.told, wakers);
    }

    /// Hands over what is on offer.
    fn take(&mut self, turns: &mut u64) -> Option<Turn> {
        let mut offered = self.offer.take()?;
        *turns += 1;
        self.turn = *turns;
        match &mut offered {
            Turn::Free(pass) => pass.turn = self.turn,
            Turn::Held(inherited) => {
                inherited.comes_in(self.turn);
                self.news = News::Here(Caller::here());
            }
        }
        Some(offered)
    }

    /// Looks at the offer again. Returns a lock that none of the waiters comes for.
    fn look(&mut self, wakers: &mut Wakers) -> Option<Turn> {
        if self.looked_at == self.made {
            self.queue.stall();
            self.told = (self.told * 2).min(MOST_TOLD);
            self.queue.tell(self.told, wakers);
        }
        self.looked_at = self.made;
        self.take_unwanted()
    }

    /// Takes back an offer that nobody is there for. A pass stays on offer to those who are stalled;
    /// a lock does not.
    fn take_unwanted(&mut self) -> Option<Turn> {
        let is_held = matches!(self.offer, Some(Turn::Held(_)));
        let unwanted = self.queue.is_empty() || is_held && self.queue.waiting == 0;
        self.offer.take_if(|_| unwanted)
    }
}

/// Those who wait for a pass, the one who has waited longest first.
#[derive(Debug, Default)]
struct Queue {
    /// By ticket number; those who gave up or are stalled leave empty places until there are many.
    places: VecDeque<(u64, Option<Place>)>,
    last_number: u64,
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
    /// The number of one who comes now.
    fn number(&mut self) -> u64 {
        self.last_number += 1;
        self.last_number
    }

    fn push(&mut self) -> u64 {
        let number = self.number();
        self.places.push_back((number, Some(Place::default())));
        self.waiting += 1;
        number
    }

    /// One comes back that nobody waits for until it is polled.
    fn push_stalled(&mut self, number: u64) {
        self.stalled.insert(number);
    }

    fn is_empty(&self) -> bool {
        self.waiting == 0 && self.stalled.is_empty()
    }

    fn len(&self) -> usize {
        self.waiting + self.stalled.len()
    }

    /// Takes a waiter out if it may take what is on offer.
    fn remove_told(&mut self, number: u64) -> bool {
        if self.stalled.remove(&number) {
            return true;
        }
        let Ok(at) = self.position(number) else { return false };
        let told = self.places[at].1.take_if(|place| place.told).is_some();
        self.waiting -= usize::from(told);
        told
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
        let at = self.position(number);
        if self.stalled.remove(&number) {
            self.waiting += 1;
            match at {
                Ok(empty) => self.places[empty].1 = Some(place),
                Err(at) => self.places.insert(at, (number, Some(place))),
            }
            return None;
        }
        self.places[at.ok()?].1.replace(place)?.waker
    }

    /// Takes a waiter out; `None` if it is not here.
    fn remove(&mut self, number: u64) -> Option<Place> {
        if self.stalled.remove(&number) {
            return Some(Place::default());
        }
        let at = self.position(number).ok()?;
        let place = self.places[at].1.take()?;
        self.waiting -= 1;
        if self.places.len() > 2 * self.waiting + EMPTY_PLACES {
            self.places.retain(|(_, place)| place.is_some());
        }
        Some(place)
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
        // Mostly it is the first who asks.
        if self.places.front().is_some_and(|(first, _)| *first == number) {
            return Ok(0);
        }
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

impl Turn {
    /// Its number among all turns.
    pub(crate) fn number(&self) -> u64 {
        match self {
            Self::Free(pass) => pass.turn,
            Self::Held(inherited) => inherited.turn(),
        }
    }
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

/// One who has the pass of a key, and waits for something before it goes on.
///
/// All of these but the last three are called with the gates locked.
pub(crate) trait Owner: std::fmt::Debug + Send + Sync {
    /// Whether it could go on, once its caller polls it.
    fn is_told(&self) -> bool;

    /// Called at each look while it could go on. Whether it has had the time to, if there is any.
    fn is_stalled(&self, hurry: bool) -> bool;

    /// Called at each patrol; how many there have been since its caller has polled it or its runtime
    /// was heard of.
    fn patrolled(&self) -> u32;

    /// Asks its runtime for a sign.
    fn ping(self: Arc<Self>);

    /// Goes on in its caller's place.
    fn help(self: Arc<Self>);

    /// Gives up for its caller.
    fn revoke(self: Arc<Self>);
}

/// What there is to do after a [look](Gates::look).
#[derive(Debug, Default)]
pub(crate) struct Findings {
    /// Locks that none of their waiters comes for.
    unwanted: Vec<Inherited>,
    /// Owners that could go on.
    stalled: Vec<Arc<dyn Owner>>,
    /// Owners of whose runtime nothing has been heard for a while, or for long.
    silent: Vec<Arc<dyn Owner>>,
    stuck: Vec<Arc<dyn Owner>>,
    /// When to look again.
    pub(crate) again: Option<Duration>,
}

impl Findings {
    /// Nothing may be locked meanwhile.
    pub(crate) fn carry_out(self) {
        for inherited in self.unwanted {
            contained(|| inherited.give_up());
        }
        for owner in self.stalled {
            contained(|| owner.help());
        }
        for owner in self.silent {
            contained(|| owner.ping());
        }
        for owner in self.stuck {
            contained(|| owner.revoke());
        }
    }
}

/// The answer to [`Gates::enter`].
#[derive(Debug)]
pub(crate) enum Entry {
    Open(Pass),
    /// On offer, and none of those who wait comes for it.
    Offered(Turn, u64),
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
            contained(|| waker.wake());
        }
    }
}

impl Gates {
    /// An owner's runtime is given up that is not heard of for twice as long as the store may take
    /// for an answer: what it has sent is given up by then as well.
    pub(crate) fn new(response_timeout: Duration) -> Self {
        let patience = (2 * response_timeout).as_nanos().div_ceil(PATROL.as_nanos());
        Self {
            patience: u32::try_from(patience).unwrap_or(u32::MAX).max(4),
            hasher: RandomState::new(),
            state: Mutex::default(),
            queued: AtomicUsize::new(0),
            owing: AtomicBool::new(false),
            closed: AtomicBool::new(false),
            unattended: Notify::new(),
        }
    }

    /// Takes the pass of `key`, or unless it is only for `once` a place in its queue.
    pub(crate) fn enter(self: &Arc<Self>, key: &Arc<str>, once: bool) -> Entry {
        let key = self.key(key);
        let mut state = self.state();
        if state.closed {
            return Entry::Closed;
        }
        let State { gates, turns, .. } = &mut *state;
        let Some(gate) = gates.get_mut(&key) else {
            *turns += 1;
            let turn = *turns;
            gates.insert(key.clone(), Gate::new(turn));
            return Entry::Open(Pass::new(self, key, turn));
        };
        if gate.queue.waiting == 0
            && let Some(turn) = gate.take(turns)
        {
            return Entry::Offered(turn, gate.queue.number());
        }
        if once {
            let news = gate.news.clone();
            if gate.owner.is_some() && !std::mem::replace(&mut gate.asked, true) {
                self.attend_owner(&mut state, &key);
            }
            return Entry::Taken(news);
        }
        let number = gate.queue.push();
        self.queued.fetch_add(1, Ordering::Relaxed);
        if gate.owner.is_some() {
            self.attend_owner(&mut state, &key);
        }
        let gates = Arc::clone(self);
        Entry::Queued(Ticket { gates, key, number, is_over: false })
    }

    fn key(&self, name: &Arc<str>) -> Key {
        Key { hash: self.hasher.hash_one(name), name: Arc::clone(name) }
    }

    /// What the owner of the pass last learnt.
    pub(crate) fn news(&self, key: &Arc<str>) -> News {
        let key = self.key(key);
        let known = self.state().gates.get(&key).map(|gate| gate.news.clone());
        known.unwrap_or_else(|| News::Asking(BootInstant::now()))
    }

    /// Sends everybody in the queues home and lets nobody in any more.
    pub(crate) fn close(&self) {
        let (mut wakers, mut offers) = (Wakers::default(), Vec::new());
        {
            let mut state = self.state();
            state.closed = true;
            self.closed.store(true, Ordering::Relaxed);
            let mut owners = Vec::new();
            for (key, gate) in &mut state.gates {
                self.queued.fetch_sub(gate.queue.clear(&mut wakers), Ordering::Relaxed);
                offers.extend(gate.offer.take());
                owners.extend(gate.owner.is_some().then(|| key.clone()));
            }
            for key in &owners {
                self.attend_owner(&mut state, key);
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

    /// Looks at all offers and at the owners behind whom others wait: what was there at the last look
    /// too, goes to waiters behind, and who could go on then is to be helped.
    pub(crate) fn look(&self) -> Findings {
        let (mut wakers, mut findings) = (Wakers::default(), Findings::default());
        {
            let mut state = self.state();
            Self::look_at_offers(&mut state, &mut wakers, &mut findings);
            let now = BootInstant::now();
            if now.since(state.patrol) >= PATROL {
                state.patrol = now;
                self.patrol(&mut state, &mut findings);
            }
            state.attended = if !state.offers.is_empty() {
                Some(LOOK)
            } else if !state.behind.is_empty() {
                Some(PATROL)
            } else {
                None
            };
            findings.again = state.attended;
        }
        wakers.wake();
        findings
    }

    fn look_at_offers(state: &mut State, wakers: &mut Wakers, findings: &mut Findings) {
        let State { gates, offers, looks, closed, .. } = state;
        *looks += 1;
        offers.retain(|key| {
            let gate = gates.get_mut(key).filter(|gate| gate.look != *looks);
            let Some(gate) = gate else { return false };
            gate.look = *looks;
            if gate.offer.is_some() {
                if Protection::OffersGoOn.is_on()
                    && let Some(Turn::Held(inherited)) = gate.look(wakers)
                {
                    findings.unwanted.push(inherited);
                }
            } else if gate.has_told_owner(*closed)
                && Protection::OwnersAreHelped.is_on()
                && let Some(owner) = gate.owner.as_ref().filter(|owner| owner.is_stalled(*closed))
            {
                findings.stalled.push(Arc::clone(owner));
            }
            // While nobody is awake to take it, there is nothing to look after.
            let is_offered = gate.offer.is_some() && gate.queue.waiting > 0;
            gate.listed = is_offered || gate.has_told_owner(*closed);
            gate.listed
        });
    }

    /// Visits some of the owners behind whom others wait, each in its turn.
    fn patrol(&self, state: &mut State, findings: &mut Findings) {
        let State { gates, offers, behind, closed, .. } = state;
        // As many as can come to it meanwhile are left out of a long list.
        let most = behind.len().min(MOST_PATROLLED.max(behind.len() / 4));
        let mut visit = |key: &Key, first_turn| {
            let gate = gates.get_mut(key).filter(|gate| gate.first_turn == first_turn);
            let Some(gate) = gate else { return false };
            gate.patrolled = gate.has_owner(*closed);
            if let Some(owner) = gate.owner.as_ref().filter(|_| gate.patrolled) {
                let patrols = owner.patrolled();
                // It may have been told just when the first came who waits for it.
                if owner.is_told() && !std::mem::replace(&mut gate.listed, true) {
                    offers.push(key.clone());
                }
                if !Protection::OwnersAreHelped.is_on() {
                    return gate.patrolled;
                }
                if patrols >= self.patience {
                    findings.stuck.push(Arc::clone(owner));
                } else if patrols == self.patience / 2 {
                    findings.silent.push(Arc::clone(owner));
                }
            }
            gate.patrolled
        };
        for _ in 0..most {
            let Some((key, first_turn)) = behind.pop_front() else { return };
            if visit(&key, first_turn) {
                behind.push_back((key, first_turn));
            }
        }
    }

    /// Offers a lock to those who wait for `key`; gives it back if there is nobody who is awake.
    fn offer(&self, key: &Key, inherited: Inherited) -> Result<(), Inherited> {
        let (mut wakers, mut state) = (Wakers::default(), self.state());
        let _before = match state.gates.get_mut(key) {
            Some(gate) if gate.queue.waiting > 0 => {
                gate.offer(Turn::Held(inherited), &mut wakers);
                gate.take_owner()
            }
            _ => return Err(inherited),
        };
        self.attend_offer(&mut state, key);
        drop(state);
        wakers.wake();
        Ok(())
    }

    /// Sees to it that somebody looks after the offer at `key`.
    fn attend_offer(&self, state: &mut State, key: &Key) {
        let Some(gate) = state.gates.get_mut(key) else { return };
        if gate.queue.waiting > 0 && !std::mem::replace(&mut gate.listed, true) {
            state.offers.push(key.clone());
            self.attend(state, LOOK);
        }
    }

    /// Sees to it that somebody looks after the owner of the pass of `key`, if others wait for it.
    fn attend_owner(&self, state: &mut State, key: &Key) {
        let closed = state.closed;
        let Some(gate) = state.gates.get_mut(key).filter(|gate| gate.has_owner(closed)) else {
            return;
        };
        if !std::mem::replace(&mut gate.patrolled, true) {
            state.behind.push_back((key.clone(), gate.first_turn));
        }
        let is_new = gate.has_told_owner(closed) && !std::mem::replace(&mut gate.listed, true);
        if is_new {
            state.offers.push(key.clone());
        }
        self.attend(state, if is_new { LOOK } else { PATROL });
    }

    fn attend(&self, state: &mut State, within: Duration) {
        if state.attended.is_none_or(|pace| within < pace) {
            state.attended = Some(within);
            self.unattended.notify_one();
        }
    }

    /// A release of the key has woken so many other processes.
    fn released(&self, state: &mut State, key: &Arc<str>, others: usize) {
        state.courtesies.released(key, others);
        self.owing.store(!state.courtesies.is_empty(), Ordering::Relaxed);
    }

    /// Offers the pass of `key` to those who wait for it; without any the key is forgotten.
    fn pass_on(self: &Arc<Self>, key: &Key, freed: Option<usize>) {
        let (mut wakers, mut state) = (Wakers::default(), self.state());
        if let Some(others) = freed {
            self.released(&mut state, &key.name, others);
        }
        let Some(gate) = state.gates.get_mut(key) else { return };
        // What is dropped here may come back to the gates: so with nothing locked.
        let (_before, _gate);
        if gate.queue.is_empty() {
            let State { gates, peak, .. } = &mut *state;
            let before = gates.len();
            _gate = gates.remove(key);
            peak.give_back(gates, before);
            drop(state);
            return;
        }
        gate.offer(Turn::Free(Pass::new(self, key.clone(), 0)), &mut wakers);
        _before = gate.take_owner();
        self.attend_offer(&mut state, key);
        drop(state);
        wakers.wake();
    }

    fn granted(&self, key: &Key, turn: u64) {
        let news = News::Here(Caller::here());
        let mut state = self.state();
        let gate = state.gates.get_mut(key).filter(|gate| gate.turn == turn);
        let _before = gate.and_then(|gate| {
            gate.news = news;
            gate.take_owner()
        });
        drop(state);
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
    key: Key,
    /// The number of its owner's turn; zero while it has none.
    turn: u64,
    /// How many others the release of the key has woken, once it was released.
    freed: Option<usize>,
}

impl Pass {
    fn new(gates: &Arc<Gates>, key: Key, turn: u64) -> Self {
        Self { gates: Arc::clone(gates), key, turn, freed: None }
    }

    /// It has come to another owner.
    pub(super) fn comes_in(&mut self, turn: u64) {
        self.turn = turn;
    }

    pub(super) fn turn(&self) -> u64 {
        self.turn
    }

    /// Offers the lock that this is the pass of to those who wait for it; gives it back if there is
    /// nobody who is awake. `with` makes what is offered of this.
    pub(crate) fn offer(self, with: impl FnOnce(Self) -> Inherited) -> Result<(), Inherited> {
        let (gates, key) = (Arc::clone(&self.gates), self.key.clone());
        gates.offer(&key, with(self))
    }

    /// Leaves word for those who give up behind us.
    pub(crate) fn tell(&self, news: &News) {
        if let Some(gate) = self.gates.state().gates.get_mut(&self.key) {
            gate.news.clone_from(news);
        }
    }

    /// Its owner has the lock, and so is not waiting for anything any more.
    pub(crate) fn granted(&self) {
        self.gates.granted(&self.key, self.turn);
    }

    /// Its owner's turn, at this place in the queue; zero for one who did not have to queue.
    pub(crate) fn spot(&self, number: u64) -> Spot {
        let (gates, key) = (Arc::clone(&self.gates), self.key.clone());
        Spot { gates, key, number, turn: self.turn }
    }

    /// The key was freed, which has woken so many other processes.
    pub(crate) fn freed(&mut self, others: usize) {
        self.freed = Some(others);
    }

    /// The pass stays where it is, so what the release has woken is owed by its owner.
    pub(crate) fn owe(&mut self) {
        if let Some(others) = self.freed.take() {
            self.gates.released(&mut self.gates.state(), &self.key.name, others);
        }
    }
}

impl Drop for Pass {
    fn drop(&mut self) {
        self.gates.pass_on(&self.key, self.freed.take());
    }
}

/// The turn of one who has a pass, and the place in the queue to which it may go back. It is of no use
/// once the pass has gone on.
#[derive(Debug, Clone)]
pub(crate) struct Spot {
    gates: Arc<Gates>,
    key: Key,
    number: u64,
    turn: u64,
}

impl Spot {
    /// The same place in another turn.
    pub(crate) fn in_turn(&self, turn: u64) -> Self {
        Self { turn, ..self.clone() }
    }

    fn gate<'a>(&self, state: &'a mut State) -> Option<&'a mut Gate> {
        state.gates.get_mut(&self.key).filter(|gate| gate.turn == self.turn)
    }

    /// From now on `owner` waits for something, with the pass in hand.
    pub(crate) fn watch(&self, owner: Arc<dyn Owner>) {
        let mut state = self.gates.state();
        let _before = self.gate(&mut state).and_then(|gate| {
            if let News::Here(_) = gate.news {
                // Nobody has it any more, and whether it is free nobody knows yet.
                gate.news = News::Asking(BootInstant::now());
            }
            gate.owner.replace(owner)
        });
        self.gates.attend_owner(&mut state, &self.key);
        drop(state);
    }

    /// See [`Pass::granted`].
    pub(crate) fn granted(&self) {
        self.gates.granted(&self.key, self.turn);
    }

    /// The owner could go on.
    pub(crate) fn told(&self) {
        if self.gates.queued() > 0 || self.gates.closed.load(Ordering::Relaxed) {
            let mut state = self.gates.state();
            self.gates.attend_owner(&mut state, &self.key);
        }
    }

    /// Goes back to its place, where nobody waits for it.
    pub(crate) fn step_aside(&self) -> Aside {
        let mut state = self.gates.state();
        if state.closed {
            return Aside::Closed;
        }
        let Some(gate) = self.gate(&mut state) else { return Aside::Gone };
        gate.queue.push_stalled(self.number);
        self.gates.queued.fetch_add(1, Ordering::Relaxed);
        let (gates, key) = (Arc::clone(&self.gates), self.key.clone());
        Aside::Queued(Ticket { gates, key, number: self.number, is_over: false })
    }
}

/// The answer to [`Spot::step_aside`].
#[derive(Debug)]
pub(crate) enum Aside {
    Queued(Ticket),
    /// Nobody queues any more.
    Closed,
    /// The turn was over, and the pass has gone on.
    Gone,
}

/// A place in the queue; given up when dropped.
#[derive(Debug)]
pub(crate) struct Ticket {
    gates: Arc<Gates>,
    key: Key,
    number: u64,
    /// It had its turn, or was sent home.
    is_over: bool,
}

impl Ticket {
    pub(crate) fn number(&self) -> u64 {
        self.number
    }
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
            let Self { gates, key, number, is_over } = &mut *self;
            let mut state = gates.state();
            if state.closed {
                *is_over = true;
                return Poll::Ready(None);
            }
            // A key stays while there are waiters.
            let State { gates: all, turns, .. } = &mut *state;
            let Some(gate) = all.get_mut(key) else { return Poll::Pending };
            if gate.offer.is_some() && gate.queue.remove_told(*number) {
                *is_over = true;
                gates.queued.fetch_sub(1, Ordering::Relaxed);
                (gate.take(turns), None)
            } else {
                let (waiting, waker) = (gate.queue.waiting, waker.take());
                let before = waker.and_then(|waker| gate.queue.wait(*number, waker));
                if gate.queue.waiting > waiting {
                    gates.attend_owner(&mut state, key);
                }
                (None, before)
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
        let Self { gates, key, number, .. } = self;
        // What is dropped here is foreign code, or comes back to the gates: so with nothing locked.
        let (place, unwanted) = {
            let mut state = gates.state();
            let Some(gate) = state.gates.get_mut(key) else { return };
            let Some(place) = gate.queue.remove(*number) else { return };
            gates.queued.fetch_sub(1, Ordering::Relaxed);
            if gate.offer.is_some() {
                // It may have been the one that was told.
                gate.queue.tell(gate.told, &mut wakers);
            }
            (place, gate.take_unwanted())
        };
        wakers.wake();
        drop((place, unwanted));
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
    fn look_twice(gates: &Arc<Gates>) {
        gates.look();
        gates.look();
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
        let places = gates.state().gates[&gates.key(&key())].queue.places.len();
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
    fn one_who_is_stalled_behind_one_who_is_not_comes_back_once() {
        for give_up in [false, true] {
            let gates = Arc::new(Gates::default());
            let pass = open(&gates);
            let (mut first, mut second) = (queue(&gates), queue(&gates));
            let (mut third, mut last) = (queue(&gates), queue(&gates));
            drop(pass);
            look_twice(&gates);
            gates.look();
            // The first three are stalled, the last was told.
            let pass = has_turn(&mut third).expect("an offer");
            assert!(has_turn(&mut second).is_none());
            assert!(has_turn(&mut first).is_none());
            drop(pass);
            look_twice(&gates);
            // Now first and last are.
            let pass = has_turn(&mut second).expect("an offer");
            if give_up {
                drop(last);
            } else {
                assert!(has_turn(&mut last).is_none());
                drop(pass);
                drop(has_turn(&mut first).expect("its turn"));
                drop(has_turn(&mut last).expect("its turn"));
            }
            drop(first);
            let (keys, queued) = (gates.keys(), gates.queued());
            assert_eq!((keys, queued), (usize::from(give_up), 0));
        }
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
            assert_eq!(gates.look().again, None, "there is nobody to look after");
            let Entry::Offered(turn, _) = gates.enter(&key(), once) else { panic!("on offer") };
            assert!(has_turn(&mut first).is_none(), "it is in other hands");
            drop(turn);
            assert!(has_turn(&mut first).is_some());
        }
    }

    /// An owner that is not polled.
    #[derive(Debug, Default)]
    struct Idle {
        told: AtomicBool,
        seen: AtomicBool,
        patrols: AtomicUsize,
        calls: std::sync::Mutex<Vec<&'static str>>,
    }

    impl Idle {
        fn called(&self, what: &'static str) {
            self.calls.lock().expect("no panic").push(what);
        }
    }

    impl Owner for Idle {
        fn is_told(&self) -> bool {
            self.told.load(Ordering::Relaxed)
        }

        fn is_stalled(&self, _: bool) -> bool {
            self.seen.swap(true, Ordering::Relaxed)
        }

        fn patrolled(&self) -> u32 {
            u32::try_from(self.patrols.fetch_add(1, Ordering::Relaxed) + 1).expect("few")
        }

        fn ping(self: Arc<Self>) {
            self.called("ping");
        }

        fn help(self: Arc<Self>) {
            self.called("help");
        }

        fn revoke(self: Arc<Self>) {
            self.called("revoke");
        }
    }

    fn carry_out_patrol(gates: &Gates) {
        let mut findings = Findings::default();
        gates.patrol(&mut gates.state(), &mut findings);
        findings.carry_out();
    }

    #[test]
    fn an_owner_that_was_told_is_helped_at_the_second_look_while_others_wait() {
        for told_first in [true, false] {
            let gates = Arc::new(Gates::default());
            let pass = open(&gates);
            let owner = Arc::new(Idle::default());
            owner.told.store(told_first, Ordering::Relaxed);
            pass.spot(0).watch(Arc::clone(&owner) as _);
            assert_eq!(gates.look().again, None, "nobody waits");
            let waiting = queue(&gates);
            owner.told.store(true, Ordering::Relaxed);
            pass.spot(0).told();
            gates.look().carry_out();
            assert!(owner.calls.lock().expect("no panic").is_empty(), "it has some time");
            gates.look().carry_out();
            assert_eq!(*owner.calls.lock().expect("no panic"), ["help"]);
            pass.granted();
            assert_ne!(gates.look().again, Some(LOOK), "it has the lock");
            drop((waiting, pass));
            assert_eq!((gates.keys(), gates.queued()), (0, 0));
        }
    }

    #[test]
    fn an_owner_is_helped_for_those_who_would_not_queue_as_well() {
        let gates = Arc::new(Gates::default());
        let pass = open(&gates);
        let owner = Arc::new(Idle::default());
        owner.told.store(true, Ordering::Relaxed);
        pass.spot(0).watch(Arc::clone(&owner) as _);
        assert!(matches!(gates.enter(&key(), true), Entry::Taken(News::Asking(_))));
        for _ in 0..2 {
            gates.look().carry_out();
        }
        assert_eq!(*owner.calls.lock().expect("no panic"), ["help"]);
        let Aside::Queued(mut ticket) = pass.spot(0).step_aside() else { panic!("open") };
        drop(pass);
        // The next who asks has it.
        let Entry::Offered(turn, _) = gates.enter(&key(), true) else { panic!("on offer") };
        assert!(has_turn(&mut ticket).is_none());
        drop(turn);
        assert!(has_turn(&mut ticket).is_some());
        assert_eq!((gates.keys(), gates.queued()), (0, 0));
    }

    #[test]
    fn an_owner_whose_runtime_is_silent_is_asked_for_a_sign_and_then_given_up() {
        let gates = Arc::new(Gates::new(PATROL * 2));
        let pass = open(&gates);
        let owner = Arc::new(Idle::default());
        let _first = queue(&gates);
        pass.spot(0).watch(Arc::clone(&owner) as _);
        assert!(gates.look().again.is_some(), "somebody waits behind it");
        owner.patrols.store(0, Ordering::Relaxed);
        for expected in [&[][..], &["ping"], &["ping"], &["ping", "revoke"]] {
            carry_out_patrol(&gates);
            assert_eq!(*owner.calls.lock().expect("no panic"), expected);
        }
    }

    /// Each side looks at what the other has written, and neither sees it.
    #[test]
    fn an_owner_that_is_told_just_when_the_first_waiter_comes_is_found_by_the_patrol() {
        let gates = Arc::new(Gates::default());
        let pass = open(&gates);
        let owner = Arc::new(Idle::default());
        pass.spot(0).watch(Arc::clone(&owner) as _);
        let _waiting = queue(&gates);
        owner.told.store(true, Ordering::Relaxed);
        assert!(gates.state().offers.is_empty());
        carry_out_patrol(&gates);
        for _ in 0..2 {
            gates.look().carry_out();
        }
        assert_eq!(*owner.calls.lock().expect("no panic"), ["help"]);
    }

    #[test]
    fn each_key_is_patrolled_once_however_often_it_was_forgotten() {
        let gates = Arc::new(Gates::default());
        let mut kept = Vec::new();
        for _ in 0..5 {
            kept.clear();
            let pass = open(&gates);
            pass.spot(0).watch(Arc::new(Idle::default()));
            let waiting = queue(&gates);
            kept.push((waiting, pass));
        }
        assert_eq!(gates.state().behind.len(), 5);
        carry_out_patrol(&gates);
        assert_eq!(gates.state().behind.len(), 1);
    }

    #[test]
    fn very_many_owners_are_visited_bit_by_bit() {
        let gates = Arc::new(Gates::default());
        let kept: Vec<_> = (0..MOST_PATROLLED * 2)
            .map(|n| {
                let key = Arc::from(n.to_string());
                let Entry::Open(pass) = gates.enter(&key, false) else { panic!("free") };
                let owner = Arc::new(Idle::default());
                pass.spot(0).watch(Arc::clone(&owner) as _);
                let Entry::Queued(ticket) = gates.enter(&key, false) else { panic!("taken") };
                (owner, ticket, pass)
            })
            .collect();
        let visited = || {
            let visits = kept.iter().map(|(owner, ..)| owner.patrols.load(Ordering::Relaxed));
            visits.sum::<usize>()
        };
        for patrols in 1..=4 {
            carry_out_patrol(&gates);
            assert_eq!(visited(), MOST_PATROLLED * patrols);
        }
        assert!(kept.iter().all(|(owner, ..)| owner.patrols.load(Ordering::Relaxed) == 2));
    }

    #[test]
    fn an_owner_whose_pass_has_gone_on_has_nothing_to_say_any_more() {
        let gates = Arc::new(Gates::default());
        let pass = open(&gates);
        let late = pass.spot(0);
        let (mut second, _third) = (queue(&gates), queue(&gates));
        drop(pass);
        let pass = has_turn(&mut second).expect("its turn");
        late.watch(Arc::new(Idle::default()));
        late.granted();
        assert!(gates.state().gates[&gates.key(&key())].owner.is_none());
        assert!(matches!(gates.news(&key()), News::Asking(_)));
        assert!(matches!(late.step_aside(), Aside::Gone));
        assert_eq!(gates.queued(), 1);
        let owner = Arc::new(Idle::default());
        pass.spot(second.number()).watch(Arc::clone(&owner) as _);
        late.watch(Arc::new(Idle::default()));
        late.granted();
        assert!(gates.state().gates[&gates.key(&key())].owner.is_some());
    }

    #[test]
    fn nobody_goes_back_to_a_queue_that_is_closed() {
        let gates = Arc::new(Gates::default());
        let pass = open(&gates);
        assert!(matches!(gates.enter(&key(), true), Entry::Taken(_)));
        gates.close();
        assert!(matches!(pass.spot(0).step_aside(), Aside::Closed));
        drop(pass);
        assert_eq!((gates.keys(), gates.queued()), (0, 0));
    }

    #[test]
    fn each_offer_is_looked_at_once_in_a_look() {
        let gates = Arc::new(Gates::default());
        for _ in 0..5 {
            // Forgotten each time, and in the list all the same.
            let pass = open(&gates);
            let mut waiter = queue(&gates);
            drop(pass);
            drop(has_turn(&mut waiter).expect("its turn"));
        }
        let pass = open(&gates);
        let (mut first, mut second) = (queue(&gates), queue(&gates));
        drop(pass);
        gates.look();
        assert!(has_turn(&mut second).is_none(), "the first has some time");
        assert!(has_turn(&mut first).is_some());
    }

    #[test]
    fn a_waker_is_dropped_with_nothing_locked() {
        struct Curious(Arc<Gates>);
        impl Drop for Curious {
            fn drop(&mut self) {
                // Would block for ever if the state were locked.
                assert_eq!(self.0.keys(), 1);
            }
        }
        impl std::task::Wake for Curious {
            fn wake(self: Arc<Self>) {}
        }
        let gates = Arc::new(Gates::default());
        let _pass = open(&gates);
        for give_up in [true, false] {
            let mut ticket = queue(&gates);
            let curious = Waker::from(Arc::new(Curious(Arc::clone(&gates))));
            assert!(Pin::new(&mut ticket).poll(&mut Context::from_waker(&curious)).is_pending());
            drop(curious);
            if give_up {
                drop(ticket);
            } else {
                assert!(poll(&mut ticket).is_pending(), "with another waker");
            }
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
                WOKEN.store(true, Ordering::Relaxed);
                panic!("as planned");
            }
        }
        static WOKEN: std::sync::atomic::AtomicBool = std::sync::atomic::AtomicBool::new(false);
        let gates = Arc::new(Gates::default());
        let pass = open(&gates);
        let (mut first, _second) = (queue(&gates), queue(&gates));
        let rude = Waker::from(Arc::new(Rude(Arc::clone(&gates))));
        assert!(Pin::new(&mut first).poll(&mut Context::from_waker(&rude)).is_pending());
        drop(pass);
        assert!(WOKEN.load(Ordering::Relaxed));
        assert!(has_turn(&mut first).is_some());
    }

    /// All who are told of one offer, and one of them panics.
    #[test]
    fn every_waiter_that_is_told_is_woken_once() {
        struct Counting(AtomicUsize);
        impl std::task::Wake for Counting {
            fn wake(self: Arc<Self>) {
                assert!(self.0.fetch_add(1, Ordering::Relaxed) > 0, "the first one panics");
            }
        }
        let gates = Arc::new(Gates::default());
        let pass = open(&gates);
        let woken = Arc::new(Counting(AtomicUsize::new(0)));
        let waker = Waker::from(Arc::clone(&woken));
        let mut waiters: Vec<Ticket> = (0..4).map(|_| queue(&gates)).collect();
        for waiter in &mut waiters {
            assert!(Pin::new(waiter).poll(&mut Context::from_waker(&waker)).is_pending());
        }
        drop(pass);
        assert_eq!(woken.0.load(Ordering::Relaxed), 1);
        look_twice(&gates);
        assert_eq!(woken.0.load(Ordering::Relaxed), 3, "two more");
        gates.look();
        assert_eq!(woken.0.load(Ordering::Relaxed), 4, "and the last");
        gates.look();
        assert_eq!(woken.0.load(Ordering::Relaxed), 4, "none of them again");
    }

    #[test]
    fn who_looks_after_the_keys_is_called_when_there_is_something_and_when_it_is_sooner() {
        let gates = Arc::new(Gates::default());
        let called = || {
            let mut call = std::pin::pin!(gates.unattended());
            call.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_ready()
        };
        assert!(!called(), "there is nothing");
        let pass = open(&gates);
        let owner = Arc::new(Idle::default());
        pass.spot(0).watch(Arc::clone(&owner) as _);
        let mut waiter = queue(&gates);
        assert!(called(), "one waits behind an owner");
        gates.look();
        owner.told.store(true, Ordering::Relaxed);
        pass.spot(0).told();
        assert!(called(), "it could go on");
        pass.spot(0).told();
        assert!(!called(), "that is known");
        gates.look();
        drop(pass);
        assert!(!called(), "somebody comes soon anyway");
        drop(has_turn(&mut waiter).expect("its turn"));
        assert_ne!(gates.look().again, Some(LOOK));
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
        // One of them is stalled.
        look_twice(&gates);
        gates.close();
        assert_eq!(gates.queued(), 0);
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
        assert_eq!(gates.news(&key()), News::Trouble("down".into()));
        pass.tell(&News::Others);
        assert_eq!(gates.news(&key()), News::Others);
    }

    #[test]
    fn keys_do_not_wait_for_each_other() {
        let gates = Arc::new(Gates::default());
        let _pass = open(&gates);
        assert!(matches!(gates.enter(&Arc::from("other"), false), Entry::Open(_)));
    }
}

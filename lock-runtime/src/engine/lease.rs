//! One lease in the store, and who holds it: until when, and whether it was lost.
//!
//! The deadline counts from the instant just before the last successful request was *sent*, and
//! ends a margin before the store's own expiry could: sent + lease − (1 % of the lease + 2 ms).
//! The margin is the Redlock description's allowance for clock drift and rounding
//! (<https://redis.io/docs/latest/develop/clients/patterns/distributed-locks/>). It is kept in an
//! atomic, because it is read before every poll of the body.
//!
//! A lease is held, then ended, and never held again: released by its last holder, or lost. In
//! between it may go from one [`Hold`] to the next within this process. Holds are numbered, so that
//! whoever was part of one can do nothing to a later one.
//! Keeps the promises that a body never outlives its lock, and that a guard touches its own hold
//! only.

use std::ops::Deref;
use std::pin::pin;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use tokio::sync::OnceCell;

use super::gate::Pass;
use super::releaser::Origin;
use super::turn::{Limits, Next, Turn};
use crate::clock::BootInstant;
use crate::error::{LockError, LostReason};
use crate::format::WireFormat;
use crate::protection::Protection;
use crate::runtime;
use crate::store::Token;
use crate::sync::atomic::{AtomicU64, Ordering};
use crate::sync::{Mutex, MutexGuard, Notify, time};

#[derive(Debug)]
pub(crate) struct Lease {
    key: Arc<str>,
    token: Token,
    /// The deadline; `PAST` once the lease has ended. Only changed with `state` locked.
    valid_until: AtomicU64,
    state: Mutex<State>,
    /// Told when the lease is lost, by the thread that calls foreign code.
    lost: Notify,
    /// A request of its acquisition may still take effect; it was sent from there.
    doubt: Option<Origin>,
    /// Where the watchdog has it in its schedule; only the watchdog reads or writes it.
    pub(super) scheduled: AtomicU64,
}

/// One grant of a lease to those who share it.
#[derive(Debug, Clone)]
pub(crate) struct Hold {
    lease: Arc<Lease>,
    number: u64,
}

impl Deref for Hold {
    type Target = Lease;

    fn deref(&self) -> &Lease {
        &self.lease
    }
}

#[derive(Debug)]
struct State {
    phase: Phase,
    /// The number of the hold that it is in, or goes to.
    hold: u64,
    /// Guards and bodies that share this hold: one, and one more for each re-entry.
    holders: usize,
    /// When this hold began.
    granted: BootInstant,
    /// When the one before it ended.
    handed_over: BootInstant,
    /// A renewal was not sent since, because nobody took the lease.
    left_out: bool,
    /// When this hold is given up although it could be renewed.
    max_until: Option<BootInstant>,
    /// The fencing token of this hold, once somebody has asked for it.
    fence: Option<Arc<OnceCell<u64>>>,
    /// How long one grant or renewal lasts.
    term: Duration,
    /// Renewed by the watchdog until it ends; else fixed.
    renewed: bool,
    /// When a renewal for a new holder made it what it is; `PAST` as it was granted. What the watchdog
    /// sent before then has asked for something else.
    remade: BootInstant,
    /// When the last request was sent that is known to have extended the key.
    extended: BootInstant,
    /// When the key has expired by itself, whatever became of the requests that were sent.
    gone_by: BootInstant,
    /// Until when the key is to stay in the store, even if the hold ends before.
    kept_until: BootInstant,
    /// Renewals that failed in a row.
    failures: u32,
    /// How long it may go from hold to hold.
    turn: Turn,
    /// The pass of the key; given back when the hold ends.
    pass: Option<Pass>,
}

/// How long a hold is to last.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Terms {
    /// How long one grant or renewal lasts.
    pub(crate) term: Duration,
    /// Renewed by the watchdog until it ends; else fixed.
    pub(crate) renewed: bool,
    /// After how long it is given up although it could be renewed.
    pub(crate) max_hold: Option<Duration>,
    /// How long the key is to stay in the store from the grant on, even if the hold ends before.
    pub(crate) min_hold: Duration,
}

impl Terms {
    /// What the store is asked for: the key is to stay for the minimum even if nobody is left to
    /// see to it.
    pub(crate) fn in_store(&self) -> Duration {
        self.term.max(self.min_hold)
    }

    /// Until when a grant that was asked for at `sent` is valid.
    pub(crate) fn deadline(&self, sent: BootInstant) -> BootInstant {
        let deadline = deadline(sent, self.term);
        self.max_hold.map_or(deadline, |max_hold| deadline.min(sent.after(max_hold)))
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Held,
    /// On its way from one hold to the next.
    HandedOver,
    Released,
    Lost {
        reason: LostReason,
        held_for: Duration,
    },
}

/// A holder has left.
#[derive(Debug)]
pub(crate) struct Leaving {
    /// The loss that had ended the hold before.
    pub(crate) lost: Option<LockError>,
    /// The same, if nobody had noticed it.
    pub(crate) noticed: Option<LostReason>,
    pub(crate) next: Leave,
}

/// What is left to do when a holder leaves.
#[derive(Debug)]
pub(crate) enum Leave {
    /// Others still share the hold, or it was lost before.
    Nothing,
    /// That was the last one: the key is to be released, and then the pass given back.
    Release(Option<Pass>),
    /// That was the last one: somebody else of this process may have the lock. If `ask`, it is to be
    /// found out meanwhile whether others wait for it; if `replan`, the watchdog has to look at it anew.
    HandOver { pass: Pass, ask: bool, replan: bool },
}

/// How a lease has ended against the will of those who had it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Loss {
    pub(crate) reason: LostReason,
    /// By somebody, and not on its way to somebody.
    pub(crate) held: bool,
}

impl Loss {
    /// Whether the key stays taken until its holders are done, or its lease is over: it is still
    /// theirs, and they may be in the middle of a poll, with destructors to come.
    pub(crate) fn leaves_the_key(self) -> bool {
        self.held && !is_over_in_store(self.reason) && Protection::KeyOutlivesBody.is_on()
    }
}

/// Whether the key is known to be nobody's, or another's.
fn is_over_in_store(reason: LostReason) -> bool {
    matches!(reason, LostReason::Gone | LostReason::Taken)
}

impl Hold {
    /// A new lease that was granted by a request sent at `sent`, in its first hold.
    pub(crate) fn new(
        key: Arc<str>,
        token: Token,
        terms: &Terms,
        sent: BootInstant,
        pass: Option<Pass>,
        doubt: Option<Origin>,
        contended: bool,
    ) -> Self {
        let state = State {
            phase: Phase::Held,
            hold: 0,
            holders: 1,
            granted: sent,
            handed_over: BootInstant::PAST,
            left_out: false,
            max_until: terms.max_hold.map(|max_hold| sent.after(max_hold)),
            fence: None,
            term: terms.term,
            renewed: terms.renewed,
            remade: BootInstant::PAST,
            extended: sent,
            gone_by: sent.after(terms.in_store()),
            kept_until: sent.after(terms.min_hold),
            failures: 0,
            turn: Turn::new(sent, contended),
            pass,
        };
        let lease = Arc::new(Lease {
            key,
            token,
            valid_until: AtomicU64::new(terms.deadline(sent).as_nanos()),
            state: Mutex::new(state),
            lost: Notify::new(),
            doubt,
            scheduled: AtomicU64::new(0),
        });
        Self { lease, number: 0 }
    }

    pub(crate) fn lease(&self) -> &Arc<Lease> {
        &self.lease
    }

    /// Whether the lease had another hold before this one.
    pub(crate) fn was_passed_on(&self) -> bool {
        self.number > 0
    }

    /// Another holder shares the hold; false if it has ended.
    pub(crate) fn join(&self) -> bool {
        let mut state = self.state();
        let held = state.hold == self.number
            && state.phase == Phase::Held
            && self.is_valid(BootInstant::now());
        state.holders += usize::from(held);
        held
    }

    /// Whether it has ended by a loss, which nobody may have noticed.
    pub(crate) fn was_lost(&self) -> Option<LockError> {
        let lost = self.loss()?;
        let state = self.state();
        (state.hold == self.number && state.phase != Phase::Released).then_some(lost)
    }

    /// One holder is done. With `limits`, others of this process wait, and the lock may go to one of
    /// them.
    pub(crate) fn leave(&self, limits: Option<&Limits>) -> Leaving {
        let now = BootInstant::now();
        let mut state = self.state();
        if state.hold != self.number {
            return Leaving { lost: None, noticed: None, next: Leave::Nothing };
        }
        let (mut lost, mut noticed) = (None, None);
        match state.phase {
            Phase::Lost { reason, held_for } => lost = Some(self.lost_after(reason, held_for)),
            Phase::Held if !self.is_valid(now) => {
                let reason = state.overdue(now);
                lost = Some(self.lost_after(reason, now.since(state.granted)));
                noticed = Some(reason);
            }
            _ => {}
        }
        state.holders = state.holders.saturating_sub(1);
        if state.holders > 0 {
            // Others are told when they leave, or by the watchdog.
            return Leaving { lost, noticed: None, next: Leave::Nothing };
        }
        match state.phase {
            Phase::Held => {}
            // The key was left to them until they were done.
            Phase::Lost { reason, .. } if !is_over_in_store(reason) => {
                return Leaving { lost, noticed, next: Leave::Release(state.pass.take()) };
            }
            Phase::Lost { .. } | Phase::Released | Phase::HandedOver => {
                return Leaving { lost, noticed, next: Leave::Nothing };
            }
        }
        if let Some(limits) = limits.filter(|_| lost.is_none() && state.can_be_handed_over(now)) {
            let next = state.turn.next(limits, now);
            if let Some(pass) = state.pass.take_if(|_| next != Next::Free) {
                let bounded = state.max_until.take().is_some();
                if bounded {
                    let until = state.granted_until();
                    self.valid_until.store(until.as_nanos(), Ordering::Release);
                }
                state.phase = Phase::HandedOver;
                state.handed_over = now;
                state.hold += 1;
                let ask = next == Next::HandOverAndAsk;
                let next = Leave::HandOver { pass, ask, replan: bounded };
                return Leaving { lost, noticed, next };
            }
        }
        state.phase = Phase::Released;
        self.valid_until.store(BootInstant::PAST.as_nanos(), Ordering::Release);
        Leaving { lost, noticed, next: Leave::Release(state.pass.take()) }
    }

    /// Resolves when this hold is lost: when the loss is noticed anywhere, or by a timer of the
    /// task itself when the deadline has passed. Holds nothing, so dropping it loses nothing.
    pub(crate) async fn lost(&self) -> LostReason {
        // Elsewhere they are told when others have noticed, as far as that goes.
        let mut has_clock = runtime::here().is_ok();
        loop {
            // Made before the look, so that a loss between the look and the wait is heard.
            let told = pin!(self.lost.notified());
            let deadline = match self.standing() {
                Standing::Lost(reason) => return reason,
                Standing::Until(deadline) if has_clock => deadline,
                Standing::Until(_) | Standing::Over => {
                    told.await;
                    continue;
                }
            };
            tokio::select! {
                // Whichever comes first in this order: no arm takes anything from another.
                biased;
                () = told => {}
                () = time::sleep(deadline.since(BootInstant::now())) => {
                    // Paused time runs ahead of the clock of the deadlines, and would do so again.
                    has_clock = deadline.since(BootInstant::now()) < EARLY;
                }
            }
        }
    }

    /// How this hold stands at this moment.
    fn standing(&self) -> Standing {
        let now = BootInstant::now();
        let state = self.state();
        match state.phase {
            _ if state.hold != self.number => Standing::Over,
            Phase::Lost { reason, .. } => Standing::Lost(reason),
            Phase::Held if self.is_valid(now) => Standing::Until(self.deadline()),
            Phase::Held => Standing::Lost(state.overdue(now)),
            Phase::HandedOver | Phase::Released => Standing::Over,
        }
    }

    /// Where the hold's fencing token is, or will be.
    pub(super) fn fence(&self) -> Arc<OnceCell<u64>> {
        let mut state = self.state();
        if state.hold != self.number {
            return Arc::default();
        }
        Arc::clone(state.fence.get_or_insert_default())
    }
}

/// What a hold is worth at one moment.
enum Standing {
    /// Valid, and if nothing extends it until then.
    Until(BootInstant),
    Lost(LostReason),
    /// Released, or handed over.
    Over,
}

/// How much too early a timer may be that runs on another clock.
const EARLY: Duration = Duration::from_millis(5);

impl State {
    /// Whether it has not ended.
    fn is_open(&self) -> bool {
        matches!(self.phase, Phase::Held | Phase::HandedOver)
    }

    /// What it means for this lease that its deadline has passed.
    fn overdue(&self, now: BootInstant) -> LostReason {
        if self.max_until.is_some_and(|max_until| now >= max_until) {
            LostReason::MaxHold
        } else if self.renewed {
            LostReason::RenewalFailed
        } else {
            LostReason::LeaseOver
        }
    }

    /// The deadline by what the store has granted, whatever its holder has asked for.
    fn granted_until(&self) -> BootInstant {
        deadline(self.extended, self.term)
    }

    /// Whether it is good enough for another hold: the store is to keep the key no longer than that,
    /// and the last renewal is not overdue.
    fn can_be_handed_over(&self, now: BootInstant) -> bool {
        let left = self.granted_until().since(now);
        let enough = if self.renewed { self.term / 2 } else { Duration::ZERO };
        self.kept_until <= now && left > enough
    }

    /// Whether whoever it was handed over to leaves it lying: then it is not renewed.
    fn is_abandoned(&self, now: BootInstant) -> bool {
        now.since(self.handed_over) >= self.term / 3
    }

    /// A new holder has it.
    fn begin(&mut self, terms: &Terms, since: BootInstant, pass: Option<Pass>) {
        self.phase = Phase::Held;
        self.holders = 1;
        self.granted = since;
        self.max_until = terms.max_hold.map(|max_hold| since.after(max_hold));
        self.kept_until = since.after(terms.min_hold);
        self.fence = None;
        self.pass = pass;
    }
}

impl Lease {
    pub(crate) fn key(&self) -> &str {
        &self.key
    }

    pub(crate) fn shared_key(&self) -> &Arc<str> {
        &self.key
    }

    pub(crate) fn token(&self) -> &Token {
        &self.token
    }

    pub(crate) fn format(&self) -> WireFormat {
        self.token.format()
    }

    pub(crate) fn is_renewed(&self) -> bool {
        self.state().renewed
    }

    /// How long one grant or renewal lasts.
    pub(crate) fn term(&self) -> Duration {
        self.state().term
    }

    /// Until when it is valid unless it is extended; `PAST` once it has ended.
    pub(crate) fn deadline(&self) -> BootInstant {
        BootInstant::from_nanos(self.valid_until.load(Ordering::Acquire))
    }

    /// Whether it is provably valid at `now`. One atomic load.
    pub(crate) fn is_valid(&self, now: BootInstant) -> bool {
        now < self.deadline()
    }

    /// When `part` of the term is over, counted from its last extension.
    pub(crate) fn after_part(&self, part: u32) -> BootInstant {
        let state = self.state();
        state.extended.after(state.term / part)
    }

    /// When the key is gone from the store even if nobody can reach it any more.
    pub(crate) fn gone_by(&self) -> BootInstant {
        self.state().gone_by
    }

    /// The loss of this hold, as its holders are told of it; `None` while it is valid.
    ///
    /// A deadline that has passed is a loss, whether or not the watchdog has noticed.
    pub(crate) fn loss(&self) -> Option<LockError> {
        if self.is_valid(BootInstant::now()) {
            return None;
        }
        // Not asked by anybody who has released: they have no guard any more.
        Some(self.ended_by().unwrap_or_else(|| self.lost_to(self.overdue())))
    }

    /// The loss that has ended this hold; `None` while nobody has noticed any, and if it was released.
    fn ended_by(&self) -> Option<LockError> {
        match self.state().phase {
            Phase::Lost { reason, held_for } => Some(self.lost_after(reason, held_for)),
            Phase::Held | Phase::HandedOver | Phase::Released => None,
        }
    }

    /// The loss of this hold at this moment.
    pub(crate) fn lost_to(&self, reason: LostReason) -> LockError {
        self.lost_after(reason, self.age())
    }

    fn lost_after(&self, reason: LostReason, held_for: Duration) -> LockError {
        LockError::Lost { key: self.key.as_ref().to_owned(), reason, held_for }
    }

    /// What it means for this lease that its deadline has passed.
    pub(crate) fn overdue(&self) -> LostReason {
        self.state().overdue(BootInstant::now())
    }

    /// How long ago this hold was granted.
    pub(crate) fn age(&self) -> Duration {
        BootInstant::now().since(self.state().granted)
    }

    /// Tells those who wait for the loss. Calls foreign code: their wakers.
    pub(crate) fn tell_of_loss(&self) {
        self.lost.notify_waiters();
    }

    /// One who asks for `terms` takes a lease that was handed over, as it is. None if it is another
    /// than was asked for. Also tells whether the watchdog has to look at it anew.
    pub(crate) fn take_over(
        self: &Arc<Self>,
        terms: &Terms,
        pass: &mut Option<Pass>,
    ) -> Option<(Hold, bool)> {
        let now = BootInstant::now();
        let mut state = self.state();
        let same = state.renewed && terms.renewed && state.term == terms.term;
        if state.phase != Phase::HandedOver
            || !same
            || !terms.min_hold.is_zero()
            || !state.can_be_handed_over(now)
            || state.gone_by.since(now) > terms.term
        {
            return None;
        }
        let replan = std::mem::take(&mut state.left_out) || terms.max_hold.is_some();
        state.begin(terms, now, pass.take());
        if !Protection::PassedOnAsItIs.is_on() {
            state.extended = now;
            self.valid_until.store(state.granted_until().as_nanos(), Ordering::Release);
        }
        if let Some(max_until) = state.max_until {
            let until = state.granted_until().min(max_until);
            self.valid_until.store(until.as_nanos(), Ordering::Release);
        }
        Some((Hold { lease: Arc::clone(self), number: state.hold }, replan))
    }

    /// A lease that was handed over is about to be renewed for one who asks for `terms`; returns for
    /// how long to ask. `None` if the key would last for longer than that anyway, or has ended.
    pub(crate) fn about_to_renew_for(&self, terms: &Terms, now: BootInstant) -> Option<Duration> {
        let mut state = self.state();
        let asked = terms.in_store();
        if state.phase != Phase::HandedOver
            || !state.can_be_handed_over(now)
            || state.gone_by.since(now) > asked
        {
            return None;
        }
        state.gone_by = now.after(asked);
        Some(asked)
    }

    /// That request, sent at `sent`, has worked.
    pub(crate) fn renewed_for(
        self: &Arc<Self>,
        terms: &Terms,
        sent: BootInstant,
        pass: &mut Option<Pass>,
    ) -> Option<Hold> {
        let until = terms.deadline(sent);
        let mut state = self.state();
        let now = BootInstant::now();
        if state.phase != Phase::HandedOver || until <= now {
            return None;
        }
        state.begin(terms, sent, pass.take());
        (state.term, state.renewed, state.extended) = (terms.term, terms.renewed, sent);
        state.remade = now;
        state.left_out = false;
        state.failures = 0;
        self.valid_until.store(until.as_nanos(), Ordering::Release);
        Some(Hold { lease: Arc::clone(self), number: state.hold })
    }

    /// Nobody wants a lease that was handed over. False if it has ended otherwise.
    pub(crate) fn close(&self) -> bool {
        let mut state = self.state();
        if state.phase != Phase::HandedOver {
            return false;
        }
        state.phase = Phase::Released;
        self.valid_until.store(BootInstant::PAST.as_nanos(), Ordering::Release);
        true
    }

    /// It is known how many others wait for the key, or that this is not to be had.
    pub(crate) fn others_wait(&self, others: Option<usize>) {
        self.state().turn.answered(others, BootInstant::now());
    }

    /// Nobody finds that out any more.
    pub(crate) fn nobody_asks(&self) {
        self.state().turn.unasked();
    }

    /// A request that may extend it is about to be sent; returns for how long to ask. `None` if it
    /// has ended: then none may be sent. With `term`, it is to last for that long from now on; the key
    /// is to stay for `min_hold` at the least.
    pub(crate) fn about_to_extend(
        &self,
        now: BootInstant,
        term: Option<Duration>,
        min_hold: Duration,
    ) -> Option<Duration> {
        let mut state = self.state();
        if !state.is_open() && Protection::ReleaseEndsRenewal.is_on() {
            return None;
        }
        let stay = state.kept_until.since(now).max(min_hold);
        let asked = term.unwrap_or(state.term).max(stay);
        state.gone_by = state.gone_by.max(now.after(asked));
        Some(asked)
    }

    /// The same for the watchdog. `None` also if it is fixed, perhaps since a moment ago, and if it was
    /// handed over to one who does not take it.
    pub(crate) fn about_to_renew(&self, now: BootInstant) -> Option<Duration> {
        let mut state = self.state();
        state.left_out |= state.phase == Phase::HandedOver && state.is_abandoned(now);
        let is_to_be = state.renewed && !state.left_out;
        drop(state);
        is_to_be.then(|| self.about_to_extend(now, None, Duration::ZERO)).flatten()
    }

    /// A request sent at `sent` has extended it, by its term or by a new one. Returns how many had
    /// failed before.
    pub(crate) fn extended(&self, sent: BootInstant, term: Option<Duration>) -> u32 {
        let mut state = self.state();
        let is_as_asked = term.is_some() || sent > state.remade;
        if state.is_open() && is_as_asked {
            state.term = term.map_or(state.term, |term| term.max(state.term));
            state.extended = state.extended.max(sent);
            let deadline = deadline(sent, term.unwrap_or(state.term));
            let deadline = state.max_until.map_or(deadline, |max_until| deadline.min(max_until));
            // Answers may come in another order than the requests were served in. The later
            // deadline holds, because no request shortens what another has got.
            let deadline = deadline.max(self.deadline());
            self.valid_until.store(deadline.as_nanos(), Ordering::Release);
        }
        std::mem::take(&mut state.failures)
    }

    /// The key is to stay for this long from then on, even if the hold ends before.
    pub(crate) fn keep_for(&self, since: BootInstant, min_hold: Duration) {
        let mut state = self.state();
        state.kept_until = state.kept_until.max(since.after(min_hold));
    }

    /// The key need not stay when the hold ends.
    pub(crate) fn keep_no_longer(&self) {
        self.state().kept_until = BootInstant::PAST;
    }

    /// Until when the key is to stay in the store, even if the hold ends before.
    pub(crate) fn kept_until(&self) -> BootInstant {
        self.state().kept_until
    }

    /// Whether renewing it would make it last longer.
    pub(crate) fn can_be_renewed(&self) -> bool {
        let state = self.state();
        state.renewed
            && Protection::Renewal.is_on()
            && state.max_until.is_none_or(|max_until| self.deadline() < max_until)
    }

    /// A renewal failed. Returns how many have in a row.
    pub(crate) fn failed(&self) -> u32 {
        let mut state = self.state();
        state.failures = state.failures.saturating_add(1);
        state.failures
    }

    /// The hold is over against its holders' will. `None` if it had ended before.
    ///
    /// The pass stays here until somebody [takes](Self::take_pass) it, and nobody was told.
    /// Does `first` before, because from then on the pass of one that is on its way may be given back.
    pub(crate) fn lose(&self, reason: LostReason, first: impl FnOnce()) -> Option<Loss> {
        self.lose_for(|_| Some(reason), first)
    }

    /// The same because its deadline has passed. `None` also if that is not so any more: it may have
    /// gone to a holder who has more time.
    pub(crate) fn expire(&self, first: impl FnOnce()) -> Option<Loss> {
        let now = BootInstant::now();
        self.lose_for(|state| (!self.is_valid(now)).then(|| state.overdue(now)), first)
    }

    fn lose_for(
        &self,
        why: impl FnOnce(&State) -> Option<LostReason>,
        first: impl FnOnce(),
    ) -> Option<Loss> {
        let mut state = self.state();
        if !state.is_open() {
            return None;
        }
        let reason = why(&state)?;
        let held = state.phase == Phase::Held;
        first();
        let held_for = BootInstant::now().since(state.granted);
        state.phase = Phase::Lost { reason, held_for };
        self.valid_until.store(BootInstant::PAST.as_nanos(), Ordering::Release);
        Some(Loss { reason, held })
    }

    /// The pass, for those who wait in this process: what is left of the key in the store, if
    /// anything, makes them wait there.
    pub(crate) fn take_pass(&self) -> Option<Pass> {
        self.state().pass.take()
    }

    /// Where a request was sent from that may still take effect, if there is one.
    pub(crate) fn doubt(&self) -> Option<Origin> {
        self.doubt
    }

    /// Plain data; every change to it is complete before anything that could panic.
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Until when a lease of `term` is valid that was asked for at `sent`.
pub(crate) fn deadline(sent: BootInstant, term: Duration) -> BootInstant {
    sent.after(term.saturating_sub(term / 100 + Duration::from_millis(2)))
}

#[cfg(test)]
mod tests {
    use super::super::gate::{Entry, Gates};
    use super::*;
    use crate::clock;

    const TERM: Duration = Duration::from_secs(10);

    fn lease(sent: BootInstant, renewed: bool) -> (Arc<Gates>, Hold) {
        let terms = Terms { term: TERM, renewed, max_hold: None, min_hold: Duration::ZERO };
        granted(sent, &terms)
    }

    fn granted(sent: BootInstant, terms: &Terms) -> (Arc<Gates>, Hold) {
        let gates = Arc::new(Gates::default());
        let key: Arc<str> = Arc::from("k");
        let Entry::Open(pass) = gates.enter(&key, false) else { panic!("free") };
        let token = Token::random().expect("randomness");
        (gates, Hold::new(key, token, terms, sent, Some(pass), None, false))
    }

    /// With nobody behind.
    fn leave(hold: &Hold) -> Leave {
        hold.leave(None).next
    }

    /// With somebody behind, who is handed the lease.
    fn hand_over(hold: &Hold) -> Option<Pass> {
        match hold.leave(Some(&Limits::default())) {
            Leaving { lost: None, next: Leave::HandOver { pass, .. }, .. } => Some(pass),
            _ => None,
        }
    }

    fn terms() -> Terms {
        Terms { term: TERM, renewed: true, max_hold: None, min_hold: Duration::ZERO }
    }

    #[test]
    fn it_ends_a_margin_before_the_store_ends_it() {
        let sent = BootInstant::now();
        let (_gates, lease) = lease(sent, true);
        assert!(lease.is_valid(sent));
        let margin = TERM / 100 + Duration::from_millis(2);
        assert_eq!(lease.deadline().since(sent) + margin, TERM);
        assert!(!lease.is_valid(lease.deadline()));
        assert_eq!(lease.gone_by(), sent.after(TERM));
    }

    #[test]
    fn renewal_counts_from_the_sending() {
        let sent = BootInstant::now();
        let (_gates, lease) = lease(sent, true);
        let again = sent.after(TERM / 3);
        assert_eq!(lease.about_to_extend(again, None, Duration::ZERO), Some(TERM));
        assert_eq!(lease.gone_by(), again.after(TERM), "from here on it may have been extended");
        lease.failed();
        assert_eq!(lease.failed(), 2);
        assert_eq!(lease.extended(again, None), 2);
        assert_eq!(lease.deadline(), deadline(again, TERM));
        assert_eq!(lease.failed(), 1, "a success starts the count anew");
    }

    #[test]
    fn it_knows_how_it_is_kept_alive_and_why_it_ends() {
        let brief = BootInstant::now();
        let terms =
            |renewed, max_hold| Terms { term: TERM, renewed, max_hold, min_hold: Duration::ZERO };
        for (renewed, max_hold, reason) in [
            (true, None, LostReason::RenewalFailed),
            (false, None, LostReason::LeaseOver),
            (true, Some(Duration::from_nanos(1)), LostReason::MaxHold),
            (true, Some(TERM), LostReason::RenewalFailed),
        ] {
            let (_gates, lease) = granted(brief, &terms(renewed, max_hold));
            assert_eq!((lease.is_renewed(), lease.overdue()), (renewed, reason), "{max_hold:?}");
        }
    }

    #[test]
    fn it_tells_a_release_from_a_loss() {
        let (_gates, released) = lease(BootInstant::now(), true);
        assert_eq!(released.was_lost(), None);
        leave(&released);
        assert_eq!((released.was_lost(), released.ended_by()), (None, None));

        let (_gates, lost) = lease(BootInstant::now(), true);
        assert_eq!((lost.ended_by(), lost.loss()), (None, None));
        lost.lose(LostReason::Gone, || {});
        for told in [lost.ended_by(), lost.loss(), lost.was_lost(), lost.leave(None).lost] {
            match told {
                Some(LockError::Lost { reason, .. }) => assert_eq!(reason, LostReason::Gone),
                other => panic!("{other:?}"),
            }
        }
    }

    #[test]
    fn a_key_is_kept_for_the_longest_that_was_asked() {
        let sent = BootInstant::now();
        let (_gates, lease) = lease(sent, true);
        assert!(lease.kept_until() <= sent);
        lease.keep_for(sent, TERM);
        let longest = lease.kept_until();
        assert!(longest >= sent.after(TERM));
        lease.keep_for(sent, TERM / 2);
        assert_eq!(lease.kept_until(), longest);
    }

    #[test]
    fn the_last_holder_releases() {
        let (gates, lease) = lease(BootInstant::now(), true);
        assert!(lease.join());
        assert!(matches!(leave(&lease), Leave::Nothing));
        assert!(lease.is_valid(BootInstant::now()));
        let Leave::Release(pass) = leave(&lease) else { panic!("last") };
        assert!(!lease.is_valid(BootInstant::now()));
        assert!(!lease.join());
        assert_eq!(gates.keys(), 1, "nobody of this process may try before the release is done");
        drop(pass);
        assert_eq!(gates.keys(), 0);
    }

    #[test]
    fn nothing_extends_what_was_released() {
        let sent = BootInstant::now();
        let (_gates, lease) = lease(sent, true);
        assert!(lease.about_to_extend(sent, None, Duration::ZERO).is_some());
        drop(leave(&lease));
        assert!(lease.about_to_extend(sent, None, Duration::ZERO).is_none());
        lease.extended(BootInstant::now(), None);
        assert!(!lease.is_valid(BootInstant::now()));
    }

    #[test]
    fn a_loss_is_told_once_and_releases_nothing() {
        let (gates, lease) = lease(BootInstant::now(), true);
        assert!(lease.loss().is_none());
        assert!(lease.lose(LostReason::Taken, || {}).is_some());
        assert!(lease.lose(LostReason::Gone, || {}).is_none());
        assert!(matches!(lease.loss(), Some(LockError::Lost { reason: LostReason::Taken, .. })));
        drop(lease.take_pass());
        assert_eq!(gates.keys(), 0, "others of this process may try");
        assert!(matches!(leave(&lease), Leave::Nothing));
    }

    #[test]
    fn a_passed_deadline_is_a_loss_before_anybody_says_so() {
        let long_ago = BootInstant::from_nanos(1);
        for (renewed, reason) in [(true, LostReason::RenewalFailed), (false, LostReason::LeaseOver)]
        {
            let (_gates, lease) = lease(long_ago, renewed);
            assert!(!lease.join());
            match lease.loss() {
                Some(LockError::Lost { reason: seen, .. }) => assert_eq!(seen, reason),
                other => panic!("{other:?}"),
            }
        }
    }

    #[test]
    fn a_key_that_may_still_be_its_own_stays_taken_until_its_holders_are_done() {
        for reason in [
            LostReason::ShutDown,
            LostReason::MaxHold,
            LostReason::RenewalFailed,
            LostReason::LeaseOver,
        ] {
            let (gates, lease) = lease(BootInstant::now(), true);
            assert!(lease.join());
            let loss = lease.lose(reason, || {}).expect("held");
            assert!(loss.leaves_the_key(), "{reason:?}");
            assert!(!lease.is_valid(BootInstant::now()));
            assert!(matches!(leave(&lease), Leave::Nothing));
            assert_eq!(gates.keys(), 1);
            assert!(matches!(leave(&lease), Leave::Release(Some(_))));
        }
        for reason in [LostReason::Gone, LostReason::Taken] {
            let (_gates, lease) = lease(BootInstant::now(), true);
            let loss = lease.lose(reason, || {}).expect("held");
            assert!(!loss.leaves_the_key(), "{reason:?}");
        }
        let (_gates, lease) = lease(BootInstant::now(), true);
        let _pass = hand_over(&lease);
        let loss = lease.lose(LostReason::RenewalFailed, || {}).expect("on its way");
        assert!(!loss.leaves_the_key(), "nobody had it");
    }

    #[test]
    fn a_loss_that_nobody_has_noticed_is_noticed_by_the_last_who_leaves() {
        let (_gates, lease) = lease(BootInstant::from_nanos(1), true);
        let left = lease.leave(None);
        assert_eq!(left.noticed, Some(LostReason::RenewalFailed));
        assert!(left.lost.is_some());
        let (_gates, lease) = self::lease(BootInstant::from_nanos(1), true);
        lease.expire(|| {});
        assert_eq!(lease.leave(None).noticed, None, "the watchdog has");
    }

    #[test]
    fn answers_in_any_order_make_the_latest_deadline() {
        let sent = BootInstant::now();
        let (_gates, lease) = lease(sent, false);
        lease.extended(sent, Some(TERM * 6));
        lease.extended(sent, Some(TERM * 2));
        assert_eq!(lease.deadline(), deadline(sent, TERM * 6));
    }

    #[test]
    fn a_maximum_bounds_every_extension() {
        let (sent, max_hold) = (BootInstant::now(), TERM * 3 / 2);
        let terms =
            Terms { term: TERM, renewed: true, max_hold: Some(max_hold), min_hold: Duration::ZERO };
        let (_gates, lease) = granted(sent, &terms);
        assert!(lease.can_be_renewed());
        lease.extended(sent.after(TERM), None);
        assert_eq!(lease.deadline(), sent.after(max_hold));
        assert!(!lease.can_be_renewed());
    }

    #[test]
    fn a_minimum_is_asked_for_with_every_request() {
        let (sent, min_hold) = (BootInstant::now(), TERM * 2);
        let terms = Terms { term: TERM, renewed: true, max_hold: None, min_hold };
        let (_gates, lease) = granted(sent, &terms);
        assert_eq!(terms.in_store(), min_hold);
        assert_eq!(lease.deadline(), deadline(sent, TERM), "for the holder it changes nothing");
        assert_eq!(lease.gone_by(), sent.after(min_hold));
        let asked = lease.about_to_extend(sent.after(TERM / 2), None, Duration::ZERO);
        assert_eq!(asked, Some(TERM * 3 / 2));
        assert_eq!(lease.about_to_extend(sent.after(min_hold), None, Duration::ZERO), Some(TERM));
    }

    #[test]
    fn a_lease_that_is_handed_over_is_another_hold() {
        let (gates, first) = lease(BootInstant::now(), true);
        let stale = first.clone();
        let deadline = first.deadline();
        let mut pass = hand_over(&first);
        assert!(!stale.join(), "it is nobody's");
        let (second, _) = first.lease().take_over(&terms(), &mut pass).expect("the same terms");
        assert!(pass.is_none(), "it goes with the hold");
        assert_eq!(second.deadline(), deadline, "the store knows nothing of it");
        assert!(!stale.join());
        for limits in [None, Some(&Limits::default())] {
            let left = stale.leave(limits);
            assert!(matches!(left, Leaving { lost: None, noticed: None, next: Leave::Nothing }));
        }
        assert!(second.is_valid(BootInstant::now()) && second.join());
        second.lose(LostReason::Gone, || {});
        assert_eq!(stale.was_lost(), None, "what is lost is another one");
        assert!(second.was_lost().is_some());
        drop(gates);
    }

    #[test]
    fn each_hold_has_a_fencing_token_of_its_own() {
        let (_gates, first) = lease(BootInstant::now(), true);
        let fence = first.fence();
        assert!(Arc::ptr_eq(&fence, &first.fence()));
        let mut pass = hand_over(&first);
        let (second, _) = first.lease().take_over(&terms(), &mut pass).expect("the same terms");
        assert!(!Arc::ptr_eq(&fence, &second.fence()));
        assert!(!Arc::ptr_eq(&second.fence(), &first.fence()), "nor does one of before get it");
    }

    #[test]
    fn what_is_not_good_enough_is_not_handed_over() {
        let late = BootInstant::from_nanos(BootInstant::now().as_nanos() - 6_000_000_000);
        let (_gates, overdue) = lease(late, true);
        assert!(overdue.is_valid(BootInstant::now()));
        assert!(hand_over(&overdue).is_none(), "its renewals have failed for a while");

        let kept = Terms { min_hold: TERM / 2, ..terms() };
        let (_gates, kept) = granted(BootInstant::now(), &kept);
        assert!(hand_over(&kept).is_none(), "its key is to stay taken");

        let (_gates, lost) = lease(BootInstant::now(), true);
        lost.lose(LostReason::Taken, || {});
        assert!(hand_over(&lost).is_none());

        let (_gates, shared) = lease(BootInstant::now(), true);
        assert!(shared.join());
        assert!(hand_over(&shared).is_none(), "somebody still has it");
        assert!(hand_over(&shared).is_some());
    }

    #[test]
    fn a_lease_goes_only_to_one_who_asked_for_it() {
        let fixed = |term| Terms { term, renewed: false, ..terms() };
        let kept = Terms { min_hold: TERM / 2, ..terms() };
        for (terms, renewal) in [
            (fixed(TERM * 2), Some(TERM * 2)),
            (fixed(TERM / 2), None),
            (kept, Some(TERM)),
            (Terms { min_hold: TERM * 3, ..kept }, Some(TERM * 3)),
        ] {
            let sent = BootInstant::now();
            let (_gates, hold) = lease(sent, true);
            let mut pass = hand_over(&hold);
            assert!(hold.lease().take_over(&terms, &mut pass).is_none());
            assert!(pass.is_some());
            let now = BootInstant::now();
            assert_eq!(hold.about_to_renew_for(&terms, now), renewal, "{terms:?}");
            if let Some(renewal) = renewal {
                assert_eq!(hold.gone_by(), now.after(renewal));
                let next = hold.lease().renewed_for(&terms, now, &mut pass).expect("in time");
                assert_eq!(next.deadline(), deadline(now, terms.term));
                assert_eq!((next.is_renewed(), next.term()), (terms.renewed, terms.term));
                assert_eq!(next.kept_until(), now.after(terms.min_hold));
            }
        }
    }

    #[test]
    fn what_the_watchdog_has_sent_before_does_nothing_to_a_lease_that_was_renewed_to_another() {
        let sent = BootInstant::now();
        let (_gates, hold) = lease(sent, true);
        let mut pass = hand_over(&hold);
        let fixed = Terms { term: TERM * 2, renewed: false, ..terms() };
        assert!(hold.about_to_renew_for(&fixed, sent).is_some());
        let later = BootInstant::now();
        assert_eq!(hold.about_to_renew(later), Some(TERM));
        let next = hold.lease().renewed_for(&fixed, sent, &mut pass).expect("in time");
        next.extended(later, None);
        assert_eq!(next.deadline(), deadline(sent, TERM * 2));
        assert_eq!(next.about_to_renew(BootInstant::now()), None, "nor does it begin again");
    }

    #[test]
    fn a_maximum_is_of_one_hold_and_not_of_the_lease() {
        let bounded = Terms { max_hold: Some(TERM / 4), ..terms() };
        let sent = BootInstant::now();
        let (_gates, first) = granted(sent, &bounded);
        let mut pass = hand_over(&first);
        assert_eq!(first.deadline(), deadline(sent, TERM));
        let (second, replan) =
            first.lease().take_over(&bounded, &mut pass).expect("the same terms");
        assert!(replan);
        assert!(second.deadline() >= sent.after(TERM / 4));
        assert!(second.deadline() < deadline(sent, TERM));
    }

    #[test]
    fn a_lease_that_nobody_takes_is_not_renewed_for_long() {
        let (_gates, hold) = lease(BootInstant::now(), true);
        let mut pass = hand_over(&hold);
        let now = BootInstant::now();
        assert!(hold.about_to_renew(now).is_some(), "somebody is about to");
        assert!(hold.about_to_renew(now.after(TERM / 3)).is_none());
        let (next, replan) = hold.lease().take_over(&terms(), &mut pass).expect("it is still good");
        assert!(replan, "the watchdog waits for its end");
        assert!(next.about_to_renew(now.after(TERM / 3)).is_some());
    }

    #[test]
    fn a_lease_that_nobody_wants_is_closed_once() {
        let (_gates, hold) = lease(BootInstant::now(), true);
        assert!(!hold.close(), "it is held");
        let pass = hand_over(&hold);
        assert!(hold.close());
        assert!(!hold.close());
        assert!(hold.lease().take_over(&terms(), &mut { pass }).is_none());
        assert!(!hold.is_valid(BootInstant::now()));
    }

    #[test]
    fn a_lease_that_is_lost_on_its_way_is_taken_by_nobody() {
        let (_gates, hold) = lease(BootInstant::now(), true);
        let mut pass = hand_over(&hold);
        let lost = hold.lose(LostReason::Gone, || {});
        assert_eq!(lost, Some(Loss { reason: LostReason::Gone, held: false }));
        assert!(hold.lease().take_over(&terms(), &mut pass).is_none());
        assert!(hold.about_to_renew_for(&terms(), BootInstant::now()).is_none());
        assert!(!hold.close());
    }

    #[tokio::test]
    async fn those_who_wait_for_the_loss_hear_of_it() {
        let (_gates, lease) = lease(BootInstant::now(), true);
        let (reason, ()) = tokio::join!(lease.lost(), async {
            tokio::task::yield_now().await;
            lease.lose(LostReason::Gone, || {});
            lease.tell_of_loss();
        });
        assert_eq!(reason, LostReason::Gone);
        assert_eq!(lease.lost().await, LostReason::Gone, "and whoever asks later");
    }

    /// Nobody watches it, so nobody tells them.
    #[tokio::test]
    async fn those_who_wait_for_the_loss_notice_the_deadline_by_themselves() {
        let brief = Terms { term: Duration::from_millis(50), renewed: false, ..terms() };
        let (_gates, lease) = granted(BootInstant::now(), &brief);
        let extended = async {
            lease.extended(BootInstant::now(), Some(brief.term * 3));
            lease.lost().await
        };
        let (first, second) = tokio::join!(lease.lost(), extended);
        assert_eq!((first, second), (LostReason::LeaseOver, LostReason::LeaseOver));
        assert!(lease.age() >= brief.term * 2, "not before it was over: {:?}", lease.age());
        assert!(lease.expire(|| {}).is_some(), "nobody had told them");
    }

    #[test]
    fn one_who_waits_for_the_loss_needs_no_runtime() {
        let (_gates, lease) = lease(BootInstant::now(), true);
        let mut lost = pin!(lease.lost());
        let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
        assert!(lost.as_mut().poll(&mut cx).is_pending());
        lease.lose(LostReason::Gone, || {});
        lease.tell_of_loss();
        assert_eq!(lost.poll(&mut cx), std::task::Poll::Ready(LostReason::Gone));
    }

    /// A paused clock jumps from timer to timer while nothing else happens.
    #[tokio::test(start_paused = true)]
    async fn a_timer_that_runs_ahead_of_the_deadline_does_not_spin() {
        let (_gates, lease) = lease(BootInstant::now(), true);
        let mut lost = pin!(lease.lost());
        let start = tokio::time::Instant::now();
        assert!(tokio::time::timeout(TERM * 1000, lost.as_mut()).await.is_err(), "in no time");
        assert!(start.elapsed() >= TERM * 1000);
        lease.lose(LostReason::Gone, || {});
        lease.tell_of_loss();
        assert_eq!(lost.await, LostReason::Gone);
    }

    #[test]
    fn a_renewal_for_the_next_that_is_answered_after_its_deadline_is_no_hold() {
        let (_gates, hold) = lease(BootInstant::now(), true);
        let mut pass = hand_over(&hold);
        let (sent, fixed) =
            (BootInstant::now(), Terms { term: TERM * 2, renewed: false, ..terms() });
        assert!(hold.about_to_renew_for(&fixed, sent).is_some());
        clock::sleep_through(TERM * 3);
        assert!(hold.lease().renewed_for(&fixed, sent, &mut pass).is_none());
        assert!(pass.is_some(), "it stays with the one who has asked");
        assert!(hold.close(), "to be released");
    }
}

//! Getting a lock: the one task of this process that talks to the store about a key.
//!
//! With the pass of the key in hand, it tries once; mostly that is all. Who comes right behind a
//! release of this process that has woken others lets them go first. If the key is busy, it
//! subscribes to the key's releases, tries again in case that was missed, and then sleeps until it
//! is woken or until the holder's lease must have ended, whichever comes first. A store that has to
//! be told of releases looks at the keys of its subscribers, and what it has seen counts like an
//! answer. While the subscription is not live, the contender asks once a second itself. While the
//! store gives no answer it tries again after a pause with jitter. All of it together takes no
//! longer than the caller will wait.
//!
//! The undo is armed before a request is sent and disarmed by a definite answer. So wherever the
//! caller drops this future, a key that may have been taken is freed again. Where the caller only stops
//! polling it, others go on with it, see [`driven`](super::driven). All tries of one
//! acquisition use one token, and a repeated try of an owner is granted, so an answer that got
//! lost costs one more try.

#[cfg(test)]
#[cfg(not(lock_shuttle))]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::{Handle, Id};

use super::Engine;
use super::backoff::Backoff;
use super::budget::Budget;
use super::courtesy::StepBack;
use super::driven::{Boxed, Driven, Settled, Work};
use super::gate::{Aside, Entry, News, Pass, Spot, Ticket, Turn};
use super::handover::{Accepted, Inherited};
use super::lease::{Hold, Terms};
use super::releaser::{Cause, Origin, Release};
use crate::clock::BootInstant;
use crate::error::{Holder, LockError};
use crate::eventually::Eventually;
use crate::format::WireFormat;
use crate::protection::Protection;
use crate::runtime::{self, Caller};
use crate::store::{Attempt, Claim, Left, LockStore, StoreError, Subscription, Token, Trace};
use crate::sync::time;
use crate::wait::{LONGEST_WAIT, Wait};

/// The longest sleep of a contender that nobody would wake.
const SAFETY_POLL: Duration = Duration::from_secs(1);

/// The longest time between two answers to one that is woken, its own or what the store has seen.
/// Only if the store stops looking is it ever over.
const LONGEST_SLEEP: Duration = Duration::from_secs(10);

/// The first and the longest pause after a try that the store did not answer.
pub(super) const PAUSES: (Duration, Duration) =
    (Duration::from_millis(20), Duration::from_millis(500));

/// The most that is added to a holder's remaining lease, so that contenders of several processes
/// do not all try at the instant at which it ends.
const SPREAD: Duration = Duration::from_millis(30);

/// What is asked for.
#[derive(Debug, Clone)]
pub(crate) struct Request {
    /// As the store knows it, checked.
    pub(crate) key: Arc<str>,
    pub(crate) format: WireFormat,
    /// Checked.
    pub(crate) wait: Wait,
    /// Checked.
    pub(crate) terms: Terms,
}

/// Takes the lock, or says why not. What it returns is made of the hold. Dropping the future leaves
/// nothing behind.
///
/// The call takes a place in the queue, so it is made when the future around it is first polled.
pub(crate) fn acquire<T: Send + Unpin + 'static>(
    engine: Arc<Engine>,
    request: Request,
    make: fn(Arc<Engine>, Hold) -> T,
) -> Eventually<'static, Result<T, Box<LockError>>> {
    let failed = |error: LockError| Eventually::ready(Err(Box::new(error)));
    let here = match runtime::checked() {
        Ok(here) => here,
        Err(error) => return failed(error),
    };
    if let Err(error) = engine.admit(&request.key) {
        return failed(error);
    }
    let budget = Budget::new(request.wait);
    let entry = engine.gates().enter(&request.key, budget.is_once());
    let call = Call { engine, runtime: here.id(), request, budget };
    match entry {
        Entry::Open(pass) => call.try_for(pass, None, 0, here, make),
        Entry::Closed => failed(LockError::ShutDown),
        Entry::Offered(turn, number) => call.begin(turn, None, number, here, make),
        Entry::Taken(news) => failed(call.spent(news)),
        // Thousands may be here, so what comes after the queue is boxed apart from it.
        Entry::Queued(mut ticket) => Eventually::pending(async move {
            let (turn, known) = call.turn(&mut ticket).await?;
            let number = ticket.number();
            drop(ticket);
            call.begin(turn, known, number, here, make).await
        }),
    }
}

/// What a caller wants, and for how long.
#[derive(Clone)]
struct Call {
    engine: Arc<Engine>,
    /// Where its requests are sent from.
    runtime: Id,
    request: Request,
    budget: Budget,
}

impl Call {
    /// Waits for its turn, and for what is known by then.
    async fn turn(&self, ticket: &mut Ticket) -> Result<(Turn, Option<News>), Box<LockError>> {
        let news = || self.engine.gates().news(&self.request.key);
        match self.budget.limit(ticket).await {
            // One who tries once has what it asks for in time, whenever that is.
            Some(Some(Turn::Free(pass))) if self.budget.is_once() || !self.budget.is_over() => {
                Ok((Turn::Free(pass), Some(news())))
            }
            Some(Some(Turn::Held(inherited))) => Ok((Turn::Held(inherited), None)),
            Some(None) => Err(LockError::ShutDown.into()),
            // With a pass, but without time to use it.
            Some(Some(Turn::Free(_))) | None => Err(self.spent(news()).into()),
        }
    }

    /// Goes on with what has come to it.
    fn begin<T: Send + Unpin + 'static>(
        self,
        turn: Turn,
        known: Option<News>,
        number: u64,
        here: Handle,
        make: fn(Arc<Engine>, Hold) -> T,
    ) -> Eventually<'static, Result<T, Box<LockError>>> {
        let inherited = match turn {
            Turn::Free(pass) => return self.try_for(pass, known, number, here, make),
            Turn::Held(inherited) => inherited,
        };
        match self.accept(inherited) {
            Ok(Ok(hold)) => Eventually::ready(admitted(self.engine, hold, make)),
            Ok(Err(error)) => Eventually::ready(Err(error)),
            Err(inherited) => {
                let (spot, call) = (inherited.spot(number), self.clone());
                self.drive(spot, here, Box::pin(call.renew(inherited)), make)
            }
        }
    }

    /// Tries for the key, with its pass in hand.
    fn try_for<T: Send + Unpin + 'static>(
        self,
        pass: Pass,
        known: Option<News>,
        number: u64,
        here: Handle,
        make: fn(Arc<Engine>, Hold) -> T,
    ) -> Eventually<'static, Result<T, Box<LockError>>> {
        let mut contender = match Contender::new(&self, Some(pass)) {
            Ok(contender) => contender,
            Err(error) => return Eventually::ready(Err(error)),
        };
        let (owed, mut tried) = (contender.owed(&self.budget), None);
        if known.is_none() && owed.is_none() && self.engine.store().is_immediate() {
            tried = contender.try_at_once(&self.budget);
            if let Some(Tried { sent, granted: true, .. }) = tried {
                let hold = contender.granted(sent);
                return Eventually::ready(admitted(self.engine, hold, make));
            }
        }
        let spot = contender.pass.as_ref().map(|pass| pass.spot(number));
        let running = Box::pin(contender.run(self.budget, known, owed, tried));
        self.drive(spot, here, running, make)
    }

    /// Lets others go on with `running`, which has the pass of `spot`, if the caller does not.
    fn drive<T: Send + Unpin + 'static>(
        self,
        spot: Option<Spot>,
        here: Handle,
        running: Boxed<Result<Hold, Box<LockError>>>,
        make: fn(Arc<Engine>, Hold) -> T,
    ) -> Eventually<'static, Result<T, Box<LockError>>> {
        match spot {
            Some(spot) => {
                Eventually::Driven(Driven::new(Acquiring { call: self, make }, spot, here, running))
            }
            // Somebody else answers for the pass.
            None => Eventually::pending(async move { admitted(self.engine, running.await?, make) }),
        }
    }

    /// Takes a lock that was handed over as it is; back if it is not what was asked for.
    fn accept(&self, inherited: Inherited) -> Result<Result<Hold, Box<LockError>>, Inherited> {
        if let Err(refused) = self.engine.admit(&self.request.key) {
            return Ok(Err(refused.into()));
        }
        inherited.take(self.request.format, &self.request.terms).map(Ok)
    }

    /// Makes a lock that was handed over what was asked for, or tries for the key.
    async fn renew(self, inherited: Inherited) -> Result<Hold, Box<LockError>> {
        let asking = News::Asking(inherited.asked());
        let Request { format, terms, .. } = &self.request;
        match self.budget.limit(inherited.renew(*format, terms)).await {
            Some(Accepted::Held(hold)) => Ok(hold),
            Some(Accepted::Freed(pass)) => self.ask(pass, None).await,
            // Not what is known since: the lock has gone on to others, or is being freed.
            None => Err(self.spent(asking).into()),
        }
    }

    /// Tries for the key, with its pass if nobody else answers for that.
    async fn ask(&self, pass: Option<Pass>, known: Option<News>) -> Result<Hold, Box<LockError>> {
        let contender = Contender::new(self, pass)?;
        let owed = contender.owed(&self.budget);
        contender.run(self.budget, known, owed, None).await
    }

    /// The error of one who has waited long enough.
    fn spent(&self, news: News) -> LockError {
        spent(&self.budget, &self.engine, &self.request, news)
    }
}

/// A call with the pass in hand, which others can go on with.
struct Acquiring<T> {
    call: Call,
    make: fn(Arc<Engine>, Hold) -> T,
}

impl<T: Send + Unpin + 'static> Acquiring<T> {
    /// It is back in the queue.
    fn queued(&self, mut ticket: Ticket) -> Settled<Self> {
        let call = self.call.clone();
        Settled::Queued(Box::pin(async move { call.turn(&mut ticket).await.map_err(Err) }))
    }
}

impl<T: Send + Unpin + 'static> Work for Acquiring<T> {
    type Outcome = Result<Hold, Box<LockError>>;
    type Resumed = (Turn, Option<News>);
    type Value = Result<T, Box<LockError>>;

    fn finish(&self, outcome: Self::Outcome) -> Self::Value {
        admitted(Arc::clone(&self.call.engine), outcome?, self.make)
    }

    fn settle(&self, outcome: Self::Outcome, spot: &Spot) -> Settled<Self> {
        if outcome.is_err() {
            return Settled::Done(outcome);
        }
        // A lock is not kept for one who is not there. Its place first, then what goes on from it.
        let aside = spot.step_aside();
        self.abandon(outcome);
        match aside {
            Aside::Queued(ticket) => self.queued(ticket),
            Aside::Closed => Settled::Done(Err(LockError::ShutDown.into())),
            Aside::Gone => Settled::Done(self.failed("the lock was lost before it was used")),
        }
    }

    fn revoke(&self, spot: &Spot) -> Option<Settled<Self>> {
        match spot.step_aside() {
            Aside::Queued(ticket) => Some(self.queued(ticket)),
            Aside::Closed => Some(Settled::Done(Err(LockError::ShutDown.into()))),
            Aside::Gone => None,
        }
    }

    fn patience(&self) -> Duration {
        self.call.request.terms.term / 4
    }

    fn failed(&self, cause: &str) -> Self::Outcome {
        Err(Box::new(LockError::Unavailable {
            key: Some(self.call.request.key.as_ref().to_owned()),
            waited: self.call.budget.waited(),
            cause: cause.to_owned(),
        }))
    }

    fn resume(&self, (turn, known): Self::Resumed) -> (u64, Boxed<Self::Outcome>) {
        let call = self.call.clone();
        let number = turn.number();
        let running = Box::pin(async move {
            match turn {
                Turn::Free(pass) => call.ask(Some(pass), known).await,
                Turn::Held(inherited) => match call.accept(inherited) {
                    Ok(accepted) => accepted,
                    Err(inherited) => call.renew(inherited).await,
                },
            }
        });
        (number, running)
    }

    fn abandon(&self, outcome: Self::Outcome) {
        if let Ok(hold) = outcome {
            // Nothing has run under it, so there is nothing to keep the key for.
            hold.keep_no_longer();
            self.call.engine.release_in_background(&hold);
        }
    }
}

/// One try, and what came of it.
struct Tried {
    sent: BootInstant,
    /// How long it was to take at the most.
    within: Duration,
    /// By the answer, and there is time left in the lease.
    granted: bool,
    answer: Result<Attempt, StoreError>,
}

struct Contender {
    engine: Arc<Engine>,
    /// Where its requests are sent from.
    runtime: Id,
    request: Request,
    token: Token,
    /// Taken when the lock is granted.
    pass: Option<Pass>,
    /// Requests may have taken effect, or may yet; they were sent from there.
    unanswered: Option<Origin>,
    /// Other processes want the key as well.
    contended: bool,
}

impl Contender {
    fn new(call: &Call, pass: Option<Pass>) -> Result<Self, Box<LockError>> {
        let token = Token::random().map_err(|error| LockError::Unavailable {
            key: Some(call.request.key.as_ref().to_owned()),
            waited: call.budget.waited(),
            cause: format!("the system gave no random numbers: {error}"),
        })?;
        Ok(Self {
            engine: Arc::clone(&call.engine),
            runtime: call.runtime,
            token: token.in_format(call.request.format),
            request: call.request.clone(),
            pass,
            unanswered: None,
            contended: false,
        })
    }

    /// Tries once, which mostly is all, unless it has, or it is known to be of no use.
    async fn run(
        mut self,
        budget: Budget,
        known: Option<News>,
        owed: Option<StepBack>,
        mut tried: Option<Tried>,
    ) -> Result<Hold, Box<LockError>> {
        if known.is_none() && owed.is_none() && tried.is_none() {
            let first = self.try_once(true, &budget).await;
            if first.granted {
                return Ok(self.granted(first.sent));
            }
            tried = Some(first);
        }
        // Boxed apart, because it is large, and mostly not needed.
        Box::pin(self.contend(budget, known, owed, tried)).await.map_err(Box::new)
    }

    /// Tries until it has the lock or the wait is over. `known` is what those before it in the queue
    /// have learnt; `owed` what others are let go first for; `first` a try of its own.
    async fn contend(
        mut self,
        budget: Budget,
        mut known: Option<News>,
        owed: Option<StepBack>,
        mut first: Option<Tried>,
    ) -> Result<Hold, LockError> {
        let response_timeout = self.engine.config().response_timeout;
        let mut wake_ups = WakeUps::default();
        let mut seems_free = true;
        let mut answered = BootInstant::PAST;
        let mut backoff = Backoff::new(PAUSES.0, PAUSES.1);
        if let Some(step) = owed {
            self.step_back(step, &budget, &mut wake_ups).await?;
        }
        if let Some(News::Elsewhere(left, at)) = known {
            // The one before has just asked and given up. What it has learnt holds for us as well.
            seems_free = false;
            self.contended = true;
            answered = at;
            wake_ups.subscribe(self.engine.store(), &self.request);
            wake_ups.was_live = wake_ups.is_live();
            if !self.sleep(&budget, &mut wake_ups, Rest::Holder(left, at)).await {
                let news = News::Elsewhere(left, at);
                return Err(spent(&budget, &self.engine, &self.request, news));
            }
            self.engine.admit(&self.request.key)?;
        }
        loop {
            let fresh = std::mem::take(&mut seems_free) && self.unanswered.is_none();
            let tried = match first.take() {
                Some(tried) => tried,
                None => self.try_once(fresh, &budget).await,
            };
            let Tried { sent, within, granted, answer } = tried;
            if granted {
                if let Some(came) = wake_ups.others_came(answered) {
                    self.engine.gates().stepped_back(&self.request.key, came);
                }
                return Ok(self.granted(sent));
            }
            let now = BootInstant::now();
            let rest = match answer {
                Ok(Attempt::Granted) => {
                    // The store has it for us, and no time is left in it.
                    let term = self.request.terms.term;
                    let cause = format!("the answer took longer than the lease of {term:?}");
                    known = Some(News::Trouble(cause));
                    Rest::Pause(backoff.pause())
                }
                Ok(Attempt::Busy(left)) => {
                    backoff.reset();
                    answered = now;
                    self.contended = true;
                    known = Some(News::Elsewhere(left, now));
                    if budget.is_once() && left == Left::Unknown {
                        // One question more tells who is in the way, and whether it is a lock at all.
                        continue;
                    }
                    wake_ups.subscribe(self.engine.store(), &self.request);
                    Rest::Holder(left, now)
                }
                // Who tries once has its answer by now, only without its details.
                Err(StoreError::Refused(_) | StoreError::Unknown(_))
                    if budget.is_once() && matches!(known, Some(News::Elsewhere(..))) =>
                {
                    Rest::Pause(Duration::ZERO)
                }
                Err(StoreError::Refused(cause)) => {
                    // Without the time for a connection, what the store said before stands.
                    if !budget.is_over() || !matches!(known, Some(News::Trouble(_))) {
                        known = Some(News::Trouble(cause));
                    }
                    Rest::Pause(backoff.pause())
                }
                Err(StoreError::Unknown(_)) if !Protection::UnknownIsNotHeld.is_on() => {
                    return Ok(self.granted(sent));
                }
                Err(StoreError::Unknown(cause)) => {
                    // A try that our own wait cut short takes nothing from a recent answer, nor from
                    // what the store said before.
                    let cut_short = within < response_timeout || budget.is_over();
                    let answered = wake_ups.seen().map_or(answered, |(_, at)| answered.max(at));
                    let recent =
                        answered >= budget.began() && now.since(answered) <= response_timeout;
                    let stands = recent || matches!(known, Some(News::Trouble(_)));
                    if !cut_short || !stands {
                        known = Some(News::Trouble(cause));
                    }
                    Rest::Pause(backoff.pause())
                }
                Err(StoreError::Denied(cause)) => return Err(LockError::Denied { cause }),
                Err(StoreError::WrongFormat { key, expected, found }) => {
                    return Err(self.engine.wrong_format(key, expected, found));
                }
            };
            if let (Some(news), Some(pass)) = (&known, &self.pass) {
                pass.tell(news);
            }
            if budget.is_once() || !self.sleep(&budget, &mut wake_ups, rest).await {
                let news = known.unwrap_or(News::Asking(BootInstant::PAST));
                return Err(spent(&budget, &self.engine, &self.request, news));
            }
            self.engine.admit(&self.request.key)?;
        }
    }

    /// Lets those go first whom the last release has woken.
    async fn step_back(
        &mut self,
        step: StepBack,
        budget: &Budget,
        wake_ups: &mut WakeUps,
    ) -> Result<(), LockError> {
        self.contended = true;
        if let Some(pass) = &self.pass {
            pass.tell(&News::Others);
        }
        wake_ups.step_back(self.engine.store(), &self.request, step);
        let gone = async {
            tokio::select! {
                // Whichever comes first in this order: no arm takes anything from another.
                biased;
                () = wake_ups.let_others_go() => {}
                () = self.engine.closing() => {}
            }
        };
        // Whatever is left of the wait, there is at least one try.
        budget.limit(gone).await;
        self.engine.admit(&self.request.key)
    }

    /// What is owed to other processes, by one who has the time for it.
    fn owed(&self, budget: &Budget) -> Option<StepBack> {
        if budget.is_once() || !Protection::StepBack.is_on() {
            return None;
        }
        let step = self.engine.gates().owed(&self.request.key)?;
        let pause = budget.left().map_or(step.pause, |left| step.pause.min(left / 4));
        Some(StepBack { pause, ..step })
    }

    /// One request to a store that needs no time for it.
    fn try_at_once(&mut self, budget: &Budget) -> Option<Tried> {
        let patience = budget.for_one_try(self.engine.config().response_timeout);
        let claim = claim(&self.request, &self.token, true);
        let trace = Trace::default();
        let answer = self.engine.store().try_acquire(claim, patience, &trace).known()?;
        Some(self.tried(&trace, patience.total, answer))
    }

    /// One request. If it is dropped, or not answered, its effect is undone later on.
    async fn try_once(&mut self, fresh: bool, budget: &Budget) -> Tried {
        if !Protection::OneToken.is_on() {
            let other = Token::random().unwrap_or_else(|_| self.token.clone());
            self.token = other.in_format(self.request.format);
        }
        let trace = Trace::default();
        // Until there is an answer; also if this is dropped before.
        let mut unanswered = InFlight {
            trace: &trace,
            runtime: self.runtime,
            unanswered: &mut self.unanswered,
            is_over: false,
        };
        let patience = budget.for_one_try(self.engine.config().response_timeout);
        let claim = claim(&self.request, &self.token, fresh);
        let answer = self.engine.store().try_acquire(claim, patience, &trace).await;
        unanswered.is_over = !answer.as_ref().is_err_and(StoreError::may_have_run);
        drop(unanswered);
        self.tried(&trace, patience.total, answer)
    }

    fn tried(
        &mut self,
        trace: &Trace,
        within: Duration,
        answer: Result<Attempt, StoreError>,
    ) -> Tried {
        let now = BootInstant::now();
        let on = Protection::DeadlineFromSending.is_on();
        let sent = trace.sent_at().unwrap_or(BootInstant::PAST);
        let sent = if on { sent } else { now };
        let is_ours = answer == Ok(Attempt::Granted);
        let granted = is_ours && now < self.request.terms.deadline(sent);
        if is_ours && !granted {
            // Too late to be of use, and not to be left.
            let origin = Origin { runtime: self.runtime, connection: None };
            self.unanswered.get_or_insert(origin);
        }
        Tried { sent, within, granted, answer }
    }

    /// Sleeps until there is reason to try again; false when the wait is over instead.
    async fn sleep(&self, budget: &Budget, wake_ups: &mut WakeUps, mut rest: Rest) -> bool {
        let reason = async {
            loop {
                let pause = rest.pause(wake_ups.is_live());
                tokio::select! {
                    // Whichever comes first in this order: no arm takes anything from another.
                    biased;
                    () = wake_ups.next() => return,
                    () = self.engine.closing() => return,
                    () = time::sleep(pause) => {}
                }
                match wake_ups.seen_since(rest) {
                    // The lease was renewed, and what would be asked now is known already.
                    Some(later) => rest = later,
                    None => return,
                }
            }
        };
        budget.limit(reason).await.is_some() && !budget.is_over()
    }

    /// From here on the lease stands for the key.
    fn granted(mut self, sent: BootInstant) -> Hold {
        let doubt = self.unanswered.take();
        if let Some(pass) = &self.pass {
            pass.granted();
        }
        let hold = Hold::new(
            Arc::clone(&self.request.key),
            self.token.clone(),
            &self.request.terms,
            sent,
            self.pass.take(),
            doubt,
            self.contended,
        );
        self.engine.keeper().watch(hold.lease());
        hold
    }
}

fn claim<'a>(request: &'a Request, token: &'a Token, fresh: bool) -> Claim<'a> {
    Claim { key: &request.key, token, lease: request.terms.in_store(), fresh }
}

/// A request that may be dropped before its answer.
struct InFlight<'a> {
    trace: &'a Trace,
    runtime: Id,
    unanswered: &'a mut Option<Origin>,
    is_over: bool,
}

impl Drop for InFlight<'_> {
    fn drop(&mut self) {
        // What was not sent needs no undo.
        let Some(connection) = self.trace.connection().filter(|_| !self.is_over) else { return };
        // An undo is behind all requests only if they went over one connection.
        let connection = match &*self.unanswered {
            None => Some(connection),
            Some(before) => before.connection.filter(|before| *before == connection),
        };
        *self.unanswered = Some(Origin { runtime: self.runtime, connection });
    }
}

/// Asked only now: a shutdown that begins after this ends the lease like all it finds.
fn admitted<T>(
    engine: Arc<Engine>,
    hold: Hold,
    make: fn(Arc<Engine>, Hold) -> T,
) -> Result<T, Box<LockError>> {
    if let Err(refused) = engine.admit(hold.key()) {
        // Nothing will have run under it, so there is nothing to keep the key for.
        hold.keep_no_longer();
        engine.release_in_background(&hold);
        return Err(refused.into());
    }
    Ok(make(engine, hold))
}

impl Drop for Contender {
    fn drop(&mut self) {
        if let Some(origin) = self.unanswered.filter(|_| Protection::Undo.is_on()) {
            self.engine.keeper().release(Release {
                key: Arc::clone(&self.request.key),
                token: self.token.clone(),
                gone_by: BootInstant::now().after(self.request.terms.in_store()),
                // It was never granted.
                kept_until: BootInstant::PAST,
                valid_until: BootInstant::PAST,
                cause: Cause::Unanswered(Some(origin)),
                pass: self.pass.take(),
            });
        }
    }
}

/// What a contender sleeps for.
#[derive(Debug, Clone, Copy)]
enum Rest {
    /// After a try without an answer.
    Pause(Duration),
    /// Until the holder's lease must have ended, by what was known then.
    Holder(Left, BootInstant),
}

impl Rest {
    /// How long from now, for one that is woken when the key is released, or not.
    fn pause(self, is_woken: bool) -> Duration {
        let (left, at) = match self {
            Self::Pause(pause) => return pause,
            Self::Holder(left, at) => (left, at),
        };
        if !Protection::SafetyPoll.is_on() {
            return LONGEST_WAIT;
        }
        let longest = if is_woken {
            LONGEST_SLEEP.mul_f64(1.0 + fastrand::f64() / 4.0)
        } else {
            SAFETY_POLL.mul_f64(0.75 + fastrand::f64() / 4.0)
        };
        let pause = match left {
            // The store's expiry has a grain of a millisecond.
            Left::Time(left) => {
                let spread = SPREAD.mul_f64(fastrand::f64()).min(left / 4);
                longest.min(left + Duration::from_millis(1) + spread)
            }
            Left::Forever => longest,
            // Until the subscription is live, but not for long: if that takes a while, or is not to
            // be had, the next question is asked without it.
            Left::Unknown => longest.min(SAFETY_POLL) / 10,
        };
        pause.saturating_sub(BootInstant::now().since(at))
    }
}

/// What wakes a contender, once it has asked for it.
#[derive(Debug, Default)]
struct WakeUps {
    subscription: Option<Subscription>,
    /// The subscription has become live, which was a reason to try: a release may have come before.
    was_live: bool,
    /// What is still owed to others.
    debt: Option<WakeDebt>,
}

/// Others are let go first: this one tries when it has heard so many releases of theirs, or when none
/// of them takes the key for a while.
#[derive(Debug)]
struct WakeDebt {
    /// What was heard when it began.
    from: u64,
    until: u64,
    pause: Duration,
}

impl WakeUps {
    fn subscribe(&mut self, store: &dyn LockStore, to: &Request) {
        if self.subscription.is_none() {
            self.subscription = Some(store.subscribe(&to.key, to.format));
        }
    }

    fn step_back(&mut self, store: &dyn LockStore, from: &Request, step: StepBack) {
        self.subscribe(store, from);
        self.was_live = self.is_live();
        let from = self.subscription.as_ref().map_or(0, Subscription::heard);
        self.debt = Some(WakeDebt { from, until: from + step.others as u64, pause: step.pause });
    }

    /// Whether those came who were let go first, if any were. `answered`: when the key was last met
    /// taken.
    fn others_came(&self, answered: BootInstant) -> Option<bool> {
        let (debt, subscription) = (self.debt.as_ref()?, self.subscription.as_ref()?);
        Some(answered != BootInstant::PAST || subscription.heard() > debt.from)
    }

    /// Resolves when the key was free for long enough, or everybody has had it.
    async fn let_others_go(&self) {
        let (Some(debt), Some(subscription)) = (&self.debt, &self.subscription) else { return };
        while subscription.heard() < debt.until {
            tokio::select! {
                biased;
                () = subscription.woken() => {}
                () = time::sleep(debt.pause) => return,
            }
        }
    }

    fn is_live(&self) -> bool {
        self.subscription.as_ref().is_some_and(Subscription::is_live)
    }

    /// What the store has found when it last looked at the key, and when that was.
    fn seen(&self) -> Option<(Left, BootInstant)> {
        self.subscription.as_ref().and_then(Subscription::seen)
    }

    /// What the store has seen of the key since an answer, if by that there is no reason to try yet.
    fn seen_since(&self, rest: Rest) -> Option<Rest> {
        let Rest::Holder(_, answered) = rest else { return None };
        let (left, at) = self.seen()?;
        let later = Rest::Holder(left, at);
        (at > answered && self.is_live() && !later.pause(true).is_zero()).then_some(later)
    }

    /// Resolves when there is reason to try again; never before anything was subscribed to.
    async fn next(&mut self) {
        let Some(subscription) = &self.subscription else { return std::future::pending().await };
        tokio::select! {
            // Whichever comes first in this order: no arm takes anything from another.
            biased;
            () = subscription.woken() => self.let_others_go().await,
            () = subscription.live(), if !self.was_live => self.was_live = true,
        }
    }
}

/// The error of one who has waited long enough.
fn spent(budget: &Budget, engine: &Engine, request: &Request, news: News) -> LockError {
    let (key, waited) = (request.key.as_ref().to_owned(), budget.waited());
    let news = match (news, engine.store().seen(&request.key, request.format)) {
        // The store has looked since it was last asked.
        (News::Elsewhere(_, asked), Some((left, at))) if at > asked => News::Elsewhere(left, at),
        (news, _) => news,
    };
    let holder = match news {
        News::Here(holder) if holder == Caller::here() => Holder::ThisTask,
        News::Here(_) => Holder::ThisProcess,
        News::Elsewhere(Left::Time(left), at) => {
            Holder::Elsewhere(Some(left.saturating_sub(BootInstant::now().since(at))))
        }
        News::Elsewhere(Left::Unknown, _) | News::Others => Holder::Elsewhere(None),
        News::Elsewhere(Left::Forever, _) => Holder::NoExpiry,
        News::Asking(since) => {
            let asking = BootInstant::now().since(since);
            if asking < engine.config().response_timeout / 4 {
                Holder::ThisProcess
            } else {
                let cause = "the store has not answered yet".to_owned();
                return LockError::Unavailable { key: Some(key), waited, cause };
            }
        }
        News::Trouble(_) if !Protection::UnavailableIsNotBusy.is_on() => Holder::Elsewhere(None),
        News::Trouble(cause) => {
            return LockError::Unavailable { key: Some(key), waited, cause };
        }
    };
    LockError::Busy { key, waited, holder }
}

//! Getting a lock: the one task of this process that talks to the store about a key.
//!
//! With the pass of the key in hand, it tries once; mostly that is all. Who comes right behind a
//! release of this process that has woken others lets them go first. If the key is busy, it
//! subscribes to the key's releases, tries again in case that was missed, and then sleeps until it
//! is woken, until the holder's lease must have ended, or for the safety poll, whichever comes
//! first. While the store gives no answer it tries again after a pause with jitter. All of it
//! together takes no longer than the caller will wait.
//!
//! The undo is armed before a request is sent and disarmed by a definite answer. So wherever the
//! caller drops this future, a key that may have been taken is freed again. All tries of one
//! acquisition use one token, and a repeated try of an owner is granted, so an answer that got
//! lost costs one more try.

use std::sync::Arc;
use std::time::Duration;

use tokio::runtime;

use super::Engine;
use super::backoff::Backoff;
use super::budget::Budget;
use super::courtesy::StepBack;
use super::gate::{Entry, News, Pass, Turn};
use super::handover::Accepted;
use super::lease::{Hold, Terms};
use super::releaser::{Cause, Release};
use crate::clock::BootInstant;
use crate::error::{Holder, LockError};
use crate::format::WireFormat;
use crate::protection::Protection;
use crate::store::{Attempt, Claim, Left, LockStore, StoreError, Subscription, Token};
use crate::sync::time;
use crate::wait::{LONGEST_WAIT, Wait};

/// The longest sleep of a contender: what a lost wake-up costs at the most.
const SAFETY_POLL: Duration = Duration::from_secs(1);

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

/// Takes the lock, or says why not. Dropping the future leaves nothing behind.
pub(crate) async fn acquire(engine: &Arc<Engine>, request: Request) -> Result<Hold, LockError> {
    let Ok(runtime) = runtime::Handle::try_current() else {
        return Err(LockError::Config {
            option: "runtime",
            problem: "locks are awaited inside a tokio runtime, and there is none here".into(),
        });
    };
    engine.admit(&request.key)?;
    let budget = Budget::new(request.wait);
    let (pass, known) = match engine.gates().enter(&request.key) {
        Entry::Open(pass) => (Some(pass), None),
        Entry::Closed => return Err(LockError::ShutDown),
        Entry::Queued(_) if budget.is_once() => {
            let news = engine.gates().news(&request.key);
            return Err(spent(&budget, engine, &request.key, news));
        }
        Entry::Queued(mut ticket) => match budget.limit(ticket.turn()).await {
            Some(Some(Turn::Held(inherited))) => {
                match budget.limit(inherited.accept(request.format, &request.terms)).await {
                    Some(Accepted::Held(hold)) => return admitted(engine, hold),
                    Some(Accepted::Freed(pass)) => (pass, None),
                    None => {
                        let news = engine.gates().news(&request.key);
                        return Err(spent(&budget, engine, &request.key, news));
                    }
                }
            }
            Some(Some(Turn::Free(pass))) if !budget.is_over() => {
                (Some(pass), Some(engine.gates().news(&request.key)))
            }
            Some(None) => return Err(LockError::ShutDown),
            // With a pass, but without time to use it.
            Some(Some(Turn::Free(_))) | None => {
                let news = engine.gates().news(&request.key);
                return Err(spent(&budget, engine, &request.key, news));
            }
        },
    };
    let token = Token::random().map_err(|error| LockError::Unavailable {
        key: Some(request.key.as_ref().to_owned()),
        waited: budget.waited(),
        cause: format!("the system gave no random numbers: {error}"),
    })?;
    let token = token.in_format(request.format);
    let contender = Contender {
        engine,
        runtime: runtime.id(),
        request,
        token,
        pass,
        in_flight: false,
        unanswered: false,
        contended: false,
    };
    contender.contend(budget, known).await
}

struct Contender<'a> {
    engine: &'a Arc<Engine>,
    /// Where its requests are sent from.
    runtime: runtime::Id,
    request: Request,
    token: Token,
    /// Taken when the lock is granted.
    pass: Option<Pass>,
    /// A request has been sent, or is about to be, and has no answer yet.
    in_flight: bool,
    /// An earlier request may have taken effect, or may yet.
    unanswered: bool,
    /// Other processes want the key as well.
    contended: bool,
}

impl Contender<'_> {
    /// Tries until it has the lock or the wait is over. `known` is what those before it in the queue
    /// have learnt.
    async fn contend(mut self, budget: Budget, mut known: Option<News>) -> Result<Hold, LockError> {
        let response_timeout = self.engine.config().response_timeout;
        let mut wake_ups = WakeUps::default();
        let mut seems_free = true;
        let mut answered = BootInstant::PAST;
        let mut backoff = Backoff::new(PAUSES.0, PAUSES.1);
        if let Some(step) = self.owed(&budget) {
            self.step_back(step, &budget, &mut wake_ups).await?;
        }
        if let Some(News::Elsewhere(left, at)) = known {
            // The one before has just asked and given up. What it has learnt holds for us as well.
            seems_free = false;
            self.contended = true;
            answered = at;
            wake_ups.subscribe(self.engine.store(), &self.request);
            wake_ups.was_live = wake_ups.is_live();
            let pause = sleep_beside_holder(left).saturating_sub(BootInstant::now().since(at));
            if !self.sleep(&budget, &mut wake_ups, pause).await {
                return Err(spent(
                    &budget,
                    self.engine,
                    &self.request.key,
                    News::Elsewhere(left, at),
                ));
            }
            self.engine.admit(&self.request.key)?;
        }
        loop {
            let fresh = std::mem::take(&mut seems_free) && !self.unanswered;
            let within = budget.for_one_try(response_timeout);
            let sent = BootInstant::now();
            let answer = self.try_once(fresh, within).await;
            let now = BootInstant::now();
            let sent = if Protection::DeadlineFromSending.is_on() { sent } else { now };
            let pause = match answer {
                Ok(Attempt::Granted) if now < self.request.terms.deadline(sent) => {
                    if wake_ups.nobody_came(answered) {
                        self.engine.gates().stepped_back_in_vain(&self.request.key);
                    }
                    return self.granted(sent);
                }
                Ok(Attempt::Granted) => {
                    // The store has it for us, and no time is left in it.
                    self.unanswered = true;
                    let term = self.request.terms.term;
                    let cause = format!("the answer took longer than the lease of {term:?}");
                    known = Some(News::Trouble(cause));
                    backoff.pause()
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
                    sleep_beside_holder(left)
                }
                // Who tries once has its answer by now, only without its details.
                Err(StoreError::Refused(_) | StoreError::Unknown(_))
                    if budget.is_once() && matches!(known, Some(News::Elsewhere(..))) =>
                {
                    Duration::ZERO
                }
                Err(StoreError::Refused(cause)) => {
                    known = Some(News::Trouble(cause));
                    backoff.pause()
                }
                Err(StoreError::Unknown(_)) if !Protection::UnknownIsNotHeld.is_on() => {
                    return self.granted(sent);
                }
                Err(StoreError::Unknown(cause)) => {
                    // A try that our own wait cut short takes nothing from a recent answer.
                    let cut_short = within < response_timeout;
                    let recent =
                        answered >= budget.began() && now.since(answered) <= response_timeout;
                    if !cut_short || !recent {
                        known = Some(News::Trouble(cause));
                    }
                    backoff.pause()
                }
                Err(StoreError::Denied(cause)) => return Err(LockError::Denied { cause }),
                Err(StoreError::WrongFormat { key, expected, found }) => {
                    return Err(LockError::WrongFormat { key, expected, found });
                }
            };
            if let (Some(news), Some(pass)) = (&known, &self.pass) {
                pass.tell(news);
            }
            if budget.is_once() || !self.sleep(&budget, &mut wake_ups, pause).await {
                let news = known.unwrap_or(News::Asking(BootInstant::PAST));
                return Err(spent(&budget, self.engine, &self.request.key, news));
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
        let step = self.engine.gates().owed(&self.request.key)?;
        (!budget.is_once() && !budget.ends_within(step.pause * 4)).then_some(step)
    }

    /// One request. If it is dropped, or not answered, its effect is undone later on.
    async fn try_once(&mut self, fresh: bool, within: Duration) -> Result<Attempt, StoreError> {
        if !Protection::OneToken.is_on() {
            let other = Token::random().unwrap_or_else(|_| self.token.clone());
            self.token = other.in_format(self.request.format);
        }
        self.in_flight = true;
        let lease = self.request.terms.in_store();
        let claim = Claim { key: &self.request.key, token: &self.token, lease, fresh };
        let answer = self.engine.store().try_acquire(claim, within).await;
        self.in_flight = false;
        if let Err(error) = &answer {
            self.unanswered |= error.may_have_run();
        }
        answer
    }

    /// Sleeps until there is reason to try again; false when the wait is over instead.
    async fn sleep(&self, budget: &Budget, wake_ups: &mut WakeUps, pause: Duration) -> bool {
        let reason = async {
            tokio::select! {
                // Whichever comes first in this order: no arm takes anything from another.
                biased;
                () = wake_ups.next() => {}
                () = self.engine.closing() => {}
                () = time::sleep(pause) => {}
            }
        };
        budget.limit(reason).await.is_some() && !budget.is_over()
    }

    /// From here on the lease stands for the key.
    fn granted(mut self, sent: BootInstant) -> Result<Hold, LockError> {
        let doubt = std::mem::take(&mut self.unanswered).then_some(self.runtime);
        if let Some(pass) = &self.pass {
            pass.tell(&News::Here);
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
        admitted(self.engine, hold)
    }
}

/// Asked only now: a shutdown that begins after this ends the lease like all it finds.
fn admitted(engine: &Arc<Engine>, hold: Hold) -> Result<Hold, LockError> {
    if let Err(refused) = engine.admit(hold.key()) {
        // Nothing will have run under it, so there is nothing to keep the key for.
        hold.keep_no_longer();
        engine.release_in_background(&hold);
        return Err(refused);
    }
    Ok(hold)
}

impl Drop for Contender<'_> {
    fn drop(&mut self) {
        if (self.in_flight || self.unanswered) && Protection::Undo.is_on() {
            self.engine.keeper().release(Release {
                key: Arc::clone(&self.request.key),
                token: self.token.clone(),
                gone_by: BootInstant::now().after(self.request.terms.in_store()),
                // It was never granted.
                kept_until: BootInstant::PAST,
                cause: Cause::Unanswered(Some(self.runtime)),
                pass: self.pass.take(),
            });
        }
    }
}

fn sleep_beside_holder(left: Left) -> Duration {
    let poll = SAFETY_POLL.mul_f64(0.75 + fastrand::f64() / 4.0);
    if !Protection::SafetyPoll.is_on() {
        return LONGEST_WAIT;
    }
    match left {
        // The store's expiry has a grain of a millisecond.
        Left::Time(left) => {
            let spread = SPREAD.mul_f64(fastrand::f64()).min(left / 4);
            poll.min(left + Duration::from_millis(1) + spread)
        }
        Left::Forever => poll,
        // Until the subscription is live, but not for long: if that takes a while, or is not to
        // be had, the next question is asked without it.
        Left::Unknown => poll / 10,
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

    /// Whether it was stepped back for nobody. `answered`: when the key was last met taken.
    fn nobody_came(&self, answered: BootInstant) -> bool {
        let (Some(debt), Some(subscription)) = (&self.debt, &self.subscription) else {
            return false;
        };
        answered == BootInstant::PAST && subscription.heard() <= debt.from
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
fn spent(budget: &Budget, engine: &Engine, key: &str, news: News) -> LockError {
    let (key, waited) = (key.to_owned(), budget.waited());
    let holder = match news {
        News::Here => Holder::ThisProcess,
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

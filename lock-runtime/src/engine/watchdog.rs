//! What is due when: renewals, and the deadlines behind them.
//!
//! Every held lease stands in one schedule, at the instant when something has to be done about it
//! next. A renewed lease is due a third of its term after it was last extended, or a little earlier
//! together with others; while its
//! renewal is on the way, and for a fixed lease always, it stands at its deadline instead. So a
//! request that never comes back cannot hide a deadline. A renewal that failed is tried again
//! after a short pause with jitter, longer each time, until the deadline has passed.
//!
//! Keeping the schedule is plain data work under one lock, a map insertion per grant and a removal
//! per release; the keeper thread sleeps until the first entry, and is woken only if a new one
//! comes before what it sleeps for.

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use super::backoff::jittered;
use super::lease::Lease;
use crate::clock::BootInstant;
use crate::protection::Protection;
use crate::sync::atomic::Ordering;
use crate::sync::{Mutex, MutexGuard};

/// The part of the term after which a lease is renewed.
const RENEWALS_PER_TERM: u32 = 3;
/// The grid that renewals are put on, in parts of the term: leases that were granted at about the
/// same time are renewed by one request, a little early.
const GRID_PER_TERM: u32 = 30;

/// How many leases are looked at in one go, so that nobody who is granted one meanwhile waits for long.
const AT_ONCE: usize = 1000;

#[derive(Debug, Default)]
pub(crate) struct Watchdog {
    schedule: Mutex<Schedule>,
}

#[derive(Debug, Default)]
struct Schedule {
    /// By instant; the lease's address tells apart those of one instant.
    entries: BTreeMap<(BootInstant, usize), Entry>,
    /// Lost leases whose keys are left to their holders until they are done, by when the key is
    /// gone anyway.
    left: BTreeMap<(BootInstant, usize), Arc<Lease>>,
    /// What the keeper sleeps until; `None`: until it is woken.
    armed: Option<BootInstant>,
}

#[derive(Debug)]
struct Entry {
    lease: Arc<Lease>,
    next: Next,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Next {
    Renew,
    Expire,
}

/// What has to be done now.
#[derive(Debug, Default)]
pub(crate) struct Due {
    /// To be renewed; until that has an answer, watched for their deadlines.
    pub(crate) renew: Vec<Arc<Lease>>,
    /// Whose deadline has passed; not watched any more.
    pub(crate) expired: Vec<Arc<Lease>>,
    /// Lost before, and by now gone from the store although their holders are not done.
    pub(crate) over: Vec<Arc<Lease>>,
    /// Until when there is nothing else to do.
    pub(crate) next: Option<BootInstant>,
}

impl Watchdog {
    /// Takes up a granted lease. Returns whether the keeper has to be woken.
    pub(crate) fn watch(&self, lease: &Arc<Lease>) -> bool {
        let mut schedule = self.schedule();
        // What is due in the past is due at once.
        let at = schedule.plan(lease, BootInstant::PAST);
        schedule.armed.is_none_or(|armed| at < armed)
    }

    /// Takes up a lease again whose deadline was found passed, if it is valid all the same. Returns
    /// whether the keeper has to be woken.
    pub(crate) fn watch_again(&self, lease: &Arc<Lease>) -> bool {
        let (mut schedule, now) = (self.schedule(), BootInstant::now());
        // Looked at in here, so that one which ends from now on is forgotten after this.
        if !lease.is_valid(now) {
            return false;
        }
        schedule.remove(lease);
        let at = schedule.plan(lease, now);
        schedule.armed.is_none_or(|armed| at < armed)
    }

    /// A lease was released or lost.
    pub(crate) fn forget(&self, lease: &Arc<Lease>) {
        self.schedule().remove(lease);
    }

    /// A lease was lost, and its key is left to its holders: nothing is to be done until it is gone.
    /// Returns whether the keeper has to be woken.
    pub(crate) fn leave(&self, lease: &Arc<Lease>) -> bool {
        let (mut schedule, at) = (self.schedule(), lease.gone_by());
        schedule.remove(lease);
        lease.scheduled.store(at.as_nanos(), Ordering::Relaxed);
        schedule.left.insert((at, address(lease)), Arc::clone(lease));
        schedule.armed.is_none_or(|armed| at < armed)
    }

    /// A renewal was answered, or the term changed. Returns whether the keeper has to be woken.
    pub(crate) fn replan(&self, lease: &Arc<Lease>) -> bool {
        self.reschedule(lease, None)
    }

    /// A renewal failed and is to be tried again after `pause`. Returns whether the keeper has to
    /// be woken.
    pub(crate) fn retry(&self, lease: &Arc<Lease>, pause: Duration) -> bool {
        self.reschedule(lease, Some(BootInstant::now().after(pause)))
    }

    /// What is due at `now`: all of it, or a part, and the next call has more.
    pub(crate) fn due(&self, now: BootInstant) -> Due {
        let mut due = Due::default();
        let mut schedule = self.schedule();
        while let Some(first) = schedule.entries.first_entry() {
            if first.key().0 > now || due.renew.len() + due.expired.len() == AT_ONCE {
                break;
            }
            let Entry { lease, next } = first.remove();
            match next {
                Next::Renew if lease.is_valid(now) || !Protection::ReleaseEndsRenewal.is_on() => {
                    schedule.put(&lease, lease.deadline(), Next::Expire);
                    due.renew.push(lease);
                }
                // It was extended since it was put here.
                Next::Expire if lease.is_valid(now) => {
                    schedule.plan(&lease, now);
                }
                _ => due.expired.push(lease),
            }
        }
        while let Some(first) = schedule.left.first_entry() {
            if first.key().0 > now || due.over.len() == AT_ONCE {
                break;
            }
            due.over.push(first.remove());
        }
        let next = schedule.entries.first_key_value().map(|((at, _), _)| *at);
        let next_left = schedule.left.first_key_value().map(|((at, _), _)| *at);
        due.next = next.into_iter().chain(next_left).min();
        schedule.armed = due.next;
        due
    }

    /// All leases that are held.
    pub(crate) fn held(&self) -> Vec<Arc<Lease>> {
        self.schedule().entries.values().map(|entry| Arc::clone(&entry.lease)).collect()
    }

    /// How many leases are held.
    pub(crate) fn len(&self) -> usize {
        self.schedule().entries.len()
    }

    fn reschedule(&self, lease: &Arc<Lease>, retry: Option<BootInstant>) -> bool {
        let mut schedule = self.schedule();
        // Not there: it has ended since, and is not taken up again.
        if !schedule.remove_watched(lease) {
            return false;
        }
        let at = match retry {
            Some(at) if at < lease.deadline() => {
                schedule.put(lease, at, Next::Renew);
                at
            }
            Some(_) => {
                schedule.put(lease, lease.deadline(), Next::Expire);
                lease.deadline()
            }
            None => schedule.plan(lease, BootInstant::now()),
        };
        schedule.armed.is_none_or(|armed| at < armed)
    }

    /// Plain data; every change to it is complete before anything that could panic.
    fn schedule(&self) -> MutexGuard<'_, Schedule> {
        self.schedule.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Schedule {
    /// Puts a lease where it is due next, counted from its last extension.
    fn plan(&mut self, lease: &Arc<Lease>, now: BootInstant) -> BootInstant {
        let deadline = lease.deadline();
        if !lease.can_be_renewed() {
            self.put(lease, deadline, Next::Expire);
            return deadline;
        }
        let at = lease.after_part(RENEWALS_PER_TERM).before_grid(lease.term() / GRID_PER_TERM);
        let at = at.max(now).min(deadline);
        self.put(lease, at, Next::Renew);
        at
    }

    fn put(&mut self, lease: &Arc<Lease>, at: BootInstant, next: Next) {
        lease.scheduled.store(at.as_nanos(), Ordering::Relaxed);
        let entry = Entry { lease: Arc::clone(lease), next };
        self.entries.insert((at, address(lease)), entry);
    }

    /// Whether it was there to be renewed or to expire.
    fn remove_watched(&mut self, lease: &Arc<Lease>) -> bool {
        let at = BootInstant::from_nanos(lease.scheduled.load(Ordering::Relaxed));
        self.entries.remove(&(at, address(lease))).is_some()
    }

    /// Whether it was there at all.
    fn remove(&mut self, lease: &Arc<Lease>) -> bool {
        let at = BootInstant::from_nanos(lease.scheduled.load(Ordering::Relaxed));
        let place = (at, address(lease));
        self.entries.remove(&place).is_some() || self.left.remove(&place).is_some()
    }
}

fn address(lease: &Arc<Lease>) -> usize {
    Arc::as_ptr(lease).addr()
}

/// How long to wait before a failed renewal is tried again: from a thirtieth of the term,
/// doubling up to a sixth, each time a random half to whole of that.
pub(crate) fn retry_pause(term: Duration, failures: u32) -> Duration {
    let longest = term / 6;
    let pause = (term / 30).saturating_mul(1 << failures.saturating_sub(1).min(8)).min(longest);
    jittered(pause)
}

#[cfg(test)]
mod tests {
    use super::super::gate::{Entry as GateEntry, Gates};
    use super::super::lease::{Hold, Terms};
    use super::*;
    use crate::error::LostReason;
    use crate::store::Token;

    const TERM: Duration = Duration::from_secs(30);

    fn lease(name: &str, renewed: bool) -> Arc<Lease> {
        lease_of(name, renewed, TERM)
    }

    fn lease_of(name: &str, renewed: bool, term: Duration) -> Arc<Lease> {
        let key: Arc<str> = Arc::from(name);
        let GateEntry::Open(pass) = Arc::new(Gates::default()).enter(&key, false) else {
            panic!("free")
        };
        let token = Token::random().expect("randomness");
        let terms = Terms { term, renewed, max_hold: None, min_hold: Duration::ZERO };
        let hold = Hold::new(key, token, &terms, BootInstant::now(), Some(pass), None, false);
        Arc::clone(hold.lease())
    }

    #[test]
    fn a_renewed_lease_is_due_after_a_third_of_its_term() {
        let (watchdog, lease) = (Watchdog::default(), lease("k", true));
        assert!(watchdog.watch(&lease), "the first one wakes the keeper");
        let start = BootInstant::now();
        assert!(watchdog.due(start.after(TERM / 4)).renew.is_empty());
        let due = watchdog.due(start.after(TERM / 3));
        assert_eq!(due.renew.len(), 1);
        assert_eq!(due.next, Some(lease.deadline()), "while that is on its way");
    }

    #[test]
    fn an_answered_renewal_is_due_again_a_third_later() {
        let (watchdog, lease) = (Watchdog::default(), lease("k", true));
        watchdog.watch(&lease);
        let sent = BootInstant::now().after(TERM / 3);
        assert_eq!(watchdog.due(sent).renew.len(), 1);
        lease.about_to_extend(sent, None, Duration::ZERO);
        lease.extended(sent, None);
        watchdog.replan(&lease);
        assert!(watchdog.due(sent.after(TERM / 4)).renew.is_empty());
        assert_eq!(watchdog.due(sent.after(TERM / 3)).renew.len(), 1);
    }

    #[test]
    fn a_renewal_without_an_answer_does_not_hide_the_deadline() {
        let (watchdog, lease) = (Watchdog::default(), lease("k", true));
        watchdog.watch(&lease);
        watchdog.due(BootInstant::now().after(TERM / 3));
        let due = watchdog.due(BootInstant::now().after(TERM));
        assert_eq!(due.expired.len(), 1);
        assert_eq!(watchdog.len(), 0);
    }

    #[test]
    fn a_failed_renewal_is_tried_again_until_the_deadline() {
        let (watchdog, lease) = (Watchdog::default(), lease("k", true));
        watchdog.watch(&lease);
        watchdog.due(BootInstant::now().after(TERM / 3));
        assert!(watchdog.retry(&lease, Duration::ZERO), "sooner than the deadline: wake up");
        assert_eq!(watchdog.due(BootInstant::now()).renew.len(), 1);
        watchdog.retry(&lease, TERM * 2);
        assert_eq!(watchdog.due(lease.deadline()).expired.len(), 1);
    }

    #[test]
    fn a_renewal_that_is_due_too_late_is_not_sent() {
        let (watchdog, lease) = (Watchdog::default(), lease("k", true));
        watchdog.watch(&lease);
        let due = watchdog.due(lease.deadline());
        assert_eq!((due.renew.len(), due.expired.len()), (0, 1));
    }

    #[test]
    fn a_deadline_that_has_moved_meanwhile_ends_nothing() {
        let (watchdog, lease) = (Watchdog::default(), lease("k", false));
        watchdog.watch(&lease);
        let old = lease.deadline();
        lease.extended(BootInstant::now(), Some(TERM * 3));
        let due = watchdog.due(old);
        assert_eq!((due.renew.len(), due.expired.len()), (0, 0));
        assert_eq!(due.next, Some(lease.deadline()));
    }

    #[test]
    fn a_fixed_lease_is_never_renewed() {
        let (watchdog, lease) = (Watchdog::default(), lease("k", false));
        watchdog.watch(&lease);
        let due = watchdog.due(lease.deadline());
        assert!(due.renew.is_empty());
        assert_eq!(due.expired.len(), 1);
    }

    #[test]
    fn a_forgotten_lease_stays_forgotten() {
        let (watchdog, lease) = (Watchdog::default(), lease("k", true));
        watchdog.watch(&lease);
        watchdog.due(BootInstant::now().after(TERM / 3));
        lease.lose(LostReason::Gone, || {});
        watchdog.forget(&lease);
        assert!(!watchdog.replan(&lease), "its renewal was answered after its release");
        assert_eq!(watchdog.len(), 0);
    }

    #[test]
    fn a_lost_lease_whose_key_is_left_to_its_holder_is_due_when_that_is_gone() {
        let (watchdog, lease) = (Watchdog::default(), lease("k", true));
        watchdog.watch(&lease);
        lease.lose(LostReason::MaxHold, || {});
        watchdog.leave(&lease);
        assert_eq!((watchdog.len(), watchdog.held().len()), (0, 0), "it is not held");
        assert!(!watchdog.replan(&lease), "a renewal that is answered now changes nothing");
        let due = watchdog.due(lease.gone_by().before_grid(TERM));
        assert!(due.over.is_empty());
        assert_eq!(due.next, Some(lease.gone_by()));
        let due = watchdog.due(lease.gone_by());
        assert_eq!((due.over.len(), due.expired.len(), due.next), (1, 0, None));

        watchdog.leave(&lease);
        watchdog.forget(&lease);
        assert!(watchdog.due(lease.gone_by()).over.is_empty(), "its holder was done before");
    }

    #[test]
    fn leases_of_about_the_same_time_are_renewed_together() {
        let watchdog = Watchdog::default();
        let leases: Vec<_> = (0..100).map(|_| lease("k", true)).collect();
        let start = BootInstant::now();
        for (n, lease) in (0_u32..).zip(&leases) {
            lease.extended(start.after(TERM * n / 100), None);
            watchdog.watch(lease);
        }
        assert_eq!(watchdog.len(), leases.len());
        let mut batches = 0;
        while let Some(next) = watchdog.due(BootInstant::now()).next.filter(|_| batches < 100) {
            let due = watchdog.due(next);
            if due.renew.is_empty() {
                break;
            }
            batches += 1;
        }
        // A third of the leases were granted in ten steps of the grid.
        assert!(batches <= 31, "{batches}");
    }

    #[test]
    fn many_leases_are_looked_at_part_by_part() {
        let (watchdog, sent) = (Watchdog::default(), BootInstant::now());
        for _ in 0..AT_ONCE * 3 {
            let lease = lease("k", true);
            lease.extended(sent, None);
            watchdog.watch(&lease);
        }
        let now = sent.after(TERM / 2);
        for _ in 0..3 {
            let due = watchdog.due(now);
            assert_eq!(due.renew.len(), AT_ONCE);
            assert!(due.next.is_some());
        }
        let rest = watchdog.due(now);
        assert_eq!(rest.renew.len(), 0);
        assert!(rest.next > Some(now));
    }

    #[test]
    fn leases_of_the_same_instant_are_each_renewed() {
        let (watchdog, sent) = (Watchdog::default(), BootInstant::now());
        let leases: Vec<_> = (0..3).map(|_| lease("k", true)).collect();
        for lease in &leases {
            lease.extended(sent.after(TERM / 10), None);
            watchdog.watch(lease);
        }
        let due = watchdog.due(sent.after(TERM / 2));
        assert_eq!(due.renew.len(), leases.len());
    }

    #[test]
    fn the_keeper_is_woken_only_for_what_comes_sooner() {
        let watchdog = Watchdog::default();
        let (one, two, short) =
            (lease("1", true), lease("2", true), lease_of("3", true, TERM / 10));
        assert!(watchdog.watch(&one));
        watchdog.due(BootInstant::now());
        assert!(!watchdog.watch(&two), "due later than what it sleeps for");
        assert!(watchdog.watch(&short));
    }

    #[test]
    fn retries_back_off_within_the_term() {
        for failures in 1..40 {
            let pause = retry_pause(TERM, failures);
            assert!(pause >= TERM / 61 && pause <= TERM / 6, "{pause:?} after {failures}");
        }
        assert!(retry_pause(TERM, 1) <= TERM / 30);
        assert!(retry_pause(TERM, 3) > TERM / 30);
    }
}

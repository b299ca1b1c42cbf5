//! The periodic checks for offers that are not taken, and for holders that are not polled.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use super::holder::PermitHolder;
use super::queue::{HandedOff, HashedKey, Offered, Wakers};
use super::queues::{CHECK_INTERVAL, LocalQueues, PATROL_INTERVAL, Queues};
use crate::clock::BootInstant;
use crate::safeguard::Safeguard;
use crate::user_code::contained;

/// The largest number of holders that one patrol visits.
pub(super) const MAX_VISITS: usize = 1_000;

/// The findings of a check.
#[derive(Debug)]
pub(crate) struct Findings<H: HandedOff> {
    /// Locks that no waiter takes.
    unwanted: Vec<H>,
    /// What was left to waiters that are not polled.
    left: Vec<Box<H::ToNext>>,
    /// Ready holders that are not polled.
    stalled: Vec<Arc<dyn PermitHolder>>,
    /// Holders on runtimes without a sign of life for one response timeout.
    silent: Vec<Arc<dyn PermitHolder>>,
    /// Holders on runtimes without a sign of life for two response timeouts.
    stuck: Vec<Arc<dyn PermitHolder>>,
    /// The time until the next check.
    pub(crate) again: Option<Duration>,
}

impl<H: HandedOff> Default for Findings<H> {
    fn default() -> Self {
        Self {
            unwanted: Vec::new(),
            left: Vec::new(),
            stalled: Vec::new(),
            silent: Vec::new(),
            stuck: Vec::new(),
            again: None,
        }
    }
}

impl<H: HandedOff> Findings<H> {
    /// Acts on the findings. Call this function without the queues locked.
    pub(crate) fn carry_out(self) {
        for handoff in self.unwanted {
            contained(|| handoff.decline());
        }
        for left in self.left {
            contained(|| drop(left));
        }
        for holder in self.stalled {
            contained(|| holder.help());
        }
        for holder in self.silent {
            contained(|| holder.ping());
        }
        for holder in self.stuck {
            contained(|| holder.revoke());
        }
    }
}

/// What distinguishes a holder from all others.
fn address(holder: &Arc<dyn PermitHolder>) -> usize {
    Arc::as_ptr(holder).cast::<()>() as usize
}

impl<H: HandedOff> LocalQueues<H> {
    /// Resolves when a check is needed earlier than planned.
    pub(crate) async fn check_needed(&self) {
        self.check_needed.notified().await;
    }

    /// Checks all offers, and the holders that other callers wait for.
    pub(crate) fn check(&self) -> Findings<H> {
        let (mut wakers, mut findings) = (Wakers::default(), Findings::default());
        {
            let mut state = self.lock();
            self.check_all(&mut state, &mut wakers, &mut findings);
            let now = BootInstant::now();
            if now.since(state.last_patrol) >= PATROL_INTERVAL {
                state.last_patrol = now;
                self.patrol(&mut state, &mut findings);
            }
            state.next_check = if !state.to_check.is_empty() {
                Some(CHECK_INTERVAL)
            } else if !state.to_patrol.is_empty() {
                Some(PATROL_INTERVAL)
            } else {
                None
            };
            findings.again = state.next_check;
        }
        wakers.wake();
        findings
    }

    fn check_all(&self, state: &mut Queues<H>, wakers: &mut Wakers, findings: &mut Findings<H>) {
        let Queues { by_key, to_check, checks, closed, .. } = state;
        *checks += 1;
        let mut seen = HashSet::new();
        // A lock does not linger until the check after its end.
        let next_check = BootInstant::now().after(CHECK_INTERVAL);
        to_check.retain(|key| {
            let queue = by_key.get_mut(key).filter(|queue| queue.check != *checks);
            let Some(queue) = queue else { return false };
            queue.check = *checks;
            if let Some(until) = queue.contention().linger.until {
                if until < next_check {
                    findings.unwanted.extend(self.take_lingering(queue));
                }
            } else if queue.contention().offer.is_some() {
                if let Some(Offered::Handoff(handoff)) = queue.check_offer(wakers) {
                    findings.unwanted.push(handoff);
                }
                findings.left.extend(queue.take_unwanted_left(key));
            } else if queue.has_ready_holder(*closed)
                && Safeguard::UnpolledCallsDoNotBlock.is_on()
                && let Some(holder) = queue.holder.as_ref()
                // A holder of several permits is counted once.
                && seen.insert(address(holder))
                && holder.is_stalled(*closed)
            {
                findings.stalled.push(Arc::clone(holder));
            }
            // An offer needs no checks while no waiter is awake.
            let is_offered =
                queue.contention().offer.is_some() && queue.contention().waiters.awake > 0;
            let lingers = queue.contention().linger.until.is_some();
            queue.is_listed = is_offered || lingers || queue.has_ready_holder(*closed);
            queue.is_listed
        });
    }

    /// Visits some of the holders that other callers wait for, in turns.
    pub(super) fn patrol(&self, state: &mut Queues<H>, findings: &mut Findings<H>) {
        let Queues { by_key, to_check, to_patrol, closed, .. } = state;
        // A patrol visits only a part of a long list, because the queues are locked meanwhile.
        let visits = to_patrol.len().min(MAX_VISITS.max(to_patrol.len() / 4));
        let mut seen = HashSet::new();
        let mut visit = |key: &HashedKey, first_grant| {
            let queue = by_key.get_mut(key).filter(|queue| queue.first_grant == first_grant);
            let Some(queue) = queue else { return false };
            queue.is_patrolled = queue.has_holder(*closed);
            let patrolled = queue.holder.as_ref().filter(|_| queue.is_patrolled);
            // A holder of several permits is counted once.
            if let Some(holder) = patrolled.filter(|holder| seen.insert(address(holder))) {
                let patrols = holder.patrol();
                // The holder may have become ready just before the first waiter entered the queue.
                // A call behind which nobody waits in its own queue has until the second patrol, because
                // it may be that nobody waits at all.
                let was_ready = std::mem::replace(&mut queue.was_ready, holder.is_ready());
                let is_late = queue.was_ready && (was_ready || !queue.is_quiet());
                if is_late && !std::mem::replace(&mut queue.is_listed, true) {
                    to_check.push(key.clone());
                }
                if !Safeguard::UnpolledCallsDoNotBlock.is_on() {
                    return queue.is_patrolled;
                }
                if patrols >= self.max_patrols {
                    findings.stuck.push(Arc::clone(holder));
                } else if patrols == self.max_patrols / 2 {
                    findings.silent.push(Arc::clone(holder));
                }
            }
            queue.is_patrolled
        };
        for _ in 0..visits {
            let Some((key, first_grant)) = to_patrol.pop_front() else { return };
            if visit(&key, first_grant) {
                to_patrol.push_back((key, first_grant));
            }
        }
    }

    /// Adds `key` to the keys to check, if it has waiters for the offer.
    pub(super) fn watch_offer(&self, state: &mut Queues<H>, key: &HashedKey) {
        let Some(queue) = state.by_key.get_mut(key) else { return };
        if queue.contention().waiters.awake > 0 && !std::mem::replace(&mut queue.is_listed, true) {
            state.to_check.push(key.clone());
            self.check_within(state, CHECK_INTERVAL);
        }
    }

    /// Adds `key` to the keys to patrol, and to the keys to check if its holder is ready, if other
    /// callers wait for the holder.
    pub(super) fn watch_holder(&self, state: &mut Queues<H>, key: &HashedKey) {
        let closed = state.closed;
        let Some(queue) = state.by_key.get_mut(key).filter(|queue| queue.has_holder(closed)) else {
            return;
        };
        if !std::mem::replace(&mut queue.is_patrolled, true) {
            state.to_patrol.push_back((key.clone(), queue.first_grant));
        }
        let is_new = !queue.is_quiet()
            && queue.has_ready_holder(closed)
            && !std::mem::replace(&mut queue.is_listed, true);
        if is_new {
            state.to_check.push(key.clone());
        }
        self.check_within(state, if is_new { CHECK_INTERVAL } else { PATROL_INTERVAL });
    }

    pub(super) fn check_within(&self, state: &mut Queues<H>, within: Duration) {
        if state.next_check.is_none_or(|planned| within < planned) {
            state.next_check = Some(within);
            self.check_needed.notify_one();
        }
    }
}

//! What a client has in etcd: plain data.
//!
//! A key ends with its lease. That of a shared lease lives as long as the lease, so what a client may have left there has to
//! be remembered until its deletion is definite:
//!
//! * a release without an answer;
//! * an acquire without an answer, when its owner is released: it may arrive after the release;
//! * a hold that the client does not renew any more, and does not release either.
//!
//! Such an entry has *ended*. It can neither be renewed nor acquired again.

use std::collections::HashMap;
use std::time::Duration;

use super::transactions::Owned;
use lock_core::clock::BootInstant;

/// The first and the longest pause between two requests that delete a key.
const PAUSES: (Duration, Duration) = (Duration::from_millis(250), Duration::from_secs(15));

/// How long a release is in flight at most. A runtime that is not driven sends none, and gets no answer.
const RELEASING: Duration = Duration::from_secs(10);

/// The time of a deletion that waits for an answer.
const NEVER: BootInstant = BootInstant::from_nanos(u64::MAX);

/// After this time, a claim that was neither answered nor released is forgotten.
const FORGOTTEN: Duration = Duration::from_secs(600);

/// The lease of a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct KeyLease {
    pub(super) id: i64,
    pub(super) is_shared: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum HoldPhase {
    /// Its acquire is in flight, or its outcome is unknown.
    Claimed,
    Held,
    /// It has to be deleted, at the earliest at this time.
    Ended {
        due: BootInstant,
        pause: Duration,
    },
}

/// An entry.
#[derive(Debug)]
pub(super) struct KeyHold {
    pub(super) lease: KeyLease,
    /// The end of the term of the last request, which may have failed.
    until: BootInstant,
    /// Until when an answer has said that the key and its lease last.
    lasts_until: BootInstant,
    phase: HoldPhase,
    /// The leases of the acquires in flight.
    pending: Vec<i64>,
    /// The shared leases of the acquires that were not answered. They may arrive until these leases have ended.
    doubts: Vec<i64>,
    /// Until when the key is to stay taken although it was released.
    kept_until: BootInstant,
    /// Until then, a release is in flight. Nothing else frees the key: a release that finds it gone reports a loss.
    releasing_until: BootInstant,
    /// Whether a request that gives the key another lease may still arrive.
    is_moving: bool,
    /// Whether an acquire was granted.
    was_granted: bool,
    /// The revision of the grant.
    revision: i64,
    /// Whether the key is watched because it is held.
    is_watched: bool,
}

/// A hold whose release is about to be sent.
#[derive(Debug, Clone, Copy)]
pub(super) struct ReleasedHold {
    pub(super) lease: KeyLease,
    /// Whether the key was watched because of this hold.
    pub(super) was_watched: bool,
}

impl KeyHold {
    /// Whether the key needs no extension to last until then, such as one with a fixed lease that is verified.
    pub(super) fn lasts(&self, until: BootInstant) -> bool {
        !self.lease.is_shared && self.lasts_until >= until
    }

    fn change_lease(&mut self, lease: KeyLease) {
        if self.lease.id != lease.id {
            self.lasts_until = BootInstant::PAST;
        }
        self.lease = lease;
    }

    /// Whether the owner was released, and nothing is left of it.
    fn is_released(&self) -> bool {
        let is_ended = matches!(self.phase, HoldPhase::Ended { due: NEVER, .. });
        is_ended && !self.was_granted && self.pending.is_empty() && self.doubts.is_empty()
    }

    /// Whether an acquire was answered after the release, so that the key is deleted at once.
    fn is_due_now(&self) -> bool {
        matches!(self.phase, HoldPhase::Ended { due: BootInstant::PAST, .. })
    }

    /// Whether the owner has not been released. If it was, while its acquire was in flight, the key is deleted now.
    fn stays(&mut self) -> bool {
        if let HoldPhase::Ended { due, .. } = &mut self.phase {
            *due = BootInstant::PAST;
            return false;
        }
        true
    }

    /// An acquire with this lease is not in flight any more.
    fn settle(&mut self, lease: i64) {
        if let Some(number) = self.pending.iter().position(|pending| *pending == lease) {
            self.pending.swap_remove(number);
        }
    }
}

/// What is to be done for holds.
#[derive(Debug, Default)]
pub(super) struct DueHolds {
    /// Keys to delete, if their owners still have them.
    pub(super) delete: Vec<Owned>,
    /// Keys that were watched because of a hold that is over.
    pub(super) unwatch: Vec<String>,
    /// Shared leases that get no more holds, because acquires are overdue that may leave keys with them.
    pub(super) retire: Vec<i64>,
    /// When there is more to do; `None` if nothing is known.
    pub(super) next: Option<BootInstant>,
}

/// All entries of a client.
#[derive(Debug, Default)]
pub(super) struct KeyHolds {
    all: HashMap<Owned, KeyHold>,
    /// Keys that were granted, and are not watched yet.
    unwatched: Vec<Owned>,
    /// Those of them that were granted before the last look at them.
    long_unwatched: Vec<Owned>,
    /// Whether the task that cleans up waits until it is notified.
    cleaner_sleeps: bool,
}

impl KeyHolds {
    pub(super) fn get(&self, owned: &Owned) -> Option<&KeyHold> {
        self.all.get(owned)
    }

    /// An acquire with this lease is about to be sent. False if the owner has been released.
    pub(super) fn claim(&mut self, owned: &Owned, lease: KeyLease, until: BootInstant) -> bool {
        let hold = self.all.entry(owned.clone()).or_insert(KeyHold {
            lease,
            until,
            lasts_until: until,
            phase: HoldPhase::Claimed,
            pending: Vec::new(),
            doubts: Vec::new(),
            kept_until: BootInstant::PAST,
            releasing_until: BootInstant::PAST,
            is_moving: false,
            was_granted: false,
            revision: 0,
            is_watched: false,
        });
        match hold.phase {
            HoldPhase::Ended { .. } => return false,
            HoldPhase::Claimed => (hold.lease, hold.lasts_until) = (lease, until),
            HoldPhase::Held => {}
        }
        hold.pending.push(lease.id);
        hold.until = hold.until.max(until);
        true
    }

    /// The acquire with the lease `asked` was granted, and the key has the lease `found`. Returns whether the owner still has it.
    pub(super) fn granted(
        &mut self,
        owned: &Owned,
        (asked, found): (KeyLease, KeyLease),
        revision: i64,
    ) -> bool {
        let Some(hold) = self.all.get_mut(owned) else { return true };
        hold.settle(asked.id);
        hold.change_lease(found);
        hold.was_granted = true;
        if hold.phase == HoldPhase::Claimed {
            (hold.phase, hold.revision) = (HoldPhase::Held, revision);
            self.unwatched.push(owned.clone());
        }
        hold.stays()
    }

    /// The acquire with this lease had no effect.
    pub(super) fn declined(&mut self, owned: &Owned, lease: KeyLease) {
        let Some(hold) = self.all.get_mut(owned) else { return };
        hold.settle(lease.id);
        let is_unknown = hold.phase == HoldPhase::Claimed && hold.doubts.is_empty();
        if hold.is_released() || is_unknown && hold.pending.is_empty() {
            self.all.remove(owned);
        }
    }

    /// The acquire with this lease was not answered, and may still arrive. The entry of a fixed lease stays as well: the
    /// release ends that lease.
    pub(super) fn doubted(&mut self, owned: &Owned, lease: KeyLease) {
        let Some(hold) = self.all.get_mut(owned) else { return };
        hold.settle(lease.id);
        if lease.is_shared {
            hold.doubts.push(lease.id);
            hold.stays();
        } else if hold.is_released() {
            self.all.remove(owned);
        }
    }

    /// The hold is about to be renewed until then. False if it has ended.
    pub(super) fn renew(&mut self, owned: &Owned, until: BootInstant) -> bool {
        match self.all.get_mut(owned) {
            Some(KeyHold { phase: HoldPhase::Ended { .. }, .. }) => false,
            Some(hold) => {
                hold.until = hold.until.max(until);
                true
            }
            None => true,
        }
    }

    /// A request that gives the key another lease is about to be sent.
    pub(super) fn moving(&mut self, owned: &Owned) {
        let Some(hold) = self.all.get_mut(owned) else { return };
        hold.is_moving = true;
    }

    /// The key has another lease now. Earlier requests that give it one have no effect any more.
    pub(super) fn moved(&mut self, owned: &Owned, lease: KeyLease) {
        let Some(hold) = self.all.get_mut(owned) else { return };
        hold.change_lease(lease);
        hold.is_moving = false;
    }

    /// An answer has said that the key has this lease, and that the lease lasts until then.
    pub(super) fn lasts(&mut self, owned: &Owned, lease: KeyLease, until: BootInstant) {
        if let Some(hold) = self.all.get_mut(owned).filter(|hold| hold.lease == lease) {
            hold.lasts_until = hold.lasts_until.max(until);
        }
    }

    /// A release is about to be sent. From now on, the entry has ended, but nothing is to be done for it before the answer.
    pub(super) fn releasing(&mut self, owned: &Owned, now: BootInstant) -> Option<ReleasedHold> {
        let hold = self.all.get_mut(owned)?;
        if !hold.is_due_now() {
            hold.phase = HoldPhase::Ended { due: NEVER, pause: PAUSES.0 };
        }
        hold.releasing_until = now.after(RELEASING);
        let was_watched = std::mem::take(&mut hold.is_watched);
        Some(ReleasedHold { lease: hold.lease, was_watched })
    }

    /// A release has a definite answer. Returns whether the entry is gone. If not, an acquire may still arrive.
    pub(super) fn released(&mut self, owned: &Owned, had_it: bool, now: BootInstant) -> bool {
        let Some(hold) = self.all.get_mut(owned) else { return true };
        hold.releasing_until = BootInstant::PAST;
        self.freed(owned, had_it, now)
    }

    /// A release has no definite answer. See [`retry`](Self::retry).
    pub(super) fn not_released(&mut self, owned: &Owned, now: BootInstant, keep: Duration) {
        let Some(hold) = self.all.get_mut(owned) else { return };
        hold.releasing_until = BootInstant::PAST;
        self.retry(owned, now, keep);
    }

    /// Like [`released`](Self::released), for any request that frees the key.
    pub(super) fn freed(&mut self, owned: &Owned, had_it: bool, now: BootInstant) -> bool {
        let Some(hold) = self.all.get_mut(owned) else { return true };
        if had_it && !hold.was_granted && hold.doubts.len() == 1 {
            // It was that acquire that had taken it. If there are several, it is not known which one.
            hold.doubts.clear();
        }
        // An acquire may have been granted after this request, and answered before it.
        let was_overtaken = hold.was_granted && hold.is_due_now();
        (hold.was_granted, hold.is_moving) = (false, false);
        let Some(id) = hold.doubts.last().copied() else {
            if hold.pending.is_empty() && !was_overtaken {
                self.all.remove(owned);
                return true;
            }
            let due = if was_overtaken { BootInstant::PAST } else { NEVER };
            hold.phase = HoldPhase::Ended { due, pause: PAUSES.0 };
            return false;
        };
        hold.lease = KeyLease { id, is_shared: true };
        self.retry(owned, now, Duration::ZERO);
        false
    }

    /// Deletes the key of a shared lease later. It stays taken for `keep`, if the lease lasts as long.
    pub(super) fn retry(&mut self, owned: &Owned, now: BootInstant, keep: Duration) {
        let Some(hold) = self.all.get_mut(owned) else { return };
        if !hold.lease.is_shared && hold.doubts.is_empty() && hold.pending.is_empty() {
            // It ends with its lease.
            self.all.remove(owned);
            return;
        }
        let pause = match hold.phase {
            HoldPhase::Ended { pause, .. } => pause,
            _ => PAUSES.0,
        };
        if !keep.is_zero() {
            hold.kept_until = now.after(keep);
        }
        let due = now.after(pause.max(keep));
        hold.phase = HoldPhase::Ended { due, pause: (pause * 2).min(PAUSES.1) };
    }

    /// Somebody else has the key, or nobody: the hold is over. Returns whether it was watched.
    pub(super) fn was_lost(&mut self, owned: &Owned) -> bool {
        let Some(hold) = self.all.get_mut(owned) else { return false };
        let is_watched = std::mem::take(&mut hold.is_watched);
        let is_ended = matches!(hold.phase, HoldPhase::Ended { .. });
        if !is_ended && hold.doubts.is_empty() && hold.pending.is_empty() {
            self.all.remove(owned);
        }
        is_watched
    }

    /// The keys to delete now. Holds whose terms are over have ended.
    pub(super) fn due(&mut self, now: BootInstant, limit: usize) -> DueHolds {
        let mut due = DueHolds::default();
        self.all.retain(|owned, hold| {
            if hold.until <= now && !hold.pending.is_empty() {
                // The runtime of the call may be blocked: nobody relies on these acquires any more.
                let overdue = std::mem::take(&mut hold.pending);
                if !hold.lease.is_shared {
                    // Their leases end.
                    return false;
                }
                due.retire.extend(&overdue);
                hold.doubts.extend(overdue);
                if hold.phase != HoldPhase::Held {
                    hold.phase = HoldPhase::Ended { due: now, pause: PAUSES.0 };
                }
            }
            let at = match hold.phase {
                HoldPhase::Ended { .. } if hold.releasing_until > now => hold.releasing_until,
                HoldPhase::Ended { due, .. } => due,
                // The client releases the owners of its claims.
                HoldPhase::Claimed => {
                    return !hold.pending.is_empty() || hold.until.after(FORGOTTEN) > now;
                }
                HoldPhase::Held => hold.until,
            };
            if at > now {
                due.next = Some(due.next.map_or(at, |next| next.min(at)));
            } else if hold.phase == HoldPhase::Held && !hold.lease.is_shared {
                // Its lease ends, or has ended.
                if hold.is_watched {
                    due.unwatch.push(owned.key.clone());
                }
                return false;
            } else if due.delete.len() < limit {
                if hold.phase == HoldPhase::Held {
                    hold.phase = HoldPhase::Ended { due: NEVER, pause: PAUSES.0 };
                    if std::mem::take(&mut hold.is_watched) {
                        due.unwatch.push(owned.key.clone());
                    }
                }
                due.delete.push(owned.clone());
            } else {
                due.next = Some(now);
            }
            true
        });
        due
    }

    /// Whether a lease has holds, releases in flight, or acquires that may become holds: no acquire does after its term.
    pub(super) fn uses(&self, lease: i64, now: BootInstant) -> bool {
        let is_used = |hold: &KeyHold| match hold.phase {
            HoldPhase::Claimed => hold.until > now,
            HoldPhase::Held => true,
            HoldPhase::Ended { .. } => hold.kept_until.max(hold.releasing_until) > now,
        };
        self.all
            .values()
            .any(|hold| (hold.lease.id == lease && is_used(hold)) || hold.pending.contains(&lease))
    }

    /// A lease has ended, and so have its keys. No request can give it another one.
    pub(super) fn lease_ended(&mut self, lease: i64) {
        self.all.retain(|_, hold| {
            let was_in_doubt = hold.doubts.contains(&lease);
            hold.doubts.retain(|doubt| *doubt != lease);
            hold.pending.retain(|pending| *pending != lease);
            match (hold.phase, hold.doubts.last().copied()) {
                (HoldPhase::Claimed, None) => !was_in_doubt || !hold.pending.is_empty(),
                (HoldPhase::Claimed | HoldPhase::Held, _) => true,
                (HoldPhase::Ended { .. }, _) if hold.lease.id != lease || hold.is_moving => true,
                (HoldPhase::Ended { .. }, Some(id)) => {
                    hold.lease = KeyLease { id, is_shared: true };
                    true
                }
                (HoldPhase::Ended { .. }, None) => !hold.pending.is_empty(),
            }
        });
    }

    /// The held keys that were granted before the last call, and are watched from now on, with the revisions of their grants.
    pub(super) fn take_unwatched(&mut self) -> Vec<(String, i64)> {
        let recent = std::mem::take(&mut self.unwatched);
        let granted = std::mem::replace(&mut self.long_unwatched, recent);
        let held = granted.into_iter().filter_map(|owned| {
            let hold = self.all.get_mut(&owned).filter(|hold| hold.phase == HoldPhase::Held)?;
            hold.is_watched = true;
            Some((owned.key, hold.revision))
        });
        held.collect()
    }

    /// Whether there are keys that a later call of [`take_unwatched`](Self::take_unwatched) looks at.
    pub(super) fn has_unwatched(&self) -> bool {
        !self.unwatched.is_empty() || !self.long_unwatched.is_empty()
    }

    /// Whether there are no entries.
    pub(super) fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// Notes that the task that cleans up waits until it is notified.
    pub(super) fn set_cleaner_asleep(&mut self) {
        self.cleaner_sleeps = true;
    }

    /// Whether the task that cleans up has to be notified, because there are entries now.
    pub(super) fn wake_cleaner(&mut self) -> bool {
        std::mem::take(&mut self.cleaner_sleeps)
    }
}

#[cfg(test)]
mod tests;

//! Letting other processes have their turn.
//!
//! A release that woke other processes leaves a debt: this process does not try for the key again
//! until each of them has had it. Nobody keeps a queue for that; a process counts the releases of
//! others that it hears. So that nobody idles for one who does not come, a step back lasts only a
//! moment after each release. If that was in vain, because whoever is subscribed is far away, or
//! frozen, the next one is longer, and after a few the others are taken for deaf, for a while.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use crate::clock::BootInstant;

/// How long to step back after a release, by how often it was in vain.
const STEPS: [Duration; 3] =
    [Duration::from_millis(2), Duration::from_millis(10), Duration::from_millis(50)];

/// For how long what was learnt about others is taken for true.
const MEMORY: Duration = Duration::from_secs(1);

/// How many debts there may be before old ones are looked for.
const FIRST_PURGE: usize = 64;

/// What this process owes at each key.
#[derive(Debug, Default)]
pub(crate) struct Courtesies {
    debts: HashMap<Arc<str>, Debt>,
}

#[derive(Debug)]
struct Debt {
    /// How many others the last release has woken.
    others: usize,
    released: BootInstant,
    /// How often nobody came.
    vain: usize,
    /// When that was last learnt.
    since: BootInstant,
}

/// A step back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct StepBack {
    /// How many releases of others are to be heard first.
    pub(crate) others: usize,
    /// How long to wait for each.
    pub(crate) pause: Duration,
}

impl Courtesies {
    pub(crate) fn is_empty(&self) -> bool {
        self.debts.is_empty()
    }

    /// The key was freed, which has woken so many others.
    pub(crate) fn released(&mut self, key: &Arc<str>, others: usize) {
        if others == 0 && self.debts.is_empty() {
            return;
        }
        self.released_at(key, others, BootInstant::now());
    }

    fn released_at(&mut self, key: &Arc<str>, others: usize, now: BootInstant) {
        if others == 0 {
            self.debts.remove(key);
            return;
        }
        if let Some(debt) = self.debts.get_mut(key) {
            (debt.others, debt.released) = (others, now);
            return;
        }
        if self.debts.len() >= FIRST_PURGE && self.debts.len().is_power_of_two() {
            self.debts.retain(|_, debt| now.since(debt.released) < MEMORY);
        }
        let debt = Debt { others, released: now, vain: 0, since: now };
        self.debts.insert(Arc::clone(key), debt);
    }

    /// What is owed by somebody who wants the key now; nothing if the others had time enough.
    pub(crate) fn owed(&mut self, key: &str, now: BootInstant) -> Option<StepBack> {
        let debt = self.debts.get_mut(key)?;
        if now.since(debt.since) >= MEMORY {
            (debt.vain, debt.since) = (0, now);
        }
        let pause = STEPS.get(debt.vain)?;
        let passed = now.since(debt.released);
        (passed < *pause).then_some(StepBack { others: debt.others, pause: *pause })
    }

    /// Somebody has stepped back, and others came, or nobody.
    pub(crate) fn stepped_back(&mut self, key: &str, came: bool, now: BootInstant) {
        if let Some(debt) = self.debts.get_mut(key) {
            debt.vain += usize::from(!came);
            debt.since = now;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key() -> Arc<str> {
        Arc::from("k")
    }

    #[test]
    fn who_woke_others_lets_them_go_first() {
        let (mut courtesies, now) = (Courtesies::default(), BootInstant::now());
        courtesies.released_at(&key(), 3, now);
        assert_eq!(courtesies.owed("k", now), Some(StepBack { others: 3, pause: STEPS[0] }));
        assert_eq!(courtesies.owed("k", now.after(STEPS[0])), None, "they had time enough");
        assert_eq!(courtesies.owed("other", now), None);
        courtesies.released_at(&key(), 0, now);
        assert_eq!(courtesies.owed("k", now), None);
    }

    #[test]
    fn in_vain_it_takes_longer_and_then_ends_for_a_while() {
        let (mut courtesies, now) = (Courtesies::default(), BootInstant::now());
        courtesies.released_at(&key(), 1, now);
        for pause in STEPS {
            assert_eq!(courtesies.owed("k", now).map(|step| step.pause), Some(pause));
            courtesies.stepped_back("k", false, now);
        }
        assert_eq!(courtesies.owed("k", now), None, "nobody comes");
        let later = now.after(MEMORY);
        courtesies.released_at(&key(), 1, later);
        assert_eq!(courtesies.owed("k", later).map(|step| step.pause), Some(STEPS[0]));
    }

    #[test]
    fn what_was_long_enough_is_remembered_while_it_is() {
        let (mut courtesies, mut now) = (Courtesies::default(), BootInstant::now());
        courtesies.released_at(&key(), 1, now);
        courtesies.stepped_back("k", false, now);
        for _ in 0..3 {
            now = now.after(MEMORY / 2);
            courtesies.stepped_back("k", true, now);
        }
        courtesies.released_at(&key(), 1, now);
        assert_eq!(courtesies.owed("k", now).map(|step| step.pause), Some(STEPS[1]));
    }

    #[test]
    fn old_debts_are_forgotten() {
        let (mut courtesies, mut now) = (Courtesies::default(), BootInstant::now());
        for n in 0..10_000 {
            now = now.after(MEMORY / 100);
            courtesies.released_at(&Arc::from(format!("k{n}")), 1, now);
        }
        assert!(courtesies.debts.len() <= FIRST_PURGE * 4, "{}", courtesies.debts.len());
    }
}

//! Scripted outcomes of calls.

// A test usually ignores what scripts an outcome.
#![allow(clippy::must_use_candidate, clippy::return_self_not_must_use)]

use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use super::pattern::Pattern;
use super::record::HoldRecord;
use crate::clock::BootInstant;
use crate::connected::Connected;
use crate::error::LostReason;
use crate::store::contract::Left;
use crate::store::owner::OwnerId;
use crate::sync::{Mutex, lock, time};
use crate::telemetry::{HoldEnd, HoldObserver, SiteLabel};

/// What happens to the calls of a test client, and the record of its locks.
#[derive(Debug, Default)]
pub(super) struct CallScript {
    rules: Mutex<Vec<Rule>>,
    record: HoldRecord,
    client: OnceLock<Weak<Connected>>,
}

#[derive(Debug)]
struct Rule {
    pattern: Pattern,
    outcome: RuleOutcome,
    /// How often it is still met; `None` if always.
    left: Option<usize>,
    name: Option<String>,
    /// The acquisition that has met it last, whose later attempts meet it as well.
    owner: Option<OwnerId>,
    /// When it was first met.
    began: Option<BootInstant>,
}

#[derive(Debug, Clone)]
enum RuleOutcome {
    Busy,
    BusyFor(Duration),
    Unavailable(String),
    Slow(Duration),
    Unknown,
    LostAfter(Duration, LostReason),
}

/// What happens to one attempt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Attempted {
    /// The store serves it after this time.
    Served(Duration),
    Busy(Left),
    Refused(String),
    /// The store serves it, and the answer is lost.
    Unanswered,
}

impl CallScript {
    pub(super) fn belongs_to(&self, client: &Arc<Connected>) {
        // Called once.
        let _ = self.client.set(Arc::downgrade(client));
    }

    pub(super) fn record(&self) -> &HoldRecord {
        &self.record
    }

    fn client(&self) -> Option<Arc<Connected>> {
        self.client.get()?.upgrade()
    }

    /// The key without the namespace.
    fn short<'k>(&self, key: &'k str) -> &'k str {
        let namespace = self.client().map(|client| client.namespace.clone());
        let namespace = namespace.filter(|namespace| !namespace.is_empty());
        let short = namespace.and_then(|namespace| key.strip_prefix(&namespace)?.strip_prefix(':'));
        short.unwrap_or(key)
    }

    /// What happens to an attempt for this key. The store does not know templates.
    pub(super) fn attempt(&self, key: &str, owner: OwnerId) -> Attempted {
        let (key, now) = (self.short(key), BootInstant::now());
        // As if the holder had just renewed it.
        let lease = self.client().map(|client| client.defaults.lease);
        let lease = Left::Time(lease.unwrap_or_default());
        let mut rules = lock(&self.rules);
        let is_met = |rule: &&mut Rule| {
            let is_left = rule.left != Some(0) || rule.owner == Some(owner);
            !matches!(rule.outcome, RuleOutcome::LostAfter(..))
                && is_left
                && rule.pattern.matches(None, key)
        };
        let Some(rule) = rules.iter_mut().find(is_met) else {
            return Attempted::Served(Duration::ZERO);
        };
        let is_first = rule.owner != Some(owner);
        if is_first {
            rule.meet(now);
            rule.owner = Some(owner);
        }
        match &rule.outcome {
            RuleOutcome::Busy => Attempted::Busy(lease),
            RuleOutcome::BusyFor(time) => {
                let until = rule.began.unwrap_or(now).after(*time);
                let left = until.since(now);
                if left.is_zero() {
                    Attempted::Served(left)
                } else {
                    Attempted::Busy(Left::Time(left))
                }
            }
            RuleOutcome::Unavailable(cause) => Attempted::Refused(cause.clone()),
            RuleOutcome::Slow(time) if is_first => Attempted::Served(*time),
            RuleOutcome::Unknown if is_first => Attempted::Unanswered,
            RuleOutcome::Slow(_) | RuleOutcome::Unknown | RuleOutcome::LostAfter(..) => {
                Attempted::Served(Duration::ZERO)
            }
        }
    }

    /// When the hold that begins now is to be lost, and why.
    fn loss(&self, key: &str, template: &str) -> Option<(Duration, LostReason)> {
        let key = self.short(key);
        let mut rules = lock(&self.rules);
        rules.iter_mut().find_map(|rule| {
            let RuleOutcome::LostAfter(time, reason) = rule.outcome else { return None };
            let is_met = rule.left != Some(0) && rule.pattern.matches(Some(template), key);
            is_met.then(|| {
                rule.meet(BootInstant::now());
                (time, reason)
            })
        })
    }

    /// Panics if an outcome was met less often than its script says.
    pub(super) fn verify(&self) {
        let rules = lock(&self.rules);
        let unmet = rules.iter().filter(|rule| rule.left.is_some_and(|left| left > 0));
        let unmet: Vec<String> = unmet
            .map(|rule| {
                let left = rule.left.unwrap_or_default();
                let name = rule.name.as_ref().map(|name| format!(" ({name})")).unwrap_or_default();
                format!("{} {:?}{name}: {left} more", rule.pattern, rule.outcome)
            })
            .collect();
        drop(rules);
        assert!(unmet.is_empty(), "scripted outcomes that no call has met: {}", unmet.join("; "));
    }
}

impl HoldObserver for CallScript {
    fn began(&self, key: &str, label: SiteLabel, waited: Duration) {
        self.record.began(key, label, waited);
        let Some((after, reason)) = self.loss(key, label.template) else { return };
        let Some(client) = self.client() else { return };
        let key = key.to_owned();
        crate::sync::spawn_task(async move {
            time::sleep(after).await;
            let held = client.engine.background().held();
            for lease in held.iter().filter(|lease| **lease.key() == *key) {
                client.engine.background().lose(lease, reason);
            }
        });
    }

    fn ended(&self, key: &str, end: HoldEnd) {
        self.record.ended(key, end);
    }
}

impl Rule {
    fn meet(&mut self, now: BootInstant) {
        self.left = self.left.map(|left| left.saturating_sub(1));
        self.began.get_or_insert(now);
    }
}

/// The outcomes that a test may script for some locks. The rule that was made first counts, while it is met.
#[derive(Debug)]
#[must_use = "nothing happens until an outcome is chosen"]
pub struct OutcomeChoice<'a> {
    script: &'a CallScript,
    pattern: Pattern,
}

impl<'a> OutcomeChoice<'a> {
    pub(super) fn new(script: &'a CallScript, locks: &str) -> Self {
        Self { script, pattern: Pattern::new(locks) }
    }

    fn add(self, outcome: RuleOutcome) -> ScriptedOutcome<'a> {
        let Self { script, pattern } = self;
        let mut rules = lock(&script.rules);
        let (left, name, owner, began) = (None, None, None, None);
        rules.push(Rule { pattern, outcome, left, name, owner, began });
        ScriptedOutcome { script, index: rules.len() - 1 }
    }

    /// Somebody else holds the lock for the whole wait of each call.
    pub fn busy(self) -> ScriptedOutcome<'a> {
        self.add(RuleOutcome::Busy)
    }

    /// Somebody else holds the lock for this time, which begins with the first call.
    pub fn busy_for(self, time: Duration) -> ScriptedOutcome<'a> {
        self.add(RuleOutcome::BusyFor(time))
    }

    /// The store refuses all requests of each call for this reason.
    pub fn unavailable(self, cause: impl Into<String>) -> ScriptedOutcome<'a> {
        self.add(RuleOutcome::Unavailable(cause.into()))
    }

    /// The first answer of the store to each call takes this time.
    pub fn slow(self, time: Duration) -> ScriptedOutcome<'a> {
        self.add(RuleOutcome::Slow(time))
    }

    /// The store grants the lock, and its first answer to each call is lost. A call with a wait asks again, and
    /// one without fails, and its grant is undone.
    pub fn unknown(self) -> ScriptedOutcome<'a> {
        self.add(RuleOutcome::Unknown)
    }

    /// Each hold is lost after this time, for this reason.
    pub fn lost_after(self, time: Duration, reason: LostReason) -> ScriptedOutcome<'a> {
        self.add(RuleOutcome::LostAfter(time, reason))
    }
}

/// An outcome that was scripted.
#[derive(Debug)]
pub struct ScriptedOutcome<'a> {
    script: &'a CallScript,
    index: usize,
}

impl ScriptedOutcome<'_> {
    /// Only the first calls meet it. The test fails if there are fewer.
    pub fn times(self, calls: usize) -> Self {
        if let Some(rule) = lock(&self.script.rules).get_mut(self.index) {
            rule.left = Some(calls);
        }
        self
    }

    /// A name for the message of a test that fails.
    pub fn named(self, name: impl Into<String>) -> Self {
        if let Some(rule) = lock(&self.script.rules).get_mut(self.index) {
            rule.name = Some(name.into());
        }
        self
    }
}

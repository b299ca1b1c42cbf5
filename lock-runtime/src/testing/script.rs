//! Scripted outcomes of calls.

// A test usually ignores what scripts an outcome.
#![allow(clippy::must_use_candidate, clippy::return_self_not_must_use)]

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use super::pattern::Pattern;
use super::record::HoldRecord;
use super::store::TestBackend;
use crate::clock::BootInstant;
use crate::error::LostReason;
use crate::key;
use crate::store::owner::OwnerId;
use crate::sync::{Mutex, lock, time};
use crate::telemetry::{CallFate, CallObserver, HoldEnd, Loser, SiteLabel};

/// What happens to the calls of a test client, and the record of its locks.
#[derive(Debug)]
pub(super) struct CallScript {
    rules: Mutex<Vec<Rule>>,
    record: HoldRecord,
    backend: Arc<TestBackend>,
    namespace: String,
    /// The lease of a lock that somebody else has taken.
    lease: OnceLock<Duration>,
}

#[derive(Debug)]
struct Rule {
    pattern: Pattern,
    outcome: RuleOutcome,
    /// How many calls still meet it; `None` if all.
    left: Option<usize>,
    name: Option<String>,
    /// Whether it is no failure if no call meets it.
    is_optional: bool,
    /// When the first call met it.
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

impl CallScript {
    pub(super) fn new(backend: &Arc<TestBackend>, namespace: &str) -> Arc<Self> {
        let (rules, record) = (Mutex::default(), HoldRecord::default());
        let (backend, namespace) = (Arc::clone(backend), namespace.to_owned());
        Arc::new(Self { rules, record, backend, namespace, lease: OnceLock::new() })
    }

    /// The client is started, with this lease.
    pub(super) fn started(&self, lease: Duration) {
        // Called once.
        let _ = self.lease.set(lease);
    }

    pub(super) fn record(&self) -> &HoldRecord {
        &self.record
    }

    /// The key without the namespace.
    fn short<'k>(&self, key: &'k str) -> &'k str {
        key::without_namespace(&self.namespace, key)
    }

    /// When the hold that begins now is to be lost, and why.
    fn loss(&self, key: &str, template: &str) -> Option<(Duration, LostReason)> {
        let key = self.short(key);
        let mut rules = lock(&self.rules);
        rules.iter_mut().find_map(|rule| {
            let RuleOutcome::LostAfter(time, reason) = rule.outcome else { return None };
            let is_met = rule.left != Some(0) && rule.pattern.matches(template, key);
            is_met.then(|| {
                rule.meet(BootInstant::now());
                (time, reason)
            })
        })
    }

    /// Panics if an outcome was met less often than its script says, or never.
    pub(super) fn verify(&self) {
        let rules = lock(&self.rules);
        let unmet = rules.iter().filter(|rule| {
            let is_unmet = rule.left.map_or(rule.began.is_none(), |left| left > 0);
            is_unmet && !rule.is_optional
        });
        let unmet: Vec<String> = unmet
            .map(|rule| {
                let missing =
                    rule.left.map_or("at least one".to_owned(), |left| format!("{left} more"));
                let name = rule.name.as_ref().map(|name| format!(" ({name})")).unwrap_or_default();
                format!("{} {:?}{name}: {missing}", rule.pattern, rule.outcome)
            })
            .collect();
        drop(rules);
        assert!(unmet.is_empty(), "scripted outcomes that no call has met: {}", unmet.join("; "));
    }
}

impl CallObserver for CallScript {
    fn fate(&self, keys: &[&str], label: SiteLabel) -> Option<CallFate> {
        let now = BootInstant::now();
        let mut rules = lock(&self.rules);
        rules.iter_mut().find_map(|rule| {
            let matches = |key: &&str| rule.pattern.matches(label.template, self.short(key));
            if rule.left == Some(0) || !keys.iter().any(matches) {
                return None;
            }
            let fate = match &rule.outcome {
                RuleOutcome::Busy => CallFate::Busy(None),
                RuleOutcome::BusyFor(time) => {
                    let left = rule.began.unwrap_or(now).after(*time).since(now);
                    // The lock is free again.
                    (!left.is_zero()).then_some(CallFate::Busy(Some(left)))?
                }
                RuleOutcome::Unavailable(cause) => CallFate::Unavailable(cause.clone()),
                RuleOutcome::Slow(time) => CallFate::Slow(*time),
                RuleOutcome::Unknown => CallFate::Unknown,
                RuleOutcome::LostAfter(..) => return None,
            };
            rule.meet(now);
            Some(fate)
        })
    }

    fn began(&self, key: &str, label: SiteLabel, waited: Duration, loser: Loser) {
        self.record.began(key, label, waited);
        let Some((after, reason)) = self.loss(key, label.template) else { return };
        let (key, backend) = (key.to_owned(), Arc::clone(&self.backend));
        let lease = self.lease.get().copied().unwrap_or_default();
        crate::sync::spawn_task(async move {
            time::sleep(after).await;
            loser(reason, &|| lose_in_store(&backend, (&key, lease), reason));
        });
    }

    fn ended(&self, key: &str, end: HoldEnd) {
        self.record.ended(key, end);
    }
}

/// Makes the store agree with a loss.
fn lose_in_store(backend: &TestBackend, (key, lease): (&str, Duration), reason: LostReason) {
    if matches!(reason, LostReason::Gone | LostReason::Taken | LostReason::Failover) {
        backend.delete(Some(key));
    }
    if reason == LostReason::Taken
        && let Ok(owner) = OwnerId::new()
    {
        backend.acquire((key, owner), lease);
    }
}

impl Rule {
    fn meet(&mut self, now: BootInstant) {
        self.left = self.left.map(|left| left.saturating_sub(1));
        self.began.get_or_insert(now);
    }
}

/// The outcomes that a test may script for some locks. The oldest rule that still applies counts.
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
        let (left, name, is_optional, began) = (None, None, false, None);
        rules.push(Rule { pattern, outcome, left, name, is_optional, began });
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

    /// The first answer of the store to each call takes this time. A call asks again after a response timeout (a
    /// third of the client's lease, from 50 ms to 2 s), and fails if its wait ends before.
    pub fn slow(self, time: Duration) -> ScriptedOutcome<'a> {
        self.add(RuleOutcome::Slow(time))
    }

    /// The first answer to each call is lost. A call with a wait asks again, and one without fails.
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

    /// The test passes although too few calls, or none, meet it. Otherwise it fails, because the script may name other locks
    /// than the program.
    pub fn optional(self) -> Self {
        if let Some(rule) = lock(&self.script.rules).get_mut(self.index) {
            rule.is_optional = true;
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

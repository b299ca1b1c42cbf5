//! Where calls wait: the templates of keys over the last five minutes.
//!
//! Clients tell their measurements since they were created. The difference of two rounds is added to the current slot of
//! fifteen seconds, over all clients, and the slots of the last five minutes are summed up. So nothing is remembered for
//! each key, and for each client only its last measurements.

use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};

use lock_runtime::admin::{ClientAnswers, ClientSnapshot, SiteInfo};
use lock_runtime::telemetry::{AcquisitionOutcome, HistogramSnapshot};
use serde::Serialize;

use crate::clients::id_of;

/// The length of a slot.
const SLOT: Duration = Duration::from_secs(15);

/// The number of slots.
pub(crate) const SLOTS: usize = 20;

/// The most templates that are sent.
const MOST_TEMPLATES: usize = 50;

/// The most templates that are remembered for a slot.
const MOST_REMEMBERED: usize = 1000;

/// What has happened with a template in a slot.
#[derive(Debug, Clone, Default)]
struct TemplateUse {
    waits: HistogramSnapshot,
    holds: HistogramSnapshot,
    granted: u64,
    handed_over: u64,
    busy: u64,
    lost: u64,
    /// The sum of the waiting calls over the time.
    waited: Duration,
    /// The time in which at least one lock was held, as the rounds have seen it.
    in_use: Duration,
}

impl TemplateUse {
    fn add(&mut self, other: &Self) {
        self.waits.merge(&other.waits);
        self.holds.merge(&other.holds);
        self.granted = self.granted.saturating_add(other.granted);
        self.handed_over = self.handed_over.saturating_add(other.handed_over);
        self.busy = self.busy.saturating_add(other.busy);
        self.lost = self.lost.saturating_add(other.lost);
        self.waited = self.waited.saturating_add(other.waited);
        self.in_use = self.in_use.saturating_add(other.in_use);
    }

    /// What a client has added to its measurements since the earlier ones.
    fn since(site: &SiteInfo, earlier: Option<&SiteInfo>) -> Self {
        let count = |outcome| {
            let earlier = earlier.map_or(0, |it| it.acquisitions(outcome));
            site.acquisitions(outcome).saturating_sub(earlier)
        };
        let mut waits = HistogramSnapshot::default();
        for (outcome, samples) in &site.waits {
            let is_grant =
                matches!(outcome, AcquisitionOutcome::Granted | AcquisitionOutcome::HandedOver);
            let known = earlier.and_then(|it| it.waits.iter().find(|(known, _)| known == outcome));
            if is_grant {
                waits.merge(&known.map_or_else(|| samples.clone(), |(_, it)| samples.since(it)));
            }
        }
        let lost = |site: &SiteInfo| {
            site.losses.iter().fold(0_u64, |sum, (_, count)| sum.saturating_add(*count))
        };
        Self {
            waits,
            holds: earlier.map_or_else(|| site.hold.clone(), |it| site.hold.since(&it.hold)),
            granted: count(AcquisitionOutcome::Granted),
            handed_over: count(AcquisitionOutcome::HandedOver),
            busy: count(AcquisitionOutcome::Busy),
            lost: lost(site).saturating_sub(earlier.map_or(0, lost)),
            waited: Duration::ZERO,
            in_use: Duration::ZERO,
        }
    }
}

/// The state of a template in the last round.
#[derive(Debug, Clone, Default)]
struct TemplateNow {
    held: u64,
    waiting: u64,
    oldest: Option<Duration>,
    function: Option<String>,
    functions: usize,
}

struct UseSlot {
    began: Instant,
    /// The time for which it has measurements.
    covered: Duration,
    templates: HashMap<String, TemplateUse>,
}

/// A template, as the page shows it. Durations are in ms.
#[derive(Debug, Serialize)]
pub(crate) struct TemplateRow {
    pub(crate) template: String,
    function: Option<String>,
    /// The number of functions that use it.
    functions: usize,
    pub(crate) held: u64,
    pub(crate) waiting: u64,
    oldest: Option<f64>,
    /// The sum of all waits.
    pub(crate) waited: f64,
    wait_p50: Option<f64>,
    wait_p99: Option<f64>,
    hold_p50: Option<f64>,
    hold_p99: Option<f64>,
    pub(crate) grants: u64,
    /// The part of the grants that did not ask the store.
    pub(crate) handed_over: Option<f64>,
    /// The calls whose wait has ended without the lock.
    busy: u64,
    lost: u64,
    /// The part of the time in which at least one lock was held.
    pub(crate) in_use: f64,
    /// The mean number of calls that waited, for each slot; the last one is the current slot.
    line: Vec<f64>,
}

/// What all clients together have done between two rounds.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct Increments {
    pub(crate) grants: u64,
    pub(crate) lost: u64,
    /// The time between the rounds; zero for the first one.
    pub(crate) over: Duration,
}

/// The measurements of the last five minutes.
#[derive(Default)]
pub(crate) struct ContentionWindow {
    /// The last measurements of each client, and when it told them.
    known: HashMap<String, (Instant, ClientSnapshot)>,
    last: Option<Instant>,
    slots: VecDeque<UseSlot>,
    now: HashMap<String, TemplateNow>,
}

impl ContentionWindow {
    /// Adds the answers of a round.
    pub(crate) fn add(
        &mut self,
        snapshots: ClientAnswers<ClientSnapshot>,
        at: Instant,
    ) -> Increments {
        let window = SLOT * u32::try_from(SLOTS).unwrap_or(u32::MAX);
        let over = self.last.map_or(Duration::ZERO, |last| at.saturating_duration_since(last));
        self.last = Some(at);
        if over > window {
            self.slots.clear();
        }
        self.now.clear();
        let mut total = Increments { over, ..Increments::default() };
        let mut added: HashMap<String, TemplateUse> = HashMap::new();
        for answer in snapshots.answers {
            let (id, snapshot) = (id_of(&answer.client), answer.found);
            // What a client has done before it was seen does not count for the last minutes.
            let earlier = self.known.get(&id).map(|(_, earlier)| earlier);
            for site in &snapshot.sites {
                self.now.entry(site.template.clone()).or_default().add(site);
                let Some(earlier) = earlier else { continue };
                let known = earlier
                    .sites
                    .iter()
                    .find(|it| it.template == site.template && it.function == site.function);
                let new = TemplateUse::since(site, known);
                total.grants =
                    total.grants.saturating_add(new.granted).saturating_add(new.handed_over);
                added.entry(site.template.clone()).or_default().add(&new);
            }
            if let Some(earlier) = earlier {
                let lost = snapshot.lost.saturating_sub(earlier.lost);
                total.lost = total.lost.saturating_add(lost);
            }
            self.known.insert(id, (at, snapshot));
        }
        self.known.retain(|_, (told, _)| at.saturating_duration_since(*told) <= window);
        for (template, now) in &self.now {
            let added = added.entry(template.clone()).or_default();
            added.waited = over.saturating_mul(u32::try_from(now.waiting).unwrap_or(u32::MAX));
            added.in_use = if now.held > 0 { over } else { Duration::ZERO };
        }
        self.remember(added, over.min(window), at);
        total
    }

    fn remember(&mut self, added: HashMap<String, TemplateUse>, over: Duration, at: Instant) {
        let is_over = |slot: &UseSlot| at.saturating_duration_since(slot.began) >= SLOT;
        if self.slots.back().is_none_or(is_over) {
            self.slots.push_back(UseSlot {
                began: at,
                covered: Duration::ZERO,
                templates: HashMap::new(),
            });
        }
        while self.slots.len() > SLOTS {
            self.slots.pop_front();
        }
        let Some(slot) = self.slots.back_mut() else { return };
        slot.covered += over;
        for (template, added) in added {
            if slot.templates.len() < MOST_REMEMBERED || slot.templates.contains_key(&template) {
                slot.templates.entry(template).or_default().add(&added);
            }
        }
    }

    /// The time for which there are measurements.
    pub(crate) fn covered(&self) -> Duration {
        self.slots.iter().map(|slot| slot.covered).sum()
    }

    /// The templates with the longest waits, then with the most grants.
    pub(crate) fn rows(&self) -> Vec<TemplateRow> {
        let mut totals: HashMap<&str, TemplateUse> = HashMap::new();
        for (template, used) in self.slots.iter().flat_map(|slot| &slot.templates) {
            totals.entry(template).or_default().add(used);
        }
        let order = |(template, total): &(&str, TemplateUse)| {
            let waiting = self.now.get(*template).map_or(0, |now| now.waiting);
            (total.waited, waiting, total.granted.saturating_add(total.handed_over))
        };
        let mut totals: Vec<_> = totals.into_iter().collect();
        totals.sort_unstable_by(|one, other| {
            order(other).cmp(&order(one)).then_with(|| one.0.cmp(other.0))
        });
        totals.truncate(MOST_TEMPLATES);
        totals.into_iter().map(|(template, total)| self.row(template, &total)).collect()
    }

    fn row(&self, template: &str, total: &TemplateUse) -> TemplateRow {
        let now = self.now.get(template).cloned().unwrap_or_default();
        let grants = total.granted.saturating_add(total.handed_over);
        let line = self.slots.iter().map(|slot| {
            let waited = slot.templates.get(template).map_or(Duration::ZERO, |used| used.waited);
            ratio(waited, slot.covered)
        });
        let quantile = |samples: &HistogramSnapshot, part| samples.quantile(part).map(fractional);
        #[allow(clippy::cast_precision_loss)]
        let part = |count: u64| (grants > 0).then(|| rounded(count as f64 / grants as f64));
        TemplateRow {
            template: template.to_owned(),
            function: now.function,
            functions: now.functions,
            held: now.held,
            waiting: now.waiting,
            oldest: now.oldest.map(fractional),
            waited: fractional(total.waited),
            wait_p50: quantile(&total.waits, 0.5),
            wait_p99: quantile(&total.waits, 0.99),
            hold_p50: quantile(&total.holds, 0.5),
            hold_p99: quantile(&total.holds, 0.99),
            grants,
            handed_over: part(total.handed_over),
            busy: total.busy,
            lost: total.lost,
            in_use: ratio(total.in_use, self.covered()).min(1.0),
            line: line.collect(),
        }
    }
}

impl TemplateNow {
    fn add(&mut self, site: &SiteInfo) {
        self.held = self.held.saturating_add(site.held);
        self.waiting = self.waiting.saturating_add(site.waiting);
        self.oldest = self.oldest.max(site.oldest_hold);
        if let Some(function) = &site.function
            && self.function.as_ref() != Some(function)
        {
            self.functions += 1;
            self.function.get_or_insert_with(|| function.clone());
        }
    }
}

/// Milliseconds, to a microsecond.
fn fractional(duration: Duration) -> f64 {
    rounded(duration.as_secs_f64() * 1000.0)
}

fn ratio(part: Duration, whole: Duration) -> f64 {
    if whole.is_zero() { 0.0 } else { rounded(part.div_duration_f64(whole)) }
}

/// To three digits, because the page shows no more.
fn rounded(value: f64) -> f64 {
    (value * 1000.0).round() / 1000.0
}

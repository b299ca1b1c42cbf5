//! Where calls wait: the templates of keys over the last five minutes.
//!
//! Clients report their measurements since they were created. The difference of two snapshots is added to the current
//! slot of fifteen seconds, over all clients, and the slots of the last five minutes are summed up. So nothing is
//! remembered for each key, and for each client only its last measurements.
//!
//! Measurements are compared only with those of the snapshot before: what happened while nobody watched is not part of
//! the last minutes.

use std::cmp::Reverse;
use std::collections::{BTreeSet, HashMap, VecDeque};
use std::time::{Duration, Instant};

use lock_runtime::admin::{ClientAnswers, ClientSnapshot, SiteInfo};
use lock_runtime::telemetry::{AcquisitionOutcome, HistogramSnapshot};
use serde::Serialize;

use crate::clients::id_of;

/// The time between two snapshots, unless the rounds are further apart. They have all templates of a client.
const INTERVAL: Duration = Duration::from_secs(5);

/// A snapshot is compared with an earlier one if the time between them is at most this many intervals.
const MOST_INTERVALS: u32 = 3;

/// The length of a slot.
const SLOT: Duration = Duration::from_secs(15);

/// The number of slots.
const SLOTS: u32 = 20;

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
        Self {
            waits,
            holds: earlier.map_or_else(|| site.hold.clone(), |it| site.hold.since(&it.hold)),
            granted: count(AcquisitionOutcome::Granted),
            handed_over: count(AcquisitionOutcome::HandedOver),
            busy: count(AcquisitionOutcome::Busy),
            waited: Duration::ZERO,
            in_use: Duration::ZERO,
        }
    }
}

/// The state of a template in the last snapshots.
#[derive(Debug, Default)]
struct TemplateNow {
    held: u64,
    waiting: u64,
    functions: BTreeSet<String>,
}

struct UseSlot {
    /// Slots are counted from the first snapshots on.
    number: u32,
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
    /// The sum of all waits.
    pub(crate) waited: f64,
    wait_p50: Option<f64>,
    wait_p99: Option<f64>,
    hold_p50: Option<f64>,
    hold_p99: Option<f64>,
    pub(crate) grants: u64,
    /// The part of the grants that did not ask the store.
    pub(crate) handed_over: Option<f64>,
    /// The part of the calls whose wait has ended without the lock.
    busy: Option<f64>,
    /// The part of the time in which at least one lock was held.
    pub(crate) in_use: f64,
    /// The mean number of calls that waited, for each slot of the last five minutes; the last one is the current slot.
    /// `None` if nobody watched.
    line: Vec<Option<f64>>,
}

/// What all clients together have done between two snapshots.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct Increments {
    pub(crate) grants: u64,
    /// The time between the snapshots; zero if there is none to compare with.
    pub(crate) over: Duration,
}

/// The measurements of the last five minutes.
pub(crate) struct ContentionWindow {
    /// The time between two snapshots.
    interval: Duration,
    /// When the first slot began.
    start: Option<Instant>,
    /// The last measurements of each client, and when it reported them.
    known: HashMap<String, (Instant, ClientSnapshot)>,
    last: Option<Instant>,
    slots: VecDeque<UseSlot>,
    /// The number of the current slot.
    current: u32,
    now: HashMap<String, TemplateNow>,
    /// Whether the last snapshot could be compared with one before.
    is_compared: bool,
}

impl ContentionWindow {
    /// For rounds that are this far apart.
    pub(crate) fn new(refresh: Duration) -> Self {
        Self {
            interval: refresh.max(INTERVAL),
            start: None,
            known: HashMap::new(),
            last: None,
            slots: VecDeque::new(),
            current: 0,
            now: HashMap::new(),
            is_compared: false,
        }
    }

    /// Whether a round that begins now needs snapshots. The second one does, so that there are numbers soon.
    pub(crate) fn is_due(&self, at: Instant) -> bool {
        let is_over = |last| at.saturating_duration_since(last) >= self.interval;
        !self.is_compared || self.last.is_none_or(is_over)
    }

    /// Adds the answers of a round.
    pub(crate) fn add(
        &mut self,
        snapshots: &ClientAnswers<ClientSnapshot>,
        at: Instant,
    ) -> Increments {
        let is_recent = |earlier: Instant| {
            at.saturating_duration_since(earlier) <= self.interval * MOST_INTERVALS
        };
        self.known.retain(|_, (reported, _)| is_recent(*reported));
        let last = self.last.filter(|last| is_recent(*last));
        let over = last.map_or(Duration::ZERO, |last| at.saturating_duration_since(last));
        (self.last, self.is_compared) = (Some(at), !over.is_zero());
        self.now.clear();
        let mut total = Increments { grants: 0, over };
        let mut added: HashMap<String, TemplateUse> = HashMap::new();
        for answer in &snapshots.answers {
            let (id, snapshot) = (id_of(&answer.client), &answer.found);
            // What a client has done before it was seen does not count for the last minutes.
            let earlier = self.known.get(&id).filter(|_| self.is_compared);
            let earlier = earlier.map(|(_, earlier)| sites_of(earlier));
            for site in &snapshot.sites {
                self.now.entry(site.template.clone()).or_default().add(site);
                let Some(earlier) = &earlier else { continue };
                let new = TemplateUse::since(site, earlier.get(&place_of(site)).copied());
                total.grants =
                    total.grants.saturating_add(new.granted).saturating_add(new.handed_over);
                added.entry(site.template.clone()).or_default().add(&new);
            }
            self.known.insert(id, (at, snapshot.clone()));
        }
        for (template, now) in &self.now {
            let added = added.entry(template.clone()).or_default();
            added.waited = over.saturating_mul(u32::try_from(now.waiting).unwrap_or(u32::MAX));
            added.in_use = if now.held > 0 { over } else { Duration::ZERO };
        }
        self.remember(added, over, at);
        total
    }

    /// Forgets the clients and their last measurements, but not what they have done in the last minutes.
    pub(crate) fn forget_clients(&mut self) {
        self.known.clear();
        self.now.clear();
        (self.last, self.is_compared) = (None, false);
    }

    #[cfg(test)]
    pub(crate) fn has_no_clients(&self) -> bool {
        self.known.is_empty() && self.now.is_empty()
    }

    fn remember(&mut self, added: HashMap<String, TemplateUse>, over: Duration, at: Instant) {
        let start = *self.start.get_or_insert(at);
        let slots = at.saturating_duration_since(start).div_duration_f64(SLOT);
        // Rounds down.
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
        let number = slots as u32;
        self.current = number;
        while self.slots.front().is_some_and(|slot| slot.number + SLOTS <= number) {
            self.slots.pop_front();
        }
        if self.slots.back().is_none_or(|slot| slot.number != number) {
            let (covered, templates) = (Duration::ZERO, HashMap::new());
            self.slots.push_back(UseSlot { number, covered, templates });
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
        let mut totals: HashMap<&str, (Duration, u64)> = HashMap::new();
        for (template, used) in self.slots.iter().flat_map(|slot| &slot.templates) {
            let (waited, grants) = totals.entry(template).or_default();
            *waited = waited.saturating_add(used.waited);
            *grants = grants.saturating_add(used.granted).saturating_add(used.handed_over);
        }
        let order = |(template, (waited, grants)): (&str, (Duration, u64))| {
            let waiting = self.now.get(template).map_or(0, |now| now.waiting);
            (Reverse((waited, waiting, grants)), template.to_owned())
        };
        let mut templates: Vec<_> = totals.into_iter().map(order).collect();
        templates.sort_unstable();
        templates.truncate(MOST_TEMPLATES);
        templates.into_iter().map(|(_, template)| self.row(template)).collect()
    }

    fn row(&self, template: String) -> TemplateRow {
        let mut total = TemplateUse::default();
        let mut line = vec![None; SLOTS as usize];
        for slot in &self.slots {
            let used = slot.templates.get(&template);
            if let Some(used) = used {
                total.add(used);
            }
            let place = line.len().checked_sub((self.current - slot.number) as usize + 1);
            if let Some(place) = place.filter(|_| !slot.covered.is_zero()) {
                let waited = used.map_or(Duration::ZERO, |used| used.waited);
                line[place] = Some(ratio(waited, slot.covered));
            }
        }
        let none = TemplateNow::default();
        let now = self.now.get(&template).unwrap_or(&none);
        let grants = total.granted.saturating_add(total.handed_over);
        let quantile = |samples: &HistogramSnapshot, part| samples.quantile(part).map(fractional);
        TemplateRow {
            function: now.functions.first().cloned(),
            functions: now.functions.len(),
            held: now.held,
            waiting: now.waiting,
            waited: fractional(total.waited),
            wait_p50: quantile(&total.waits, 0.5),
            wait_p99: quantile(&total.waits, 0.99),
            hold_p50: quantile(&total.holds, 0.5),
            hold_p99: quantile(&total.holds, 0.99),
            grants,
            handed_over: part(total.handed_over, grants),
            busy: part(total.busy, grants.saturating_add(total.busy)),
            in_use: ratio(total.in_use, self.covered()).min(1.0),
            line,
            template,
        }
    }
}

/// Where the locks of a site are acquired: the template and the function.
type SitePlace<'a> = (&'a str, Option<&'a str>);

fn place_of(site: &SiteInfo) -> SitePlace<'_> {
    (&site.template, site.function.as_deref())
}

fn sites_of(snapshot: &ClientSnapshot) -> HashMap<SitePlace<'_>, &SiteInfo> {
    snapshot.sites.iter().map(|site| (place_of(site), site)).collect()
}

impl TemplateNow {
    fn add(&mut self, site: &SiteInfo) {
        self.held = self.held.saturating_add(site.held);
        self.waiting = self.waiting.saturating_add(site.waiting);
        if let Some(function) = site.function.as_ref()
            && !self.functions.contains(function)
        {
            self.functions.insert(function.clone());
        }
    }
}

/// `None` if there is no whole.
fn part(count: u64, whole: u64) -> Option<f64> {
    #[allow(clippy::cast_precision_loss)]
    (whole > 0).then(|| rounded(count as f64 / whole as f64))
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

#[cfg(test)]
mod tests;

//! The measurements of all clients of this process, by namespace and template.
//!
//! Clients that have ended still count, so that no counter falls.

use std::collections::BTreeMap;

use super::histogram::HistogramSnapshot;
use super::renewals::{RenewalOutcome, SlackSnapshot};
use super::requests::{StoreOperation, StoreOutcome};
use super::snapshot::{SiteSnapshot, Snapshot};

/// The measurements of several clients.
#[derive(Debug, Clone, Default)]
pub(super) struct Totals {
    pub(super) namespaces: BTreeMap<String, NamespaceTotals>,
}

/// The measurements of the clients with one namespace.
#[derive(Debug, Clone, Default)]
pub(super) struct NamespaceTotals {
    pub(super) sites: BTreeMap<&'static str, SiteSnapshot>,
    pub(super) renewals: [u64; RenewalOutcome::ALL.len()],
    pub(super) slack: SlackSnapshot,
    pub(super) requests: Vec<(StoreOperation, StoreOutcome, HistogramSnapshot)>,
    pub(super) releasing: usize,
    /// Whether the store of a client does not answer.
    pub(super) is_down: bool,
}

impl Totals {
    pub(super) const fn new() -> Self {
        Self { namespaces: BTreeMap::new() }
    }

    /// Adds the measurements of a client.
    pub(super) fn add(&mut self, client: Snapshot) {
        let total = self.namespaces.entry(client.namespace).or_default();
        for site in client.sites {
            match total.sites.get_mut(site.template) {
                Some(known) => known.merge(&site),
                None => drop(total.sites.insert(site.template, site)),
            }
        }
        for (outcome, count) in client.renewals {
            total.renewals[outcome as usize] += count;
        }
        total.slack.merge(&client.renewal_slack);
        if total.requests.is_empty() {
            total.requests = client.requests;
        } else {
            for ((_, _, known), (_, _, added)) in total.requests.iter_mut().zip(&client.requests) {
                known.merge(added);
            }
        }
        total.releasing += client.stats.releasing;
        total.is_down |= !client.store_up;
    }

    /// Adds the measurements of a client that has ended.
    pub(super) fn add_ended(&mut self, mut client: Snapshot) {
        for site in &mut client.sites {
            (site.held, site.waiting, site.oldest_hold) = (0, 0, None);
        }
        client.stats.releasing = 0;
        client.store_up = true;
        self.add(client);
    }
}

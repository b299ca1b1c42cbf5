//! The measurements of one client.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, PoisonError, RwLock};
use std::time::Duration;

#[cfg(any(feature = "metrics", feature = "opentelemetry"))]
use super::exporter;
use super::label::SiteLabel;
#[cfg(feature = "testing")]
use super::observer::CallObserver;
use super::renewals::RenewalMetrics;
use super::requests::StoreMetrics;
use super::site::{NO_TEMPLATE, SiteCache, SiteMetrics, reuse, unused};
use super::snapshot::{SiteSnapshot, Snapshot};
use super::thresholds::SlowThresholds;
use crate::stats::ClientStats;

/// The measurements of one client.
pub(crate) struct ClientMetrics {
    /// Differs between the clients of this process.
    id: u64,
    namespace: String,
    sites: RwLock<HashMap<SiteLabel, &'static SiteMetrics>>,
    /// Locks without a template.
    without_template: OnceLock<&'static SiteMetrics>,
    pub(crate) renewals: RenewalMetrics,
    pub(crate) requests: Arc<StoreMetrics>,
    /// When the log warns of long waits and long holds.
    pub(crate) slow: SlowThresholds,
    /// The test that observes the holds, if there is one.
    #[cfg(feature = "testing")]
    pub(crate) observer: Option<Arc<dyn CallObserver>>,
}

impl ClientMetrics {
    /// `requests` are the measurements of its store.
    pub(crate) fn new(namespace: &str, requests: Arc<StoreMetrics>) -> Self {
        static CLIENTS: AtomicU64 = AtomicU64::new(0);
        Self {
            id: CLIENTS.fetch_add(1, Ordering::Relaxed),
            namespace: namespace.to_owned(),
            sites: RwLock::default(),
            without_template: OnceLock::new(),
            renewals: RenewalMetrics::default(),
            requests,
            slow: SlowThresholds::default(),
            #[cfg(feature = "testing")]
            observer: None,
        }
    }

    /// The same, with these thresholds for warnings.
    pub(crate) fn warning(mut self, slow: SlowThresholds) -> Self {
        self.slow = slow;
        self
    }

    pub(crate) fn namespace(&self) -> &str {
        &self.namespace
    }

    /// Differs between the clients of this process.
    #[cfg(any(feature = "metrics", feature = "opentelemetry"))]
    pub(crate) fn id(&self) -> u64 {
        self.id
    }

    /// The measurements of an annotated function.
    pub(crate) fn of_function(&self, cache: &SiteCache, label: SiteLabel) -> &'static SiteMetrics {
        match cache.0.get() {
            Some((client, metrics)) if *client == self.id => metrics,
            Some(_) => self.of(label),
            None => {
                let metrics = self.of(label);
                let _ = cache.0.set((self.id, metrics));
                metrics
            }
        }
    }

    /// The measurements of the locks with a template.
    pub(crate) fn of_template(&self, template: &'static str) -> &'static SiteMetrics {
        self.of(SiteLabel { template, function: None })
    }

    /// The measurements of locks without a template.
    pub(crate) fn without_template(&self) -> &'static SiteMetrics {
        self.without_template.get_or_init(|| self.of_template(NO_TEMPLATE))
    }

    fn of(&self, label: SiteLabel) -> &'static SiteMetrics {
        let known = self.sites.read().unwrap_or_else(PoisonError::into_inner).get(&label).copied();
        known.unwrap_or_else(|| {
            let mut sites = self.sites.write().unwrap_or_else(PoisonError::into_inner);
            sites.entry(label).or_insert_with(|| unused(label))
        })
    }

    /// All measurements. `held` are the sites and the ages of the locks that are held now.
    pub(crate) fn snapshot(
        &self,
        held: impl Iterator<Item = (&'static SiteMetrics, Duration)>,
        stats: ClientStats,
    ) -> Snapshot {
        let sites = self.sites.read().unwrap_or_else(PoisonError::into_inner).clone();
        let mut oldest: HashMap<*const SiteMetrics, Duration> = HashMap::new();
        for (site, age) in held {
            let oldest = oldest.entry(std::ptr::from_ref(site)).or_default();
            *oldest = age.max(*oldest);
        }
        let mut sites: Vec<SiteSnapshot> = sites
            .into_iter()
            .map(|(label, metrics)| {
                let mut site = SiteSnapshot::new(label);
                metrics.add_to(&mut site);
                site.oldest_hold = oldest.get(&std::ptr::from_ref(metrics)).copied();
                site
            })
            .collect();
        sites.sort_unstable_by_key(|site| (site.template, site.function));
        Snapshot {
            namespace: self.namespace.clone(),
            sites,
            renewals: self.renewals.outcomes(),
            renewal_slack: self.renewals.slack(),
            requests: self.requests.durations(),
            store_up: self.requests.is_up(),
            stats,
        }
    }
}

#[cfg(test)]
impl Default for ClientMetrics {
    fn default() -> Self {
        Self::new("", Arc::default())
    }
}

impl Drop for ClientMetrics {
    fn drop(&mut self) {
        // Nothing records into them any more.
        #[cfg(any(feature = "metrics", feature = "opentelemetry"))]
        exporter::ended(self.id, || self.snapshot(std::iter::empty(), ClientStats::default()));
        let sites = self.sites.get_mut().unwrap_or_else(PoisonError::into_inner);
        for (_, metrics) in sites.drain() {
            reuse(metrics);
        }
    }
}

impl std::fmt::Debug for ClientMetrics {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ClientMetrics").field("namespace", &self.namespace).finish_non_exhaustive()
    }
}

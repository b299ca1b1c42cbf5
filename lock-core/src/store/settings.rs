//! What a store has to know of its client.

use std::sync::Arc;
use std::time::Duration;

use crate::address_map::AddressMap;
use crate::client_info::ClientInfo;
use crate::credentials::CredentialsSource;
use crate::replicas::RequiredReplicas;
use crate::store::quarantine_terms::QuarantineTerms;
use crate::telemetry::requests::StoreMetrics;
#[cfg(feature = "tls")]
use crate::tls::TlsOptions;

/// The settings of a client that its store uses.
#[derive(Debug, Clone)]
pub struct Settings {
    /// The lease of locks that do not specify one.
    pub lease: Duration,
    /// How long the store may take for one answer.
    pub response_timeout: Duration,
    /// The replicas that have to acknowledge locks that do not specify it.
    pub acknowledged_by: RequiredReplicas,
    /// The quarantines of servers that may have lost locks, if the client has them.
    pub quarantine: Option<Arc<QuarantineTerms>>,
    /// Whether servers are asked to report changes of keys.
    pub tracking: bool,
    /// The program's function that supplies credentials, instead of the URL.
    pub credentials: Option<CredentialsSource>,
    /// The program's function that maps the addresses that servers announce.
    pub address_map: Option<AddressMap>,
    /// What the client tells others about itself, if it does.
    pub told: Option<ClientInfo>,
    /// The namespace of the client.
    pub namespace: String,
    /// The measurements of requests.
    pub requests: Arc<StoreMetrics>,
    /// TLS options that are not part of the URL.
    #[cfg(feature = "tls")]
    pub tls: Option<TlsOptions>,
}

impl Settings {
    /// Those of a client for which nothing else is set. Another package may add the field `tls`, so whoever does not know of
    /// it begins with these.
    #[must_use]
    pub fn new(lease: Duration, response_timeout: Duration) -> Self {
        Self {
            lease,
            response_timeout,
            acknowledged_by: RequiredReplicas::NONE,
            quarantine: None,
            tracking: true,
            credentials: None,
            address_map: None,
            told: None,
            namespace: String::new(),
            requests: Arc::default(),
            #[cfg(feature = "tls")]
            tls: None,
        }
    }
}

#[cfg(any(test, feature = "simulation"))]
impl Default for Settings {
    fn default() -> Self {
        Self::new(Duration::from_secs(3), Duration::from_secs(1))
    }
}

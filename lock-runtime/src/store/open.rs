//! URLs, and the stores that they name.

use std::fmt;
use std::sync::Arc;

use super::contract::Backend;
#[cfg(feature = "store")]
use super::contract::OpenStore;
use super::memory::backend::MemoryBackend;
use super::quarantine_terms::QuarantineTerms;
use super::settings::Settings;
use crate::error::LockError;
use lock_quorum::{self as quorum, QuorumBackend};
#[cfg(feature = "redis")]
use lock_redis::{RedisBackend, is_redis, is_redlock};

/// Where a client finds its store.
#[derive(Clone)]
pub(crate) enum StoreAddress {
    Url(String),
    /// A quorum of the stores at these URLs.
    Quorum(Vec<String>),
}

impl StoreAddress {
    /// Whether several stores vote.
    pub(crate) fn is_quorum(&self) -> bool {
        match self {
            #[cfg(feature = "redis")]
            Self::Url(url) => is_redlock(url.trim().split(':').next().unwrap_or_default()),
            #[cfg(not(feature = "redis"))]
            Self::Url(_) => false,
            Self::Quorum(_) => true,
        }
    }
}

/// Without the URLs, which may contain passwords.
impl fmt::Debug for StoreAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Url(_) => f.write_str("…"),
            Self::Quorum(urls) => write!(f, "a quorum of {} URLs", urls.len()),
        }
    }
}

/// Checks the URLs, and creates the store that they name. Does not connect.
pub(crate) fn open(
    address: &StoreAddress,
    settings: &Settings,
) -> Result<Arc<dyn Backend>, LockError> {
    let (stores, option) = match address {
        StoreAddress::Url(url) if !address.is_quorum() => return Ok(open_one(url, settings)?.0),
        StoreAddress::Url(url) => (votes_of_url(url, &of_members(settings))?, "url"),
        StoreAddress::Quorum(urls) => {
            // Before the URLs are read, because the number is wrong whatever they are.
            let wrong = |problem| LockError::config("quorum", problem);
            quorum::check_size(urls.len()).map_err(wrong)?;
            let settings = of_members(settings);
            let stores = urls.iter().map(|url| {
                let scheme = url.trim().split(':').next().unwrap_or_default();
                if matches!(scheme, "etcd" | "etcds" | "postgres" | "postgresql") {
                    let problem = format!(
                        "a quorum has Redis servers, and no `{scheme}://`; etcd and PostgreSQL survive the loss of a \
                         server by themselves, with one URL that names all of them"
                    );
                    return Err(wrong(problem));
                }
                open_one(url, &settings)
            });
            (stores.collect::<Result<Vec<_>, _>>()?, "quorum")
        }
    };
    let wrong = |problem| LockError::config(option, problem);
    quorum::check_size(stores.len()).map_err(wrong)?;
    for (number, (_, name)) in stores.iter().enumerate() {
        if stores[..number].iter().any(|(_, other)| other == name && !name.is_empty()) {
            let problem = format!(
                "{name} is named twice, and would have two votes; name servers that are independent of each other"
            );
            return Err(wrong(problem));
        }
    }
    let quorum = QuorumBackend::new(stores, quorum::server_timeout(settings.lease))?;
    Ok(Arc::new(quorum))
}

/// The settings of the stores of a quorum.
fn of_members(settings: &Settings) -> Settings {
    let own = settings.quarantine.as_ref().map(|quarantine| quarantine.own());
    Settings {
        response_timeout: quorum::server_timeout(settings.lease),
        // A minority of the stores may have the votes of others, so their changes mean nothing.
        tracking: false,
        quarantine: own.map(QuarantineTerms::of_quorum).map(Arc::new),
        ..settings.clone()
    }
}

/// A store, and its address, without credentials. Empty for the memory store.
type NamedStore = (Arc<dyn Backend>, String);

/// The stores of a URL that names several.
fn votes_of_url(url: &str, settings: &Settings) -> Result<Vec<NamedStore>, LockError> {
    #[cfg(feature = "redis")]
    {
        let servers = RedisBackend::of_quorum(url.trim(), settings)?;
        Ok(servers.into_iter().map(named).collect())
    }
    #[cfg(not(feature = "redis"))]
    open_one(url, settings).map(|store| vec![store])
}

#[cfg(feature = "redis")]
fn named(server: RedisBackend) -> NamedStore {
    let address = server.address().to_owned();
    (Arc::new(server), address)
}

/// Checks `url`, and creates the store that it names. Does not connect.
fn open_one(url: &str, settings: &Settings) -> Result<NamedStore, LockError> {
    let url = url.trim();
    let (scheme, rest) = url.split_once(':').unwrap_or_default();
    match scheme {
        "memory" if settings.credentials.is_some() => {
            Err(LockError::config("credentials", "the memory store needs none"))
        }
        #[cfg(feature = "tls")]
        "memory" if settings.tls.is_some() => Err(LockError::config(
            "tls",
            "the memory store uses no network; use a URL with `rediss://`",
        )),
        "memory" => Ok(match rest.trim_start_matches('/') {
            "" => (MemoryBackend::new(), String::new()),
            name => (MemoryBackend::named(name), format!("memory:{name}")),
        }),
        #[cfg(feature = "postgres")]
        "postgres" | "postgresql" => postgres(url, settings),
        #[cfg(not(feature = "postgres"))]
        "postgres" | "postgresql" => Err(url_error(
            "this build has no PostgreSQL store; enable the feature `postgres` of `lock-runtime`",
        )),
        #[cfg(feature = "etcd")]
        "etcd" | "etcds" => {
            if settings.quarantine.is_some() {
                let problem = "etcd loses no acknowledged lock, so it has none; remove the option";
                let problem = problem.to_owned();
                return Err(LockError::config("quarantine", problem));
            }
            Ok((super::EtcdStore::of_client(url, settings)?.open(settings)?, String::new()))
        }
        #[cfg(not(feature = "etcd"))]
        "etcd" | "etcds" => Err(url_error(
            "this build has no store in etcd; enable the feature `etcd` of `lock-runtime`",
        )),
        #[cfg(feature = "redis")]
        scheme if is_redis(scheme) => RedisBackend::new(url, settings).map(named),
        #[cfg(not(feature = "redis"))]
        "redis" | "rediss" | "redis+unix" | "redis+sentinel" | "rediss+sentinel" | "valkey"
        | "valkeys" | "valkey+unix" | "valkey+sentinel" | "valkeys+sentinel" | "redis+redlock"
        | "rediss+redlock" | "valkey+redlock" | "valkeys+redlock" => {
            let _ = settings;
            Err(url_error(
                "this build has no Redis store; enable the feature `redis` of `lock-runtime`",
            ))
        }
        _ => Err(url_error(
            "the URL does not start with `redis://`, `rediss://`, `redis+unix://`, \
             `redis+sentinel://`, `redis+cluster://`, `redis+redlock://`, `etcd://`, `postgres://` or `memory:`; for a \
             server, write `redis://host:port`",
        )),
    }
}

#[cfg(feature = "postgres")]
fn postgres(url: &str, settings: &Settings) -> Result<NamedStore, LockError> {
    use lock_postgres::PostgresStore;

    for (option, is_set) in [
        ("credentials", settings.credentials.is_some()),
        ("quarantine", settings.quarantine.is_some()),
    ] {
        if is_set {
            let problem = "the PostgreSQL store does not have it; remove the option";
            return Err(LockError::config(option, problem));
        }
    }
    #[cfg(feature = "tls")]
    let store = match settings.tls.clone() {
        Some(options) => PostgresStore::with_tls(url, options)?,
        None => PostgresStore::new(url)?,
    };
    #[cfg(not(feature = "tls"))]
    let store = PostgresStore::new(url)?;
    Ok((store.open(settings)?, String::new()))
}

fn url_error(problem: &str) -> LockError {
    LockError::config("url", problem)
}

#[cfg(test)]
mod tests {
    use super::*;
    #[cfg(feature = "redis")]
    use crate::credentials::{Credentials, CredentialsSource};

    fn open(url: &str, settings: &Settings) -> Result<Arc<dyn Backend>, LockError> {
        super::open(&StoreAddress::Url(url.to_owned()), settings)
    }

    /// The option and the problem of a URL that names no store.
    fn refused(url: &str, settings: &Settings) -> (&'static str, String) {
        match open(url, settings).map(drop) {
            Err(LockError::Config { option, problem, .. }) => (option, problem),
            other => panic!("{url}: {other:?}"),
        }
    }

    #[test]
    fn each_scheme_names_its_store() {
        let settings = Settings::default();
        for url in ["memory:", " memory:a ", "memory://a"] {
            let one = open(url, &settings).expect("the memory store");
            let other = open(url, &settings).expect("the memory store");
            assert_eq!(Arc::ptr_eq(&one, &other), url.contains('a'), "{url}");
        }
        for url in ["", "memory", "http://localhost", "rediss"] {
            let (option, problem) = refused(url, &settings);
            assert_eq!(option, "url");
            assert!(problem.contains("does not start with"), "{problem}");
        }
        for scheme in ["redis", "valkey", "redis+unix", "valkey+unix"] {
            let opened = open(&format!("{scheme}://localhost/0"), &settings).map(drop);
            if cfg!(feature = "redis") {
                opened.expect("a URL");
            } else {
                let (_, problem) = refused(&format!("{scheme}://localhost"), &settings);
                assert!(problem.contains("feature `redis`"), "{problem}");
            }
        }
        for scheme in ["rediss", "valkeys"] {
            let opened = open(&format!("{scheme}://localhost"), &settings);
            assert_eq!(opened.is_ok(), cfg!(feature = "tls"), "{scheme}");
        }
    }

    #[test]
    fn a_quorum_has_only_redis_servers() {
        for url in ["etcd://a", "etcds://a", "postgres://a/d", " postgresql://a/d"] {
            let urls = ["memory:a", "memory:b", url].map(ToOwned::to_owned).to_vec();
            let opened = super::open(&StoreAddress::Quorum(urls), &Settings::default()).map(drop);
            let Err(LockError::Config { option: "quorum", problem, .. }) = opened else {
                panic!("{url}: {opened:?}");
            };
            assert!(problem.contains(url.trim().split(':').next().unwrap()), "{problem}");
        }
        let urls = ["memory:a", "memory:b", "memory:c"].map(ToOwned::to_owned).to_vec();
        super::open(&StoreAddress::Quorum(urls), &Settings::default()).expect("three stores");
    }

    #[cfg(all(feature = "etcd", feature = "postgres"))]
    #[test]
    fn etcd_and_postgresql_have_no_quarantine() {
        let length = Settings::default().lease;
        let quarantine = Some(Arc::new(QuarantineTerms::new(length)));
        let settings = Settings { quarantine, ..Settings::default() };
        for url in ["etcd://a", "postgres://a/d"] {
            assert_eq!(refused(url, &settings).0, "quarantine", "{url}");
        }
    }

    #[cfg(feature = "redis")]
    #[test]
    fn the_memory_store_needs_no_credentials() {
        let source = || async { Ok::<_, LockError>(Credentials::new("any")) };
        let credentials = Some(CredentialsSource::new(source));
        let settings = Settings { credentials, ..Settings::default() };
        assert_eq!(refused("memory:", &settings).0, "credentials");
        #[cfg(feature = "postgres")]
        assert_eq!(refused("postgres://a/d", &settings).0, "credentials");
        open("redis://localhost", &settings).expect("a URL without credentials");
    }

    #[cfg(feature = "tls")]
    #[test]
    fn the_memory_store_needs_no_tls() {
        use crate::tls::TlsOptions;

        let settings = Settings { tls: Some(TlsOptions::new()), ..Settings::default() };
        assert_eq!(refused("memory:", &settings).0, "tls");
        open("rediss://localhost", &settings).expect("a URL with TLS");
    }
}

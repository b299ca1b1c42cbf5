//! URLs, and the stores that they name.

use std::sync::Arc;

use super::contract::Backend;
use super::memory::backend::MemoryBackend;
#[cfg(feature = "redis")]
use super::redis::{RedisBackend, is_redis};
use super::settings::Settings;
use crate::error::LockError;

/// Checks `url`, and creates the store that it names. Does not connect.
pub(crate) fn open(url: &str, settings: &Settings) -> Result<Arc<dyn Backend>, LockError> {
    let url = url.trim();
    let (scheme, rest) = url.split_once(':').unwrap_or_default();
    match scheme {
        "memory" if settings.credentials.is_some() => Err(LockError::Config {
            option: "credentials",
            problem: "the memory store needs none".into(),
        }),
        #[cfg(feature = "tls")]
        "memory" if settings.tls.is_some() => Err(LockError::Config {
            option: "tls",
            problem: "the memory store uses no network; use a URL with `rediss://`".into(),
        }),
        "memory" => Ok(match rest.trim_start_matches('/') {
            "" => MemoryBackend::new(),
            name => MemoryBackend::named(name),
        }),
        #[cfg(feature = "postgres")]
        "postgres" | "postgresql" => {
            use super::OpenStore;
            let store = Arc::new(super::postgres::PostgresStore::new(url)?);
            store.open(settings.response_timeout)
        }
        #[cfg(not(feature = "postgres"))]
        "postgres" | "postgresql" => Err(url_error(
            "this build has no PostgreSQL store; enable the feature `postgres` of `lock-runtime`",
        )),
        #[cfg(feature = "redis")]
        scheme if is_redis(scheme) => Ok(Arc::new(RedisBackend::new(url, settings)?)),
        #[cfg(not(feature = "redis"))]
        "redis" | "rediss" | "redis+unix" | "redis+sentinel" | "rediss+sentinel" | "valkey"
        | "valkeys" | "valkey+unix" | "valkey+sentinel" | "valkeys+sentinel" => {
            let _ = settings;
            Err(url_error(
                "this build has no Redis store; enable the feature `redis` of `lock-runtime`",
            ))
        }
        _ => Err(url_error(
            "the URL does not start with `redis://`, `rediss://`, `redis+unix://`, \
             `redis+sentinel://`, `redis+cluster://` or `memory:`; for a server, write \
             `redis://host:port`",
        )),
    }
}

fn url_error(problem: &str) -> LockError {
    LockError::Config { option: "url", problem: problem.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;
    #[cfg(feature = "redis")]
    use crate::credentials::{Credentials, CredentialsSource};

    /// The option and the problem of a URL that names no store.
    fn refused(url: &str, settings: &Settings) -> (&'static str, String) {
        match open(url, settings).map(drop) {
            Err(LockError::Config { option, problem }) => (option, problem),
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

    #[cfg(feature = "redis")]
    #[test]
    fn the_memory_store_needs_no_credentials() {
        let source = || async { Ok::<_, LockError>(Credentials::new("any")) };
        let credentials = Some(CredentialsSource::new(source));
        let settings = Settings { credentials, ..Settings::default() };
        assert_eq!(refused("memory:", &settings).0, "credentials");
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

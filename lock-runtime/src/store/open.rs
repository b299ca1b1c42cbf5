//! URLs, and the stores that they name.

use std::sync::Arc;
use std::time::Duration;

use super::contract::Backend;
use super::memory::MemoryBackend;
#[cfg(feature = "redis")]
use super::redis::RedisBackend;
use crate::error::LockError;

/// The client's settings that a store uses.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Settings {
    /// The longest time from sending a request to its answer.
    pub(crate) response_timeout: Duration,
}

/// Checks `url`, and creates the store that it names, without a connection.
pub(crate) fn open(url: &str, settings: Settings) -> Result<Arc<dyn Backend>, LockError> {
    let url = url.trim();
    let (scheme, rest) = url.split_once(':').unwrap_or_default();
    match scheme {
        "memory" => Ok(match rest.trim_start_matches('/') {
            "" => MemoryBackend::new(),
            name => MemoryBackend::named(name),
        }),
        #[cfg(feature = "redis")]
        "redis" | "redis+unix" => Ok(Arc::new(RedisBackend::new(url, settings.response_timeout)?)),
        #[cfg(not(feature = "redis"))]
        "redis" | "redis+unix" => {
            let _ = settings;
            Err(url_error(
                "this build has no Redis store; enable the feature `redis` of `lock-runtime`",
            ))
        }
        "rediss" => Err(url_error("TLS (`rediss://`) is not supported yet; use `redis://`")),
        _ => Err(url_error(
            "the URL does not start with `redis://`, `redis+unix://` or `memory:`; for a server, \
             write `redis://host:port`",
        )),
    }
}

fn url_error(problem: &str) -> LockError {
    LockError::Config { option: "url", problem: problem.to_owned() }
}

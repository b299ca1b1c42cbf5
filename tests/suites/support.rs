//! What several suites use.

use std::time::Duration;

use lock_runtime::LockClient;
use lock_tests::{Helper, RedisServer};

/// The lease of most tests: all other durations derive from it. Long enough that a busy machine
/// renews in time, short enough that waiting for its end is no burden.
pub(crate) const LEASE: Duration = Duration::from_secs(1);

/// A client with the tests' lease.
pub(crate) async fn client(url: &str) -> LockClient {
    let builder = LockClient::builder().url(url).watchdog(LEASE).wait(LEASE * 20);
    builder.connect().await.expect("the server is up")
}

/// A process of its own.
pub(crate) fn helper(args: &[&str]) -> Helper {
    Helper::start(env!("CARGO_BIN_EXE_lock-helper"), args)
}

pub(crate) fn milliseconds(duration: Duration) -> String {
    duration.as_millis().to_string()
}

/// A store, and the clients of two services that share it.
pub(crate) struct Pair {
    pub(crate) one: LockClient,
    pub(crate) two: LockClient,
    /// Kept until the end of the test.
    pub(crate) _server: Option<RedisServer>,
}

impl Pair {
    pub(crate) async fn redis() -> Self {
        let server = RedisServer::start();
        let (one, two) = (client(&server.url()).await, client(&server.url()).await);
        Self { one, two, _server: Some(server) }
    }

    pub(crate) async fn memory(name: &str) -> Self {
        let url = format!("memory:{name}");
        Self { one: client(&url).await, two: client(&url).await, _server: None }
    }
}

/// Makes one test of each store from `async fn name(pair: Pair)`.
macro_rules! on_every_store {
    ($($(#[$attribute:meta])* async fn $name:ident($pair:ident: Pair) $body:block)*) => {
        $(
            mod $name {
                #[allow(unused_imports)]
                use super::*;

                $(#[$attribute])*
                async fn check($pair: crate::support::Pair) $body

                #[tokio::test]
                async fn on_redis() {
                    check(crate::support::Pair::redis().await).await;
                }

                #[tokio::test]
                async fn on_memory() {
                    let name = concat!(module_path!(), "::", stringify!($name));
                    check(crate::support::Pair::memory(name).await).await;
                }
            }
        )*
    };
}
pub(crate) use on_every_store;

/// Waits until `what` is true, for `limit` at the most. Returns how long it took.
pub(crate) async fn until(limit: Duration, mut what: impl FnMut() -> bool) -> Option<Duration> {
    let start = tokio::time::Instant::now();
    loop {
        if what() {
            return Some(start.elapsed());
        }
        if start.elapsed() > limit {
            return None;
        }
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

//! Helpers shared by these tests.

use std::time::Duration;

use lock_tests::Helper;
pub(crate) use lock_tests::support::{Pair, client, milliseconds, quiet_client, until};

/// The lease of most tests, from which all other durations derive. Longer than that of the tests on one Redis server, because
/// one member of a quorum has a tenth of it for an answer, and the leases of etcd are whole seconds.
pub(crate) const LEASE: Duration = Duration::from_secs(2);

/// Starts a `lock-helper` process.
pub(crate) fn helper(args: &[&str]) -> Helper {
    Helper::start(env!("CARGO_BIN_EXE_lock-helper"), args)
}

/// Generates one test from each `async fn name(pair: Pair)`, for the store that is tested.
macro_rules! on_every_store {
    ($($(#[$attribute:meta])* async fn $name:ident($pair:ident: Pair) $body:block)*) => {
        $(
            mod $name {
                #[allow(unused_imports)]
                use super::*;

                $(#[$attribute])*
                async fn check($pair: crate::support::Pair) $body

                #[tokio::test]
                async fn on_this_store() {
                    let store = lock_tests::TestedStore::start_shared().await;
                    check(store.pair(crate::support::LEASE).await).await;
                }
            }
        )*
    };
}
pub(crate) use on_every_store;

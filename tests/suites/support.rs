//! Helpers shared by the suites.

use lock_tests::Helper;
pub(crate) use lock_tests::support::{
    LEASE, Pair, client, count_under_contention, milliseconds, quiet_client, until,
};

/// Starts a `lock-helper` process.
pub(crate) fn helper(args: &[&str]) -> Helper {
    Helper::start(env!("CARGO_BIN_EXE_lock-helper"), args)
}

/// Generates one test per store from `async fn name(pair: Pair)`.
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

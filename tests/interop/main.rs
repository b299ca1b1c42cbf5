//! The interop suite: our client and lock clients of other languages share locks on one real server.
//!
//! `scripts/interop` builds the others and runs it. Each row is what `docs/interop.md` promises of all of
//! them, and is one test for each.

mod clients;
mod counting;
mod exclusion;
mod loss;
mod peer;
mod renewal;
mod scene;
mod takeover;
mod wake_ups;

/// Makes one test of each client from `async fn name(scene: Scene)`.
macro_rules! with_every_client {
    ($($(#[$attribute:meta])* async fn $name:ident($scene:ident: Scene) $body:block)*) => {
        $(
            mod $name {
                #[allow(unused_imports)]
                use super::*;

                $(#[$attribute])*
                async fn check($scene: crate::scene::Scene) $body

                crate::with_every_client! { @tests
                    with_redisson REDISSON, with_redis_py REDIS_PY, with_redlock REDLOCK,
                    with_semaphore SEMAPHORE, with_redsync REDSYNC, with_bsm BSM, with_rslock RSLOCK
                }
            }
        )*
    };
    (@tests $($name:ident $client:ident),*) => {
        $(
            #[tokio::test]
            async fn $name() {
                check(crate::scene::Scene::with(&crate::clients::$client).await).await;
            }
        )*
    };
}
use with_every_client;

//! Faults of a simulated network, on a simulated clock.

mod cancellation;
mod connections;
mod random;
mod renewals;
mod requests;

use std::time::Duration;

use lock_runtime::{Identity, LockClient, LockClientBuilder};
use lock_tests::simulation::Simulation;
use tokio::time::{Instant, sleep};

/// A client with this name.
fn builder(simulation: &Simulation, client: &str, lease: Duration) -> LockClientBuilder {
    // Without a presence, whose commands would be counted.
    LockClient::builder().url(simulation.url(client)).lease(lease).identity(Identity::none())
}

/// Waits until a condition holds. Returns whether it holds before `limit` has passed.
async fn holds_within(limit: Duration, condition: impl Fn() -> bool) -> bool {
    let end = Instant::now() + limit;
    while !condition() {
        if Instant::now() > end {
            return false;
        }
        sleep(Duration::from_millis(1)).await;
    }
    true
}

/// Waits until a client has nothing to do.
async fn idle(client: &LockClient, limit: Duration) {
    let is_idle = holds_within(limit, || client.stats().is_idle()).await;
    assert!(is_idle, "left after {limit:?}: {:?}", client.stats());
}

/// The locks that the server has.
fn locks(simulation: &Simulation) -> Vec<String> {
    simulation.keys().into_iter().filter(|key| !key.starts_with("lock_")).collect()
}

//! Connections that are forgotten while they are idle.

use std::time::Duration;

use lock_tests::simulation::Simulation;
use tokio::time::sleep;

use super::builder;

const LEASE: Duration = Duration::from_secs(3);

#[test]
fn a_single_attempt_survives_connections_that_were_forgotten_while_they_were_idle() {
    Simulation::run(0, async |simulation| {
        let client = builder(simulation, "one", LEASE).connect().await.expect("up");
        let work = client.periodic("job", LEASE / 2).wait(Duration::ZERO);
        let mut connections = simulation.connections();
        for is_reset in [false, true].repeat(5) {
            let guard = client.lock("k").try_acquire().await.expect("over another one");
            guard.expect("free").release().await.expect("held");
            sleep(LEASE / 2).await;
            simulation.forget_connections("one", is_reset);
            let guards = client.lock_all(["a", "b"]).try_acquire().await.expect("over another one");
            guards.expect("free").release().await.expect("held");
            sleep(LEASE / 2).await;
            simulation.forget_connections("one", is_reset);
            work.run(async {}).await.expect("over another one");
            sleep(LEASE / 2).await;
            simulation.forget_connections("one", is_reset);
            let before = std::mem::replace(&mut connections, simulation.connections());
            assert_ne!(connections, before, "connections are replaced");
        }
    });
}

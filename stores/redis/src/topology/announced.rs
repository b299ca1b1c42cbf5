//! The addresses that servers announce, and those at which this client reaches them.
//!
//! The program's function that maps them runs where code of the program may block, and never on the
//! runtime of the renewals. Its latest results are kept, and are used when it does not return.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tokio::runtime;
use tokio::time::timeout;

use lock_core::address_map::AddressMap;
use lock_core::store::contract::StoreError;
use lock_core::sync::{Mutex, lock};

/// How long the function may take before its earlier results are used.
const PATIENCE: Duration = Duration::from_secs(1);

/// The results that are kept, which are more than there are servers.
const MOST_RESULTS: usize = 4_096;

/// The host and the port of a server.
pub(super) type ServerAddress = (String, u16);

/// The addresses at which a client reaches servers, by the announced ones.
type Reached = HashMap<ServerAddress, ServerAddress>;

#[derive(Debug, Default)]
pub(super) struct AnnouncedAddresses {
    map: Option<AddressMap>,
    /// Where the function runs.
    runtime: OnceLock<runtime::Handle>,
    latest: Arc<Mutex<Reached>>,
    /// Held during a call, so that there is one at a time.
    calling: Arc<tokio::sync::Mutex<()>>,
}

impl AnnouncedAddresses {
    pub(super) fn new(map: Option<AddressMap>) -> Self {
        Self { map, ..Self::default() }
    }

    /// Runs the program's function on this runtime.
    pub(super) fn run_on(&self, runtime: &runtime::Handle) {
        // Called once.
        let _ = self.runtime.set(runtime.clone());
    }

    /// Replaces announced addresses by those at which this client reaches the servers.
    ///
    /// Cancel safe: if the future is dropped, the addresses may have been replaced or not.
    pub(super) async fn map<'a>(
        &self,
        addresses: impl IntoIterator<Item = (&'a mut String, &'a mut u16)>,
    ) -> Result<(), StoreError> {
        let Some(map) = &self.map else { return Ok(()) };
        let mut addresses: Vec<_> = addresses.into_iter().collect();
        let announced: HashSet<ServerAddress> =
            addresses.iter().map(|(host, port)| ((*host).clone(), **port)).collect();
        self.call(map.clone(), announced).await;
        let latest = lock(&self.latest);
        for (host, port) in &mut addresses {
            let announced = ((*host).clone(), **port);
            let Some(reached) = latest.get(&announced) else { return Err(no_result()) };
            (**host, **port) = reached.clone();
        }
        Ok(())
    }

    /// The same for one address. An earlier result is used if there is one.
    pub(super) async fn map_one(
        &self,
        announced: ServerAddress,
    ) -> Result<ServerAddress, StoreError> {
        if let Some(reached) = lock(&self.latest).get(&announced) {
            return Ok(reached.clone());
        }
        let (mut host, mut port) = announced;
        self.map([(&mut host, &mut port)]).await?;
        Ok((host, port))
    }

    /// Calls the program's function for these addresses, and keeps its results.
    async fn call(&self, map: AddressMap, announced: HashSet<ServerAddress>) {
        let Some(runtime) = self.runtime.get() else { return };
        let (latest, calling) = (Arc::clone(&self.latest), Arc::clone(&self.calling));
        let call = async {
            let turn = calling.lock_owned().await;
            let calls = runtime.spawn(async move {
                let _turn = turn;
                for (host, port) in announced {
                    let reached = map.map(&host, port);
                    let mut latest = lock(&latest);
                    if latest.len() >= MOST_RESULTS {
                        latest.clear();
                    }
                    latest.insert((host, port), reached);
                }
            });
            let _ = calls.await;
        };
        // Results that come later are kept as well.
        let _ = timeout(PATIENCE, call).await;
    }
}

fn no_result() -> StoreError {
    StoreError::Refused("the function given to `address_map` does not return".into())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    #[tokio::test(flavor = "multi_thread", worker_threads = 1)]
    async fn earlier_results_are_used_when_the_function_does_not_return() {
        let blocked = Arc::new(AtomicBool::new(false));
        let map = AddressMap::new({
            let blocked = Arc::clone(&blocked);
            move |host, port| {
                while blocked.load(Ordering::Relaxed) {
                    std::thread::sleep(Duration::from_millis(1));
                }
                (format!("near-{host}"), port + 1)
            }
        });
        let addresses = AnnouncedAddresses::new(Some(map));
        let foreign = runtime::Builder::new_multi_thread().worker_threads(1).build();
        let foreign = foreign.expect("a runtime");
        addresses.run_on(foreign.handle());

        let (mut host, mut port) = ("one".to_owned(), 1);
        addresses.map([(&mut host, &mut port)]).await.expect("it returns");
        assert_eq!((&*host, port), ("near-one", 2));

        blocked.store(true, Ordering::Relaxed);
        let one = addresses.map_one(("one".into(), 1)).await;
        assert_eq!(one.as_ref(), Ok(&("near-one".to_owned(), 2)));
        let (mut host, mut port) = ("one".to_owned(), 1);
        addresses.map([(&mut host, &mut port)]).await.expect("there is an earlier result");
        assert_eq!((&*host, port), ("near-one", 2));
        let two = addresses.map_one(("two".into(), 1)).await;
        assert_eq!(two, Err(no_result()));

        blocked.store(false, Ordering::Relaxed);
        let two = addresses.map_one(("two".into(), 1)).await.expect("it returns");
        assert_eq!(two, ("near-two".to_owned(), 2));
        foreign.shutdown_background();
    }

    #[tokio::test]
    async fn without_a_function_the_announced_addresses_are_used() {
        let one = AnnouncedAddresses::default().map_one(("one".into(), 1)).await;
        assert_eq!(one, Ok(("one".to_owned(), 1)));
    }
}

//! The same faults for a lock of each kind. A test names all kinds that do not withstand its fault.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use lock_runtime::{LockClient, LockError};
use lock_tests::{Helper, Proxy, RedisServer, TestedKind, within};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};

use crate::support::{LEASE, client, client_with_lease, milliseconds, until};

/// A body that is polled all the time and never ends by itself, under a lock of a kind.
struct RunningBody {
    kind: TestedKind,
    has_ended: Arc<AtomicBool>,
    last_poll: Arc<Mutex<Instant>>,
    call: JoinHandle<Result<(), LockError>>,
}

/// Set when it is dropped.
struct DropFlag(Arc<AtomicBool>);

impl Drop for DropFlag {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

impl RunningBody {
    /// A body that runs.
    async fn start(kind: TestedKind, client: &LockClient) -> Self {
        let (begins, has_begun) = tokio::sync::oneshot::channel();
        let has_ended = Arc::new(AtomicBool::new(false));
        let flag = DropFlag(Arc::clone(&has_ended));
        let last_poll = Arc::new(Mutex::new(Instant::now()));
        let polled = Arc::clone(&last_poll);
        let body = async move {
            let _flag = flag;
            let _ = begins.send(());
            loop {
                *polled.lock().expect("no panic") = Instant::now();
                sleep(LEASE / 50).await;
            }
        };
        let call = tokio::spawn(kind.run(client.clone(), kind.name(), body));
        within(LEASE * 20, has_begun).await.expect("free").expect("its body runs");
        Self { kind, has_ended, last_poll, call }
    }

    async fn start_all(client: &LockClient) -> Vec<Self> {
        let mut bodies = Vec::new();
        for kind in TestedKind::ALL {
            bodies.push(Self::start(kind, client).await);
        }
        bodies
    }

    fn has_ended(&self) -> bool {
        self.has_ended.load(Ordering::SeqCst)
    }
}

impl Drop for RunningBody {
    fn drop(&mut self) {
        self.call.abort();
    }
}

/// The names of those that did not withstand a fault.
async fn failing(checks: Vec<impl Future<Output = (TestedKind, bool)>>) -> String {
    let results = futures_util::future::join_all(checks).await;
    let failing = results.into_iter().filter(|(_, withstands)| !withstands);
    failing.map(|(kind, _)| kind.name()).collect::<Vec<_>>().join(" ")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_holder_of_any_kind_that_cannot_reach_the_server_ends_before_the_next_one() {
    let server = RedisServer::start();
    let proxy = Proxy::to(server.port());
    let (cut, other) =
        (client(&proxy.url()).await, client_with_lease(&server.url(), LEASE * 60).await);
    let bodies = RunningBody::start_all(&cut).await;
    proxy.partition();
    let heals = Arc::new(tokio::sync::Barrier::new(TestedKind::ALL.len()));
    let check = async |body: &RunningBody| {
        let next = body.kind.exclusive().run(other.clone(), body.kind.name(), async {
            let granted = Instant::now();
            if heals.wait().await.is_leader() {
                proxy.heal();
            }
            // Nothing that arrives late takes the lock from this holder.
            sleep(LEASE).await;
            body.has_ended() && *body.last_poll.lock().expect("no panic") < granted
        });
        let next = within(LEASE * 30, next).await.expect("after the lease");
        (body.kind, next.expect("still held"))
    };
    let failing = failing(bodies.iter().map(check).collect()).await;
    assert_eq!(failing, "", "these bodies outlived their locks: {failing}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_holder_of_any_kind_that_was_suspended_past_its_lease_does_not_continue() {
    let server = RedisServer::start();
    let other = client_with_lease(&server.url(), LEASE * 60).await;
    let check = async |kind: TestedKind| {
        let args = ["under", &server.url(), &kind.name(), &milliseconds(LEASE)];
        let mut process = Helper::start(env!("CARGO_BIN_EXE_lock-helper"), &args);
        assert_eq!(process.line(), "held");
        process.freeze();
        let next = kind.exclusive().run(other.clone(), kind.name(), async {
            process.thaw();
            process.tell("end");
            let line = tokio::task::spawn_blocking(move || (process.line(), process));
            let (line, _process) = line.await.expect("no panic");
            // Neither a renewal nor a release that arrives late takes the lock from this holder.
            sleep(LEASE).await;
            line == "dropped"
        });
        let next = within(LEASE * 30, next).await.expect("after the lease");
        (kind, next.expect("still held"))
    };
    let failing = failing(TestedKind::ALL.into_iter().map(check).collect()).await;
    assert_eq!(failing, "", "these bodies continued: {failing}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_holder_of_any_kind_ends_if_the_server_has_lost_its_data() {
    let server = RedisServer::start();
    let client = client(&server.url()).await;
    let bodies = RunningBody::start_all(&client).await;
    server.tell(&["FLUSHALL"]);
    let check = async |body: &RunningBody| {
        let mut is_back = false;
        let has_ended = until(LEASE * 2, || {
            // A candidate is elected again.
            is_back |= body.kind != TestedKind::Leader && server.exists(&body.kind.name());
            body.has_ended()
        });
        let has_ended = has_ended.await.is_some();
        (body.kind, has_ended && !is_back)
    };
    let failing = failing(bodies.iter().map(check).collect()).await;
    assert_eq!(failing, "", "these locks were not lost: {failing}");
}

//! Models of the engine's races, run by a scheduler that tries thousands of orders of their steps.
//!
//! The models run the engine itself: acquisitions, local queues, leases, the background thread,
//! renewals, releases and shutdown. Only its foundations are replaced (`sync/model.rs`). Each
//! operation on a mutex, an atomic, a [`Notify`] or a channel is a point at which the scheduler may
//! switch to another task. The background thread is one of these tasks. Time is simulated: a model
//! advances the clock by itself, or lets [`time::run`] advance it to the end of each sleep in turn.
//! The store is the memory store at the far end of a [`Network`]. The network delays requests and
//! answers, keeps the order of each lane, and delivers a request even if its caller has stopped
//! waiting.
//!
//! Each model plays one race, and asserts what must hold in every order. Above all, a valid lease
//! has its key in the store, and nothing is left at the end. Each model runs under a random
//! scheduler and under PCT (Burckhardt et al., ASPLOS 2010), which finds bugs that need a few
//! well-placed preemptions. A control is the same race without one of the safeguards. The scheduler
//! must find an order in which it fails.
//!
//! ```text
//! RUSTFLAGS='--cfg lock_shuttle' cargo test --target-dir target/shuttle -p lock-runtime \
//!     --lib models
//! ```
//!
//! A failure prints its schedule: two or more lines of digits. To run this order again, for example
//! in a debugger, set `LOCK_SCHEDULE` to the schedule, and run only the test that failed. A failure
//! that prints a seed comes from the random scheduler. `SHUTTLE_RANDOM_SEED` makes the scheduler
//! begin with this seed.

mod driven;
mod drop_against_grant;
mod handoff;
mod loss_against_release;
mod network;
mod queue;
mod release_against_renewal;
mod renewal_against_expiry;
mod shutdown_against_grant;
mod waiters;

use std::pin::Pin;
use std::sync::{Arc, Mutex as StdMutex};
use std::time::Duration;

use shuttle::future::{spawn, yield_now};
use shuttle::rand::{Rng, thread_rng};
use shuttle::scheduler::{
    PctScheduler, RandomScheduler, ReplayScheduler, Scheduler,
    UncontrolledNondeterminismCheckScheduler,
};
use shuttle::{Config as RunnerConfig, MaxSteps, Runner};

use self::network::{NO_TIMEOUT, Network, lock, ready};
use super::fairness::limit::HandoffLimit;
use super::handoff::{Handoff, Hold, LocalQueues, Offer, Waiter};
use super::lease::Terms;
use super::local_queue::Entered;
use super::testing::{
    Request, TestEngine, UNREAD, acquire, claim, locked_in, new_owner, owner, release,
};
use super::{Config, Engine};
use crate::clock::BootInstant;
use crate::error::{LockError, LostReason};
use crate::maybe_ready::MaybeReady;
use crate::replicas::RequiredReplicas;
use crate::store::contract::{
    Acquired, Claim, Fenced, Grant, Lane, LockStore, Mode, Renewal, Renewed, Resource, SendTrace,
};
use crate::store::faulty::OneStore;
use crate::store::memory::MemoryStore;
use crate::store::owner::OwnerId;
use crate::sync::{Mutex, Notify, model, time};
use crate::timeout::Wait;

/// The number of orders of each model under the random scheduler, and under PCT, unless the environment variable
/// `LOCK_ORDERS` sets another number.
const ORDERS: usize = 2_500;
/// How many times as many orders a control may need until one fails.
const CONTROL_FACTOR: usize = 200;
/// The number of orders that run twice, to check that the schedule alone determines the outcome.
const REPEATED_ORDERS: usize = 100;
/// The depth of the bugs that PCT searches for: the number of preemptions plus one.
const PCT_DEPTH: usize = 3;
/// More steps than any model needs. A model with more steps contains an endless loop.
const STEP_LIMIT: usize = 50_000;

/// The number of threads of a client: the background thread and the notifier thread.
const THREADS: usize = 2;

/// The term of most leases.
const TERM: Duration = Duration::from_secs(30);
/// The term of leases that end within the model.
const SHORT_TERM: Duration = Duration::from_millis(200);

fn orders() -> usize {
    std::env::var("LOCK_ORDERS").map_or(ORDERS, |text| text.parse().expect("a number"))
}

/// Tries many orders of a model's steps.
fn explore<F: Future<Output = ()> + 'static>(model: fn() -> F) {
    explore_orders(orders(), orders(), model);
}

/// The same with `factor` times as many orders under PCT, for models in which one task must be
/// delayed at one point for long.
fn explore_deeper<F: Future<Output = ()> + 'static>(factor: usize, model: fn() -> F) {
    explore_orders(orders(), orders() * factor, model);
}

/// The same with the number of orders divided by `divisor`, for models with many steps.
fn explore_less<F: Future<Output = ()> + 'static>(divisor: usize, model: fn() -> F) {
    explore_orders(orders() / divisor, orders() / divisor, model);
}

/// Runs a control until an order fails. The limit is far higher than any control has needed.
fn find_failure<F: Future<Output = ()> + 'static>(model: fn() -> F) {
    for _ in 0..CONTROL_FACTOR {
        explore(model);
    }
}

fn explore_orders<F: Future<Output = ()> + 'static>(random: usize, pct: usize, model: fn() -> F) {
    if let Ok(schedule) = std::env::var("LOCK_SCHEDULE") {
        let mut scheduler = ReplayScheduler::new_from_encoded(&schedule);
        // The schedule ends at the failure.
        scheduler.set_allow_incomplete();
        return run(scheduler, model);
    }
    run(RandomScheduler::new(random), model);
    run(PctScheduler::new(PCT_DEPTH, pct), model);
    // Everything that the scheduler does not determine must be the same in each run. Otherwise, a
    // failure cannot be replayed.
    let check =
        UncontrolledNondeterminismCheckScheduler::new(RandomScheduler::new(REPEATED_ORDERS));
    run(check, model);
}

fn run<F: Future<Output = ()> + 'static>(scheduler: impl Scheduler + 'static, model: fn() -> F) {
    // Acquisitions require a runtime, although nothing runs on it.
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("no I/O");
    let _entered = runtime.enter();
    let mut config = RunnerConfig::new();
    config.stack_size = 0x4_0000;
    config.max_steps = MaxSteps::FailAfter(STEP_LIMIT);
    // The scheduler treats every memory ordering as sequentially consistent, and warns of it.
    config.silence_warnings = true;
    Runner::new(scheduler, config).run(move || {
        model::start();
        // The jitter must be the same in each run.
        fastrand::seed(1);
        shuttle::future::block_on(model());
    });
}

/// A process, and its network.
#[derive(Clone)]
struct Process {
    engine: TestEngine,
    network: Arc<Network>,
}

impl Process {
    fn start() -> Self {
        Self::with(Network::new(), HandoffLimit::default())
    }

    fn with(network: Arc<Network>, handoff_limit: HandoffLimit) -> Self {
        let (response_timeout, wait, quarantine) = (TERM / 10, Wait::Forever, None);
        let config =
            Config { response_timeout, wait, handoff_limit, quarantine, unavailable_after: None };
        let store = network.connect();
        let backend = OneStore(Arc::clone(&store) as _);
        let engine = Engine::start(config, &backend, Arc::default());
        let engine = TestEngine::new(engine, store);
        Self { engine, network }
    }

    /// Acquires the free key.
    async fn hold(&self, request: Request) -> Hold {
        acquire(&self.engine, request).await.expect("the key is free")
    }

    /// Waits until at most `open` locks are held or being released, no request is in flight, and at
    /// most `open` tasks run besides the threads of the processes.
    async fn wait_until_settled(&self, open: usize) {
        let threads = THREADS * self.network.processes();
        let is_settled = || model::running() <= threads + open && !self.network.is_busy();
        while self.engine.open() > open || !is_settled() {
            yield_now().await;
        }
    }

    /// Waits until nothing is in progress, and asserts that nothing is left.
    async fn assert_nothing_left(&self) {
        let clock = spawn(time::run());
        self.wait_until_settled(0).await;
        clock.abort();
        let engine = &self.engine;
        assert_eq!(
            (engine.queues().keys(), engine.background().held_count()),
            (0, 0),
            "no lock is held"
        );
        assert_eq!(engine.background().releasing(), 0, "no lock is being released");
        self.network.assert_free();
    }
}

/// A request for the key `k` with a renewed lease. It waits without a limit.
fn request() -> Request {
    let terms = Terms {
        term: TERM,
        renewed: true,
        max_hold: None,
        min_hold: Duration::ZERO,
        acknowledged_by: RequiredReplicas::NONE,
        linger: Duration::ZERO,
        site: &UNREAD,
    };
    Request { key: Arc::from("k"), mode: Mode::Exclusive, wait: Wait::Forever, terms }
}

/// The same with a fixed lease.
fn fixed() -> Request {
    let request = request();
    Request { terms: Terms { renewed: false, ..request.terms }, ..request }
}

/// The request with a lease that ends within the model.
fn short(request: Request) -> Request {
    Request { terms: Terms { term: SHORT_TERM, ..request.terms }, ..request }
}

/// Lets the other tasks take some steps.
async fn pause() {
    yield_randomly(24).await;
}

/// Yields to the other tasks a random number of times, fewer than `limit`.
async fn yield_randomly(limit: usize) {
    for _ in 0..thread_rng().gen_range(0..limit) {
        yield_now().await;
    }
}

/// An acquisition of the key `k`; `None` if it fails.
type Acquire = fn(TestEngine) -> MaybeReady<'static, Option<Hold>>;

/// The acquisition of the engine.
fn regular_acquire(engine: TestEngine) -> MaybeReady<'static, Option<Hold>> {
    MaybeReady::pending(async move { acquire(&engine, request()).await.ok() })
}

/// An acquisition for controls. It has no undo, and checks for a shutdown before the background
/// thread has the lease, not afterwards.
async fn acquire_without_safeguards(engine: TestEngine) -> Option<Hold> {
    let Request { key, terms, .. } = request();
    let Entered::Permit(permit) = engine.queues().enter(&key, false) else { return None };
    let mut locked = locked_in("k", Arc::clone(engine.store()));
    locked.owner = new_owner();
    let sent = BootInstant::now();
    let claim = claim(locked.owner, TERM);
    let answer = engine.store().try_acquire(claim, NO_TIMEOUT, &SendTrace::default()).await;
    let Ok(Acquired::Granted(grant)) = answer else { return None };
    let hold = Hold::new(locked, &terms, (grant, (sent, sent)), Some(permit), false);
    if engine.admit(&key).is_err() {
        engine.release_in_background(&hold, true);
        return None;
    }
    engine.background().watch(hold.lease());
    Some(hold)
}

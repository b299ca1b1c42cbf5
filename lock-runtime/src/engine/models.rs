//! The engine's races, under a scheduler that tries thousands of orders of its steps.
//!
//! What runs is the engine itself: contenders, gate, leases, keeper loop, renewals, releases and
//! shutdown. Replaced are what it stands on (`sync/model.rs`): every operation on a mutex, an
//! atomic, a [`Notify`] or a channel is a point at which the scheduler may let another task go on;
//! the keeper thread is one of these tasks; and time stands still unless a model moves it, or has it
//! jump from one sleeper's end to the next. The store is the memory store at the far end of a [`Net`], which
//! makes requests and answers take a while, keeps the order of a lane, and serves what nobody awaits
//! any more.
//!
//! Each model plays one race and checks what must be so in every order: above all that a lease
//! which is valid has the key in the store, and that in the end nothing is left. Each runs under a
//! random scheduler and under PCT (Burckhardt et al., ASPLOS 2010), which finds bugs that take few
//! but well-placed preemptions. Its control is the same race with one protection left out, which the
//! scheduler must find.
//!
//! ```text
//! RUSTFLAGS='--cfg lock_shuttle' cargo test --target-dir target/shuttle -p lock-runtime --lib models
//! ```
//!
//! A failure prints its schedule: two lines or more of digits. To run that one order again, for
//! instance in a debugger, set `LOCK_SCHEDULE` to them and name the one test. (A failure that names a
//! seed comes from the random scheduler: `SHUTTLE_RANDOM_SEED` has it begin there.)

mod driven;
mod handover;
mod net;

use std::pin::Pin;
use std::sync::Mutex as StdMutex;

use shuttle::future::{spawn, yield_now};
use shuttle::rand::{Rng, thread_rng};
use shuttle::scheduler::{
    PctScheduler, RandomScheduler, ReplayScheduler, Scheduler,
    UncontrolledNondeterminismCheckScheduler,
};
use shuttle::{Config as RunnerConfig, MaxSteps, Runner};

use self::net::{Net, PATIENT, at_once, lock};
use super::contender::{self, Request};
use super::gate::{Entry, Ticket, Turn};
use super::lease::Terms;
use super::*;
use crate::store::{Attempt, Claim, Fenced, MemoryStore, Token, Trace};
use crate::sync::{Mutex, model};

/// How many orders the random scheduler tries of each model.
const RANDOM: usize = 10_000;
/// How many PCT does.
const PCT: usize = 10_000;
/// How many times as many orders a control may need until one fails.
const PATIENCE: usize = 50;
/// How many are run twice, to see that their schedule is all that decides.
const REPLAYED: usize = 100;
/// How many preemptions and one PCT looks for.
const DEPTH: usize = 3;
/// More than any model needs: one that takes more has something in it that never ends.
const STEPS: usize = 50_000;

/// The threads of a client: keeper and notifier.
const THREADS: usize = 2;

const TERM: Duration = Duration::from_secs(30);
/// Of leases that are to end within a model.
const BRIEF: Duration = Duration::from_millis(200);

/// Tries many orders of a model's steps.
fn explore<F: Future<Output = ()> + 'static>(model: fn() -> F) {
    explore_orders(RANDOM, PCT, model);
}

/// With so many times the orders for PCT: where one task must be held up in one place for long.
fn explore_deeper<F: Future<Output = ()> + 'static>(times: usize, model: fn() -> F) {
    explore_orders(RANDOM, PCT * times, model);
}

/// With a part of the orders: where each takes many steps.
fn explore_less<F: Future<Output = ()> + 'static>(part: usize, model: fn() -> F) {
    explore_orders(RANDOM / part, PCT / part, model);
}

/// For a control: goes on until an order fails, far longer than any has needed.
fn find<F: Future<Output = ()> + 'static>(model: fn() -> F) {
    for _ in 0..PATIENCE {
        explore(model);
    }
}

fn explore_orders<F: Future<Output = ()> + 'static>(random: usize, pct: usize, model: fn() -> F) {
    if let Ok(schedule) = std::env::var("LOCK_SCHEDULE") {
        let mut scheduler = ReplayScheduler::new_from_encoded(&schedule);
        // It ends where the failure was.
        scheduler.set_allow_incomplete();
        return run(scheduler, model);
    }
    run(RandomScheduler::new(random), model);
    run(PctScheduler::new(DEPTH, pct), model);
    // What no scheduler decides must be the same each time, or no failure can be run again.
    run(UncontrolledNondeterminismCheckScheduler::new(RandomScheduler::new(REPLAYED)), model);
}

fn run<F: Future<Output = ()> + 'static>(scheduler: impl Scheduler + 'static, model: fn() -> F) {
    // Nothing runs on it; contenders want to be on one.
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("no I/O");
    let _entered = runtime.enter();
    let mut config = RunnerConfig::new();
    config.stack_size = 0x4_0000;
    config.max_steps = MaxSteps::FailAfter(STEPS);
    // Every ordering is the strongest here.
    config.silence_warnings = true;
    Runner::new(scheduler, config).run(move || {
        model::start();
        // Jitter is to be the same in each.
        fastrand::seed(1);
        shuttle::future::block_on(model());
    });
}

/// One process and its store.
#[derive(Clone)]
struct Process {
    engine: Arc<Engine>,
    net: Arc<Net>,
}

impl Process {
    fn start() -> Self {
        Self::with(Net::new(), Limits::default())
    }

    fn with(net: Arc<Net>, turn: Limits) -> Self {
        let config = Config {
            namespace: String::new(),
            format: WireFormat::default(),
            watchdog: TERM,
            max_hold: None,
            wait: Wait::Forever,
            response_timeout: TERM / 10,
            turn,
        };
        let engine = Engine::start(config, net.connect());
        Self { engine, net }
    }

    async fn hold(&self, request: Request) -> Hold {
        acquire(&self.engine, request).await.expect("free")
    }

    /// Waits until nothing is held, nor on its way, and nothing runs but the threads of the processes
    /// and so many more.
    async fn settled(&self, open: usize) {
        let threads = THREADS * self.net.processes();
        let is_settled = || model::running() <= threads + open && !self.net.is_busy();
        while self.engine.open() > open || !is_settled() {
            yield_now().await;
        }
    }

    /// Waits until all is quiet, and looks at what there is then.
    async fn assert_nothing_left(&self) {
        let clock = spawn(time::pass());
        self.settled(0).await;
        clock.abort();
        let engine = &self.engine;
        assert_eq!((engine.gates.keys(), engine.keeper.holding()), (0, 0), "nothing is held");
        assert_eq!(engine.keeper.releasing(), 0, "nothing is being released");
        self.net.assert_free();
    }
}

fn request() -> Request {
    let terms = Terms { term: TERM, renewed: true, max_hold: None, min_hold: Duration::ZERO };
    Request { key: Arc::from("k"), format: WireFormat::default(), wait: Wait::Forever, terms }
}

fn fixed() -> Request {
    let request = request();
    Request { terms: Terms { renewed: false, ..request.terms }, ..request }
}

/// For a lease that is to end within the model.
fn brief(request: Request) -> Request {
    Request { terms: Terms { term: BRIEF, ..request.terms }, ..request }
}

async fn acquire(engine: &Arc<Engine>, request: Request) -> Result<Hold, LockError> {
    let hold = contender::acquire(Arc::clone(engine), request, |_, hold| hold).await;
    hold.map_err(|error| *error)
}

/// Lets the others take a few steps.
async fn a_while() {
    up_to(24).await;
}

async fn up_to(steps: usize) {
    for _ in 0..thread_rng().gen_range(0..steps) {
        yield_now().await;
    }
}

type Acquire = fn(Arc<Engine>) -> Eventually<'static, Option<Hold>>;

fn patient_acquire(engine: Arc<Engine>) -> Eventually<'static, Option<Hold>> {
    Eventually::pending(async move { acquire(&engine, request()).await.ok() })
}

/// Acquires without an undo, and asks whether anybody may just before its lease is known.
async fn careless_acquire(engine: Arc<Engine>) -> Option<Hold> {
    let Request { key, terms, .. } = request();
    let Entry::Open(pass) = engine.gates.enter(&key, false) else { return None };
    let token = Token::random().expect("randomness");
    let claim = Claim { key: &key, token: &token, lease: TERM, fresh: true };
    let sent = BootInstant::now();
    let Ok(Attempt::Granted) = engine.store.try_acquire(claim, PATIENT, &Trace::default()).await
    else {
        return None;
    };
    let lease = Hold::new(Arc::clone(&key), token, &terms, sent, Some(pass), None, false);
    if engine.admit(&key).is_err() {
        engine.release_in_background(&lease);
        return None;
    }
    engine.keeper.watch(lease.lease());
    Some(lease)
}

mod release_against_renewal {
    use super::*;

    /// A renewal is due while its holder releases.
    async fn race(request: Request, renewal: Option<fn(Arc<Engine>, Hold)>) {
        let process = Process::start();
        let lease = process.hold(request).await;
        let clock = spawn(time::pass());
        time::advance(TERM / 3);
        if let Some(renewal) = renewal {
            renewal(Arc::clone(&process.engine), lease.clone());
        }
        for _ in 0..thread_rng().gen_range(0..4) {
            process.net.assert_kept(&lease);
            yield_now().await;
        }
        clock.abort();
        if thread_rng().r#gen() {
            process.engine.release_in_background(&lease);
        } else if let Err(error) = process.engine.release(&lease, true).await {
            assert!(matches!(*error, LockError::Lost { .. }), "{error:?}");
        }
        process.assert_nothing_left().await;
    }

    #[test]
    fn no_renewal_brings_back_what_was_released() {
        explore(|| race(request(), None));
    }

    #[test]
    #[should_panic(expected = "the key is still taken")]
    fn one_that_takes_the_key_anew_does() {
        find(|| {
            race(
                fixed(),
                Some(|engine, lease| {
                    model::spawn_task(async move {
                        let claim = Claim {
                            key: lease.key(),
                            token: lease.token(),
                            lease: TERM,
                            fresh: false,
                        };
                        let _ = engine.store.try_acquire(claim, PATIENT, &Trace::default()).await;
                    });
                }),
            )
        });
    }

    /// A renewal is due while its holder releases, and the key is to stay for a while.
    async fn race_for_a_kept_key(request: Request, renewal: fn(Arc<Engine>, Hold)) {
        let terms = Terms { min_hold: TERM / 2, ..request.terms };
        let process = Process::start();
        let lease = process.hold(Request { terms, ..request }).await;
        time::advance(TERM / 3);
        renewal(Arc::clone(&process.engine), lease.clone());
        a_while().await;
        process.engine.release(&lease, true).await.expect("the store is up");
        process.settled(0).await;
        time::advance(lease.kept_until().since(BootInstant::now()));
        process.assert_nothing_left().await;
    }

    #[test]
    fn a_key_stays_no_longer_than_it_is_to_be_kept() {
        explore(|| race_for_a_kept_key(request(), |_, _| {}));
    }

    /// The store sees to that, however late the renewal is.
    #[test]
    fn nor_if_nobody_looks_after_a_renewal_that_comes_late() {
        explore(|| {
            race_for_a_kept_key(fixed(), |engine, lease| {
                model::spawn_task(async move {
                    let Some(term) =
                        lease.about_to_extend(BootInstant::now(), None, Duration::ZERO)
                    else {
                        return;
                    };
                    let renewal = [Renewal { key: lease.key(), token: lease.token(), lease: term }];
                    engine.store.renew(&renewal, Lane::Keeper).await;
                    lease.extended(BootInstant::now(), None);
                });
            })
        });
    }

    /// A renewal is due while its holder releases, and no release gets through.
    async fn race_without_releases(request: Request, renewal: fn(Arc<Engine>, Hold)) {
        let process = Process::start();
        let lease = process.hold(brief(request)).await;
        process.net.refuse_releases();
        time::advance(BRIEF / 3);
        renewal(Arc::clone(&process.engine), lease.clone());
        a_while().await;
        process.engine.release_in_background(&lease);
        // Time stands still until only the release goes on.
        process.settled(1).await;
        process.assert_nothing_left().await;
    }

    #[test]
    fn a_release_is_tried_for_as_long_as_any_renewal_has_made_the_key_last() {
        explore(|| race_without_releases(request(), |_, _| {}));
    }

    #[test]
    #[should_panic(expected = "the key is still taken")]
    fn not_so_if_renewals_were_announced_only_when_answered() {
        find(|| {
            race_without_releases(fixed(), |engine, lease| {
                model::spawn_task(async move {
                    let sent = BootInstant::now();
                    if !lease.is_valid(sent) {
                        return;
                    }
                    let renewal =
                        [Renewal { key: lease.key(), token: lease.token(), lease: BRIEF }];
                    engine.store.renew(&renewal, Lane::Keeper).await;
                    lease.about_to_extend(sent, None, Duration::ZERO);
                    lease.extended(sent, None);
                });
            })
        });
    }
}

mod drop_against_grant {
    use super::*;

    /// One who acquires is dropped at any point, perhaps beside another who wants the same key.
    async fn race(first: Acquire) {
        let process = Process::start();
        let clock = spawn(time::pass());
        let dropped = spawn(first(Arc::clone(&process.engine)));
        let other = thread_rng().r#gen::<bool>().then(|| {
            let (engine, net) = (Arc::clone(&process.engine), Arc::clone(&process.net));
            spawn(async move {
                let lease = acquire(&engine, request()).await.expect("in the end");
                net.assert_kept(&lease);
                engine.release_in_background(&lease);
            })
        });
        a_while().await;
        dropped.abort();
        if let Ok(Some(lease)) = dropped.await {
            process.net.assert_kept(&lease);
            process.engine.release_in_background(&lease);
        }
        if let Some(other) = other {
            other.await.expect("not aborted");
        }
        clock.abort();
        process.assert_nothing_left().await;
    }

    #[test]
    fn an_acquire_that_is_dropped_leaves_nothing() {
        explore(|| race(patient_acquire));
    }

    #[test]
    #[should_panic(expected = "the key is still taken")]
    fn one_without_an_undo_leaves_its_key() {
        find(|| race(|engine| Eventually::pending(careless_acquire(engine))));
    }
}

mod renewal_against_expiry {
    use super::*;

    /// A key expires while it is renewed, and somebody asks whether it has.
    async fn race() {
        let (store, token) = (MemoryStore::new(), Token::random().expect("randomness"));
        let claim = Claim { key: "k", token: &token, lease: TERM, fresh: true };
        assert_eq!(
            at_once(store.try_acquire(claim, PATIENT, &Trace::default())),
            Ok(Attempt::Granted)
        );
        time::advance(TERM.saturating_sub(Duration::from_nanos(1)));
        let renewal = {
            let (store, token) = (Arc::clone(&store), token.clone());
            spawn(async move {
                let renewal = [Renewal { key: "k", token: &token, lease: TERM }];
                at_once(store.renew(&renewal, Lane::Keeper));
            })
        };
        up_to(3).await;
        time::advance(Duration::from_nanos(1));
        let released = at_once(store.release("k", &token, Duration::ZERO, Lane::Keeper));
        renewal.await.expect("not aborted");
        let left = at_once(store.fence("k", &token));
        assert_eq!(left, Ok(Fenced::Gone), "it was released: {released:?}");
    }

    #[test]
    fn what_was_told_to_be_gone_stays_so() {
        explore(race);
    }
}

mod pass_on {
    use super::*;

    const WAITERS: usize = 5;

    /// What one in the queue does when it has waited long enough.
    type GiveUp = fn(Ticket);

    /// Some wait for their turn, others give up: at a timeout, or dropped where they stand.
    async fn race(give_up: GiveUp) {
        let gates = Arc::new(Gates::default());
        let key: Arc<str> = Arc::from("k");
        let Entry::Open(first) = gates.enter(&key, false) else { panic!("free") };
        let in_hand = Arc::new(StdMutex::new(true));
        let served = Arc::new(StdMutex::new(Vec::new()));
        let clock = spawn(time::pass());
        let (mut stay, mut leave) = (Vec::new(), Vec::new());
        for place in 0..WAITERS {
            let Entry::Queued(mut ticket) = gates.enter(&key, false) else { panic!("taken") };
            let end = time::Instant::now() + TERM.mul_f64(thread_rng().r#gen());
            let (in_hand, served) = (Arc::clone(&in_hand), Arc::clone(&served));
            // The last one stays, so that somebody waits for a pass that is lost.
            let stays = place + 1 == WAITERS || thread_rng().r#gen();
            let waiter = spawn(async move {
                let turn = if stays {
                    ticket.await
                } else {
                    match time::timeout_at(end, &mut ticket).await {
                        Ok(turn) => turn,
                        Err(_) => {
                            shuttle::thread::yield_now();
                            return give_up(ticket);
                        }
                    }
                };
                let pass = turn.expect("not closed");
                assert!(!std::mem::replace(&mut *lock(&in_hand), true), "in two hands");
                lock(&served).push(place);
                // Nothing here is dropped half-way, so that the book is right.
                shuttle::thread::yield_now();
                *lock(&in_hand) = false;
                drop(pass);
            });
            if stays { &mut stay } else { &mut leave }.push(waiter);
        }
        let release = spawn(async move {
            a_while().await;
            *lock(&in_hand) = false;
            drop(first);
        });
        for waiter in &leave {
            a_while().await;
            if thread_rng().r#gen() {
                waiter.abort();
            }
        }
        for task in stay.into_iter().chain([release]) {
            task.await.expect("not aborted");
        }
        for task in leave {
            drop(task.await);
        }
        clock.abort();
        assert!(lock(&served).is_sorted(), "out of turn: {:?}", lock(&served));
        assert_eq!((gates.keys(), gates.queued()), (0, 0), "nobody has the pass");
    }

    /// Some of those who wait are not polled for a while, or never again, and the notifier looks at
    /// the offers all the time.
    async fn race_with_the_looks(look: fn(&Gates)) {
        let gates = Arc::new(Gates::default());
        let key: Arc<str> = Arc::from("k");
        let Entry::Open(first) = gates.enter(&key, false) else { panic!("free") };
        let in_hand = Arc::new(StdMutex::new(true));
        let (mut polled, mut forgotten) = (Vec::new(), Vec::new());
        for place in 0..WAITERS {
            let Entry::Queued(mut ticket) = gates.enter(&key, false) else { panic!("taken") };
            if thread_rng().r#gen() && place + 1 < WAITERS {
                assert!(poll_once(&mut ticket).is_none());
                forgotten.push(ticket);
                continue;
            }
            let in_hand = Arc::clone(&in_hand);
            polled.push(spawn(async move {
                let pass = loop {
                    // A branch of a loop that is not polled for a while.
                    up_to(3).await;
                    if let Some(pass) = poll_once(&mut ticket) {
                        break pass;
                    }
                };
                assert!(!std::mem::replace(&mut *lock(&in_hand), true), "in two hands");
                shuttle::thread::yield_now();
                *lock(&in_hand) = false;
                drop(pass);
            }));
        }
        let looks = {
            let gates = Arc::clone(&gates);
            spawn(async move {
                loop {
                    up_to(3).await;
                    look(&gates);
                }
            })
        };
        a_while().await;
        *lock(&in_hand) = false;
        drop(first);
        for waiter in polled {
            waiter.await.expect("whoever is polled is served");
        }
        looks.abort();
        // Those come last, in their order.
        for mut ticket in forgotten {
            drop(poll_once(&mut ticket).expect("nobody else has it"));
        }
        assert_eq!((gates.keys(), gates.queued()), (0, 0), "nobody has the pass");
    }

    fn poll_once(ticket: &mut Ticket) -> Option<Turn> {
        let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
        match Pin::new(ticket).poll(&mut cx) {
            std::task::Poll::Ready(turn) => Some(turn.expect("not closed")),
            std::task::Poll::Pending => None,
        }
    }

    #[test]
    fn whoever_is_polled_is_served_whoever_else_is_not() {
        explore(|| race_with_the_looks(|gates| gates.look().carry_out()));
    }

    #[test]
    #[should_panic(expected = "exceeded max_steps")]
    fn nobody_is_served_behind_one_who_is_not_polled_if_nobody_looks() {
        find(|| race_with_the_looks(|_| {}));
    }

    #[test]
    fn the_pass_is_never_lost_nor_in_two_hands_whoever_gives_up() {
        explore(|| race(drop));
    }

    #[test]
    #[should_panic(expected = "deadlock")]
    fn it_is_lost_with_one_who_gives_up_and_keeps_what_was_on_its_way() {
        find(|| {
            race(|mut ticket| {
                let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
                let turn = std::pin::pin!(&mut ticket).poll(&mut cx);
                std::mem::forget(turn);
            })
        });
    }
}

mod loss_against_release {
    use super::*;

    type Ending = fn(Arc<Engine>, Hold) -> Eventually<'static, Result<(), Box<LockError>>>;

    /// Two share a hold and leave it while it is lost.
    async fn race(end: Ending) {
        let process = Process::start();
        let (engine, net) = (Arc::clone(&process.engine), Arc::clone(&process.net));
        let lease = process.hold(fixed()).await;
        let reasons = [LostReason::RenewalFailed, LostReason::ShutDown];
        let reason = reasons[thread_rng().gen_range(0..2)];
        let told = {
            let lease = lease.clone();
            spawn(async move { lease.lost().await })
        };
        let loser = {
            let (engine, lease) = (Arc::clone(&engine), lease.clone());
            spawn(async move { engine.keeper.lose(lease.lease(), reason) })
        };
        let sharer = {
            let (engine, lease) = (Arc::clone(&engine), lease.clone());
            spawn(async move {
                if !lease.join() {
                    return Ok(());
                }
                net.assert_kept(&lease);
                end(engine, lease).await
            })
        };
        let first = end(Arc::clone(&engine), lease.clone()).await;
        let (second, ()) = (sharer.await.expect("not aborted"), loser.await.expect("not aborted"));
        let lost = lease.was_lost().is_some();
        assert_eq!(
            first.is_err() || second.is_err(),
            lost,
            "told of a loss: {first:?}, {second:?}"
        );
        if lost {
            assert_eq!(told.await.expect("not aborted"), reason);
        } else {
            a_while().await;
            assert!(!told.is_finished(), "told of both");
            told.abort();
        }
        // While time stands still: the lease may not run out meanwhile.
        process.settled(0).await;
        assert_eq!(process.net.freed(), 1);
        process.assert_nothing_left().await;
    }

    #[test]
    fn exactly_one_of_them_ends_the_hold_and_everybody_is_told_which() {
        explore(|| {
            race(|engine, lease| {
                Eventually::pending(async move { engine.release(&lease, true).await })
            })
        });
    }

    #[test]
    #[should_panic(expected = "told of a loss")]
    fn not_so_if_the_last_holder_looks_for_a_loss_only_before_it_leaves() {
        find(|| {
            race(|engine, lease| {
                Eventually::pending(async move {
                    let lost = lease.loss();
                    let (_, End::Free(pass)) = engine.end(&lease, true) else {
                        return lost.map_or(Ok(()), |lost| Err(lost.into()));
                    };
                    engine.free(lease.lease(), pass).await.0.expect("the store is up");
                    Ok(())
                })
            })
        });
    }

    /// A loss, as a lease keeps and tells it.
    #[derive(Default)]
    struct Bell {
        rung: Mutex<bool>,
        told: Notify,
    }

    impl Bell {
        async fn heard(&self) {
            loop {
                if *self.rung.lock().expect("not poisoned") {
                    return;
                }
                self.told.notified().await;
            }
        }
    }

    #[test]
    #[should_panic(expected = "deadlock")]
    fn a_loss_is_missed_by_one_who_looks_first_and_then_registers() {
        find(|| async {
            let bell = Arc::new(Bell::default());
            let heard = {
                let bell = Arc::clone(&bell);
                spawn(async move { bell.heard().await })
            };
            *bell.rung.lock().expect("not poisoned") = true;
            bell.told.notify_waiters();
            heard.await.expect("not aborted");
        });
    }
}

mod shutdown_against_grant {
    use super::*;

    /// A grant must be overtaken by all of a shutdown's steps.
    const DEEPER: usize = 4;

    /// A shutdown begins while some acquire who would never end by themselves.
    async fn race(acquire: Acquire, callers: usize) {
        let process = Process::start();
        let callers: Vec<_> = (0..callers)
            .map(|_| {
                let (engine, net) = (Arc::clone(&process.engine), Arc::clone(&process.net));
                spawn(async move {
                    let Some(lease) = acquire(Arc::clone(&engine)).await else { return };
                    net.assert_kept(&lease);
                    lease.lost().await;
                    engine.release_in_background(&lease);
                })
            })
            .collect();
        if thread_rng().r#gen() {
            // The answer is on its way, or there already.
            while !process.net.is_taken() {
                yield_now().await;
            }
        } else {
            a_while().await;
        }
        up_to(6).await;
        let clock = spawn(time::pass());
        process.engine.shut_down(Duration::ZERO).await;
        assert_eq!(process.engine.admit("k"), Err(LockError::ShutDown));
        for caller in callers {
            caller.await.expect("not aborted");
        }
        clock.abort();
        process.assert_nothing_left().await;
    }

    #[test]
    fn a_shutdown_ends_every_hold_also_one_that_is_just_being_granted() {
        explore_deeper(DEEPER, || race(patient_acquire, 1));
    }

    #[test]
    #[should_panic(expected = "exceeded max_steps")]
    fn not_so_if_a_grant_asks_before_its_lease_is_known() {
        find(|| race(|engine| Eventually::pending(careless_acquire(engine)), 1));
    }

    #[test]
    fn a_shutdown_sends_home_those_who_queue() {
        explore(|| race(patient_acquire, 3));
    }
}

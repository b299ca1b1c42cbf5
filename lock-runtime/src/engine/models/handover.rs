//! The races of a lock that goes from hand to hand within a process, and from one process to another.
//!
//! Whoever has a lock goes into a [`Room`], in which nobody else may be as long as the hold is valid.

use shuttle::future::JoinHandle;

use super::*;
use crate::engine::gate::Turn;
use crate::engine::handover::Accepted;
use crate::guard::LockGuard;

/// What one does to whom a lock comes.
async fn accept(inherited: Inherited, request: &Request) -> Accepted {
    match inherited.take(request.format, &request.terms) {
        Ok(hold) => Accepted::Held(hold),
        Err(inherited) => inherited.renew(request.format, &request.terms).await,
    }
}

/// Where one may be only under the lock.
#[derive(Default)]
struct Room {
    inside: StdMutex<Vec<(u64, Hold)>>,
    book: StdMutex<Book>,
}

/// What a room remembers of its visitors.
#[derive(Default)]
struct Book {
    visits: u64,
    /// The lease of the last one.
    lease: Option<Token>,
    /// Visits under that lease while another process waited and nobody asked for it.
    overtime: u32,
    /// Releases that have not returned.
    releases: u32,
}

/// One visit; over when dropped.
struct Visit<'a>(&'a Room, u64);

impl Room {
    fn enter(&self, hold: &Hold) -> Visit<'_> {
        let number = {
            let mut book = lock(&self.book);
            book.visits += 1;
            book.visits
        };
        lock(&self.inside).push((number, hold.clone()));
        // Not looked at with the book locked, because that lets others go on.
        let inside = lock(&self.inside).clone();
        let mut others = inside.iter().filter(|(other, _)| *other != number);
        let now = BootInstant::now();
        // Who is told only inside that its own is lost does nothing there.
        let alone = !others.any(|(_, other)| other.is_valid(now)) || !hold.is_valid(now);
        assert!(alone, "two are inside");
        Visit(self, number)
    }
}

impl Drop for Visit<'_> {
    fn drop(&mut self) {
        lock(&self.0.inside).retain(|(number, _)| *number != self.1);
    }
}

/// A process, and the room that is common to all.
#[derive(Clone)]
struct House {
    process: Process,
    room: Arc<Room>,
}

/// Waits for the lock, and takes it.
type Take = fn(Arc<Engine>, Request) -> Eventually<'static, Option<Hold>>;

fn take(engine: Arc<Engine>, request: Request) -> Eventually<'static, Option<Hold>> {
    Eventually::pending(async move { acquire(&engine, request).await.ok() })
}

impl House {
    fn new() -> Self {
        Self { process: Process::start(), room: Arc::default() }
    }

    fn engine(&self) -> &Arc<Engine> {
        &self.process.engine
    }

    fn guard(&self, hold: Hold) -> LockGuard {
        LockGuard::new(Arc::clone(self.engine()), hold, false)
    }

    /// Stays inside for a while, and sees that nobody else has the key.
    async fn visit(&self, guard: &LockGuard) {
        let _visit = self.room.enter(guard.hold());
        for _ in 0..thread_rng().gen_range(1..4) {
            self.process.net.assert_in_store(guard.hold());
            yield_now().await;
        }
    }

    /// Ends a hold in one of the ways there are.
    async fn leave(&self, guard: LockGuard) {
        match thread_rng().gen_range(0..3) {
            0 => drop(guard),
            1 => drop(guard.release().await),
            // Dropped half-way.
            _ => tokio::select! {
                biased;
                _ = guard.release() => {}
                () = up_to(4) => {}
            },
        }
    }

    /// Whether it had its turn.
    async fn take_turn(self, take: Take, request: Request) -> bool {
        let Some(hold) = take(Arc::clone(self.engine()), request).await else { return false };
        let guard = self.guard(hold);
        self.visit(&guard).await;
        self.leave(guard).await;
        true
    }

    /// Waits until so many queue.
    async fn queued(&self, tasks: usize) {
        while self.engine().gates.queued() < tasks {
            yield_now().await;
        }
    }
}

fn longer(request: Request) -> Request {
    let Request { key, format, wait, terms } = request;
    Request { key, format, wait, terms: Terms { term: terms.term * 2, ..terms } }
}

/// One of those that can be asked for.
fn any_request() -> Request {
    [request, fixed, || longer(fixed()), || longer(request())][thread_rng().gen_range(0..4)]()
}

/// The turn of one who queues; `None` for one who need not.
async fn turn(engine: &Arc<Engine>, key: &Arc<str>) -> Option<Turn> {
    match engine.gates.enter(key, false) {
        Entry::Queued(ticket) => ticket.await,
        _ => None,
    }
}

mod drop_against_receipt {
    use super::*;

    const WAITERS: usize = 3;

    /// Some wait for the lock, and others give up: at a timeout, or dropped where they stand.
    async fn race(take: Take, a_request: fn() -> Request) {
        let house = House::new();
        let first = house.process.hold(a_request()).await;
        house.process.net.answer_no_renewals(thread_rng().gen_range(0..2));
        let clock = spawn(time::pass());
        let (mut stay, mut leave) = (Vec::new(), Vec::new());
        for place in 0..WAITERS {
            // The last one stays, so that somebody waits for a lock that is lost.
            let stays = place + 1 == WAITERS || thread_rng().r#gen();
            let mut request = a_request();
            if !stays {
                request.wait = Wait::For(TERM.mul_f64(thread_rng().r#gen()));
            }
            let waiter = spawn(house.clone().take_turn(take, request));
            if stays { &mut stay } else { &mut leave }.push(waiter);
        }
        let release = {
            let house = house.clone();
            spawn(async move {
                let first = house.guard(first);
                house.visit(&first).await;
                house.leave(first).await;
            })
        };
        for waiter in &leave {
            a_while().await;
            if thread_rng().r#gen() {
                waiter.abort();
            }
        }
        release.await.expect("not aborted");
        for waiter in stay {
            assert!(waiter.await.expect("not aborted"), "who stays is served");
        }
        for waiter in leave {
            drop(waiter.await);
        }
        clock.abort();
        house.process.assert_nothing_left().await;
    }

    #[test]
    fn a_lock_on_its_way_is_never_lost_nor_in_two_hands_whoever_gives_up() {
        explore_less(2, || race(take, any_request));
    }

    /// Gives up, and keeps what was on its way.
    async fn keep_what_comes(engine: Arc<Engine>, request: Request) -> Option<Hold> {
        let Wait::For(wait) = request.wait else { return acquire(&engine, request).await.ok() };
        let end = time::Instant::now() + wait;
        let Entry::Queued(mut ticket) = engine.gates.enter(&request.key, false) else {
            return None;
        };
        let Ok(turn) = time::timeout_at(end, &mut ticket).await else {
            shuttle::thread::yield_now();
            let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
            std::mem::forget(std::pin::pin!(&mut ticket).poll(&mut cx));
            return None;
        };
        let Turn::Held(inherited) = turn? else { return None };
        match accept(inherited, &request).await {
            Accepted::Held(hold) => Some(hold),
            Accepted::Freed(_) => None,
        }
    }

    #[test]
    #[should_panic(expected = "deadlock")]
    fn it_is_lost_with_one_who_gives_up_and_keeps_it() {
        find(|| {
            race(|engine, request| Eventually::pending(keep_what_comes(engine, request)), fixed)
        });
    }
}

mod renewal_against_handover {
    use super::*;

    /// A renewal of the lease as it was before.
    type Renew = fn(Arc<Engine>, Hold);

    /// A renewal is due or under way while the lock is handed to one who asks for `terms`.
    async fn race(before: Request, after: fn() -> Request, renewal: Renew) {
        let house = House::new();
        let first = house.process.hold(before).await;
        let waiter = spawn(take(Arc::clone(house.engine()), after()));
        house.queued(1).await;
        time::advance((TERM / 3).saturating_sub(Duration::from_secs(2)));
        let clock = spawn(async {
            for _ in 0..3 {
                up_to(8).await;
                time::advance(Duration::from_secs(1));
            }
        });
        renewal(Arc::clone(house.engine()), first.clone());
        up_to(12).await;
        house.engine().release(&first, true).await.expect("the store is up");
        let second = house.guard(waiter.await.expect("not aborted").expect("in the end"));
        house.visit(&second).await;
        clock.await.expect("not aborted");
        let clock = spawn(time::pass());
        while house.process.net.is_busy() || model::running() > THREADS {
            yield_now().await;
        }
        clock.abort();
        // The last instant at which it believes to have it.
        let last = second.hold().deadline().since(BootInstant::now());
        time::advance(last.saturating_sub(Duration::from_nanos(1)));
        house.process.net.assert_in_store(second.hold());
        drop(second);
        house.process.assert_nothing_left().await;
    }

    #[test]
    fn whatever_the_next_asks_for_its_lease_lasts_no_longer_than_its_key() {
        explore(|| race(request(), any_request, |_, _| {}));
    }

    #[test]
    #[should_panic(expected = "its key is its own")]
    fn not_so_if_a_renewal_from_before_counted_for_what_it_has_become() {
        find(|| {
            race(
                fixed(),
                || longer(fixed()),
                |engine, hold| {
                    model::spawn_task(async move {
                        up_to(12).await;
                        let sent = BootInstant::now();
                        let renewal =
                            [Renewal { key: hold.key(), token: hold.token(), lease: TERM }];
                        if engine.store.renew(&renewal, Lane::Keeper).await
                            == [Ok(Renewed::Extended)]
                        {
                            let term = hold.term();
                            hold.extended(sent, Some(term));
                        }
                    });
                },
            )
        });
    }

    /// Who has waited for the hold that is just at its end has nothing to do with that end.
    async fn race_with_the_end(before: Request, after: Request, watch: fn(Arc<Engine>, Hold)) {
        let house = House::new();
        let first = house.process.hold(before).await;
        watch(Arc::clone(house.engine()), first.clone());
        let waiter = spawn(take(Arc::clone(house.engine()), after));
        house.queued(1).await;
        let clock = {
            let left = first.deadline().since(BootInstant::now());
            spawn(async move {
                up_to(12).await;
                time::advance(left);
            })
        };
        up_to(12).await;
        house.engine().release_in_background(&first);
        clock.await.expect("not aborted");
        let second = waiter.await.expect("not aborted").expect("in the end");
        up_to(12).await;
        house.engine().release(&second, true).await.expect("nothing has taken it away");
        house.process.assert_nothing_left().await;
    }

    /// To be given up after a while, although it is renewed.
    fn bounded() -> Request {
        let Request { key, format, wait, terms } = request();
        Request { key, format, wait, terms: Terms { max_hold: Some(BRIEF), ..terms } }
    }

    #[test]
    fn the_end_of_a_hold_does_not_end_the_one_after_it() {
        explore(|| race_with_the_end(bounded(), request(), |_, _| {}));
    }

    #[test]
    fn the_end_of_a_lease_does_not_end_what_it_was_renewed_to() {
        explore(|| race_with_the_end(brief(fixed()), fixed(), |_, _| {}));
    }

    #[test]
    #[should_panic(expected = "nothing has taken it away")]
    fn not_so_if_a_deadline_was_looked_at_only_before_its_hold_is_ended() {
        find(|| {
            race_with_the_end(bounded(), request(), |engine, hold| {
                model::spawn_task(async move {
                    let end = time::Instant::now() + BRIEF;
                    while time::Instant::now() < end {
                        yield_now().await;
                    }
                    if !hold.is_valid(BootInstant::now()) {
                        engine.keeper.lose(hold.lease(), hold.overdue());
                    }
                });
            })
        });
    }
}

mod loss_against_handover {
    use super::*;

    /// A lease is lost while it is handed over.
    async fn race(take: Take) {
        let house = House::new();
        let first = house.process.hold(request()).await;
        let wanted = [request, || longer(fixed())][thread_rng().gen_range(0..2)]();
        let waiter = spawn(house.clone().take_turn(take, wanted));
        house.queued(1).await;
        let loser = {
            let (house, lease) = (house.clone(), Arc::clone(first.lease()));
            let forgotten = thread_rng().r#gen();
            spawn(async move {
                up_to(8).await;
                let gone = if forgotten { LostReason::Gone } else { LostReason::RenewalFailed };
                house.engine().keeper.lose(&lease, gone);
                if forgotten {
                    house.process.net.forget(&lease);
                }
            })
        };
        up_to(8).await;
        house.leave(house.guard(first)).await;
        loser.await.expect("not aborted");
        let clock = spawn(time::pass());
        waiter.await.expect("not aborted");
        clock.abort();
        house.process.assert_nothing_left().await;
    }

    #[test]
    fn a_lease_that_is_lost_on_its_way_is_acquired_anew() {
        explore(|| race(take));
    }

    /// A shutdown is over when nothing is open any more.
    async fn race_with_the_count() {
        let house = House::new();
        let first = house.process.hold(request()).await;
        let waiter = spawn(take(Arc::clone(house.engine()), request()));
        house.queued(1).await;
        let lease = Arc::clone(first.lease());
        house.engine().release_in_background(&first);
        waiter.abort();
        let loser = {
            let engine = Arc::clone(house.engine());
            spawn(async move { engine.keeper.lose(&lease, LostReason::RenewalFailed) })
        };
        if let Ok(Some(hold)) = waiter.await {
            house.engine().release_in_background(&hold);
        }
        let clock = spawn(time::pass());
        while house.engine().open() > 0 {
            yield_now().await;
        }
        house.process.net.assert_free();
        clock.abort();
        loser.await.expect("not aborted");
    }

    #[test]
    fn a_lock_that_is_lost_on_its_way_counts_until_it_is_released() {
        explore(race_with_the_count);
    }

    /// Looks whether the lease is good, and then takes it for its own.
    async fn look_and_take(engine: Arc<Engine>, request: Request) -> Option<Hold> {
        let lease = engine.keeper.held().pop();
        let turn = turn(&engine, &request.key).await;
        let (Some(lease), Some(Turn::Held(inherited))) = (lease, turn) else { return None };
        let sent = BootInstant::now();
        if !lease.is_valid(sent) {
            return None;
        }
        let token = lease.token().clone();
        let hold = Hold::new(request.key, token, &request.terms, sent, None, None, false);
        let own = hold.clone();
        model::spawn_task(async move {
            while own.is_valid(sent) {
                yield_now().await;
            }
            drop(inherited);
        });
        Some(hold)
    }

    #[test]
    #[should_panic(expected = "its key is its own")]
    fn not_so_if_the_next_looks_for_a_loss_only_before_it_takes_it() {
        find(|| race(|engine, request| Eventually::pending(look_and_take(engine, request))));
    }
}

mod shutdown_against_handover {
    use super::*;

    /// A lock is handed over while a shutdown begins, to some who would never end by themselves.
    async fn race() {
        let house = House::new();
        let first = house.guard(house.process.hold(request()).await);
        let callers: Vec<_> = (0..2)
            .map(|_| {
                let house = house.clone();
                spawn(async move {
                    let hold = take(Arc::clone(house.engine()), request()).await;
                    let Some(guard) = hold.map(|hold| house.guard(hold)) else { return };
                    house.visit(&guard).await;
                    guard.lost().await;
                })
            })
            .collect();
        house.queued(2).await;
        let release = {
            let house = house.clone();
            spawn(async move {
                house.leave(first).await;
            })
        };
        up_to(6).await;
        let clock = spawn(time::pass());
        house.engine().shut_down(Duration::ZERO).await;
        release.await.expect("not aborted");
        for caller in callers {
            caller.await.expect("not aborted");
        }
        clock.abort();
        house.process.assert_nothing_left().await;
    }

    #[test]
    fn a_shutdown_ends_every_hold_also_one_that_is_just_handed_over() {
        explore(race);
    }
}

mod stale_guards {
    use super::*;

    /// Ends a hold for one who waits for the next.
    type PassOn = fn(House, Hold) -> JoinHandle<Hold>;

    /// Whoever had the lock before goes on using its hold.
    async fn race(pass_on: PassOn) {
        let house = House::new();
        let first = house.process.hold(request()).await;
        let next = pass_on(house.clone(), first.clone());
        let stale = {
            let house = house.clone();
            spawn(async move {
                for _ in 0..2 {
                    up_to(6).await;
                    match thread_rng().gen_range(0..3) {
                        0 => drop(house.engine().release(&first, true).await),
                        1 => house.engine().release_in_background(&first),
                        _ if first.join() => house.engine().release_in_background(&first),
                        _ => {}
                    }
                }
            })
        };
        let second = house.guard(next.await.expect("not aborted"));
        house.visit(&second).await;
        stale.await.expect("not aborted");
        house.visit(&second).await;
        assert!(second.is_held(), "nobody else may end it");
        second.release().await.expect("held");
        house.process.assert_nothing_left().await;
    }

    #[test]
    fn whoever_had_the_lock_before_does_nothing_to_the_hold_after_it() {
        explore(|| {
            race(|house, first| {
                spawn(async move {
                    let next = spawn(take(Arc::clone(house.engine()), request()));
                    a_while().await;
                    drop(house.guard(first));
                    next.await.expect("not aborted").expect("in the end")
                })
            })
        });
    }

    #[test]
    #[should_panic(expected = "nobody else may end it")]
    fn not_so_if_the_hold_itself_is_what_is_passed_on() {
        find(|| race(|_, first| spawn(async { first })));
    }
}

mod fixed_lease_against_handover {
    use super::*;

    /// One who asks for a longer lease is dropped while that is renewed for it, or hears nothing,
    /// and no release gets through.
    async fn race(take: Take) {
        let process = Process::start();
        let first = process.hold(brief(fixed())).await;
        process.net.refuse_releases();
        process.net.answer_no_renewals(usize::from(thread_rng().r#gen::<bool>()));
        let mut longer = longer(brief(fixed()));
        longer.wait = Wait::For(BRIEF / 2);
        let next = spawn(take(Arc::clone(&process.engine), longer));
        while process.engine.gates.queued() == 0 {
            yield_now().await;
        }
        time::advance(BRIEF / 2);
        process.engine.release_in_background(&first);
        a_while().await;
        next.abort();
        if let Ok(Some(hold)) = next.await {
            process.net.assert_in_store(&hold);
            process.engine.release_in_background(&hold);
        }
        // Time stands still until only the release goes on.
        process.settled(1).await;
        process.assert_nothing_left().await;
    }

    #[test]
    fn a_release_is_tried_for_as_long_as_a_renewal_for_the_next_has_made_the_key_last() {
        explore(|| race(take));
    }

    /// Announces a renewal only when it is answered.
    async fn renew_and_tell(engine: Arc<Engine>, request: Request) -> Option<Hold> {
        let lease = engine.keeper.held().pop()?;
        let Turn::Held(inherited) = turn(&engine, &request.key).await? else { return None };
        let sent = BootInstant::now();
        let asked = request.terms.in_store();
        let renewal = [Renewal { key: lease.key(), token: lease.token(), lease: asked }];
        engine.store.renew(&renewal, Lane::Keeper).await;
        lease.about_to_renew_for(&request.terms, sent)?;
        match accept(inherited, &request).await {
            Accepted::Held(hold) => Some(hold),
            Accepted::Freed(_) => None,
        }
    }

    #[test]
    #[should_panic(expected = "the key is still taken")]
    fn not_so_if_that_renewal_were_announced_only_when_answered() {
        find(|| race(|engine, request| Eventually::pending(renew_and_tell(engine, request))));
    }
}

mod question_against_handover {
    use super::*;

    /// Tasks of the one process.
    const NEAR: usize = 4;
    const HOLDS: u32 = 1;
    /// Of a turn about which nobody could ask.
    const OVERTIME: u32 = HOLDS * 2;

    type Leave = fn(House, LockGuard) -> Eventually<'static, ()>;

    impl Room {
        /// Counts the holds of a turn while others wait and no question for them is under way.
        fn count(&self, hold: &Hold, others: usize) {
            let mut book = lock(&self.book);
            if book.lease.as_ref() != Some(hold.token()) {
                (book.lease, book.overtime) = (Some(hold.token().clone()), 0);
            }
            book.overtime += u32::from(others > 0 && book.releases == 0);
            assert!(book.overtime <= OVERTIME, "a turn without an end");
        }
    }

    /// A process passes a lock on and on, while another one waits for it.
    async fn race(leave: Leave) {
        let net = Net::new();
        let turn = Limits { holds: HOLDS, time: TERM * 1000 };
        let process = Process::with(Arc::clone(&net), turn);
        let near = House { process, room: Arc::default() };
        let far = House { process: Process::with(net, turn), room: Arc::clone(&near.room) };
        let first = near.guard(near.process.hold(request()).await);
        let tasks: Vec<_> = (0..NEAR)
            .map(|_| {
                let near = near.clone();
                spawn(async move {
                    let hold = acquire(near.engine(), request()).await.expect("in the end");
                    let others = near.process.net.others();
                    near.room.count(&hold, others);
                    let guard = near.guard(hold);
                    near.visit(&guard).await;
                    leave(near, guard).await;
                })
            })
            .collect();
        near.queued(NEAR).await;
        let waiter = spawn(far.clone().take_turn(take, request()));
        if thread_rng().r#gen() {
            while near.process.net.others() == 0 {
                yield_now().await;
            }
        }
        let clock = spawn(time::pass());
        leave(near.clone(), first).await;
        for task in tasks {
            task.await.expect("not aborted");
        }
        assert!(waiter.await.expect("not aborted"), "the other process has its turn");
        near.process.settled(0).await;
        far.process.settled(0).await;
        clock.abort();
        near.process.assert_nothing_left().await;
        far.process.assert_nothing_left().await;
    }

    #[test]
    fn a_turn_ends_also_if_its_question_is_dropped_or_answered_late() {
        explore_less(4, || {
            race(|near, guard| {
                Eventually::pending(async move {
                    lock(&near.room.book).releases += 1;
                    near.leave(guard).await;
                    lock(&near.room.book).releases -= 1;
                })
            })
        });
    }

    #[test]
    #[should_panic(expected = "a turn without an end")]
    fn not_so_if_one_who_drops_the_question_is_taken_to_be_asking_still() {
        find(|| {
            race(|near, guard| {
                let hold = guard.hold().clone();
                std::mem::forget(guard);
                match near.engine().end(&hold, true).1 {
                    End::Free(pass) => {
                        near.engine().free_in_background(hold.lease(), pass, BootInstant::PAST);
                    }
                    End::PassedOn(asking) => std::mem::forget(asking),
                    End::Linger(_) | End::Shared => {}
                }
                Eventually::ready(())
            })
        });
    }
}

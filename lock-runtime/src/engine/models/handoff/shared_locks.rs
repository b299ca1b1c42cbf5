//! Races of the calls of one process for a lock that several of them have at the same time.
//!
//! In the first model, readers join the hold of others, and writers wait for all of them. In the second
//! one, calls for one or three permits of four pass them on. Some calls are dropped at any point. The models
//! assert that the holders together never have more than the lock allows, that no holder loses the lock
//! while it is inside, that each call that stays gets the lock, and that nothing is left. In the controls,
//! a reader joins a hold without being counted among its holders, and a call gives up and keeps its place.

use super::*;
use crate::permits::Permits;

const CALLS: u32 = 4;
/// What all holders together may have. All calls may be readers.
const LIMIT: u32 = CALLS;

fn in_mode(mode: Mode) -> Request {
    Request { mode, ..request() }
}

/// How much of [`LIMIT`] a holder has.
fn share(mode: Mode) -> u32 {
    match mode {
        Mode::Read => 1,
        Mode::Permits(permits) => permits.count(),
        Mode::Exclusive | Mode::Write => LIMIT,
    }
}

/// What the lock protects: the sum of the shares of all holders.
#[derive(Clone, Default)]
struct SharedSection(Arc<StdMutex<u32>>);

/// A holder inside, with its share.
struct SharedEntry(SharedSection, u32);

impl SharedSection {
    fn enter(&self, share: u32) -> SharedEntry {
        let mut inside = lock(&self.0);
        *inside += share;
        assert!(*inside <= LIMIT, "the holders have more than the lock allows");
        SharedEntry(self.clone(), share)
    }
}

impl Drop for SharedEntry {
    fn drop(&mut self) {
        *lock(&self.0.0) -= self.1;
    }
}

async fn hold_shared(
    fixture: HandoffFixture,
    section: SharedSection,
    take: Take,
    mode: Mode,
) -> bool {
    let Some(hold) = take(fixture.engine().clone(), in_mode(mode)).await else { return false };
    let guard = fixture.guard(hold);
    let entry = section.enter(share(mode));
    for _ in 0..thread_rng().gen_range(1..4) {
        yield_now().await;
        assert!(guard.is_held(), "the lock is lost while it is held");
    }
    drop(entry);
    fixture.end_hold(guard).await;
    true
}

/// Some calls stay until they get the lock. Others are dropped at any point.
async fn race(take: Take, modes: [Mode; 2]) {
    let (fixture, section) = (HandoffFixture::new(), SharedSection::default());
    let (mut staying, mut leaving) = (Vec::new(), Vec::new());
    for place in 0..CALLS {
        let mode = modes[thread_rng().gen_range(0..2)];
        // The last call stays, so that a lost lock causes a deadlock.
        let stays = place + 1 == CALLS || thread_rng().r#gen();
        let call = spawn(hold_shared(fixture.clone(), section.clone(), take, mode));
        if stays { &mut staying } else { &mut leaving }.push(call);
    }
    for call in &leaving {
        pause().await;
        call.abort();
    }
    for call in staying {
        assert!(call.await.expect("not aborted"), "a call that stays gets the lock");
    }
    for call in leaving {
        drop(call.await);
    }
    fixture.process.assert_nothing_left().await;
}

const READERS_AND_WRITERS: [Mode; 2] = [Mode::Read, Mode::Write];

fn permits() -> [Mode; 2] {
    [1, 3].map(|count| Mode::Permits(Permits::new(count, LIMIT)))
}

#[test]
fn readers_share_a_hold_that_lasts_as_long_as_one_of_them_is_inside() {
    explore_less(4, || race(take, READERS_AND_WRITERS));
}

#[test]
fn permits_that_are_passed_on_are_neither_lost_nor_duplicated() {
    explore_less(4, || race(take, permits()));
}

/// Joins the hold of other readers as a mere copy, which does not count among its holders.
fn join_without_being_counted(
    engine: TestEngine,
    request: Request,
) -> MaybeReady<'static, Option<Hold>> {
    match engine.reads().of(&request.key) {
        Some(hold) if request.mode == Mode::Read => MaybeReady::ready(Some(hold)),
        _ => take(engine, request),
    }
}

#[test]
#[should_panic(expected = "the lock is lost while it is held")]
fn a_hold_ends_too_early_if_a_reader_joins_it_without_being_counted() {
    find_failure(|| race(join_without_being_counted, READERS_AND_WRITERS));
}

/// Gives up after a while, and keeps its place.
fn give_up_and_keep_place(
    engine: TestEngine,
    request: Request,
) -> MaybeReady<'static, Option<Hold>> {
    MaybeReady::pending(async move {
        let mut call = Box::pin(take(engine, request));
        tokio::select! {
            biased;
            hold = &mut call => return hold,
            () = pause() => {}
        }
        std::mem::forget(call);
        None
    })
}

#[test]
#[should_panic(expected = "a call that stays gets the lock")]
fn calls_wait_for_ever_if_one_gives_up_and_keeps_its_place() {
    find_failure(|| race(give_up_and_keep_place, permits()));
}

//! One `WAIT` for all who ask for it before it is sent.
//!
//! At most one round is under way. Who asks meanwhile shares the next one.

use std::time::Duration;

use tokio::sync::watch;

use lock_core::store::contract::StoreError;
use lock_core::sync::{Mutex, lock};

/// The result of a `WAIT`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct RoundAnswer {
    /// The connection that has carried it.
    pub(super) connection: u64,
    /// The number of replicas that have acknowledged everything.
    pub(super) acknowledged: u32,
    /// The number of replicas that were required.
    pub(super) required: u32,
    /// For how long the server has waited at most.
    pub(super) patience: Duration,
}

pub(super) type RoundResult = Result<RoundAnswer, StoreError>;

/// A round that has not been sent.
pub(super) struct NextRound {
    /// A slot of those who share the round.
    pub(super) slot: u16,
    pub(super) result: watch::Sender<Option<RoundResult>>,
}

/// The rounds of one connection.
#[derive(Default)]
pub(super) struct Rounds(Mutex<RoundsState>);

#[derive(Default)]
struct RoundsState {
    next: Option<NextRound>,
    /// Whether a task sends the rounds.
    is_running: bool,
}

/// Sends rounds, one after the other, until nobody asks for one.
pub(super) struct RoundTurn<'a> {
    rounds: &'a Rounds,
    /// Nobody asks for a round. Another task may send rounds from then on.
    is_over: bool,
}

impl Rounds {
    /// Joins the next round. Returns its result to come, and whether the caller has to start a task
    /// that [sends](Self::turn) the rounds.
    pub(super) fn join(&self, slot: u16) -> (watch::Receiver<Option<RoundResult>>, bool) {
        let mut state = lock(&self.0);
        let new = || NextRound { slot, result: watch::Sender::new(None) };
        let result = state.next.get_or_insert_with(new).result.subscribe();
        (result, !std::mem::replace(&mut state.is_running, true))
    }

    /// For the task that sends the rounds.
    pub(super) fn turn(&self) -> RoundTurn<'_> {
        RoundTurn { rounds: self, is_over: false }
    }
}

impl RoundTurn<'_> {
    /// The next round; `None` if nobody asks for one. The task then has to end.
    pub(super) fn next(&mut self) -> Option<NextRound> {
        let mut state = lock(&self.rounds.0);
        let next = state.next.take();
        state.is_running = next.is_some();
        self.is_over = next.is_none();
        next
    }
}

/// Also ends the waits of those who share the next round if the task is dropped.
impl Drop for RoundTurn<'_> {
    fn drop(&mut self) {
        if !self.is_over {
            *lock(&self.rounds.0) = RoundsState::default();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RESULT: RoundResult =
        Ok(RoundAnswer { connection: 1, acknowledged: 2, required: 2, patience: Duration::ZERO });

    #[tokio::test]
    async fn all_who_ask_before_a_round_is_sent_share_it() {
        let rounds = Rounds::default();
        let ((mut one, starts), (mut two, starts_again)) = (rounds.join(5), rounds.join(6));
        assert!(starts && !starts_again, "one task sends the rounds");
        let mut turn = rounds.turn();
        let first = turn.next().expect("a round");
        let (mut late, starts) = rounds.join(7);
        assert!(!starts, "a round is under way");
        first.result.send_replace(Some(RESULT));
        for result in [&mut one, &mut two] {
            assert_eq!(*result.wait_for(Option::is_some).await.expect("sent"), Some(RESULT));
        }
        assert_eq!((first.slot, late.borrow_and_update().clone()), (5, None));
        let second = turn.next().expect("another round");
        second.result.send_replace(Some(RESULT));
        assert_eq!(*late.wait_for(Option::is_some).await.expect("sent"), Some(RESULT));
        assert!(turn.next().is_none());
        let (mut next, starts) = rounds.join(8);
        assert!(starts, "another task sends the next rounds");
        let mut another = rounds.turn();
        drop(turn);
        another
            .next()
            .expect("the end of the first task changes nothing")
            .result
            .send_replace(Some(RESULT));
        assert_eq!(*next.wait_for(Option::is_some).await.expect("sent"), Some(RESULT));
    }

    #[tokio::test]
    async fn the_waits_end_when_the_task_is_dropped() {
        let rounds = Rounds::default();
        let (mut first, _) = rounds.join(5);
        let mut turn = rounds.turn();
        let sent = turn.next();
        let (mut second, _) = rounds.join(5);
        drop((sent, turn));
        assert!(first.wait_for(Option::is_some).await.is_err());
        assert!(second.wait_for(Option::is_some).await.is_err());
        assert!(rounds.join(5).1, "another task sends the next rounds");
    }
}

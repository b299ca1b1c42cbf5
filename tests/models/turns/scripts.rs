//! The scripts of `store/redis/read_write`.

use super::{TurnHold, TurnPhase, TurnState, Turns};

impl Turns {
    /// The first writer in the queue whose client can be reached.
    pub(super) fn first_writer(&self, state: &TurnState) -> Option<usize> {
        state.queue.iter().copied().find(|call| self.writers[*call] && !state.is_gone(*call))
    }

    /// `settle.lua`: gives the lock to the calls whose turn it is.
    pub(super) fn settle(&self, state: &mut TurnState, after_writer: bool) {
        if state.has_writer() {
            return;
        }
        let first_writer = self.first_writer(state);
        if let Some(place) = state.queue.iter().position(|call| Some(*call) == first_writer) {
            let before = state.queue.drain(..place).collect::<Vec<_>>();
            let kept = before.into_iter().filter(|call| !self.writers[*call]).collect::<Vec<_>>();
            state.queue.splice(..0, kept);
        } else {
            state.queue = state.queue.iter().copied().filter(|call| !self.writers[*call]).collect();
        }
        let is_turn = after_writer && self.after_writers;
        let until = state.queue.iter().position(|call| Some(*call) == first_writer);
        let until = until.filter(|_| !is_turn).unwrap_or(state.queue.len());
        let readers: Vec<usize> =
            state.queue[..until].iter().copied().filter(|call| !self.writers[*call]).collect();
        let mut admitted = 0;
        for reader in readers {
            state.queue.retain(|other| *other != reader);
            if !state.is_gone(reader) && !state.has_hold(reader) {
                state.grant(reader, false);
                admitted += 1;
            }
        }
        if admitted == 0
            && state.holds.is_empty()
            && let Some(writer) = first_writer
        {
            state.grant(writer, true);
        }
    }

    /// `acquire.lua`. The call has the lock afterwards, or a place in the queue.
    pub(super) fn acquire(&self, state: &mut TurnState, call: usize) {
        let writes = self.writers[call];
        if state.has_lock(call) {
            return;
        }
        let after_writer = state.holds.is_empty() || state.end_leases();
        let is_shared = |state: &TurnState| !writes && !state.has_writer();
        let may_pass = state.queue.is_empty() || !self.readers_wait && !writes;
        if (state.holds.is_empty() || is_shared(state)) && may_pass {
            state.is_overtaken |= self.first_writer(state).is_some();
            return state.grant(call, writes);
        }
        self.settle(state, after_writer);
        if state.has_hold(call) {
            return;
        }
        if state.holds.is_empty() || is_shared(state) && state.queue.is_empty() {
            return state.grant(call, writes);
        }
        if !state.queue.contains(&call) {
            state.queue.push(call);
            // A call whose lease has ended before it accepted the message comes anew.
            if let TurnPhase::Waiting { writers } = &mut state.phases[call] {
                *writers = 0;
            }
        }
    }

    /// `release.lua`.
    pub(super) fn release(&self, state: &mut TurnState, call: usize) {
        state.queue.retain(|other| *other != call);
        let own = state.holds.iter().position(|hold| hold.call == call && !hold.has_ended);
        if let Some(own) = own {
            let wrote = state.holds.remove(own).writes;
            let writer_ended = state.end_leases() || wrote;
            self.settle(state, writer_ended);
        } else if self.giving_up_settles {
            let after_writer = state.holds.is_empty() || state.end_leases();
            self.settle(state, after_writer);
        }
    }

    /// `change.lua`. Returns whether the mode has changed.
    pub(super) fn change(&self, state: &mut TurnState, call: usize) -> bool {
        let own = state.holds.iter().position(|hold| hold.call == call);
        let Some(own) = own else { return false };
        if state.holds[own].writes {
            state.holds[own].writes = false;
            if self.downgrades_settle {
                self.settle(state, true);
            }
            return true;
        }
        let after_writer = state.end_leases();
        self.settle(state, after_writer);
        let nobody_waits = state.queue.is_empty() || !self.upgrades_see_queue;
        if state.holds.len() > 1 || !nobody_waits {
            return false;
        }
        state.is_overtaken |= self.first_writer(state).is_some();
        state.holds[0].writes = true;
        true
    }

    /// `check.lua`: whether an attempt is worthwhile.
    pub(super) fn finds_free(&self, state: &TurnState, call: usize) -> bool {
        let has_ended = |hold: &TurnHold| hold.has_ended && self.checks_see_ends;
        if state.holds.iter().all(has_ended) || state.has_hold(call) {
            return true;
        }
        if !self.writers[call] && !state.has_writer() {
            // Writers come first in the queue.
            let is_writer = |other: &usize| self.writers[*other];
            let first = state.queue.iter().copied().find(is_writer);
            if first.is_none_or(|first| state.is_gone(first) && self.checks_see_gone) {
                return true;
            }
        }
        !state.queue.contains(&call)
    }
}

//! The events of a hold that several holders share, and of a hold whose lock has modes.

use std::time::Duration;

use super::{Phase, State};
use crate::clock::BootInstant;
use crate::engine::fairness::limit::{Decision, HandoffLimit};
use crate::engine::lease::hold_mode::{Joined, MayChange};
use crate::engine::lease::terms::Terms;
use crate::safeguard::Safeguard;
use crate::store::contract::Mode;

impl<P> State<P> {
    /// Adds a holder that wants this mode. False if the hold has ended, or if it is that of a reader and a
    /// writer wants it, or if it has fewer permits.
    pub(in crate::engine::lease) fn join(
        &mut self,
        number: u64,
        wanted: Mode,
        now: BootInstant,
    ) -> bool {
        let fits = match (self.mode.mode, wanted) {
            (Mode::Permits(own), Mode::Permits(wanted)) => wanted.count() <= own.count(),
            modes => modes != (Mode::Read, Mode::Write),
        };
        let held = self.hold == number && self.phase == Phase::Held && now < self.deadline();
        self.holders += usize::from(held && fits);
        held && fits
    }

    pub(in crate::engine::lease) fn mode(&self) -> Mode {
        self.mode.mode
    }

    /// Lets other readers of this process join the hold, for which so many wait already. False if its
    /// terms are special, or if it has ended.
    pub(in crate::engine::lease) fn share(
        &mut self,
        number: u64,
        waiting: usize,
        now: BootInstant,
    ) -> bool {
        let can_be_shared = self.hold == number
            && self.phase == Phase::Held
            && self.mode.mode == Mode::Read
            && !self.mode.is_changing
            && self.renewed
            && self.max_hold_until.is_none()
            && self.kept_until <= now;
        (self.mode.is_shared, self.mode.awaited) = (can_be_shared, waiting);
        can_be_shared
    }

    /// Adds a reader of this process to the hold of others, within the limit, which does not apply to
    /// readers that have waited for the hold.
    pub(in crate::engine::lease) fn join_as_reader(
        &mut self,
        number: u64,
        ((terms, limit), has_waited): ((&Terms, &HandoffLimit), bool),
        now: BootInstant,
    ) -> Joined {
        if self.hold != number || self.phase != Phase::Held || !self.mode.is_shared {
            return Joined::Over;
        }
        let is_same = terms.can_be_shared()
            && self.term == terms.term
            && self.acknowledged_by == terms.acknowledged_by;
        if !is_same {
            return Joined::Differs;
        }
        if self.to_verify || !self.can_be_handed_off(now) {
            return Joined::Full;
        }
        let counts = if has_waited && self.mode.awaited > 0 {
            self.mode.awaited -= 1;
            false
        } else {
            match self.tenure.next_of_counted(limit, now) {
                Decision::Free => return Joined::Full,
                decision => decision == Decision::HandOffAndCount,
            }
        };
        if self.join(number, Mode::Read, now) { Joined::Yes { counts } } else { Joined::Over }
    }

    /// Prepares a change of the mode, after which no reader of this process can join the hold.
    pub(in crate::engine::lease) fn about_to_change(&mut self, number: u64, to: Mode) -> MayChange {
        let mode = &mut self.mode;
        let is_so = mode.mode == to && (to == Mode::Write || !mode.has_changed);
        match () {
            () if self.hold != number || self.phase != Phase::Held => MayChange::Over,
            () if mode.is_changing => MayChange::InProgress,
            () if is_so => MayChange::IsSo,
            () if self.holders > 1 && mode.mode == to => MayChange::IsSo,
            () if self.holders > 1 => MayChange::Shared,
            () if to == Mode::Write && mode.may_be_downgraded => MayChange::Uncertain,
            () => {
                (mode.is_changing, mode.has_changed, mode.is_shared) = (true, true, false);
                if to == Mode::Read {
                    // Nothing is kept for another writer.
                    (mode.mode, mode.since) = (Mode::Read, BootInstant::now());
                    self.linger = Duration::ZERO;
                }
                MayChange::Yes
            }
        }
    }

    /// The end of a change. `is_certain` says whether all of its requests were answered.
    pub(in crate::engine::lease) fn changed(&mut self, to: Mode, (done, is_certain): (bool, bool)) {
        self.mode.is_changing = false;
        self.mode.may_be_downgraded |=
            to == Mode::Read && !is_certain && Safeguard::LateDowngradesCount.is_on();
        if done {
            (self.mode.mode, self.mode.since) = (to, BootInstant::now());
        }
    }

    /// Whether the holder has been a writer since this instant.
    pub(in crate::engine::lease) fn is_writer_since(&self, sent: BootInstant) -> bool {
        self.mode.mode == Mode::Write && self.mode.since <= sent && !self.mode.is_changing
    }

    /// Replaces the permit. Returns the previous one, or this one if the hold has ended.
    pub(in crate::engine::lease) fn replace_permit(&mut self, permit: P) -> Option<P> {
        if self.phase == Phase::Held { self.permit.replace(permit) } else { Some(permit) }
    }

    pub(in crate::engine::lease) fn has_permit(&self, is_it: impl FnOnce(&P) -> bool) -> bool {
        self.permit.as_ref().is_some_and(is_it)
    }
}

//! The master in use, by number: the first one has the number 1, and each change adds 1.
//!
//! The number also changes if the same server is the master of a newer configuration: another one
//! was the master in between, and its data counts.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::watch;
use tracing::Level;

use super::super::announced::ServerAddress;
use super::answer::Candidate;
use crate::transport::endpoint::shown;
use lock_core::clock::BootInstant;
use lock_core::events;
use lock_core::store::hold_reports::{HoldReport, HoldReports};

/// How long most sentinels have to name a configuration that is not newer, until it is used. This
/// happens if the sentinels have lost their state, if an administrator has removed the master from
/// them and added it again, or if the leader of a failover failed before it told the others.
/// Sentinels that can reach each other agree within eight seconds.
const DISAGREE_AFTER: Duration = Duration::from_secs(10);

/// How long an answer of a sentinel counts, which is a few times as long as the sentinels need to
/// answer again.
pub(super) const ANSWER_COUNTS_FOR: Duration = Duration::from_secs(3);

/// The master in use.
pub(super) struct CurrentMaster {
    master: watch::Sender<NumberedMaster>,
    /// The number of the master, which is read twice for each request.
    number: AtomicU64,
    /// Called after each change.
    reports: OnceLock<HoldReports>,
}

#[derive(Clone, Default)]
struct NumberedMaster {
    /// 0 before the first connection.
    number: u64,
    /// `None` before the first connection.
    address: Option<ServerAddress>,
    epoch: Option<u64>,
    /// When it came into use; `None` before the first connection.
    since: Option<BootInstant>,
    /// A configuration that most sentinels name, although it is not newer.
    rival: Option<Rival>,
}

/// A configuration that most sentinels name.
#[derive(Clone)]
struct Rival {
    address: ServerAddress,
    /// Since when they do without a break.
    since: BootInstant,
    seen: BootInstant,
}

impl NumberedMaster {
    /// Whether `candidate` has replaced this master. `all` is the number of sentinels.
    fn is_replaced_by(&mut self, candidate: &Candidate, all: usize, now: BootInstant) -> bool {
        let Some(address) = &self.address else { return true };
        let is_same = *address == candidate.address;
        let is_by_most = candidate.votes > all / 2;
        if is_same && self.epoch.is_none() {
            self.epoch = candidate.epoch;
            return false;
        }
        if let (Some(epoch), Some(candidates)) = (self.epoch, candidate.epoch) {
            if candidates > epoch && (is_same || is_by_most || candidate.is_master_of(address)) {
                return true;
            }
            if !is_by_most || (is_same && candidates == epoch) {
                self.rival = None;
                return false;
            }
            let insists = self.is_named_for_long(&candidate.address, now);
            if insists && is_same {
                // The sentinels have lost their state, and the master is still the same.
                (self.epoch, self.rival) = (candidate.epoch, None);
            }
            return insists && !is_same;
        }
        !is_same && is_by_most
    }

    /// Whether most sentinels have named this configuration, which is not newer, for long.
    fn is_named_for_long(&mut self, address: &ServerAddress, now: BootInstant) -> bool {
        let is_continued = |rival: &mut Rival| {
            rival.address == *address && now.since(rival.seen) < ANSWER_COUNTS_FOR
        };
        let since = self.rival.take_if(is_continued).map_or(now, |rival| rival.since);
        self.rival = Some(Rival { address: address.clone(), since, seen: now });
        now.since(since) >= DISAGREE_AFTER
    }
}

impl CurrentMaster {
    pub(super) fn new() -> Self {
        Self {
            master: watch::Sender::default(),
            number: AtomicU64::new(0),
            reports: OnceLock::new(),
        }
    }

    /// Sends a report after each change from now on.
    pub(super) fn on_change(&self, reports: HoldReports) {
        // Called once.
        let _ = self.reports.set(reports);
    }

    pub(super) fn number(&self) -> u64 {
        self.number.load(Ordering::Acquire)
    }

    /// When the master came into use; `None` before the first connection.
    pub(super) fn since(&self) -> Option<BootInstant> {
        self.master.borrow().since
    }

    pub(super) fn address(&self) -> Option<ServerAddress> {
        self.master.borrow().address.clone()
    }

    /// Resolves when the master with this number is no longer in use.
    pub(super) async fn replaced(&self, number: u64) {
        // The sender lives as long as `self`, so this cannot fail.
        let _ = self.master.subscribe().wait_for(|master| master.number != number).await;
    }

    /// Uses `found`, which a connection has shown to be a master, if it is the master in use or has
    /// replaced it. Returns its number. `all` is the number of sentinels.
    pub(super) fn found(&self, found: &Candidate, all: usize, now: BootInstant) -> Option<u64> {
        let mut number = None;
        self.change(found, now, |master| {
            let is_replaced = master.is_replaced_by(found, all, now);
            let is_same = master.address.as_ref() == Some(&found.address);
            number = (is_replaced || is_same).then_some(master.number + u64::from(is_replaced));
            is_replaced
        });
        number
    }

    /// Uses `candidate` from now on if it has replaced the master in use. `all` is the number of
    /// sentinels.
    pub(super) fn noticed(&self, candidate: &Candidate, all: usize, now: BootInstant) {
        self.change(candidate, now, |master| {
            master.number > 0 && master.is_replaced_by(candidate, all, now)
        });
    }

    /// Uses `candidate` from now on if `is_replaced` returns true.
    fn change(
        &self,
        candidate: &Candidate,
        now: BootInstant,
        is_replaced: impl FnOnce(&mut NumberedMaster) -> bool,
    ) {
        let mut earlier = None;
        self.master.send_if_modified(|master| {
            if !is_replaced(master) {
                return false;
            }
            earlier = master.address.replace(candidate.address.clone());
            master.epoch = candidate.epoch;
            (master.since, master.rival) = (Some(now), None);
            master.number += 1;
            self.number.store(master.number, Ordering::Release);
            true
        });
        let Some(earlier) = earlier else { return };
        let master = candidate.address.clone();
        events::emit(Level::INFO, move || {
            let [earlier, master] = [earlier, master].map(|(host, port)| shown(&host, port));
            tracing::info!(target: "lock_runtime::store::redis", earlier, master, "the master has changed; verifying all held locks");
        });
        if let Some(reports) = self.reports.get() {
            reports.send(HoldReport::Moved);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::AtomicUsize;

    use super::super::answer::{SentinelAnswer, candidates};
    use super::*;

    /// The number of sentinels.
    const ALL: usize = 3;

    fn server(port: u16) -> ServerAddress {
        ("localhost".to_owned(), port)
    }

    /// A master that this many sentinels name, and that replaces the server on port 1.
    fn named_by(votes: usize, port: u16, epoch: Option<u64>) -> Candidate {
        let replicas = vec![server(1)];
        let answer =
            SentinelAnswer { master: Some(server(port)), epoch, down_after: None, replicas };
        candidates(vec![answer; votes].iter()).remove(0)
    }

    fn candidate(port: u16, epoch: u64) -> Candidate {
        named_by(1, port, Some(epoch))
    }

    /// The current master, and how often the holds were verified.
    fn counted() -> (CurrentMaster, Arc<AtomicUsize>) {
        let (current, verified) = (CurrentMaster::new(), Arc::new(AtomicUsize::new(0)));
        let count = Arc::clone(&verified);
        current.on_change(HoldReports::new(move |_| {
            count.fetch_add(1, Ordering::Relaxed);
        }));
        (current, verified)
    }

    /// The current master after a connection to the server on port 1.
    fn at(epoch: Option<u64>) -> CurrentMaster {
        let current = CurrentMaster::new();
        assert_eq!(current.found(&named_by(1, 1, epoch), ALL, BootInstant::now()), Some(1));
        current
    }

    #[test]
    fn each_change_has_a_new_number_and_verifies_the_holds() {
        let ((current, verified), now) = (counted(), BootInstant::now());
        current.noticed(&candidate(1, 1), ALL, now);
        assert_eq!(current.number(), 0, "no master is in use");
        assert_eq!(current.found(&candidate(1, 1), ALL, now), Some(1));
        assert_eq!(verified.load(Ordering::Relaxed), 0, "the first master is no change");
        current.noticed(&candidate(1, 1), ALL, now);
        assert_eq!(current.found(&candidate(1, 1), ALL, now), Some(1), "the same master");
        current.noticed(&candidate(2, 3), ALL, now);
        assert_eq!((current.number(), verified.load(Ordering::Relaxed)), (2, 1));
        assert_eq!(current.found(&candidate(2, 3), ALL, now), Some(2), "it was noticed before");
        assert_eq!(current.found(&named_by(2, 3, Some(4)), ALL, now), Some(3));
        assert_eq!(verified.load(Ordering::Relaxed), 2);
    }

    #[test]
    fn a_connection_does_not_return_to_an_earlier_master() {
        let (current, now) = (at(Some(4)), BootInstant::now());
        current.noticed(&candidate(2, 5), ALL, now);
        assert_eq!(current.number(), 2);
        for votes in 1..=ALL {
            let earlier = named_by(votes, 1, Some(4));
            assert_eq!(current.found(&earlier, ALL, now), None);
            current.noticed(&earlier, ALL, now);
        }
        assert_eq!(current.number(), 2);
    }

    #[test]
    fn the_same_server_with_a_newer_configuration_is_a_change() {
        let ((current, verified), now) = (counted(), BootInstant::now());
        assert_eq!(current.found(&candidate(1, 4), ALL, now), Some(1));
        current.noticed(&candidate(1, 6), ALL, now);
        assert_eq!((current.number(), verified.load(Ordering::Relaxed)), (2, 1));
        current.noticed(&candidate(1, 5), ALL, now);
        assert_eq!(current.number(), 2, "an older answer");
    }

    #[test]
    fn a_newer_configuration_of_another_group_is_not_followed() {
        let current = CurrentMaster::new();
        let now = BootInstant::now();
        assert_eq!(current.found(&candidate(3, 4), ALL, now), Some(1));
        // Its sentinel knows the server on port 1, and not the one in use.
        current.noticed(&candidate(9, 50), ALL, now);
        assert_eq!(current.found(&candidate(9, 50), ALL, now), None);
        assert_eq!(current.number(), 1);
    }

    #[test]
    fn a_master_without_a_newer_configuration_is_followed_if_most_name_it_for_long() {
        for epoch in [0, 4] {
            let (current, began) = (at(Some(4)), BootInstant::now());
            let other = named_by(2, 2, Some(epoch));
            let almost = insist(&current, &other, began, 9);
            assert_eq!(current.found(&other, ALL, almost), None);
            // Anything else that most sentinels say in between begins the time again.
            current.noticed(&named_by(2, 1, Some(4)), ALL, almost);
            let almost = insist(&current, &other, almost, 9);
            // So does a time in which nothing is heard.
            let almost = insist(&current, &other, almost.after(ANSWER_COUNTS_FOR), 9);
            assert_eq!(current.number(), 1);
            insist(&current, &other, almost, 1);
            assert_eq!(current.number(), 2);
        }
    }

    /// Most sentinels name `candidate` from `began` on, for so many tenths of the time that it takes
    /// until they are followed. Returns the end of this time.
    fn insist(
        current: &CurrentMaster,
        candidate: &Candidate,
        began: BootInstant,
        tenths: u32,
    ) -> BootInstant {
        let at = |tenth: u32| began.after(DISAGREE_AFTER / 10 * tenth);
        (0..=tenths).for_each(|tenth| current.noticed(candidate, ALL, at(tenth)));
        at(tenths)
    }

    #[test]
    fn an_epoch_that_begins_anew_is_adopted_if_most_name_it_for_long() {
        let (current, began) = (at(Some(4)), BootInstant::now());
        let anew = named_by(2, 1, Some(0));
        let almost = insist(&current, &anew, began, 9);
        current.noticed(&candidate(2, 1), ALL, almost);
        assert_eq!(current.number(), 1, "an earlier epoch");
        let end = insist(&current, &anew, almost, 10);
        assert_eq!(current.number(), 1, "the same master");
        current.noticed(&candidate(2, 1), ALL, end);
        assert_eq!(current.number(), 2);
    }

    #[test]
    fn without_epochs_a_master_is_replaced_by_one_that_most_sentinels_name() {
        for (before, after) in [(None, None), (Some(4), None), (None, Some(4))] {
            let (current, now) = (at(before), BootInstant::now());
            current.noticed(&named_by(2, 1, before), ALL, now);
            assert_eq!(current.number(), 1, "the same server");
            assert_eq!(current.found(&named_by(1, 2, after), ALL, now), None);
            assert_eq!(current.found(&named_by(2, 2, after), 4, now), None, "half of them");
            assert_eq!(current.found(&named_by(2, 2, after), ALL, now), Some(2));
        }
    }

    #[test]
    fn an_epoch_that_is_told_later_is_compared_from_then_on() {
        let (current, now) = (at(None), BootInstant::now());
        assert_eq!(current.found(&candidate(1, 4), ALL, now), Some(1));
        current.noticed(&candidate(2, 5), ALL, now);
        assert_eq!(current.number(), 2);
    }

    #[tokio::test]
    async fn a_change_ends_the_wait_for_it() {
        let current = Arc::new(at(Some(1)));
        let waiting = Arc::clone(&current);
        let waiting = tokio::spawn(async move { waiting.replaced(1).await });
        tokio::task::yield_now().await;
        assert!(!waiting.is_finished());
        current.noticed(&candidate(2, 2), ALL, BootInstant::now());
        waiting.await.expect("no panic");
        current.replaced(1).await;
    }
}

//! The answers of the sentinels, and which of them to believe.
//!
//! Each failover has a number that is higher than those before, the *epoch* of its configuration,
//! and the sentinels themselves adopt the configuration with the highest epoch. The same rule is
//! used here: the sentinel that leads a failover names the new master a second before the others
//! do, and a sentinel that was cut off together with an earlier master names that one for as long
//! as it is cut off.
//!
//! Epochs can be compared only within one group of sentinels. A sentinel of another group, which
//! the URL names by mistake, does not know the servers that the others name, so its epoch counts for
//! nothing. In this case, and without the epochs, for which a user may lack the permission, the
//! address that most sentinels name counts.

use std::cmp::Reverse;
use std::time::Duration;

use super::super::announced::ServerAddress;

/// What a sentinel says about the master.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct SentinelAnswer {
    /// `None` if the sentinel does not monitor a master of this name.
    pub(super) master: Option<ServerAddress>,
    /// The epoch of its configuration; `None` if the sentinel does not tell.
    pub(super) epoch: Option<u64>,
    /// How long the master has to be silent before it counts as down; `None` if the sentinel does
    /// not tell.
    pub(super) down_after: Option<Duration>,
    /// The replicas of the master, and its predecessor. Empty if the sentinel does not tell.
    pub(super) replicas: Vec<ServerAddress>,
}

/// A server that sentinels name as the master.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Candidate {
    pub(super) address: ServerAddress,
    /// The highest epoch with which it is named.
    pub(super) epoch: Option<u64>,
    /// How many sentinels name it.
    pub(super) votes: usize,
    /// The servers that these sentinels name as its replicas.
    replicas: Vec<ServerAddress>,
}

impl Candidate {
    /// Whether a sentinel that names this server knows `other` as one of its replicas.
    pub(super) fn is_master_of(&self, other: &ServerAddress) -> bool {
        self.replicas.contains(other)
    }

    /// Whether the sentinels that name this server have a newer configuration than those that name
    /// `other`.
    fn is_ahead_of(&self, other: &Self) -> bool {
        other.epoch.is_some() && self.epoch > other.epoch && self.is_master_of(&other.address)
    }
}

/// The servers that may be the master, the likeliest first: one, unless the sentinels are divided
/// without any of them being ahead.
pub(super) fn candidates<'a>(answers: impl Iterator<Item = &'a SentinelAnswer>) -> Vec<Candidate> {
    let mut named: Vec<Candidate> = Vec::new();
    for SentinelAnswer { master, epoch, replicas, .. } in answers {
        let Some(address) = master else { continue };
        let index = named.iter().position(|candidate| candidate.address == *address);
        let index = index.unwrap_or_else(|| {
            named.push(Candidate { address: address.clone(), ..Candidate::default() });
            named.len() - 1
        });
        let candidate = &mut named[index];
        candidate.epoch = candidate.epoch.max(*epoch);
        candidate.votes += 1;
        candidate.replicas.extend_from_slice(replicas);
    }
    let is_newest = |one: &Candidate| {
        named.iter().all(|other| one.address == other.address || one.is_ahead_of(other))
    };
    if let Some(newest) = named.iter().position(is_newest) {
        return vec![named.swap_remove(newest)];
    }
    let votes = named.iter().map(|candidate| candidate.votes).max();
    named.retain(|candidate| Some(candidate.votes) == votes);
    named.sort_by_key(|candidate| Reverse(candidate.epoch));
    named
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(port: u16) -> ServerAddress {
        ("localhost".into(), port)
    }

    /// The candidates' ports if the sentinels name these ports, with these epochs and replicas.
    fn ports(answers: &[(u16, Option<u64>, &[u16])]) -> Vec<u16> {
        let answer = |(port, epoch, replicas): &(u16, _, &[u16])| SentinelAnswer {
            master: Some(address(*port)),
            epoch: *epoch,
            down_after: None,
            replicas: replicas.iter().map(|port| address(*port)).collect(),
        };
        let answers: Vec<_> = answers.iter().map(answer).collect();
        candidates(answers.iter()).into_iter().map(|candidate| candidate.address.1).collect()
    }

    #[test]
    fn the_leader_of_a_failover_is_believed_before_the_others() {
        assert_eq!(ports(&[(1, Some(4), &[2]), (2, Some(5), &[1]), (1, Some(4), &[2])]), [2]);
    }

    #[test]
    fn a_sentinel_that_was_cut_off_is_not_believed() {
        assert_eq!(ports(&[(1, Some(4), &[]), (2, Some(5), &[1]), (2, Some(5), &[])]), [2]);
        assert_eq!(ports(&[(1, Some(4), &[]), (1, Some(4), &[]), (2, Some(5), &[1])]), [2]);
        assert_eq!(ports(&[(1, Some(4), &[]), (2, Some(5), &[1])]), [2]);
    }

    #[test]
    fn a_sentinel_of_another_group_is_outvoted_whatever_its_epoch() {
        assert_eq!(ports(&[(1, Some(4), &[2]), (9, Some(50), &[8]), (1, Some(4), &[2])]), [1]);
        assert_eq!(ports(&[(1, Some(4), &[2]), (9, Some(3), &[8]), (1, Some(4), &[2])]), [1]);
        assert_eq!(ports(&[(1, Some(4), &[2]), (9, Some(50), &[8])]), [9, 1], "a tie");
    }

    #[test]
    fn without_epochs_the_address_that_most_name_counts() {
        assert_eq!(ports(&[(1, None, &[]), (2, None, &[]), (2, None, &[1])]), [2]);
        assert_eq!(ports(&[(1, None, &[]), (2, None, &[])]), [1, 2]);
        assert_eq!(ports(&[(1, None, &[]), (2, Some(7), &[1]), (1, None, &[])]), [1]);
        assert_eq!(ports(&[(1, None, &[]), (2, Some(7), &[1])]), [2, 1]);
    }

    #[test]
    fn a_sentinel_without_the_master_names_none() {
        let nothing = SentinelAnswer::default();
        assert_eq!(candidates([&nothing, &nothing].into_iter()), []);
    }
}

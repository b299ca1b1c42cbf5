//! Which stores may vote: they have to be different servers, none of them a copy of another one, and of one version.

use lock_core::store::contract::StoreError;
use lock_core::store::profile::StoreProfile;
use lock_core::sync::{Mutex, lock};

/// The stores of a quorum, and their profiles as far as they are known.
#[derive(Debug)]
pub(super) struct Membership {
    /// The addresses of the stores, without credentials.
    names: Vec<String>,
    profiles: Mutex<Vec<Option<StoreProfile>>>,
}

/// Whether the servers have to have one version.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum VersionRule {
    /// For clients that connect.
    One,
    /// For clients that stay connected while the servers are upgraded one after the other.
    MayDiffer,
}

impl Membership {
    pub(super) fn new(names: Vec<String>) -> Self {
        let profiles = names.iter().map(|_| None).collect();
        Self { names, profiles: Mutex::new(profiles) }
    }

    pub(super) fn names(&self) -> &[String] {
        &self.names
    }

    /// Compares a store with the others that may vote. Fails if it must not vote.
    pub(super) fn admit(
        &self,
        number: usize,
        profile: StoreProfile,
        versions: VersionRule,
    ) -> Result<(), StoreError> {
        let mut profiles = lock(&self.profiles);
        // Another server may have had its address before.
        profiles[number] = None;
        let own = &self.names[number];
        let others = self.names.iter().zip(&*profiles).enumerate();
        let others: Vec<_> = others
            .filter(|(other, _)| *other != number)
            .filter_map(|(_, (name, profile))| Some((name, profile.as_ref()?)))
            .collect();
        if profile.is_replica {
            return Err(wrong(format!(
                "{own} is a replica, which copies its votes from another server; name servers that are \
                 independent of each other"
            )));
        }
        if let Some((other, _)) = others.iter().find(|(_, other)| is_same(other, &profile)) {
            return Err(wrong(format!(
                "{own} and {other} are the same server, or parts of one cluster, and would vote twice; name \
                 servers that are independent of each other"
            )));
        }
        let different = |(name, other): &(_, &StoreProfile)| {
            let (own, other) = (profile.version.as_ref()?, other.version.as_ref()?);
            (own != other).then(|| (*name, own.clone(), other.clone()))
        };
        if versions == VersionRule::One
            && let Some((other, own_version, version)) = others.iter().find_map(different)
        {
            return Err(wrong(format!(
                "{own} runs {own_version}, and {other} runs {version}; use one version for all servers, and \
                 upgrade them while the clients stay connected"
            )));
        }
        profiles[number] = Some(profile);
        Ok(())
    }
}

fn is_same(one: &StoreProfile, other: &StoreProfile) -> bool {
    one.servers.iter().any(|server| other.servers.contains(server))
}

fn wrong(problem: String) -> StoreError {
    StoreError::Config { option: "quorum", problem }
}

//! The sentinels that a client knows: those of its URL for ever, and those that other sentinels
//! have named for as long as they answer.

use std::sync::Arc;
use std::time::Duration;

use super::super::announced::ServerAddress;
use crate::transport::endpoint::{Access, Address, Endpoint};
use lock_core::clock::BootInstant;
use lock_core::sync::{Mutex, lock};

/// How long a sentinel that the URL does not name is asked although it does not answer.
const FORGOTTEN_AFTER: Duration = Duration::from_secs(60);

pub(super) struct KnownSentinels {
    access: Access,
    /// The sentinels of the URL.
    seeds: Vec<Arc<Endpoint>>,
    learned: Mutex<Vec<Learned>>,
}

struct Learned {
    sentinel: Arc<Endpoint>,
    /// When it last answered, or when it was learned of.
    seen: BootInstant,
    has_answered: bool,
}

impl KnownSentinels {
    pub(super) fn new(seeds: Vec<Endpoint>, access: Access) -> Self {
        let seeds = seeds.into_iter().map(Arc::new).collect();
        Self { access, seeds, learned: Mutex::default() }
    }

    pub(super) fn all(&self) -> Vec<Arc<Endpoint>> {
        let learned = lock(&self.learned);
        let learned = learned.iter().map(|learned| &learned.sentinel);
        self.seeds.iter().chain(learned).map(Arc::clone).collect()
    }

    /// The number of sentinels of which most have to agree. Sentinels that only others have named
    /// count as soon as they answer.
    pub(super) fn voters(&self) -> usize {
        let learned = lock(&self.learned);
        self.seeds.len() + learned.iter().filter(|learned| learned.has_answered).count()
    }

    /// The host names and ports of the seeds that are not given as IP addresses.
    pub(super) fn seed_names(&self) -> Vec<(String, u16)> {
        let name = |seed: &Arc<Endpoint>| match seed.address() {
            Address::Tcp { host, port } if host.parse::<std::net::IpAddr>().is_err() => {
                Some((host.clone(), *port))
            }
            _ => None,
        };
        self.seeds.iter().filter_map(name).collect()
    }

    /// Adds sentinels that others have named, unless they are known.
    pub(super) fn learn(&self, named: Vec<ServerAddress>, now: BootInstant) {
        let mut learned = lock(&self.learned);
        for (host, port) in named {
            let sentinel = Arc::new(Endpoint::tcp(&host, port, self.access.clone()));
            let is_it = |known: &Arc<Endpoint>| known.address() == sentinel.address();
            let is_known =
                self.seeds.iter().any(is_it) || learned.iter().any(|known| is_it(&known.sentinel));
            if !is_known {
                learned.push(Learned { sentinel, seen: now, has_answered: false });
            }
        }
    }

    /// Records that a sentinel has answered.
    pub(super) fn answered(&self, sentinel: &Arc<Endpoint>, now: BootInstant) {
        let mut learned = lock(&self.learned);
        let known = learned.iter_mut().find(|known| Arc::ptr_eq(&known.sentinel, sentinel));
        if let Some(known) = known {
            (known.seen, known.has_answered) = (now, true);
        }
    }

    /// Drops the sentinels that have not answered for long.
    pub(super) fn forget_silent(&self, now: BootInstant) {
        lock(&self.learned).retain(|known| now.since(known.seen) < FORGOTTEN_AFTER);
    }
}

#[cfg(test)]
mod tests {
    use redis::RedisConnectionInfo;

    use super::*;
    use crate::transport::login::Login;

    fn shown(known: &KnownSentinels) -> Vec<String> {
        known.all().iter().map(|sentinel| sentinel.shown().to_owned()).collect()
    }

    #[test]
    fn learned_sentinels_are_forgotten_when_they_are_silent_and_seeds_are_not() {
        let access = Access::new(Login::new(RedisConnectionInfo::default(), None), "test");
        let seeds = [("127.0.0.1", 1), ("localhost", 2)];
        let seeds = seeds.map(|(host, port)| Endpoint::tcp(host, port, access.clone()));
        let known = KnownSentinels::new(seeds.into(), access);
        assert_eq!(known.seed_names(), [("localhost".to_owned(), 2)]);

        let began = BootInstant::now();
        for port in [3, 4, 3, 1] {
            known.learn(vec![("127.0.0.1".into(), port)], began);
        }
        let all = ["127.0.0.1:1", "localhost:2", "127.0.0.1:3", "127.0.0.1:4"];
        assert_eq!(shown(&known), all);
        assert_eq!(known.voters(), 2, "the others have not answered");
        let later = began.after(FORGOTTEN_AFTER / 2);
        known.answered(&known.all()[3], later);
        assert_eq!(known.voters(), 3);
        known.forget_silent(later);
        assert_eq!(shown(&known), all);
        known.forget_silent(began.after(FORGOTTEN_AFTER));
        assert_eq!(shown(&known), ["127.0.0.1:1", "localhost:2", "127.0.0.1:4"]);
    }
}

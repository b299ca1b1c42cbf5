//! URLs that name the nodes of a cluster.

use super::hosts::{self, HostsUrl};
use super::parts::{self, unusable};
use super::scheme::Scheme;
use crate::transport::endpoint::{Access, Endpoint};
use lock_core::address_map::AddressMap;
use lock_core::error::LockError;
use lock_core::store::settings::Settings;

const DEFAULT_PORT: u16 = 6379;

/// What a URL says about a cluster.
#[derive(Debug)]
pub(crate) struct ClusterUrl {
    /// Nodes of the cluster, at least one.
    pub(crate) seeds: Vec<Endpoint>,
    /// How to connect to every node.
    pub(crate) access: Access,
    /// The program's function that maps the addresses that the nodes announce.
    pub(crate) addresses: Option<AddressMap>,
}

/// The nodes of a URL with `scheme`, whose rest begins with `//`.
pub(super) fn parse(
    scheme: Scheme,
    rest: &str,
    settings: &Settings,
) -> Result<ClusterUrl, LockError> {
    let HostsUrl { user_info, hosts, path, query } = HostsUrl::split(rest, scheme)?;
    if !matches!(path, "" | "/" | "/0") {
        return Err(unusable("the nodes of a cluster have only the database 0", scheme));
    }
    // The login as redis-rs reads it, at an address that is not used.
    let plain = format!("redis://{user_info}localhost/?{query}");
    let (info, options) = parts::read(scheme, &plain)?;
    let access = parts::access(scheme, &info, options, settings)?;
    let seeds = hosts::list(hosts, DEFAULT_PORT, &access, scheme)?;
    Ok(ClusterUrl { seeds, access, addresses: settings.address_map.clone() })
}

#[cfg(test)]
mod tests {
    use super::*;

    const CANARY: &str = "c4nary";

    fn parsed(rest: &str) -> Result<ClusterUrl, LockError> {
        parse(Scheme::Cluster, rest, &Settings::default())
    }

    #[test]
    fn a_list_of_nodes_with_one_login() {
        for path in ["", "/", "/0", "?protocol=3"] {
            let rest = format!("//user:c4nary@one:7000,two,[::1]:7001,one:7000{path}");
            let url = parsed(&rest).expect("valid");
            let shown: Vec<_> = url.seeds.iter().map(Endpoint::shown).collect();
            assert_eq!(shown, ["one:7000", "two:6379", "[::1]:7001"]);
            assert!(!format!("{url:?}").contains(CANARY));
            for node in url.seeds.iter().chain([&Endpoint::tcp("other", 1, url.access)]) {
                let login = node.login().settings();
                let login = (login.username(), login.password(), login.db());
                assert_eq!(login, (Some("user"), Some(CANARY), 0));
            }
        }
    }

    #[test]
    fn a_wrong_url_is_explained_without_its_secrets() {
        for (rest, words) in [
            ("//", "names no host"),
            ("//user:c4nary@", "names no host"),
            ("//one,,two", "host 2 of the list is empty"),
            ("//user:c4nary,one", "host 1 of the list is no `host:port`"),
            ("//one/1", "only the database 0"),
            ("//one/c4nary", "only the database 0"),
            ("//one,rediss://two", "the scheme is given once"),
            ("//one#c4nary", "`#`"),
            ("//one?c4nary=1", "is unknown"),
            ("one", "does not begin with"),
        ] {
            let problem = match parsed(rest) {
                Err(LockError::Config { option: "url", problem, .. }) => problem,
                other => panic!("{rest}: {other:?}"),
            };
            assert!(problem.contains(words), "{rest}: {problem}");
            assert!(problem.contains("redis+cluster://"), "{rest}: {problem}");
            assert!(!problem.contains(CANARY), "{problem}");
        }
    }
}

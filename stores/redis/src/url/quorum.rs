//! URLs that name the servers of a quorum.

use super::hosts::{self, HostsUrl};
use super::parts::{self, error, unusable};
use super::scheme::Scheme;
use crate::transport::endpoint::Endpoint;
use lock_core::error::LockError;
use lock_core::store::settings::Settings;

const DEFAULT_PORT: u16 = 6379;

/// The servers of a URL such as `redis+redlock://one,two,three/0`, which all have the same credentials. Does not check
/// their number.
pub(crate) fn parse_quorum(url: &str, settings: &Settings) -> Result<Vec<Endpoint>, LockError> {
    let (name, rest) = url.split_once(':').unwrap_or_default();
    let scheme = Scheme::named(name)?;
    let HostsUrl { user_info, hosts, path, query } = HostsUrl::split(rest, scheme)?;
    if !path.bytes().skip(1).all(|byte| byte.is_ascii_digit()) {
        return Err(unusable("the database after the hosts is not a number", scheme));
    }
    // The login as redis-rs reads it, at an address that is not used.
    let plain = format!("redis://{user_info}localhost{path}?{query}");
    let (info, options) = parts::read(scheme, &plain)?;
    let access = parts::access(scheme, &info, options, settings)?;
    let servers = hosts::list(hosts, DEFAULT_PORT, &access, scheme)?;
    if servers.len() < hosts.split(',').count() {
        return Err(error(
            "the URL names a host twice, and would give two votes to one server; name servers that are \
             independent of each other",
        ));
    }
    Ok(servers)
}

#[cfg(test)]
mod tests {
    use super::*;

    const CANARY: &str = "c4nary";

    fn parsed(rest: &str) -> Result<Vec<Endpoint>, LockError> {
        parse_quorum(&format!("redis+redlock:{rest}"), &Settings::default())
    }

    #[test]
    fn a_list_of_servers_with_one_login() {
        for scheme in ["redis+redlock", "valkey+redlock"] {
            let url = format!("{scheme}://user:c4nary@one:7000,two,[::1]:7001/3?protocol=3");
            let servers = parse_quorum(&url, &Settings::default()).expect("valid");
            let shown: Vec<_> = servers.iter().map(Endpoint::shown).collect();
            assert_eq!(shown, ["one:7000", "two:6379", "[::1]:7001"]);
            assert!(!format!("{servers:?}").contains(CANARY));
            for server in &servers {
                let login = server.login().settings();
                let login = (login.username(), login.password(), login.db());
                assert_eq!(login, (Some("user"), Some(CANARY), 3));
            }
        }
        for path in ["", "/"] {
            let servers = parsed(&format!("//one,two,three{path}")).expect("valid");
            assert_eq!(servers[0].login().settings().db(), 0);
        }
    }

    #[test]
    fn a_wrong_url_is_explained_without_its_secrets() {
        for (rest, words) in [
            ("//", "names no host"),
            ("//user:c4nary@/0", "names no host"),
            ("//one,,two", "host 2 of the list is empty"),
            ("//user:c4nary,one,two", "host 1 of the list is no `host:port`"),
            ("//one,two,three/c4nary", "not a number"),
            ("//one,two,three/1/2", "not a number"),
            ("//one,redis://two", "the scheme is given once"),
            ("//one,two,three#c4nary", "`#`"),
            ("//one,two,three?c4nary=1", "is unknown"),
            ("one", "does not begin with"),
        ] {
            let problem = match parsed(rest) {
                Err(LockError::Config { option: "url", problem, .. }) => problem,
                other => panic!("{rest}: {other:?}"),
            };
            assert!(problem.contains(words), "{rest}: {problem}");
            assert!(problem.contains("redis+redlock://"), "{rest}: {problem}");
            assert!(!problem.contains(CANARY), "{problem}");
        }
        let twice = parsed("//user:c4nary@one,two,one:6379").expect_err("twice").to_string();
        assert!(twice.contains("a host twice") && !twice.contains(CANARY), "{twice}");
        let without_tls = parsed("//one,two,three?tls_ca=a").expect_err("plain").to_string();
        assert!(without_tls.contains("`rediss+redlock://`"), "{without_tls}");
    }

    #[test]
    fn a_url_with_tls_needs_the_feature() {
        for scheme in ["rediss+redlock", "valkeys+redlock"] {
            let url = format!("{scheme}://one,two,three");
            let parsed = parse_quorum(&url, &Settings::default());
            assert_eq!(parsed.is_ok(), cfg!(feature = "tls"), "{scheme}");
        }
    }
}

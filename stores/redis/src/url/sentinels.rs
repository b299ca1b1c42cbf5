//! URLs that name sentinels and a master.

use redis::RedisConnectionInfo;

use super::hosts::{self, HostsUrl};
use super::parts::{self, error, unusable};
use super::scheme::Scheme;
use crate::transport::endpoint::{Access, Endpoint};
use crate::transport::login::Login;
use lock_core::address_map::AddressMap;
use lock_core::error::LockError;
use lock_core::store::settings::Settings;
use lock_core::store::url_options::UrlOptions;

/// The port of a sentinel.
const DEFAULT_PORT: u16 = 26379;

/// What a URL says about a master and its sentinels.
#[derive(Debug)]
pub(crate) struct SentinelUrl {
    /// The name by which the sentinels know the master.
    pub(crate) name: String,
    /// At least one.
    pub(crate) sentinels: Vec<Endpoint>,
    /// How to connect to sentinels that the URL does not name.
    pub(crate) to_sentinels: Access,
    /// How to connect to the master.
    pub(crate) to_master: Access,
    /// The program's function that maps the addresses that the sentinels name.
    pub(crate) addresses: Option<AddressMap>,
}

/// The master and the sentinels of a URL with `scheme`, whose rest begins with `//`.
pub(super) fn parse(
    scheme: Scheme,
    rest: &str,
    settings: &Settings,
) -> Result<SentinelUrl, LockError> {
    let HostsUrl { user_info, hosts, path, query } = HostsUrl::split(rest, scheme)?;
    let (name, database) = master(path, scheme)?;
    // The login as redis-rs reads it, at an address that is not used.
    let plain = format!("redis://{user_info}localhost/{database}?{query}");
    let (info, mut options) = parts::read(scheme, &plain)?;
    let login = sentinel_login(&mut options)?;
    let to_master = parts::access(scheme, &info, options, settings)?;
    let to_sentinels = to_master.with_login(login);
    let sentinels = hosts::list(hosts, DEFAULT_PORT, &to_sentinels, scheme)?;
    let addresses = settings.address_map.clone();
    Ok(SentinelUrl { name, sentinels, to_sentinels, to_master, addresses })
}

/// The name of the master and the number of the database.
fn master(path: &str, scheme: Scheme) -> Result<(String, &str), LockError> {
    let path = path.strip_prefix('/').unwrap_or(path);
    let (name, database) = path.split_once('/').unwrap_or((path, ""));
    if name.is_empty() {
        return Err(unusable("the name of the master is missing after the hosts", scheme));
    }
    // The rule of the sentinels.
    if !name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b".-_".contains(&byte)) {
        let problem = "the name of a master has only letters, digits, `.`, `-` and `_`";
        return Err(unusable(problem, scheme));
    }
    if !database.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(unusable("the database after the master's name is not a number", scheme));
    }
    Ok((name.to_owned(), if database.is_empty() { "0" } else { database }))
}

/// The credentials for the sentinels, which are not those for the master.
fn sentinel_login(options: &mut UrlOptions) -> Result<Login, LockError> {
    let mut login = parts::for_locks(RedisConnectionInfo::default());
    let user = parts::take(options, "sentinel_user");
    match (user, parts::take(options, "sentinel_pass")) {
        (Some(_), None) => return Err(error("`sentinel_user` needs `sentinel_pass`")),
        (user, Some(password)) => {
            login = login.set_password(password);
            if let Some(user) = user {
                login = login.set_username(user);
            }
        }
        (None, None) => {}
    }
    Ok(Login::new(login, None))
}

#[cfg(test)]
mod tests {
    use super::*;

    const CANARY: &str = "c4nary";

    fn parsed(rest: &str) -> Result<SentinelUrl, LockError> {
        parse(Scheme::Sentinel, rest, &Settings::default())
    }

    fn problem(rest: &str) -> String {
        match parsed(rest) {
            Err(LockError::Config { option: "url", problem, .. }) => problem,
            other => panic!("{rest}: {other:?}"),
        }
    }

    #[test]
    fn a_list_of_sentinels_and_the_name_of_a_master() {
        let url = parsed("//one:7000,two,[::1]:7001,one:7000/my-master_1.a").expect("valid");
        assert_eq!(url.name, "my-master_1.a");
        let shown: Vec<_> = url.sentinels.iter().map(Endpoint::shown).collect();
        assert_eq!(shown, ["one:7000", "two:26379", "[::1]:7001"]);
        let master = Endpoint::tcp("m", 1, url.to_master);
        assert_eq!(master.login().settings().db(), 0);
        assert_eq!(master.login().settings().password(), None);
    }

    #[test]
    fn the_sentinels_have_their_own_credentials() {
        let rest = "//user:c4nary@one,two/m/3?sentinel_user=watcher&sentinel_pass=c4nary%2C2";
        let url = parsed(rest).expect("valid");
        assert!(!format!("{url:?}").contains(CANARY));
        let sentinel = url.sentinels[0].login().settings();
        let own = (sentinel.username(), sentinel.password(), sentinel.db());
        assert_eq!(own, (Some("watcher"), Some("c4nary,2"), 0));
        let master = Endpoint::tcp("m", 1, url.to_master);
        let master = master.login().settings();
        let login = (master.username(), master.password(), master.db());
        assert_eq!(login, (Some("user"), Some(CANARY), 3));
    }

    #[test]
    fn a_wrong_url_is_explained_without_its_secrets() {
        for (rest, words) in [
            ("///m", "names no host"),
            ("//user:c4nary@/m", "names no host"),
            ("//one,,two/m", "host 2 of the list is empty"),
            ("//one,/m", "host 2 of the list is empty"),
            ("//one", "name of the master is missing"),
            ("//one/", "name of the master is missing"),
            ("//one//0", "name of the master is missing"),
            ("//one?sentinelServiceName=m", "name of the master is missing"),
            ("//one#m", "`#`"),
            ("//one/m#c4nary", "`#`"),
            ("//user:c4nary,one/m", "host 1 of the list is no `host:port`"),
            ("//one:70000/m", "host 1 of the list is no `host:port`"),
            ("//one/m/c4nary", "not a number"),
            ("//one/m/1/2", "not a number"),
            ("//one/c4nary%20", "has only letters"),
            ("//one/m?c4nary=1", "`sentinel_user`, `sentinel_pass`"),
            ("one/m", "does not begin with"),
        ] {
            let problem = problem(rest);
            assert!(problem.contains(words), "{rest}: {problem}");
            assert!(problem.contains("redis+sentinel://"), "{rest}: {problem}");
            assert!(!problem.contains(CANARY), "{problem}");
        }
        assert!(problem("//user:c4/nary@one/m").contains("percent-encoded"));
        let twice = problem("//user:c4nary@one:1,user:c4nary@two/m");
        assert!(twice.contains("given once") && !twice.contains("c4nary"), "{twice}");
        assert!(problem("//one/m?sentinel_user=a").contains("`sentinel_pass`"));
        assert!(problem("//one/m?tls_ca=a").contains("`rediss+sentinel://`"));
    }
}

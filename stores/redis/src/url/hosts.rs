//! URLs that name several hosts.

use redis::{ConnectionAddr, IntoConnectionInfo};

use super::parts::{self, unusable};
use super::scheme::Scheme;
use crate::transport::endpoint::{Access, Endpoint};
use lock_core::error::LockError;

/// The parts of a URL with several hosts, which redis-rs does not understand.
pub(super) struct HostsUrl<'a> {
    /// Empty, or with an `@` at the end.
    pub(super) user_info: String,
    pub(super) hosts: &'a str,
    /// Empty, or with a `/` at the beginning.
    pub(super) path: &'a str,
    pub(super) query: &'a str,
}

impl<'a> HostsUrl<'a> {
    /// Splits the rest of a URL, which begins with `//`.
    pub(super) fn split(rest: &'a str, scheme: Scheme) -> Result<Self, LockError> {
        let Some(rest) = rest.strip_prefix("//") else {
            return Err(unusable("it does not begin with `//`", scheme));
        };
        if rest.split_once('?').map_or(rest, |(before, _)| before).contains("://") {
            let problem = "the scheme is given once, before the first host, because either all \
                           hosts use TLS or none";
            return Err(unusable(problem, scheme));
        }
        let (authority, after) = rest.split_at(rest.find(['/', '?', '#']).unwrap_or(rest.len()));
        parts::check_address_end(after)?;
        if after.contains('#') {
            return Err(unusable("it contains a `#`", scheme));
        }
        let (path, query) = after.split_once('?').unwrap_or((after, ""));
        let (user_info, hosts) = match authority.rsplit_once('@') {
            Some((user_info, _)) if user_info.contains('@') => {
                let problem = "it contains several `@`: the credentials are given once, before the \
                               first host";
                return Err(unusable(problem, scheme));
            }
            Some((user_info, hosts)) => (format!("{user_info}@"), hosts),
            None => (String::new(), authority),
        };
        Ok(Self { user_info, hosts, path, query })
    }
}

/// The hosts of a list such as `host:port,host`.
pub(super) fn list(
    hosts: &str,
    default_port: u16,
    access: &Access,
    scheme: Scheme,
) -> Result<Vec<Endpoint>, LockError> {
    if hosts.is_empty() {
        return Err(unusable("it names no host", scheme));
    }
    let mut endpoints: Vec<Endpoint> = Vec::new();
    for (number, host) in (1..).zip(hosts.split(',')) {
        if host.is_empty() {
            return Err(unusable(&format!("host {number} of the list is empty"), scheme));
        }
        // The text is not shown, because it could be a part of a password.
        let wrong = || unusable(&format!("host {number} of the list is no `host:port`"), scheme);
        let mut url = redis::parse_redis_url(&format!("redis://{host}")).ok_or_else(wrong)?;
        if url.port().is_none() {
            url.set_port(Some(default_port)).map_err(|()| wrong())?;
        }
        let info = url.into_connection_info().map_err(|_| wrong())?;
        let ConnectionAddr::Tcp(host, port) = info.addr() else { return Err(wrong()) };
        let endpoint = Endpoint::tcp(host, *port, access.clone());
        if endpoints.iter().all(|known| known.address() != endpoint.address()) {
            endpoints.push(endpoint);
        }
    }
    Ok(endpoints)
}

//! The address of a server, and the credentials, which are never shown.

use std::fmt;

use redis::{Client, ConnectionInfo, IntoConnectionInfo, ProtocolVersion};

use crate::error::LockError;
use crate::safeguard::Safeguard;

/// A server's address and credentials.
pub(super) struct RedisUrl {
    info: ConnectionInfo,
    address: String,
}

impl RedisUrl {
    pub(super) fn parse(url: &str) -> Result<Self, LockError> {
        // Only fixed texts of redis-rs are shown, because they cannot contain a secret.
        let unusable = |error: &redis::RedisError| LockError::Config {
            option: "url",
            problem: format!(
                "the URL cannot be used ({}); expected \
                 `redis://[[user]:password@]host[:port][/database]` or `redis+unix:///path`, with \
                 special characters in the password percent-encoded",
                if error.detail().is_none() { error.to_string() } else { error.category().into() }
            ),
        };
        // A `/`, `?` or `#` in a password ends the address too early. A part of the password would
        // then be shown as the address.
        let parts = url.strip_prefix("redis://").and_then(|rest| rest.split_once(['/', '?', '#']));
        if parts.is_some_and(|(_, after)| after.contains('@')) {
            let problem = "the URL contains an `@` after the address; special characters in the \
                           user name and the password must be percent-encoded, such as `%23` \
                           for `#`";
            return Err(LockError::Config { option: "url", problem: problem.into() });
        }
        let info = url.into_connection_info().map_err(|error| unusable(&error))?;
        // Push messages, which announce releases, need protocol version 3.
        let login = info.redis_settings().clone().set_protocol(ProtocolVersion::RESP3);
        let info = info.set_redis_settings(login);
        let mut address = info.addr().to_string();
        if !Safeguard::SecretsAreHidden.is_on() {
            url.clone_into(&mut address);
        }
        // Redis-rs checks more of the URL here.
        let client = Client::open(info).map_err(|error| unusable(&error))?;
        Ok(Self { info: client.get_connection_info().clone(), address })
    }

    pub(super) fn info(&self) -> &ConnectionInfo {
        &self.info
    }

    /// Host and port, or the path of the socket.
    pub(super) fn address(&self) -> &str {
        &self.address
    }
}

impl fmt::Debug for RedisUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { info: _, address } = self;
        f.debug_tuple("RedisUrl").field(address).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CANARY: &str = "c4nary";

    #[test]
    fn the_address_is_shown_and_the_password_is_not() {
        let endpoint = RedisUrl::parse("redis://user:c4nary@localhost:7000/2").expect("valid");
        assert_eq!(endpoint.address(), "localhost:7000");
        assert!(!format!("{endpoint:?}").contains(CANARY));
    }

    #[test]
    fn a_bad_url_is_explained_without_its_secrets() {
        for url in [
            "redis://user:c4nary@localhost:port",
            "redis://user:c4nary@",
            "redis://user:c4nary@localhost/database",
            "redis://user:c4nary%FF@localhost",
            "redis://user:c4nary@localhost?protocol=9",
            "redis://c4nary c4nary",
            "redis://user:1234#c4nary@localhost",
            "redis://c4nary:1234/c4nary@localhost",
            "redis://c4nary:1234?c4nary@localhost",
        ] {
            match RedisUrl::parse(url) {
                Err(LockError::Config { option: "url", problem }) => {
                    assert!(!problem.contains(CANARY), "{problem}");
                    assert!(problem.contains("percent-encoded"), "{problem}");
                }
                other => panic!("{url}: {:?}", other.map(|_| ())),
            }
        }
    }
}

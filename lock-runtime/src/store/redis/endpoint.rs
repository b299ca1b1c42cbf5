//! Where the server is, and how to get in, without ever showing the latter.

use std::fmt;

use redis::{Client, ConnectionInfo, IntoConnectionInfo, ProtocolVersion};

use crate::error::LockError;
use crate::protection::Protection;

/// A server's address and credentials.
pub(super) struct Endpoint {
    info: ConnectionInfo,
    address: String,
}

impl Endpoint {
    pub(super) fn parse(url: &str) -> Result<Self, LockError> {
        // redis-rs's own message is used only where it is a fixed text: it cannot hold a secret.
        let unusable = |error: &redis::RedisError| LockError::Config {
            option: "url",
            problem: format!(
                "it cannot be used ({}); expected \
                 `redis://[[user]:password@]host[:port][/database]` or `redis+unix:///path`, with \
                 special characters of the password percent-encoded",
                if error.detail().is_none() { error.to_string() } else { error.category().into() }
            ),
        };
        // A `/`, `?` or `#` in a password ends the address too early, and what would then be shown
        // as the address is a part of the password.
        let behind = url.strip_prefix("redis://").and_then(|rest| rest.split_once(['/', '?', '#']));
        if behind.is_some_and(|(_, behind)| behind.contains('@')) {
            return Err(LockError::Config {
                option: "url",
                problem:
                    "there is an `@` behind the address; special characters of the user and the \
                          password are percent-encoded, such as `#` as `%23`"
                        .into(),
            });
        }
        let info = url.into_connection_info().map_err(|error| unusable(&error))?;
        // The server tells us by itself of releases, and that takes the third protocol version.
        let login = info.redis_settings().clone().set_protocol(ProtocolVersion::RESP3);
        let info = info.set_redis_settings(login);
        let mut address = info.addr().to_string();
        if !Protection::SecretsStayIn.is_on() {
            url.clone_into(&mut address);
        }
        // It may find more that is wrong.
        let client = Client::open(info).map_err(|error| unusable(&error))?;
        Ok(Self { info: client.get_connection_info().clone(), address })
    }

    pub(super) fn info(&self) -> &ConnectionInfo {
        &self.info
    }

    /// Host and port, or the socket's path.
    pub(super) fn address(&self) -> &str {
        &self.address
    }
}

impl fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { info: _, address } = self;
        f.debug_tuple("Endpoint").field(address).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CANARY: &str = "c4nary";

    #[test]
    fn the_address_is_shown_and_the_password_is_not() {
        let endpoint = Endpoint::parse("redis://user:c4nary@localhost:7000/2").expect("valid");
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
            match Endpoint::parse(url) {
                Err(LockError::Config { option: "url", problem }) => {
                    assert!(!problem.contains(CANARY), "{problem}");
                    assert!(problem.contains("percent-encoded"), "{problem}");
                }
                other => panic!("{url}: {:?}", other.map(|_| ())),
            }
        }
    }
}

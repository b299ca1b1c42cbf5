//! URLs of databases. No error shows a part of one.

use std::borrow::Cow;
use std::time::Duration;

use tokio_postgres::Config;
use tokio_postgres::config::{ChannelBinding, Host, LoadBalanceHosts, SslMode, TargetSessionAttrs};

use lock_core::error::LockError;

/// How long a connection may take to one host, with its login.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// How long a connection is idle before the system checks whether the server is still there, and the pause between two
/// checks. A host that has lost its power closes no connection.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(15);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(5);
const KEEPALIVE_RETRIES: u32 = 3;

/// The parameters about TLS that are evaluated here, under the names of libpq and those of `TlsOptions`.
const TLS_PARAMETERS: [(&str, TlsParameter); 8] = [
    ("sslmode", TlsParameter::Mode),
    ("sslrootcert", TlsParameter::Authority),
    ("tls_ca", TlsParameter::Authority),
    ("sslcert", TlsParameter::Certificate),
    ("tls_cert", TlsParameter::Certificate),
    ("sslkey", TlsParameter::Key),
    ("tls_key", TlsParameter::Key),
    ("tls_server_name", TlsParameter::ServerName),
];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum TlsParameter {
    Mode,
    Authority,
    Certificate,
    Key,
    ServerName,
}

/// What a URL says about TLS.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct UrlTls {
    /// `sslmode`.
    pub(super) mode: Option<TlsMode>,
    pub(super) authority: Option<String>,
    pub(super) certificate: Option<String>,
    pub(super) key: Option<String>,
    pub(super) server_name: Option<String>,
}

/// The values of `sslmode`, of which `allow` is treated like `prefer`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TlsMode {
    Disable,
    Prefer,
    Require,
    VerifyAuthority,
    VerifyFull,
}

/// A URL: the configuration of each of its hosts, in the order in which they are tried.
#[derive(Debug)]
pub(super) struct DatabaseUrl {
    pub(super) hosts: Vec<Config>,
    pub(super) tls: UrlTls,
}

impl DatabaseUrl {
    pub(super) fn parse(url: &str) -> Result<Self, LockError> {
        let (url, tls) = split(url.trim())?;
        let config: Config = url.parse().map_err(|error: tokio_postgres::Error| {
            // The error contains names of parameters at most.
            invalid(super::errors::text(&error))
        })?;
        Ok(Self { hosts: hosts(&config)?, tls })
    }

    /// Sets whether connections use TLS.
    pub(super) fn set_mode(&mut self, mode: SslMode) {
        for host in &mut self.hosts {
            host.ssl_mode(mode);
        }
    }
}

pub(super) fn invalid(problem: impl Into<String>) -> LockError {
    LockError::config("url", problem)
}

/// The URL without the parameters about TLS.
fn split(url: &str) -> Result<(String, UrlTls), LockError> {
    let mut tls = UrlTls::default();
    // Like `tokio_postgres`: user and password end at the first `@`.
    let host = url.find('@').map_or(0, |at| at + 1);
    let Some(query) = url[host..].find('?').map(|query| host + query) else {
        return Ok((url.to_owned(), tls));
    };
    let mut others = Vec::new();
    for parameter in url[query + 1..].split('&') {
        let (name, value) = parameter.split_once('=').unwrap_or((parameter, ""));
        let Some((name, kind)) = TLS_PARAMETERS.into_iter().find(|(known, _)| *known == name)
        else {
            others.push(parameter);
            continue;
        };
        let value = decode(value);
        if value.is_empty() {
            return Err(invalid(format!("`{name}` is empty")));
        }
        let field = match kind {
            TlsParameter::Mode => {
                let mode = mode(&value)?;
                if tls.mode.replace(mode).is_some() {
                    return Err(invalid("`sslmode` is given twice"));
                }
                continue;
            }
            TlsParameter::Authority => &mut tls.authority,
            TlsParameter::Certificate => &mut tls.certificate,
            TlsParameter::Key => &mut tls.key,
            TlsParameter::ServerName => &mut tls.server_name,
        };
        if field.replace(value).is_some() {
            return Err(invalid(format!("`{name}` is given twice")));
        }
    }
    let separator = if others.is_empty() { "" } else { "?" };
    Ok((format!("{}{separator}{}", &url[..query], others.join("&")), tls))
}

fn mode(value: &str) -> Result<TlsMode, LockError> {
    Ok(match value {
        "disable" => TlsMode::Disable,
        "allow" | "prefer" => TlsMode::Prefer,
        "require" => TlsMode::Require,
        "verify-ca" => TlsMode::VerifyAuthority,
        "verify-full" => TlsMode::VerifyFull,
        _ => {
            return Err(invalid(
                "`sslmode` is none of `disable`, `prefer`, `require`, `verify-ca` and `verify-full`",
            ));
        }
    })
}

/// Decodes `%41`. What is not valid stays as it is.
fn decode(value: &str) -> String {
    let mut bytes = Vec::with_capacity(value.len());
    let mut rest = value.as_bytes();
    while let Some((first, after)) = rest.split_first() {
        let digits = after.get(..2).and_then(|digits| std::str::from_utf8(digits).ok());
        match digits.and_then(|digits| u8::from_str_radix(digits, 16).ok()) {
            Some(byte) if *first == b'%' => {
                bytes.push(byte);
                rest = &after[2..];
            }
            _ => {
                bytes.push(*first);
                rest = after;
            }
        }
    }
    match String::from_utf8_lossy(&bytes) {
        Cow::Borrowed(_) => String::from_utf8(bytes).unwrap_or_default(),
        Cow::Owned(lossy) => lossy,
    }
}

/// One configuration for each host.
fn hosts(config: &Config) -> Result<Vec<Config>, LockError> {
    let (names, addresses) = (config.get_hosts(), config.get_hostaddrs());
    let count = names.len().max(addresses.len());
    if count == 0 {
        return Err(invalid("it names no host"));
    }
    if !names.is_empty() && !addresses.is_empty() && names.len() != addresses.len() {
        return Err(invalid("`host` and `hostaddr` name different numbers of hosts"));
    }
    let has_at = |host: &Host| matches!(host, Host::Tcp(name) if name.contains('@'));
    if names.iter().any(has_at) {
        return Err(invalid("its user or password contains `@`; write `%40` instead"));
    }
    if config.get_channel_binding() == ChannelBinding::Require {
        return Err(invalid(
            "`channel_binding=require` is not supported; use `sslmode=verify-full`",
        ));
    }
    let ports = config.get_ports();
    if ports.len() > 1 && ports.len() != count {
        return Err(invalid("it has neither one port nor one for each host"));
    }
    let mut hosts: Vec<Config> = (0..count).map(|number| of_host(config, number, count)).collect();
    if config.get_load_balance_hosts() == LoadBalanceHosts::Random {
        fastrand::shuffle(&mut hosts);
    }
    Ok(hosts)
}

fn of_host(all: &Config, number: usize, count: usize) -> Config {
    use tokio_postgres::config::Host;

    let mut host = Config::new();
    match all.get_hosts().get(number) {
        Some(Host::Tcp(name)) => {
            host.host(name);
        }
        #[cfg(unix)]
        Some(Host::Unix(path)) => {
            host.host_path(path);
        }
        None => {}
    }
    if let Some(address) = all.get_hostaddrs().get(number) {
        host.hostaddr(*address);
    }
    if let Some(port) = all.get_ports().get(number).or(all.get_ports().first()) {
        host.port(*port);
    }
    all.get_user().map(|it| host.user(it));
    all.get_password().map(|it| host.password(it));
    all.get_dbname().map(|it| host.dbname(it));
    all.get_options().map(|it| host.options(it));
    all.get_application_name().map(|it| host.application_name(it));
    all.get_tcp_user_timeout().map(|it| host.tcp_user_timeout(*it));
    host.connect_timeout(all.get_connect_timeout().copied().unwrap_or(CONNECT_TIMEOUT));
    host.channel_binding(all.get_channel_binding()).ssl_negotiation(all.get_ssl_negotiation());
    let defaults = Config::new();
    let is_default = all.get_keepalives_idle() == defaults.get_keepalives_idle();
    host.keepalives(all.get_keepalives());
    host.keepalives_idle(if is_default { KEEPALIVE_IDLE } else { all.get_keepalives_idle() });
    host.keepalives_interval(all.get_keepalives_interval().unwrap_or(KEEPALIVE_INTERVAL));
    host.keepalives_retries(all.get_keepalives_retries().unwrap_or(KEEPALIVE_RETRIES));
    host.target_session_attrs(match all.get_target_session_attrs() {
        // Locks can only be where the database can be written to.
        TargetSessionAttrs::Any if count > 1 => TargetSessionAttrs::ReadWrite,
        attributes => attributes,
    });
    host
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_about_tls_are_split_off() {
        let (rest, tls) = split(
            "postgres://u:p?w@h1:1,h2:2/db?sslmode=verify-full&options=a&sslrootcert=%2Fca%20a.pem",
        )
        .expect("valid");
        assert_eq!(rest, "postgres://u:p?w@h1:1,h2:2/db?options=a");
        assert_eq!(tls.mode, Some(TlsMode::VerifyFull));
        assert_eq!(tls.authority.as_deref(), Some("/ca a.pem"));
        let (rest, tls) = split("postgres://h/db").expect("valid");
        assert_eq!((rest.as_str(), tls), ("postgres://h/db", UrlTls::default()));
        assert_eq!(split("postgres://h/db?tls_ca=a").expect("valid").0, "postgres://h/db");
    }

    #[test]
    fn what_is_invalid_is_named_and_the_password_is_not() {
        for (parameters, words) in [
            ("sslmode=strict", "`sslmode` is none of"),
            ("sslmode=require&sslmode=require", "twice"),
            ("sslcert=a&tls_cert=b", "twice"),
            ("sslkey=", "is empty"),
            ("unknown=1", "unknown"),
            ("channel_binding=require", "is not supported"),
            ("port=1,2", "one for each host"),
        ] {
            let url = format!("postgres://u:s3cret@h/db?{parameters}");
            match DatabaseUrl::parse(&url) {
                Err(LockError::Config { option: "url", problem, .. }) => {
                    assert!(problem.contains(words) && !problem.contains("s3cret"), "{problem}");
                }
                other => panic!("{parameters}: {other:?}"),
            }
        }
        assert!(DatabaseUrl::parse("postgres:///db").is_err());
    }

    #[test]
    fn each_host_has_its_own_configuration() {
        let url = DatabaseUrl::parse("postgres://u@h1:1,h2:2/db").expect("valid");
        let shown = |config: &Config| (config.get_ports()[0], config.get_target_session_attrs());
        let read_write = TargetSessionAttrs::ReadWrite;
        let found: Vec<_> = url.hosts.iter().map(shown).collect();
        assert_eq!(found, [(1, read_write), (2, read_write)]);
        let one = DatabaseUrl::parse("postgres://u@h1/db").expect("valid");
        assert_eq!(one.hosts.len(), 1);
        assert_eq!(one.hosts[0].get_target_session_attrs(), TargetSessionAttrs::Any);
        assert_eq!(one.hosts[0].get_application_name(), None);
    }
}

//! URLs of Redis servers. No error shows a part of a URL that could be a secret.

use std::borrow::Cow;

use redis::{Client, ConnectionAddr, ConnectionInfo, IntoConnectionInfo, ProtocolVersion};

use super::endpoint::{Address, Endpoint};
use super::login::Login;
use crate::error::LockError;
use crate::safeguard::Safeguard;
use crate::store::settings::Settings;

/// The options of a URL with TLS.
const TLS_OPTIONS: [&str; 4] = ["tls_ca", "tls_cert", "tls_key", "tls_server_name"];
/// The options of a URL with a Unix socket.
const UNIX_OPTIONS: [&str; 3] = ["db", "user", "pass"];

/// The schemes, and what each of them means.
const SCHEMES: [(&str, Scheme); 6] = [
    ("redis", Scheme::Tcp),
    ("valkey", Scheme::Tcp),
    ("rediss", Scheme::Tls),
    ("valkeys", Scheme::Tls),
    ("redis+unix", Scheme::Unix),
    ("valkey+unix", Scheme::Unix),
];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Scheme {
    Tcp,
    Tls,
    Unix,
}

impl Scheme {
    /// The scheme by which redis-rs knows the same address without TLS.
    fn plain(self) -> &'static str {
        match self {
            Self::Tcp | Self::Tls => "redis",
            Self::Unix => "redis+unix",
        }
    }

    fn options(self) -> &'static [&'static str] {
        match self {
            Self::Tcp => &[],
            Self::Tls => &TLS_OPTIONS,
            Self::Unix => &UNIX_OPTIONS,
        }
    }
}

/// Whether a URL with this scheme names a Redis server.
pub(crate) fn is_redis(scheme: &str) -> bool {
    SCHEMES.iter().any(|(name, _)| name.eq_ignore_ascii_case(scheme))
}

/// The server that `url` names.
pub(super) fn parse(url: &str, settings: &Settings) -> Result<Endpoint, LockError> {
    let (name, rest) = url.split_once(':').unwrap_or_default();
    let scheme = SCHEMES
        .iter()
        .find(|(known, _)| known.eq_ignore_ascii_case(name))
        .map(|(_, scheme)| *scheme);
    let scheme = scheme.ok_or_else(|| error("the scheme of the URL is unknown"))?;
    // A `/`, `?` or `#` in a password ends the address too early. A part of the password would then
    // be shown as the address.
    let parts = rest.strip_prefix("//").and_then(|rest| rest.split_once(['/', '?', '#']));
    if scheme != Scheme::Unix && parts.is_some_and(|(_, after)| after.contains('@')) {
        return Err(error(
            "the URL contains an `@` after the address; special characters in the user name and the \
             password must be percent-encoded, such as `%23` for `#`, and so must an `@` in an \
             option, as `%40`",
        ));
    }
    let plain = format!("{}:{rest}", scheme.plain());
    let mut parsed = redis::parse_redis_url(&plain).ok_or_else(|| unusable("it is not a URL"))?;
    if parsed.fragment().is_some() {
        return Err(error(
            "the URL contains a `#`; special characters in the password must be percent-encoded, \
             such as `%23` for `#`, and TLS certificates are always verified",
        ));
    }
    let options = options(parsed.query_pairs(), scheme)?;
    if scheme != Scheme::Unix {
        parsed.set_query(None);
    }
    let info = parsed.into_connection_info().and_then(|info| {
        // Redis-rs checks more of the URL when it opens a client.
        Ok(Client::open(info)?.get_connection_info().clone())
    });
    // Only fixed texts of redis-rs are shown.
    let info = info.map_err(|error| match error.detail() {
        None => unusable(&error.to_string()),
        Some(_) => unusable(error.category()),
    })?;
    let endpoint = endpoint(url, &info, settings)?;
    if scheme == Scheme::Tls {
        with_tls(endpoint, settings, options)
    } else {
        without_tls(endpoint, settings)
    }
}

/// The options after the `?`, without those that redis-rs reads.
fn options<'a>(
    pairs: impl Iterator<Item = (Cow<'a, str>, Cow<'a, str>)>,
    scheme: Scheme,
) -> Result<Vec<(&'static str, String)>, LockError> {
    let mut options: Vec<(&'static str, String)> = Vec::new();
    for (name, value) in pairs {
        // Redis-rs users give it. Push messages, which announce releases, need version 3.
        if name == "protocol" && matches!(&*value, "3" | "resp3") {
            continue;
        }
        let Some(known) = scheme.options().iter().find(|known| **known == name) else {
            return Err(match TLS_OPTIONS.iter().find(|known| **known == name) {
                Some(known) => error(&format!("`{known}` needs `rediss://`")),
                None => unusable(&match scheme.options() {
                    [] => "the option after the `?` is unknown".to_owned(),
                    known => format!(
                        "an option after the `?` is unknown; the options are `{}`",
                        known.join("`, `")
                    ),
                }),
            });
        };
        if value.is_empty() {
            return Err(error(&format!("the option `{known}` of the URL is empty")));
        }
        if options.iter().any(|(earlier, _)| earlier == known) {
            return Err(error(&format!("the URL contains `{known}` twice")));
        }
        options.push((known, value.into_owned()));
    }
    Ok(options)
}

fn endpoint(url: &str, info: &ConnectionInfo, settings: &Settings) -> Result<Endpoint, LockError> {
    let mut shown = match info.addr() {
        // An IPv6 address.
        ConnectionAddr::Tcp(host, port) if host.contains(':') => format!("[{host}]:{port}"),
        other => other.to_string(),
    };
    if !Safeguard::SecretsAreHidden.is_on() {
        url.clone_into(&mut shown);
    }
    let address = match info.addr() {
        ConnectionAddr::Tcp(host, port) => Address::Tcp { host: host.clone(), port: *port },
        #[cfg(unix)]
        ConnectionAddr::Unix(path) => Address::Unix(path.clone()),
        _ => return Err(error("this system cannot connect to such an address")),
    };
    let login = info.redis_settings().clone().set_protocol(ProtocolVersion::RESP3);
    if settings.credentials.is_some() && (login.password().is_some() || login.username().is_some())
    {
        let problem = "the URL contains credentials as well; choose one".into();
        return Err(LockError::Config { option: "credentials", problem });
    }
    // A user with the documented permissions may not run `CLIENT SETINFO`.
    let login = Login::new(login.set_skip_set_lib_name(), settings.credentials.clone());
    Ok(Endpoint::new(address, shown, login))
}

#[cfg(feature = "tls")]
fn with_tls(
    endpoint: Endpoint,
    settings: &Settings,
    options: Vec<(&'static str, String)>,
) -> Result<Endpoint, LockError> {
    let mut tls = settings.tls.clone().unwrap_or_default();
    if !options.is_empty() && !tls.is_default() {
        return Err(error("TLS options are given both in the URL and with `tls`; choose one"));
    }
    for (name, value) in options {
        match name {
            "tls_ca" => tls.ca = Some(value.into()),
            "tls_cert" => tls.certificate = Some(value.into()),
            "tls_key" => tls.key = Some(value.into()),
            _ => tls.server_name = Some(value),
        }
    }
    Ok(endpoint.with_tls(super::tls::Tls::new(tls)?.into()))
}

#[cfg(not(feature = "tls"))]
fn with_tls(
    _: Endpoint,
    _: &Settings,
    _: Vec<(&'static str, String)>,
) -> Result<Endpoint, LockError> {
    Err(error("this build has no TLS; enable the feature `tls` of `lock-runtime`"))
}

#[cfg(feature = "tls")]
fn without_tls(endpoint: Endpoint, settings: &Settings) -> Result<Endpoint, LockError> {
    if settings.tls.is_some() {
        let problem = "the URL is without TLS; use `rediss://`".into();
        return Err(LockError::Config { option: "tls", problem });
    }
    Ok(endpoint)
}

#[cfg(not(feature = "tls"))]
#[allow(clippy::unnecessary_wraps)]
fn without_tls(endpoint: Endpoint, _: &Settings) -> Result<Endpoint, LockError> {
    Ok(endpoint)
}

fn error(problem: &str) -> LockError {
    LockError::Config { option: "url", problem: problem.to_owned() }
}

fn unusable(problem: &str) -> LockError {
    error(&format!(
        "the URL cannot be used ({problem}); expected \
         `redis://[[user]:password@]host[:port][/database]`, the same with `rediss://` for TLS, or \
         `redis+unix:///path`, with special characters in the password percent-encoded"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    const CANARY: &str = "c4nary";

    fn parse(url: &str) -> Result<Endpoint, LockError> {
        super::parse(url, &Settings::default())
    }

    fn problem(url: &str) -> String {
        match parse(url) {
            Err(LockError::Config { option: "url" | "tls", problem }) => problem,
            other => panic!("{url}: {other:?}"),
        }
    }

    #[test]
    fn the_address_is_shown_and_the_password_is_not() {
        for scheme in ["redis", "valkey"] {
            let url = format!("{scheme}://user:c4nary@localhost:7000/2?protocol=resp3");
            let endpoint = parse(&url).expect("valid");
            assert_eq!(endpoint.shown(), "localhost:7000");
            assert_eq!(endpoint.login().settings().db(), 2);
            assert!(!format!("{endpoint:?}").contains(CANARY));
        }
    }

    #[cfg(unix)]
    #[test]
    fn a_unix_socket_has_its_options_in_the_query() {
        let endpoint = parse("redis+unix:///run/a@b.sock?db=3&user=u&pass=c4nary").expect("valid");
        assert_eq!(endpoint.shown(), "/run/a@b.sock");
        let login = endpoint.login().settings();
        assert_eq!((login.db(), login.username()), (3, Some("u")));
        assert!(problem("redis+unix:///run/a.sock?database=3").contains("`db`"));
    }

    #[test]
    fn a_bad_url_is_explained_without_its_secrets() {
        for url in [
            "redis://user:c4nary@localhost:port",
            "redis://user:c4nary@",
            "redis://user:c4nary@localhost/database",
            "redis://user:c4nary%FF@localhost",
            "redis://user:c4nary@localhost?protocol=9",
            "redis://user:c4nary@localhost?c4nary=9",
            "redis://c4nary c4nary",
            "redis://user:1234#c4nary@localhost",
            "redis://user@localhost#c4nary",
            "redis://c4nary:1234/c4nary@localhost",
            "redis://c4nary:1234?c4nary@localhost",
        ] {
            let problem = problem(url);
            assert!(!problem.contains(CANARY), "{problem}");
            assert!(problem.contains("percent-encoded"), "{problem}");
        }
    }

    #[test]
    fn tls_options_need_tls() {
        let url = "redis://localhost?tls_ca=/ca.pem";
        assert_eq!(problem(url), "`tls_ca` needs `rediss://`");
    }

    #[cfg(not(feature = "tls"))]
    #[test]
    fn a_build_without_tls_names_the_feature() {
        assert!(problem("rediss://localhost").contains("feature `tls`"));
    }

    #[cfg(feature = "tls")]
    #[test]
    fn tls_options_are_checked() {
        use crate::tls::TlsOptions;

        for url in ["rediss://localhost", "valkeys://localhost:1?tls_ca=a&tls_server_name=b"] {
            assert!(parse(url).expect("valid").tls().is_some());
        }
        assert!(problem("rediss://localhost?tls_ca=a&tls_ca=b").contains("twice"));
        assert!(problem("rediss://localhost?tls_ca=").contains("is empty"));
        assert_eq!(parse("REDISS://[::1]:7000").expect("valid").shown(), "[::1]:7000");
        assert!(problem("rediss://localhost?tls_cert=a").contains("`tls_key`"));
        assert!(problem("rediss://localhost?tls_server_name=a b").contains("host name"));
        assert!(problem("rediss://localhost?ca=a").contains("`tls_ca`"));
        assert!(problem("rediss://localhost#insecure").contains("always verified"));

        let with = |options| Settings { tls: Some(options), ..Settings::default() };
        let settings = with(TlsOptions::new().ca_file("b"));
        let both = super::parse("rediss://localhost?tls_ca=a", &settings);
        assert!(both.is_err_and(|error| error.to_string().contains("choose one")));
        let plain = super::parse("redis://localhost", &with(TlsOptions::new()));
        assert!(plain.is_err_and(|error| error.to_string().contains("`rediss://`")));
    }
}

//! URLs of etcd.

use std::fmt;

use lock_core::error::LockError;
use lock_core::store::url_options::{TLS_OPTIONS, UrlOptions};

/// The port of clients that etcd uses by default.
const DEFAULT_PORT: u16 = 2379;

/// What a URL names: `etcd://[user:password@]host[:port][,host[:port]…]`, or `etcds://` for TLS, which may have options.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct EtcdAddress {
    /// Hosts with their ports, such as `10.0.0.1:2379` or `[::1]:2379`.
    pub(super) members: Vec<String>,
    /// The user and the password.
    pub(super) login: Option<(String, String)>,
    pub(super) tls: bool,
    pub(super) tls_options: UrlOptions,
}

/// Without the password.
impl fmt::Debug for EtcdAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { members, login, tls, tls_options } = self;
        let login = login.as_ref().map(|_| "…");
        let mut shown = f.debug_struct("EtcdAddress");
        shown.field("members", members).field("login", &login).field("tls", tls);
        shown.field("tls_options", tls_options).finish()
    }
}

impl EtcdAddress {
    /// Reads a URL. The error does not show it.
    pub(super) fn parse(url: &str) -> Result<Self, LockError> {
        let url = url.trim();
        let (tls, rest) = match url.split_once("://") {
            Some(("etcd", rest)) => (false, rest),
            Some(("etcds", rest)) => (true, rest),
            _ => {
                return Err(invalid("the URL of etcd does not start with `etcd://` or `etcds://`"));
            }
        };
        if rest.contains('#') {
            let problem = "the URL of etcd contains a `#` (in a password, write `%23` instead)";
            return Err(invalid(problem));
        }
        let (rest, tls_options) = match rest.split_once('?') {
            Some((rest, options)) => (rest, read_options(options, tls)?),
            None => (rest, UrlOptions::new()),
        };
        let (login, hosts) = match rest.rsplit_once('@') {
            Some((login, hosts)) => (Some(read_login(login)?), hosts),
            None => (None, rest),
        };
        let (hosts, path) = hosts.split_once('/').unwrap_or((hosts, ""));
        if !path.is_empty() {
            let problem = "URLs of etcd have no path; use the client's `namespace` for a prefix of \
                all keys (in a password, write `%2F` instead of `/`)";
            return Err(invalid(problem));
        }
        if hosts.is_empty() {
            return Err(invalid("the URL of etcd names no member; write `etcd://host:port`"));
        }
        let mut members: Vec<String> = Vec::new();
        for host in hosts.split(',') {
            let member = read_member(host)?;
            if members.contains(&member) {
                return Err(invalid(&format!("the URL of etcd names {member} twice")));
            }
            members.push(member);
        }
        Ok(Self { members, login, tls, tls_options })
    }
}

/// Reads the options after the `?`. Only names that are known are shown, because a password may have ended too early.
fn read_options(text: &str, tls: bool) -> Result<UrlOptions, LockError> {
    if text.contains('@') {
        return Err(invalid(
            "the URL of etcd contains an `@` after the members (in a password, write `%3F` instead of `?`, \
             and in an option, `%40` instead of `@`)",
        ));
    }
    let mut options = UrlOptions::new();
    for option in text.split('&').filter(|option| !option.is_empty()) {
        let (name, value) = option.split_once('=').unwrap_or((option, ""));
        let Some(name) = TLS_OPTIONS.into_iter().find(|known| *known == name) else {
            return Err(invalid(&format!(
                "the URL of etcd has an unknown option after the `?`; the options are `{}` (in a \
                 password, write `%3F` instead of `?`)",
                TLS_OPTIONS.join("`, `")
            )));
        };
        if !tls {
            return Err(invalid(&format!("`{name}` needs `etcds://`")));
        }
        let value =
            decoded(&value.replace('+', " ")).filter(|value| !value.is_empty()).ok_or_else(
                || invalid(&format!("`{name}` in the URL of etcd is empty or not percent-encoded")),
            )?;
        if options.iter().any(|(earlier, _)| *earlier == name) {
            return Err(invalid(&format!("the URL of etcd contains `{name}` twice")));
        }
        options.push((name, value));
    }
    Ok(options)
}

fn read_login(login: &str) -> Result<(String, String), LockError> {
    let Some((user, password)) = login.split_once(':') else {
        return Err(invalid("the URL of etcd has a user without a password: `user:password@`"));
    };
    let wrong = || invalid("the user or the password in the URL of etcd is not percent-encoded");
    let user = decoded(user).ok_or_else(wrong)?;
    let password = decoded(password).ok_or_else(wrong)?;
    if user.is_empty() || password.is_empty() {
        return Err(invalid("the URL of etcd has an empty user or password: `user:password@`"));
    }
    Ok((user, password))
}

/// The address of a member in a URL that it announces, such as `http://10.0.0.1:2379`. `None` if it cannot be used.
pub(super) fn announced(url: &str, uses_tls: bool) -> Option<String> {
    let rest = url.strip_prefix(if uses_tls { "https://" } else { "http://" })?;
    read_member(rest.trim_end_matches('/')).ok()
}

/// A host with its port.
fn read_member(text: &str) -> Result<String, LockError> {
    let wrong = |what: &str| {
        invalid(&format!("the URL of etcd has {what}; write `etcd://host:port,host:port`"))
    };
    let (host, port) = match text.strip_prefix('[') {
        Some(rest) => {
            let (address, port) = rest.split_once(']').ok_or_else(|| wrong("an open bracket"))?;
            let address: std::net::Ipv6Addr =
                address.parse().map_err(|_| wrong("an invalid IPv6 address in brackets"))?;
            let port = match port.strip_prefix(':') {
                Some(port) => Some(port),
                None if port.is_empty() => None,
                None => return Err(wrong("something other than a port after a bracket")),
            };
            (format!("[{address}]"), port)
        }
        None => match text.split_once(':') {
            Some((_, port)) if port.contains(':') => {
                return Err(wrong("several colons in one member (IPv6 addresses need brackets)"));
            }
            Some((host, port)) => (host.to_ascii_lowercase(), Some(port)),
            None => (text.to_ascii_lowercase(), None),
        },
    };
    let is_plain = |letter: char| letter.is_ascii_alphanumeric() || "-._".contains(letter);
    if !host.starts_with('[') && (host.is_empty() || !host.chars().all(is_plain)) {
        return Err(wrong("a member that is empty or no host name"));
    }
    let port = match port {
        None => DEFAULT_PORT,
        Some(port) => match port.parse() {
            Ok(port) if port > 0 => port,
            _ => return Err(wrong("an invalid port")),
        },
    };
    Ok(format!("{host}:{port}"))
}

/// Undoes percent-encoding.
fn decoded(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        if byte == b'%' {
            let digit = |byte: u8| char::from(byte).to_digit(16);
            let (high, low) = (digit(rest.next()?)?, digit(rest.next()?)?);
            bytes.push(u8::try_from(high * 16 + low).ok()?);
        } else {
            bytes.push(byte);
        }
    }
    String::from_utf8(bytes).ok()
}

pub(super) fn invalid(problem: &str) -> LockError {
    LockError::config("url", problem)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problem(url: &str) -> String {
        match EtcdAddress::parse(url) {
            Err(LockError::Config { option: "url", problem, .. }) => problem,
            other => panic!("{url}: {other:?}"),
        }
    }

    #[test]
    fn a_url_names_members_and_a_user() {
        let one = EtcdAddress::parse(" etcd://LocalHost ").expect("a URL");
        assert_eq!((one.members, one.login, one.tls), (vec!["localhost:2379".into()], None, false));
        let url = "etcds://us%40er:p%3aw%2F@a:1,10.0.0.2:2,[::1]:3,[fe80::1]/";
        let all = EtcdAddress::parse(url).expect("a URL");
        assert_eq!(all.members, ["a:1", "10.0.0.2:2", "[::1]:3", "[fe80::1]:2379"]);
        assert_eq!(all.login, Some(("us@er".into(), "p:w/".into())));
        assert!(all.tls && all.tls_options.is_empty());
        let url = "etcds://u:p@a/?tls_ca=/etc/ca%20a%40b+c%2B.pem&tls_server_name=b&";
        let options = EtcdAddress::parse(url).expect("a URL").tls_options;
        let expected = [("tls_ca", "/etc/ca a@b c+.pem".into()), ("tls_server_name", "b".into())];
        assert_eq!(options, expected);
    }

    #[test]
    fn an_invalid_url_is_explained() {
        for (url, text) in [
            ("http://a", "does not start with"),
            ("etcd:a", "does not start with"),
            ("etcd://", "names no member"),
            ("etcd://u:p@", "names no member"),
            ("etcd:///", "names no member"),
            ("etcd://a,", "empty or no host name"),
            ("etcd://,a", "empty or no host name"),
            ("etcd://a b", "empty or no host name"),
            ("etcd://a:0", "an invalid port"),
            ("etcd://a:65536", "an invalid port"),
            ("etcd://a:", "an invalid port"),
            ("etcd://a:x", "an invalid port"),
            ("etcd://::1", "brackets"),
            ("etcd://[::1", "an open bracket"),
            ("etcd://[a]", "an invalid IPv6 address"),
            ("etcd://[::1]2379", "something other than a port"),
            ("etcd://a,b,A:2379", "names a:2379 twice"),
            ("etcd://[::1],[0::1]", "names [::1]:2379 twice"),
            ("etcd://a/prefix", "namespace"),
            ("etcd://a#b", "contains a `#`"),
            ("etcds://a?tls=true", "an unknown option"),
            ("etcds://a?tls_ca=a@b", "contains an `@`"),
            ("etcds://a?tls_ca", "`tls_ca` in the URL of etcd is empty"),
            ("etcds://a?tls_ca=%zz", "not percent-encoded"),
            ("etcds://a?tls_ca=a&tls_ca=b", "`tls_ca` twice"),
            ("etcd://a?tls_ca=a", "`tls_ca` needs `etcds://`"),
            ("etcd://user@a", "without a password"),
            ("etcd://:p@a", "an empty user or password"),
            ("etcd://u:@a", "an empty user or password"),
            ("etcd://u:%zz@a", "not percent-encoded"),
            ("etcd://u:%ff@a", "not percent-encoded"),
        ] {
            let problem = problem(url);
            assert!(problem.contains(text), "{url}: {problem}");
        }
    }

    #[test]
    fn an_announced_address_is_used_if_its_scheme_fits() {
        assert_eq!(announced("http://Host:1", false).as_deref(), Some("host:1"));
        assert_eq!(announced("https://[::1]:1/", true).as_deref(), Some("[::1]:1"));
        for (url, uses_tls) in [
            ("https://a:1", false),
            ("http://a:1", true),
            ("unix://a:1", false),
            ("http://a:1/path", false),
            ("http://user:password@a:1", false),
            ("", false),
        ] {
            assert_eq!(announced(url, uses_tls), None, "{url}");
        }
    }

    #[test]
    fn no_secret_is_shown() {
        let address = EtcdAddress::parse("etcd://user:geheim@a").expect("a URL");
        assert!(!format!("{address:?}").contains("geheim"));
        for url in [
            "etcd://user:geheim@",
            "etcd://user:geheim@a:x",
            "etcd://u:geheim?@a",
            "etcds://u:p?geheim@a",
            "etcds://u:p?tls_ca=&geheim@a",
            "etcds://u:p#geheim@a",
        ] {
            assert!(!problem(url).contains("geheim"));
        }
    }
}

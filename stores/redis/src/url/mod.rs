//! URLs of Redis servers. No error shows a part of a URL that could be a secret.

mod cluster;
mod hosts;
mod parts;
mod quorum;
mod scheme;
mod sentinels;
mod server;

pub(super) use self::cluster::ClusterUrl;
pub(super) use self::quorum::parse_quorum;
use self::scheme::Scheme;
pub use self::scheme::{is_redis, is_redlock};
pub(super) use self::sentinels::SentinelUrl;
use crate::transport::endpoint::Endpoint;
use lock_core::error::LockError;
use lock_core::store::settings::Settings;

/// What a URL names.
#[derive(Debug)]
pub(super) enum UrlTarget {
    Server(Endpoint),
    Sentinels(SentinelUrl),
    Cluster(ClusterUrl),
}

/// Parses a URL. Does not connect.
pub(super) fn parse(url: &str, settings: &Settings) -> Result<UrlTarget, LockError> {
    let (name, rest) = url.split_once(':').unwrap_or_default();
    let scheme = Scheme::named(name)?;
    Ok(match scheme {
        Scheme::Tcp | Scheme::Tls | Scheme::Unix => {
            UrlTarget::Server(server::parse(scheme, rest, settings)?)
        }
        Scheme::Sentinel | Scheme::SentinelTls => {
            UrlTarget::Sentinels(sentinels::parse(scheme, rest, settings)?)
        }
        Scheme::Cluster | Scheme::ClusterTls => {
            UrlTarget::Cluster(cluster::parse(scheme, rest, settings)?)
        }
        Scheme::Redlock | Scheme::RedlockTls => {
            return Err(parts::error("a quorum is no server of another quorum; name the servers"));
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const CANARY: &str = "c4nary";

    fn parse_with(url: &str, settings: &Settings) -> Result<Endpoint, LockError> {
        super::parse(url, settings).map(|target| match target {
            UrlTarget::Server(server) => server,
            other => panic!("{other:?}"),
        })
    }

    fn parse(url: &str) -> Result<Endpoint, LockError> {
        parse_with(url, &Settings::default())
    }

    fn problem(url: &str) -> String {
        match parse(url) {
            Err(LockError::Config { option: "url" | "tls", problem, .. }) => problem,
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
        use lock_core::tls::TlsOptions;

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
        let both = parse_with("rediss://localhost?tls_ca=a", &settings);
        assert!(both.is_err_and(|error| error.to_string().contains("choose one")));
        let plain = parse_with("redis://localhost", &with(TlsOptions::new()));
        assert!(plain.is_err_and(|error| error.to_string().contains("`rediss://`")));
    }

    #[test]
    fn a_scheme_of_another_library_is_explained() {
        for (foreign, own) in [
            ("redis-sentinel://c4nary@one:1?sentinelServiceName=m", "`redis+sentinel://"),
            ("redis-sentinel://c4nary@one:1,two:1#m", "`redis+sentinel://"),
            ("rediss-sentinel://c4nary@one:1", "`rediss+sentinel://"),
            ("sentinel://one/m", "`redis+sentinel://"),
            ("redis-cluster://c4nary@one:1", "`redis+cluster://host:port,host:port`"),
        ] {
            let problem = problem(foreign);
            assert!(problem.contains(own) && !problem.contains(CANARY), "{problem}");
        }
    }

    #[test]
    fn a_url_names_sentinels_or_a_cluster_under_both_names() {
        for scheme in ["redis+sentinel", "valkey+sentinel"] {
            let target = super::parse(&format!("{scheme}://one/m"), &Settings::default());
            assert!(matches!(target, Ok(UrlTarget::Sentinels(_))), "{target:?}");
        }
        for scheme in ["redis+cluster", "valkey+cluster"] {
            let target = super::parse(&format!("{scheme}://one"), &Settings::default());
            assert!(matches!(target, Ok(UrlTarget::Cluster(_))), "{target:?}");
        }
        for scheme in ["rediss+sentinel", "valkeys+sentinel", "rediss+cluster", "valkeys+cluster"] {
            let path = if scheme.ends_with("cluster") { "" } else { "/m" };
            let target = super::parse(&format!("{scheme}://one{path}"), &Settings::default());
            assert_eq!(target.is_ok(), cfg!(feature = "tls"), "{target:?}");
        }
    }
}

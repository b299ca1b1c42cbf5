//! The servers that a URL names, and how to connect to each of them.

use std::collections::HashMap;

use redis::{Client, ClientTlsConfig, IntoConnectionInfo, RedisConnectionInfo, TlsCertificates};

use crate::exit::Failure;

/// What a URL says about servers. The library has accepted the URL.
#[derive(Debug)]
pub(super) struct ServersUrl {
    pub(super) kind: ServersKind,
    /// `redis` or `rediss`.
    scheme: &'static str,
    /// With an `@` at the end, or empty.
    login: String,
    /// The servers, each with its port. For a Unix socket, the whole URL.
    pub(super) hosts: Vec<String>,
    database: String,
    /// The login for sentinels.
    sentinel_login: RedisConnectionInfo,
    certificates: TlsCertificates,
}

/// Which servers they are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum ServersKind {
    One,
    /// Sentinels, and the name of their master.
    Sentinels(String),
    Cluster,
}

/// Why the servers of a URL cannot be examined.
#[derive(Debug)]
pub(super) enum NoServers {
    /// The store is no server.
    OtherStore,
    /// The certificate is that of another name.
    ServerName,
    /// A file cannot be read.
    File(Failure),
}

impl ServersUrl {
    /// Reads the URL, and the certificates that it names.
    pub(super) async fn read(url: &str) -> Result<Self, NoServers> {
        let mut servers = Self::parse(url)?;
        let options = options(url);
        if options.contains_key("tls_server_name") {
            return Err(NoServers::ServerName);
        }
        let file = async |name: &str| match options.get(name) {
            Some(path) => contents(path.clone()).await.map(Some).map_err(NoServers::File),
            None => Ok(None),
        };
        servers.certificates.root_cert = file("tls_ca").await?;
        let certificate = file("tls_cert").await?.zip(file("tls_key").await?);
        servers.certificates.client_tls = certificate
            .map(|(client_cert, client_key)| ClientTlsConfig { client_cert, client_key });
        Ok(servers)
    }

    fn parse(url: &str) -> Result<Self, NoServers> {
        let (scheme, rest) = url.split_once("://").ok_or(NoServers::OtherStore)?;
        let scheme = scheme.to_ascii_lowercase().replacen("valkey", "redis", 1);
        let (transport, kind) = scheme.split_once('+').unwrap_or((&scheme, ""));
        let has_tls = transport == "rediss";
        if !has_tls && transport != "redis" {
            return Err(NoServers::OtherStore);
        }
        let authority = rest.split('?').next().unwrap_or(rest);
        let (authority, path) = authority.split_once('/').unwrap_or((authority, ""));
        let (login, hosts) = match authority.rsplit_once('@') {
            Some((login, hosts)) => (format!("{login}@"), hosts),
            None => (String::new(), authority),
        };
        let (kind, database, port) = match kind {
            "sentinel" => {
                let (name, database) = path.split_once('/').unwrap_or((path, ""));
                (ServersKind::Sentinels(name.to_owned()), database, 26379)
            }
            "cluster" => (ServersKind::Cluster, "", 6379),
            _ => (ServersKind::One, path, 6379),
        };
        let hosts = match scheme.as_str() {
            "redis+unix" => vec![format!("redis+unix://{rest}")],
            _ => hosts.split(',').map(|host| with_port(host, port)).collect(),
        };
        let options = options(url);
        let mut sentinel_login = RedisConnectionInfo::default();
        if let Some(user) = options.get("sentinel_user") {
            sentinel_login = sentinel_login.set_username(user);
        }
        if let Some(password) = options.get("sentinel_pass") {
            sentinel_login = sentinel_login.set_password(password);
        }
        Ok(Self {
            kind,
            scheme: if has_tls { "rediss" } else { "redis" },
            login,
            hosts,
            database: database.to_owned(),
            sentinel_login,
            certificates: TlsCertificates { client_tls: None, root_cert: None },
        })
    }

    /// A client of the server at this address.
    pub(super) fn server(&self, address: &str) -> redis::RedisResult<Client> {
        if address.contains("://") {
            return Client::open(address);
        }
        let url = format!("{}://{}{address}/{}", self.scheme, self.login, self.database);
        self.client(url.into_connection_info()?)
    }

    /// A client of the sentinel at this address.
    pub(super) fn sentinel(&self, address: &str) -> redis::RedisResult<Client> {
        let info = format!("{}://{address}", self.scheme).into_connection_info()?;
        self.client(info.set_redis_settings(self.sentinel_login.clone()))
    }

    fn client(&self, info: redis::ConnectionInfo) -> redis::RedisResult<Client> {
        match self.scheme {
            "rediss" => Client::build_with_tls(info, self.certificates.clone()),
            _ => Client::open(info),
        }
    }
}

/// The options after the question mark.
fn options(url: &str) -> HashMap<String, String> {
    let query = url.split_once('?').map_or("", |(_, query)| query);
    let parsed = redis::parse_redis_url(&format!("redis://localhost/?{query}"));
    let pairs = parsed.iter().flat_map(|url| url.query_pairs());
    pairs.map(|(name, value)| (name.into_owned(), value.into_owned())).collect()
}

/// A host with its port, or with the usual one.
pub(super) fn with_port(host: &str, port: u16) -> String {
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|it| it.is_ascii_digit());
    match host.rsplit_once(':') {
        Some((_, port)) if is_number(port) => host.to_owned(),
        _ => format!("{host}:{port}"),
    }
}

/// The contents of a file, read by another thread.
async fn contents(path: String) -> Result<Vec<u8>, Failure> {
    let shown = path.clone();
    let read = tokio::task::spawn_blocking(move || std::fs::read(path)).await;
    let failure = |error: String| Failure::new(crate::exit::Code::Config, error);
    let read = read.map_err(|error| failure(format!("cannot read {shown}: {error}")))?;
    read.map_err(|error| failure(format!("cannot read {shown}: {error}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_name_servers() {
        let sentinels = ServersKind::Sentinels("main".to_owned());
        for (url, kind, hosts, server) in [
            ("redis://h,i", ServersKind::One, ["h:6379", "i:6379"], "redis://h:6379/"),
            (
                "valkeys://u:p@[::1],b:7/3",
                ServersKind::One,
                ["[::1]:6379", "b:7"],
                "rediss://u:p@[::1]/3",
            ),
            ("redis+cluster://a,b:1", ServersKind::Cluster, ["a:6379", "b:1"], "redis://a:6379/"),
            (
                "redis+sentinel://:p@a,b:1/main/2?sentinel_pass=x%40y",
                sentinels,
                ["a:26379", "b:1"],
                "redis://:p@a:26379/2",
            ),
        ] {
            let parsed = ServersUrl::parse(url).expect(url);
            assert_eq!((&parsed.kind, &parsed.hosts[..]), (&kind, &hosts.map(str::to_owned)[..]));
            let expected = server.into_connection_info().expect("valid");
            let client = parsed.server(&parsed.hosts[0]).expect("valid");
            let found = client.get_connection_info();
            assert_eq!(found.addr().to_string(), expected.addr().to_string(), "{url}");
            let settings = |info: &redis::ConnectionInfo| {
                let settings = info.redis_settings().clone();
                let [user, password] = [settings.username(), settings.password()]
                    .map(|text| text.map(ToOwned::to_owned));
                (user, password, settings.db())
            };
            assert_eq!(settings(found), settings(&expected), "{url}");
        }
        assert!(matches!(ServersUrl::parse("memory:"), Err(NoServers::OtherStore)));
        assert!(matches!(ServersUrl::parse("http://host"), Err(NoServers::OtherStore)));
    }

    #[test]
    fn sentinels_have_a_login_of_their_own() {
        let url = "redis+sentinel://:p@a/main?sentinel_user=one&sentinel_pass=x%40y";
        let servers = ServersUrl::parse(url).expect("valid");
        let client = servers.sentinel("a:1").expect("valid");
        let login = client.get_connection_info().redis_settings();
        assert_eq!((login.username(), login.password()), (Some("one"), Some("x@y")));
    }
}

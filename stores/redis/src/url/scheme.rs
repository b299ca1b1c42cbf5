//! The schemes of URLs, and the options that each of them has.

use lock_core::error::LockError;
use lock_core::store::url_options::TLS_OPTIONS;

/// The options of a URL with a Unix socket.
const UNIX_OPTIONS: [&str; 3] = ["db", "user", "pass"];
/// The options of a URL that names sentinels, without and with TLS.
const SENTINEL_OPTIONS: [&str; 2] = ["sentinel_user", "sentinel_pass"];
const SENTINEL_TLS_OPTIONS: [&str; 6] =
    ["sentinel_user", "sentinel_pass", "tls_ca", "tls_cert", "tls_key", "tls_server_name"];

/// The schemes, and what each of them means.
const SCHEMES: [(&str, Scheme); 18] = [
    ("redis", Scheme::Tcp),
    ("valkey", Scheme::Tcp),
    ("rediss", Scheme::Tls),
    ("valkeys", Scheme::Tls),
    ("redis+unix", Scheme::Unix),
    ("valkey+unix", Scheme::Unix),
    ("redis+sentinel", Scheme::Sentinel),
    ("valkey+sentinel", Scheme::Sentinel),
    ("rediss+sentinel", Scheme::SentinelTls),
    ("valkeys+sentinel", Scheme::SentinelTls),
    ("redis+cluster", Scheme::Cluster),
    ("valkey+cluster", Scheme::Cluster),
    ("rediss+cluster", Scheme::ClusterTls),
    ("valkeys+cluster", Scheme::ClusterTls),
    ("redis+redlock", Scheme::Redlock),
    ("valkey+redlock", Scheme::Redlock),
    ("rediss+redlock", Scheme::RedlockTls),
    ("valkeys+redlock", Scheme::RedlockTls),
];

/// Schemes of other libraries, and what they are called here.
const FOREIGN: [(&str, &str); 10] = [
    ("redis-sentinel", "redis+sentinel"),
    ("rediss-sentinel", "rediss+sentinel"),
    ("redis-sentinels", "rediss+sentinel"),
    ("valkey-sentinel", "valkey+sentinel"),
    ("valkeys-sentinel", "valkeys+sentinel"),
    ("sentinel", "redis+sentinel"),
    ("redis-cluster", "redis+cluster"),
    ("rediss-cluster", "rediss+cluster"),
    ("valkey-cluster", "valkey+cluster"),
    ("valkeys-cluster", "valkeys+cluster"),
];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Scheme {
    Tcp,
    Tls,
    Unix,
    Sentinel,
    SentinelTls,
    Cluster,
    ClusterTls,
    Redlock,
    RedlockTls,
}

impl Scheme {
    pub(super) fn named(name: &str) -> Result<Self, LockError> {
        if let Some((_, scheme)) =
            SCHEMES.iter().find(|(known, _)| known.eq_ignore_ascii_case(name))
        {
            return Ok(*scheme);
        }
        let problem = match FOREIGN.iter().find(|(foreign, _)| *foreign == name) {
            Some((_, known)) => {
                let master = if known.ends_with("cluster") { "" } else { "/master-name" };
                format!(
                    "the scheme `{name}://` is that of another library; write \
                     `{known}://host:port,host:port{master}`"
                )
            }
            None => "the scheme of the URL is unknown".into(),
        };
        Err(LockError::config("url", problem))
    }

    pub(super) fn options(self) -> &'static [&'static str] {
        match self {
            Self::Tcp | Self::Cluster | Self::Redlock => &[],
            Self::Tls | Self::ClusterTls | Self::RedlockTls => &TLS_OPTIONS,
            Self::Unix => &UNIX_OPTIONS,
            Self::Sentinel => &SENTINEL_OPTIONS,
            Self::SentinelTls => &SENTINEL_TLS_OPTIONS,
        }
    }

    pub(super) fn has_tls(self) -> bool {
        matches!(self, Self::Tls | Self::SentinelTls | Self::ClusterTls | Self::RedlockTls)
    }

    /// The scheme for the same servers with TLS.
    pub(super) fn secure(self) -> &'static str {
        match self {
            Self::Tcp | Self::Tls | Self::Unix => "rediss://",
            Self::Sentinel | Self::SentinelTls => "rediss+sentinel://",
            Self::Cluster | Self::ClusterTls => "rediss+cluster://",
            Self::Redlock | Self::RedlockTls => "rediss+redlock://",
        }
    }

    /// The form of a URL with this scheme, for messages.
    pub(super) fn form(self) -> &'static str {
        match self {
            Self::Tcp | Self::Tls | Self::Unix => {
                "`redis://[[user]:password@]host[:port][/database]`, the same with `rediss://` for \
                 TLS, or `redis+unix:///path`"
            }
            Self::Sentinel | Self::SentinelTls => {
                "`redis+sentinel://[[user]:password@]host[:port],host[:port]/master-name[/database]` \
                 with the hosts of the sentinels, or the same with `rediss+sentinel://` for TLS"
            }
            Self::Cluster | Self::ClusterTls => {
                "`redis+cluster://[[user]:password@]host[:port],host[:port]` with nodes of the \
                 cluster, or the same with `rediss+cluster://` for TLS"
            }
            Self::Redlock | Self::RedlockTls => {
                "`redis+redlock://[[user]:password@]host[:port],host[:port],host[:port][/database]` with an odd \
                 number of servers that are independent of each other, or the same with `rediss+redlock://` for TLS"
            }
        }
    }
}

/// Whether a URL with this scheme names the servers of a quorum.
pub fn is_redlock(scheme: &str) -> bool {
    matches!(Scheme::named(scheme), Ok(Scheme::Redlock | Scheme::RedlockTls))
}

/// Whether a URL with this scheme names a Redis server.
pub fn is_redis(scheme: &str) -> bool {
    let known = SCHEMES.iter().map(|(name, _)| name);
    known.chain(FOREIGN.iter().map(|(name, _)| name)).any(|name| name.eq_ignore_ascii_case(scheme))
}

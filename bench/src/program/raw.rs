//! The limit: redis-rs with only the two commands that a lock needs.

use std::sync::Arc;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::{Result, ensure};
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Client, Script, TlsCertificates};

use super::library::{LEASE, Library};

static RELEASE: LazyLock<Script> = LazyLock::new(|| {
    Script::new(
        "if redis.call('get', KEYS[1]) ~= ARGV[1] then return 0 end
         redis.call('del', KEYS[1])
         return 1 + redis.call('publish', ARGV[2], '')",
    )
});

/// The next token. Tokens must differ, but need not be unpredictable.
static TOKEN: AtomicU64 = AtomicU64::new(0);

#[derive(Clone)]
pub(super) struct Raw(MultiplexedConnection);

pub(super) struct RawKey {
    connection: MultiplexedConnection,
    name: Arc<str>,
    channel: Arc<str>,
}

pub(super) struct Taken {
    connection: MultiplexedConnection,
    name: Arc<str>,
    channel: Arc<str>,
    token: u64,
}

impl Raw {
    pub(super) async fn connect(url: &str) -> Result<Self> {
        // The default socket settings, because many small writes are slower with TCP_NODELAY.
        let client = match url.split_once("?tls_ca=") {
            Some((url, authority)) => {
                // Fails if there is a provider already.
                let _ = rustls::crypto::ring::default_provider().install_default();
                let root_cert = Some(std::fs::read(authority)?);
                Client::build_with_tls(url, TlsCertificates { client_tls: None, root_cert })?
            }
            None => Client::open(url)?,
        };
        // No response timeout, to avoid a timer per command.
        let config = AsyncConnectionConfig::new().set_response_timeout(None);
        Ok(Self(client.get_multiplexed_async_connection_with_config(&config).await?))
    }
}

impl Library for Raw {
    type Lock = RawKey;
    type Guard = Taken;

    const RENEWS: bool = false;

    fn settings(&self) -> (String, String) {
        let settings = "redis-rs, one multiplexed connection, no timeouts; SET NX PX, \
                        then EVALSHA of compare, delete and publish; no lock library";
        ("1.8".to_owned(), settings.to_owned())
    }

    fn lock(&self, key: &str) -> RawKey {
        RawKey {
            connection: self.0.clone(),
            name: key.into(),
            channel: format!("lock_wake:{{{key}}}").into(),
        }
    }

    async fn acquire(key: &RawKey) -> Result<Taken> {
        let RawKey { mut connection, name, channel } = RawKey {
            connection: key.connection.clone(),
            name: key.name.clone(),
            channel: key.channel.clone(),
        };
        let token = TOKEN.fetch_add(1, Ordering::Relaxed);
        let mut set = redis::cmd("SET");
        set.arg(&*name).arg(token).arg("NX").arg("PX").arg(LEASE.as_secs() * 1000);
        let granted: bool = set.query_async(&mut connection).await?;
        ensure!(granted, "{name} is busy, and this contestant does not wait");
        Ok(Taken { connection, name, channel, token })
    }

    async fn release(mut taken: Taken) -> Result<()> {
        let mut release = RELEASE.prepare_invoke();
        release.key(&*taken.name).arg(taken.token).arg(&*taken.channel);
        let released: u64 = release.invoke_async(&mut taken.connection).await?;
        ensure!(released > 0, "{} was no longer held", taken.name);
        Ok(())
    }
}

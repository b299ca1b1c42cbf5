//! The limit: redis-rs with only the two commands that a lock needs.

use std::sync::Arc;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::{Context, Result, ensure};
use redis::aio::{ConnectionLike, MultiplexedConnection};
use redis::cluster::ClusterClient;
use redis::cluster_async::ClusterConnection;
use redis::io::tcp::TcpSettings;
use redis::{AsyncConnectionConfig, Client, IntoConnectionInfo, Script, TlsCertificates, Value};

use super::library::{LEASE, Library};

/// Deletes a key with this token.
pub(super) const RELEASE_SCRIPT: &str = "if redis.call('get', KEYS[1]) ~= ARGV[1] then return 0 end
         return redis.call('del', KEYS[1])";

static RELEASE: LazyLock<Script> = LazyLock::new(|| Script::new(RELEASE_SCRIPT));

/// The name of the script at a server.
pub(super) fn release_hash() -> String {
    RELEASE.get_hash().to_owned()
}

/// The next token. Tokens must differ, but need not be unpredictable.
static TOKEN: AtomicU64 = AtomicU64::new(0);

/// The number of slots of a cluster.
const SLOTS: u16 = 16_384;

#[derive(Clone)]
pub(super) struct Raw<C> {
    connections: Arc<[C]>,
    /// For each slot of a cluster, the index of its connection. Empty for one connection.
    by_slot: Arc<[usize]>,
    about: &'static str,
}

pub(super) struct RawKey<C> {
    connection: C,
    name: Arc<str>,
}

pub(super) struct RawTaken<C> {
    connection: C,
    name: Arc<str>,
    token: u64,
}

impl Raw<MultiplexedConnection> {
    /// Connects to a server, or to all masters of a cluster.
    pub(super) async fn connect(url: &str) -> Result<Self> {
        if let Some(nodes) = url.strip_prefix("redis+cluster://") {
            return Self::connect_to_nodes(nodes).await;
        }
        let client = match url.split_once("?tls_ca=") {
            Some((url, authority)) => {
                // Fails if there is a provider already.
                let _ = rustls::crypto::ring::default_provider().install_default();
                let root_cert = Some(std::fs::read(authority)?);
                Client::build_with_tls(url, TlsCertificates { client_tls: None, root_cert })?
            }
            None => Client::open(url)?,
        };
        let about = "redis-rs, one multiplexed connection, no timeouts; SET NX PX, then EVALSHA of \
                     compare and delete; no lock library";
        Ok(Self { connections: [open(&client).await?].into(), by_slot: Arc::new([]), about })
    }

    async fn connect_to_nodes(nodes: &str) -> Result<Self> {
        let seed = format!("redis://{}", nodes.split(',').next().unwrap_or(nodes));
        let mut seed = Client::open(seed)?.get_multiplexed_async_connection().await?;
        let ranges: Vec<Vec<Value>> =
            redis::cmd("CLUSTER").arg("SLOTS").query_async(&mut seed).await?;
        let (mut connections, mut by_slot) = (Vec::new(), vec![0; SLOTS.into()]);
        for range in ranges {
            let [first, last, master, ..] = &range[..] else { continue };
            let (first, last): (usize, usize) =
                (redis::from_redis_value_ref(first)?, redis::from_redis_value_ref(last)?);
            let Value::Array(master) = master else { continue };
            let [host, port, ..] = &master[..] else { continue };
            let host: String = redis::from_redis_value_ref(host)?;
            let port: u16 = redis::from_redis_value_ref(port)?;
            by_slot[first..=last].fill(connections.len());
            // Faster here, because each connection has few requests to write together.
            let tcp = TcpSettings::default().set_nodelay(true);
            let node = format!("redis://{host}:{port}").into_connection_info()?;
            connections.push(open(&Client::open(node.set_tcp_settings(tcp))?).await?);
        }
        let about = "redis-rs, one multiplexed connection to each master, slots read at the start, \
                     no timeouts; the same commands as with one server; no lock library";
        Ok(Self { connections: connections.into(), by_slot: by_slot.into(), about })
    }
}

/// Connects without a response timeout, to avoid a timer per command. With one server, the sockets
/// have the default settings, because many small writes are slower with `TCP_NODELAY`.
async fn open(client: &Client) -> Result<MultiplexedConnection> {
    let config = AsyncConnectionConfig::new().set_response_timeout(None);
    Ok(client.get_multiplexed_async_connection_with_config(&config).await?)
}

impl Raw<ClusterConnection> {
    /// Connects with the cluster client of redis-rs.
    pub(super) async fn connect_cluster(url: &str) -> Result<Self> {
        let nodes = url.strip_prefix("redis+cluster://").context("not the URL of a cluster")?;
        let client = ClusterClient::new(nodes.split(',').map(|node| format!("redis://{node}")))?;
        let connection = client.get_async_connection().await?;
        let about = "the cluster client of redis-rs with its default settings; the commands of \
                     `raw`; no lock library";
        Ok(Self { connections: [connection].into(), by_slot: Arc::new([]), about })
    }
}

impl<C: ConnectionLike + Clone + Send + Sync + 'static> Library for Raw<C> {
    type Lock = RawKey<C>;
    type Guard = RawTaken<C>;

    const RENEWS: bool = false;

    fn settings(&self) -> (String, String) {
        ("1.8".to_owned(), self.about.to_owned())
    }

    /// The key has no braces.
    fn lock(&self, key: &str) -> RawKey<C> {
        let slot = crc16::State::<crc16::XMODEM>::calculate(key.as_bytes()) % SLOTS;
        let connection = self.by_slot.get(usize::from(slot)).copied().unwrap_or_default();
        RawKey { connection: self.connections[connection].clone(), name: key.into() }
    }

    async fn acquire(key: &RawKey<C>) -> Result<RawTaken<C>> {
        let (mut connection, name) = (key.connection.clone(), key.name.clone());
        let token = TOKEN.fetch_add(1, Ordering::Relaxed);
        let mut set = redis::cmd("SET");
        set.arg(&*name).arg(token).arg("NX").arg("PX").arg(LEASE.as_secs() * 1000);
        let granted: bool = set.query_async(&mut connection).await?;
        ensure!(granted, "{name} is busy, and this contestant does not wait");
        Ok(RawTaken { connection, name, token })
    }

    async fn release(mut taken: RawTaken<C>) -> Result<()> {
        let mut release = RELEASE.prepare_invoke();
        release.key(&*taken.name).arg(taken.token);
        let released: u64 = release.invoke_async(&mut taken.connection).await?;
        ensure!(released > 0, "{} was no longer held", taken.name);
        Ok(())
    }
}

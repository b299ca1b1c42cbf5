//! Faults of a Redis Cluster.

mod failovers;
mod logins;
mod nodes;
mod slots;
mod stale;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use lock_runtime::{LockClient, WireFormat};
use lock_tests::Cluster;
use tokio::task::JoinSet;

use crate::support::until;

/// Longer than a failover takes: the nodes notice the failure after the node timeout, and elect a
/// successor within about as long again.
const LONG_LEASE: Duration = Duration::from_secs(12);

/// How soon after a change a client must have noticed it.
const SOON: Duration = Duration::from_secs(2);

const FORMATS: [WireFormat; 3] = [WireFormat::Token, WireFormat::Redisson, WireFormat::Timestamp];

/// Waits until the replica of a shard has `key`.
async fn until_replicated(cluster: &Cluster, replica: usize, key: &str) {
    let keys = ["KEYS", key];
    let has_key =
        || cluster.try_command::<Vec<String>>(replica, &keys).is_ok_and(|keys| !keys.is_empty());
    assert!(until(LONG_LEASE, has_key).await.is_some(), "{key} is replicated");
}

/// Whether the lease of `key` at this node has been renewed since then.
fn was_renewed_since(cluster: &Cluster, node: usize, key: &str, since: Instant) -> bool {
    let left = u64::try_from(cluster.node(node).pttl(key)).unwrap_or_default();
    Duration::from_millis(left) + since.elapsed() > LONG_LEASE
}

/// Tasks that lock keys of some shards all the time.
struct KeyTraffic {
    stop: Arc<AtomicBool>,
    tasks: JoinSet<Vec<Duration>>,
}

impl KeyTraffic {
    /// A task for each key.
    fn start(client: &LockClient, keys: Vec<String>) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let mut tasks = JoinSet::new();
        for key in keys {
            let (client, stop) = (client.clone(), Arc::clone(&stop));
            tasks.spawn(async move {
                let mut took = Vec::new();
                while !stop.load(Ordering::Relaxed) {
                    let began = Instant::now();
                    client.lock(key.as_str()).run(async {}).await.expect("no error");
                    took.push(began.elapsed());
                }
                took
            });
        }
        Self { stop, tasks }
    }

    /// Ends the tasks. Returns how long the calls took, from the shortest to the longest.
    async fn end(mut self) -> Vec<Duration> {
        self.stop.store(true, Ordering::Relaxed);
        let mut took = Vec::new();
        while let Some(of_one) = self.tasks.join_next().await {
            took.extend(of_one.expect("no error"));
        }
        took.sort_unstable();
        took
    }
}

/// Some keys of the shards other than this one.
fn keys_of_others(cluster: &Cluster, shard: usize, count: usize) -> Vec<String> {
    let others = (0..3).filter(|other| *other != shard);
    others.flat_map(|other| cluster.keys_of(other, count)).filter(|key| key != "k").collect()
}

/// How often a node has replied with this error.
fn errors(cluster: &Cluster, node: usize, error: &str) -> u64 {
    let stats: String = cluster.node(node).command(&["INFO", "errorstats"]);
    let line = stats.lines().find_map(|line| line.strip_prefix(&format!("errorstat_{error}:")));
    let count = line.and_then(|line| line.strip_prefix("count="));
    count.map_or(0, |count| count.parse().expect("a number"))
}

/// The number of channels that clients have subscribed at a node.
fn subscribed_channels(cluster: &Cluster, node: usize) -> usize {
    let channels = cluster.try_command::<Vec<String>>(node, &["PUBSUB", "SHARDCHANNELS"]);
    channels.map_or(0, |channels| channels.len())
}

async fn client_uses(client: &LockClient, key: &str) {
    client.lock(key).run(async {}).await.expect("free");
}

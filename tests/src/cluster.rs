//! A Redis Cluster of three masters with a replica each.

use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::ports::START_TIMEOUT;
use crate::split_network::{Relay, Side, SplitNetwork};
use crate::support::until;
use crate::tls::Certificates;
use crate::{Authority, RedisServer, Validity};

/// How long a node may be silent before the others take it for down.
pub const NODE_TIMEOUT: Duration = Duration::from_secs(1);

/// The number of masters, and of their replicas.
const SHARDS: usize = 3;

/// The number of hash slots.
const SLOTS: u16 = 16_384;

/// When one shard is down, the others serve their slots.
const SHARDS_ARE_INDEPENDENT: [&str; 2] = ["--cluster-require-full-coverage", "no"];

/// How much higher the port is at which a node listens to the others.
const BUS_OFFSET: u16 = 10_000;

/// How many keys one request moves.
const KEYS_AT_ONCE: &str = "100";

/// The cluster of all tests that do not disturb it and run at one time.
static SHARED: Mutex<Weak<Cluster>> = Mutex::new(Weak::new());

/// A cluster on free ports of the loopback interface. The first three nodes are its masters at the
/// start, with a third of the slots each. Their replicas follow in the same order. All of them are
/// killed when this is dropped.
#[derive(Debug)]
pub struct Cluster {
    nodes: Vec<RedisServer>,
    /// Set if all connections use TLS.
    certificates: Option<Box<Certificates>>,
    /// Where the nodes reach each other, if that is not their own port.
    buses: Vec<Relay>,
}

/// A slot that is being moved from one node to another. Requests about keys that were moved are
/// redirected with `ASK` until the move ends.
#[derive(Debug)]
#[must_use = "a move has to be ended"]
pub struct SlotMove<'a> {
    cluster: &'a Cluster,
    slot: String,
    from: usize,
    to: usize,
}

impl Cluster {
    /// Starts all nodes, and waits until the cluster works. The shards work independently: when one
    /// is down, the others serve their slots.
    #[must_use]
    pub fn start() -> Self {
        Self::with(&SHARDS_ARE_INDEPENDENT)
    }

    /// The same, with TLS on all connections.
    #[must_use]
    pub fn with_tls() -> Self {
        let authority = Authority::new();
        let identity = authority.issue(&["127.0.0.1"], Validity::Now);
        Self::start_with(&SHARDS_ARE_INDEPENDENT, Some((authority, identity)), None)
    }

    /// The same, with a network for what the nodes say to each other about the cluster. These nodes
    /// are on its near side. Clients and the replication do not use the network. Linux only.
    #[must_use]
    pub fn split(network: &SplitNetwork, near: &[usize]) -> Self {
        Self::start_with(&SHARDS_ARE_INDEPENDENT, None, Some((network, near)))
    }

    /// A cluster for tests that neither stop its nodes nor move its slots. The tests that run at
    /// one time share it.
    #[must_use]
    pub fn shared() -> Arc<Self> {
        let mut shared = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
        shared.upgrade().unwrap_or_else(|| {
            let cluster = Arc::new(Self::start());
            *shared = Arc::downgrade(&cluster);
            cluster
        })
    }

    /// Starts a cluster with these additional options for its nodes.
    #[must_use]
    pub fn with(options: &[&str]) -> Self {
        Self::start_with(options, None, None)
    }

    fn start_with(
        options: &[&str],
        certificates: Option<Certificates>,
        network: Option<(&SplitNetwork, &[usize])>,
    ) -> Self {
        let certificates = certificates.map(Box::new);
        let mut cluster = Self { nodes: Vec::new(), certificates, buses: Vec::new() };
        for index in 0..2 * SHARDS {
            let certificates = cluster.certificates.as_deref();
            let Some((network, near)) = network else {
                cluster.nodes.push(start_node(options, certificates));
                continue;
            };
            let side = if near.contains(&index) { Side::Near } else { Side::Far };
            let (bus, source) = (network.relay(side), side.address().to_string());
            let port = bus.port().to_string();
            let announced =
                ["--cluster-announce-ip", "127.0.0.1", "--cluster-announce-bus-port", &port];
            // Protected servers refuse other sources than 127.0.0.1.
            let source = ["--bind-source-addr", &source, "--protected-mode", "no"];
            let options = [options, &announced, &source].concat();
            let node = start_node(&options, certificates);
            bus.lead_to(node.port() + BUS_OFFSET);
            cluster.nodes.push(node);
            cluster.buses.push(bus);
        }
        let width = SLOTS / 3 + 1;
        for (first, node) in (0..SLOTS).step_by(width.into()).zip(&cluster.nodes) {
            let last = (first + width - 1).min(SLOTS - 1);
            node.tell(&["CLUSTER", "ADDSLOTSRANGE", &first.to_string(), &last.to_string()]);
        }
        cluster.introduce();
        let masters: Vec<_> = (0..SHARDS).map(|shard| cluster.id(shard)).collect();
        for (replica, master) in cluster.nodes[SHARDS..].iter().zip(&masters) {
            replica.tell(&["CLUSTER", "REPLICATE", master]);
        }
        wait_for("the cluster", || {
            let is_ok = |node: &RedisServer| info(node, "CLUSTER", "cluster_state:ok");
            let in_sync = |node: &RedisServer| info(node, "INFO", "master_link_status:up");
            let shows_all = |node: &RedisServer| {
                node.ask::<Vec<redis::Value>>(&["CLUSTER", "SLOTS"]).is_ok_and(|all| {
                    let is_whole = |range: &redis::Value| {
                        matches!(range, redis::Value::Array(parts) if parts.len() == 4)
                    };
                    all.len() == SHARDS && all.iter().all(is_whole)
                })
            };
            cluster.nodes.iter().all(|node| is_ok(node) && shows_all(node))
                && cluster.nodes[SHARDS..].iter().all(in_sync)
        });
        cluster
    }

    /// Lets all nodes know each other.
    fn introduce(&mut self) {
        for (number, node) in (1..).zip(&self.nodes) {
            node.tell(&["CLUSTER", "SET-CONFIG-EPOCH", &i32::to_string(&number)]);
        }
        // Faster than letting the nodes hear of each other.
        for (number, node) in self.nodes.iter().enumerate() {
            for (other, bus) in
                (number + 1..self.nodes.len()).map(|other| (other, self.buses.get(other)))
            {
                let port = self.port_of(&self.nodes[other]).to_string();
                let bus = bus.map(|bus| bus.port().to_string());
                let mut meet = vec!["CLUSTER", "MEET", "127.0.0.1", &port];
                meet.extend(bus.as_deref());
                node.tell(&meet);
            }
        }
        self.wait_until_known();
    }

    fn wait_until_known(&self) {
        let all = format!("cluster_known_nodes:{}", self.nodes.len());
        wait_for("the nodes", || {
            let knows_all = |node: &RedisServer| {
                let handshake = node.ask::<String>(&["CLUSTER", "NODES"]);
                info(node, "CLUSTER", &all) && handshake.is_ok_and(|all| !all.contains("handshake"))
            };
            self.nodes.iter().all(knows_all)
        });
    }

    /// The port at which clients and other nodes connect to a node.
    fn port_of(&self, node: &RedisServer) -> u16 {
        if self.certificates.is_some() { node.tls_port() } else { node.port() }
    }

    /// The URL for a client, with all nodes.
    #[must_use]
    pub fn url(&self) -> String {
        let nodes: Vec<_> = (0..self.nodes.len()).collect();
        self.url_of(&nodes)
    }

    /// The URL with some of the nodes.
    #[must_use]
    pub fn url_of(&self, nodes: &[usize]) -> String {
        let port = |node: &usize| self.port_of(&self.nodes[*node]);
        let hosts: Vec<_> = nodes.iter().map(|node| format!("127.0.0.1:{}", port(node))).collect();
        let hosts = hosts.join(",");
        match self.certificates.as_deref() {
            None => format!("redis+cluster://{hosts}"),
            Some((authority, _)) => {
                format!("rediss+cluster://{hosts}?tls_ca={}", authority.file().display())
            }
        }
    }

    /// A node: a master, or the replica of one.
    #[must_use]
    pub fn node(&self, node: usize) -> &RedisServer {
        &self.nodes[node]
    }

    /// Sends one command to a node that may be down or suspended.
    ///
    /// # Errors
    ///
    /// If the node does not answer, or answers with an error.
    pub fn try_command<T: redis::FromRedisValue>(
        &self,
        node: usize,
        words: &[&str],
    ) -> redis::RedisResult<T> {
        self.nodes[node].ask(words)
    }

    /// The number of nodes.
    #[must_use]
    pub fn size(&self) -> usize {
        self.nodes.len()
    }

    /// The replica of one of the first masters.
    #[must_use]
    pub fn replica_of(&self, shard: usize) -> usize {
        shard + SHARDS
    }

    fn id(&self, node: usize) -> String {
        self.nodes[node].command(&["CLUSTER", "MYID"])
    }

    /// The hash slot of a key.
    #[must_use]
    pub fn slot_of(&self, key: &str) -> u16 {
        let asked = self.nodes.iter().find_map(|node| node.ask(&["CLUSTER", "KEYSLOT", key]).ok());
        asked.expect("one node works")
    }

    /// A key of a slot that the first masters had at the start. Each number gives another key of
    /// the same slot.
    #[must_use]
    pub fn key_of(&self, shard: usize, number: usize) -> String {
        let width = usize::from(SLOTS / 3 + 1);
        let is_there = |tag: &String| usize::from(self.slot_of(tag)) / width == shard;
        let tag = (0..10_000).map(|tag| format!("{tag}")).find(is_there).expect("one of them");
        format!("{{{tag}}}:{number}")
    }

    /// A key of another slot of the same shard for each number.
    #[must_use]
    pub fn keys_of(&self, shard: usize, count: usize) -> Vec<String> {
        let width = usize::from(SLOTS / 3 + 1);
        let is_there = |key: &String| usize::from(self.slot_of(key)) / width == shard;
        let all = (0..100_000).map(|number| format!("k{number}"));
        all.filter(is_there).take(count).collect()
    }

    /// The index of the master that most of the working nodes name for the slot of a key.
    #[must_use]
    pub fn master_of(&self, key: &str) -> Option<usize> {
        let slot = self.slot_of(key);
        let mut votes = vec![0; self.nodes.len()];
        let mut working = 0;
        for node in &self.nodes {
            let Ok(ranges) = ranges(node) else { continue };
            working += 1;
            if let Some(named) = self.master_in(ranges, slot) {
                votes[named] += 1;
            }
        }
        votes.iter().position(|count| count * 2 > working)
    }

    /// The index of the master that one node names for the slot of a key.
    #[must_use]
    pub fn master_named_by(&self, node: usize, key: &str) -> Option<usize> {
        self.master_in(ranges(&self.nodes[node]).ok()?, self.slot_of(key))
    }

    fn master_in(&self, ranges: Vec<(u16, u16, redis::Value)>, slot: u16) -> Option<usize> {
        let of_slot = ranges.into_iter().find(|range| (range.0..=range.1).contains(&slot))?;
        let redis::Value::Array(master) = of_slot.2 else { return None };
        let redis::Value::Int(port) = master.get(1)? else { return None };
        self.nodes.iter().position(|node| i64::from(node.port()) == *port)
    }

    /// The nodes that are masters.
    #[must_use]
    pub fn masters(&self) -> Vec<usize> {
        let is_master = |node: &usize| info(&self.nodes[*node], "INFO", "role:master");
        (0..self.nodes.len()).filter(is_master).collect()
    }

    /// The node that replicates a master now.
    #[must_use]
    pub fn replica_now_of(&self, master: usize) -> Option<usize> {
        let port = format!("master_port:{}\r", self.nodes[master].port());
        (0..self.nodes.len()).find(|node| info(&self.nodes[*node], "INFO", &port))
    }

    /// Whether there are as many masters as at the start, and each of them has a replica with all
    /// data.
    #[must_use]
    pub fn is_in_sync(&self) -> bool {
        let is_up = |node: usize| info(&self.nodes[node], "INFO", "master_link_status:up");
        let masters = self.masters();
        let has_replica = |master: &usize| self.replica_now_of(*master).is_some_and(is_up);
        let is_ok = |node: &RedisServer| info(node, "CLUSTER", "cluster_state:ok");
        masters.len() == SHARDS && masters.iter().all(has_replica) && self.nodes.iter().all(is_ok)
    }

    /// Waits until most nodes name another master for the slot of a key, and returns it.
    pub async fn wait_for_another_master(&self, key: &str, earlier: usize) -> usize {
        let mut master = None;
        let is_another = || {
            master = self.master_of(key).filter(|master| *master != earlier);
            master.is_some()
        };
        until(START_TIMEOUT * 3, is_another).await;
        master.expect("another master")
    }

    /// Kills a node with SIGKILL.
    pub fn kill(&mut self, node: usize) {
        self.nodes[node].kill();
    }

    /// Restarts a node on the same port.
    pub fn restart(&mut self, node: usize) {
        self.nodes[node].restart();
    }

    /// Suspends a node with SIGSTOP.
    pub fn freeze(&self, node: usize) {
        self.nodes[node].freeze();
    }

    /// Resumes a node with SIGCONT.
    pub fn thaw(&self, node: usize) {
        self.nodes[node].thaw();
    }

    /// Makes a planned failover: the replica takes over the slot of a key from its master, which
    /// works.
    pub async fn fail_over(&self, key: &str, replica: usize) {
        wait_for("the replication", || info(&self.nodes[replica], "INFO", "master_link_status:up"));
        for _ in 0..5 {
            wait_for("the failover", || {
                self.nodes[replica].ask::<String>(&["CLUSTER", "FAILOVER"]).is_ok()
            });
            // The nodes give a planned failover up after 5 s.
            let is_promoted = || self.master_of(key) == Some(replica);
            if until(Duration::from_secs(7), is_promoted).await.is_some() {
                return;
            }
        }
        panic!("the nodes have given up five planned failovers");
    }

    /// Moves a slot and its keys from one master to another.
    pub fn move_slot(&self, slot: u16, from: usize, to: usize) {
        let moving = self.begin_move(slot, from, to);
        moving.move_keys();
        moving.end();
    }

    /// Begins to move a slot. Its keys stay where they are for now.
    pub fn begin_move(&self, slot: u16, from: usize, to: usize) -> SlotMove<'_> {
        let slot = slot.to_string();
        let (source, target) = (self.id(from), self.id(to));
        self.nodes[to].tell(&["CLUSTER", "SETSLOT", &slot, "IMPORTING", &source]);
        self.nodes[from].tell(&["CLUSTER", "SETSLOT", &slot, "MIGRATING", &target]);
        SlotMove { cluster: self, slot, from, to }
    }

    /// Adds an empty master, and returns its index.
    pub fn add_node(&mut self) -> usize {
        let node = start_node(&SHARDS_ARE_INDEPENDENT, self.certificates.as_deref());
        let port = self.port_of(&self.nodes[0]).to_string();
        node.tell(&["CLUSTER", "MEET", "127.0.0.1", &port]);
        self.nodes.push(node);
        self.wait_until_known();
        let added = &self.nodes[self.nodes.len() - 1];
        wait_for("the new node", || info(added, "CLUSTER", "cluster_state:ok"));
        self.nodes.len() - 1
    }

    /// Makes a node the only one of another cluster, whose configuration has a high epoch. Its
    /// address stays the same.
    pub fn found_another(&mut self, node: usize) {
        let node = &mut self.nodes[node];
        node.kill();
        std::fs::remove_file(node.directory().join("nodes.conf")).expect("the file of a node");
        node.restart();
        node.tell(&["CLUSTER", "SET-CONFIG-EPOCH", "50"]);
        node.tell(&["CLUSTER", "ADDSLOTSRANGE", "0", "16383"]);
        wait_for("the other cluster", || info(node, "CLUSTER", "cluster_state:ok"));
    }

    /// Lets all other nodes forget a node without slots, and kills it.
    pub fn remove_node(&mut self, node: usize) {
        let id = self.id(node);
        for (_, other) in self.nodes.iter().enumerate().filter(|(other, _)| *other != node) {
            let _ = other.ask::<redis::Value>(&["CLUSTER", "FORGET", &id]);
        }
        self.nodes[node].kill();
    }
}

impl SlotMove<'_> {
    /// Moves the keys that the slot has now. The node that the slot moves to serves them.
    pub fn move_keys(&self) {
        let (from, to) = (&self.cluster.nodes[self.from], &self.cluster.nodes[self.to]);
        let port = to.port().to_string();
        loop {
            let keys: Vec<String> =
                from.command(&["CLUSTER", "GETKEYSINSLOT", &self.slot, KEYS_AT_ONCE]);
            if keys.is_empty() {
                return;
            }
            let mut migrate = vec!["MIGRATE", "127.0.0.1", &port, "", "0", "5000", "KEYS"];
            migrate.extend(keys.iter().map(String::as_str));
            from.tell(&migrate);
        }
    }

    /// Ends the move: the slot belongs to the other node.
    pub fn end(self) {
        let target = self.cluster.id(self.to);
        let others = (0..self.cluster.size()).filter(|node| ![self.from, self.to].contains(node));
        for node in [self.to, self.from].into_iter().chain(others) {
            // Replicas refuse. The others hear of it anyway.
            let words = ["CLUSTER", "SETSLOT", &self.slot, "NODE", &target];
            let _ = self.cluster.nodes[node].ask::<redis::Value>(&words);
        }
    }
}

fn start_node(options: &[&str], certificates: Option<&Certificates>) -> RedisServer {
    let timeout = NODE_TIMEOUT.as_millis().to_string();
    let mut all = vec!["--cluster-enabled", "yes"];
    // Later options win.
    all.extend(["--cluster-node-timeout", &timeout, "--cluster-replica-validity-factor", "0"]);
    // A node does not name a replica before its first ping.
    all.extend(["--repl-diskless-sync-delay", "0", "--repl-ping-replica-period", "1"]);
    all.extend(options);
    match certificates {
        None => RedisServer::plain(&all),
        Some((authority, identity)) => {
            all.extend(["--tls-cluster", "yes", "--tls-replication", "yes"]);
            RedisServer::with_tls(authority, identity, &all)
        }
    }
}

/// The ranges of `CLUSTER SLOTS` with their masters.
fn ranges(node: &RedisServer) -> redis::RedisResult<Vec<(u16, u16, redis::Value)>> {
    let all = node.ask::<Vec<Vec<redis::Value>>>(&["CLUSTER", "SLOTS"])?;
    let number = |value: &redis::Value| match value {
        redis::Value::Int(number) => u16::try_from(*number).unwrap_or_default(),
        _ => 0,
    };
    Ok(all.iter().map(|one| (number(&one[0]), number(&one[1]), one[2].clone())).collect())
}

/// Whether the description of a node contains `line`.
fn info(node: &RedisServer, of: &str, line: &str) -> bool {
    let words = if of == "CLUSTER" { vec!["CLUSTER", "INFO"] } else { vec!["INFO", "replication"] };
    node.ask::<String>(&words).is_ok_and(|info| info.contains(line))
}

/// Waits until `condition` is true.
fn wait_for(what: &str, condition: impl Fn() -> bool) {
    let end = Instant::now() + START_TIMEOUT * 3;
    while !condition() {
        assert!(Instant::now() < end, "{what}: not within {:?}", START_TIMEOUT * 3);
        sleep(Duration::from_millis(20));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_cluster_starts_moves_slots_and_fails_over() {
        let start = Instant::now();
        let mut cluster = Cluster::start();
        println!("started in {:?}", start.elapsed());
        let key = cluster.key_of(1, 7);
        assert_eq!(cluster.master_of(&key), Some(1));
        cluster.node(1).tell(&["SET", &key, "value"]);
        cluster.move_slot(cluster.slot_of(&key), 1, 2);
        assert_eq!(cluster.wait_for_another_master(&key, 1).await, 2);
        assert!(cluster.node(2).exists(&key));
        cluster.fail_over(&key, cluster.replica_of(2)).await;
        cluster.kill(0);
        let start = Instant::now();
        cluster.wait_for_another_master(&cluster.key_of(0, 0), 0).await;
        println!("failed over in {:?}", start.elapsed());
    }
}

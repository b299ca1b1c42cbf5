//! A master and a sentinel on one side of a network, and two replicas and two sentinels on the other
//! side.

use std::time::Duration;

use lock_runtime::{LockClient, LockClientBuilder};

use crate::ports::START_TIMEOUT;
use crate::sentinel_process::MASTER;
use crate::split_network::{Relay, Side, SplitNetwork};
use crate::support::until;
use crate::{RedisServer, SentinelProcess};

/// Where the first server and the first sentinel are, and where the others are.
const SIDES: [Side; 3] = [Side::Near, Side::Far, Side::Far];

/// Three servers and three sentinels. The first ones of both are on the near side of the network.
/// All of them are killed when this is dropped. Linux only.
#[derive(Debug)]
pub struct SplitSentinels {
    servers: Vec<RedisServer>,
    sentinels: Vec<SentinelProcess>,
    /// At which ports others reach the servers, and the sentinels.
    relays: [Vec<Relay>; 2],
    network: SplitNetwork,
}

impl SplitSentinels {
    /// Starts all servers, with these additional options, and all sentinels, and waits until they
    /// know each other. The sentinels replace a master that is silent for `down_after`.
    pub async fn start(down_after: Duration, options: &[&str]) -> Self {
        let network = SplitNetwork::new();
        let relays = [(); 2].map(|()| SIDES.map(|side| network.relay(side)).into());
        let mut all = Self { servers: Vec::new(), sentinels: Vec::new(), relays, network };
        for (relay, side) in all.relays[0].iter().zip(SIDES) {
            let (own, address) = (relay.port().to_string(), side.address().to_string());
            let monitored = all.relays[0][0].port().to_string();
            let announced = ["--replica-announce-ip", "127.0.0.1", "--replica-announce-port", &own];
            let replicated = ["--bind-source-addr", &address, "--repl-diskless-sync-delay", "0"];
            let of_master = ["--replicaof", "127.0.0.1", &monitored];
            let is_replica = !all.servers.is_empty();
            let of_master = if is_replica { &of_master[..] } else { &[] };
            let server =
                RedisServer::plain(&[&announced, &replicated, of_master, options].concat());
            relay.lead_to(server.port());
            all.servers.push(server);
        }
        let online = || {
            let info: String = all.servers[0].command(&["INFO", "replication"]);
            info.matches("state=online").count() == 2
        };
        assert!(until(START_TIMEOUT, online).await.is_some(), "the replicas are online");
        for (relay, side) in all.relays[1].iter().zip(SIDES) {
            let lines = [
                "sentinel announce-ip 127.0.0.1".into(),
                format!("sentinel announce-port {}", relay.port()),
                format!("bind-source-addr {}", side.address()),
            ];
            let monitored = all.relays[0][0].port();
            let sentinel = SentinelProcess::start_with(monitored, down_after, None, &lines);
            relay.lead_to(sentinel.port());
            all.sentinels.push(sentinel);
        }
        let are_known = || all.sentinels.iter().all(SentinelProcess::knows_all);
        assert!(until(START_TIMEOUT, are_known).await.is_some(), "the sentinels know each other");
        all
    }

    /// A builder for a client on this side.
    pub fn client(&self, side: Side) -> LockClientBuilder {
        let address = side.address();
        let hosts: Vec<_> =
            self.relays[1].iter().map(|relay| format!("{address}:{}", relay.port())).collect();
        let url = format!("redis+sentinel://{}/{MASTER}", hosts.join(","));
        LockClient::builder().url(url).address_map(move |_, port| (address.to_string(), port))
    }

    /// The three servers. The first one is the master at the start.
    #[must_use]
    pub fn server(&self, index: usize) -> &RedisServer {
        &self.servers[index]
    }

    /// Parts the sides from each other.
    pub fn part(&self) {
        self.network.part();
    }

    /// Makes the network whole again.
    pub fn heal(&self) {
        self.network.heal();
    }

    /// Waits until this sentinel names another server than the first one, and returns it.
    pub async fn wait_for_another_master(&self, sentinel: usize) -> usize {
        let mut master = None;
        let is_another = || {
            let named = self.sentinels[sentinel].master();
            let is_named = |relay: &Relay| Some(relay.port()) == named;
            master = self.relays[0].iter().position(is_named).filter(|master| *master != 0);
            master.is_some()
        };
        until(START_TIMEOUT * 3, is_another).await;
        master.expect("another master")
    }

    /// Waits until the first server is a replica.
    pub async fn wait_until_demoted(&self) {
        let is_replica = || {
            let info = self.servers[0].ask::<String>(&["INFO", "replication"]);
            info.is_ok_and(|info| info.contains("role:slave"))
        };
        assert!(until(START_TIMEOUT * 3, is_replica).await.is_some(), "the master is demoted");
    }
}

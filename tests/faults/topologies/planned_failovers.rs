//! How long planned failovers delay calls, compared with the writes of a bare client.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use lock_runtime::LockClient;
use lock_tests::{Cluster, Proxy, RedisServer, Sentinels, Toward};
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, RedisResult, cmd};
use tokio::task::JoinHandle;
use tokio::time::sleep;

use crate::support::{LEASE, number, until};

/// Longer than a server with sentinels accepts requests after it has been replaced.
const LONG_LEASE: Duration = Duration::from_secs(60);

/// How long a bare client waits before it tries again.
const PAUSE: Duration = Duration::from_millis(10);

/// What the machine may add to the delay of one call. Far less than a renewal may be late.
const NOISE: Duration = LEASE.checked_div(5).expect("not zero");

/// The key of the calls, and that of the writes. Both are in one slot.
const KEYS: [&str; 2] = ["{k}", "{k}:bare"];

/// The servers of a test.
enum FailoverServers {
    Sentinels(Box<Sentinels>),
    Cluster(Cluster),
}

impl FailoverServers {
    fn url(&self) -> String {
        match self {
            Self::Sentinels(sentinels) => sentinels.url(),
            Self::Cluster(cluster) => cluster.url(),
        }
    }

    fn server(&self, index: usize) -> &RedisServer {
        match self {
            Self::Sentinels(sentinels) => sentinels.server(index),
            Self::Cluster(cluster) => cluster.node(index),
        }
    }

    /// The master of the keys at the start.
    fn master(&self) -> usize {
        match self {
            Self::Sentinels(sentinels) => sentinels.master().expect("all agree"),
            Self::Cluster(cluster) => cluster.master_of(KEYS[0]).expect("all agree"),
        }
    }

    /// Makes a planned failover from this master. Returns the new one.
    async fn fail_over(&self, master: usize) -> usize {
        match self {
            Self::Sentinels(sentinels) => sentinels.fail_over(master).await,
            Self::Cluster(cluster) => {
                // Each of the three shards has two nodes.
                let replica = (master + 3) % 6;
                cluster.fail_over(KEYS[0], replica).await;
                replica
            }
        }
    }

    fn bare_client(&self) -> BareClient {
        let (is_cluster, hosts) = match self {
            Self::Sentinels(sentinels) => {
                (false, (0..3).map(|index| sentinels.sentinel(index).address()).collect())
            }
            Self::Cluster(cluster) => {
                (true, (0..6).map(|index| cluster.node(index).address()).collect())
            }
        };
        BareClient { is_cluster, hosts, next: 0, redirected: None, connection: None }
    }
}

/// A client that knows no more than redis-rs: it looks for the master when a write fails.
struct BareClient {
    is_cluster: bool,
    /// The sentinels, or the nodes of the cluster.
    hosts: Vec<String>,
    /// The host to ask next.
    next: usize,
    /// The node that another one has named.
    redirected: Option<String>,
    connection: Option<MultiplexedConnection>,
}

impl BareClient {
    /// Writes to the master, after as many attempts as it takes.
    async fn write(&mut self) {
        while self.try_write().await.is_err() {
            self.connection = None;
            if self.redirected.is_none() {
                sleep(PAUSE).await;
            }
        }
    }

    async fn try_write(&mut self) -> RedisResult<()> {
        let mut connection = match self.connection.clone() {
            Some(connection) => connection,
            None => self.connect().await?,
        };
        self.connection = Some(connection.clone());
        let mut write = cmd("SETEX");
        let written = write.arg(KEYS[1]).arg(60).arg("any").query_async(&mut connection).await;
        if let Err(error) = &written {
            self.redirected = error.redirect_node().map(|(node, _)| node.to_owned());
        }
        written
    }

    async fn connect(&mut self) -> RedisResult<MultiplexedConnection> {
        if let Some(node) = self.redirected.take() {
            return connect(&node).await;
        }
        self.next += 1;
        let mut asked = connect(&self.hosts[self.next % self.hosts.len()]).await?;
        if self.is_cluster {
            // Any node names the right one.
            return Ok(asked);
        }
        let mut question = cmd("SENTINEL");
        question.arg("GET-MASTER-ADDR-BY-NAME").arg("locks");
        let (host, port): (String, u16) = question.query_async(&mut asked).await?;
        let mut master = connect(&format!("{host}:{port}")).await?;
        let role: Vec<redis::Value> = cmd("ROLE").query_async(&mut master).await?;
        let is_master = role.first() == Some(&redis::Value::BulkString(b"master".into()));
        let error = || (redis::ErrorKind::Client, "not a master").into();
        if is_master { Ok(master) } else { Err(error()) }
    }
}

async fn connect(address: &str) -> RedisResult<MultiplexedConnection> {
    let config = AsyncConnectionConfig::new().set_response_timeout(Some(LEASE));
    let client = redis::Client::open(format!("redis://{address}"))?;
    client.get_multiplexed_async_connection_with_config(&config).await
}

/// How many operations a task has completed, and how long the longest one took.
#[derive(Clone, Default)]
struct Operations(Arc<Mutex<(u64, Duration)>>);

impl Operations {
    fn add(&self, took: Duration) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        *all = (all.0 + 1, all.1.max(took));
    }

    fn count(&self) -> u64 {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).0
    }

    /// The duration of the longest operation since the last call.
    fn take_longest(&self) -> Duration {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::take(&mut all.1)
    }
}

/// Two tasks side by side: one calls a client of the library all the time, and one writes as a bare
/// client.
struct SideBySide {
    stop: Arc<AtomicBool>,
    operations: [Operations; 2],
    tasks: [JoinHandle<()>; 2],
}

impl SideBySide {
    fn start(client: LockClient, mut bare: BareClient) -> Self {
        let (stop, operations) =
            (Arc::new(AtomicBool::new(false)), [(); 2].map(|()| Operations::default()));
        let (stopped, calls) = (Arc::clone(&stop), operations[0].clone());
        let calling = tokio::spawn(async move {
            // A failover may lose the release of a lock but not its grant, so each call has a lock of
            // its own.
            for call in 0.. {
                if stopped.load(Ordering::Relaxed) {
                    break;
                }
                let (key, began) = (format!("{}:{call}", KEYS[0]), Instant::now());
                // A call that fails counts until the next one that succeeds.
                while let Err(error) = client.lock(&*key).run(async {}).await {
                    println!("{error}");
                }
                calls.add(began.elapsed());
                sleep(PAUSE / 5).await;
            }
        });
        let (stopped, writes) = (Arc::clone(&stop), operations[1].clone());
        let writing = tokio::spawn(async move {
            while !stopped.load(Ordering::Relaxed) {
                let began = Instant::now();
                bare.write().await;
                writes.add(began.elapsed());
                sleep(PAUSE / 5).await;
            }
        });
        Self { stop, operations, tasks: [calling, writing] }
    }

    /// Waits until both tasks have completed an operation that began later than now.
    async fn until_completed(&self) {
        let before = self.operations.each_ref().map(Operations::count);
        let is_later = || (0..2).all(|task| self.operations[task].count() > before[task] + 1);
        assert!(until(LONG_LEASE, is_later).await.is_some(), "both tasks continue");
    }

    /// Waits until both tasks use this master. Returns how long the longest call and the longest
    /// write took since the last time.
    async fn until_moved_to(&self, master: &RedisServer) -> [Duration; 2] {
        // The earlier master does not replicate to this one any more.
        let commands = ["set", "setex"];
        let before = commands.map(|command| master.calls(command));
        let are_used = || (0..2).all(|task| master.calls(commands[task]) > before[task]);
        assert!(until(LONG_LEASE, are_used).await.is_some(), "both tasks use the new master");
        self.until_completed().await;
        self.take_longest()
    }

    fn take_longest(&self) -> [Duration; 2] {
        self.operations.each_ref().map(Operations::take_longest)
    }

    async fn end(self) {
        self.stop.store(true, Ordering::Relaxed);
        for task in self.tasks {
            task.await.expect("no panic");
        }
    }
}

fn median(mut all: Vec<Duration>) -> Duration {
    all.sort_unstable();
    all[all.len() / 2]
}

/// The median delay of the calls of this client in planned failovers, and that of bare writes.
async fn delays(servers: &FailoverServers, client: LockClient, failovers: usize) -> [Duration; 2] {
    let side_by_side = SideBySide::start(client, servers.bare_client());
    let mut all = [(); 2].map(|()| Vec::new());
    let mut master = servers.master();
    for round in 0..failovers {
        side_by_side.until_completed().await;
        side_by_side.take_longest();
        master = servers.fail_over(master).await;
        let longest = side_by_side.until_moved_to(servers.server(master)).await;
        println!("failover {round}: calls {:?}, bare writes {:?}", longest[0], longest[1]);
        for (all, longest) in all.iter_mut().zip(longest) {
            all.push(longest);
        }
    }
    side_by_side.end().await;
    let [ours, bare] = all.map(median);
    println!("median: calls {ours:?}, bare writes {bare:?}");
    [ours, bare]
}

async fn assert_calls_are_not_delayed(servers: &FailoverServers) {
    let builder = LockClient::builder().url(servers.url()).lease(LONG_LEASE).wait(LONG_LEASE);
    let client = builder.connect().await.expect("up");
    let [ours, bare] = delays(servers, client, number("LOCK_TESTS_FAILOVERS", 3)).await;
    assert!(ours <= bare * 2 + NOISE, "calls were delayed by {ours:?}, bare writes by {bare:?}");
}

/// `LOCK_TESTS_FAILOVERS` sets the number of failovers.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn failovers_by_sentinels_delay_calls_little_more_than_bare_writes() {
    assert_calls_are_not_delayed(&FailoverServers::Sentinels(Box::new(Sentinels::steady(&[]))))
        .await;
}

/// `LOCK_TESTS_FAILOVERS` sets the number of failovers.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn failovers_in_a_cluster_delay_calls_little_more_than_bare_writes() {
    assert_calls_are_not_delayed(&FailoverServers::Cluster(Cluster::start())).await;
}

/// The same comparison with a client that reaches the new master late.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_reaches_the_new_master_late_is_seen_by_the_comparison() {
    let cluster = Cluster::start();
    let replica = (cluster.master_of(KEYS[0]).expect("all agree") + 3) % 6;
    let behind = cluster.node(replica).port();
    let proxy = Proxy::to(behind);
    proxy.delay(Toward::Client, NOISE * 6);
    let own = proxy.port();
    let builder = LockClient::builder().url(cluster.url()).lease(LONG_LEASE).wait(LONG_LEASE);
    let builder = builder
        .address_map(move |host, port| (host.to_owned(), if port == behind { own } else { port }));
    let client = builder.connect().await.expect("up");
    let [ours, bare] = delays(&FailoverServers::Cluster(cluster), client, 1).await;
    assert!(ours > bare * 2 + NOISE, "calls were delayed by {ours:?}, bare writes by {bare:?}");
}

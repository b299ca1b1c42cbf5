//! What the tests share.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use lock_runtime::{LockClient, LockError, LockGuard};
use lock_tests::EtcdCluster;
use lock_tests::support::LEASE;

/// The lease of most clients: long enough for the election of a leader.
pub(crate) const RENEWED: Duration = LEASE.saturating_mul(3);

/// Long enough for elections on a busy machine.
pub(crate) const LONG: Duration = LEASE.saturating_mul(10);

/// A client with short leases.
pub(crate) async fn client(url: &str) -> LockClient {
    let builder = LockClient::builder().url(url).lease(RENEWED).wait(LEASE * 60);
    builder.connect().await.expect("a member is up")
}

/// A client with this lease.
pub(crate) async fn patient_client(url: &str, lease: Duration) -> LockClient {
    let client = LockClient::builder().url(url).lease(lease).wait(LEASE * 60).connect().await;
    client.expect("a member is up")
}

/// A client with this lease that has the URL of all members, and uses this one.
pub(crate) async fn client_at(etcd: &EtcdCluster, member: usize, lease: Duration) -> LockClient {
    loop {
        let client = patient_client(&etcd.url(), lease).await;
        if member_of(etcd, &client).await == member {
            return client;
        }
    }
}

/// The member that this client uses. No other client may make requests meanwhile.
pub(crate) async fn member_of(etcd: &EtcdCluster, client: &LockClient) -> usize {
    let members = || (0..etcd.len()).filter(|number| etcd.is_running(*number));
    let count = |number| request_counts_of(etcd, number).transactions;
    let before: Vec<_> = members().map(|number| (number, count(number))).collect();
    let guard = client.lock("which-member").acquire().await.expect("a lock");
    guard.release().await.expect("a release");
    let used = before.into_iter().max_by_key(|(number, before)| count(*number) - before);
    used.expect("a member runs").0
}

/// Nobody else gets the lock while this guard holds it.
pub(crate) async fn is_exclusive(guard: &LockGuard, other: &LockClient) {
    let lock = other.lock(guard.key()).wait(Duration::ZERO);
    match lock.acquire().await {
        Err(LockError::Busy { .. } | LockError::Unavailable { .. }) => {}
        Ok(_) => panic!("granted although another client has the lock"),
        Err(error) => panic!("another error: {error}"),
    }
}

/// Whether a leader that is back after its suspension may revoke leases that were renewed meanwhile.
pub(crate) fn revokes_too_early(version: &str) -> bool {
    let mut numbers = version.split('.').map(|number| number.parse().expect("a number"));
    let version: [u32; 3] = std::array::from_fn(|_| numbers.next().expect("three numbers"));
    version < [3, 4, 31] || ([3, 5, 0]..[3, 5, 13]).contains(&version)
}

/// The requests that a member has answered so far.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RequestCounts {
    pub(crate) transactions: u64,
    /// Those among them that were refused.
    pub(crate) refused: u64,
    /// The requests that extend a lease.
    pub(crate) extensions: u64,
    /// The streams of watches that have ended.
    pub(crate) ended_watches: u64,
}

/// Reads the metrics of the first member.
pub(crate) fn request_counts(etcd: &EtcdCluster) -> RequestCounts {
    request_counts_of(etcd, 0)
}

/// Reads the metrics of a member.
pub(crate) fn request_counts_of(etcd: &EtcdCluster, number: usize) -> RequestCounts {
    let mut socket = TcpStream::connect(("127.0.0.1", etcd.port(number))).expect("the member runs");
    let request = b"GET /metrics HTTP/1.0\r\nHost: localhost\r\n\r\n";
    socket.write_all(request).expect("the member runs");
    let mut metrics = String::new();
    socket.read_to_string(&mut metrics).expect("the member answers");
    let handled = |method: &str, is_counted: fn(&str) -> bool| {
        let method = format!("grpc_method=\"{method}\"");
        let lines = metrics.lines().filter(|line| {
            line.starts_with("grpc_server_handled_total{") && line.contains(&method)
        });
        let counts = lines.filter(|line| is_counted(line)).filter_map(|line| {
            let (_, count) = line.rsplit_once(' ')?;
            count.parse::<u64>().ok()
        });
        counts.sum()
    };
    RequestCounts {
        transactions: handled("Txn", |_| true),
        refused: handled("Txn", |line| !line.contains("grpc_code=\"OK\"")),
        extensions: handled("LeaseKeepAlive", |_| true),
        ended_watches: handled("Watch", |_| true),
    }
}

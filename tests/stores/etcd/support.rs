//! What the tests share.

use std::io::{Read, Write};
use std::net::TcpStream;

use lock_runtime::LockClient;
use lock_tests::EtcdCluster;
use lock_tests::support::LEASE;

/// The lease of most clients: long enough for the election of a leader.
pub(crate) const RENEWED: std::time::Duration = LEASE.saturating_mul(3);

/// A client with short leases.
pub(crate) async fn client(url: &str) -> LockClient {
    let builder = LockClient::builder().url(url).lease(RENEWED).wait(LEASE * 60);
    builder.connect().await.expect("a member is up")
}

/// The requests that the first member has answered so far.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RequestCounts {
    pub(crate) transactions: u64,
    /// Those among them that were refused.
    pub(crate) refused: u64,
    /// The requests that extend a lease.
    pub(crate) extensions: u64,
}

/// Reads the metrics of the first member.
pub(crate) fn request_counts(etcd: &EtcdCluster) -> RequestCounts {
    let mut socket = TcpStream::connect(("127.0.0.1", etcd.port(0))).expect("the member runs");
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
    }
}

//! Ports of the loopback interface.

use std::net::TcpListener;
use std::time::Duration;

/// How long a server may take to start.
pub(crate) const START_TIMEOUT: Duration = Duration::from_secs(20);

/// A port that is currently unused.
pub(crate) fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    listener.local_addr().expect("an address").port()
}

/// A port that is currently unused, and so is the port for the other nodes of a cluster, which is
/// 10,000 higher.
pub(crate) fn free_cluster_port() -> u16 {
    let is_free = |port: u16| {
        let bus = port.checked_add(10_000)?;
        TcpListener::bind(("127.0.0.1", bus)).ok().map(|_| port)
    };
    std::iter::repeat_with(free_port).find_map(is_free).expect("a free pair of ports")
}

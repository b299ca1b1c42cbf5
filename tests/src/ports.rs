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

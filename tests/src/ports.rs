//! Ports of the loopback interface.

use std::fs::File;
use std::net::TcpListener;
use std::ops::Range;
use std::time::Duration;

use rustix::fs::{FlockOperation, flock};

/// How long a server may take to start.
pub(crate) const START_TIMEOUT: Duration = Duration::from_secs(20);

/// The ports of servers. The operating system gives none of them to clients or proxies, nor those for the other nodes of a
/// cluster. None is the number of a slot, because proxies replace a port wherever it occurs in a list of slots.
const PORTS: Range<u16> = 16_400..22_700;

/// How much higher the port for the other nodes of a cluster is.
const TO_BUS: u16 = 10_000;

/// A port that no other test uses, in this process or in another one, until this value is dropped. So
/// a client never finds the server of another test, also while its own server is down.
#[derive(Debug)]
pub(crate) struct ReservedPort {
    number: u16,
    /// Locked as long as it is open.
    _file: File,
}

impl ReservedPort {
    /// A port that is currently unused, and so is the port for the other nodes of a cluster.
    pub(crate) fn new() -> Self {
        // Each server has a port, so no test begins before that.
        crate::stalls::watch();
        let directory = std::env::temp_dir().join("lock-tests-ports");
        std::fs::create_dir_all(&directory).expect("a temporary directory");
        let reserve = |number: u16| {
            let file = File::create(directory.join(number.to_string())).ok()?;
            flock(&file, FlockOperation::NonBlockingLockExclusive).ok()?;
            let is_free = |port: u16| TcpListener::bind(("127.0.0.1", port)).is_ok();
            let is_free = is_free(number) && is_free(number + TO_BUS);
            is_free.then_some(Self { number, _file: file })
        };
        std::iter::repeat_with(|| fastrand::u16(PORTS)).find_map(reserve).expect("a free port")
    }

    pub(crate) fn number(&self) -> u16 {
        self.number
    }

    /// The port for the other nodes of a cluster.
    pub(crate) fn bus(&self) -> u16 {
        self.number + TO_BUS
    }
}

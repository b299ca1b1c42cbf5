//! PgBouncer, a pooler of connections to PostgreSQL.

use std::fmt::Write as _;
use std::process::Child;
use std::thread::sleep;
use std::time::{Duration, Instant};

use tempfile::TempDir;

use crate::DatabaseServer;
use crate::database_server::{log, own, path_of, spawn_program};
use crate::ports::{ReservedPort, START_TIMEOUT};

const INSTALL: &str = "`apt-get install pgbouncer` (Debian, Ubuntu), `dnf install pgbouncer` (Fedora), \
                       `brew install pgbouncer` (macOS)";

/// A pooler on a free port of the loopback interface. It ends when it is dropped.
#[derive(Debug)]
pub struct Pooler {
    child: Child,
    port: ReservedPort,
    directory: TempDir,
}

impl Pooler {
    /// A pooler in this mode, `transaction` or `session`, that has this many connections to the server at most.
    ///
    /// # Panics
    ///
    /// If PgBouncer is not installed, or does not start.
    #[must_use]
    pub fn start(server: &DatabaseServer, mode: &str, connections: u32) -> Self {
        // Another process may take the port before the pooler binds it.
        for _ in 0..10 {
            let directory = tempfile::tempdir().expect("a temporary directory");
            own(directory.path());
            let port = ReservedPort::new();
            let mut settings = String::new();
            write!(
                settings,
                "[databases]\n* = host=127.0.0.1 port={} user=test\n[pgbouncer]\nlisten_addr = 127.0.0.1\n\
                 listen_port = {}\nunix_socket_dir =\nauth_type = any\npool_mode = {mode}\n\
                 default_pool_size = {connections}\n",
                server.port(),
                port.number()
            )
            .expect("text");
            let file = directory.path().join("pgbouncer.ini");
            std::fs::write(&file, settings).expect("a temporary file");
            own(&file);
            let arguments = [file.to_str().expect("a path in UTF-8").to_owned()];
            let program = path_of("pgbouncer", INSTALL);
            let child = spawn_program(&program, &arguments, directory.path());
            // From here on, the process ends if this function panics.
            let mut pooler = Self { child, port, directory };
            if pooler.starts() {
                return pooler;
            }
        }
        panic!("pgbouncer does not start");
    }

    /// The URL of a database of this name.
    #[must_use]
    pub fn url(&self, database: &str) -> String {
        format!("postgres://test@127.0.0.1:{}/{database}", self.port.number())
    }

    /// Waits until the pooler serves. Returns `false` if it has ended.
    fn starts(&mut self) -> bool {
        let end = Instant::now() + START_TIMEOUT;
        while self.child.try_wait().expect("a child process").is_none() {
            let log = log(self.directory.path());
            if log.contains("process up") {
                return true;
            }
            assert!(Instant::now() < end, "no answer: {log}");
            sleep(Duration::from_millis(5));
        }
        false
    }
}

impl Drop for Pooler {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

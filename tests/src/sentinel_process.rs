//! A sentinel.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use crate::ports::{ReservedPort, START_TIMEOUT};
use crate::tls::Certificates;

/// The name of the master that sentinels monitor.
pub(crate) const MASTER: &str = "locks";

/// How long a server may be silent before its sentinels take it for down.
pub const DOWN_AFTER: Duration = Duration::from_secs(1);

/// The same for tests in which no failover may begin on its own, however slow the machine is.
pub(crate) const NEVER_DOWN: Duration = Duration::from_secs(600);

/// One sentinel.
#[derive(Debug)]
pub struct SentinelProcess {
    child: Child,
    /// Without TLS.
    port: u16,
    tls_port: Option<u16>,
    _reserved: [ReservedPort; 2],
    _directory: TempDir,
}

impl SentinelProcess {
    /// Starts a sentinel that monitors the server on this port, and begins no failover on its own.
    #[must_use]
    pub fn start(master: u16) -> Self {
        Self::start_with(master, NEVER_DOWN, None, &[])
    }

    /// The same, with TLS.
    pub(crate) fn start_with_tls(master: u16, certificates: &Certificates) -> Self {
        Self::start_with(master, NEVER_DOWN, Some(certificates), &[])
    }

    /// Starts a sentinel with these additional lines in its configuration.
    pub(crate) fn start_with(
        master: u16,
        down_after: Duration,
        certificates: Option<&Certificates>,
        more: &[String],
    ) -> Self {
        // Another process may take the port before the sentinel binds it.
        for _ in 0..10 {
            let directory = tempfile::tempdir().expect("a temporary directory");
            let reserved = [ReservedPort::new(), ReservedPort::new()];
            let [port, tls_port] = [&reserved[0], &reserved[1]].map(ReservedPort::number);
            let tls_port = certificates.map(|_| tls_port);
            let mut lines = [&[format!("port {port}")], more].concat();
            lines.push(format!("sentinel monitor {MASTER} 127.0.0.1 {master} 2"));
            if let (Some((authority, identity)), Some(tls_port)) = (certificates, tls_port) {
                lines.extend([
                    format!("tls-port {tls_port}"),
                    format!("tls-ca-cert-file {}", authority.file().display()),
                    format!("tls-cert-file {}", identity.certificate().display()),
                    format!("tls-key-file {}", identity.key().display()),
                    "tls-auth-clients optional".into(),
                    "tls-replication yes".into(),
                ]);
            }
            let child = Self::spawn(directory.path(), down_after, lines);
            // From here on, the process is killed if this function panics.
            let mut sentinel =
                Self { child, port, tls_port, _reserved: reserved, _directory: directory };
            let end = Instant::now() + START_TIMEOUT;
            while sentinel.child.try_wait().expect("a child process").is_none() {
                if ask::<String>(port, &redis::cmd("PING")).is_ok() {
                    return sentinel;
                }
                assert!(Instant::now() < end, "the sentinel does not answer");
                sleep(Duration::from_millis(5));
            }
        }
        panic!("redis-server does not start as a sentinel");
    }

    fn spawn(directory: &Path, down_after: Duration, mut lines: Vec<String>) -> Child {
        let (config, directory) = (directory.join("sentinel.conf"), directory.display());
        lines.extend([
            "bind 127.0.0.1".into(),
            format!("dir {directory}"),
            format!("logfile {directory}/log"),
            format!("sentinel down-after-milliseconds {MASTER} {}", down_after.as_millis()),
            format!("sentinel failover-timeout {MASTER} 3000"),
        ]);
        std::fs::write(&config, lines.join("\n")).expect("a temporary file");
        let mut command = Command::new("redis-server");
        command.arg(config).arg("--sentinel");
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        command.spawn().expect("redis-server is installed")
    }

    /// The host and the port that clients connect to.
    #[must_use]
    pub fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port())
    }

    /// The port that clients connect to.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.tls_port.unwrap_or(self.port)
    }

    /// Kills the sentinel with SIGKILL.
    pub fn kill(&self) {
        self.signal(Signal::KILL);
    }

    /// Suspends the sentinel with SIGSTOP.
    pub fn freeze(&self) {
        self.signal(Signal::STOP);
    }

    /// Resumes the sentinel with SIGCONT.
    pub fn thaw(&self) {
        self.signal(Signal::CONT);
    }

    fn signal(&self, signal: Signal) {
        // The process has not been waited for, so its id still belongs to it.
        kill_process(Pid::from_child(&self.child), signal).expect("a child process");
    }

    /// Sends one command and returns the reply.
    #[must_use]
    pub fn command<T: redis::FromRedisValue>(&self, words: &[&str]) -> T {
        let mut command = redis::cmd(words[0]);
        command.arg(&words[1..]);
        ask(self.port, &command).expect("a reply")
    }

    /// Sends one command and ignores the reply.
    pub fn tell(&self, words: &[&str]) {
        let _: redis::Value = self.command(words);
    }

    /// The port of the master that this sentinel names.
    #[must_use]
    pub fn master(&self) -> Option<u16> {
        let address: Option<(String, u16)> = self.ask(&["GET-MASTER-ADDR-BY-NAME", MASTER]).ok()?;
        Some(address?.1)
    }

    /// Forgets the master, the epoch, and the other sentinels.
    pub fn forget(&self) {
        self.tell(&["SENTINEL", "REMOVE", MASTER]);
    }

    /// Monitors the server on this port from now on, and begins no failover on its own.
    pub fn monitor(&self, master: u16) {
        let (port, never) = (master.to_string(), NEVER_DOWN.as_millis().to_string());
        self.tell(&["SENTINEL", "MONITOR", MASTER, "127.0.0.1", &port, "2"]);
        self.tell(&["SENTINEL", "SET", MASTER, "down-after-milliseconds", &never]);
    }

    /// Whether the sentinel knows both replicas and both other sentinels.
    pub(crate) fn knows_all(&self) -> bool {
        let reply = self.ask::<std::collections::HashMap<String, String>>(&["MASTER", MASTER]);
        reply.is_ok_and(|fields| {
            fields["num-slaves"] == "2"
                && fields["num-other-sentinels"] == "2"
                && fields["flags"] == "master"
        })
    }

    pub(crate) fn ask<T: redis::FromRedisValue>(&self, words: &[&str]) -> redis::RedisResult<T> {
        let mut command = redis::cmd("SENTINEL");
        command.arg(words);
        ask(self.port, &command)
    }
}

impl Drop for SentinelProcess {
    fn drop(&mut self) {
        // Also ends a suspended process. It may have been killed before.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Sends a command to the sentinel on this port. A suspended sentinel gives an error.
fn ask<T: redis::FromRedisValue>(port: u16, command: &redis::Cmd) -> redis::RedisResult<T> {
    let patience = Duration::from_millis(500);
    let client = redis::Client::open(format!("redis://127.0.0.1:{port}"))?;
    let mut connection = client.get_connection_with_timeout(patience)?;
    connection.set_read_timeout(Some(patience))?;
    command.query(&mut connection)
}

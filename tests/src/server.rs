//! A `redis-server` of a test's own.

use std::io::ErrorKind;
use std::io::Read;
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

/// How long a server may take to start.
const PATIENCE: Duration = Duration::from_secs(20);

/// A server on a free port of the loopback interface, in a directory of its own, without
/// persistence. Ends when dropped.
#[derive(Debug)]
pub struct RedisServer {
    /// `None` while it is down.
    child: Option<Child>,
    port: u16,
    options: Vec<String>,
    password: Option<String>,
    /// Whether its wall clock can be set.
    own_clock: bool,
    directory: TempDir,
}

impl RedisServer {
    /// Starts a server.
    ///
    /// # Panics
    ///
    /// If there is no `redis-server`; the message says how to get one.
    #[must_use]
    pub fn start() -> Self {
        Self::with(&[])
    }

    /// Starts a server with more options: `&["--maxclients", "10"]`.
    #[must_use]
    pub fn with(options: &[&str]) -> Self {
        Self::start_on(options, false)
    }

    /// Starts a server whose wall clock can be [set](Self::set_clock). Linux only.
    #[must_use]
    pub fn with_own_clock(options: &[&str]) -> Self {
        Self::start_on(options, true)
    }

    fn start_on(options: &[&str], own_clock: bool) -> Self {
        let password =
            options.iter().position(|option| *option == "--requirepass").map(|at| options[at + 1]);
        let mut server = Self {
            child: None,
            port: 0,
            options: options.iter().map(ToString::to_string).collect(),
            password: password.map(ToOwned::to_owned),
            own_clock,
            directory: tempfile::tempdir().expect("a temporary directory"),
        };
        if own_clock {
            server.build_clock();
        }
        // Somebody else may take the port between our look and the server's.
        for _ in 0..10 {
            server.port = free_port();
            if server.spawn() {
                return server;
            }
        }
        panic!("no redis-server would start: {}", server.log());
    }

    /// The URL for a client, with the password if it has one.
    #[must_use]
    pub fn url(&self) -> String {
        match &self.password {
            None => format!("redis://127.0.0.1:{}", self.port),
            Some(password) => format!("redis://:{password}@127.0.0.1:{}", self.port),
        }
    }

    /// The port that it listens on.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }

    /// A plain connection, to look at the server from outside.
    #[must_use]
    pub fn connection(&self) -> redis::Connection {
        let client = redis::Client::open(self.url()).expect("a valid URL");
        client.get_connection().expect("the server answers")
    }

    /// Sends one command and returns the reply.
    #[must_use]
    pub fn command<T: redis::FromRedisValue>(&self, words: &[&str]) -> T {
        let mut command = redis::cmd(words[0]);
        command.arg(&words[1..]);
        command.query(&mut self.connection()).expect("a reply")
    }

    /// Sends one command whose reply does not matter.
    pub fn tell(&self, words: &[&str]) {
        let _: redis::Value = self.command(words);
    }

    /// The milliseconds that a key has left; negative if it does not exist or never expires.
    #[must_use]
    pub fn pttl(&self, key: &str) -> i64 {
        self.command(&["PTTL", key])
    }

    /// Whether a key exists.
    #[must_use]
    pub fn exists(&self, key: &str) -> bool {
        self.command(&["EXISTS", key])
    }

    /// How often each command was called, by clients and by scripts.
    #[must_use]
    pub fn calls(&self, command: &str) -> u64 {
        let stats: String = self.command(&["INFO", "commandstats"]);
        let line = stats.lines().find_map(|line| line.strip_prefix(&format!("cmdstat_{command}:")));
        let calls = line.and_then(|line| line.strip_prefix("calls=")?.split(',').next());
        calls.map_or(0, |calls| calls.parse().expect("a number"))
    }

    /// Whether it takes no more connections.
    #[must_use]
    pub fn is_full(&self) -> bool {
        let mut socket = TcpStream::connect(("127.0.0.1", self.port)).expect("it listens");
        // It says so by itself, or waits for us to speak.
        let _ = socket.set_read_timeout(Some(Duration::from_millis(100)));
        let mut said = [0; 64];
        let length = socket.read(&mut said).unwrap_or(0);
        String::from_utf8_lossy(&said[..length]).contains("max number of clients")
    }

    /// Ends the server at once, with all its data: SIGKILL.
    pub fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            child.kill().expect("our own child");
            child.wait().expect("our own child");
        }
    }

    /// Moves its wall clock this many seconds away from the machine's.
    pub fn set_clock(&self, seconds: i64) {
        assert!(self.own_clock, "it was started with a clock of its own");
        // In one piece, because it is read at any time; without a rename, because it is kept open.
        std::fs::write(self.clock_offset(), format!("{seconds:<20}")).expect("our own file");
    }

    fn clock_offset(&self) -> PathBuf {
        self.directory.path().join("clock")
    }

    fn clock_shim(&self) -> PathBuf {
        self.directory.path().join("clock.so")
    }

    /// The C compiler is there, because Rust's programs are linked by it.
    fn build_clock(&self) {
        let source = self.directory.path().join("clock.c");
        std::fs::write(&source, include_str!("clock_shim.c")).expect("a temporary file");
        let mut cc = Command::new("cc");
        cc.args(["-O1", "-shared", "-fPIC", "-o"]).arg(self.clock_shim()).arg(&source);
        assert!(cc.status().expect("a C compiler, `cc`").success(), "the clock does not compile");
        self.set_clock(0);
    }

    /// Gives it another password.
    pub fn set_password(&mut self, password: &str) {
        self.tell(&["CONFIG", "SET", "requirepass", password]);
        self.password = Some(password.to_owned());
    }

    /// Where it keeps its files.
    #[must_use]
    pub fn directory(&self) -> &Path {
        self.directory.path()
    }

    /// Starts it again on the same port, with these options besides.
    pub fn restart_with(&mut self, options: &[&str]) {
        self.options.extend(options.iter().map(ToString::to_string));
        self.restart();
    }

    /// Starts it again on the same port; empty, unless it was started with persistence.
    pub fn restart(&mut self) {
        self.kill();
        let end = Instant::now() + PATIENCE;
        while !self.spawn() {
            assert!(Instant::now() < end, "it does not come back: {}", self.log());
        }
    }

    /// Freezes it: it keeps its connections and answers nothing.
    pub fn freeze(&self) {
        self.signal(Signal::STOP);
    }

    /// Lets it go on.
    pub fn thaw(&self) {
        self.signal(Signal::CONT);
    }

    fn signal(&self, signal: Signal) {
        let child = self.child.as_ref().expect("it runs");
        kill_process(Pid::from_child(child), signal).expect("our own child");
    }

    fn spawn(&mut self) -> bool {
        let log = std::fs::File::create(self.directory.path().join("log")).expect("a log file");
        let mut command = Command::new("redis-server");
        command
            .args(["--port", &self.port.to_string(), "--bind", "127.0.0.1"])
            .args(["--save", "", "--appendonly", "no", "--daemonize", "no"])
            .arg("--dir")
            .arg(self.directory.path())
            .args(&self.options)
            .stdin(Stdio::null())
            .stdout(log)
            .stderr(Stdio::null());
        if self.own_clock {
            command.env("LD_PRELOAD", self.clock_shim());
            command.env("CLOCK_OFFSET_FILE", self.clock_offset());
        }
        let mut child = match command.spawn() {
            Ok(child) => child,
            Err(error) if error.kind() == ErrorKind::NotFound => panic!(
                "these tests need redis-server, and it is not installed: run `scripts/test`, or \
                 `apt-get install redis-server` (Debian, Ubuntu), `dnf install redis` (Fedora), \
                 `brew install redis` (macOS)"
            ),
            Err(error) => panic!("cannot start redis-server: {error}"),
        };
        let end = Instant::now() + PATIENCE;
        while child.try_wait().expect("our own child").is_none() {
            if self.answers() {
                self.child = Some(child);
                return true;
            }
            if Instant::now() > end {
                child.kill().expect("our own child");
                child.wait().expect("our own child");
                return false;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        false
    }

    fn answers(&self) -> bool {
        let Ok(client) = redis::Client::open(self.url()) else { return false };
        let Ok(mut connection) = client.get_connection_with_timeout(PATIENCE) else { return false };
        match redis::cmd("PING").query::<String>(&mut connection) {
            // It is there, and a test that makes it load its data slowly wants it so.
            Err(error) if error.code() == Some("LOADING") => {
                self.options.iter().any(|option| option == "--key-load-delay")
            }
            answer => answer.is_ok(),
        }
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.directory.path().join("log")).unwrap_or_default()
    }
}

impl Drop for RedisServer {
    fn drop(&mut self) {
        // A frozen process is killed as well.
        self.kill();
    }
}

/// A port that nobody listens on right now.
fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    listener.local_addr().expect("an address").port()
}

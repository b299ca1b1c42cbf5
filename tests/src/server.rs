//! A `redis-server` for a single test.

use std::io::ErrorKind;
use std::io::Read;
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

use redis::IntoConnectionInfo;
use tempfile::TempDir;

use crate::clock_shim::ClockShim;
use crate::ports::{ReservedPort, START_TIMEOUT};
use crate::sentinel_process::{MASTER, SentinelProcess};
use crate::suspension::{resume, suspend};
use crate::tls::{Authority, Certificates, ServerIdentity, Validity};

/// The variable that says which kind of server all tests run on: `sentinel` (a server with TLS whose address clients learn
/// from a sentinel, also with TLS), `cluster` (a cluster of one node), or a plain one.
const KIND: &str = "LOCK_TESTS_SERVER";

/// Whether all tests run on a cluster.
pub(crate) fn is_cluster() -> bool {
    std::env::var(KIND).as_deref() == Ok("cluster")
}

/// The certificates of all servers of a process that exist at one time.
static LOCALHOST: Mutex<Weak<Certificates>> = Mutex::new(Weak::new());

fn localhost() -> Arc<Certificates> {
    let mut shared = LOCALHOST.lock().unwrap_or_else(PoisonError::into_inner);
    shared.upgrade().unwrap_or_else(|| {
        let authority = Authority::new();
        let identity = authority.issue(&["localhost", "127.0.0.1"], Validity::Now);
        let certificates = Arc::new((authority, identity));
        *shared = Arc::downgrade(&certificates);
        certificates
    })
}

/// A server on a free port of the loopback interface, with a directory of its own and without
/// persistence. Killed when dropped.
#[derive(Debug)]
pub struct RedisServer {
    /// `None` while the server is down.
    child: Option<Child>,
    port: u16,
    /// The port, and that for TLS.
    reserved: Vec<ReservedPort>,
    options: Vec<String>,
    password: Option<String>,
    /// Where clients connect with TLS, and the file with the certificate of the authority.
    tls: Option<(u16, PathBuf)>,
    /// Set if clients ask a sentinel for the address unless a test says otherwise.
    sentinel: Option<SentinelProcess>,
    /// The certificates of the server and of its sentinel, kept while both run.
    certificates: Option<Arc<Certificates>>,
    /// Whether clients use the server as a cluster unless a test says otherwise.
    in_cluster: bool,
    /// Whether the wall clock of the server can be set.
    own_clock: bool,
    directory: TempDir,
}

impl RedisServer {
    /// Starts a server.
    ///
    /// # Panics
    ///
    /// If `redis-server` is not installed. The message says how to install it.
    #[must_use]
    pub fn start() -> Self {
        Self::with(&[])
    }

    /// Starts a server with additional options, such as `&["--maxclients", "10"]`.
    ///
    /// # Panics
    ///
    /// If `LOCK_TESTS_SERVER` is set to anything but `sentinel` and `cluster`.
    #[must_use]
    pub fn with(options: &[&str]) -> Self {
        match std::env::var(KIND).as_deref() {
            Err(_) => Self::start_on(options, None, false),
            Ok("sentinel") => Self::start_with_sentinel(options),
            Ok("cluster") => Self::start_cluster(options, false),
            Ok(other) => panic!("`{KIND}` is {other:?}, and not `sentinel` or `cluster`"),
        }
    }

    /// Starts a server that may become a node of a cluster, and has no slots.
    #[must_use]
    pub fn start_node() -> Self {
        Self::plain(&["--cluster-enabled", "yes"])
    }

    /// Starts a server whose wall clock can be [set](Self::set_clock). Linux only.
    #[must_use]
    pub fn with_own_clock(options: &[&str]) -> Self {
        if is_cluster() {
            Self::start_cluster(options, true)
        } else {
            Self::start_on(options, None, true)
        }
    }

    /// Starts a server with TLS whose address clients learn from a sentinel, also with TLS.
    pub(crate) fn start_with_sentinel(options: &[&str]) -> Self {
        let certificates = localhost();
        let (authority, identity) = &*certificates;
        let mut server = Self::with_tls(authority, identity, options);
        server.sentinel = Some(SentinelProcess::start_with_tls(server.tls_port(), &certificates));
        server.certificates = Some(certificates);
        server
    }

    /// Starts a cluster of one node, which has all slots.
    pub(crate) fn start_cluster(options: &[&str], own_clock: bool) -> Self {
        let all = [&["--cluster-enabled", "yes"], options].concat();
        let mut server = Self::start_on(&all, None, own_clock);
        server.in_cluster = true;
        server.tell(&["CLUSTER", "ADDSLOTSRANGE", "0", "16383"]);
        server.wait_until_serving();
        server
    }

    /// Waits until a node of a cluster serves its slots. A master waits for two seconds after its
    /// start, because it may have been replaced before.
    fn wait_until_serving(&self) {
        let end = Instant::now() + START_TIMEOUT;
        let is_ok = || {
            let info = self.ask::<String>(&["CLUSTER", "INFO"]);
            // A server that loads its data does not say.
            info.map_or(true, |info| info.contains("cluster_state:ok"))
        };
        while self.in_cluster && !is_ok() {
            assert!(Instant::now() < end, "the cluster does not work: {}", self.log());
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Starts a server that has this certificate and also accepts connections with TLS, on another
    /// port. Clients need a certificate of `authority` if `options` say so.
    #[must_use]
    pub fn with_tls(authority: &Authority, identity: &ServerIdentity, options: &[&str]) -> Self {
        Self::start_on(options, Some((authority, identity)), false)
    }

    /// Starts a server without TLS that only its clients talk to, whichever kind of server the tests
    /// run on.
    #[must_use]
    pub fn plain(options: &[&str]) -> Self {
        Self::start_on(options, None, false)
    }

    fn start_on(
        options: &[&str],
        tls: Option<(&Authority, &ServerIdentity)>,
        own_clock: bool,
    ) -> Self {
        let password =
            options.iter().position(|option| *option == "--requirepass").map(|at| options[at + 1]);
        let own_options = options.iter().map(ToString::to_string);
        let mut server = Self {
            child: None,
            port: 0,
            reserved: Vec::new(),
            options: tls.map(tls_options).into_iter().flatten().chain(own_options).collect(),
            password: password.map(ToOwned::to_owned),
            tls: tls.map(|(authority, _)| (0, authority.file().to_owned())),
            sentinel: None,
            certificates: None,
            in_cluster: false,
            own_clock,
            directory: tempfile::tempdir().expect("a temporary directory"),
        };
        if own_clock {
            server.clock().build();
        }
        // Another process may take a port before the server binds it.
        for _ in 0..10 {
            server.reserved = vec![ReservedPort::new(), ReservedPort::new()];
            server.port = server.reserved[0].number();
            if let Some((tls_port, _)) = &mut server.tls {
                *tls_port = server.reserved[1].number();
            }
            if server.spawn() {
                return server;
            }
        }
        panic!("redis-server does not start: {}", server.log());
    }

    /// The URL for a client, including the password if there is one. With a sentinel and TLS, or for a cluster if all tests
    /// run so.
    #[must_use]
    pub fn url(&self) -> String {
        match &self.sentinel {
            Some(sentinel) => {
                let (login, address, authority) =
                    (self.login(), sentinel.address(), self.authority());
                format!(
                    "rediss+sentinel://{login}{address}/{MASTER}?tls_ca={}",
                    authority.display()
                )
            }
            None if self.in_cluster => self.plain_url().replacen("redis://", "redis+cluster://", 1),
            None => self.plain_url(),
        }
    }

    /// The URL for a client without TLS that logs in with `login`, such as `user:password`.
    #[must_use]
    pub fn url_as(&self, login: &str) -> String {
        let scheme = if self.in_cluster { "redis+cluster" } else { "redis" };
        format!("{scheme}://{login}@127.0.0.1:{}", self.port)
    }

    /// The URL for a client without TLS, without a login.
    #[must_use]
    pub fn url_without_login(&self) -> String {
        self.url_as("").replacen('@', "", 1)
    }

    /// The URL for clients that know no TLS.
    #[must_use]
    pub fn plain_url(&self) -> String {
        format!("redis://{}127.0.0.1:{}", self.login(), self.port)
    }

    /// The part of a URL with the password.
    fn login(&self) -> String {
        self.password.as_ref().map(|password| format!(":{password}@")).unwrap_or_default()
    }

    /// The URL for a client that connects with TLS, without options.
    ///
    /// # Panics
    ///
    /// If the server was not started [with TLS](Self::with_tls).
    #[must_use]
    pub fn tls_url(&self) -> String {
        format!("rediss://{}localhost:{}", self.login(), self.tls_port())
    }

    /// The same, with the option that names the authority.
    ///
    /// # Panics
    ///
    /// If the server was not started [with TLS](Self::with_tls).
    #[must_use]
    pub fn trusted_tls_url(&self) -> String {
        format!("{}?tls_ca={}", self.tls_url(), self.authority().display())
    }

    /// The file with the certificate of the authority.
    fn authority(&self) -> &Path {
        &self.tls.as_ref().expect("a server with TLS").1
    }

    /// The host and the port that clients connect to.
    #[must_use]
    pub fn address(&self) -> String {
        let port = if self.sentinel.is_some() { self.tls_port() } else { self.port };
        format!("127.0.0.1:{port}")
    }

    /// The port for connections without TLS.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The port for connections with TLS.
    ///
    /// # Panics
    ///
    /// If the server was not started [with TLS](Self::with_tls).
    #[must_use]
    pub fn tls_port(&self) -> u16 {
        self.tls.as_ref().expect("a server with TLS").0
    }

    /// A plain connection, to inspect the server.
    #[must_use]
    pub fn connection(&self) -> redis::Connection {
        let info = self.plain_url().into_connection_info().expect("a valid URL");
        // `CLIENT SETINFO` would count among the commands of the clients.
        let login = info.redis_settings().clone().set_skip_set_lib_name();
        let client = redis::Client::open(info.set_redis_settings(login)).expect("a valid URL");
        client.get_connection().expect("the server answers")
    }

    /// Sends one command and returns the reply.
    #[must_use]
    pub fn command<T: redis::FromRedisValue>(&self, words: &[&str]) -> T {
        let mut command = redis::cmd(words[0]);
        command.arg(&words[1..]);
        command.query(&mut self.connection()).expect("a reply")
    }

    /// Sends one command to a server that may be down or suspended.
    pub(crate) fn ask<T: redis::FromRedisValue>(&self, words: &[&str]) -> redis::RedisResult<T> {
        let patience = Duration::from_millis(500);
        let mut connection =
            redis::Client::open(self.plain_url())?.get_connection_with_timeout(patience)?;
        connection.set_read_timeout(Some(patience))?;
        redis::cmd(words[0]).arg(&words[1..]).query(&mut connection)
    }

    /// Sends one command and ignores the reply.
    pub fn tell(&self, words: &[&str]) {
        let _: redis::Value = self.command(words);
    }

    /// Closes the connections of this kind: `normal`, or `pubsub` for those with subscriptions.
    pub fn kill_connections(&self, kind: &str) {
        self.tell(&["CLIENT", "KILL", "TYPE", kind]);
    }

    /// Closes the connections of all clients.
    pub fn kill_all_connections(&self) {
        self.kill_connections("normal");
        self.kill_connections("pubsub");
    }

    /// The time to live of a key in milliseconds; negative if the key does not exist or has no
    /// expiry.
    #[must_use]
    pub fn pttl(&self, key: &str) -> i64 {
        self.command(&["PTTL", key])
    }

    /// Whether a key exists.
    #[must_use]
    pub fn exists(&self, key: &str) -> bool {
        self.command(&["EXISTS", key])
    }

    /// How often clients and scripts have called a command.
    #[must_use]
    pub fn calls(&self, command: &str) -> u64 {
        let stats: String = self.command(&["INFO", "commandstats"]);
        let line = stats.lines().find_map(|line| line.strip_prefix(&format!("cmdstat_{command}:")));
        let calls = line.and_then(|line| line.strip_prefix("calls=")?.split(',').next());
        calls.map_or(0, |calls| calls.parse().expect("a number"))
    }

    /// Whether the server refuses new connections because it has reached its limit.
    #[must_use]
    pub fn is_full(&self) -> bool {
        let mut socket = TcpStream::connect(("127.0.0.1", self.port)).expect("the server listens");
        // A full server sends its error at once; any other server waits for a command.
        let _ = socket.set_read_timeout(Some(Duration::from_millis(100)));
        let mut said = [0; 64];
        let length = socket.read(&mut said).unwrap_or(0);
        String::from_utf8_lossy(&said[..length]).contains("max number of clients")
    }

    /// The channels with subscribers whose names match a pattern, without those of sentinels and for questions.
    #[must_use]
    pub fn channels(&self, pattern: &str) -> Vec<String> {
        let all = if self.in_cluster { "SHARDCHANNELS" } else { "CHANNELS" };
        let mut channels: Vec<String> = self.command(&["PUBSUB", all, pattern]);
        channels
            .retain(|channel| channel != "__sentinel__:hello" && !channel.starts_with("lock_ask:"));
        channels
    }

    /// Publishes a message. Returns the number of clients that have received it.
    ///
    /// # Panics
    ///
    /// If the server does not answer.
    #[expect(clippy::must_use_candidate, reason = "most messages have known receivers")]
    pub fn publish(&self, channel: &str, message: &str) -> u64 {
        let publish = if self.in_cluster { "SPUBLISH" } else { "PUBLISH" };
        self.command(&[publish, channel, message])
    }

    /// Publishes a message many times, as fast as possible.
    ///
    /// # Panics
    ///
    /// If the server does not answer.
    pub fn flood(&self, channel: &str, message: &str, count: usize) {
        let publish = if self.in_cluster { "SPUBLISH" } else { "PUBLISH" };
        let mut messages = redis::pipe();
        for _ in 0..count {
            messages.cmd(publish).arg(channel).arg(message).ignore();
        }
        messages.query::<()>(&mut self.connection()).expect("the server answers");
    }

    /// The number of keys whose changes the server reports to clients.
    ///
    /// # Panics
    ///
    /// If the server does not answer.
    #[must_use]
    pub fn tracked_keys(&self) -> usize {
        self.described("tracking_total_keys:")
    }

    /// A number in the server's description of itself.
    ///
    /// # Panics
    ///
    /// If the server does not answer, or if its description has no such number.
    #[must_use]
    pub fn described(&self, name: &str) -> usize {
        let info: String = self.command(&["INFO"]);
        let value = info.lines().find_map(|line| line.strip_prefix(name));
        value.and_then(|value| value.trim().parse().ok()).expect("a number")
    }

    /// All keys but those in which clients say who they are.
    #[must_use]
    pub fn keys(&self) -> Vec<String> {
        let mut keys: Vec<String> = self.command(&["KEYS", "*"]);
        keys.retain(|key| !key.starts_with("lock_client:"));
        keys
    }

    /// The number of these keys.
    #[must_use]
    pub fn key_count(&self) -> usize {
        self.keys().len()
    }

    /// Whether so many claims stand in the queue of a lock, and a message would wake each of them. A claim
    /// that polls has no client, so nobody would notice its death.
    #[must_use]
    pub fn has_woken_claims(&self, key: &str, count: usize) -> bool {
        let queues: Vec<String> = self.command(&["KEYS", &format!("lock_queue:{{*}}:{key}")]);
        let claims = |queue: &String| -> Vec<String> {
            self.command(&["ZRANGEBYSCORE", queue, "-inf", "(8000000000000000"])
        };
        let claims: Vec<_> = queues.iter().flat_map(claims).collect();
        claims.len() == count && claims.iter().all(|claim| claim.as_bytes().get(32) != Some(&b'-'))
    }

    /// The number of claims in the queue of a lock.
    #[must_use]
    pub fn queued(&self, key: &str) -> usize {
        // The hash tag depends on the key.
        let queues: Vec<String> = self.command(&["KEYS", &format!("lock_queue:{{*}}:{key}")]);
        // Entries that are no claims have higher scores.
        let count = |queue| self.command::<usize>(&["ZCOUNT", queue, "-inf", "(8000000000000000"]);
        queues.iter().map(|queue| count(queue)).sum()
    }

    /// Whether the server runs.
    #[must_use]
    pub fn is_running(&self) -> bool {
        self.child.is_some()
    }

    /// Kills the server with SIGKILL. Without persistence, its data is lost.
    pub fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            child.kill().expect("a child process");
            child.wait().expect("a child process");
        }
    }

    /// Sets the wall clock of the server this many seconds ahead of the machine's.
    pub fn set_clock(&self, seconds: i64) {
        assert!(self.own_clock, "the server was not started with its own clock");
        self.clock().set(seconds);
    }

    fn clock(&self) -> ClockShim {
        ClockShim::in_directory(self.directory.path())
    }

    /// Changes the password of the server.
    pub fn set_password(&mut self, password: &str) {
        self.tell(&["CONFIG", "SET", "requirepass", password]);
        self.password = Some(password.to_owned());
    }

    /// The working directory of the server.
    #[must_use]
    pub fn directory(&self) -> &Path {
        self.directory.path()
    }

    /// Restarts the server on the same port, with these additional options.
    pub fn restart_with(&mut self, options: &[&str]) {
        self.options.extend(options.iter().map(ToString::to_string));
        self.restart();
    }

    /// Restarts the server on the same port. Without persistence, its data is lost.
    pub fn restart(&mut self) {
        self.kill();
        let end = Instant::now() + START_TIMEOUT;
        while !self.spawn() {
            assert!(Instant::now() < end, "the server does not restart: {}", self.log());
        }
        self.wait_until_serving();
    }

    /// Suspends the server with SIGSTOP. It keeps its connections and does not reply.
    pub fn freeze(&self) {
        suspend(self.child.as_ref().expect("the server runs"));
    }

    /// Resumes the server with SIGCONT.
    pub fn thaw(&self) {
        resume(self.child.as_ref().expect("the server runs"));
    }

    fn spawn(&mut self) -> bool {
        let log = std::fs::File::create(self.directory.path().join("log")).expect("a log file");
        let mut command = Command::new("redis-server");
        command
            .args(["--port", &self.port.to_string(), "--bind", "127.0.0.1"])
            .args(["--save", "", "--appendonly", "no", "--daemonize", "no"])
            .arg("--dir")
            .arg(self.directory.path())
            .args(self.tls.iter().flat_map(|(port, _)| ["--tls-port".into(), port.to_string()]))
            .args(&self.options)
            .stdin(Stdio::null())
            .stdout(log)
            .stderr(Stdio::null());
        if self.own_clock {
            self.clock().preload(&mut command);
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
        let end = Instant::now() + START_TIMEOUT;
        while child.try_wait().expect("a child process").is_none() {
            if self.answers() {
                self.child = Some(child);
                return true;
            }
            if Instant::now() > end {
                child.kill().expect("a child process");
                child.wait().expect("a child process");
                return false;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        false
    }

    /// The keys of the library that have no expiry, apart from those that stay: the fencing tokens, also those of Redisson, and
    /// the quarantine. None if the server does not answer.
    fn keys_without_expiry(&self) -> Vec<String> {
        const SCRIPT: &str = "local left = {} \
            for _, key in ipairs(redis.call('keys', '*')) do \
            if key:find('lock_') and redis.call('pttl', key) == -1 then left[#left + 1] = key end end \
            return left";
        let mut left: Vec<String> = self.ask(&["EVAL", SCRIPT, "0"]).unwrap_or_default();
        let stay = ["lock_fence:", "lock_quarantine:", "redisson_lock_token:"];
        left.retain(|key| !stay.iter().any(|name| key.contains(name)));
        left
    }

    fn answers(&self) -> bool {
        let Ok(client) = redis::Client::open(self.plain_url()) else { return false };
        let Ok(mut connection) = client.get_connection_with_timeout(START_TIMEOUT) else {
            return false;
        };
        match redis::cmd("PING").query::<String>(&mut connection) {
            // The server runs, and the test has asked for slow loading.
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

/// The test fails if a key of the library would stay for ever.
impl Drop for RedisServer {
    fn drop(&mut self) {
        let left = self.keys_without_expiry();
        // SIGKILL also ends a suspended process.
        self.kill();
        assert!(left.is_empty() || std::thread::panicking(), "keys without an expiry: {left:?}");
    }
}

/// The options for connections with TLS. Connections of clients without a certificate are accepted,
/// unless later options change that.
fn tls_options((authority, identity): (&Authority, &ServerIdentity)) -> [String; 8] {
    let file = |path: &Path| path.to_str().expect("a path in UTF-8").to_owned();
    [
        "--tls-auth-clients".into(),
        "optional".into(),
        "--tls-cert-file".into(),
        file(identity.certificate()),
        "--tls-key-file".into(),
        file(identity.key()),
        "--tls-ca-cert-file".into(),
        file(authority.file()),
    ]
}

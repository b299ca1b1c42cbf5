//! Clusters of etcd for tests.

use std::ffi::OsStr;
use std::fs;
use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use tempfile::TempDir;

use crate::peer_network::{NOWHERE, PeerNetwork};
use crate::ports::ReservedPort;
use crate::suspension::{resume, suspend};
use crate::tls::{Authority, ServerIdentity, Validity};

/// How long a member may take to start, or a cluster to elect a leader.
const PATIENCE: Duration = Duration::from_secs(60);

/// How long one answer may take.
const ANSWER: Duration = Duration::from_secs(2);

const INSTALL: &str = "run `scripts/etcd`, or `apt-get install etcd-server etcd-client` (Debian, Ubuntu), \
                       `dnf install etcd` (Fedora), `brew install etcd` (macOS)";

/// What a cluster is started with.
#[derive(Debug, Clone, Default)]
#[expect(clippy::struct_excessive_bools, reason = "each of them is a switch of its own")]
pub struct EtcdOptions {
    /// Whether the elections take as long as by default (1 s), so that the shortest lease lasts for 2 s. Otherwise, it is
    /// half of that.
    pub default_times: bool,
    /// Whether the data is on the disk, as in production. Otherwise, it is in memory if possible.
    pub on_disk: bool,
    /// Whether clients have to use TLS.
    pub tls: bool,
    /// Whether clients need certificates for that.
    pub client_certificates: bool,
    /// Whether members can be cut off from each other.
    pub can_be_cut_off: bool,
    /// Further options of all members.
    pub more: Vec<String>,
}

/// A cluster of etcd on free ports of the loopback interface, with a directory of its own. Its members end when it is
/// dropped, also if a test panics.
#[derive(Debug)]
pub struct EtcdCluster {
    members: Vec<EtcdMember>,
    options: EtcdOptions,
    directory: TempDir,
    tls: Option<(Authority, ServerIdentity)>,
    /// The network between the members, if they can be cut off from each other.
    network: Option<PeerNetwork>,
}

#[derive(Debug)]
struct EtcdMember {
    child: Option<Child>,
    port: ReservedPort,
    /// What the member is told of its cluster.
    is_new: bool,
    /// The port of its proxy to the other members.
    proxy: Option<u16>,
    is_cut_off: bool,
    /// Whether it belongs to the cluster.
    is_listed: bool,
}

impl EtcdMember {
    fn new(network: Option<&PeerNetwork>, is_new: bool) -> Self {
        let port = ReservedPort::new();
        let proxy = network.map(|network| network.proxy_of(port.bus()));
        Self { child: None, port, is_new, proxy, is_cut_off: false, is_listed: true }
    }

    /// Whether it runs, and can reach the others.
    fn takes_part(&self) -> bool {
        self.child.is_some() && !self.is_cut_off
    }
}

impl EtcdCluster {
    /// One member.
    #[must_use]
    pub fn single() -> Self {
        Self::start(1, &EtcdOptions::default())
    }

    /// Three members.
    #[must_use]
    pub fn three() -> Self {
        Self::start(3, &EtcdOptions::default())
    }

    /// So many members, which have a leader.
    ///
    /// # Panics
    ///
    /// If etcd is not installed. The message says how to install it.
    #[must_use]
    pub fn start(count: usize, options: &EtcdOptions) -> Self {
        // Another process may take a port before a member binds it.
        for _ in 0..5 {
            let network = options.can_be_cut_off.then(PeerNetwork::new);
            let member = || EtcdMember::new(network.as_ref(), true);
            let members = std::iter::repeat_with(member).take(count).collect();
            let tls = options.tls.then(|| {
                let authority = Authority::new();
                let identity = authority.issue(&["localhost", "127.0.0.1"], Validity::Now);
                (authority, identity)
            });
            let directory = if options.on_disk {
                tempfile::tempdir().expect("a temporary directory")
            } else {
                directory_in_memory()
            };
            let mut cluster = Self { members, options: options.clone(), directory, tls, network };
            for number in 0..count {
                cluster.spawn(number);
            }
            if (0..count).all(|number| cluster.is_up(number)) {
                return cluster;
            }
        }
        panic!("etcd does not start")
    }

    /// The URL of all members.
    #[must_use]
    pub fn url(&self) -> String {
        self.url_with("")
    }

    /// The URL of all members, with a user and a password, such as `user:password@`.
    #[must_use]
    pub fn url_with(&self, login: &str) -> String {
        let members: Vec<_> = (0..self.members.len()).map(|number| self.address(number)).collect();
        let scheme = if self.tls.is_some() { "etcds" } else { "etcd" };
        format!("{scheme}://{login}{}", members.join(","))
    }

    /// The URL of one member.
    #[must_use]
    pub fn url_of(&self, number: usize) -> String {
        format!("etcd://{}", self.address(number))
    }

    fn address(&self, number: usize) -> String {
        let host = if self.tls.is_some() { "localhost" } else { "127.0.0.1" };
        format!("{host}:{}", self.port(number))
    }

    /// The port for clients of a member.
    #[must_use]
    pub fn port(&self, number: usize) -> u16 {
        self.members[number].port.number()
    }

    /// The version of the first member, which has to run.
    ///
    /// # Panics
    ///
    /// If it does not answer.
    #[must_use]
    pub fn version(&self) -> String {
        let status = self.status(0).expect("the member runs");
        text(&status, "version").expect("every member tells it").to_owned()
    }

    /// A certificate that a cluster with TLS accepts from a client.
    ///
    /// # Panics
    ///
    /// If it has no TLS.
    #[must_use]
    pub fn client_certificate(&self) -> ServerIdentity {
        let (authority, _) = self.tls.as_ref().expect("a cluster with TLS");
        authority.issue(&["client"], Validity::Now)
    }

    /// The file with the authority of a cluster with TLS.
    ///
    /// # Panics
    ///
    /// If it has none.
    #[must_use]
    pub fn authority(&self) -> &Path {
        self.tls.as_ref().expect("a cluster with TLS").0.file()
    }

    /// The number of members.
    #[must_use]
    pub fn len(&self) -> usize {
        self.members.len()
    }

    /// Whether the process of a member runs.
    #[must_use]
    pub fn is_running(&self, number: usize) -> bool {
        self.members[number].child.is_some()
    }

    /// Whether there are no members.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.members.is_empty()
    }

    /// Kills a member with SIGKILL. Its data stays.
    pub fn kill(&mut self, number: usize) {
        if let Some(mut child) = self.members[number].child.take() {
            child.kill().expect("a child process");
            child.wait().expect("a child process");
        }
    }

    /// Starts a member again. Waits until it serves clients.
    pub fn restart(&mut self, number: usize) {
        self.begin_restart(number);
        assert!(self.is_up(number), "etcd does not start again: {}", self.log(number));
    }

    /// Starts a single member again, as a new cluster without data.
    pub fn begin_anew(&mut self) {
        self.kill(0);
        fs::remove_dir_all(self.data(0)).expect("the directory of the member");
        self.members[0].is_new = true;
        // The number of the cluster is derived from it.
        self.options.more.push("--initial-cluster-token=anew".to_owned());
        self.restart(0);
    }

    /// Starts a member again. Alone, it may not be able to serve clients.
    pub fn begin_restart(&mut self, number: usize) {
        self.kill(number);
        self.spawn(number);
    }

    /// Suspends a member with SIGSTOP. It keeps its connections and does not answer.
    pub fn freeze(&self, number: usize) {
        suspend(self.members[number].child.as_ref().expect("the member runs"));
    }

    /// Resumes a member with SIGCONT.
    pub fn thaw(&self, number: usize) {
        resume(self.members[number].child.as_ref().expect("the member runs"));
    }

    /// Cuts a member off from the others. Clients still reach it.
    ///
    /// # Panics
    ///
    /// If the cluster was started without this option.
    pub fn cut_off(&mut self, number: usize) {
        let network = self.network.as_ref().expect("a cluster with members that can be cut off");
        self.members[number].is_cut_off = true;
        network.cut_off(self.members[number].port.bus());
    }

    /// Lets all members reach each other again. Waits until they have a leader.
    pub fn heal(&mut self) {
        if let Some(network) = &self.network {
            network.heal();
        }
        self.members.iter_mut().for_each(|member| member.is_cut_off = false);
        let end = Instant::now() + PATIENCE;
        while !self.follows_one_leader() {
            assert!(Instant::now() < end, "the members have no leader");
            sleep(Duration::from_millis(20));
        }
    }

    /// Whether all running members know the same leader.
    fn follows_one_leader(&self) -> bool {
        let running = (0..self.members.len()).filter(|number| self.members[*number].takes_part());
        let mut leaders = running.map(|number| {
            let status = self.status(number).unwrap_or_default();
            text(&status, "leader").filter(|leader| *leader != "0").map(str::to_owned)
        });
        let first = leaders.next().flatten();
        first.is_some() && leaders.all(|leader| leader == first)
    }

    /// Adds a member to the cluster. Returns its number.
    pub fn add(&mut self) -> usize {
        let number = self.members.len();
        self.members.push(EtcdMember::new(self.network.as_ref(), false));
        let (name, peer) = (name_of(number), self.peer_url(number));
        self.control(&["member", "add", &name, &format!("--peer-urls={peer}")]);
        self.spawn(number);
        assert!(self.is_up(number), "etcd does not join: {}", self.log(number));
        number
    }

    /// Removes a member from the cluster, and ends it.
    pub fn remove(&mut self, number: usize) {
        let id = self.id_of(number);
        self.members[number].is_listed = false;
        let others: Vec<_> = (0..self.members.len())
            .filter(|other| *other != number && self.members[*other].takes_part())
            .map(|other| self.address(other))
            .collect();
        self.control_at(&others.join(","), &["member", "remove", &id]);
        self.kill(number);
    }

    /// The number of a member in etcd.
    fn id_of(&self, number: usize) -> String {
        let status = self.status(number).expect("the member runs");
        let id: u64 = text(&status, "member_id").and_then(|id| id.parse().ok()).expect("a number");
        format!("{id:x}")
    }

    /// The member that leads, as soon as the running members agree.
    #[must_use]
    pub fn leader(&self) -> usize {
        let end = Instant::now() + PATIENCE;
        loop {
            if let Some(leader) = self.leader_now() {
                return leader;
            }
            assert!(Instant::now() < end, "no leader");
            sleep(Duration::from_millis(20));
        }
    }

    /// The member that says that it leads, if there is just one.
    fn leader_now(&self) -> Option<usize> {
        let running = (0..self.members.len()).filter(|number| self.members[*number].takes_part());
        let mut leaders = running.filter(|number| {
            let status = self.status(*number).unwrap_or_default();
            let (own, leader) = (text(&status, "member_id"), text(&status, "leader"));
            own.is_some() && own == leader
        });
        let leader = leaders.next();
        leader.filter(|_| leaders.next().is_none())
    }

    /// A member that does not lead.
    #[must_use]
    pub fn follower(&self) -> usize {
        let leader = self.leader();
        let takes_part = |number: &usize| self.members[*number].is_listed && *number != leader;
        (0..self.members.len()).find(takes_part).expect("several members")
    }

    /// Makes another member the leader.
    pub fn move_leader(&self) {
        let (from, to) = (self.leader(), self.follower());
        self.control_at(&self.address(from), &["move-leader", &self.id_of(to)]);
    }

    /// Runs `etcdctl` with these arguments. Returns what it has printed.
    pub fn control(&self, arguments: &[&str]) -> String {
        let running = (0..self.members.len()).filter(|number| self.members[*number].takes_part());
        let running: Vec<_> = running.map(|number| self.address(number)).collect();
        self.control_at(&running.join(","), arguments)
    }

    fn control_at(&self, endpoints: &str, arguments: &[&str]) -> String {
        let output = self.try_control(endpoints, arguments);
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "etcdctl {arguments:?}: {said}");
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// Whether `etcdctl` succeeds with these arguments.
    #[must_use]
    pub fn tries(&self, arguments: &[&str]) -> bool {
        self.try_control(&self.address(0), arguments).status.success()
    }

    fn try_control(&self, endpoints: &str, arguments: &[&str]) -> Output {
        let mut command = program("etcdctl");
        command.env("ETCDCTL_API", "3").arg(format!("--endpoints={endpoints}"));
        if let Some((authority, identity)) = &self.tls {
            command.arg("--cacert").arg(authority.file());
            command.arg("--cert").arg(identity.certificate()).arg("--key").arg(identity.key());
        }
        command.args(arguments).stdin(Stdio::null());
        command.output().unwrap_or_else(|error| missing("etcdctl", &error))
    }

    /// The keys that begin with this text, such as those of locks, without the presences of clients.
    #[must_use]
    pub fn keys(&self, prefix: &str) -> Vec<String> {
        self.all_keys(prefix).into_iter().filter(|key| !is_presence(key)).collect()
    }

    /// The presences of clients: keys that tell who they are.
    #[must_use]
    pub fn presences(&self) -> Vec<String> {
        self.all_keys("").into_iter().filter(|key| is_presence(key)).collect()
    }

    fn all_keys(&self, prefix: &str) -> Vec<String> {
        let printed = self.control(&["get", "--prefix", "--keys-only", prefix]);
        printed.lines().filter(|line| !line.is_empty()).map(str::to_owned).collect()
    }

    /// The value of a key.
    #[must_use]
    pub fn value(&self, key: &str) -> Option<String> {
        let printed = self.control(&["get", "--print-value-only", key]);
        printed.lines().next().map(str::to_owned)
    }

    /// The leases, as `etcdctl` shows them.
    #[must_use]
    pub fn leases(&self) -> Vec<String> {
        let printed = self.control(&["lease", "list"]);
        printed.lines().skip(1).map(|line| line.trim().to_owned()).collect()
    }

    fn spawn(&mut self, number: usize) {
        let data = self.data(number);
        let output = || {
            let log = self.log_file(number);
            std::fs::File::options().create(true).append(true).open(log).expect("a temporary file")
        };
        let scheme = if self.tls.is_some() { "https" } else { "http" };
        let client = format!("{scheme}://{}", self.address(number));
        let listen = format!("{scheme}://127.0.0.1:{}", self.port(number));
        let member = &self.members[number];
        let numbers = (0..self.members.len()).filter(|other| self.members[*other].is_listed);
        let all: Vec<_> =
            numbers.map(|other| format!("{}={}", name_of(other), self.peer_url(other))).collect();
        let scheme_of_peers = if self.network.is_some() { "https" } else { "http" };
        let listen_to_peers = format!("{scheme_of_peers}://127.0.0.1:{}", member.port.bus());
        let (heartbeat, election) =
            if self.options.default_times { ("100", "1000") } else { ("50", "500") };
        let state = if member.is_new { "new" } else { "existing" };
        let mut command = program("etcd");
        command
            .args(["--name", &name_of(number), "--data-dir"])
            .arg(&data)
            .args(["--listen-client-urls", &listen, "--advertise-client-urls", &client])
            .args(["--listen-peer-urls", &listen_to_peers])
            .args(["--initial-advertise-peer-urls", &self.peer_url(number)])
            .args(["--initial-cluster", &all.join(","), "--initial-cluster-state", state])
            .args(["--heartbeat-interval", heartbeat, "--election-timeout", election])
            .args(["--logger", "zap"])
            .args(&self.options.more)
            .stdin(Stdio::null())
            .stdout(output())
            .stderr(output());
        if let Some((authority, identity)) = &self.tls {
            command.arg("--cert-file").arg(identity.certificate());
            command.arg("--key-file").arg(identity.key());
            if self.options.client_certificates {
                command.arg("--client-cert-auth").arg("--trusted-ca-file").arg(authority.file());
            }
        }
        if let Some(proxy) = member.proxy {
            command.arg("--peer-auto-tls").env("HTTPS_PROXY", format!("http://127.0.0.1:{proxy}"));
            command.env_remove("NO_PROXY").env_remove("no_proxy");
        }
        let child = command.spawn().unwrap_or_else(|error| missing("etcd", &error));
        let member = &mut self.members[number];
        (member.child, member.is_new) = (Some(child), false);
    }

    /// Waits until a member serves clients. Returns `false` if it has ended.
    fn is_up(&mut self, number: usize) -> bool {
        let end = Instant::now() + PATIENCE;
        loop {
            if self.serves(number) {
                return true;
            }
            let child = self.members[number].child.as_mut().expect("it was started");
            if child.try_wait().expect("a child process").is_some() {
                return false;
            }
            assert!(Instant::now() < end, "etcd does not serve clients: {}", self.log(number));
            sleep(Duration::from_millis(20));
        }
    }

    fn serves(&self, number: usize) -> bool {
        if self.tls.is_some() {
            let health = self.try_control(&self.address(number), &["endpoint", "health"]);
            return health.status.success();
        }
        self.ask(number, "GET /health", "").is_some_and(|answer| answer.contains("\"true\""))
    }

    /// Where the other members reach a member.
    fn peer_url(&self, number: usize) -> String {
        let port = self.members[number].port.bus();
        match &self.network {
            Some(_) => format!("https://{NOWHERE}:{port}"),
            None => format!("http://127.0.0.1:{port}"),
        }
    }

    fn status(&self, number: usize) -> Option<String> {
        self.post(number, "/v3/maintenance/status", "{}")
    }

    /// The answer of a method of the JSON API.
    fn post(&self, number: usize, path: &str, body: &str) -> Option<String> {
        self.ask(number, &format!("POST {path}"), body)
    }

    fn ask(&self, number: usize, what: &str, body: &str) -> Option<String> {
        let mut socket = TcpStream::connect(("127.0.0.1", self.port(number))).ok()?;
        socket.set_read_timeout(Some(ANSWER)).ok()?;
        let length = body.len();
        let request = format!(
            "{what} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n{body}"
        );
        socket.write_all(request.as_bytes()).ok()?;
        let mut answer = String::new();
        socket.read_to_string(&mut answer).ok()?;
        Some(answer)
    }

    fn data(&self, number: usize) -> PathBuf {
        self.directory.path().join(format!("member{number}"))
    }

    fn log_file(&self, number: usize) -> PathBuf {
        self.directory.path().join(format!("log{number}"))
    }

    /// What a member has logged.
    #[must_use]
    pub fn log(&self, number: usize) -> String {
        std::fs::read_to_string(self.log_file(number)).unwrap_or_default()
    }
}

impl Drop for EtcdCluster {
    fn drop(&mut self) {
        for number in 0..self.members.len() {
            // SIGKILL also ends a suspended process.
            self.kill(number);
        }
    }
}

/// A directory in memory, if there is one: etcd waits for the disk at each write.
fn directory_in_memory() -> TempDir {
    let memory = tempfile::Builder::new().prefix("lock-etcd").tempdir_in("/dev/shm");
    memory.or_else(|_| tempfile::tempdir()).expect("a temporary directory")
}

fn name_of(number: usize) -> String {
    format!("member{number}")
}

/// A program without the settings of the environment.
fn program(name: &str) -> Command {
    let mut command = Command::new(name);
    let is_setting = |name: &OsStr| name.to_str().is_some_and(|name| name.starts_with("ETCD"));
    for (name, _) in std::env::vars_os().filter(|(name, _)| is_setting(name)) {
        command.env_remove(name);
    }
    command
}

fn missing(program: &str, error: &std::io::Error) -> ! {
    let is_missing = error.kind() == ErrorKind::NotFound;
    assert!(!is_missing, "these tests need {program}, and it is not installed: {INSTALL}");
    panic!("cannot start {program}: {error}");
}

/// A text in an answer.
fn text<'a>(answer: &'a str, name: &str) -> Option<&'a str> {
    let (_, rest) = answer.split_once(&format!("\"{name}\":\""))?;
    rest.split('"').next()
}

/// Whether a key is that of a presence. The byte before its name is in no text.
fn is_presence(key: &str) -> bool {
    key.contains("\u{fffd}/client/")
}

//! Database servers for tests: PostgreSQL and MariaDB.

use std::fs::File;
use std::os::unix::fs::chown;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::thread::sleep;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, getuid, kill_process};
use tempfile::TempDir;

use crate::ports::ReservedPort;

/// How long a server may take to start, or to end. It writes to a disk that other tests use as well.
const PATIENCE: Duration = Duration::from_secs(120);

/// The user and the group that have no rights, in which servers run that refuse to run as root.
const NOBODY: u32 = 65_534;

/// A server of one kind that all tests of a process share as long as one of them uses it.
type SharedServer = Mutex<Weak<DatabaseServer>>;

static POSTGRES: SharedServer = Mutex::new(Weak::new());
static MARIADB: SharedServer = Mutex::new(Weak::new());

/// A database server on a free port of the loopback interface, with a directory of its own. It ends when its last user
/// drops it, also if a test panics.
#[derive(Debug)]
pub struct DatabaseServer {
    kind: &'static DatabaseKind,
    child: Child,
    port: ReservedPort,
    directory: TempDir,
}

/// What is different between the servers.
#[derive(Debug)]
struct DatabaseKind {
    /// The program of the server, and its arguments for a directory and a port.
    program: &'static str,
    arguments: fn(&str, u16) -> Vec<String>,
    /// The program that fills the directory, and its arguments.
    installer: &'static str,
    installer_arguments: fn(&str) -> Vec<String>,
    /// A part of the log that follows a start.
    ready: &'static str,
    /// The signal that ends the server within moments, and lets it remove what its processes share.
    end: Signal,
    /// The beginning of a URL.
    login: &'static str,
    /// How to install it.
    install: &'static str,
}

static POSTGRES_KIND: DatabaseKind = DatabaseKind {
    program: "postgres",
    arguments: |data, port| {
        let options = ["listen_addresses=127.0.0.1", "unix_socket_directories=", "fsync=off"];
        let options = options.map(|option| format!("-c{option}"));
        [vec![format!("-D{data}"), format!("-p{port}")], options.into()].concat()
    },
    installer: "initdb",
    installer_arguments: |data| {
        let options = ["--username=test", "--auth=trust", "--encoding=UTF8", "--no-sync"];
        [vec![format!("-D{data}")], options.map(str::to_owned).into()].concat()
    },
    ready: "database system is ready to accept connections",
    end: Signal::QUIT,
    login: "postgres://test@",
    install: "`apt-get install postgresql` (Debian, Ubuntu), `dnf install postgresql-server` \
              (Fedora), `brew install postgresql` (macOS)",
};

static MARIADB_KIND: DatabaseKind = DatabaseKind {
    program: "mariadbd",
    arguments: |data, port| {
        let options = ["--bind-address=127.0.0.1", "--socket=socket", "--pid-file=pid"];
        let own =
            ["--no-defaults".to_owned(), format!("--datadir={data}"), format!("--port={port}")];
        [own.as_slice(), &options.map(str::to_owned)].concat()
    },
    installer: "mariadb-install-db",
    installer_arguments: |data| {
        let options = ["--auth-root-authentication-method=normal", "--skip-test-db"];
        let own = ["--no-defaults".to_owned(), format!("--datadir={data}")];
        [own.as_slice(), &options.map(str::to_owned)].concat()
    },
    ready: "ready for connections",
    end: Signal::TERM,
    login: "mysql://root@",
    install: "`apt-get install mariadb-server` (Debian, Ubuntu), `dnf install mariadb-server` \
              (Fedora), `brew install mariadb` (macOS)",
};

impl DatabaseServer {
    /// A PostgreSQL server, which all tests of the process share. It starts if no other test uses it.
    ///
    /// # Panics
    ///
    /// If PostgreSQL is not installed. The message says how to install it.
    #[must_use]
    pub fn postgres() -> Arc<Self> {
        Self::shared(&POSTGRES, &POSTGRES_KIND)
    }

    /// A MariaDB server, which all tests of the process share. It starts if no other test uses it.
    ///
    /// # Panics
    ///
    /// If MariaDB is not installed. The message says how to install it.
    #[must_use]
    pub fn mariadb() -> Arc<Self> {
        Self::shared(&MARIADB, &MARIADB_KIND)
    }

    fn shared(of: &SharedServer, kind: &'static DatabaseKind) -> Arc<Self> {
        // A start that has failed leaves no server behind.
        let mut shared = of.lock().unwrap_or_else(PoisonError::into_inner);
        shared.upgrade().unwrap_or_else(|| {
            let server = Arc::new(Self::start(kind));
            *shared = Arc::downgrade(&server);
            server
        })
    }

    fn start(kind: &'static DatabaseKind) -> Self {
        // Another process may take the port before the server binds it.
        for _ in 0..10 {
            let directory = tempfile::tempdir().expect("a temporary directory");
            if getuid().is_root() {
                chown(directory.path(), Some(NOBODY), Some(NOBODY)).expect("root may do that");
            }
            let data = directory.path().join("data");
            let data = data.to_str().expect("a path in UTF-8");
            let arguments = (kind.installer_arguments)(data);
            let installed = kind.spawn(kind.installer, &arguments, directory.path()).wait();
            let is_installed = installed.expect("a child process").success();
            assert!(is_installed, "{} fails: {}", kind.installer, log(directory.path()));
            let port = ReservedPort::new();
            let arguments = (kind.arguments)(data, port.number());
            let child = kind.spawn(kind.program, &arguments, directory.path());
            // From here on, the process ends if this function panics.
            let mut server = Self { kind, child, port, directory };
            if server.starts() {
                return server;
            }
        }
        panic!("{} does not start", kind.program);
    }

    /// Waits until the server answers. Returns `false` if it has ended.
    fn starts(&mut self) -> bool {
        let end = Instant::now() + PATIENCE;
        while self.child.try_wait().expect("a child process").is_none() {
            if log(self.directory.path()).contains(self.kind.ready) {
                return true;
            }
            assert!(Instant::now() < end, "no answer: {}", log(self.directory.path()));
            sleep(Duration::from_millis(20));
        }
        false
    }

    /// The URL of a database of this name.
    #[must_use]
    pub fn url(&self, database: &str) -> String {
        format!("{}127.0.0.1:{}/{database}", self.kind.login, self.port.number())
    }
}

impl Drop for DatabaseServer {
    fn drop(&mut self) {
        if matches!(self.child.try_wait(), Ok(None)) {
            // The process has not been waited for, so its id still belongs to it. It may have ended.
            let _ = kill_process(Pid::from_child(&self.child), self.kind.end);
        }
        let end = Instant::now() + PATIENCE;
        while matches!(self.child.try_wait(), Ok(None)) && Instant::now() < end {
            sleep(Duration::from_millis(5));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl DatabaseKind {
    /// Starts a program, whose output goes to the log of the directory.
    fn spawn(&self, program: &str, arguments: &[String], directory: &Path) -> Child {
        let output = || {
            let log = directory.join("log");
            File::options().create(true).append(true).open(log).expect("a temporary file")
        };
        let mut command = Command::new(self.path_of(program));
        command.args(arguments).current_dir(directory).env("LC_ALL", "C");
        command.stdin(Stdio::null()).stdout(output()).stderr(output());
        if getuid().is_root() {
            command.uid(NOBODY).gid(NOBODY);
        }
        command.spawn().unwrap_or_else(|error| panic!("cannot start {program}: {error}"))
    }

    /// Debian and others keep the programs of PostgreSQL in a directory for each version, and those of servers where
    /// only root looks for them.
    fn path_of(&self, program: &str) -> PathBuf {
        let path = std::env::var_os("PATH").unwrap_or_default();
        let mut versions: Vec<PathBuf> = std::fs::read_dir("/usr/lib/postgresql")
            .into_iter()
            .flatten()
            .filter_map(|entry| Some(entry.ok()?.path().join("bin")))
            .collect();
        versions.sort();
        let newest_first = versions.into_iter().rev();
        let others = ["/usr/sbin".into(), "/usr/libexec".into()];
        let all = std::env::split_paths(&path).chain(newest_first).chain(others);
        let mut found = all.map(|folder| folder.join(program)).filter(|file| file.is_file());
        found.next().unwrap_or_else(|| {
            panic!(
                "these tests need {program}, and it is not installed: run `scripts/databases`, or {}",
                self.install
            )
        })
    }
}

/// What the programs of a directory have printed.
fn log(directory: &Path) -> String {
    std::fs::read_to_string(directory.join("log")).unwrap_or_default()
}

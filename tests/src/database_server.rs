//! Database servers for tests: PostgreSQL and MariaDB.

use std::fs::{File, Permissions};
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::thread::sleep;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, getuid, kill_process};
use tempfile::TempDir;

use crate::clock_shim::ClockShim;
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
    /// Settings beside those of all servers of this kind.
    settings: Vec<String>,
    /// Its wall clock, unless it has that of the machine.
    clock: Option<ClockShim>,
    is_frozen: bool,
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
        let options = [
            "listen_addresses=127.0.0.1",
            "unix_socket_directories=",
            "fsync=off",
            // Many tests share a server, with six connections for each client.
            "max_connections=500",
        ];
        let options = options.map(|option| format!("-c{option}"));
        [vec![format!("-D{data}"), format!("-p{port}")], options.into()].concat()
    },
    installer: "initdb",
    installer_arguments: |data| {
        let options = ["--username=test", "--auth=trust", "--encoding=UTF8", "--no-sync"];
        [vec![format!("-D{data}")], options.map(str::to_owned).into()].concat()
    },
    // That of a standby goes on with "read-only connections".
    ready: "database system is ready to accept ",
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

    /// A PostgreSQL server for one test, with these settings and files in its data directory.
    ///
    /// # Panics
    ///
    /// If PostgreSQL is not installed, or does not start.
    #[must_use]
    pub fn postgres_alone(settings: &[&str], files: &[(&str, &Path)]) -> Self {
        let settings: Vec<String> = settings.iter().map(|setting| format!("-c{setting}")).collect();
        Self::start_with(&POSTGRES_KIND, &settings, false, |data, directory| {
            POSTGRES_KIND.install_in(data, directory);
            for (name, source) in files {
                let file = Path::new(data).join(name);
                std::fs::copy(source, &file).expect("a file");
                own(&file);
                let private = Permissions::from_mode(0o600);
                std::fs::set_permissions(&file, private).expect("an own file");
            }
        })
    }

    /// A PostgreSQL server for one test, whose wall clock can be [set](Self::set_clock). Linux only.
    ///
    /// # Panics
    ///
    /// If PostgreSQL is not installed, or does not start.
    #[must_use]
    pub fn postgres_with_own_clock() -> Self {
        Self::start_with(&POSTGRES_KIND, &[], true, |data, directory| {
            POSTGRES_KIND.install_in(data, directory);
        })
    }

    /// A hot standby of this PostgreSQL server, which streams from it under this name.
    ///
    /// # Panics
    ///
    /// If this server does not answer.
    #[must_use]
    pub fn standby(&self, name: &str) -> Self {
        self.standby_with(name, false)
    }

    /// The same with a wall clock that can be [set](Self::set_clock). Linux only.
    ///
    /// # Panics
    ///
    /// If this server does not answer.
    #[must_use]
    pub fn standby_with_own_clock(&self, name: &str) -> Self {
        self.standby_with(name, true)
    }

    fn standby_with(&self, name: &str, own_clock: bool) -> Self {
        let source =
            format!("host=127.0.0.1 port={} user=test application_name={name}", self.port.number());
        let settings = [format!("-cprimary_conninfo={source}")];
        Self::start_with(&POSTGRES_KIND, &settings, own_clock, |data, directory| {
            let arguments = [
                format!("--pgdata={data}"),
                format!("--dbname={source}"),
                "--checkpoint=fast".to_owned(),
                "--no-sync".to_owned(),
            ];
            POSTGRES_KIND.install("pg_basebackup", &arguments, directory);
            // The program would write what only servers of its own version know.
            let signal = Path::new(data).join("standby.signal");
            File::create(&signal).expect("a data directory");
            own(&signal);
        })
    }

    fn start(kind: &'static DatabaseKind) -> Self {
        Self::start_with(kind, &[], false, |data, directory| kind.install_in(data, directory))
    }

    /// Starts a server whose data directory `install` fills.
    fn start_with(
        kind: &'static DatabaseKind,
        settings: &[String],
        own_clock: bool,
        install: impl Fn(&str, &Path),
    ) -> Self {
        // Another process may take the port before the server binds it.
        for _ in 0..10 {
            let directory = tempfile::tempdir().expect("a temporary directory");
            own(directory.path());
            install(&data_of(&directory), directory.path());
            let clock = own_clock.then(|| ClockShim::in_directory(directory.path()));
            if let Some(clock) = &clock {
                clock.build();
            }
            let (port, settings) = (ReservedPort::new(), settings.to_vec());
            let arguments = arguments_of(kind, &directory, port.number(), &settings);
            let child = kind.spawn(&arguments, &directory, clock.as_ref());
            // From here on, the process ends if this function panics.
            let mut server =
                Self { kind, child, port, directory, settings, clock, is_frozen: false };
            if server.starts(0) {
                return server;
            }
        }
        panic!("{} does not start", kind.program);
    }

    /// Waits until the server answers, which its log says after this number of bytes. Returns `false` if it has ended.
    fn starts(&mut self, log_start: usize) -> bool {
        let end = Instant::now() + PATIENCE;
        while self.child.try_wait().expect("a child process").is_none() {
            if log(self.directory.path())[log_start..].contains(self.kind.ready) {
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
        format!("{}{}/{database}", self.kind.login, self.address())
    }

    /// The host and the port.
    #[must_use]
    pub fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port.number())
    }

    /// The port.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port.number()
    }

    /// Stops all processes of the server, so that it keeps its connections and answers nothing.
    ///
    /// # Panics
    ///
    /// If `ps` is missing.
    pub fn freeze(&mut self) {
        // First the process that starts the others.
        self.signal(Signal::STOP);
        for pid in self.descendants() {
            let _ = kill_process(pid, Signal::STOP);
        }
        self.is_frozen = true;
    }

    /// Lets a frozen server go on.
    pub fn thaw(&mut self) {
        self.is_frozen = false;
        for pid in self.descendants() {
            let _ = kill_process(pid, Signal::CONT);
        }
        self.signal(Signal::CONT);
    }

    /// Kills all processes of the server.
    ///
    /// # Panics
    ///
    /// If they do not end.
    pub fn kill(&mut self) {
        let mut others = self.descendants();
        self.signal(Signal::KILL);
        for pid in &others {
            let _ = kill_process(*pid, Signal::KILL);
        }
        let _ = self.child.wait();
        let end = Instant::now() + PATIENCE;
        // They are the children of another process now.
        while others.iter().any(|pid| is_there(*pid)) {
            others.retain(|pid| is_there(*pid));
            assert!(Instant::now() < end, "processes of the server do not end");
            sleep(Duration::from_millis(5));
        }
        self.is_frozen = false;
    }

    /// Starts a server again that was killed, with its data and on its port.
    ///
    /// # Panics
    ///
    /// If it does not start.
    pub fn restart(&mut self) {
        for _ in 0..10 {
            let log_start = log(self.directory.path()).len();
            let arguments =
                arguments_of(self.kind, &self.directory, self.port.number(), &self.settings);
            self.child = self.kind.spawn(&arguments, &self.directory, self.clock.as_ref());
            if self.starts(log_start) {
                return;
            }
        }
        panic!("{} does not start again: {}", self.kind.program, log(self.directory.path()));
    }

    /// Sets the wall clock of the server this many seconds ahead of the machine's.
    ///
    /// # Panics
    ///
    /// If the server was not started with a clock of its own.
    pub fn set_clock(&self, seconds: i64) {
        self.clock.as_ref().expect("a server with its own clock").set(seconds);
    }

    /// What the server has logged.
    #[must_use]
    pub fn log(&self) -> String {
        log(self.directory.path())
    }

    fn signal(&mut self, signal: Signal) {
        if matches!(self.child.try_wait(), Ok(None)) {
            // The process has not been waited for, so its id still belongs to it. It may have ended.
            let _ = kill_process(Pid::from_child(&self.child), signal);
        }
    }

    /// The processes that the server has started.
    fn descendants(&self) -> Vec<Pid> {
        let mut ps = Command::new("ps");
        let output = ps.args(["-A", "-o", "pid=", "-o", "ppid="]).output();
        let output = output.expect("`ps` is installed (package `procps`)").stdout;
        let output = String::from_utf8_lossy(&output).into_owned();
        let own = Pid::from_child(&self.child).as_raw_nonzero().get();
        let pairs = output.lines().filter_map(|line| {
            let (pid, parent) = line.trim().split_once(char::is_whitespace)?;
            Some((pid.parse::<i32>().ok()?, parent.trim().parse::<i32>().ok()?))
        });
        pairs
            .filter(|(_, parent)| *parent == own)
            .filter_map(|(pid, _)| Pid::from_raw(pid))
            .collect()
    }
}

/// Whether there is a process with this id that has not ended.
fn is_there(pid: Pid) -> bool {
    let id = pid.as_raw_nonzero().get().to_string();
    let output = Command::new("ps").args(["-o", "stat=", "-p", &id]).output().expect("`ps`").stdout;
    let state = String::from_utf8_lossy(&output).trim().to_owned();
    !state.is_empty() && !state.starts_with('Z')
}

/// Lets the user of the server have a file, if the tests run as root.
pub(crate) fn own(path: &Path) {
    if getuid().is_root() {
        chown(path, Some(NOBODY), Some(NOBODY)).expect("root may do that");
    }
}

fn data_of(directory: &TempDir) -> String {
    directory.path().join("data").to_str().expect("a path in UTF-8").to_owned()
}

fn arguments_of(
    kind: &DatabaseKind,
    directory: &TempDir,
    port: u16,
    settings: &[String],
) -> Vec<String> {
    let mut arguments = (kind.arguments)(&data_of(directory), port);
    arguments.extend_from_slice(settings);
    arguments
}

/// Settings of a session that change what statements return, or when they fail.
const UNUSUAL: &[(&str, &str)] = &[
    ("quote_all_identifiers", "on"),
    ("default_transaction_isolation", "serializable"),
    ("default_transaction_deferrable", "on"),
    ("standard_conforming_strings", "off"),
    ("transform_null_equals", "on"),
    ("array_nulls", "off"),
    ("bytea_output", "escape"),
    ("datestyle", "'SQL, DMY'"),
    ("intervalstyle", "sql_standard"),
    ("timezone", "'Pacific/Chatham'"),
    ("extra_float_digits", "-15"),
    ("plan_cache_mode", "force_generic_plan"),
    ("lc_messages", "'C'"),
];

/// The SQL that gives a database settings that programs seldom expect.
#[must_use]
pub fn with_unusual_settings(database: &str) -> String {
    let settings = UNUSUAL.iter();
    let sql =
        settings.map(|(name, value)| format!("ALTER DATABASE {database} SET {name} = {value};"));
    sql.collect()
}

impl Drop for DatabaseServer {
    fn drop(&mut self) {
        if self.is_frozen {
            self.thaw();
        }
        self.signal(self.kind.end);
        let end = Instant::now() + PATIENCE;
        while matches!(self.child.try_wait(), Ok(None)) && Instant::now() < end {
            sleep(Duration::from_millis(5));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl DatabaseKind {
    /// Fills a directory.
    fn install_in(&self, data: &str, directory: &Path) {
        self.install(self.installer, &(self.installer_arguments)(data), directory);
    }

    /// Runs a program that fills a directory.
    fn install(&self, program: &str, arguments: &[String], directory: &Path) {
        let program_path = path_of(program, self.install);
        let installed = spawn_program(&program_path, arguments, directory).wait();
        let is_installed = installed.expect("a child process").success();
        assert!(is_installed, "{program} fails: {}", log(directory));
    }

    /// Starts the server, whose output goes to the log of the directory.
    fn spawn(&self, arguments: &[String], directory: &TempDir, clock: Option<&ClockShim>) -> Child {
        let program = path_of(self.program, self.install);
        let mut command = command_of(&program, arguments, directory.path());
        if let Some(clock) = clock {
            clock.preload(&mut command);
        }
        start(command)
    }
}

/// Finds a program. Debian and others keep those of PostgreSQL in a directory for each version, and those of servers where
/// only root looks for them.
pub(crate) fn path_of(program: &str, install: &str) -> PathBuf {
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
            "these tests need {program}, and it is not installed: run `scripts/databases`, or {install}"
        )
    })
}

/// Starts a program, whose output goes to the log of the directory.
pub(crate) fn spawn_program(program: &Path, arguments: &[String], directory: &Path) -> Child {
    start(command_of(program, arguments, directory))
}

fn command_of(program: &Path, arguments: &[String], directory: &Path) -> Command {
    let output = || {
        let log = directory.join("log");
        File::options().create(true).append(true).open(log).expect("a temporary file")
    };
    let mut command = Command::new(program);
    command.args(arguments).current_dir(directory).env("LC_ALL", "C");
    command.stdin(Stdio::null()).stdout(output()).stderr(output());
    if getuid().is_root() {
        command.uid(NOBODY).gid(NOBODY);
    }
    command
}

fn start(mut command: Command) -> Child {
    command.spawn().unwrap_or_else(|error| {
        panic!("cannot start {}: {error}", command.get_program().to_string_lossy())
    })
}

/// What the programs of a directory have printed.
pub(crate) fn log(directory: &Path) -> String {
    std::fs::read_to_string(directory.join("log")).unwrap_or_default()
}

//! The soak: processes work under locks for as long as told, while everything goes wrong in turn.
//!
//! ```text
//! lock-soak MINUTES [SEED]
//! ```
//!
//! It runs in rounds. Each has servers and worker processes of its own and a theme, which says what
//! may go wrong in it and so what is promised; within the theme, faults come at random, from the
//! seed. At its end everything is healed, the workers are sent home, and their diaries are held
//! against the promises. The first violation ends the soak with an error and keeps the diaries. At
//! the end it prints its figures as tables.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::Ordering;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use fastrand::Rng;
use lock_tests::support::milliseconds;
use lock_tests::worker::Outcomes;
use lock_tests::{
    Diary, Event, Expected, Helper, Proxy, RedisServer, Toward, Violation, What, boot_nanos,
};
use tempfile::TempDir;

const LEASE: Duration = Duration::from_secs(1);
/// How long faults come in a round.
const ROUND: Duration = Duration::from_secs(12);
const WORKERS: usize = 4;
const KEYS: u32 = 3;
const TASKS: u32 = 6;

/// What may go wrong in a round.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Theme {
    /// Connections break, answers are lost or late, scripts are forgotten.
    Network,
    /// The server or a process is out of reach, frozen or killed; the server refuses.
    Outage,
    /// The server is killed and comes back with its data.
    Restart,
    /// The server loses its data, or somebody deletes a lock.
    Wipe,
    /// The server's clock is set.
    Clock,
}

const THEMES: [Theme; 5] =
    [Theme::Network, Theme::Outage, Theme::Restart, Theme::Wipe, Theme::Clock];

impl Theme {
    fn expected(self) -> Expected {
        match self {
            Self::Network => Expected::EVERYTHING,
            // A write that was on its way when its lock was lost arrives after it.
            Self::Outage | Self::Restart => Expected { exclusion: true, no_stale_write: false },
            Self::Wipe | Self::Clock => Expected::THE_LEAST,
        }
    }

    fn faults(self) -> &'static [Fault] {
        match self {
            Self::Network => &[
                Fault::Reset,
                Fault::LoseReply,
                Fault::Cut,
                Fault::Slow,
                Fault::Refuse,
                Fault::KillClients,
                Fault::ForgetScripts,
            ],
            Self::Outage => &[
                Fault::Partition,
                Fault::DeafServer,
                Fault::DeafClients,
                Fault::Hold,
                Fault::FreezeServer,
                Fault::FreezeWorker,
                Fault::KillWorker,
                Fault::OutOfMemory,
                Fault::NoReplicas,
                Fault::KillClients,
            ],
            Self::Restart => &[Fault::RestartServer, Fault::KillWorker, Fault::Reset],
            Self::Wipe => &[Fault::RestartServer, Fault::Flush, Fault::Delete, Fault::KillWorker],
            Self::Clock => &[Fault::ClockAhead, Fault::ClockBack, Fault::FreezeWorker],
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Fault {
    Reset,
    LoseReply,
    Cut,
    Slow,
    Refuse,
    Hold,
    Partition,
    DeafServer,
    DeafClients,
    KillClients,
    ForgetScripts,
    FreezeServer,
    RestartServer,
    OutOfMemory,
    NoReplicas,
    Flush,
    Delete,
    ClockAhead,
    ClockBack,
    FreezeWorker,
    KillWorker,
}

/// One round's stage.
struct Stage {
    theme: Theme,
    server: RedisServer,
    guarded: RedisServer,
    proxies: [Proxy; 2],
    workers: Vec<Helper>,
    diary: Diary,
    diaries: Vec<PathBuf>,
    directory: TempDir,
}

/// What all rounds have added up to.
#[derive(Default)]
struct Figures {
    rounds: BTreeMap<Theme, u64>,
    faults: BTreeMap<Fault, u64>,
    outcomes: Outcomes,
    grants: usize,
    polls: usize,
    /// By theme: overlaps and stale writes where they are not excluded.
    overlaps: BTreeMap<Theme, u64>,
    stale: BTreeMap<Theme, u64>,
    hand_overs: BTreeMap<Theme, Vec<u64>>,
}

fn main() -> ExitCode {
    let mut args = std::env::args().skip(1);
    let minutes = args.next().and_then(|text| text.parse::<u64>().ok());
    let seed = args.next().map(|text| text.parse::<u64>());
    let (Some(minutes), Ok(seed)) = (minutes, seed.transpose()) else {
        eprintln!("usage: lock-soak MINUTES [SEED]");
        return ExitCode::FAILURE;
    };
    let seed = seed.unwrap_or_else(|| fastrand::u64(..));
    println!("{minutes} minutes, seed {seed}");
    let (mut rng, mut figures) = (Rng::with_seed(seed), Figures::default());
    let end = Instant::now() + Duration::from_secs(60 * minutes);
    while Instant::now() < end {
        let theme = THEMES[rng.usize(..THEMES.len())];
        let violations = round(theme, &mut rng, &mut figures);
        if !violations.is_empty() {
            for violation in violations.iter().take(20) {
                println!("VIOLATION: {violation}");
            }
            println!("{} violations, theme {theme:?}, seed {seed}", violations.len());
            return ExitCode::FAILURE;
        }
    }
    figures.print(seed);
    ExitCode::SUCCESS
}

/// Plays one round; returns what was not as promised.
fn round(theme: Theme, rng: &mut Rng, figures: &mut Figures) -> Vec<Violation> {
    let mut stage = Stage::set(theme);
    let end = Instant::now() + ROUND;
    while Instant::now() < end {
        std::thread::sleep(LEASE.mul_f64(rng.f64() / 2.0));
        let fault = theme.faults()[rng.usize(..theme.faults().len())];
        *figures.faults.entry(fault).or_default() += 1;
        stage.strike(fault, rng);
    }
    stage.end(figures)
}

impl Stage {
    fn set(theme: Theme) -> Self {
        let persistent = ["--appendonly", "yes", "--appendfsync", "always"];
        let server = match theme {
            Theme::Restart => RedisServer::with(&persistent),
            Theme::Clock => RedisServer::with_own_clock(&[]),
            Theme::Network | Theme::Outage | Theme::Wipe => RedisServer::start(),
        };
        let proxies = [Proxy::to(server.port()), Proxy::to(server.port())];
        let mut stage = Self {
            theme,
            server,
            guarded: RedisServer::start(),
            proxies,
            workers: Vec::new(),
            diary: Diary::default(),
            diaries: Vec::new(),
            directory: tempfile::tempdir().expect("a temporary directory"),
        };
        for place in 0..WORKERS {
            let worker = stage.worker(place);
            stage.workers.push(worker);
        }
        stage
    }

    /// Starts the worker of a place: two stand behind one proxy, one behind the other, one behind
    /// none.
    fn worker(&mut self, place: usize) -> Helper {
        let url = match place {
            0 | 1 => self.proxies[0].url(),
            2 => self.proxies[1].url(),
            _ => self.server.url(),
        };
        let diary = self.directory.path().join(self.diaries.len().to_string());
        self.diaries.push(diary.clone());
        let args = [
            "work",
            &url,
            &self.guarded.url(),
            &milliseconds(LEASE),
            &KEYS.to_string(),
            &TASKS.to_string(),
            &milliseconds(LEASE / 20),
            &milliseconds(LEASE * 3),
            diary.to_str().expect("a plain path"),
        ];
        Helper::start(&beside_us("lock-helper"), &args)
    }

    /// Lets something go wrong, for a while if it lasts.
    fn strike(&mut self, fault: Fault, rng: &mut Rng) {
        let short = LEASE.mul_f64(rng.f64() / 2.0);
        let long = LEASE.mul_f64(rng.f64() * 2.5);
        let proxy = rng.usize(..self.proxies.len());
        let place = rng.usize(..self.workers.len());
        let word = ["SET", "EVALSHA"][rng.usize(..2)];
        match fault {
            Fault::Reset => self.proxies[proxy].reset(),
            Fault::LoseReply => self.proxies[proxy].lose_reply_to(word),
            Fault::Cut => self.proxies[proxy].cut(word, rng.usize(..100)),
            Fault::Slow => {
                let toward = [Toward::Server, Toward::Client][rng.usize(..2)];
                self.proxies[proxy].delay(toward, LEASE.mul_f64(rng.f64() / 10.0));
                std::thread::sleep(short);
                self.proxies[proxy].delay(toward, Duration::ZERO);
            }
            Fault::Refuse => {
                self.proxies[proxy].refuse(true);
                self.proxies[proxy].reset();
                // Shorter than what a lease can do without.
                std::thread::sleep(short / 2);
                self.proxies[proxy].refuse(false);
            }
            Fault::Hold => {
                self.proxies[proxy].hold(word);
                std::thread::sleep(long);
                self.proxies[proxy].deliver();
            }
            Fault::Partition => self.for_a_while(proxy, long, Proxy::partition),
            Fault::DeafServer => {
                self.for_a_while(proxy, long, |proxy| proxy.blackhole(Toward::Server));
            }
            Fault::DeafClients => {
                self.for_a_while(proxy, long, |proxy| proxy.blackhole(Toward::Client));
            }
            Fault::KillClients => {
                for kind in ["normal", "pubsub"] {
                    self.server.tell(&["CLIENT", "KILL", "TYPE", kind, "SKIPME", "yes"]);
                }
            }
            Fault::ForgetScripts => self.server.tell(&["SCRIPT", "FLUSH"]),
            Fault::FreezeServer => {
                self.server.freeze();
                std::thread::sleep(long);
                self.server.thaw();
            }
            Fault::RestartServer => {
                self.server.kill();
                std::thread::sleep(short);
                self.server.restart();
            }
            Fault::OutOfMemory => self.set_for_a_while("maxmemory", "1", "0", long),
            Fault::NoReplicas => self.set_for_a_while("min-replicas-to-write", "1", "0", long),
            Fault::Flush => self.server.tell(&["FLUSHALL"]),
            Fault::Delete => self.server.tell(&["DEL", "work:0"]),
            Fault::ClockAhead => self.server.set_clock(rng.i64(1..6)),
            Fault::ClockBack => self.server.set_clock(rng.i64(-5..1)),
            Fault::FreezeWorker => {
                self.workers[place].freeze();
                std::thread::sleep(long);
                self.workers[place].thaw();
            }
            Fault::KillWorker => {
                let id = self.workers[place].id();
                self.workers[place].kill();
                let (at, key) = (boot_nanos(), String::from("-"));
                self.diary.add(Event { at, process: id, key, hold: 0, what: What::Killed });
                self.workers[place] = self.worker(place);
            }
        }
    }

    fn for_a_while(&self, proxy: usize, how_long: Duration, spoil: impl Fn(&Proxy)) {
        spoil(&self.proxies[proxy]);
        std::thread::sleep(how_long);
        self.proxies[proxy].heal();
    }

    fn set_for_a_while(&self, name: &str, bad: &str, good: &str, how_long: Duration) {
        self.server.tell(&["CONFIG", "SET", name, bad]);
        std::thread::sleep(how_long);
        self.server.tell(&["CONFIG", "SET", name, good]);
    }

    /// Heals everything, sends the workers home, and looks at what they have done.
    fn end(mut self, figures: &mut Figures) -> Vec<Violation> {
        self.proxies.iter().for_each(Proxy::heal);
        let round = Outcomes::default();
        for worker in &mut self.workers {
            worker.tell("stop");
        }
        let (done, all_done) = mpsc::channel::<()>();
        std::thread::spawn(move || {
            if all_done.recv_timeout(LEASE * 60) == Err(mpsc::RecvTimeoutError::Timeout) {
                println!("VIOLATION: a worker does not come to its end");
                std::process::exit(1);
            }
        });
        for worker in &mut self.workers {
            assert_eq!(worker.line(), "working");
            let line = worker.line();
            assert!(round.add(&line).is_some(), "a worker ended early, and said: {line:?}");
            figures.outcomes.add(&line);
        }
        // A worker may have been killed before it wrote anything.
        let diaries = self.diaries.iter().filter(|diary| diary.exists());
        drop(done);
        let history = self.diary.history_with(diaries).expect("our own files");
        let expected = self.theme.expected();
        let mut violations = history.violations(expected);
        let everything = history.violations(Expected::EVERYTHING);
        let count = |what: fn(&Violation) -> bool| {
            u64::try_from(everything.iter().filter(|violation| what(violation)).count())
                .expect("few")
        };
        let overlaps = count(|violation| matches!(violation, Violation::Overlap { .. }));
        let stale = count(|violation| matches!(violation, Violation::StaleWrite { .. }));
        violations.extend(self.left_behind());
        assert_eq!(round.strange.load(Ordering::Relaxed), 0, "errors that nobody expected");

        let (theme, grants) = (self.theme, history.grants());
        println!("{theme:?}: {grants} grants, {round}, {overlaps} overlaps, {stale} stale writes");
        *figures.rounds.entry(theme).or_default() += 1;
        *figures.overlaps.entry(theme).or_default() += overlaps;
        *figures.stale.entry(theme).or_default() += stale;
        figures.grants += grants;
        figures.polls += history.polls();
        figures.hand_overs.entry(theme).or_default().extend(history.hand_overs());
        if !violations.is_empty() {
            // For whoever looks into it.
            println!("the diaries are in {}", self.directory.keep().display());
        }
        violations
    }

    /// The keys that are still there when every lease must be over.
    fn left_behind(&self) -> Vec<Violation> {
        // A clock that was ahead and is right again has stretched leases.
        let patience = if self.theme == Theme::Clock { LEASE * 8 } else { LEASE * 2 };
        let end = Instant::now() + patience;
        loop {
            let keys: Vec<String> = self.server.command(&["KEYS", "work:*"]);
            if keys.is_empty() || Instant::now() > end {
                return keys.into_iter().map(|key| Violation::Leaked { key }).collect();
            }
            std::thread::sleep(LEASE / 50);
        }
    }
}

/// A program of this package, which is built into the same folder.
fn beside_us(name: &str) -> String {
    let us = std::env::current_exe().expect("it runs");
    let program = us.parent().map(|folder: &Path| folder.join(name));
    let program = program.filter(|program| program.exists()).unwrap_or_else(|| {
        panic!("{name} is not built: use `scripts/soak`, which does that");
    });
    program.to_str().expect("a plain path").to_owned()
}

impl Figures {
    fn print(&mut self, seed: u64) {
        println!("\nSeed {seed}. {} grants, {} polls of bodies.", self.grants, self.polls);
        println!("Calls: {}.", self.outcomes);
        println!("\n| theme | rounds | overlaps | stale writes without a fence | p50 | p99 |");
        println!("|---|---|---|---|---|---|");
        for (theme, rounds) in &self.rounds {
            let hand_overs = self.hand_overs.entry(*theme).or_default();
            hand_overs.sort_unstable();
            let part = |percent: usize| {
                let nanos = hand_overs.get(hand_overs.len() * percent / 100).copied();
                Duration::from_micros(nanos.unwrap_or_default() / 1000)
            };
            let (overlaps, stale) = (self.overlaps[theme], self.stale[theme]);
            let (half, most) = (part(50), part(99));
            println!("| {theme:?} | {rounds} | {overlaps} | {stale} | {half:?} | {most:?} |");
        }
        println!("\n| fault | how often |\n|---|---|");
        for (fault, count) in &self.faults {
            println!("| {fault:?} | {count} |");
        }
    }
}

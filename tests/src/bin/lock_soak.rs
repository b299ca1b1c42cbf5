//! The soak test: processes work under locks for a given time, while faults are injected.
//!
//! ```text
//! lock-soak MINUTES [SEED]
//! ```
//!
//! The soak runs in rounds. Each round has its own servers and workload processes, and a theme. The
//! theme determines which faults are injected, and therefore which properties are checked. The
//! faults are chosen at random from the seed. At the end of a round all faults are ended, the
//! workloads are stopped, and their recordings are checked. The first violation ends the soak with
//! an error and keeps the recordings. A soak without a violation prints its figures as tables.

#![forbid(unsafe_code)]

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use fastrand::Rng;
use lock_tests::workload::Outcomes;
use lock_tests::{
    Expected, ProcessPlan, Proxy, RedisServer, SoakRun, Toward, Violation, WorkloadProcesses,
};

const LEASE: Duration = Duration::from_secs(1);
/// How long faults are injected in a round.
const ROUND: Duration = Duration::from_secs(12);
const WORKLOADS: usize = 4;
const KEYS: u32 = 3;
const TASKS: u32 = 6;

/// The kind of faults that are injected in a round.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Theme {
    /// Connections break, replies are lost or late, the server forgets its scripts.
    Network,
    /// The server or a process is unreachable, suspended or killed; the server refuses writes.
    Outage,
    /// The server is killed and restarts with its data.
    Restart,
    /// The server loses its data, or a lock is deleted.
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
            // A write that was in flight when its lock was lost arrives late.
            Self::Outage | Self::Restart => Expected { exclusion: true, no_stale_write: false },
            Self::Wipe | Self::Clock => Expected::THE_LEAST,
        }
    }

    fn faults(self) -> &'static [SoakFault] {
        match self {
            Self::Network => &[
                SoakFault::Reset,
                SoakFault::LoseReply,
                SoakFault::Cut,
                SoakFault::Slow,
                SoakFault::Refuse,
                SoakFault::KillClients,
                SoakFault::ForgetScripts,
            ],
            Self::Outage => &[
                SoakFault::Partition,
                SoakFault::BlockRequests,
                SoakFault::BlockReplies,
                SoakFault::Hold,
                SoakFault::FreezeServer,
                SoakFault::FreezeProcess,
                SoakFault::KillProcess,
                SoakFault::OutOfMemory,
                SoakFault::NoReplicas,
                SoakFault::KillClients,
            ],
            Self::Restart => &[SoakFault::RestartServer, SoakFault::KillProcess, SoakFault::Reset],
            Self::Wipe => &[
                SoakFault::RestartServer,
                SoakFault::Flush,
                SoakFault::Delete,
                SoakFault::KillProcess,
            ],
            Self::Clock => &[SoakFault::ClockAhead, SoakFault::ClockBack, SoakFault::FreezeProcess],
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum SoakFault {
    Reset,
    LoseReply,
    Cut,
    Slow,
    Refuse,
    Hold,
    Partition,
    BlockRequests,
    BlockReplies,
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
    FreezeProcess,
    KillProcess,
}

/// The processes and proxies of one round.
struct Round {
    theme: Theme,
    server: RedisServer,
    proxies: [Proxy; 2],
    workloads: WorkloadProcesses,
}

/// The totals of all rounds.
#[derive(Default)]
struct Figures {
    rounds: BTreeMap<Theme, u64>,
    faults: BTreeMap<SoakFault, u64>,
    outcomes: Outcomes,
    grants: usize,
    polls: usize,
    /// Overlaps and stale writes, including those that the theme allows.
    overlaps: BTreeMap<Theme, u64>,
    stale: BTreeMap<Theme, u64>,
    handoffs: BTreeMap<Theme, Vec<u64>>,
}

fn main() -> ExitCode {
    let args = std::env::args().skip(1);
    let Some(mut soak) = SoakRun::of_arguments(args, "lock-soak MINUTES [SEED]") else {
        return ExitCode::FAILURE;
    };
    let mut figures = Figures::default();
    while soak.goes_on() {
        let theme = THEMES[soak.rng.usize(..THEMES.len())];
        let violations = round(theme, &mut soak.rng, &mut figures);
        if !soak.accepts(&violations, &format!("theme {theme:?}")) {
            return ExitCode::FAILURE;
        }
    }
    figures.print(soak.seed);
    ExitCode::SUCCESS
}

/// Runs one round and returns the violations.
fn round(theme: Theme, rng: &mut Rng, figures: &mut Figures) -> Vec<Violation> {
    let mut round = Round::start(theme);
    let end = Instant::now() + ROUND;
    while Instant::now() < end {
        std::thread::sleep(LEASE.mul_f64(rng.f64() / 2.0));
        let fault = theme.faults()[rng.usize(..theme.faults().len())];
        *figures.faults.entry(fault).or_default() += 1;
        round.inject(fault, rng);
    }
    round.finish(figures)
}

impl Round {
    fn start(theme: Theme) -> Self {
        let persistent = ["--appendonly", "yes", "--appendfsync", "always"];
        let server = match theme {
            Theme::Restart => RedisServer::with(&persistent),
            Theme::Clock => RedisServer::with_own_clock(&[]),
            Theme::Network | Theme::Outage | Theme::Wipe => RedisServer::start(),
        };
        let proxies = [Proxy::to(server.port()), Proxy::to(server.port())];
        let plan = ProcessPlan {
            lease: LEASE,
            keys: KEYS,
            tasks: TASKS,
            work: LEASE / 20,
            wait: LEASE * 3,
            setting: "plain",
        };
        let urls: Vec<_> = (0..WORKLOADS).map(|index| url(&server, &proxies, index)).collect();
        Self { theme, workloads: WorkloadProcesses::start(plan, urls), server, proxies }
    }

    /// Injects a fault. If the fault is temporary, waits while it lasts and ends it.
    fn inject(&mut self, fault: SoakFault, rng: &mut Rng) {
        let short = LEASE.mul_f64(rng.f64() / 2.0);
        let long = LEASE.mul_f64(rng.f64() * 2.5);
        let proxy = rng.usize(..self.proxies.len());
        let index = rng.usize(..WORKLOADS);
        let word = ["SET", "EVALSHA"][rng.usize(..2)];
        match fault {
            SoakFault::Reset => self.proxies[proxy].reset(),
            SoakFault::LoseReply => self.proxies[proxy].lose_reply_to(word),
            SoakFault::Cut => self.proxies[proxy].cut(word, rng.usize(..100)),
            SoakFault::Slow => {
                let toward = [Toward::Server, Toward::Client][rng.usize(..2)];
                self.proxies[proxy].delay(toward, LEASE.mul_f64(rng.f64() / 10.0));
                std::thread::sleep(short);
                self.proxies[proxy].delay(toward, Duration::ZERO);
            }
            SoakFault::Refuse => {
                self.proxies[proxy].refuse(true);
                self.proxies[proxy].reset();
                // Short enough for the next renewal to be in time.
                std::thread::sleep(short / 2);
                self.proxies[proxy].refuse(false);
            }
            SoakFault::Hold => {
                self.proxies[proxy].hold(word);
                std::thread::sleep(long);
                self.proxies[proxy].deliver();
            }
            SoakFault::Partition => self.for_a_while(proxy, long, Proxy::partition),
            SoakFault::BlockRequests => {
                self.for_a_while(proxy, long, |proxy| proxy.blackhole(Toward::Server));
            }
            SoakFault::BlockReplies => {
                self.for_a_while(proxy, long, |proxy| proxy.blackhole(Toward::Client));
            }
            SoakFault::KillClients => self.server.kill_all_connections(),
            SoakFault::ForgetScripts => self.server.tell(&["SCRIPT", "FLUSH"]),
            SoakFault::FreezeServer => {
                self.server.freeze();
                std::thread::sleep(long);
                self.server.thaw();
            }
            SoakFault::RestartServer => {
                self.server.kill();
                std::thread::sleep(short);
                self.server.restart();
            }
            SoakFault::OutOfMemory => self.set_for_a_while("maxmemory", "1", "0", long),
            SoakFault::NoReplicas => self.set_for_a_while("min-replicas-to-write", "1", "0", long),
            SoakFault::Flush => self.server.tell(&["FLUSHALL"]),
            SoakFault::Delete => self.server.tell(&["DEL", "work:0"]),
            SoakFault::ClockAhead => self.server.set_clock(rng.i64(1..6)),
            SoakFault::ClockBack => self.server.set_clock(rng.i64(-5..1)),
            SoakFault::FreezeProcess => {
                self.workloads.freeze(index);
                std::thread::sleep(long);
                self.workloads.thaw(index);
            }
            SoakFault::KillProcess => {
                let url = url(&self.server, &self.proxies, index);
                self.workloads.replace(index, &url);
            }
        }
    }

    fn for_a_while(&self, proxy: usize, how_long: Duration, break_network: impl Fn(&Proxy)) {
        break_network(&self.proxies[proxy]);
        std::thread::sleep(how_long);
        self.proxies[proxy].heal();
    }

    fn set_for_a_while(&self, name: &str, bad: &str, good: &str, how_long: Duration) {
        self.server.tell(&["CONFIG", "SET", name, bad]);
        std::thread::sleep(how_long);
        self.server.tell(&["CONFIG", "SET", name, good]);
    }

    /// Ends all faults, stops the workloads, and checks their recordings.
    fn finish(mut self, figures: &mut Figures) -> Vec<Violation> {
        self.proxies.iter().for_each(Proxy::heal);
        let outcomes = Outcomes::default();
        let history = self.workloads.stop(LEASE * 60, &outcomes);
        figures.outcomes.add(&outcomes.to_string());
        let expected = self.theme.expected();
        let mut violations = history.violations(expected);
        let (overlaps, stale) = history.overlaps_and_stale_writes();
        violations.extend(self.leaked());
        assert_eq!(outcomes.unexpected.load(Ordering::Relaxed), 0, "unexpected errors");

        let (theme, grants) = (self.theme, history.grants());
        println!(
            "{theme:?}: {grants} grants, {outcomes}, {overlaps} overlaps, {stale} stale writes"
        );
        *figures.rounds.entry(theme).or_default() += 1;
        *figures.overlaps.entry(theme).or_default() += overlaps;
        *figures.stale.entry(theme).or_default() += stale;
        figures.grants += grants;
        figures.polls += history.polls();
        figures.handoffs.entry(theme).or_default().extend(history.handoffs());
        if !violations.is_empty() {
            println!("the recordings are in {}", self.workloads.keep().display());
        }
        violations
    }

    /// The keys that still exist when every lease must have ended.
    fn leaked(&self) -> Vec<Violation> {
        // Leases were extended when a clock that was ahead was set right.
        let limit = if self.theme == Theme::Clock { LEASE * 8 } else { LEASE * 2 };
        let end = Instant::now() + limit;
        loop {
            let keys: Vec<String> = self.server.command(&["KEYS", "work:*"]);
            if keys.is_empty() || Instant::now() > end {
                return keys.into_iter().map(|key| Violation::Leaked { key }).collect();
            }
            std::thread::sleep(LEASE / 50);
        }
    }
}

/// Two workloads connect through the first proxy, one through the second, and one directly.
fn url(server: &RedisServer, proxies: &[Proxy; 2], index: usize) -> String {
    match index {
        0 | 1 => proxies[0].url(),
        2 => proxies[1].url(),
        _ => server.url(),
    }
}

impl Figures {
    fn print(&mut self, seed: u64) {
        println!("\nSeed {seed}. {} grants, {} polls of bodies.", self.grants, self.polls);
        println!("Calls: {}.", self.outcomes);
        println!("\n| theme | rounds | overlaps | stale writes without a fence | p50 | p99 |");
        println!("|---|---|---|---|---|---|");
        for (theme, rounds) in &self.rounds {
            let handoffs = self.handoffs.entry(*theme).or_default();
            handoffs.sort_unstable();
            let percentile = |percent: usize| {
                let nanos = handoffs.get(handoffs.len() * percent / 100).copied();
                Duration::from_micros(nanos.unwrap_or_default() / 1000)
            };
            let (overlaps, stale) = (self.overlaps[theme], self.stale[theme]);
            let (half, most) = (percentile(50), percentile(99));
            println!("| {theme:?} | {rounds} | {overlaps} | {stale} | {half:?} | {most:?} |");
        }
        println!("\n| fault | count |\n|---|---|");
        for (fault, count) in &self.faults {
            println!("| {fault:?} | {count} |");
        }
    }
}

//! The processes of a soak, which work under locks and record what they do.

use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::time::Duration;

use tempfile::TempDir;

use crate::support::milliseconds;
use crate::workload::Outcomes;
use crate::{EventKind, Helper, History, HoldEvent, Recorder, RedisServer, boot_nanos};

/// What each process does.
#[derive(Debug, Clone, Copy)]
pub struct ProcessPlan {
    /// The lease of its locks.
    pub lease: Duration,
    /// The number of keys, which all processes share.
    pub keys: u32,
    /// The number of its tasks.
    pub tasks: u32,
    /// How long a body works.
    pub work: Duration,
    /// How long a call waits.
    pub wait: Duration,
    /// `plain`, `acknowledged` (by all replicas) or `quarantine` (of twice the lease).
    pub setting: &'static str,
}

/// Processes of the program `lock-helper`, and what they record.
#[derive(Debug)]
pub struct WorkloadProcesses {
    plan: ProcessPlan,
    /// The path of `lock-helper`.
    program: String,
    guarded: RedisServer,
    processes: Vec<Helper>,
    recorder: Recorder,
    recordings: Vec<PathBuf>,
    directory: TempDir,
}

impl WorkloadProcesses {
    /// Starts a process for each of these URLs.
    #[must_use]
    pub fn start(plan: ProcessPlan, urls: impl IntoIterator<Item = String>) -> Self {
        Self::of(&sibling_program("lock-helper"), plan, urls)
    }

    /// Starts a process of this program for each of these URLs. In a test suite it is `env!("CARGO_BIN_EXE_lock-helper")`.
    #[must_use]
    pub fn of(program: &str, plan: ProcessPlan, urls: impl IntoIterator<Item = String>) -> Self {
        let mut all = Self {
            plan,
            program: program.to_owned(),
            guarded: RedisServer::start(),
            processes: Vec::new(),
            recorder: Recorder::default(),
            recordings: Vec::new(),
            directory: tempfile::tempdir().expect("a temporary directory"),
        };
        for url in urls {
            let process = all.process(&url);
            all.processes.push(process);
        }
        all
    }

    fn process(&mut self, url: &str) -> Helper {
        let recording = self.directory.path().join(self.recordings.len().to_string());
        self.recordings.push(recording.clone());
        let ProcessPlan { lease, keys, tasks, work, wait, setting } = self.plan;
        let args = [
            "work",
            url,
            &self.guarded.plain_url(),
            &milliseconds(lease),
            &keys.to_string(),
            &tasks.to_string(),
            &milliseconds(work),
            &milliseconds(wait),
            recording.to_str().expect("a path in UTF-8"),
            setting,
        ];
        Helper::start(&self.program, &args)
    }

    /// Suspends a process with SIGSTOP.
    pub fn freeze(&self, index: usize) {
        self.processes[index].freeze();
    }

    /// Resumes a process with SIGCONT.
    pub fn thaw(&self, index: usize) {
        self.processes[index].thaw();
    }

    /// Kills a process, and starts another one in its place.
    pub fn replace(&mut self, index: usize, url: &str) {
        let id = self.processes[index].id();
        self.processes[index].kill();
        let (at, key) = (boot_nanos(), String::from("-"));
        self.recorder.add(HoldEvent { at, process: id, key, hold: 0, kind: EventKind::Killed });
        self.processes[index] = self.process(url);
    }

    /// Stops all processes, which have to end within `limit`, and adds their outcomes. Returns the
    /// history of their holds.
    pub fn stop(&mut self, limit: Duration, outcomes: &Outcomes) -> History {
        for process in &mut self.processes {
            process.tell("stop");
        }
        let (done, all_done) = mpsc::channel::<()>();
        std::thread::spawn(move || {
            if all_done.recv_timeout(limit) == Err(mpsc::RecvTimeoutError::Timeout) {
                println!("VIOLATION: a workload does not end");
                std::process::exit(1);
            }
        });
        for process in &mut self.processes {
            assert_eq!(process.line(), "working");
            let line = process.line();
            assert!(outcomes.add(&line).is_some(), "a workload ended early and printed {line:?}");
        }
        // A workload that was killed before it recorded anything has no file.
        let recordings = self.recordings.iter().filter(|recording| recording.exists());
        drop(done);
        self.recorder.history_with(recordings).expect("valid recordings")
    }

    /// Keeps the recordings, and returns their directory.
    #[must_use]
    pub fn keep(self) -> PathBuf {
        self.directory.keep()
    }
}

/// The path of another program of this package, in the same directory.
#[must_use]
pub fn sibling_program(name: &str) -> String {
    let this = std::env::current_exe().expect("the path of this program");
    let program = this.parent().map(|folder: &Path| folder.join(name));
    let program = program.filter(|program| program.exists()).unwrap_or_else(|| {
        panic!("{name} is not built: run `scripts/soak`, which builds it");
    });
    program.to_str().expect("a path in UTF-8").to_owned()
}

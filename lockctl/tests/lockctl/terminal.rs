//! What is different on a terminal.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use lock_tests::RedisServer;
use lock_tests::support::client;
use rustix::fs::{Mode, OFlags};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};

use crate::support::{PATIENCE, lockctl};

/// The number of columns of the terminal.
const COLUMNS: u16 = 60;

/// A process at a terminal of its own. Killed when dropped.
pub(crate) struct AtTerminal {
    child: Child,
    keyboard: File,
    screen: std::sync::mpsc::Receiver<Vec<u8>>,
    /// All that was read from the screen.
    pub(crate) seen: String,
}

impl AtTerminal {
    pub(crate) fn start(mut command: Command) -> Self {
        let controller = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC)
            .expect("a terminal");
        grantpt(&controller).expect("a terminal");
        unlockpt(&controller).expect("a terminal");
        let name = ptsname(&controller, Vec::new()).expect("it has a name");
        let size = Winsize { ws_row: 20, ws_col: COLUMNS, ws_xpixel: 0, ws_ypixel: 0 };
        let open = || -> OwnedFd {
            let terminal = rustix::fs::open(
                &name,
                OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC,
                Mode::empty(),
            );
            terminal.expect("the other side")
        };
        let terminal = open();
        tcsetwinsize(&terminal, size).expect("a terminal");
        command.stdin(Stdio::from(open())).stdout(Stdio::from(open())).stderr(Stdio::from(open()));
        let child = command.env("TERM", "xterm").spawn().expect("it was built with the tests");
        let keyboard = File::from(controller);
        let mut screen = keyboard.try_clone().expect("a terminal");
        let (send, read) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            let mut part = [0; 4096];
            // The terminal is closed, with an error, when the last process has ended.
            while let Ok(length @ 1..) = screen.read(&mut part) {
                if send.send(part[..length].to_vec()).is_err() {
                    return;
                }
            }
        });
        Self { child, keyboard, screen: read, seen: String::new() }
    }

    /// Reads until the screen has shown this text.
    pub(crate) fn shows(&mut self, text: &str) {
        self.reads_until(text, |seen| seen.contains(text));
    }

    /// Reads until all that the screen has shown fulfils the condition.
    pub(crate) fn reads_until(&mut self, what: &str, condition: impl Fn(&str) -> bool) {
        let end = Instant::now() + PATIENCE;
        while !condition(&self.seen) {
            assert!(self.reads(end), "{what:?} is not shown: {:?}", self.seen);
        }
    }

    /// Reads what comes next, until this time. Returns whether something came.
    fn reads(&mut self, end: Instant) -> bool {
        let part = self.screen.recv_timeout(end.saturating_duration_since(Instant::now()));
        let text = part.as_ref().map(|part| String::from_utf8_lossy(part));
        self.seen.push_str(&text.unwrap_or_default());
        part.is_ok()
    }

    pub(crate) fn types(&mut self, text: &str) {
        self.keyboard.write_all(text.as_bytes()).expect("a terminal");
    }

    /// Waits for the end. Returns the exit code, and what the screen has shown.
    pub(crate) fn end(mut self) -> (Option<i32>, String) {
        let end = Instant::now() + PATIENCE;
        while self.reads(end) {}
        assert!(Instant::now() < end, "it has not ended: {:?}", self.seen);
        let status = self.child.wait().expect("a child process");
        (status.code(), std::mem::take(&mut self.seen))
    }
}

impl Drop for AtTerminal {
    fn drop(&mut self) {
        // Both calls fail if the process has already ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn tables_fit_into_the_terminal_and_have_colours() {
    let server = RedisServer::start();
    let client = client(&server.url()).await;
    let long = "order:".repeat(20);
    let _guard = client.lock(&*long).acquire().await.expect("free");
    let (code, screen) = AtTerminal::start(lockctl(&server.url(), &["ls"])).end();
    assert_eq!(code, Some(0), "{screen:?}");
    assert!(screen.contains("\u{1b}[1m") && screen.contains('…'), "{screen:?}");
    let plain = screen.replace("\u{1b}[1m", "").replace("\u{1b}[0m", "");
    assert!(!plain.contains('\u{1b}'), "{plain:?}");
    let widest = plain.lines().map(|line| line.trim_end().chars().count()).max();
    assert!(widest <= Some(usize::from(COLUMNS)), "{plain:?}");
}

#[test]
fn delete_asks_and_accepts_only_yes() {
    let server = RedisServer::start();
    for (answer, code, is_left) in [("y\n", 75, true), ("yes\n", 0, false)] {
        server.tell(&["SET", "job", "something", "PX", "60000"]);
        let words = ["delete", "job", "--token", "something"];
        let mut deleting = AtTerminal::start(lockctl(&server.url(), &words));
        deleting.shows("Only \"yes\" is accepted");
        deleting.types(answer);
        let (found, screen) = deleting.end();
        assert_eq!((found, server.exists("job")), (Some(code), is_left), "{screen:?}");
    }
}

#[test]
fn a_hold_that_has_ended_while_delete_asks_is_not_deleted() {
    let server = RedisServer::start();
    server.tell(&["SET", "job", "something", "PX", "60000"]);
    let words = ["-q", "delete", "job", "--token", "something"];
    let mut deleting = AtTerminal::start(lockctl(&server.url(), &words));
    deleting.shows("still runs, it goes on");
    deleting.shows("Only \"yes\" is accepted");
    server.tell(&["SET", "job", "another", "PX", "60000"]);
    deleting.types("yes\n");
    let (code, screen) = deleting.end();
    assert_eq!(code, Some(75), "{screen:?}");
    assert!(screen.contains("has another holder by now"), "{screen:?}");
    assert_eq!(server.command::<String>(&["GET", "job"]), "another");
}

#[test]
fn a_table_that_is_shown_again_has_its_warnings_below() {
    let server = RedisServer::start();
    let words = ["run", "k", "sh", "-c", "echo held; read line"];
    let mut silent = crate::support::RunningProcess::start(lockctl(&server.url(), &words));
    assert_eq!(silent.line(), "held");
    silent.send(rustix::process::Signal::STOP);
    let words = ["ls", "--watch=100ms", "--answer-timeout", "100ms"];
    let mut command = lockctl(&server.url(), &words);
    command.env("NO_COLOR", "1");
    let mut watching = AtTerminal::start(command);
    watching.shows("one client has not answered");
    let (clear, header) =
        (watching.seen.find("\u{1b}[2J"), watching.seen.find("No locks of the clients"));
    let warning = watching.seen.find("one client");
    assert!(clear.is_some() && clear < header && header < warning, "{:?}", watching.seen);
    silent.send(rustix::process::Signal::CONT);
}

#[test]
fn a_command_at_a_terminal_stays_in_the_group_of_lockctl() {
    let server = RedisServer::start();
    let script = "ps -o pgid= -p $$; ps -o pgid= -p $PPID; echo end";
    let (code, screen) =
        AtTerminal::start(lockctl(&server.url(), &["run", "k", "sh", "-c", script])).end();
    let groups: Vec<_> = screen.lines().map(str::trim).collect();
    assert_eq!((code, groups.len()), (Some(0), 3), "{screen:?}");
    assert_eq!(groups[0], groups[1], "{screen:?}");
    let own = crate::support::outcome(&server.url(), &["run", "k", "sh", "-c", script]);
    let groups: Vec<_> = own.output.lines().map(str::trim).collect();
    assert_ne!(groups[0], groups[1], "without a terminal, it has its own: {own:?}");
}

#[cfg(feature = "tui")]
#[tokio::test(flavor = "multi_thread")]
async fn top_shows_the_locks_until_a_key_or_a_signal_ends_it() {
    use rustix::process::{Pid, Signal, kill_process};

    let server = RedisServer::start();
    let client = client(&server.url()).await;
    let _guard = client.lock("job").acquire().await.expect("free");
    let mut top = AtTerminal::start(lockctl(&server.url(), &["top", "--refresh", "100ms"]));
    // Only what changes is written, so longer texts may be interrupted.
    top.shows("job");
    top.types("q");
    let (code, screen) = top.end();
    assert_eq!(code, Some(0), "{screen:?}");
    assert!(screen.contains("\u{1b}[?1049l"), "the terminal is as it was: {screen:?}");
    for signal in [Signal::TERM, Signal::HUP] {
        let mut top = AtTerminal::start(lockctl(&server.url(), &["top"]));
        top.shows("job");
        kill_process(Pid::from_child(&top.child), signal).expect("a child process");
        let (code, screen) = top.end();
        assert_eq!(code, Some(128 + signal.as_raw()), "{screen:?}");
        assert!(screen.contains("\u{1b}[?1049l"), "the terminal is as it was: {screen:?}");
    }
    let piped = crate::support::outcome(&server.url(), &["top"]);
    assert_eq!(piped.code, Some(64), "{piped:?}");
}

//! Signals for `lockctl` and for the command.

use lock_tests::RedisServer;
use rustix::process::Signal;

use super::{FOREVER, run, started};
use crate::support::{RunningProcess, Witness, wait_until};

/// The signals that are passed on as they are.
const SIGNALS: [(&str, Signal); 6] = [
    ("INT", Signal::INT),
    ("TERM", Signal::TERM),
    ("HUP", Signal::HUP),
    ("QUIT", Signal::QUIT),
    ("USR1", Signal::USR1),
    ("USR2", Signal::USR2),
];

#[test]
fn the_command_gets_the_signals_for_lockctl() {
    let server = RedisServer::start();
    for (name, signal) in SIGNALS {
        // The inner shell shows that the whole group gets it.
        let script = format!(
            "trap 'echo got' {name}; echo started; sh -c \"trap 'echo too; exit' {name}; echo ready; {FOREVER}\"; exit 5"
        );
        let (running, witness) = started(&server, &[], &script);
        assert_eq!(witness.line().as_deref(), Some("ready"));
        running.send(signal);
        let mut lines = [witness.line(), witness.line()].map(Option::unwrap_or_default);
        lines.sort();
        assert_eq!(lines, ["got", "too"], "{name}");
        let ended = running.end();
        assert_eq!(ended.code, Some(5), "{name}");
        assert!(!ended.errors.contains("lockctl:"), "{name}: {ended:?}");
        witness.ended();
        assert!(!server.exists("k"));
    }
}

#[test]
fn a_command_that_a_signal_ends_has_128_more() {
    let server = RedisServer::start();
    for (name, signal) in SIGNALS {
        let (running, witness) = started(&server, &[], "echo started; exec sleep 1000");
        running.send(signal);
        assert_eq!(running.end().code, Some(128 + signal.as_raw()), "{name}");
        witness.ended();
    }
}

#[test]
fn the_lock_is_held_until_the_command_and_its_descendants_have_cleaned_up() {
    let server = RedisServer::start();
    let clean_up =
        format!("trap 'echo told; read line; echo cleaned; exit' TERM; echo ready; {FOREVER}");
    // The outer shell ends at once, or it ends last.
    for (outer, code) in [("", 128 + 15), ("trap : TERM; ", 5)] {
        let script = format!("{outer}echo started; sh -c \"{clean_up}\"; exit 5");
        let (mut running, witness) = started(&server, &[], &script);
        assert_eq!(witness.line().as_deref(), Some("ready"));
        running.send(Signal::TERM);
        assert_eq!(witness.line().as_deref(), Some("told"));
        wait_for_renewal(&server);
        running.close_input();
        assert_eq!(witness.line().as_deref(), Some("cleaned"));
        assert_eq!(running.end().code, Some(code), "{outer:?}");
        witness.ended();
        assert!(!server.exists("k"));
    }
}

/// Waits until the lock `k`, which is held, is renewed.
fn wait_for_renewal(server: &RedisServer) {
    let mut left = server.pttl("k");
    wait_until("the lock is renewed", || {
        let earlier = std::mem::replace(&mut left, server.pttl("k"));
        left > earlier
    });
}

/// The state of a process, as `ps` shows it.
fn state(process: &str) -> Option<char> {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").and_then(|(_, rest)| rest.chars().next())
}

#[test]
fn a_suspended_command_keeps_its_lock() {
    let server = RedisServer::start();
    let (running, witness) = started(&server, &[], "echo started; echo $$; read line");
    let process = witness.line().expect("a process id");
    running.send(Signal::TSTP);
    wait_until("it is suspended", || state(&process) == Some('T'));
    wait_for_renewal(&server);
    running.send(Signal::CONT);
    wait_until("it continues", || state(&process) == Some('S'));
    assert_eq!(running.end().code, Some(1), "`read` has found no line");
}

#[test]
fn a_suspended_command_ends_with_the_signals_that_end_programs() {
    let server = RedisServer::start();
    for signal in [Signal::INT, Signal::TERM, Signal::HUP, Signal::QUIT] {
        let (running, witness) = started(&server, &[], "echo started; echo $$; kill -STOP $$");
        let process = witness.line().expect("a process id");
        wait_until("it is suspended", || state(&process) == Some('T'));
        running.send(signal);
        assert_eq!(running.end().code, Some(128 + signal.as_raw()));
        assert!(!server.exists("k"));
    }
}

#[test]
fn a_signal_ends_lockctl_while_it_waits() {
    let server = RedisServer::start();
    let (holder, witness) = started(&server, &[], "echo started; read line");
    for signal in [Signal::INT, Signal::TERM, Signal::HUP, Signal::QUIT] {
        let waiting = RunningProcess::start(run(&server, &[], &["k", "echo", "ran"]));
        wait_until("it waits", || server.queued("k") == 1);
        waiting.send(signal);
        let ended = waiting.end();
        assert_eq!((ended.code, &*ended.output), (Some(128 + signal.as_raw()), ""));
        assert_eq!(server.queued("k"), 0, "its place in the queue is gone");
    }
    drop(holder.end());
    witness.ended();
}

#[test]
fn an_ignored_signal_stays_ignored() {
    let server = RedisServer::start();
    let mut witness = Witness::new();
    let script = witness.script("echo started; echo $$; read line; echo last");
    let mut command = run(&server, &[], &["k", "sh", "-c", &script]);
    let program = env!("CARGO_BIN_EXE_lockctl");
    let words = command
        .get_args()
        .skip_while(|word| [program, "--default-signal"].contains(&&*word.to_string_lossy()));
    let words: Vec<_> = words.map(ToOwned::to_owned).collect();
    let mut shell = std::process::Command::new("sh");
    shell.args(["-c", "trap '' HUP; exec \"$@\"", "sh", program]).args(words);
    command = shell;
    command.env("LOCK_URL", server.url());
    let running = RunningProcess::start(command);
    witness.started();
    let process: i32 = witness.line().expect("an id").parse().expect("a number");
    running.send(Signal::HUP);
    let process = rustix::process::Pid::from_raw(process).expect("a process id");
    rustix::process::kill_process(process, Signal::HUP).expect("it runs");
    assert_eq!(running.end().code, Some(0));
    assert_eq!(witness.line().as_deref(), Some("last"));
}

/// Linux only: see the next test for what shows that this one would see a process that lives on.
#[cfg(target_os = "linux")]
#[test]
fn the_command_dies_with_lockctl() {
    let server = RedisServer::start();
    let (running, witness) = started(&server, &[], "echo started; exec sleep 1000");
    running.send(Signal::KILL);
    witness.ended();
}

/// The control: a process that the command has started is not bound to lockctl.
#[cfg(target_os = "linux")]
#[test]
fn a_process_without_the_binding_outlives_lockctl() {
    use lock_tests::support::LEASE;
    use rustix::process::{Pid, kill_process};

    let server = RedisServer::start();
    let (running, witness) = started(&server, &[], "echo started; sleep 1000 & echo $!; wait");
    let process: i32 = witness.line().expect("an id").parse().expect("a number");
    running.send(Signal::KILL);
    assert_eq!(witness.line_within(LEASE), Err(()), "it lives on");
    let process = Pid::from_raw(process).expect("a process id");
    kill_process(process, Signal::KILL).expect("it runs");
    witness.ended();
}

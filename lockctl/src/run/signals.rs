//! The signals that `lockctl` passes on.

use std::io;
use std::task::Poll;

use rustix::process::{Signal, getpgrp, getpid, kill_process};
use rustix::termios::tcgetpgrp;
use tokio::signal::unix::{self, SignalKind};

/// Those that are passed on, and that which tells of the end of a child.
const PASSED_ON: [Signal; 8] = [
    Signal::TERM,
    Signal::INT,
    Signal::HUP,
    Signal::QUIT,
    Signal::USR1,
    Signal::USR2,
    Signal::TSTP,
    Signal::CONT,
];

/// The signals that this process receives from now on, instead of their usual effects.
pub(crate) struct Signals(Vec<(Signal, unix::Signal)>);

impl Signals {
    /// Signals that were ignored when `lockctl` was started stay ignored, also by the command: `nohup` works.
    pub(crate) fn listen() -> io::Result<Self> {
        let ignored = ignored();
        let wanted =
            PASSED_ON.into_iter().filter(|signal| ignored >> (signal.as_raw() - 1) & 1 == 0);
        let wanted = wanted.chain([Signal::CHILD]);
        let listen =
            |signal: Signal| Ok((signal, unix::signal(SignalKind::from_raw(signal.as_raw()))?));
        wanted.map(listen).collect::<io::Result<_>>().map(Self)
    }

    /// The next signal. Cancel safe: no signal is lost.
    pub(super) async fn next(&mut self) -> Signal {
        std::future::poll_fn(|cx| {
            for (signal, arrived) in &mut self.0 {
                // A stream of signals never ends.
                if arrived.poll_recv(cx).is_ready() {
                    return Poll::Ready(*signal);
                }
            }
            Poll::Pending
        })
        .await
    }

    /// The next signal that asks this process to end.
    pub(crate) async fn next_end(&mut self) -> Signal {
        loop {
            let signal = self.next().await;
            match signal {
                Signal::TERM | Signal::INT | Signal::HUP | Signal::QUIT => return signal,
                Signal::TSTP => stop(),
                _ => {}
            }
        }
    }
}

/// The set of ignored signals, with a bit for each, from 1 on. Empty on systems that do not tell.
fn ignored() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let set = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    set.and_then(|set| u64::from_str_radix(set.trim(), 16).ok()).unwrap_or(0)
}

/// Suspends this process, as SIGTSTP usually does, until somebody continues it.
pub(super) fn stop() {
    // A process may always send signals to itself.
    let _ = kill_process(getpid(), Signal::STOP);
}

/// Whether this process belongs to the foreground job of its terminal, which sends the signals of its keys to all
/// processes of the job.
pub(super) fn is_foreground_job() -> bool {
    let terminal = std::fs::File::open("/dev/tty");
    terminal.is_ok_and(|terminal| tcgetpgrp(terminal).is_ok_and(|group| group == getpgrp()))
}

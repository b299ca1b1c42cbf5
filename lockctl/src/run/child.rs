//! The command that runs, and the processes that it has started.

use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitStatus};

use rustix::process::{
    Pid, Signal, WaitId, WaitIdOptions, kill_process, kill_process_group, waitid,
};

use crate::exit::Failure;

/// A command that was started. Killed when dropped.
#[derive(Debug)]
pub(super) struct CommandProcess {
    child: Child,
    /// Whether the command and its descendants are a process group of their own.
    has_group: bool,
    has_ended: bool,
}

impl CommandProcess {
    /// Starts it, in a process group of its own unless it `shares` that of `lockctl`.
    pub(super) fn start(mut command: Command, shares: bool) -> Result<Self, Failure> {
        if !shares {
            command.process_group(0);
        }
        let child = command.spawn().map_err(|error| Failure::internal("start a process", error))?;
        Ok(Self { child, has_group: !shares, has_ended: false })
    }

    /// Sends a signal to the command and its descendants, or in a shared group to the command alone. A command
    /// that has ended is no error: its end is noticed elsewhere.
    pub(super) fn send(&self, signal: Signal) {
        let id = self.id();
        // The process id is not used again before `end`.
        let _ =
            if self.has_group { kill_process_group(id, signal) } else { kill_process(id, signal) };
    }

    /// Asks it to end. A command that was stopped continues, so that it can.
    pub(super) fn terminate(&self) {
        self.send(Signal::TERM);
        self.send(Signal::CONT);
    }

    /// Whether the command itself has ended. It keeps its process id until [`end`](Self::end).
    pub(super) fn has_ended(&self) -> bool {
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        // An error means that there is no such process.
        !matches!(waitid(WaitId::Pid(self.id()), options), Ok(None))
    }

    /// The exit code of a command that has ended. Its descendants are killed first if it was `told` to end,
    /// because they would outlive the lock.
    pub(super) fn end(mut self, told: bool) -> Result<u8, Failure> {
        if told && self.has_group {
            self.send(Signal::KILL);
        }
        self.has_ended = true;
        let status =
            self.child.wait().map_err(|error| Failure::internal("wait for the command", error))?;
        Ok(exit_code(status))
    }

    fn id(&self) -> Pid {
        Pid::from_child(&self.child)
    }
}

impl Drop for CommandProcess {
    fn drop(&mut self) {
        if !self.has_ended {
            self.send(Signal::KILL);
            // It may have ended by itself.
            let _ = self.child.wait();
        }
    }
}

/// The exit code of shells: that of the command, or 128 and the number of the signal that has ended it.
fn exit_code(status: ExitStatus) -> u8 {
    let code = status.code().or_else(|| Some(128 + status.signal()?));
    code.and_then(|code| u8::try_from(code).ok()).unwrap_or(u8::MAX)
}

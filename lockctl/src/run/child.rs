//! The command that runs, and the processes that it has started.
//!
//! On Linux, `lockctl` adopts the descendants of the command whose parents have ended, so that their ends are seen
//! like that of the command itself. Elsewhere, and for descendants whose parents live in another process group, the
//! process group is asked from time to time.

use std::os::unix::process::CommandExt;
use std::process::Command;

use rustix::io::Errno;
use rustix::process::{
    Pid, Signal, WaitOptions, WaitStatus, kill_process, kill_process_group,
    test_kill_process_group, wait, waitpid,
};

use crate::exit::Failure;

/// A command that was started. Killed when dropped, unless its end was [seen](Self::end).
#[derive(Debug)]
pub(super) struct CommandProcess {
    id: Pid,
    /// Whether the command and its descendants are a process group of their own.
    has_group: bool,
    /// The exit code of the command itself, once it has ended.
    code: Option<u8>,
    /// Whether somebody still waits for the end.
    is_awaited: bool,
}

impl CommandProcess {
    /// Starts it, in a process group of its own unless it `shares` that of `lockctl`.
    pub(super) fn start(mut command: Command, shares: bool) -> Result<Self, Failure> {
        if !shares {
            command.process_group(0);
        }
        adopt_orphans().map_err(|error| Failure::internal("adopt processes", error))?;
        let child = command.spawn().map_err(|error| Failure::internal("start a process", error))?;
        let id = Pid::from_child(&child);
        Ok(Self { id, has_group: !shares, code: None, is_awaited: true })
    }

    /// Sends a signal to the command and its descendants, or in a shared group to the command alone. Processes that
    /// have ended are no error: their end is noticed elsewhere.
    pub(super) fn send(&self, signal: Signal) {
        // The number of a group is not used again while the group has members, nor that of a process before `reap`.
        let _ = if self.has_group {
            kill_process_group(self.id, signal)
        } else if self.code.is_none() {
            kill_process(self.id, signal)
        } else {
            Ok(())
        };
    }

    /// Asks it to end. A command that was stopped continues, so that it can.
    pub(super) fn terminate(&self) {
        self.send(Signal::TERM);
        self.send(Signal::CONT);
    }

    /// Whether it is in the process group of `lockctl`.
    pub(super) fn shares_group(&self) -> bool {
        !self.has_group
    }

    /// Whether the command itself has ended.
    pub(super) fn has_ended(&mut self) -> bool {
        self.reap();
        self.code.is_some()
    }

    /// Whether a process of the group lives that has only the command and its descendants.
    pub(super) fn has_group_members(&self) -> bool {
        // Another error means that there are processes that may not be signalled.
        self.has_group && test_kill_process_group(self.id) != Err(Errno::SRCH)
    }

    /// The exit code of a command that has ended. Descendants that live go on.
    pub(super) fn end(mut self) -> u8 {
        self.is_awaited = false;
        self.code.unwrap_or(u8::MAX)
    }

    /// Takes note of the processes that have ended. Adopted ones would stay members of their groups otherwise.
    fn reap(&mut self) {
        while let Ok(Some((id, status))) = wait(WaitOptions::NOHANG) {
            if id == self.id {
                self.code = Some(exit_code(status));
            }
        }
    }
}

impl Drop for CommandProcess {
    fn drop(&mut self) {
        if self.is_awaited {
            self.send(Signal::KILL);
            // It may have ended by itself.
            let _ = waitpid(Some(self.id), WaitOptions::empty());
        }
    }
}

/// Makes this process the parent of all descendants whose parents end.
#[cfg(target_os = "linux")]
fn adopt_orphans() -> rustix::io::Result<()> {
    rustix::process::set_child_subreaper(Some(rustix::process::getpid()))
}

#[cfg(not(target_os = "linux"))]
fn adopt_orphans() -> rustix::io::Result<()> {
    Ok(())
}

/// The exit code of shells: that of the command, or 128 and the number of the signal that has ended it.
fn exit_code(status: WaitStatus) -> u8 {
    let code = status.exit_status().or_else(|| Some(128 + status.terminating_signal()?));
    code.and_then(|code| u8::try_from(code).ok()).unwrap_or(u8::MAX)
}

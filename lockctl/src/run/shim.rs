//! The step between `lockctl` and the command: a process that binds its life to that of `lockctl`, and then
//! becomes the command.
//!
//! Linux kills the command with SIGKILL when the thread that has started it ends, however that happens. The
//! setting survives the `exec` of the command, but not that of a program with the set-user-ID bit or with
//! capabilities. Other systems have no such setting; there, the lease bounds what a killed `lockctl` leaves behind.

use std::ffi::OsString;
use std::io::ErrorKind;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, ExitCode};

use crate::exit::Code;
use crate::messages::Messages;

/// The first word of such a process.
const WORD: &str = "__become";

/// The words of such a process.
pub(crate) struct Shim {
    /// The process id of `lockctl`.
    parent: i32,
    command: Vec<OsString>,
}

impl Shim {
    /// The process that is to become the command.
    pub(super) fn command(words: &[OsString]) -> Command {
        let mut command = Command::new(Self::program());
        command.arg0("lockctl").arg(WORD).arg(std::process::id().to_string()).args(words);
        command
    }

    /// The file of this program. On Linux, this is the right one even after an update.
    fn program() -> PathBuf {
        if cfg!(target_os = "linux") {
            return "/proc/self/exe".into();
        }
        std::env::current_exe().unwrap_or_else(|_| "lockctl".into())
    }

    /// What this process is to become; `None` if it is an ordinary `lockctl`.
    pub(crate) fn of_process() -> Option<Self> {
        let mut words = std::env::args_os().skip(1);
        words.next().filter(|word| word == WORD)?;
        let parent = words.next()?.to_str()?.parse().ok()?;
        Some(Self { parent, command: words.collect() })
    }

    /// Becomes the command. Returns the exit code if this is not possible.
    pub(crate) fn become_command(self) -> ExitCode {
        let code = self.refused();
        Messages::flush();
        code
    }

    /// Becomes the command, or says why it cannot.
    fn refused(self) -> ExitCode {
        if let Err(error) = self.bind() {
            Messages::error(format!("cannot bind the command to lockctl: {error}"));
            return Code::Internal.into();
        }
        let Some((program, arguments)) = self.command.split_first() else {
            return Code::Usage.into();
        };
        let error = Command::new(program).args(arguments).exec();
        Messages::error(format!("cannot run {}: {error}", program.display()));
        match error.kind() {
            ErrorKind::NotFound => Code::NotFound.into(),
            _ => Code::CannotRun.into(),
        }
    }

    #[cfg(target_os = "linux")]
    fn bind(&self) -> std::io::Result<()> {
        use rustix::process::{Signal, getppid, set_parent_process_death_signal};

        set_parent_process_death_signal(Some(Signal::KILL))?;
        // It may have ended before.
        if getppid().is_none_or(|parent| parent.as_raw_nonzero().get() != self.parent) {
            return Err(std::io::Error::other("lockctl has ended"));
        }
        Ok(())
    }

    #[cfg(not(target_os = "linux"))]
    fn bind(&self) -> std::io::Result<()> {
        let _ = self.parent;
        Ok(())
    }
}

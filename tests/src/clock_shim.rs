//! A wall clock of its own for a server.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::shim;

/// A preloaded library that shifts the wall clock of a process, and the file with the shift. Linux only.
#[derive(Debug)]
pub(crate) struct ClockShim {
    library: PathBuf,
    offset: PathBuf,
}

impl ClockShim {
    /// The one of the server in this directory, which does not exist before it is [built](Self::build).
    pub(crate) fn in_directory(directory: &Path) -> Self {
        Self { library: directory.join("clock.so"), offset: directory.join("clock") }
    }

    /// Compiles the library.
    pub(crate) fn build(&self) {
        shim::compile(include_str!("clock_shim.c"), &self.library);
        self.set(0);
    }

    /// Sets the clock this many seconds ahead of the machine's.
    pub(crate) fn set(&self, seconds: i64) {
        // One write of constant length, because the shim reads the file at any time. No rename,
        // because the shim keeps the file open.
        std::fs::write(&self.offset, format!("{seconds:<20}")).expect("a temporary file");
    }

    /// Gives the clock to a process that has not started.
    pub(crate) fn preload(&self, command: &mut Command) {
        command.env("LD_PRELOAD", &self.library).env("CLOCK_OFFSET_FILE", &self.offset);
    }
}

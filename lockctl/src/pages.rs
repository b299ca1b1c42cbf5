//! `lockctl completions` and `lockctl man`.

use std::path::PathBuf;

use clap::{Args, Command};
use clap_complete::Shell;

use crate::exit::Failure;
use crate::output::write;

/// Prints the completions for a shell.
///
/// For bash: `lockctl completions bash > ~/.local/share/bash-completion/completions/lockctl`
#[derive(Debug, Args)]
pub(crate) struct CompletionsOptions {
    #[arg(value_enum)]
    shell: Shell,
}

/// Writes the man pages, one for each command.
#[derive(Debug, Args)]
pub(crate) struct ManOptions {
    /// The directory for the pages, such as `/usr/local/share/man/man1`
    directory: PathBuf,
}

/// `all` is the command line.
pub(crate) fn completions(options: &CompletionsOptions, mut all: Command) -> Result<(), Failure> {
    let mut script = Vec::new();
    clap_complete::generate(options.shell, &mut all, "lockctl", &mut script);
    write(&String::from_utf8_lossy(&script))
}

/// `all` is the command line.
pub(crate) fn man(options: &ManOptions, all: Command) -> Result<(), Failure> {
    let directory = &options.directory;
    let written =
        std::fs::create_dir_all(directory).and_then(|()| clap_mangen::generate_to(all, directory));
    let doing = format!("write the pages to {}", directory.display());
    written.map_err(|error| Failure::internal(&doing, error))
}

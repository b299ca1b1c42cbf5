//! `lockctl completions` and `lockctl man`.

use std::path::PathBuf;

use clap::Args;
use clap_complete::Shell;

use crate::exit::Failure;
use crate::options;
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

pub(crate) fn completions(options: &CompletionsOptions) -> Result<(), Failure> {
    let mut script = Vec::new();
    clap_complete::generate(options.shell, &mut options::command(), "lockctl", &mut script);
    write(&String::from_utf8_lossy(&script))
}

pub(crate) fn man(options: &ManOptions) -> Result<(), Failure> {
    let directory = &options.directory;
    let written = std::fs::create_dir_all(directory)
        .and_then(|()| clap_mangen::generate_to(options::command(), directory));
    let doing = format!("write the pages to {}", directory.display());
    written.map_err(|error| Failure::internal(&doing, error))
}

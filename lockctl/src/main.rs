//! `lockctl`: runs commands under locks, and shows who holds which lock.
//!
//! Each command is a module: its options, and what it does. Below them are the connection to the store
//! (`connection`), what is printed (`output`), and the exit codes (`exit`).

mod asking;
mod bench;
mod clients;
mod clock;
mod connection;
mod delete;
mod doctor;
mod exit;
mod lock_row;
mod ls;
mod messages;
mod options;
mod output;
mod pages;
mod pattern;
mod revoke;
mod run;
mod samples;
mod span;
#[cfg(feature = "tui")]
mod top;
mod wait;
mod who;

use std::process::ExitCode;

use clap::error::ErrorKind;
use clap::{CommandFactory, FromArgMatches};

use self::exit::{Code, Failure};
use self::messages::Messages;
use self::options::{CommandLine, Subcommand};

fn main() -> ExitCode {
    // The started command is one of the words, so it must not be read as the options of `lockctl`.
    if let Some(shim) = run::shim::Shim::of_process() {
        return shim.become_command();
    }
    let matches = match CommandLine::command().try_get_matches() {
        Ok(matches) => matches,
        Err(error) => return refused(&error),
    };
    let options = match CommandLine::from_arg_matches(&matches) {
        Ok(options) => options,
        Err(error) => return refused(&error),
    };
    let messages = Messages::new(&options.global);
    let source = matches.value_source("url");
    match execute(options, source, messages) {
        Ok(code) => code,
        Err(failure) => {
            Messages::error(&failure);
            failure.code.into()
        }
    }
}

fn execute(
    options: CommandLine,
    source: Option<clap::parser::ValueSource>,
    messages: Messages,
) -> Result<ExitCode, Failure> {
    options.global.check(source)?;
    // The parent-death signal of a command is bound to the thread that starts it. That is this thread, which
    // lives as long as the process.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| Failure::internal("start", error))?;
    let global = options.global;
    runtime.block_on(async {
        match options.command {
            Subcommand::Run(options) => return run::run(&global, options, messages).await,
            Subcommand::Ls(options) => ls::run(&global, options, messages).await?,
            Subcommand::Who(options) => who::run(&global, options, messages).await?,
            Subcommand::Wait(options) => wait::run(&global, options, messages).await?,
            Subcommand::Clients(options) => clients::run(&global, options, messages).await?,
            Subcommand::Delete(options) => delete::run(&global, options, messages).await?,
            #[cfg(feature = "tui")]
            Subcommand::Top(options) => top::run(&global, options).await?,
            Subcommand::Bench(options) => bench::run(&global, options, messages).await?,
            Subcommand::Doctor(options) => {
                let code = doctor::run(&global, options, messages).await?;
                return Ok(code.map_or(ExitCode::SUCCESS, ExitCode::from));
            }
            Subcommand::Completions(options) => pages::completions(&options)?,
            Subcommand::Man(options) => pages::man(&options)?,
            Subcommand::Revoke(options) => revoke::run(&global, options, messages).await?,
        }
        Ok(ExitCode::SUCCESS)
    })
}

/// Prints help, the version, or what is wrong with the command line.
fn refused(error: &clap::Error) -> ExitCode {
    // Nothing can be done about a closed output.
    let _ = error.print();
    match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => ExitCode::SUCCESS,
        _ => Code::Usage.into(),
    }
}

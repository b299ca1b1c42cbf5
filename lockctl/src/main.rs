//! `lockctl`: runs commands under locks, and shows who holds which lock.
//!
//! Each command is a module: its options, and what it does. Below them are the connection to the store
//! (`connection`), what is printed (`output`), and the exit codes (`exit`).

#![forbid(unsafe_code)]

mod answered;
mod asking;
mod bench;
mod clients;
mod clock;
mod command_line;
mod connection;
mod delete;
mod doctor;
mod exit;
mod listed_lock;
mod ls;
mod messages;
#[cfg(feature = "postgres")]
mod migrate;
mod options;
mod output;
mod pages;
mod pattern;
mod probe;
mod repeated;
mod revoke;
mod run;
mod samples;
#[cfg(feature = "serve")]
mod serve;
mod span;
#[cfg(feature = "tui")]
mod top;
mod wait;
mod who;
mod wording;

use std::process::ExitCode;

use clap::FromArgMatches;
use clap::error::ErrorKind;

use self::command_line::{CommandLine, Subcommand};
use self::exit::{Code, Failure};
use self::messages::Messages;

fn main() -> ExitCode {
    // The started command is one of the words, so it must not be read as the options of `lockctl`.
    if let Some(shim) = run::shim::Shim::of_process() {
        return shim.become_command();
    }
    if let Some(text) = command_line::time_without_equals(std::env::args_os()) {
        Messages::error(text);
        Messages::flush();
        return Code::Usage.into();
    }
    let matches = match command_line::command().try_get_matches() {
        Ok(matches) => matches,
        Err(error) => return refused(&error),
    };
    let options = match CommandLine::from_arg_matches(&matches) {
        Ok(options) => options,
        Err(error) => return refused(&error),
    };
    let messages = Messages::new(&options.global);
    let source = matches.value_source("url");
    let code = match caught(|| execute(options, source, messages)) {
        Ok(code) => code,
        Err(failure) => {
            match failure.code {
                Code::ReaderGone => {}
                _ if failure.is_told_by_code => messages.refusal(&failure),
                _ => Messages::error(&failure),
            }
            failure.code.into()
        }
    };
    Messages::flush();
    code
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
    let (global, all) = (options.global, command_line::command());
    runtime.block_on(async {
        match options.command {
            Subcommand::Run(options) => return run::run(&global, options, messages).await,
            Subcommand::Ls(options) => ls::run(&global, options, messages).await?,
            Subcommand::Who(options) => who::run(&global, options, messages).await?,
            Subcommand::Wait(options) => wait::run(&global, options, messages).await?,
            Subcommand::Clients(options) => clients::run(&global, options, messages).await?,
            Subcommand::Delete(options) => delete::run(&global, options, messages).await?,
            #[cfg(feature = "serve")]
            Subcommand::Serve(options) => return serve::run(&global, options, messages).await,
            #[cfg(feature = "tui")]
            Subcommand::Top(options) => return top::run(&global, options).await,
            Subcommand::Bench(options) => bench::run(&global, options, messages).await?,
            Subcommand::Doctor(options) => {
                let code = doctor::run(&global, options, messages).await?;
                return Ok(code.map_or(ExitCode::SUCCESS, ExitCode::from));
            }
            #[cfg(feature = "postgres")]
            Subcommand::Migrate(options) => migrate::run(&global, options, messages).await?,
            Subcommand::Completions(options) => pages::completions(&options, all)?,
            Subcommand::Man(options) => pages::man(&options, all)?,
            Subcommand::Revoke(options) => revoke::run(&global, options, messages).await?,
        }
        Ok(ExitCode::SUCCESS)
    })
}

/// Makes a failure of a panic, whose usual exit code could be that of a command under a lock.
fn caught(run: impl FnOnce() -> Result<ExitCode, Failure>) -> Result<ExitCode, Failure> {
    // What has panicked is not used again.
    let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(run));
    outcome.unwrap_or_else(|_| Err(Failure::new(Code::Internal, "lockctl has panicked")))
}

/// Prints help, the version, or what is wrong with the command line.
fn refused(error: &clap::Error) -> ExitCode {
    // The options are not read when they are wrong. A command under a lock has no say: it does not run.
    if std::env::args_os().any(|word| word == "--no-color") {
        anstream::ColorChoice::Never.write_global();
    }
    // Nothing can be done about a closed output.
    let _ = error.print();
    if let Some(text) = command_line::missing_feature(error) {
        Messages::error(text);
        Messages::flush();
    }
    match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => ExitCode::SUCCESS,
        _ => Code::Usage.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_is_a_failure_of_lockctl() {
        let failure = caught(|| panic!("for the test")).expect_err("it panics");
        assert_eq!(failure.code, Code::Internal);
    }
}

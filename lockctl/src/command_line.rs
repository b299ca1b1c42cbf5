//! The command line: the list of the commands.

use std::ffi::OsString;

use clap::error::{ContextKind, ContextValue};
use clap::{Command, CommandFactory, Parser};

use crate::options::{GlobalOptions, only_with_feature};
use crate::{bench, clients, delete, doctor, exit, ls, pages, revoke, run, span, wait, who};

/// Runs commands under distributed locks, and shows who holds which lock.
#[derive(Debug, Parser)]
#[command(name = "lockctl", version, after_help = exit::list(), max_term_width = 100)]
pub(crate) struct CommandLine {
    #[command(flatten)]
    pub(crate) global: GlobalOptions,
    #[command(subcommand)]
    pub(crate) command: Subcommand,
}

/// The command line, whose errors show the usage of `--help`: clap would show options as required that are set in the
/// environment.
pub(crate) fn command() -> Command {
    CommandLine::command().mut_subcommands(|command| {
        let mut named = command.clone().bin_name(format!("lockctl {}", command.get_name()));
        let usage = named.render_usage().to_string();
        command.override_usage(usage.trim_start_matches("Usage: ").to_owned())
    })
}

/// The commands that only some builds have, and their features.
const OPTIONAL_COMMANDS: [(&str, &str); 3] =
    [("migrate", "postgres"), ("serve", "serve"), ("top", "tui")];

/// What is missing for a command that other builds have.
pub(crate) fn missing_feature(error: &clap::Error) -> Option<String> {
    let Some(ContextValue::String(name)) = error.get(ContextKind::InvalidSubcommand) else {
        return None;
    };
    let (name, feature) = OPTIONAL_COMMANDS.into_iter().find(|(command, _)| command == name)?;
    Some(only_with_feature(&format!("`{name}` is"), feature))
}

/// What is wrong with a `--watch` whose time is a word of its own: it would be read as a key.
pub(crate) fn time_without_equals(words: impl Iterator<Item = OsString>) -> Option<String> {
    let words = words.map(|word| word.to_string_lossy().into_owned());
    // The words after `run` may belong to its command, and those after `--` are keys.
    let words: Vec<String> = words.take_while(|word| word != "run" && word != "--").collect();
    let is_time = |pair: &&[String]| pair[0] == "--watch" && span::parse(&pair[1]).is_ok();
    let time = &words.windows(2).find(is_time)?[1];
    Some(format!(
        "the time of `--watch` follows an equals sign: use `--watch={time}` (for a key {time:?}, put `--` before it)"
    ))
}

/// The commands.
#[derive(Debug, clap::Subcommand)]
pub(crate) enum Subcommand {
    Run(run::options::RunOptions),
    Ls(ls::LsOptions),
    Who(who::WhoOptions),
    Wait(wait::WaitOptions),
    Clients(clients::ClientsOptions),
    Revoke(revoke::RevokeOptions),
    Delete(delete::DeleteOptions),
    #[cfg(feature = "serve")]
    Serve(crate::serve::ServeOptions),
    #[cfg(feature = "tui")]
    Top(crate::top::TopOptions),
    Doctor(doctor::DoctorOptions),
    Bench(bench::BenchOptions),
    #[cfg(feature = "postgres")]
    Migrate(crate::migrate::MigrateOptions),
    Completions(pages::CompletionsOptions),
    Man(pages::ManOptions),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        command().debug_assert();
    }

    #[test]
    fn a_command_of_other_builds_names_its_feature() {
        for (name, is_here) in [
            ("migrate", cfg!(feature = "postgres")),
            ("serve", cfg!(feature = "serve")),
            ("top", cfg!(feature = "tui")),
        ] {
            assert_eq!(command().find_subcommand(name).is_some(), is_here, "{name}");
        }
        // This build may have the commands, so the errors are those of another one.
        let other = || clap::Command::new("lockctl").subcommand(clap::Command::new("run"));
        let hint = |name| {
            let error = other().try_get_matches_from(["lockctl", name]).expect_err("no command");
            missing_feature(&error)
        };
        for (name, feature) in OPTIONAL_COMMANDS {
            let text = hint(name).expect("it is known");
            assert!(text.contains(&format!("--features {feature}")), "{text}");
        }
        assert_eq!(hint("bogus"), None);
    }

    #[test]
    fn a_time_after_watch_needs_an_equals_sign() {
        let refused = |line: &str| {
            time_without_equals(line.split(' ').map(OsString::from))
                .is_some_and(|text| text.contains("`--watch=1s`"))
        };
        for line in ["ls --watch 1s", "who --watch 1s k", "who k --watch 1s", "clients --watch 1s"]
        {
            assert!(refused(line), "{line}");
        }
        for line in ["ls --watch=1s 1s", "ls --watch order:*", "ls 1s --watch", "ls --watch -- 1s"]
        {
            assert!(!refused(line), "{line}");
        }
        assert!(!refused("run k lockctl ls --watch 1s"));
    }
}

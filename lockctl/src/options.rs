//! The command line: the options of all commands, and the list of the commands.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::error::{ContextKind, ContextValue};
use clap::parser::ValueSource;
use clap::{Args, Command, CommandFactory, Parser, ValueEnum};
use lock_runtime::WireFormat;

use crate::exit::{self, Code, Failure};
use crate::{bench, clients, delete, doctor, ls, pages, revoke, run, span, wait, who};

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

/// The options of all commands.
#[derive(Debug, Args)]
#[command(next_help_heading = "Options of all commands")]
pub(crate) struct GlobalOptions {
    /// The URL of the store, such as `redis://host:6379`; without a password, which others could see
    // The value may contain a password, which `--help` would show.
    #[arg(long, global = true, env = "LOCK_URL", hide_env_values = true, value_name = "URL")]
    pub(crate) url: Option<String>,
    /// A file with the URL, which may contain a password. Overrides `LOCK_URL`
    #[arg(long, global = true, value_name = "FILE")]
    pub(crate) url_file: Option<PathBuf>,
    /// The namespace of the keys
    #[arg(
        long,
        global = true,
        env = "LOCK_NAMESPACE",
        value_name = "NAME",
        default_value = "",
        hide_default_value = true
    )]
    pub(crate) namespace: String,
    /// The wire format of the locks
    #[arg(long, global = true, value_enum, default_value_t = Format::Token)]
    pub(crate) format: Format,
    /// No colours, whatever the output is
    #[arg(long, global = true)]
    pub(crate) no_color: bool,
    /// Print errors only
    #[arg(short, long, global = true, conflicts_with = "verbose")]
    pub(crate) quiet: bool,
    /// Tell what happens; twice for the log of the library
    #[arg(short, long, global = true, action = clap::ArgAction::Count)]
    pub(crate) verbose: u8,
}

/// A wire format on the command line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    /// This library, redis-py, node-redlock, redsync and others
    Token,
    /// Redisson
    Redisson,
    /// Clients that store a Unix time
    Timestamp,
}

impl From<Format> for WireFormat {
    fn from(format: Format) -> Self {
        match format {
            Format::Token => Self::Token,
            Format::Redisson => Self::Redisson,
            Format::Timestamp => Self::Timestamp,
        }
    }
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

/// Says which build has something; `what` ends with the verb.
pub(crate) fn only_with_feature(what: &str, feature: &str) -> String {
    format!(
        "{what} only in builds with the feature `{feature}`: cargo build --release -p lockctl --features {feature}"
    )
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

impl GlobalOptions {
    /// Refuses passwords on the command line. `source` is where the URL comes from.
    pub(crate) fn check(&self, source: Option<ValueSource>) -> Result<(), Failure> {
        let has_password = |url: &String| {
            let authority = url.split_once("://").map_or("", |(_, rest)| rest);
            let login = authority.split(['/', '?']).next().and_then(|part| part.rsplit_once('@'));
            let in_query = ["pass=", "sentinel_pass=", "password="].iter().any(|name| {
                url.split_once('?').is_some_and(|(_, query)| {
                    query.split('&').any(|option| option.starts_with(name))
                })
            });
            login.is_some_and(|(login, _)| login.contains(':')) || in_query
        };
        if source == Some(ValueSource::CommandLine) && self.url_file.is_some() {
            let text = "`--url` and `--url-file` exclude each other";
            return Err(Failure::new(Code::Usage, text));
        }
        if source == Some(ValueSource::CommandLine) && self.url.as_ref().is_some_and(has_password) {
            let text = "all users of this machine can see a password on the command line; use \
                        `--url-file`, or the variable `LOCK_URL`";
            return Err(Failure::new(Code::Usage, text));
        }
        Ok(())
    }
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

    #[test]
    fn passwords_on_the_command_line_are_refused() {
        let check = |url: &str, source| {
            let words = ["lockctl", "--url", url, "run", "k", "true"];
            CommandLine::try_parse_from(words).expect("valid").global.check(Some(source))
        };
        for url in [
            "redis://:secret@host",
            "redis://user:secret@host:6379/0",
            "redis+unix:///a?db=1&pass=secret",
            "rediss+sentinel://host/name?sentinel_pass=secret",
        ] {
            let refused = check(url, ValueSource::CommandLine).expect_err(url);
            assert_eq!(refused.code, Code::Usage);
            assert!(!refused.to_string().contains("secret"), "{refused}");
            assert!(check(url, ValueSource::EnvVariable).is_ok(), "{url}");
        }
        let words = ["lockctl", "--url", "memory:", "--url-file", "file", "run", "k", "true"];
        let both = CommandLine::try_parse_from(words).expect("valid").global;
        assert!(both.check(Some(ValueSource::CommandLine)).is_err());
        assert!(both.check(Some(ValueSource::EnvVariable)).is_ok());
        for url in ["redis://host:6379", "redis://user@host:6379", "memory:", "a:b@c"] {
            assert!(check(url, ValueSource::CommandLine).is_ok(), "{url}");
        }
    }
}

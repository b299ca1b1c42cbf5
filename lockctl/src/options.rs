//! The options of all commands.

use std::path::PathBuf;

use clap::parser::ValueSource;
use clap::{Args, ValueEnum};
use lock_runtime::WireFormat;

use crate::exit::{Code, Failure};

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

/// Says which build has something; `what` ends with the verb.
pub(crate) fn only_with_feature(what: &str, feature: &str) -> String {
    format!(
        "{what} only in builds with the feature `{feature}`: cargo build --release -p lockctl --features {feature}"
    )
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
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct OnlyOptions {
        #[command(flatten)]
        global: GlobalOptions,
    }

    #[test]
    fn passwords_on_the_command_line_are_refused() {
        let check = |url: &str, source| {
            let words = ["lockctl", "--url", url];
            OnlyOptions::try_parse_from(words).expect("valid").global.check(Some(source))
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
        let words = ["lockctl", "--url", "memory:", "--url-file", "file"];
        let both = OnlyOptions::try_parse_from(words).expect("valid").global;
        assert!(both.check(Some(ValueSource::CommandLine)).is_err());
        assert!(both.check(Some(ValueSource::EnvVariable)).is_ok());
        for url in ["redis://host:6379", "redis://user@host:6379", "memory:", "a:b@c"] {
            assert!(check(url, ValueSource::CommandLine).is_ok(), "{url}");
        }
    }
}

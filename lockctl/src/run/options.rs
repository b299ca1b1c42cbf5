//! The options of `run`.

use std::ffi::OsString;
use std::time::Duration;

use clap::{Args, ValueEnum};
use lock_runtime::Wait;

use crate::exit::{self, Code, Failure};
use crate::span;

/// The grace without the option, if the lease is long enough.
const GRACE: Duration = Duration::from_secs(5);

/// The shortest lease and `--max-hold` under which a command can be ended before the deadline on a busy machine.
const SHORTEST: Duration = Duration::from_secs(1);

/// The longest lease.
const LONGEST_LEASE: Duration = DAY;

/// The longest of the other times.
const LONGEST: Duration = DAY.saturating_mul(7);

const DAY: Duration = Duration::from_secs(24 * 60 * 60);

/// The shortest `--min-hold`, apart from none.
const SHORTEST_MIN_HOLD: Duration = Duration::from_millis(10);

/// Runs a command while a lock is held.
///
/// The command ends before its lease does: it gets SIGTERM when the lock cannot be renewed, `--grace` before the
/// deadline, and SIGKILL just before the deadline. Signals for lockctl are passed on to the command, and the lock
/// is released when the command has ended.
///
/// The command finds LOCK_KEY, LOCK_NAMESPACE, LOCK_CLIENT, LOCK_FENCING_TOKEN and LOCK_LEASE_MS in its
/// environment.
#[derive(Debug, Args)]
#[command(after_help = exit::list(), override_usage = "lockctl run [OPTIONS] KEY [--] COMMAND [ARGUMENT]...")]
pub(crate) struct RunOptions {
    /// Do not wait for a busy lock
    #[arg(short, long, conflicts_with = "wait")]
    nonblock: bool,
    /// Wait for a busy lock for at most this long, up to 7d [default: as long as it takes]
    #[arg(short, long, value_name = "TIME", value_parser = span::between(Duration::ZERO, LONGEST))]
    wait: Option<Duration>,
    /// The exit code if the lock is busy
    #[arg(short = 'E', long, value_name = "CODE", default_value_t = Code::Busy.number())]
    pub(super) conflict_exit_code: u8,
    /// The lease, which is renewed while the command runs; from 1s to 24h
    #[arg(
        long,
        value_name = "TIME",
        value_parser = span::between(SHORTEST, LONGEST_LEASE),
        default_value = "30s"
    )]
    pub(super) lease: Duration,
    /// End the command when it has had the lock for this long, from 1s to 7d; it gets SIGTERM earlier, by `--grace`
    #[arg(long, value_name = "TIME", value_parser = span::between(SHORTEST, LONGEST))]
    pub(super) max_hold: Option<Duration>,
    /// Keep the lock for at least this long, from 10ms to 7d and at most `--max-hold`, so that a job starts once
    /// although clocks differ
    #[arg(long, value_name = "TIME", value_parser = parse_min_hold)]
    pub(super) min_hold: Option<Duration>,
    /// The time between SIGTERM and the deadline, at most a third of the lease and of `--max-hold`
    /// [default: 5s, or less for short leases]
    #[arg(long, value_name = "TIME", value_parser = span::parse)]
    grace: Option<Duration>,
    /// Keep the command in the process group of lockctl, as if stdin were a terminal
    #[arg(long)]
    pub(super) foreground: bool,
    /// What happens to the command when the lock is lost
    #[arg(long, value_enum, value_name = "WHAT", default_value_t = LossPolicy::Kill)]
    pub(super) on_lost: LossPolicy,
    /// Let the command have the URL of the store, as LOCK_URL
    #[arg(long)]
    pub(super) pass_url: bool,
    // One list, so that all words after the key belong to the command.
    #[arg(
        required = true,
        num_args = 2..,
        trailing_var_arg = true,
        value_names = ["KEY", "COMMAND"],
        help = "The key of the lock, and the command with its arguments"
    )]
    words: Vec<OsString>,
}

/// What happens to the command when the lock is lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum LossPolicy {
    /// It is ended before the deadline
    Kill,
    /// It goes on without its lock, beside other holders
    Ignore,
}

/// A command line that is valid.
#[derive(Debug, Clone, Copy)]
pub(super) struct CheckedRun<'a> {
    pub(super) options: &'a RunOptions,
    pub(super) key: &'a str,
    /// The command and its arguments.
    pub(super) command: &'a [OsString],
    pub(super) grace: Duration,
}

impl RunOptions {
    pub(super) fn wait(&self) -> Wait {
        match self.wait {
            _ if self.nonblock => Wait::For(Duration::ZERO),
            Some(limit) => limit.into(),
            None => Wait::Forever,
        }
    }

    /// The time after which the key of a lock that is not renewed has expired.
    pub(super) fn longest_key(&self) -> Duration {
        self.lease.max(self.min_hold.unwrap_or_default())
    }

    /// What clap cannot check.
    pub(super) fn check(&self) -> Result<CheckedRun<'_>, Failure> {
        let usage = |text: &str| Failure::new(Code::Usage, text);
        let (key, command) = self.words.split_first().ok_or_else(|| usage("there is no key"))?;
        let key = key.to_str().ok_or_else(|| usage("the key is not UTF-8"))?;
        let command = match command {
            [first, rest @ ..] if first == "--" => rest,
            all => all,
        };
        if command.is_empty() {
            return Err(usage("there is no command after the key"));
        }
        if self.min_hold > self.max_hold && self.max_hold.is_some() {
            return Err(usage("`--min-hold` is longer than `--max-hold`"));
        }
        Ok(CheckedRun { options: self, key, command, grace: self.grace()? })
    }

    fn grace(&self) -> Result<Duration, Failure> {
        let shortest = self.lease.min(self.max_hold.unwrap_or(self.lease));
        let longest = shortest / 3;
        match self.grace {
            Some(grace) if grace > longest => {
                let (grace, longest) = (span::show(grace), span::show(longest));
                let text = format!(
                    "a grace of {grace} is too long: it may be at most {longest}, a third of the lease and of \
                     `--max-hold`"
                );
                Err(Failure::new(Code::Usage, text))
            }
            Some(grace) => Ok(grace),
            None => Ok(longest.min(GRACE)),
        }
    }
}

fn parse_min_hold(text: &str) -> Result<Duration, String> {
    match span::parse(text)? {
        none if none.is_zero() => Ok(none),
        _ => span::between(SHORTEST_MIN_HOLD, LONGEST)(text),
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::command_line::{CommandLine, Subcommand};

    fn parse(words: &[&str]) -> Result<RunOptions, clap::Error> {
        let options = CommandLine::try_parse_from([&["lockctl", "run"], words].concat())?;
        match options.command {
            Subcommand::Run(options) => Ok(options),
            other => panic!("{other:?}"),
        }
    }

    fn command(words: &[&str]) -> (String, Vec<OsString>) {
        let options = parse(words).expect("valid");
        let checked = options.check().expect("a command");
        (checked.key.to_owned(), checked.command.to_vec())
    }

    #[test]
    fn the_options_end_at_the_key() {
        let expected = ("k".to_owned(), ["ls", "-n", "--", "--lease"].map(OsString::from).to_vec());
        for words in [
            &["-n", "k", "ls", "-n", "--", "--lease"][..],
            &["k", "--", "ls", "-n", "--", "--lease"],
            &["--lease", "9s", "--", "k", "ls", "-n", "--", "--lease"],
            &["-n", "--", "k", "--", "ls", "-n", "--", "--lease"],
        ] {
            assert_eq!(command(words), expected, "{words:?}");
        }
        assert!(!parse(&["k", "ls", "-n"]).expect("valid").nonblock);
    }

    #[test]
    fn other_command_lines_are_errors() {
        for words in [
            &["k"][..],
            &["--bogus", "k", "true"],
            &["-n", "-w", "1s", "k", "true"],
            &["-w", "1", "k", "true"],
            &["-E", "256", "k", "true"],
            &["--on-lost", "shrug", "k", "true"],
        ] {
            assert!(parse(words).is_err(), "{words:?}");
        }
        assert!(parse(&["k", "--"]).expect("valid").check().is_err());
    }

    #[test]
    fn the_grace_is_at_most_a_third_of_the_lease() {
        let grace = |words: &[&str]| {
            let options = parse(&[words, &["k", "true"]].concat()).expect("valid");
            options.check().map(|checked| checked.grace)
        };
        assert_eq!(grace(&[]).expect("valid"), GRACE);
        assert_eq!(grace(&["--lease", "3s"]).expect("valid"), Duration::from_secs(1));
        assert_eq!(grace(&["--max-hold", "6s"]).expect("valid"), Duration::from_secs(2));
        assert_eq!(grace(&["--grace", "10s"]).expect("valid"), GRACE * 2);
        assert_eq!(grace(&["--grace", "11s"]).expect_err("too long").code, Code::Usage);
        assert!(grace(&["--max-hold", "6s", "--grace", "3s"]).is_err());
    }

    #[test]
    fn times_outside_of_their_ranges_are_refused() {
        for (words, is_valid) in [
            (["--lease", "999ms"], false),
            (["--lease", "24h"], true),
            (["--lease", "25h"], false),
            (["--max-hold", "100ms"], false),
            (["--max-hold", "7d"], true),
            (["--max-hold", "8d"], false),
            (["--min-hold", "0s"], true),
            (["--min-hold", "9ms"], false),
            (["--min-hold", "8d"], false),
            (["--wait", "0s"], true),
            (["--wait", "8d"], false),
        ] {
            let parsed = parse(&[&words[..], &["k", "true"]].concat());
            assert_eq!(parsed.is_ok(), is_valid, "{words:?}: {parsed:?}");
        }
        let both = ["--min-hold", "3s", "--max-hold", "2s", "k", "true"];
        let refused = parse(&both).expect("valid").check().expect_err("too long");
        assert_eq!(refused.code, Code::Usage);
    }

    #[test]
    fn keys_that_are_no_text_are_refused() {
        use std::os::unix::ffi::OsStringExt;

        let mut options = parse(&["k", "true"]).expect("valid");
        options.words[1] = OsString::from_vec(vec![0xff]);
        assert_eq!(options.check().expect("arguments are bytes").command[0].len(), 1);
        options.words[0] = OsString::from_vec(vec![0xff]);
        assert_eq!(options.check().expect_err("no text").code, Code::Usage);
    }
}

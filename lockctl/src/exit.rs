//! The exit codes, and the failures that lead to them.

use std::fmt;
use std::process::ExitCode;

use lock_runtime::LockError;

use crate::wording;

/// An exit code of `lockctl` itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Code {
    /// The reader of the output has seen enough, which is no failure.
    ReaderGone = 0,
    /// `doctor` has found a problem, or nobody has the lock that `who` was asked for.
    Unhealthy = 1,
    /// `EX_USAGE`.
    Usage = 64,
    /// `EX_DATAERR`.
    WrongFormat = 65,
    /// `EX_UNAVAILABLE`.
    Unavailable = 69,
    /// `EX_SOFTWARE`.
    Internal = 70,
    /// `EX_TEMPFAIL`.
    Busy = 75,
    /// `EX_NOPERM`.
    Denied = 77,
    /// `EX_CONFIG`.
    Config = 78,
    /// The first one after those of `sysexits.h`.
    Lost = 79,
    /// That of shells and of `timeout`.
    CannotRun = 126,
    /// That of shells and of `timeout`.
    NotFound = 127,
}

impl Code {
    /// All codes of failures, in their order.
    pub(crate) const ALL: [Self; 11] = [
        Self::Unhealthy,
        Self::Usage,
        Self::WrongFormat,
        Self::Unavailable,
        Self::Internal,
        Self::Busy,
        Self::Denied,
        Self::Config,
        Self::Lost,
        Self::CannotRun,
        Self::NotFound,
    ];

    /// The meaning, for `--help`, the man pages and the documentation.
    pub(crate) const fn meaning(self) -> &'static str {
        match self {
            Self::ReaderGone => "the reader of the output has gone",
            Self::Unhealthy => {
                "`doctor` has found a problem; nobody has the lock, for `who --exit-code`"
            }
            Self::Usage => "the command line or the key is invalid",
            Self::WrongFormat => "the key holds something other than a lock of this format",
            Self::Unavailable => {
                "the store cannot be reached, or does not grant locks; the address for `serve` is in use"
            }
            Self::Internal => "lockctl itself has failed",
            Self::Busy => "the lock is busy; `-E` changes this code",
            Self::Denied => "the store rejects the credentials, or the user lacks a permission",
            Self::Config => "the URL or a setting is invalid, or the server cannot be used",
            Self::Lost => "the lock was lost or about to be lost, so the command was ended",
            Self::CannotRun => "the command cannot be run",
            Self::NotFound => "the command was not found",
        }
    }

    pub(crate) const fn number(self) -> u8 {
        self as u8
    }

    /// The code of an error of the library.
    pub(crate) fn of(error: &LockError) -> Self {
        match error {
            LockError::Busy { .. } => Self::Busy,
            LockError::Unavailable { .. } => Self::Unavailable,
            LockError::Lost { .. } => Self::Lost,
            LockError::InvalidKey { .. } => Self::Usage,
            LockError::WrongFormat { .. } => Self::WrongFormat,
            LockError::Denied { .. } => Self::Denied,
            LockError::Config { .. } => Self::Config,
            _ => Self::Internal,
        }
    }
}

impl From<Code> for ExitCode {
    fn from(code: Code) -> Self {
        code.number().into()
    }
}

/// The exit code of a program that this signal has ended, as shells report it.
pub(crate) fn after_signal(number: i32) -> u8 {
    u8::try_from(128 + number).unwrap_or(u8::MAX)
}

/// The list of all codes, for the help of a command.
pub(crate) fn list() -> String {
    let own = "that of the command; 128 + N if signal N has ended it (`run`)";
    let codes = Code::ALL.map(|code| (code.number().to_string(), code.meaning()));
    let all = [("0-255".to_owned(), own)].into_iter().chain(codes);
    let line = |(number, meaning): (String, &str)| format!("\n  {number:<5}  {meaning}");
    format!("Exit codes:{}", all.map(line).collect::<String>().replace('`', ""))
}

/// Why a command of `lockctl` has failed.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) code: Code,
    text: String,
    /// Whether the message says no more than the code, so that it is left out with `--quiet`.
    pub(crate) is_told_by_code: bool,
}

impl Failure {
    pub(crate) fn new(code: Code, text: impl Into<String>) -> Self {
        Self { code, text: text.into(), is_told_by_code: false }
    }

    /// A lock whose holder keeps it.
    pub(crate) fn busy(text: impl Into<String>) -> Self {
        Self { is_told_by_code: true, ..Self::new(Code::Busy, text) }
    }

    /// A system call of `lockctl` itself that has failed while it tried to do this.
    pub(crate) fn internal(doing: &str, error: impl fmt::Display) -> Self {
        Self::new(Code::Internal, format!("cannot {doing}: {error}"))
    }
}

impl From<LockError> for Failure {
    fn from(error: LockError) -> Self {
        Self::new(Code::of(&error), wording::of_error(&error))
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl std::error::Error for Failure {}

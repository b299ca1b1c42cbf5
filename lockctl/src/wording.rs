//! The library's errors in the words of the command line.

use std::time::Duration;

use lock_runtime::{ClientInfo, HolderKind, LockError};

use crate::span;

/// What has failed, and which command or option of `lockctl` helps.
pub(crate) fn of_error(error: &LockError) -> String {
    match error {
        LockError::Busy { key, waited, holder, .. } if holder.kind == HolderKind::NoExpiry => {
            let client =
                holder.client.as_deref().map_or("another client".to_owned(), ClientInfo::to_string);
            format!(
                "lock {key:?} is busy: waited {}; held by {client}; the key has no expiry and stays until its owner \
                 deletes it; if the owner no longer runs, use `lockctl delete` with the token that `lockctl who` shows",
                span::show(*waited)
            )
        }
        LockError::WrongFormat { key, expected, found, .. } => format!(
            "the key {key:?} holds a {found}{} instead of a {expected}{}, and was not changed; use the `--format` of \
             the other clients, another key, or a separate namespace; delete the key only if no client uses it",
            format_of(found),
            format_of(expected)
        ),
        LockError::Denied { cause, .. } if cause.starts_with("NOAUTH") => format!(
            "the server requires a password, and the URL has none for it: write it into the variable `LOCK_URL` or the file of \
             `--url-file`, such as `redis://:password@host:6379` ({cause})"
        ),
        LockError::Denied { cause, .. } => format!(
            "the store denied access: {cause}; check the user, its password or client certificate, and its \
             permissions, which differ for each `--format`"
        ),
        error => error.to_string(),
    }
}

/// The option for locks that are values of this kind.
fn format_of(value: &str) -> &'static str {
    let formats = [
        ("string", " (as in `--format token`)"),
        ("hash", " (as in `--format redisson`)"),
        ("Unix time in ms", " (13 digits, as in `--format timestamp`)"),
    ];
    let format = formats.into_iter().find(|(kind, _)| value.starts_with(kind));
    format.map_or("", |(_, format)| format)
}

/// Why a release has failed, after which this process ends: nobody goes on with it, so the key stays in the store until
/// it expires.
pub(crate) fn of_release(error: &LockError, at_most: Duration) -> String {
    let LockError::Unavailable { key: Some(key), cause, .. } = error else {
        return of_error(error);
    };
    // The client of the library goes on with the release, but ends with this process.
    let cause = cause.split_once("; the release").map_or(cause.as_str(), |(cause, _)| cause);
    format!(
        "the release of the lock {key:?} was not confirmed: {cause}; the lock stays taken until its lease ends, at \
         most {}",
        span::show(at_most)
    )
}

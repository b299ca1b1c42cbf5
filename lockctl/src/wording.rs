//! The library's errors in the words of the command line.

use std::time::Duration;

use lock_runtime::LockError;

use crate::span;

/// Why a release has failed, after which this process ends: nobody goes on with it, so the key stays in the store until
/// it expires.
pub(crate) fn of_release(error: &LockError, at_most: Duration) -> String {
    let LockError::Unavailable { key: Some(key), cause, .. } = error else {
        return error.to_string();
    };
    // The client of the library goes on with the release, but ends with this process.
    let cause = cause.split_once("; the release").map_or(cause.as_str(), |(cause, _)| cause);
    format!(
        "the release of the lock {key:?} was not confirmed: {cause}; the lock stays taken until its lease ends, at \
         most {}",
        span::show(at_most)
    )
}

//! What an annotated function expands into: one static [`LockSite`] and one call of [`run`].
//!
//! Not part of the public API, although the expansion names it.

use std::pin::Pin;
use std::time::Duration;

pub use crate::key::KeyWriter;

use crate::client::LockClient;
use crate::error::LockError;
use crate::eventually::Eventually;
use crate::global;
use crate::guard::LockGuard;
use crate::lock;
use crate::scope;
use crate::wait::Wait;

/// What is known of an annotated function when it is compiled.
#[derive(Debug)]
pub struct LockSite {
    /// The function's path.
    pub path: &'static str,
    /// The key's template, or the expression that makes the key.
    pub template: &'static str,
    /// `wait`, if it is a literal.
    pub wait: Option<Wait>,
    /// `lease`, if it is a literal.
    pub lease: Option<Duration>,
}

/// What is known of one call.
#[derive(Debug)]
pub struct Call {
    /// The key, or what is wrong with it.
    pub key: Result<String, LockError>,
    /// `client`.
    pub client: Option<LockClient>,
    /// `wait`, if it is an expression.
    pub wait: Option<Duration>,
    /// `lease`, if it is an expression.
    pub lease: Option<Duration>,
}

/// Runs the body of an annotated function, which stands in its caller's frame, under its lock.
///
/// # Errors
///
/// See [`Lock::run`](crate::Lock::run), and [`LockError::NotConfigured`].
pub fn run<F: Future>(
    site: &'static LockSite,
    call: Call,
    body: Pin<&mut Option<F>>,
) -> impl Future<Output = Result<F::Output, LockError>> {
    scope::run(hold(site, call), body)
}

fn hold(site: &'static LockSite, call: Call) -> Eventually<'static, Result<LockGuard, LockError>> {
    let Call { key, client, wait, lease } = call;
    let client = client.map_or_else(global::global, Ok);
    match (key, client) {
        (Err(error), _) | (_, Err(error)) => Eventually::ready(Err(error)),
        (Ok(key), Ok(client)) => {
            let (wait, lease) = (wait.map(Wait::For).or(site.wait), lease.or(site.lease));
            lock::hold(client.engine(), &key, wait, lease)
        }
    }
}

/// A function's return type that has room for a lock error.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot carry a `LockError`",
    label = "a function with `#[distributed_lock]` returns a `Result` whose error can be made \
             from a `LockError`",
    note = "return `Result<_, E>` and write `impl From<LockError> for E`"
)]
pub trait FromLockError {
    /// The value that the function returns when its lock was not taken or not kept.
    fn from_lock_error(error: LockError) -> Self;
}

impl<T, E: From<LockError>> FromLockError for Result<T, E> {
    fn from_lock_error(error: LockError) -> Self {
        Err(E::from(error))
    }
}

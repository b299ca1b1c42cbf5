//! What an annotated function expands into: one static [`LockSite`] and one call of [`run`].
//!
//! Not part of the public API, although the expansion names it.

use std::borrow::Borrow;
use std::pin::Pin;
use std::time::Duration;

pub use crate::key::{KeyPart, KeyWriter};
pub use crate::scope::{GuardSlot, OnLost};

use crate::client::LockClient;
use crate::error::LockError;
use crate::eventually::Eventually;
use crate::format::WireFormat;
use crate::global;
use crate::guard::Acquiring;
use crate::lock::{self, Options};
use crate::scope;
use crate::wait::Wait;

/// What is known of an annotated function when it is compiled. Options that are expressions come
/// with each [`Call`].
#[derive(Debug)]
pub struct LockSite {
    /// The function's path.
    pub path: &'static str,
    /// The key's template, or the expression that makes the key.
    pub template: &'static str,
    /// `wait`
    pub wait: Option<Wait>,
    /// `lease`
    pub lease: Option<Duration>,
    /// `max_hold`
    pub max_hold: Option<Duration>,
    /// `min_hold`
    pub min_hold: Option<Duration>,
    /// `format`
    pub format: Option<WireFormat>,
    /// `on_lost`
    pub on_lost: OnLost,
}

/// What is known of one call.
#[derive(Debug)]
pub struct Call {
    /// The key, or what is wrong with it.
    pub key: Result<String, LockError>,
    /// `client`
    pub client: Option<LockClient>,
    /// `wait`, if it is an expression.
    pub wait: Option<Wait>,
    /// `lease`, if it is an expression.
    pub lease: Option<Duration>,
    /// `max_hold`, if it is an expression.
    pub max_hold: Option<Duration>,
    /// `min_hold`, if it is an expression.
    pub min_hold: Option<Duration>,
    /// `format`, if it is an expression.
    pub format: Option<WireFormat>,
}

/// Runs the body of an annotated function, which stands in its caller's frame, under its lock.
///
/// # Errors
///
/// See [`Lock::run`](crate::Lock::run), and [`LockError::NotConfigured`].
pub fn run<F: Future>(
    site: &'static LockSite,
    call: Call,
    place: Option<&GuardSlot>,
    body: Pin<&mut Option<F>>,
) -> impl Future<Output = Result<F::Output, LockError>> {
    scope::run(hold(site, call), site.on_lost, place, body)
}

/// The same for a function with `when`: without a call it runs without a lock.
///
/// # Errors
///
/// As for [`run`].
pub async fn run_when<F: Future>(
    site: &'static LockSite,
    call: Option<Call>,
    place: Option<&GuardSlot>,
    body: Pin<&mut Option<F>>,
) -> Result<F::Output, LockError> {
    match call {
        Some(call) => run(site, call, place, body).await,
        None => scope::run_unlocked(body).await,
    }
}

fn hold(site: &'static LockSite, call: Call) -> Acquiring {
    let Call { key, client, wait, lease, max_hold, min_hold, format } = call;
    let client = client.map_or_else(global::global, Ok);
    match (key, client) {
        (Err(error), _) | (_, Err(error)) => Eventually::ready(Err(Box::new(error))),
        (Ok(key), Ok(client)) => {
            let options = Options {
                format: format.or(site.format),
                wait: wait.or(site.wait),
                lease: lease.or(site.lease),
                max_hold: max_hold.or(site.max_hold),
                min_hold: min_hold.or(site.min_hold),
            };
            lock::hold(client.engine(), &key, None, &options)
        }
    }
}

/// The client that `client` names.
pub fn client<C: NamesClient + ?Sized>(client: &C) -> LockClient {
    client.client().clone()
}

/// What may stand behind `client =`.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is no lock client",
    label = "`client` is a `LockClient`, a reference to one, or an `Arc` or `Box` of one"
)]
pub trait NamesClient {
    /// The client.
    fn client(&self) -> &LockClient;
}

// Otherwise the compiler speaks of `Borrow`, and not of what to write.
#[diagnostic::do_not_recommend]
impl<C: Borrow<LockClient> + ?Sized> NamesClient for C {
    fn client(&self) -> &LockClient {
        self.borrow()
    }
}

/// Calls `or_else`. Here so that a closure's argument needs no type.
pub fn or_else<R>(handle: impl FnOnce(LockError) -> R, error: LockError) -> R {
    handle(error)
}

/// An error of a function that returns nothing and skips when it is busy: it has nowhere to go.
pub fn swallow(site: &'static LockSite, error: &LockError) {
    if matches!(error, LockError::Busy { .. }) {
        tracing::debug!(function = site.path, %error, "skipped");
    } else {
        tracing::error!(function = site.path, %error, "not run to its end, and nobody is told");
    }
}

/// A function's return type that has room for a lock error.
#[diagnostic::on_unimplemented(
    message = "`{Self}` has no room for a `LockError`",
    label = "this is what the function returns when its lock is not to be had",
    note = "return a `Result<_, E>` with `impl From<LockError> for E`",
    note = "or say what to return instead: `#[distributed_lock(…, or_else = |error| …)]`"
)]
pub trait FromLockError {
    /// The value that the function returns when its lock was not taken or not kept.
    fn from_lock_error(error: LockError) -> Self;
}

impl<T, E: CarriesLockError> FromLockError for Result<T, E> {
    fn from_lock_error(error: LockError) -> Self {
        Err(E::carry(error))
    }
}

/// An error type that has room for a lock error.
#[diagnostic::on_unimplemented(
    message = "the error type `{Self}` has no room for a `LockError`",
    label = "this is what the function returns when its lock is not to be had",
    note = "write `impl From<LockError> for {Self}`; with `thiserror` that is a variant \
            `Lock(#[from] LockError)`",
    note = "or say what to return instead: `#[distributed_lock(…, or_else = |error| …)]`"
)]
pub trait CarriesLockError {
    /// The error that carries it.
    fn carry(error: LockError) -> Self;
}

// Otherwise the compiler speaks of `From`, and not of what to do.
#[diagnostic::do_not_recommend]
impl<E: From<LockError>> CarriesLockError for E {
    fn carry(error: LockError) -> Self {
        Self::from(error)
    }
}

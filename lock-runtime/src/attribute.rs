//! The code that annotated functions expand into: one static [`LockSite`], and one call of [`run`].
//!
//! This module is public for the expansions only, and not part of the API.

use std::borrow::Borrow;
use std::pin::Pin;

pub use crate::body::{GuardSlot, OnLost};
pub use crate::key::{KeyPart, KeyWriter};
pub use crate::options::LockOptions;

use crate::acquiring::Acquiring;
use crate::body::{self, BodyEnd};
use crate::client::LockClient;
use crate::connected::Connected;
use crate::error::LockError;
use crate::global;
use crate::guard::LockGuard;
use crate::key::LockKey;
use crate::lock;
use crate::lock_set::{self, LockSetGuard};
use crate::periodic::{self, PeriodicRun};
use crate::release_mode::ReleaseMode;
pub use crate::telemetry::site::SiteCache;
use crate::telemetry::{ObservedCall, SiteLabel, SiteMetrics};

/// The compile-time constants of an annotated function. Each [`Call`] has the options that are
/// expressions.
#[derive(Debug)]
pub struct LockSite {
    /// The function's path.
    pub path: &'static str,
    /// The key's template, or the expression that makes the key.
    pub template: &'static str,
    /// The options that are constants.
    pub options: LockOptions,
    /// The option `on_lost`.
    pub on_lost: OnLost,
    /// The measurements of the function.
    pub metrics: SiteCache,
}

impl LockSite {
    /// Where the calls of the function through this client are measured.
    fn metrics(&self, client: &Connected) -> &'static SiteMetrics {
        let label = SiteLabel { template: self.template, function: Some(self.path) };
        client.engine.metrics().of_function(&self.metrics, label)
    }
}

/// One call of an annotated function.
#[derive(Debug)]
pub struct Call<K = LockKey> {
    /// The key or the keys, or an error.
    pub key: K,
    /// The option `client`.
    pub client: Option<LockClient>,
    /// All options: those of the site, and those that are expressions.
    pub options: LockOptions,
}

/// Runs the body of an annotated function under its lock. The body is stored in the function's own
/// future.
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
    let (hold, release) = hold(site, call);
    body::run(hold, BodyEnd { on_lost: site.on_lost, release }, place, body)
}

/// Runs the body of an annotated function with the option `when`. Without a `call`, the body runs
/// without a lock.
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
        None => body::run_unlocked(body).await,
    }
}

/// Runs the body of an annotated function under the locks of several keys.
///
/// # Errors
///
/// See [`LockSet::run`](crate::LockSet::run), and [`LockError::NotConfigured`].
pub fn run_all<F: Future>(
    site: &'static LockSite,
    call: Call<SetKeys>,
    place: Option<&GuardSlot<LockSetGuard>>,
    body: Pin<&mut Option<F>>,
) -> impl Future<Output = Result<F::Output, LockError>> {
    let (hold, release) = hold_all(site, call);
    body::run(hold, BodyEnd { on_lost: site.on_lost, release }, place, body)
}

/// The same with the option `when`; see [`run_when`].
///
/// # Errors
///
/// As for [`run_all`].
pub async fn run_all_when<F: Future>(
    site: &'static LockSite,
    call: Option<Call<SetKeys>>,
    place: Option<&GuardSlot<LockSetGuard>>,
    body: Pin<&mut Option<F>>,
) -> Result<F::Output, LockError> {
    match call {
        Some(call) => run_all(site, call, place, body).await,
        None => body::run_unlocked(body).await,
    }
}

/// Runs the body of an annotated function with the option `every`. Without a call, the body runs without
/// a lock.
///
/// # Errors
///
/// See [`Periodic::run`](crate::Periodic::run), and [`LockError::NotConfigured`].
pub async fn run_every<F: Future>(
    PeriodicCall { site, call, retry_failed }: PeriodicCall,
    place: Option<&GuardSlot>,
    body: Pin<&mut Option<F>>,
    has_failed: impl Fn(&F::Output) -> bool,
) -> Result<F::Output, LockError> {
    let Some(Call { key, client, options }) = call else {
        return body::run_unlocked(body).await;
    };
    let client = client.map_or_else(global::global, Ok)?;
    let client = client.connected();
    let metrics = site.metrics(client);
    let key =
        key.into_string().inspect_err(|error| ObservedCall::failed_at_once(metrics, error))?;
    let release = options.release(&client.defaults);
    let end = BodyEnd { on_lost: site.on_lost, release };
    let run = PeriodicRun { key: &key, options: &options, retry_failed, end, site: metrics };
    periodic::run_once(client, run, place, body, has_failed).await
}

/// One call of a function with the option `every`.
#[derive(Debug)]
pub struct PeriodicCall {
    /// The constants of the function.
    pub site: &'static LockSite,
    /// The call; `None` if the option `when` is false.
    pub call: Option<Call>,
    /// Whether a failed run is repeated in the same period.
    pub retry_failed: bool,
}

/// Tells whether the output of a body is an error. For a `Result`,
/// [`RunProbe::lock_runtime_has_failed`] is the method of the type itself, and for all other types that
/// of [`Succeeds`].
#[derive(Debug)]
pub struct RunProbe<'a, T: ?Sized>(pub &'a T);

impl<T, E> RunProbe<'_, Result<T, E>> {
    /// Whether the run has failed.
    #[must_use]
    pub fn lock_runtime_has_failed(&self) -> bool {
        self.0.is_err()
    }
}

/// See [`RunProbe`].
pub trait Succeeds {
    /// Whether the run has failed.
    fn lock_runtime_has_failed(&self) -> bool {
        false
    }
}

impl<T: ?Sized> Succeeds for RunProbe<'_, T> {}

fn hold_all(site: &LockSite, call: Call<SetKeys>) -> (Acquiring<LockSetGuard>, ReleaseMode) {
    let Call { key: SetKeys(keys), client, options } = call;
    let client = match client.map_or_else(global::global, Ok) {
        Ok(client) => client,
        Err(error) => return (Acquiring::known(Err(Box::new(error))), ReleaseMode::default()),
    };
    let client = client.connected();
    let metrics = site.metrics(client);
    let hold = match keys {
        Ok(keys) => lock_set::hold_all(client, &keys, (&options, metrics)),
        Err(error) => Acquiring::failed(metrics, error),
    };
    (hold, options.release(&client.defaults))
}

/// The keys of a call, or the error of one of them.
#[derive(Debug)]
pub struct SetKeys(Result<Vec<String>, LockError>);

impl SetKeys {
    /// Collects the keys of the option `keys`.
    pub fn new<K: Into<LockKey>>(keys: impl IntoIterator<Item = K>) -> Self {
        Self(keys.into_iter().map(|key| key.into().into_string()).collect())
    }
}

fn hold(site: &LockSite, call: Call) -> (Acquiring<LockGuard>, ReleaseMode) {
    let Call { key, client, options } = call;
    let client = match client.map_or_else(global::global, Ok) {
        Ok(client) => client,
        Err(error) => return (Acquiring::known(Err(Box::new(error))), ReleaseMode::default()),
    };
    let client = client.connected();
    let metrics = site.metrics(client);
    let hold = match key.into_string() {
        Ok(key) => lock::hold(client, &key, None, (&options, metrics)),
        Err(error) => Acquiring::failed(metrics, error),
    };
    (hold, options.release(&client.defaults))
}

/// Returns the client that the option `client` names.
pub fn client<C: NamesClient + ?Sized>(client: &C) -> LockClient {
    client.client().clone()
}

/// A value of the option `client`.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a lock client",
    label = "expected a `LockClient`, a reference to one, or an `Arc` or `Box` of one"
)]
pub trait NamesClient {
    /// The client.
    fn client(&self) -> &LockClient;
}

// Without this, the compiler's error names `Borrow`, instead of the label above.
#[diagnostic::do_not_recommend]
impl<C: Borrow<LockClient> + ?Sized> NamesClient for C {
    fn client(&self) -> &LockClient {
        self.borrow()
    }
}

/// Calls the handler of the option `or_else`. Because this is a function, the argument of a closure
/// needs no type.
pub fn or_else<R>(handle: impl FnOnce(LockError) -> R, error: LockError) -> R {
    handle(error)
}

/// Logs a lock error of a function whose return type cannot contain the error.
pub fn swallow(site: &'static LockSite, error: &LockError) {
    if matches!(error, LockError::Busy { .. }) {
        tracing::debug!(function = site.path, %error, "skipped the body because the lock is busy");
    } else {
        tracing::error!(
            function = site.path,
            %error,
            "the body did not run to completion, and the function cannot return the error"
        );
    }
}

/// A return type that can contain a lock error.
#[diagnostic::on_unimplemented(
    message = "the return type `{Self}` cannot contain a `LockError`",
    label = "the function returns this type if its lock is not acquired or is lost",
    note = "return a `Result<_, E>` where `E` implements `From<LockError>`",
    note = "or convert the error: `#[distributed_lock(…, or_else = |error| …)]`"
)]
pub trait FromLockError {
    /// Converts the error of a lock that was not acquired or was lost into the return value.
    fn from_lock_error(error: LockError) -> Self;
}

impl<T, E: CarriesLockError> FromLockError for Result<T, E> {
    fn from_lock_error(error: LockError) -> Self {
        Err(E::carry(error))
    }
}

/// An error type that can contain a lock error.
#[diagnostic::on_unimplemented(
    message = "the error type `{Self}` cannot contain a `LockError`",
    label = "the function returns this type if its lock is not acquired or is lost",
    note = "implement `From<LockError>` for `{Self}`; with `thiserror`, add a variant \
            `Lock(#[from] LockError)`",
    note = "or convert the error: `#[distributed_lock(…, or_else = |error| …)]`"
)]
pub trait CarriesLockError {
    /// Converts a lock error.
    fn carry(error: LockError) -> Self;
}

// Without this, the compiler's error names `From`, instead of the notes above.
#[diagnostic::do_not_recommend]
impl<E: From<LockError>> CarriesLockError for E {
    fn carry(error: LockError) -> Self {
        Self::from(error)
    }
}

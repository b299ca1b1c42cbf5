//! A set of locks, which one call takes together.

mod acquire;
mod guard;
mod handover;

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Handle;

use self::acquire::{Collected, SetCall};
pub use self::guard::LockSetGuard;
use self::handover::take_in_task;
use crate::acquiring::{Acquiring, Unmeasured};
use crate::body::{self, BodyEnd, OnLost};
use crate::connected::Connected;
use crate::engine::acquire::SetRequest;
use crate::error::LockError;
#[cfg(feature = "testing")]
use crate::fated_call;
use crate::guard::LockGuard;
use crate::key::{self, LockKey};
use crate::lock::share;
use crate::maybe_ready::MaybeReady;
use crate::options::LockOptions;
use crate::reentrancy;
use crate::release_mode::ReleaseMode;
use crate::replicas::Replicas;
use crate::runtime;
use crate::store::contract::Mode;
use crate::telemetry::{SiteMetrics, spans_are_enabled};
use crate::timeout::{Timeout, Wait};
use crate::wire_format::WireFormat;

/// Several keys, and the options for locking them together. Created by
/// [`LockClient::lock_all`](crate::LockClient::lock_all).
///
/// A call gets the locks of all keys or of none. Calls for overlapping sets, or for single keys of them,
/// cannot deadlock, in whatever order they name the keys. A key that is named twice counts once. Each
/// key is locked as by [`Lock`](crate::Lock), so a set excludes single locks of its keys, in this and in
/// other processes.
///
/// If one of the locks is lost, the body of [`run`](Self::run) is dropped, and the other locks are
/// freed. The options apply to each of the locks. [`wait`](Self::wait) limits the time to acquire all of them, and
/// a fixed [`lease`](Self::lease), a [`max_hold`](Self::max_hold) and a [`min_hold`](Self::min_hold) begin
/// when the last one is acquired.
///
/// Keys that an enclosing body holds are shared, as with a single lock. A nested call for more keys may
/// wait for a key that another body holds while that body waits for a key of this one. Both then wait
/// until one of them times out. Name all keys in the outer call instead.
///
/// # How the locks are acquired
///
/// The first attempt takes all locks with one request. (In a cluster, there is one request for each
/// hash slot, one after the other. Hash tags such as `{user:7}` keep keys in one slot.) If a key is
/// busy, the call waits for this key while it holds no lock, and then takes the others with one more
/// request. After three such attempts, or a quarter of the wait, the call acquires the keys one after
/// the other, in sorted order, and holds those that it has while it waits for the next one. So calls
/// for single keys cannot starve a call for many. (The first attempts follow the *smart* algorithm of
/// Howard Hinnant's *Dining Philosophers Rebooted*, and the last step is Dijkstra's ordering of
/// resources.)
///
/// In the wire formats [`Redisson`](WireFormat::Redisson) and [`Timestamp`](WireFormat::Timestamp), and
/// with [`acknowledged_by`](Self::acknowledged_by), there is no first attempt: the call acquires the keys
/// one after the other, with one request for each.
///
/// # Examples
///
/// ```
/// use lock_runtime::{LockClient, LockError};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), LockError> {
/// let client = LockClient::memory();
/// let (from, to) = (7, 3);
/// client
///     .lock_all([format!("account:{from}"), format!("account:{to}")])
///     .run(async { /* transfer */ })
///     .await?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
#[must_use = "locks do nothing until they are acquired"]
pub struct LockSet {
    client: Arc<Connected>,
    /// The keys without the namespace, or the error of an invalid key.
    keys: Arc<Result<Vec<String>, LockError>>,
    options: LockOptions,
    /// Where the locks are measured.
    site: &'static SiteMetrics,
}

impl LockSet {
    pub(crate) fn new(client: Arc<Connected>, keys: impl IntoIterator<Item = LockKey>) -> Self {
        let keys = keys.into_iter().map(LockKey::into_string).collect();
        let site = client.engine.metrics().without_template();
        Self { client, keys: Arc::new(keys), options: LockOptions::NONE, site }
    }

    /// Sets the template under which the locks are measured, such as `account:<from>, account:<to>`; see
    /// [`Lock::template`](crate::Lock::template). A call counts as one acquisition, and each lock as a hold.
    pub fn template(mut self, template: &'static str) -> Self {
        self.site = self.client.engine.metrics().of_template(template);
        self
    }

    /// Sets the layout of the locks in Redis; see [`Lock::wire_format`](crate::Lock::wire_format).
    pub fn wire_format(mut self, wire_format: WireFormat) -> Self {
        self.options.wire_format = Some(wire_format);
        self
    }

    /// Sets the timeout for all locks together; see [`Lock::wait`](crate::Lock::wait).
    pub fn wait(mut self, wait: impl Into<Wait>) -> Self {
        self.options.wait = Some(wait.into());
        self
    }

    /// Sets a fixed lease; see [`Lock::lease`](crate::Lock::lease).
    pub fn lease(mut self, lease: Duration) -> Self {
        self.options.lease = Some(lease);
        self
    }

    /// Sets the longest hold; see [`Lock::max_hold`](crate::Lock::max_hold).
    pub fn max_hold(mut self, max_hold: Duration) -> Self {
        self.options.max_hold = Some(max_hold);
        self
    }

    /// Keeps all keys taken for at least this time; see [`Lock::min_hold`](crate::Lock::min_hold).
    /// Costs one more round trip.
    pub fn min_hold(mut self, min_hold: Duration) -> Self {
        self.options.min_hold = Some(min_hold);
        self
    }

    /// Requires that replicas acknowledge each lock; see
    /// [`Lock::acknowledged_by`](crate::Lock::acknowledged_by).
    pub fn acknowledged_by(mut self, replicas: impl Into<Replicas>) -> Self {
        self.options.acknowledged_by = Some(replicas.into());
        self
    }

    /// Sets whether [`run`](Self::run) waits for the release of the locks; see
    /// [`Lock::release_mode`](crate::Lock::release_mode).
    pub fn release_mode(mut self, mode: ReleaseMode) -> Self {
        self.options.release = Some(mode);
        self
    }

    /// Keeps each lock after its release for the next call of the client; see
    /// [`Lock::linger`](crate::Lock::linger).
    pub fn linger(mut self, linger: Duration) -> Self {
        self.options.linger = Some(linger);
        self
    }

    /// Waits for all locks. Costs one round trip if all keys are free and in one slot.
    ///
    /// The acquisition runs in a task of its own, so it continues while this future is not polled. If
    /// the locks are granted and this future is not polled within 40 ms, they are freed, and the
    /// acquisition begins anew with the next poll. The 40 ms double with each such attempt, up to a
    /// quarter of the lease. If the runtime of the call is blocked, the locks that it has are lost after
    /// one lease.
    ///
    /// Cancel safe: if the future is dropped, all locks are free within one round trip, with the
    /// exceptions that [`Lock::acquire`](crate::Lock::acquire) describes.
    ///
    /// # Errors
    ///
    /// As for [`Lock::acquire`](crate::Lock::acquire). The error names the key that it is about. In
    /// addition, [`LockError::Config`]: there is no key, or there are more keys than
    /// [`max_keys`](crate::LockClientBuilder::max_keys) allows.
    pub fn acquire(&self) -> impl Future<Output = Result<LockSetGuard, LockError>> + Send + use<> {
        let set = self.clone();
        async move { set.hold().await.map_err(|error| *error) }
    }

    /// Makes one attempt for all locks, without waiting. Returns `None` if a key has another holder, which
    /// costs up to three round trips. (In other wire formats than `Token`, the keys that sort before the
    /// busy key are taken for a moment.)
    ///
    /// Cancel safe, like [`acquire`](Self::acquire).
    ///
    /// # Errors
    ///
    /// As for [`acquire`](Self::acquire), without [`LockError::Busy`].
    ///
    /// # Examples
    ///
    /// ```
    /// use lock_runtime::{LockClient, LockError};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), LockError> {
    /// let client = LockClient::memory();
    /// let both = client.lock_all(["a", "b"]).try_acquire().await?;
    /// assert!(both.is_some());
    /// assert!(client.lock_all(["b", "c"]).try_acquire().await?.is_none());
    /// assert!(client.lock("c").try_acquire().await?.is_some(), "nothing was taken");
    /// # Ok(())
    /// # }
    /// ```
    pub fn try_acquire(
        &self,
    ) -> impl Future<Output = Result<Option<LockSetGuard>, LockError>> + Send + use<> {
        let once = self.clone().wait(Duration::ZERO);
        async move {
            match once.hold().without_holder().await {
                Ok(guard) => Ok(Some(guard)),
                Err(error) if matches!(*error, LockError::Busy { .. }) => Ok(None),
                Err(error) => Err(*error),
            }
        }
    }

    /// Acquires the locks, runs `body`, and releases the locks.
    ///
    /// The body is polled only while all locks are provably held. If one of them is lost, the body is
    /// dropped immediately, and the other locks are freed. Otherwise as [`Lock::run`](crate::Lock::run).
    /// Costs two round trips if all keys are free and in one slot.
    ///
    /// Cancel safe: if the future is dropped, the body is dropped first, and the locks are then
    /// released in the background.
    ///
    /// # Errors
    ///
    /// As for [`acquire`](Self::acquire), and [`LockError::Lost`] with the key of the lock that was
    /// lost before the body ended.
    pub fn run<F: Future>(
        &self,
        body: F,
    ) -> impl Future<Output = Result<F::Output, LockError>> + use<F> {
        let set = self.clone();
        async move {
            let body = pin!(Some(body));
            let release = set.options.release(&set.client.defaults);
            let end = BodyEnd { on_lost: OnLost::Abort, release };
            body::run(set.hold(), end, None, body).await
        }
    }

    fn hold(&self) -> Acquiring<LockSetGuard> {
        match &*self.keys {
            Ok(keys) => hold_all(&self.client, keys, (&self.options, self.site)),
            Err(error) => Acquiring::failed(self.site, error.clone()),
        }
    }
}

/// Acquires all locks, for [`LockSet::acquire`] and annotated functions.
pub(crate) fn hold_all(
    client: &Arc<Connected>,
    keys: &[String],
    (options, site): (&LockOptions, &'static SiteMetrics),
) -> Acquiring<LockSetGuard> {
    match prepared(client, keys, (options, site)) {
        Ok((timeout, acquired)) => {
            let mut acquiring = Acquiring::new((client, site), timeout.began(), acquired);
            acquiring.ask_for_holder();
            if spans_are_enabled()
                && let Ok(keys) = sorted(client, keys)
            {
                acquiring.trace(&keys.join(" "));
            }
            acquiring
        }
        Err(error) => Acquiring::failed(site, error),
    }
}

fn prepared(
    client: &Arc<Connected>,
    keys: &[String],
    (options, site): (&LockOptions, &'static SiteMetrics),
) -> Result<(Timeout, Unmeasured<LockSetGuard>), LockError> {
    let (wait, terms, store) = client.checked(options, site)?;
    let (mut shared, mut own) = (Vec::new(), Vec::new());
    for key in sorted(client, keys)? {
        match reentrancy::enclosing(&client.engine, &key, (&store, Mode::Exclusive))? {
            Some(guard) => shared.push(guard),
            None => own.push(key),
        }
    }
    if let Some(orders) = client.orders.as_ref().filter(|_| !wait.is_single_attempt()) {
        let holds = reentrancy::enclosing_holds(&client.engine);
        for key in &own {
            orders.call(&holds, key, site.label());
        }
    }
    let (here, timeout) = (runtime::checked()?, Timeout::new(wait));
    #[cfg(feature = "testing")]
    let fate = {
        let keys: Vec<&str> = own.iter().map(|key| &**key).collect();
        fated_call::of(client, &keys, site.label()).zip(own.first().cloned())
    };
    let request = SetRequest { keys: own, store, terms };
    let call = SetCall::new(Arc::clone(&client.engine), request, timeout);
    let acquire = move || {
        MaybeReady::pending(async move {
            let mut own = Collected::new(acquired(here, call).await?);
            // The holds of enclosing bodies are extended last, so that a call that fails does not.
            let mut guards = Vec::new();
            for guard in shared {
                let wait = timeout.remaining().map_or(Wait::Forever, Wait::For);
                guards.push(share(guard, &terms, wait).await?);
            }
            guards.extend(own.take());
            Ok(LockSetGuard::new(guards))
        })
    };
    #[cfg(feature = "testing")]
    if let Some((fate, key)) = fate {
        return Ok((timeout, fated_call::meet(client, (fate, &key), timeout, acquire)));
    }
    let acquired = acquire();
    Ok((timeout, acquired))
}

/// Acquires the locks that no enclosing body has.
async fn acquired(here: Handle, call: SetCall) -> Result<Vec<LockGuard>, Box<LockError>> {
    if call.key().is_none() {
        return Ok(Vec::new());
    }
    // There is no answer of the store to wait for, so nothing that a task could continue.
    if call.is_immediate()
        && let Some(guards) = call.acquire_at_once().await
    {
        return Ok(guards);
    }
    take_in_task(&here, Arc::new(call)).await
}

/// The checked keys with the namespace, in their order, without duplicates.
fn sorted(client: &Connected, keys: &[String]) -> Result<Vec<Arc<str>>, LockError> {
    let full = |key: &String| key::full(&client.namespace, key).map(Arc::from);
    let mut keys: Vec<Arc<str>> = keys.iter().map(full).collect::<Result<_, _>>()?;
    keys.sort_unstable();
    keys.dedup();
    let most = client.defaults.max_keys;
    let problem = if keys.is_empty() {
        "there is no key; name at least one".to_owned()
    } else if keys.len() > most {
        format!(
            "there are {} keys, and the client allows {most}; lock fewer keys, one key for all of \
             them, or set `LockClientBuilder::max_keys`",
            keys.len()
        )
    } else {
        return Ok(keys);
    };
    Err(LockError::config("keys", problem))
}

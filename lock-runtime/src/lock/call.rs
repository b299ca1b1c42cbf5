//! One call that acquires a lock, or shares a lock that the enclosing body holds.

use std::borrow::Cow;
use std::sync::Arc;

use crate::acquiring::{Acquiring, Unmeasured};
use crate::branches::BranchQueue;
use crate::clock::BootInstant;
use crate::connected::Connected;
use crate::engine::acquire::{self, AcquireRequest};
use crate::engine::extend::LeaseExtension;
use crate::engine::lease::Terms;
use crate::error::LockError;
#[cfg(feature = "testing")]
use crate::fated_call;
use crate::guard::LockGuard;
use crate::holder::{Holder, HolderKind};
use crate::key;
use crate::maybe_ready::MaybeReady;
use crate::options::LockOptions;
use crate::reentrancy;
use crate::store::contract::{Extension, LockStore, Mode};
use crate::telemetry::{SiteMetrics, spans_are_enabled};
use crate::timeout::{Timeout, Wait};

/// Acquires a lock, for [`Lock::acquire`] and annotated functions. `kept` is the same key in an
/// `Arc`, if the caller has one.
///
/// A call that shares an enclosing hold without a request is complete when this function returns.
/// Without a namespace, it does not allocate.
pub(crate) fn hold(
    client: &Arc<Connected>,
    key: &str,
    kept: Option<&Arc<str>>,
    (options, site): (&LockOptions, &'static SiteMetrics),
) -> Acquiring<LockGuard> {
    let mode = match (options.permits, options.mode) {
        (Some(permits), _) => Mode::Permits(permits),
        (None, Some(mode)) => mode.into(),
        (None, None) => Mode::Exclusive,
    };
    let measured = (client, site);
    let failed = |error| Acquiring::failed(site, error);
    // Without a closure that returns everything: each return would copy the terms once more.
    let (wait, terms, store) = match client.checked(options, site) {
        Ok(checked) => checked,
        Err(error) => return failed(error),
    };
    let key = match key::full(&client.namespace, key) {
        Ok(key) => key,
        Err(error) => return failed(error),
    };
    if options.exclusive_within
        && let Some(branches) = reentrancy::branches(&client.engine, &key)
    {
        let (key, timeout) = (Arc::from(&*key), Timeout::new(wait));
        let shared =
            share_in_turn(Arc::clone(client), (key, store, mode), (terms, timeout), branches);
        return Acquiring::new(measured, timeout.began(), MaybeReady::pending(shared));
    }
    match reentrancy::enclosing(&client.engine, &key, (&store, mode)) {
        Ok(None) => {}
        Ok(Some(guard)) => {
            return Acquiring::new(measured, BootInstant::PAST, share(guard, &terms, wait));
        }
        Err(error) => return failed(error),
    }
    // Permits of one semaphore do not exclude each other, and a single attempt waits for nobody.
    if let (Some(orders), None, false) = (&client.orders, options.permits, wait.is_single_attempt())
    {
        let holds = reentrancy::enclosing_holds(&client.engine);
        orders.call(&holds, &key, site.label());
    }
    let key = match (key, kept) {
        (Cow::Borrowed(_), Some(kept)) => Arc::clone(kept),
        (key, _) => Arc::from(key),
    };
    let is_fair = options.fair.unwrap_or_default() && store.has(Extension::Queues);
    let timeout = Timeout::new(wait);
    #[cfg(feature = "testing")]
    if let Some(fate) = fated_call::of(client, &[&key], site.label()) {
        let request =
            AcquireRequest { key: Arc::clone(&key), mode, store, timeout, terms, is_fair };
        let engine = Arc::clone(&client.engine);
        let acquire = move || acquire::acquire(engine, request, LockGuard::new);
        let acquired = fated_call::meet(client, (fate, &key), timeout, acquire);
        let mut acquiring = Acquiring::new(measured, timeout.began(), acquired);
        acquiring.trace(&key);
        return acquiring;
    }
    let traced = spans_are_enabled().then(|| Arc::clone(&key));
    let request = AcquireRequest { key, mode, store, timeout, terms, is_fair };
    let acquired = acquire::acquire(Arc::clone(&client.engine), request, LockGuard::new);
    let mut acquiring = Acquiring::new(measured, timeout.began(), acquired);
    acquiring.ask_for_holder();
    if let Some(key) = traced {
        acquiring.trace(&key);
    }
    acquiring
}

/// Waits for the other branches of the enclosing body that exclude this one, and shares its hold then.
async fn share_in_turn(
    client: Arc<Connected>,
    (key, store, mode): (Arc<str>, Arc<dyn LockStore>, Mode),
    (terms, timeout): (Terms, Timeout),
    branches: BranchQueue,
) -> Result<LockGuard, Box<LockError>> {
    let named = || (*key).to_owned();
    let Some(turn) = branches.turn(&timeout).await else {
        let (waited, holder) = (timeout.elapsed(), Holder::new(HolderKind::ThisTask));
        return Err(Box::new(LockError::busy(named(), waited, holder)));
    };
    let Some(guard) = reentrancy::enclosing(&client.engine, &key, (&store, mode))? else {
        let cause = "the enclosing body has ended";
        let (key, waited) = (Some(named()), timeout.elapsed());
        return Err(Box::new(LockError::unavailable(key, waited, cause)));
    };
    let left = timeout.remaining().map_or(Wait::Forever, Wait::For);
    Ok(share(guard, &terms, left).await?.in_turn(turn))
}

/// Shares an enclosing hold. Extends the hold if the inner lock's fixed lease or `min_hold` would
/// end later, or if replicas have to acknowledge it that the outer lock does not require.
pub(crate) fn share(guard: LockGuard, terms: &Terms, wait: Wait) -> Unmeasured<LockGuard> {
    let is_fixed = !terms.renewed && !guard.hold().is_renewed();
    let longer = Some(terms.term).filter(|term| is_fixed && *term > guard.remaining());
    let (min_hold, acknowledged_by) = (terms.min_hold, terms.acknowledged_by);
    let is_acknowledged = acknowledged_by.is_none() || {
        let known = guard.hold().lease().acknowledged_by();
        known.and(acknowledged_by) == known
    };
    if longer.is_none() && min_hold <= guard.remaining() && is_acknowledged {
        if !min_hold.is_zero() {
            guard.hold().keep_for(BootInstant::now(), min_hold);
        }
        return MaybeReady::ready(Ok(guard));
    }
    MaybeReady::pending(async move {
        let extension = LeaseExtension { term: longer, min_hold, acknowledged_by };
        let extend = guard.engine().extend(guard.hold(), extension);
        let extended = match wait.limit().filter(|limit| !limit.is_zero()) {
            None => extend.await,
            Some(limit) => tokio::time::timeout(limit, extend).await.unwrap_or_else(|_| {
                let cause = "the store has not answered yet";
                let key = Some(guard.key().to_owned());
                Err(LockError::unavailable(key, limit, cause))
            }),
        };
        extended.map(|()| guard).map_err(Box::new)
    })
}

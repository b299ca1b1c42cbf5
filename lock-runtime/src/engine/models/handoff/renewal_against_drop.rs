//! The race of a renewal for a waiter with the end of the waiter's call.
//!
//! A holder with a fixed lease releases the lock. The only waiter asks for a longer lease, so its
//! acquisition renews the lease first. The waiter is dropped meanwhile, or the renewal gets no
//! answer, and the store refuses all releases. The model asserts that the release is repeated for
//! as long as the key can last. In the control, the renewal is recorded only when it is answered.

use super::*;

/// A lease is renewed for a waiter that is dropped, and the store refuses all releases.
async fn race(take: Take) {
    let process = Process::start();
    let first = process.hold(short(fixed())).await;
    process.network.refuse_releases();
    process.network.lose_renewal_answers(usize::from(thread_rng().r#gen::<bool>()));
    let mut longer = longer(short(fixed()));
    longer.wait = Wait::For(SHORT_TERM / 2);
    let next = spawn(take(process.engine.clone(), longer));
    while process.engine.queues().queued() == 0 {
        yield_now().await;
    }
    time::advance(SHORT_TERM / 2);
    process.engine.release_in_background(&first, true);
    pause().await;
    next.abort();
    if let Ok(Some(hold)) = next.await {
        process.network.assert_owns_key_in_store(&hold);
        process.engine.release_in_background(&hold, true);
    }
    // The clock does not advance until only the release is in progress.
    process.wait_until_settled(1).await;
    process.assert_nothing_left().await;
}

#[test]
fn a_release_is_repeated_for_as_long_as_a_renewal_for_a_waiter_may_have_extended_the_key() {
    explore(|| race(take));
}

/// Records a renewal only when it is answered.
async fn record_renewal_when_answered(engine: TestEngine, request: Request) -> Option<Hold> {
    let lease = engine.background().held().pop()?;
    let Offer::Handoff(handoff) = offer(&engine, &request.key).await? else { return None };
    let sent = BootInstant::now();
    let term = request.terms.in_store();
    let renewal = [lease.renewal(term)];
    engine.store().renew(&renewal, Lane::Background).await;
    lease.about_to_renew_for(&request.terms, sent)?;
    accept(&engine, handoff, &request).await.ok()
}

#[test]
#[should_panic(expected = "the key is still taken")]
fn a_release_is_given_up_too_early_if_a_renewal_for_a_waiter_is_recorded_only_when_answered() {
    find_failure(|| {
        race(|engine, request| MaybeReady::pending(record_renewal_when_answered(engine, request)))
    });
}

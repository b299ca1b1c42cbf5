//! Checks of stores: [`store_conformance!`](crate::store_conformance) makes a test of each. A check panics if the store
//! breaks its contract.
//!
//! Each check makes one or two clients of the same store, which do not share connections, and uses keys of its own, so the
//! checks can run at the same time, and on a store that is in use. They take a few seconds together, and nothing that they do
//! depends on the speed of the machine.
//!
//! An extension of the contract is checked if the store has it, and so are read-write locks and semaphores.
//!
//! Not checked: acknowledgements, other wire formats, votes, whether releases wake those who wait outside of queues, what happens
//! during outages, which errors the store reports, and the loss of its data.

mod announcements;
mod counted;
mod expiry;
mod fixture;
#[cfg(test)]
mod flaws;
mod inspection;
mod owners;
mod queues;
mod requests;
mod runs;
mod sets;
mod tokens;
mod whole;

pub use self::announcements::an_announcement_ends_with_its_hold;
pub use self::counted::{
    a_hold_changes_its_mode, permits_are_counted, readers_share_and_writers_do_not,
    shares_belong_to_their_owner,
};
pub use self::expiry::{
    a_kept_key_is_free_afterwards, a_lease_ends, a_lease_lasts_for_its_term,
    a_renewal_extends_a_lease, a_renewal_shortens_nothing,
    renewals_at_the_same_time_shorten_nothing, the_second_request_shortens_nothing,
};
pub use self::fixture::CheckedStore;
pub use self::inspection::{a_lease_can_be_inspected, a_scan_finds_all_keys_with_a_prefix};
pub use self::owners::{
    a_batch_is_answered_one_by_one, a_free_key_is_granted_to_one_owner, a_released_key_is_free,
    only_the_owner_releases, only_the_owner_renews, the_owner_may_ask_again,
};
pub use self::queues::{a_claim_that_leaves_is_passed_over, claims_are_served_in_their_order};
pub use self::requests::{
    a_dropped_request_leaves_a_lease_at_most, a_key_is_any_text, one_of_many_requests_is_granted,
};
pub use self::runs::a_period_has_one_run;
pub use self::sets::several_keys_are_taken_or_none;
pub use self::tokens::{tokens_are_for_the_owner_only, tokens_rise};
pub use self::whole::calls_of_two_clients_exclude_each_other;

/// A test of each check for a store: `store_conformance!(STORE)` for an [`OpenStore`](crate::store::OpenStore), or
/// `store_conformance!(checked: STORE)` for a [`CheckedStore`], which may be that of a URL. The expression makes a client of
/// the store. It may await, is evaluated once or twice in each test, and makes clients of the same store every time.
///
/// What the clients of a test need before, such as a server, can be made first, and is dropped after the test:
/// `store_conformance!(let server = Server::start(); Table::connect(&server.url()).await)`.
///
/// Needs tokio with its features `macros` and `rt-multi-thread`.
///
/// ```no_run
/// # use std::sync::Arc;
/// # use lock_runtime::{LockError, store::{Backend, OpenStore, Settings}};
/// # struct Table;
/// # impl OpenStore for Table {
/// #     fn name(&self) -> &str { "" }
/// #     fn open(&self, _: &Settings) -> Result<Arc<dyn Backend>, LockError> { todo!() }
/// # }
/// # impl Table { fn open(_: &str) -> Self { Table } }
/// mod table {
///     # use super::Table;
///     lock_runtime::store_conformance!(Table::open("localhost"));
/// }
/// # fn main() {}
/// ```
#[macro_export]
macro_rules! store_conformance {
    (checked: $store:expr) => {
        $crate::store_conformance! { checked: let fixture = (); { let () = fixture; $store } }
    };
    (checked: let $fixture:ident = $made:expr; $store:expr) => {
        $crate::store_conformance! { @tests ($fixture, $made, $store);
            one: the_owner_may_ask_again, a_lease_can_be_inspected, a_scan_finds_all_keys_with_a_prefix, a_released_key_is_free, only_the_owner_renews,
                only_the_owner_releases, a_batch_is_answered_one_by_one, a_lease_ends,
                a_lease_lasts_for_its_term, a_renewal_extends_a_lease,
                a_renewal_shortens_nothing, renewals_at_the_same_time_shorten_nothing, the_second_request_shortens_nothing,
                a_kept_key_is_free_afterwards, a_dropped_request_leaves_a_lease_at_most,
                a_key_is_any_text, tokens_are_for_the_owner_only, shares_belong_to_their_owner, a_hold_changes_its_mode,
                a_claim_that_leaves_is_passed_over, several_keys_are_taken_or_none, a_period_has_one_run,
                an_announcement_ends_with_its_hold;
            two: a_free_key_is_granted_to_one_owner, one_of_many_requests_is_granted, tokens_rise,
                calls_of_two_clients_exclude_each_other, readers_share_and_writers_do_not, permits_are_counted,
                claims_are_served_in_their_order;
        }
    };
    (let $fixture:ident = $made:expr; $store:expr) => {
        $crate::store_conformance! {
            checked: let $fixture = $made; $crate::conformance::CheckedStore::new($store)
        }
    };
    (@tests $all:tt; one: $($one:ident),*; two: $($two:ident),*;) => {
        $($crate::store_conformance! { @one $one $all })*
        $($crate::store_conformance! { @two $two $all })*
    };
    (@one $check:ident ($fixture:ident, $made:expr, $store:expr)) => {
        #[::tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn $check() {
            let $fixture = $made;
            $crate::conformance::$check($store).await;
        }
    };
    (@two $check:ident ($fixture:ident, $made:expr, $store:expr)) => {
        #[::tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn $check() {
            let $fixture = $made;
            let (one, two) = ($store, $store);
            $crate::conformance::$check(one, two).await;
        }
    };
    ($store:expr) => {
        $crate::store_conformance! { let fixture = (); { let () = fixture; $store } }
    };
}

//! The checks of all stores.

use lock_runtime::conformance::CheckedStore;
use lock_tests::TestedStore;

lock_runtime::store_conformance!(
    checked: let store = TestedStore::start_shared().await;
    CheckedStore::url(store.url())
);

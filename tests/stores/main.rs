//! The semantics and the faults that are the same for every store, with the store that the variable `LOCK_TESTS_STORE` names.
//!
//! `scripts/stores` runs these tests with each store. Those in `suites` are the tests of the other target of this name that
//! hold for every store. The rest of their files needs one Redis server, and is left out by the filter of the script.

mod conformance;
mod faults;
mod lacking;
mod losses;
mod service;
mod suites;
mod support;

use suites::waits;

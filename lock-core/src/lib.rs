//! What a store of locks and the library that uses it share: keys, owners, errors, clocks and capabilities.
//!
//! Programs use [`lock-runtime`](https://docs.rs/lock-runtime), which re-exports what they need of it. This crate is private to
//! it, and may change in each version.

#![cfg_attr(docsrs, feature(doc_cfg))]
#![forbid(unsafe_code)]
// What users see has the attributes, and a `Debug`.
#![allow(
    missing_debug_implementations,
    clippy::must_use_candidate,
    clippy::return_self_not_must_use,
    clippy::new_without_default
)]

#[doc(hidden)]
pub mod address_map;
#[doc(hidden)]
pub mod backoff;
#[doc(hidden)]
pub mod capacity;
#[doc(hidden)]
pub mod client_info;
#[doc(hidden)]
pub mod client_name;
#[doc(hidden)]
pub mod clock;
#[doc(hidden)]
pub mod credentials;
#[doc(hidden)]
pub mod error;
#[doc(hidden)]
pub mod events;
#[doc(hidden)]
pub mod holder;
#[doc(hidden)]
pub mod identity;
#[doc(hidden)]
pub mod join;
#[doc(hidden)]
pub mod key;
#[doc(hidden)]
pub mod lock_mode;
#[doc(hidden)]
pub mod lock_state;
#[doc(hidden)]
pub mod maybe_ready;
#[doc(hidden)]
pub mod permits;
#[doc(hidden)]
pub mod questions;
#[doc(hidden)]
pub mod release_mode;
#[doc(hidden)]
pub mod replicas;
#[doc(hidden)]
pub mod runtime;
#[doc(hidden)]
pub mod safeguard;
#[doc(hidden)]
pub mod seconds;
#[doc(hidden)]
pub mod store;
#[doc(hidden)]
pub mod sync;
#[doc(hidden)]
pub mod telemetry;
#[doc(hidden)]
pub mod timeout;
#[cfg(feature = "tls")]
#[doc(hidden)]
pub mod tls;
#[doc(hidden)]
pub mod user_code;
#[doc(hidden)]
pub mod wire_format;

//! Tests of stores that need a client, or several stores.

#[cfg(feature = "store")]
mod late_acquires;
#[cfg(feature = "redis")]
mod quorum;

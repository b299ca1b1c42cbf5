//! The stores of locks, and the [`contract`] that they implement.

// Only a remote store uses all of it.
#![cfg_attr(not(feature = "redis"), allow(dead_code))]

pub(crate) mod announcements;
#[cfg(feature = "admin")]
pub(crate) mod asker;
mod capabilities;
pub(crate) mod contract;
#[cfg(test)]
pub(crate) mod faulty;
pub(crate) mod hold_reports;
#[cfg(feature = "admin")]
mod inspector;
pub(crate) mod key_holder;
mod layout;
mod left;
mod limits;
pub(crate) mod memory;
mod mode_change;
mod open;
pub(crate) mod owner;
pub(crate) mod periods;
mod place;
pub(crate) mod profile;
pub(crate) mod queueing;
mod quorum;
#[cfg(feature = "redis")]
mod redis;
#[cfg(feature = "admin")]
pub(crate) mod scanning;
mod send_trace;
mod sets;
mod settings;
mod store_error;
pub(crate) mod subscriptions;

pub(crate) use open::{StoreAddress, open};
pub(crate) use settings::Settings;

//! The measurements of the requests to a store.

pub mod histogram;
pub mod requests;
pub mod shards;

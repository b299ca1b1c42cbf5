//! The connections of a client: how each is kept up, what it may carry at once, and which of them a
//! request takes.

pub(crate) mod admission;
pub(crate) mod connect;
pub(crate) mod connection;
mod in_flight;
pub(crate) mod measured;
mod nodes;
mod quarantine;
pub(crate) mod replicas;
pub(crate) mod request;
pub(crate) mod route;
mod script_run;
pub(crate) mod servers;
pub(crate) mod tracking;

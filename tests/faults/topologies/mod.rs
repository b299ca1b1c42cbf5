//! Faults of several servers. `scripts/topologies` runs them, and `scripts/test` the others, which need one server.

mod cluster;
mod partitions;
mod planned_failovers;
mod quorum;
mod replicas;
mod sentinel;

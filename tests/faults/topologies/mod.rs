//! Faults of several servers. `scripts/topologies` runs them, and `scripts/test` the rest of this suite.

mod cluster;
mod partitions;
mod planned_failovers;
mod quorum;
mod replicas;
mod sentinel;

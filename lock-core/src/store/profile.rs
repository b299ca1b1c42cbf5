//! What a store says about itself, so that a quorum can tell its stores apart.

/// The servers of a store.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StoreProfile {
    /// What identifies each server, such as the run id of its process. Empty if that is not known.
    pub servers: Vec<String>,
    /// Whether the store is a copy of another one.
    pub is_replica: bool,
    /// The name and the major version of the server, such as `Redis 8`, if they are known.
    pub version: Option<String>,
}

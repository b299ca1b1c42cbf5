//! The order of requests.

use tokio::runtime;

/// The connection that carries a request. Requests of one lane reach the store in the order in
/// which they were sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lane {
    /// The connection of the runtime that polls the request.
    Caller,
    /// The connection of the background thread.
    Background,
    /// The connection of this runtime, if there is one. An undo uses this lane to arrive after the
    /// request that it undoes.
    Runtime(runtime::Id),
}

//! How much a client has on its hands.

/// What a client has on its hands at one moment, for gauges and for looking into trouble; see
/// [`LockClient::stats`](crate::LockClient::stats).
///
/// A client at rest has zeros everywhere.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct ClientStats {
    /// Locks that are held. Re-entrant holds share one.
    pub held: usize,
    /// Keys that somebody of this client holds, asks for or waits for.
    pub keys: usize,
    /// Calls that wait for somebody of the same client.
    pub queued: usize,
    /// Releases that nobody awaits, and requests that are being undone.
    pub releasing: usize,
}

//! A connection to the server that has the keys.

use std::sync::Arc;

use redis::AsyncConnectionConfig;

use crate::store::redis::endpoint::Endpoint;
use crate::store::redis::handshake::LoggedIn;

/// One socket, before it is opened. An attempt to connect may open several, of which one is used.
pub(in crate::store::redis) struct NewSocket {
    pub(in crate::store::redis) generation: u64,
    pub(in crate::store::redis) config: AsyncConnectionConfig,
}

/// A connection to the server that has the keys.
pub(in crate::store::redis) struct Opened {
    pub(in crate::store::redis) server: Arc<Endpoint>,
    /// The number of this server among those that had the keys.
    pub(in crate::store::redis) number: u64,
    /// The generation of its socket.
    pub(in crate::store::redis) generation: u64,
    pub(in crate::store::redis) login: LoggedIn,
}

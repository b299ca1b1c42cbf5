//! A connection to the server that has the keys.

use std::sync::Arc;

use crate::transport::endpoint::Endpoint;
use crate::transport::handshake::LoggedIn;
use crate::transport::pipelined::OnMessage;

/// One socket, before it is opened. An attempt to connect may open several, of which one is used.
pub(crate) struct NewSocket {
    pub(crate) generation: u64,
    pub(crate) on_message: Option<OnMessage>,
}

/// A connection to the server that has the keys.
pub(crate) struct Opened {
    pub(crate) server: Arc<Endpoint>,
    /// The number of this server among those that had the keys.
    pub(crate) number: u64,
    /// The generation of its socket.
    pub(crate) generation: u64,
    pub(crate) login: LoggedIn,
}

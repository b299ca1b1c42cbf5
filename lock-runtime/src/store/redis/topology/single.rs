//! One server, which always has the keys.

use std::sync::Arc;

use super::opened::{NewSocket, Opened};
use crate::store::contract::StoreError;
use crate::store::redis::endpoint::Endpoint;
use crate::store::redis::handshake::log_in;

pub(super) struct SingleServer {
    server: Arc<Endpoint>,
}

impl SingleServer {
    pub(super) fn new(server: Endpoint) -> Self {
        Self { server: Arc::new(server) }
    }

    pub(super) fn shown(&self) -> &str {
        self.server.shown()
    }

    pub(super) fn has_credentials_source(&self) -> bool {
        self.server.login().has_source()
    }

    pub(super) async fn open(&self, socket: NewSocket) -> Result<Opened, StoreError> {
        let login = log_in(&self.server, &socket.config).await?;
        let (server, generation) = (Arc::clone(&self.server), socket.generation);
        Ok(Opened { server, number: 0, generation, login })
    }
}

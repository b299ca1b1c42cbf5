//! Requests that may be sent: they have a connection and a permit.

use std::sync::Arc;
use std::time::Duration;

use super::connect::{Established, OpenSocket};
use super::in_flight::InFlightLimit;

/// The limit that a request counts against while it is in flight.
#[derive(Debug, Clone, Copy)]
pub(crate) enum RequestClass {
    /// Requests that acquire locks.
    Acquires,
    /// Requests about locks that are or were held, such as releases.
    Holders,
    /// No limit here: the sender limits their number.
    Unlimited,
    /// The same, and the server reports the next change of each key that the request reads.
    Tracked,
}

impl RequestClass {
    fn limit(self, socket: &OpenSocket) -> Option<&InFlightLimit> {
        match self {
            Self::Acquires => Some(&socket.acquires),
            Self::Holders => Some(&socket.holders),
            Self::Unlimited | Self::Tracked => None,
        }
    }
}

/// A request that may be sent. It is in flight until this is dropped.
pub(crate) struct InFlight {
    pub(crate) generation: u64,
    pub(crate) socket: Arc<OpenSocket>,
    class: RequestClass,
    /// The epoch in which its permit was issued; 0 without one.
    epoch: usize,
}

impl InFlight {
    fn new(connection: Established, class: RequestClass, epoch: usize) -> Self {
        let Established { generation, socket } = connection;
        socket.traffic.begin();
        Self { generation, socket, class, epoch }
    }

    /// Takes a permit if one is available.
    pub(crate) fn try_admit(connection: Established, class: RequestClass) -> Option<Self> {
        let mut epoch = 0;
        if let Some(limit) = class.limit(&connection.socket) {
            epoch = limit.try_acquire()?;
        }
        Some(Self::new(connection, class, epoch))
    }

    /// Waits for a permit. `None` if the connection is discarded first.
    pub(crate) async fn admit(
        connection: Established,
        class: RequestClass,
        response_timeout: Duration,
    ) -> Option<Self> {
        let mut epoch = 0;
        if let Some(limit) = class.limit(&connection.socket) {
            epoch = limit.acquire(response_timeout).await?;
        }
        Some(Self::new(connection, class, epoch))
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        self.socket.traffic.end();
        if let Some(limit) = self.class.limit(&self.socket) {
            limit.give_back(self.epoch);
        }
    }
}

//! What is known about a request without an answer.

use std::num::NonZeroU64;

use tokio::runtime;

use crate::clock::BootInstant;
use crate::sync::atomic::{AtomicU64, Ordering};

/// A record of whether a request was sent, when, and over which connection. The store writes the
/// record. If a request is dropped before its answer, the engine reads it to decide on the undo.
#[derive(Debug, Default)]
pub struct SendTrace {
    /// Zero until the request is sent.
    connection: AtomicU64,
    /// The instant, by the clock of the deadlines.
    at: AtomicU64,
    /// How often it was sent: a store may redirect a request, or ask for the text of a script.
    sendings: AtomicU64,
}

impl SendTrace {
    /// Records that the request is about to be sent over this connection of its lane. Connections
    /// are numbered from 1; a store without connections passes 1.
    pub fn sent(&self, connection: u64) {
        self.at.store(BootInstant::now().as_nanos(), Ordering::Relaxed);
        let before = self.sendings.load(Ordering::Relaxed);
        self.sendings.store(before + 1, Ordering::Relaxed);
        self.connection.store(connection, Ordering::Relaxed);
    }

    /// The connection that carried the request; `None` if it was not sent.
    pub fn connection(&self) -> Option<NonZeroU64> {
        NonZeroU64::new(self.connection.load(Ordering::Relaxed))
    }

    /// The same, if the request was sent once.
    pub fn only_connection(&self) -> Option<NonZeroU64> {
        self.connection().filter(|_| self.sendings.load(Ordering::Relaxed) == 1)
    }

    /// The instant just before the request was sent. A lease counts from this instant and not from
    /// the call, because the request may have waited for other requests before.
    pub fn sent_at(&self) -> Option<BootInstant> {
        self.connection()?;
        Some(BootInstant::from_nanos(self.at.load(Ordering::Relaxed)))
    }
}

/// The origin of a request without an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Origin {
    pub runtime: runtime::Id,
    /// The connection that carried it; `None` if there were several, or if that is unknown.
    pub connection: Option<NonZeroU64>,
}

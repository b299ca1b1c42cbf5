//! The contract between those who ask clients and a store that passes the questions on.

use super::store_error::StoreError;
use crate::maybe_ready::MaybeReady;
use crate::questions::question::Question;

/// The room for pages that wait to be read, in bytes. Others are dropped.
pub const ANSWER_ROOM: usize = 64 * 1024 * 1024;

/// A question that was sent.
#[derive(Debug, Clone, Copy)]
pub struct SentQuestion {
    /// The number of clients that have received it, if the store knows it.
    pub receivers: Option<usize>,
    /// [`Asker::interruptions`] before it was sent.
    pub interruptions: u64,
}

/// A way to ask clients, with a channel for their answers.
pub trait Asker: Send + Sync {
    /// The channel for the answers.
    fn channel(&self) -> &str;

    /// Sends a question. Drops the pages that have arrived before.
    fn ask<'a>(
        &'a self,
        question: &'a Question,
    ) -> MaybeReady<'a, Result<SentQuestion, StoreError>>;

    /// The namespaces of all clients of the store that can be asked, in no order; `None` if the store does not tell them.
    fn namespaces(&self) -> MaybeReady<'_, Result<Option<Vec<String>>, StoreError>> {
        MaybeReady::ready(Ok(None))
    }

    /// How often answers may have been lost so far, because the connection was lost.
    fn interruptions(&self) -> u64;

    /// The next page of an answer, which may be any text.
    ///
    /// Cancel safe: no page is lost.
    fn next(&self) -> MaybeReady<'_, Vec<u8>>;
}

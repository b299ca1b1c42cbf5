//! The contract between those who ask clients and a store that passes the questions on.

use super::store_error::StoreError;
use crate::maybe_ready::MaybeReady;
use crate::questions::question::Question;

/// A way to ask clients, with a channel for their answers.
pub(crate) trait Asker: Send + Sync {
    /// The channel for the answers.
    fn channel(&self) -> &str;

    /// Sends a question. Returns the number of clients that have received it, if the store knows it.
    fn ask<'a>(
        &'a self,
        question: &'a Question,
    ) -> MaybeReady<'a, Result<Option<usize>, StoreError>>;

    /// How often answers may have been lost so far, because the connection was.
    fn interruptions(&self) -> u64;

    /// The next page of an answer, which may be any text.
    ///
    /// Cancel safe: no page is lost.
    fn next(&self) -> MaybeReady<'_, Vec<u8>>;
}

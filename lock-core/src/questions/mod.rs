//! Questions that others ask about a client, and their answers.
//!
//! Each client listens on the channel of its namespace, `lock_ask:<namespace>`. A question names the channel
//! for its answers. A client answers with one or more pages, so that no message is long, and it answers few
//! questions in a second. The texts consist of [records](record), and a reader ignores fields and records
//! that it does not know.
//!
//! A question, an answer and their channels may come from anybody with access to the server. A question has
//! no effect, apart from [`QuestionKind::Revoke`](question::QuestionKind::Revoke), which a client has to allow.

pub mod answer;
pub mod limit;
pub mod question;
pub mod record;

use self::answer::AnswerPages;
pub use self::question::ANSWERS;
use self::question::Question;

/// The prefix of the channels on which clients are asked.
pub const QUESTIONS: &str = "lock_ask:";

/// What the records of answers are about.
pub const HOLD: &str = "hold";
pub const WAIT: &str = "wait";
pub const TOTALS: &str = "totals";
pub const SITE: &str = "site";
pub const LOSS: &str = "loss";
/// It has the number of locks that were revoked, or that were not because the client is not revocable.
pub const REVOCATION: &str = "revocation";

/// Answers questions about a client.
pub trait Answerer: Send + Sync {
    /// `id` is that of the client, which distinguishes it from all others of its store. Takes time in proportion to
    /// the number of its locks.
    fn answer(&self, question: &Question, id: &str) -> AnswerPages;

    /// The namespace of the client.
    fn namespace(&self) -> &str;
}

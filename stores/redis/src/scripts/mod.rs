//! The layouts of locks: their scripts, their keys, and the replies.

pub(crate) mod decode;
pub(crate) mod dialect;
pub(crate) mod dialects;
pub(crate) mod queue;
pub(crate) mod record_replies;
pub(crate) mod script;

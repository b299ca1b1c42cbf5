//! What others ask a client.

use super::record::RecordWriter;
use super::record::TextRecord;
use crate::client_info::harmless;

/// The prefix of the channels for answers. A client publishes answers to no other channels.
pub const ANSWERS: &str = "lock_answer:";

/// The longest question that a client reads, in bytes: a key and a name in which each byte is encoded, and the rest.
pub const LONGEST_QUESTION: usize = 8192;

/// The longest name of a channel for answers, in bytes.
const LONGEST_CHANNEL: usize = 256;

/// A question, and where its answers go.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Question {
    pub kind: QuestionKind,
    /// The channel for the answers.
    pub channel: String,
    /// Distinguishes the question from others with answers on the same channel.
    pub number: u64,
}

/// What is asked. Keys include the namespace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum QuestionKind {
    /// Which client it is.
    Client,
    /// The locks that the client holds, or those with this key.
    Holds(Option<String>),
    /// The keys for which calls of the client wait.
    Queue,
    /// What the client has measured.
    Snapshot,
    /// The locks that it has lost.
    Losses,
    /// That the client gives up locks.
    Revoke(RevocationRequest),
    /// Something that a later version of the library asks.
    Unknown,
}

/// Which locks a client is asked to give up.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RevocationRequest {
    pub key: String,
    /// The id of the only client that is meant, if not all are.
    pub from: Option<String>,
    /// Who asks, for the log.
    pub by: String,
}

impl Question {
    /// The text of the question.
    pub fn to_text(&self) -> String {
        use QuestionKind::{Client, Holds, Losses, Queue, Revoke, Snapshot, Unknown};

        let (kind, key) = match &self.kind {
            Client => ("client", None),
            Holds(key) => ("holds", key.as_ref()),
            Queue => ("queue", None),
            Snapshot => ("snapshot", None),
            Losses => ("losses", None),
            Revoke(request) => ("revoke", Some(&request.key)),
            Unknown => ("unknown", None),
        };
        let request = match &self.kind {
            Revoke(request) => Some(request),
            _ => None,
        };
        RecordWriter::default()
            .field("v", 1)
            .field("question", kind)
            .field("answer", &self.channel)
            .field("number", self.number)
            .optional("key", key)
            .optional("from", request.and_then(|request| request.from.as_ref()))
            .optional("by", request.map(|request| &request.by))
            .into_text()
    }

    /// Reads a question. `None` if the text is something else, or its answers would go to a channel that is
    /// not for answers.
    pub fn of_text(text: &[u8]) -> Option<Self> {
        if text.len() > LONGEST_QUESTION {
            return None;
        }
        let record = TextRecord::new(std::str::from_utf8(text).ok()?);
        let (channel, number) = (record.get("answer")?, record.number("number")?);
        let is_for_answers = channel.starts_with(ANSWERS)
            && channel.len() <= LONGEST_CHANNEL
            && channel.bytes().all(|byte| byte.is_ascii_graphic());
        let kind = match &*record.get("question")? {
            "client" => QuestionKind::Client,
            "holds" => QuestionKind::Holds(record.get("key")),
            "queue" => QuestionKind::Queue,
            "snapshot" => QuestionKind::Snapshot,
            "losses" => QuestionKind::Losses,
            "revoke" => QuestionKind::Revoke(RevocationRequest {
                key: record.get("key")?,
                from: record.get("from"),
                by: record.get("by").and_then(|by| harmless(&by)).unwrap_or_default(),
            }),
            _ => QuestionKind::Unknown,
        };
        is_for_answers.then_some(Self { kind, channel, number })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client_info::LONGEST_TEXT;

    fn question(kind: QuestionKind) -> Question {
        Question { kind, channel: format!("{ANSWERS}7"), number: 3 }
    }

    #[test]
    fn any_question_comes_back() {
        for kind in [
            QuestionKind::Client,
            QuestionKind::Holds(None),
            QuestionKind::Holds(Some("order:7\n\t%=".to_owned())),
            QuestionKind::Queue,
            QuestionKind::Snapshot,
            QuestionKind::Losses,
            QuestionKind::Revoke(RevocationRequest {
                key: "\u{1}".repeat(1024),
                from: Some("kX3_8fRtq".to_owned()),
                by: "web-3 (pid 4711)".to_owned(),
            }),
            QuestionKind::Unknown,
        ] {
            let question = question(kind);
            assert_eq!(Question::of_text(question.to_text().as_bytes()), Some(question));
        }
    }

    /// It reaches the log.
    #[test]
    fn the_name_of_who_asks_has_no_control_characters_and_a_limited_length() {
        let by = |by: &str| {
            let (key, by) = ("k".to_owned(), by.to_owned());
            let request = RevocationRequest { key, from: None, by };
            let text = question(QuestionKind::Revoke(request)).to_text();
            match Question::of_text(text.as_bytes()).expect("a question").kind {
                QuestionKind::Revoke(request) => request.by,
                other => panic!("{other:?}"),
            }
        };
        assert_eq!(by("web\u{1b}[2J-3\nWARN forged\u{202e}"), "web[2J-3WARN forged");
        assert_eq!(by(&"x".repeat(5000)).len(), LONGEST_TEXT);
        assert_eq!(by("\n"), "");
    }

    #[test]
    fn other_texts_are_no_questions() {
        let text = question(QuestionKind::Queue).to_text();
        for other in [
            String::new(),
            "garbage".to_owned(),
            text.replace(ANSWERS, "lock_wake:"),
            text.replace("lock_answer:7", &format!("{ANSWERS}{}", "7".repeat(LONGEST_CHANNEL))),
            text.replace("lock_answer:7", "lock_answer:a b"),
            text.replace("number=3", "number=-3"),
            text.replace("queue", "revoke"),
            format!("{text}\tmore={}", "x".repeat(LONGEST_QUESTION)),
        ] {
            assert_eq!(Question::of_text(other.as_bytes()), None, "{other:?}");
        }
        assert_eq!(Question::of_text(&[200; 10]), None);
    }
}

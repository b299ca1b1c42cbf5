//! The text of questions and answers: one record in each line, whose fields are `name=value`, with a tab
//! between two of them. In a value, `%` and control characters are percent-encoded.

use std::fmt::{Display, Write};

/// The end of a record.
pub const END: char = '\n';

/// Between two fields.
const SEPARATOR: char = '\t';

/// The field that names what a record is about.
const KIND: &str = "record";

/// Writes one record.
#[derive(Debug, Default)]
pub struct RecordWriter {
    text: String,
}

impl RecordWriter {
    /// A record about this.
    pub fn about(kind: &str) -> Self {
        Self::default().field(KIND, kind)
    }

    /// Adds a field.
    pub fn field(mut self, name: &str, value: impl Display) -> Self {
        if !self.text.is_empty() {
            self.text.push(SEPARATOR);
        }
        self.text.extend([name, "="]);
        // Cannot fail, unless the value's `Display` does. The field then has the part before.
        let _ = write!(Escaping(&mut self.text), "{value}");
        self
    }

    /// Adds a field that has a value.
    pub fn optional(self, name: &str, value: Option<impl Display>) -> Self {
        match value {
            Some(value) => self.field(name, value),
            None => self,
        }
    }

    pub fn into_text(self) -> String {
        self.text
    }
}

/// Percent-encodes what is written.
struct Escaping<'a>(&'a mut String);

impl Write for Escaping<'_> {
    fn write_str(&mut self, text: &str) -> std::fmt::Result {
        for c in text.chars() {
            // Other control characters than these have more than one byte.
            if c == '%' || c.is_ascii_control() {
                write!(self.0, "%{:02X}", u32::from(c))?;
            } else {
                self.0.push(c);
            }
        }
        Ok(())
    }
}

/// A record that was read: the names and the encoded values of its fields.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TextRecord<'a>(Vec<(&'a str, &'a str)>);

impl<'a> TextRecord<'a> {
    pub fn new(line: &'a str) -> Self {
        Self(line.split(SEPARATOR).filter_map(|field| field.split_once('=')).collect())
    }

    /// Whether the record is about this, which is a word without encoded characters.
    pub fn is_about(&self, kind: &str) -> bool {
        self.encoded(KIND) == Some(kind)
    }

    /// The value of a field.
    pub fn get(&self, name: &str) -> Option<String> {
        self.encoded(name).map(decoded)
    }

    /// The value of a field, as a number.
    pub fn number(&self, name: &str) -> Option<u64> {
        self.encoded(name)?.parse().ok()
    }

    fn encoded(&self, name: &str) -> Option<&'a str> {
        self.0.iter().find(|(known, _)| *known == name).map(|(_, value)| *value)
    }
}

fn decoded(value: &str) -> String {
    let mut text = Vec::with_capacity(value.len());
    let mut rest = value.as_bytes();
    while let [byte, after @ ..] = rest {
        let digits = (*byte == b'%').then(|| after.split_at_checked(2)).flatten();
        let escaped = digits.and_then(|(digits, after)| {
            let digits = std::str::from_utf8(digits).ok()?;
            Some((u8::from_str_radix(digits, 16).ok()?, after))
        });
        let (byte, after) = escaped.unwrap_or((*byte, after));
        text.push(byte);
        rest = after;
    }
    String::from_utf8_lossy(&text).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_value_comes_back() {
        for value in
            ["", "order:7", "a\tb\nc=d", "100%", "%41", "\u{0}\u{7f}\r", "é\u{85}\u{1F512}"]
        {
            let text = RecordWriter::default().field("k", value).field("other", 7).into_text();
            assert!(!text.contains(END) && !text.contains('\r'), "{text:?}");
            let record = TextRecord::new(&text);
            assert_eq!(record.get("k").as_deref(), Some(value));
            assert_eq!((record.number("other"), record.number("k")), (Some(7), None));
        }
    }

    #[test]
    fn a_text_that_is_no_record_has_no_fields() {
        for text in ["", "=", "garbage", "\t\t", "a=%", "a=%4", "a=%zz", "a=%€", "a=%+1"] {
            let record = TextRecord::new(text);
            assert_eq!(record.get("k"), None, "{text:?}");
            drop(record.get("a"));
        }
    }

    #[test]
    fn a_record_says_what_it_is_about() {
        let text = RecordWriter::about("hold").field("key", "k").into_text();
        let record = TextRecord::new(&text);
        assert!(record.is_about("hold") && !record.is_about("key"));
        assert_eq!(record.get("key").as_deref(), Some("k"));
    }

    #[test]
    fn a_field_without_a_value_is_left_out() {
        let text = RecordWriter::default().optional("a", None::<u64>).optional("b", Some(1));
        assert_eq!(text.into_text(), "b=1");
    }
}

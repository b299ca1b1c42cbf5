//! Who a client is, as others read it.
//!
//! A client writes this to a key in the store, its *presence*. The text has one line for each value, so that
//! people can read it as well.

use std::fmt;
use std::time::Duration;
use std::time::SystemTime;

/// The longest text, in bytes: that of a DNS name.
pub const LONGEST_TEXT: usize = 253;

/// The longest presence that is read, in bytes.
pub const LONGEST_PRESENCE: usize = 1024;

/// What a client tells about itself, as far as it is known. Other libraries tell nothing.
///
/// The texts are those of another client, which may be hostile: they have no control characters, and at most
/// 253 bytes each, but may contain markup.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct ClientInfo {
    /// The id with which the values of the client's locks begin, if it uses this library. A number for the memory
    /// store, whose locks have no values.
    pub id: Option<String>,
    /// The name of its host, or the name that it was given.
    pub name: Option<String>,
    /// Its process id.
    pub process: Option<u32>,
    /// The name of its service.
    pub service: Option<String>,
    /// The version of its service.
    pub version: Option<String>,
    /// When it was started, by its own clock.
    pub started: Option<SystemTime>,
    /// The version of this library that it uses.
    pub library: Option<String>,
}

impl ClientInfo {
    /// The same with this id.
    #[doc(hidden)]
    #[must_use]
    pub fn with_id(mut self, id: impl Into<String>) -> Self {
        self.id = Some(id.into());
        self
    }

    /// The text of the presence.
    #[doc(hidden)]
    pub fn to_presence(&self) -> String {
        let mut text = "v=1\n".to_owned();
        for (name, value) in self.fields() {
            if let Some(value) = value {
                text.extend([name, "=", &value, "\n"]);
            }
        }
        text
    }

    /// What a presence tells, which may be any text.
    #[doc(hidden)]
    pub fn of_presence(text: &[u8]) -> Self {
        let text = String::from_utf8_lossy(text);
        let fields: Vec<_> = text.lines().filter_map(|line| line.split_once('=')).collect();
        let told = Self::of_fields(|name| {
            // The last one counts.
            let field = fields.iter().rev().find(|(known, _)| *known == name)?;
            Some(field.1.to_owned())
        });
        Self { id: None, ..told }
    }

    /// What the client tells about itself, without its id.
    #[doc(hidden)]
    pub fn fields(&self) -> [(&'static str, Option<String>); 6] {
        let started = self.started.and_then(|at| at.duration_since(SystemTime::UNIX_EPOCH).ok());
        [
            ("name", self.name.clone()),
            ("pid", self.process.map(|process| process.to_string())),
            ("service", self.service.clone()),
            ("version", self.version.clone()),
            ("started", started.map(|at| at.as_millis().to_string())),
            ("library", self.library.clone()),
        ]
    }

    /// What a client has told, which may be any texts.
    #[doc(hidden)]
    pub fn of_fields(field: impl Fn(&str) -> Option<String>) -> Self {
        let text = |name| field(name).and_then(|value| harmless(&value));
        let started = field("started").and_then(|millis| millis.parse().ok());
        let at = |millis| SystemTime::UNIX_EPOCH.checked_add(Duration::from_millis(millis));
        Self {
            id: text("id"),
            name: text("name"),
            process: field("pid").and_then(|process| process.parse().ok()),
            service: text("service"),
            version: text("version"),
            started: started.and_then(at),
            library: text("library"),
        }
    }
}

/// Whether a character could hide or reorder a part of a line of the log.
fn is_invisible(c: char) -> bool {
    let is_format = matches!(
        c,
        '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{2069}' | '\u{feff}'
    );
    c.is_control() || is_format
}

/// A text of another client, without control characters.
pub fn visible(text: &str) -> String {
    text.chars().filter(|c| !is_invisible(*c)).collect()
}

/// A text of another client, without control characters, and not too long. `None` if nothing is left.
pub fn harmless(text: &str) -> Option<String> {
    let mut text = visible(text);
    while text.len() > LONGEST_TEXT {
        text.pop();
    }
    (!text.is_empty()).then_some(text)
}

/// Such as `web-3 (pid 4711, shop 1.4.2)`, or `client kX3_8fRtq` if only its id is known.
impl fmt::Display for ClientInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let process = self.process.map(|process| format!("pid {process}"));
        let service = self.service.as_ref().map(|service| {
            let version = self.version.as_ref().map(|version| format!(" {version}"));
            format!("{service}{}", version.unwrap_or_default())
        });
        let rest = [process, service].into_iter().flatten().collect::<Vec<_>>().join(", ");
        match (&self.name, &*rest) {
            (None, "") => match &self.id {
                Some(id) => write!(f, "client {id}"),
                None => f.write_str("a client that does not say who it is"),
            },
            (None, rest) => f.write_str(rest),
            (Some(name), "") => f.write_str(name),
            (Some(name), rest) => write!(f, "{name} ({rest})"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn full() -> ClientInfo {
        ClientInfo {
            id: None,
            name: Some("web-3".to_owned()),
            process: Some(4711),
            service: Some("shop".to_owned()),
            version: Some("1.4.2".to_owned()),
            started: Some(SystemTime::UNIX_EPOCH),
            library: Some("0.1.0".to_owned()),
        }
    }

    #[test]
    fn a_client_is_shown_with_what_is_known() {
        let full = full();
        assert_eq!(full.to_string(), "web-3 (pid 4711, shop 1.4.2)");
        let service = ClientInfo { process: None, version: None, ..full.clone() };
        assert_eq!(service.to_string(), "web-3 (shop)");
        let process = ClientInfo { service: None, ..full.clone() };
        assert_eq!(process.to_string(), "web-3 (pid 4711)");
        let name = ClientInfo { process: None, service: None, ..full.clone() };
        assert_eq!(name.to_string(), "web-3");
        let nameless = ClientInfo { name: None, ..full };
        assert_eq!(nameless.to_string(), "pid 4711, shop 1.4.2");
        assert_eq!(ClientInfo::default().to_string(), "a client that does not say who it is");
        let id = ClientInfo { id: Some("kX3_8fRtq".to_owned()), ..ClientInfo::default() };
        assert_eq!(id.to_string(), "client kX3_8fRtq");
    }

    #[test]
    fn a_presence_is_read_as_it_is_written() {
        let long = Some("x".repeat(LONGEST_TEXT));
        let longest =
            ClientInfo { name: long.clone(), service: long.clone(), version: long, ..full() };
        let marked = ClientInfo { name: Some("web=3 <script>".to_owned()), ..full() };
        for info in [full(), longest, marked, ClientInfo::default()] {
            let text = info.to_presence();
            assert!(text.len() <= LONGEST_PRESENCE, "{}", text.len());
            assert_eq!(ClientInfo::of_presence(text.as_bytes()), info);
        }
    }

    #[test]
    fn any_text_is_a_presence() {
        let info = |text: &[u8]| ClientInfo::of_presence(text);
        for nothing in [&b""[..], b"garbage", b"name=\npid=\nstarted=\n=x", &[200; 100]] {
            assert_eq!(info(nothing), ClientInfo::default());
        }
        let hostile = info(
            b"v=9\nname=a\x1b[31m\x07\xe2\x80\xae\npid=-1\nstarted=99999999999999999999\nnew=1",
        );
        assert_eq!(hostile, ClientInfo { name: Some("a[31m".to_owned()), ..ClientInfo::default() });
        let long = info(["name=".as_bytes(), "é".repeat(500).as_bytes()].concat().as_slice());
        assert_eq!(long.name.map(|name| name.len()), Some(LONGEST_TEXT - 1));
        assert_eq!(
            info(b"started=18446744073709551615").started.is_some(),
            cfg!(target_os = "linux")
        );
    }
}

//! The rules for lock keys, and the rendering of key templates.
//!
//! Values are encoded so that different lists of values never make the same key: `%`, `:`, `{`,
//! `}`, control characters and white space become percent escapes. If another placeholder follows,
//! so does the first character of the text between the two. Plain ids stay unchanged.

use std::borrow::Cow;
use std::fmt::{self, Display, Write};

use crate::error::LockError;

/// The longest key, in bytes, namespace included.
const LONGEST_KEY: usize = 1024;

/// The prefix of the keys that hold the highest fencing tokens.
pub const FENCES: &str = "lock_fence:";

/// The prefix of the keys that are written so that replicas acknowledge what was written before.
pub const ACKNOWLEDGEMENTS: &str = "lock_ack:";

/// The prefix of the keys that say since when a server grants locks.
pub const QUARANTINES: &str = "lock_quarantine:";

/// The prefix of the keys that hold the owner of a lock, in layouts whose locks have no room for
/// it.
pub const OWNERS: &str = "lock_owner:";

/// The prefix of the keys that hold the queues of waiting claims.
pub const QUEUES: &str = "lock_queue:";

/// The prefix of the keys that hold what the holders of locks announce.
pub const ANNOUNCEMENTS: &str = "lock_leader:";

/// The prefix of the keys that hold the records of runs.
pub const RUNS: &str = "lock_run:";

/// The prefix of the keys in which clients say who they are, and of the channels of clients.
pub const CLIENTS: &str = "lock_client:";

/// The prefixes of keys that are no locks, and what they are for.
const RESERVED: [(&str, &str); 8] = [
    (FENCES, "fencing tokens"),
    (OWNERS, "the owners of locks"),
    (ACKNOWLEDGEMENTS, "the acknowledgements of replicas"),
    (QUARANTINES, "the quarantines of servers"),
    (QUEUES, "the queues of waiting claims"),
    (ANNOUNCEMENTS, "the names of leaders"),
    (RUNS, "the records of runs"),
    (CLIENTS, "the presence of clients"),
];

/// Whether a full key cannot be that of a lock.
pub fn is_reserved(full: &str) -> bool {
    RESERVED.iter().any(|(reserved, _)| full.starts_with(reserved))
}

/// The largest number of bytes of an invalid key that an error shows.
const SHOWN: usize = 64;

/// Checks a key and puts the namespace before it.
pub fn full<'a>(namespace: &str, key: &'a str) -> Result<Cow<'a, str>, LockError> {
    if key.is_empty() {
        return Err(invalid(key, "the key is empty".into()));
    }
    let full = match namespace {
        "" => Cow::Borrowed(key),
        namespace => Cow::Owned(format!("{namespace}:{key}")),
    };
    for (reserved, purpose) in RESERVED {
        if full.starts_with(reserved) {
            let problem = format!("keys that begin with `{reserved}` are reserved for {purpose}");
            return Err(invalid(key, problem));
        }
    }
    if full.len() > LONGEST_KEY {
        let problem = match namespace {
            "" => format!("the key has {} bytes; the limit is {LONGEST_KEY}", full.len()),
            _ => format!(
                "with the namespace, the key has {} bytes; the limit is {LONGEST_KEY}",
                full.len()
            ),
        };
        return Err(invalid(key, problem));
    }
    Ok(full)
}

/// The key without the prefix that [`full`] has added.
pub fn without_namespace<'k>(namespace: &str, key: &'k str) -> &'k str {
    let short = key.strip_prefix(namespace).and_then(|key| key.strip_prefix(':'));
    short.filter(|_| !namespace.is_empty()).unwrap_or(key)
}

fn invalid(key: &str, problem: String) -> LockError {
    let mut end = key.len().min(SHOWN);
    while !key.is_char_boundary(end) {
        end -= 1;
    }
    let cut = if end < key.len() { "…" } else { "" };
    LockError::invalid_key(format!("{}{cut}", &key[..end]), problem)
}

/// A key for `LockClient::lock`: any text, or the result of
/// `key!`.
///
/// A key has at least one byte and at most 1,024 bytes, including the namespace. Keys that begin
/// with `lock_fence:`, `lock_owner:`, `lock_ack:`, `lock_quarantine:`, `lock_queue:`, `lock_leader:`,
/// `lock_run:` or `lock_client:` are reserved. An invalid key is reported when the lock is acquired.
///
/// # Examples
///
/// ```
/// use lock_runtime::LockKey;
///
/// assert_eq!(LockKey::from("order:42").into_string().as_deref(), Ok("order:42"));
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LockKey(Result<String, LockError>);

impl LockKey {
    /// Returns the text of the key, without the client's namespace.
    ///
    /// # Errors
    ///
    /// [`LockError::InvalidKey`] if a value in `key!` is empty, cannot be formatted,
    /// or makes the key longer than 1,024 bytes.
    pub fn into_string(self) -> Result<String, LockError> {
        self.0
    }
}

// Messages of the compiler speak of `LockKey`, and not of all types that any dependency converts into a string.
#[diagnostic::do_not_recommend]
impl<T: Into<String>> From<T> for LockKey {
    fn from(key: T) -> Self {
        Self(Ok(key.into()))
    }
}

/// A value that can be a part of a key.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be a part of a lock key, because it does not implement `Display`",
    label = "a placeholder of this key has the type `{Self}`",
    note = "use a field or a method of the value, such as `<order.id>`, or give any other \
            expression a name: `key = lock_runtime::key!(\"order:<id>\", id = …)`"
)]
pub trait KeyPart {
    /// Writes the value without encoding.
    ///
    /// # Errors
    ///
    /// If its `Display` implementation fails.
    fn write(&self, to: &mut dyn Write) -> fmt::Result;
}

// Without this, the compiler's error names `Display`, instead of the notes above.
#[diagnostic::do_not_recommend]
impl<T: Display + ?Sized> KeyPart for T {
    fn write(&self, to: &mut dyn Write) -> fmt::Result {
        write!(to, "{self}")
    }
}

/// Renders a template.
#[derive(Debug)]
pub struct KeyWriter {
    template: &'static str,
    key: String,
    /// The first problem.
    problem: Option<String>,
}

impl KeyWriter {
    /// Begins a key of `template`.
    #[must_use]
    pub fn new(template: &'static str) -> Self {
        // With some space for values, so that a typical key needs one allocation.
        Self { template, key: String::with_capacity(template.len() + 24), problem: None }
    }

    /// Adds a literal part of the template.
    pub fn literal(&mut self, text: &str) {
        self.key.push_str(text);
    }

    /// Adds the encoded value of the placeholder `name`. `until` is the first character of the
    /// text between this placeholder and the next one.
    pub fn value<T: KeyPart + ?Sized>(&mut self, name: &str, value: &T, until: Option<char>) {
        self.fill(name, |key| value.write(&mut Encoder { key, until }));
    }

    /// Adds the value of the placeholder `name` without encoding.
    pub fn raw<T: KeyPart + ?Sized>(&mut self, name: &str, value: &T) {
        self.fill(name, |key| value.write(key));
    }

    /// The finished key.
    #[must_use]
    pub fn finish(self) -> LockKey {
        LockKey(match self.problem {
            None => Ok(self.key),
            Some(problem) => Err(invalid(self.template, problem)),
        })
    }

    fn fill(&mut self, name: &str, write: impl FnOnce(&mut String) -> fmt::Result) {
        let start = self.key.len();
        let written = write(&mut self.key);
        if self.problem.is_some() {
            return;
        }
        if self.key.len() > LONGEST_KEY {
            self.problem = Some(format!(
                "the value of `<{name}>` makes the key longer than {LONGEST_KEY} bytes"
            ));
        } else if written.is_err() {
            self.problem = Some(format!("the value of `<{name}>` could not be formatted"));
        } else if self.key.len() == start {
            self.problem = Some(format!(
                "the value of `<{name}>` is empty; unrelated calls would share one lock"
            ));
        }
    }
}

/// Percent-encodes a value. Fails at the first character that makes the key too long.
struct Encoder<'a> {
    key: &'a mut String,
    until: Option<char>,
}

impl Write for Encoder<'_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        const DIGITS: &[u8; 16] = b"0123456789ABCDEF";
        for c in text.chars() {
            if is_plain(c) && Some(c) != self.until {
                self.key.push(c);
            } else {
                for byte in c.encode_utf8(&mut [0; 4]).bytes() {
                    self.key.push('%');
                    self.key.push(char::from(DIGITS[usize::from(byte >> 4)]));
                    self.key.push(char::from(DIGITS[usize::from(byte & 15)]));
                }
            }
            if self.key.len() > LONGEST_KEY {
                return Err(fmt::Error);
            }
        }
        Ok(())
    }
}

fn is_plain(c: char) -> bool {
    c.is_ascii_alphanumeric()
        || !(matches!(c, '%' | ':' | '{' | '}') || c.is_control() || c.is_whitespace())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn render(write: impl FnOnce(&mut KeyWriter)) -> Result<String, LockError> {
        let mut key = KeyWriter::new("template");
        write(&mut key);
        key.finish().into_string()
    }

    fn problem(key: Result<String, LockError>) -> String {
        match key {
            Err(LockError::InvalidKey { problem, .. }) => problem,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn plain_ids_stay_unchanged() {
        let key = render(|key| {
            key.literal("order:");
            key.value("id", &42, Some(':'));
            key.literal(":");
            key.value("name", "Ærø-7_b.é@x", None);
        });
        assert_eq!(key.as_deref(), Ok("order:42:Ærø-7_b.é@x"));
    }

    #[test]
    fn separators_and_white_space_in_values_are_encoded() {
        let key = render(|key| key.value("v", "a:b{c}%d e\n\u{a0}", None));
        assert_eq!(key.as_deref(), Ok("a%3Ab%7Bc%7D%25d%20e%0A%C2%A0"));
        let key = render(|key| key.value("v", "1-2", Some('-')));
        assert_eq!(key.as_deref(), Ok("1%2D2"), "the character after the placeholder");
    }

    #[test]
    fn raw_values_are_not_encoded() {
        assert_eq!(render(|key| key.raw("v", "{a}:b")).as_deref(), Ok("{a}:b"));
    }

    #[test]
    fn different_values_never_make_the_same_key() {
        let alphabet = ["", "a", "-", ":", "%", "{", "}", " ", "2D", "%2D", "é", "\0"];
        let mut words = Vec::new();
        for x in alphabet {
            for y in alphabet {
                for z in alphabet {
                    words.push(format!("{x}{y}{z}"));
                }
            }
        }
        words.sort();
        words.dedup();
        words.retain(|word| !word.is_empty());
        let pair = |a: &String, b: &String| {
            render(|key| {
                key.value("a", a, Some('-'));
                key.literal("-");
                key.value("b", b, None);
            })
            .expect("valid")
        };
        let mut keys: Vec<String> =
            words.iter().flat_map(|a| words.iter().map(move |b| pair(a, b))).collect();
        let all = keys.len();
        keys.sort_unstable();
        keys.dedup();
        assert_eq!(keys.len(), all);
    }

    #[test]
    fn an_empty_value_is_an_error() {
        let key = render(|key| {
            key.literal("user:");
            key.value("user.name", "", None);
        });
        assert!(problem(key).contains("`<user.name>` is empty"));
        assert!(problem(render(|key| key.raw("id", ""))).contains("`<id>`"));
    }

    #[test]
    fn the_first_problem_is_reported() {
        let key = render(|key| {
            key.value("first", "", None);
            key.value("second", &"x".repeat(2000), None);
        });
        assert!(problem(key).contains("`<first>`"));
    }

    #[test]
    fn a_huge_value_is_an_error_and_is_not_copied_as_a_whole() {
        let huge = "x".repeat(1 << 26);
        let mut key = KeyWriter::new("t");
        key.value("blob", &huge, None);
        assert!(key.key.len() <= LONGEST_KEY + 1);
        let problem = problem(key.finish().into_string());
        assert!(problem.contains("`<blob>` makes the key longer than 1024 bytes"), "{problem}");
    }

    #[test]
    fn a_value_that_cannot_be_formatted_is_an_error() {
        struct Broken;
        impl Display for Broken {
            fn fmt(&self, _: &mut fmt::Formatter<'_>) -> fmt::Result {
                Err(fmt::Error)
            }
        }
        assert!(problem(render(|key| key.value("b", &Broken, None))).contains("`<b>` could not"));
    }

    #[test]
    fn keys_have_from_1_to_1024_bytes_with_the_namespace() {
        assert!(problem(full("", "").map(Cow::into_owned)).contains("empty"));
        assert!(problem(full("ns", "").map(Cow::into_owned)).contains("empty"));
        assert_eq!(full("ns", "k").as_deref(), Ok("ns:k"));
        for reserved in [FENCES, OWNERS, ACKNOWLEDGEMENTS, QUARANTINES] {
            let key = format!("{reserved}{{1}}");
            assert!(problem(full("", &key).map(Cow::into_owned)).contains(reserved));
            assert!(full("ns", &key).is_ok());
        }
        let longest = "é".repeat(512);
        assert_eq!(full("", &longest).as_deref(), Ok(&*longest));
        assert!(problem(full("n", &longest).map(Cow::into_owned)).contains("1026 bytes"));
        match full("", &"é".repeat(1000)) {
            Err(LockError::InvalidKey { key, .. }) => assert!(key.len() < 80, "{key}"),
            other => panic!("{other:?}"),
        }
    }
}

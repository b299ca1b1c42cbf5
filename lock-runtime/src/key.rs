//! Lock keys: the rules that all of them follow, and how the attribute fills in a template.
//!
//! A value is encoded so that no two lists of values make the same key: `%`, `:`, `{`, `}`,
//! controls and white space in it become percent escapes, and so does the character that ends its
//! placeholder's part of the template. Plain ids come out as they are.

use std::borrow::Cow;
use std::fmt::{self, Display, Write};

use crate::error::LockError;

/// The longest key, in bytes, namespace included.
const LONGEST_KEY: usize = 1024;

/// How the keys of the highest fencing tokens begin.
pub(crate) const FENCES: &str = "lock_fence:";

/// How the keys begin that name the owners of locks which do not.
pub(crate) const OWNERS: &str = "lock_owner:";

/// How much of a bad key an error shows.
const SHOWN: usize = 64;

/// Checks a key and puts the namespace before it.
pub(crate) fn full<'a>(namespace: &str, key: &'a str) -> Result<Cow<'a, str>, LockError> {
    if key.is_empty() {
        return Err(invalid(key, "it is empty".into()));
    }
    let full = match namespace {
        "" => Cow::Borrowed(key),
        namespace => Cow::Owned(format!("{namespace}:{key}")),
    };
    for (reserved, whose) in [(FENCES, "the fencing tokens'"), (OWNERS, "the owners' of locks")] {
        if full.starts_with(reserved) {
            let problem = format!("keys that begin with `{reserved}` are {whose}");
            return Err(invalid(key, problem));
        }
    }
    if full.len() > LONGEST_KEY {
        let problem = match namespace {
            "" => format!("it has {} bytes, the limit is {LONGEST_KEY}", full.len()),
            _ => format!(
                "with the namespace it has {} bytes, the limit is {LONGEST_KEY}",
                full.len()
            ),
        };
        return Err(invalid(key, problem));
    }
    Ok(full)
}

fn invalid(key: &str, problem: String) -> LockError {
    let mut end = key.len().min(SHOWN);
    while !key.is_char_boundary(end) {
        end -= 1;
    }
    let cut = if end < key.len() { "…" } else { "" };
    LockError::InvalidKey { key: format!("{}{cut}", &key[..end]), problem }
}

/// What may stand in a placeholder.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be a part of a lock's key, because it has no `Display`",
    label = "a placeholder of this key",
    note = "use a field or a method of it, such as `<order.id>`, or `key = format!(…)`"
)]
pub trait KeyPart {
    /// Writes it as it is.
    ///
    /// # Errors
    ///
    /// When its `Display` fails.
    fn write(&self, to: &mut dyn Write) -> fmt::Result;
}

// Otherwise the compiler speaks of `Display`, and not of what to do.
#[diagnostic::do_not_recommend]
impl<T: Display + ?Sized> KeyPart for T {
    fn write(&self, to: &mut dyn Write) -> fmt::Result {
        write!(to, "{self}")
    }
}

/// Fills in the template of an annotated function.
#[derive(Debug)]
pub struct KeyWriter {
    template: &'static str,
    key: String,
    /// The first thing that was wrong.
    problem: Option<String>,
}

impl KeyWriter {
    /// Starts the key of `template`.
    #[must_use]
    pub fn new(template: &'static str) -> Self {
        // Room for the values as well, so that a usual key is one allocation.
        Self { template, key: String::with_capacity(template.len() + 24), problem: None }
    }

    /// A part of the template that is taken as it is.
    pub fn literal(&mut self, text: &str) {
        self.key.push_str(text);
    }

    /// The value of the placeholder `name`, encoded; `until` is what follows it in the template.
    pub fn value<T: KeyPart + ?Sized>(&mut self, name: &str, value: &T, until: Option<char>) {
        self.fill(name, |key| value.write(&mut Encoder { key, until }));
    }

    /// The value of the placeholder `name` as it is.
    pub fn raw<T: KeyPart + ?Sized>(&mut self, name: &str, value: &T) {
        self.fill(name, |key| value.write(key));
    }

    /// The finished key.
    ///
    /// # Errors
    ///
    /// [`LockError::InvalidKey`] if a value was empty or could not be formatted, or the key is too
    /// long.
    pub fn finish(self) -> Result<String, LockError> {
        match self.problem {
            None => Ok(self.key),
            Some(problem) => Err(invalid(self.template, problem)),
        }
    }

    fn fill(&mut self, name: &str, write: impl FnOnce(&mut String) -> fmt::Result) {
        let start = self.key.len();
        let written = write(&mut self.key);
        if self.problem.is_some() {
            return;
        }
        if self.key.len() > LONGEST_KEY {
            self.problem =
                Some(format!("the value of `<{name}>` makes it longer than {LONGEST_KEY} bytes"));
        } else if written.is_err() {
            self.problem = Some(format!("the value of `<{name}>` could not be formatted"));
        } else if self.key.len() == start {
            self.problem = Some(format!(
                "the value of `<{name}>` is empty, and would be one lock for everybody"
            ));
        }
    }
}

/// Stops at the first character that makes the key too long.
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
        key.finish()
    }

    fn problem(key: Result<String, LockError>) -> String {
        match key {
            Err(LockError::InvalidKey { problem, .. }) => problem,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn plain_ids_come_out_as_they_are() {
        let key = render(|key| {
            key.literal("order:");
            key.value("id", &42, Some(':'));
            key.literal(":");
            key.value("name", "Ærø-7_b.é@x", None);
        });
        assert_eq!(key.as_deref(), Ok("order:42:Ærø-7_b.é@x"));
    }

    #[test]
    fn what_could_be_mistaken_for_structure_is_encoded() {
        let key = render(|key| key.value("v", "a:b{c}%d e\n\u{a0}", None));
        assert_eq!(key.as_deref(), Ok("a%3Ab%7Bc%7D%25d%20e%0A%C2%A0"));
        let key = render(|key| key.value("v", "1-2", Some('-')));
        assert_eq!(key.as_deref(), Ok("1%2D2"), "the end of its own placeholder");
    }

    #[test]
    fn raw_values_are_not() {
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
    fn an_empty_value_is_not_one_lock_for_everybody() {
        let key = render(|key| {
            key.literal("user:");
            key.value("user.name", "", None);
        });
        assert!(problem(key).contains("`<user.name>` is empty"));
        assert!(problem(render(|key| key.raw("id", ""))).contains("`<id>`"));
    }

    #[test]
    fn the_first_problem_is_told() {
        let key = render(|key| {
            key.value("first", "", None);
            key.value("second", &"x".repeat(2000), None);
        });
        assert!(problem(key).contains("`<first>`"));
    }

    #[test]
    fn a_huge_value_is_refused_without_being_copied_whole() {
        let huge = "x".repeat(1 << 26);
        let mut key = KeyWriter::new("t");
        key.value("blob", &huge, None);
        assert!(key.key.len() <= LONGEST_KEY + 1);
        assert!(problem(key.finish()).contains("`<blob>` makes it longer than 1024 bytes"));
    }

    #[test]
    fn a_value_that_cannot_be_formatted_is_refused() {
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
        for reserved in [FENCES, OWNERS] {
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

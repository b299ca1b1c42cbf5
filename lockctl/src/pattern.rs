//! Patterns of keys.

use std::convert::Infallible;
use std::str::FromStr;

/// A pattern in which `*` is any text and `?` any character; a backslash takes the next character as it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct KeyPattern(Vec<Part>);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Part {
    AnyText,
    AnyCharacter,
    Character(char),
}

impl FromStr for KeyPattern {
    type Err = Infallible;

    fn from_str(text: &str) -> Result<Self, Infallible> {
        let (mut parts, mut characters) = (Vec::new(), text.chars());
        while let Some(c) = characters.next() {
            parts.push(match c {
                '*' => Part::AnyText,
                '?' => Part::AnyCharacter,
                '\\' => Part::Character(characters.next().unwrap_or('\\')),
                c => Part::Character(c),
            });
        }
        Ok(Self(parts))
    }
}

impl KeyPattern {
    /// A glob of Redis that matches all keys that this pattern matches, and perhaps more: there, `?` is a byte.
    pub(crate) fn to_glob(&self) -> String {
        let mut glob = String::new();
        for part in &self.0 {
            match part {
                Part::AnyText | Part::AnyCharacter => glob.push('*'),
                Part::Character(c) => {
                    if matches!(c, '*' | '?' | '[' | ']' | '^' | '\\') {
                        glob.push('\\');
                    }
                    glob.push(*c);
                }
            }
        }
        glob
    }

    /// Whether the whole text matches. Takes time in proportion to the product of both lengths at most.
    pub(crate) fn matches(&self, text: &str) -> bool {
        let text: Vec<char> = text.chars().collect();
        let (mut at, mut part) = (0, 0);
        // The last `*`, and where the text after it begins.
        let mut star: Option<(usize, usize)> = None;
        while at < text.len() {
            match self.0.get(part) {
                Some(Part::AnyText) => {
                    star = Some((part, at));
                    part += 1;
                }
                Some(Part::AnyCharacter) => (at, part) = (at + 1, part + 1),
                Some(Part::Character(c)) if *c == text[at] => (at, part) = (at + 1, part + 1),
                _ => match &mut star {
                    Some((of, after)) => {
                        *after += 1;
                        (at, part) = (*after, *of + 1);
                    }
                    None => return false,
                },
            }
        }
        self.0[part..].iter().all(|part| *part == Part::AnyText)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_match_whole_keys() {
        for (pattern, matching, other) in [
            ("order:*", &["order:", "order:7", "order:7:a"][..], &["order", "an order:7"][..]),
            ("*:7", &["a:7", ":7", "a:7:7"], &["a:7:", "a:77"]),
            ("a?c", &["abc", "aéc"], &["ac", "abbc"]),
            ("*a*b*", &["ab", "xaxbx"], &["ba"]),
            (r"\*", &["*"], &["a", r"\*"]),
            ("", &[""], &["a"]),
            ("*", &["", "a"], &[]),
        ] {
            let parsed: KeyPattern = pattern.parse().expect("any text is a pattern");
            assert!(matching.iter().all(|key| parsed.matches(key)), "{pattern}");
            assert!(!other.iter().any(|key| parsed.matches(key)), "{pattern}");
        }
    }

    #[test]
    fn globs_match_at_least_as_much() {
        for (pattern, glob) in [("a?b*", "a*b*"), ("[a]^", r"\[a\]\^"), (r"\*\\", r"\*\\")] {
            let parsed: KeyPattern = pattern.parse().expect("any text is a pattern");
            assert_eq!(parsed.to_glob(), glob);
        }
    }

    #[test]
    fn many_stars_are_no_problem() {
        let pattern: KeyPattern = "*a".repeat(200).parse().expect("any text is a pattern");
        assert!(!pattern.matches(&("a".repeat(199) + &"b".repeat(800))));
    }
}

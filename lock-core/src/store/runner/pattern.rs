//! Patterns of keys, for stores that find keys by their beginnings only.

/// A glob, as Redis has them: `*` is any text, `?` any character, `[a-c]` and `[^a-c]` are one of some characters or one of
/// all others, and `\` makes the next character an ordinary one. (Characters are bytes in Redis.)
/// <https://redis.io/docs/latest/commands/keys/>
pub(super) struct KeyGlob(Vec<GlobPart>);

enum GlobPart {
    AnyText,
    AnyCharacter,
    Character(char),
    OneOf { ranges: Vec<(char, char)>, is_negated: bool },
}

impl GlobPart {
    /// Whether this part, which is not any text, matches a character.
    fn matches(&self, c: char) -> bool {
        match self {
            Self::AnyText | Self::AnyCharacter => true,
            Self::Character(own) => *own == c,
            Self::OneOf { ranges, is_negated } => {
                ranges.iter().any(|(from, to)| (from..=to).contains(&&c)) != *is_negated
            }
        }
    }
}

impl KeyGlob {
    pub(super) fn new(pattern: &str) -> Self {
        let (mut parts, mut rest) = (Vec::new(), pattern.chars().peekable());
        while let Some(c) = rest.next() {
            parts.push(match c {
                '*' => GlobPart::AnyText,
                '?' => GlobPart::AnyCharacter,
                '\\' => GlobPart::Character(rest.next().unwrap_or('\\')),
                '[' => {
                    let is_negated = rest.next_if_eq(&'^').is_some();
                    let mut ranges = Vec::new();
                    while let Some(c) = rest.next().filter(|c| *c != ']') {
                        if c == '\\' {
                            let c = rest.next().unwrap_or(c);
                            ranges.push((c, c));
                            continue;
                        }
                        let mut after = rest.clone();
                        let to = after.next_if_eq(&'-').and_then(|_| after.next_if(|c| *c != ']'));
                        if to.is_some() {
                            rest = after;
                        }
                        let to = to.unwrap_or(c);
                        ranges.push((c.min(to), c.max(to)));
                    }
                    GlobPart::OneOf { ranges, is_negated }
                }
                c => GlobPart::Character(c),
            });
        }
        Self(parts)
    }

    /// What all keys that match begin with.
    pub(super) fn prefix(&self) -> String {
        let literal = self.0.iter().map_while(|part| match part {
            GlobPart::Character(c) => Some(*c),
            _ => None,
        });
        literal.collect()
    }

    pub(super) fn matches(&self, key: &str) -> bool {
        let (mut parts, mut text) = (&self.0[..], key.chars());
        // What remains after the last `*`, and the text that it has not been compared with yet.
        let mut again = None;
        loop {
            match parts.split_first() {
                Some((GlobPart::AnyText, rest)) => {
                    parts = rest;
                    again = Some((rest, text.clone()));
                    continue;
                }
                Some((part, rest)) if text.clone().next().is_some_and(|c| part.matches(c)) => {
                    text.next();
                    parts = rest;
                    continue;
                }
                None if text.as_str().is_empty() => return true,
                _ => {}
            }
            // The last `*` stands for one more character.
            let Some((rest, later)) = &mut again else { return false };
            if later.next().is_none() {
                return false;
            }
            (parts, text) = (rest, later.clone());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn globs_of_ascii_match_as_in_redis() {
        for (pattern, matching, other) in [
            ("", &[""][..], &["a"][..]),
            ("*", &["", "a", "é\n"], &[]),
            ("a*c", &["ac", "abc", "abcbc"], &["a", "abcd"]),
            ("*a*b", &["ab", "xaab", "abab"], &["a", "ba", "aba"]),
            ("h?t", &["hat", "hét"], &["ht", "haat"]),
            ("h[ae]t", &["hat", "het"], &["hit", "ht"]),
            ("h[^ae]t", &["hit"], &["hat", "ht"]),
            ("[c-a-]", &["a", "b", "c", "-"], &["d", ""]),
            (r"[\]\-]", &["]", "-"], &["\\"]),
            (r"[\a-c]", &["a", "-", "c"], &["b", "\\"]),
            (r"\*\[", &["*["], &["a["]),
            (r"a\", &[r"a\"], &["a"]),
            ("[ab", &["a", "b"], &["[ab"]),
            ("[]a", &[], &["a", "]a"]),
        ] {
            let glob = KeyGlob::new(pattern);
            assert!(matching.iter().all(|key| glob.matches(key)), "{pattern}: {matching:?}");
            assert!(!other.iter().any(|key| glob.matches(key)), "{pattern}: {other:?}");
        }
    }

    #[test]
    fn the_literal_beginning_of_a_glob_is_the_prefix_of_all_keys() {
        for (pattern, prefix) in [
            ("shop:order:*", "shop:order:"),
            (r"a\*b?c", "a*b"),
            ("*", ""),
            ("k", "k"),
            ("a[b]", "a"),
        ] {
            assert_eq!(KeyGlob::new(pattern).prefix(), prefix);
        }
    }

    #[test]
    fn many_stars_take_no_longer_than_a_product() {
        let (pattern, key) = ("*a".repeat(100), "a".repeat(99) + &"b".repeat(1000));
        assert!(!KeyGlob::new(&pattern).matches(&key));
    }
}

//! Which locks a script is about.

use crate::telemetry::NO_TEMPLATE;

/// A template, or a key with `*` for any text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Pattern(String);

impl Pattern {
    pub(super) fn new(text: &str) -> Self {
        Self(text.to_owned())
    }

    /// Whether the lock has this template or key. `key` has no namespace. A template of another function does not
    /// match although its keys would.
    pub(super) fn matches(&self, template: &str, key: &str) -> bool {
        let is_other_template = self.0.contains('<') && template != NO_TEMPLATE;
        template == self.0 || !is_other_template && glob(&self.key_pattern(), key)
    }

    /// The pattern of the keys: a placeholder of a template stands for any text.
    fn key_pattern(&self) -> String {
        let mut rest = &*self.0;
        let mut pattern = String::new();
        while let Some((before, after)) = rest.split_once('<') {
            pattern.push_str(&before.replace(">>", ">"));
            if let Some(literal) = after.strip_prefix('<') {
                pattern.push('<');
                rest = literal;
            } else if let Some((_, after)) = after.split_once('>') {
                pattern.push('*');
                rest = after;
            } else {
                pattern.push('<');
                rest = after;
            }
        }
        pattern + &rest.replace(">>", ">")
    }
}

impl std::fmt::Display for Pattern {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

/// Whether a text matches a pattern in which `*` stands for any text.
fn glob(pattern: &str, text: &str) -> bool {
    let Some((before, after)) = pattern.split_once('*') else { return pattern == text };
    let Some(rest) = text.strip_prefix(before) else { return false };
    let mut ends = rest.char_indices().map(|(at, _)| at).chain([rest.len()]);
    ends.any(|end| glob(after, &rest[end..]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_star_stands_for_any_text() {
        for (pattern, text, matches) in [
            ("order:7", "order:7", true),
            ("order:7", "order:77", false),
            ("order:*", "order:", true),
            ("*", "", true),
            ("*:7", "order:7", true),
            ("a*b*c", "aXbYbZc", true),
            ("a*b*c", "aXcYb", false),
            ("é*", "éü", true),
        ] {
            assert_eq!(
                Pattern::new(pattern).matches(NO_TEMPLATE, text),
                matches,
                "{pattern} {text}"
            );
        }
    }

    #[test]
    fn a_placeholder_stands_for_any_text() {
        let template = Pattern::new("order:<id>:<part.name>");
        assert!(template.matches("order:<id>:<part.name>", "anything"));
        assert!(template.matches(NO_TEMPLATE, "order:7:pen"));
        assert!(!template.matches(NO_TEMPLATE, "order:7"));
        assert!(!template.matches("order:<id>", "order:7:pen"), "another function");
        assert!(Pattern::new("a<<b>>").matches(NO_TEMPLATE, "a<b>"));
        assert!(Pattern::new("a<b").matches(NO_TEMPLATE, "a<b"));
    }
}

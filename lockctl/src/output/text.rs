//! Texts of other clients, for people: keys may contain any characters.

use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

/// The same text, without characters that could hide or reorder a part of the line, or control the terminal. A
/// backslash is escaped as well, so that different texts are shown differently.
pub(crate) fn harmless(text: &str) -> String {
    escaped(text, |c| c == '\\' || is_hidden(c))
}

/// The same text without such characters, for texts in which keys are quoted and escaped already.
pub(crate) fn printable(text: &str) -> String {
    escaped(text, is_hidden)
}

fn escaped(text: &str, must_escape: impl Fn(char) -> bool) -> String {
    let mut shown = String::with_capacity(text.len());
    for c in text.chars() {
        if must_escape(c) {
            shown.extend(c.escape_default());
        } else {
            shown.push(c);
        }
    }
    shown
}

/// Whether a character cannot be seen, or acts on the terminal or on other characters.
pub(super) fn is_hidden(c: char) -> bool {
    c.is_control() || is_directional(c) || (c.width() == Some(0) && !is_mark(c))
}

/// Whether a character changes the direction of the text, or is invisible.
fn is_directional(c: char) -> bool {
    matches!(
        c,
        '\u{61c}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{2069}' | '\u{feff}'
    )
}

/// Whether a character of no width is part of the letter before it, as in many scripts.
fn is_mark(c: char) -> bool {
    c.is_alphanumeric() || matches!(c, '\u{300}'..='\u{36f}' | '\u{fe0f}')
}

/// The number of columns of a terminal that a text takes.
pub(super) fn width(text: &str) -> usize {
    text.width()
}

/// The text in at most so many columns, with an ellipsis for what is cut off.
pub(super) fn cut(text: &str, columns: usize) -> String {
    if width(text) <= columns {
        return text.to_owned();
    }
    let (mut shown, mut taken) = (String::new(), 1);
    for c in text.chars() {
        taken += c.width().unwrap_or(0);
        if taken > columns {
            break;
        }
        shown.push(c);
    }
    shown.push('…');
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hostile_characters_are_escaped() {
        for (text, shown) in [
            ("order:7", "order:7"),
            ("größe 你好 é", "größe 你好 é"),
            ("a\x1b[31mb\r\n", r"a\u{1b}[31mb\r\n"),
            ("a\u{202e}b\u{2066}\u{200b}", r"a\u{202e}b\u{2066}\u{200b}"),
            ("a\u{9b}b\0", r"a\u{9b}b\u{0}"),
            ("\\n", r"\\n"),
        ] {
            assert_eq!(harmless(text), shown);
            assert_eq!(printable(text), shown.replace(r"\\", r"\"));
        }
    }

    #[test]
    fn long_texts_are_cut() {
        assert_eq!(cut("abcdef", 6), "abcdef");
        assert_eq!(cut("abcdef", 4), "abc…");
        assert_eq!(cut("你好吗", 4), "你…");
        assert_eq!(cut("abc", 0), "…");
    }
}

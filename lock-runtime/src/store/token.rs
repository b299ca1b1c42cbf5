//! Owner tokens: who holds a key.

use std::fmt;

/// 128 random bits from the operating system, as 32 hexadecimal digits; fresh for every
/// acquisition, so that a stale holder can never be mistaken for its successor.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Token([u8; 32]);

impl Token {
    /// A fresh token.
    pub(crate) fn random() -> Result<Self, getrandom::Error> {
        const DIGITS: &[u8; 16] = b"0123456789abcdef";
        let mut random = [0_u8; 16];
        getrandom::fill(&mut random)?;
        let mut text = [0_u8; 32];
        for (pair, byte) in text.chunks_exact_mut(2).zip(random) {
            pair[0] = DIGITS[usize::from(byte >> 4)];
            pair[1] = DIGITS[usize::from(byte & 15)];
        }
        Ok(Self(text))
    }

    pub(crate) fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

/// The first digits: enough to tell holders apart in a log, too few to act as one.
impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let start = std::str::from_utf8(&self.0[..6]).unwrap_or_default();
        write!(f, "Token({start}…)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_hexadecimal_and_never_repeat() {
        let tokens: Vec<Token> = (0..1000).map(|_| Token::random().expect("randomness")).collect();
        for token in &tokens {
            assert!(token.as_bytes().iter().all(u8::is_ascii_hexdigit));
        }
        let distinct: std::collections::HashSet<_> = tokens.iter().map(|t| t.0).collect();
        assert_eq!(distinct.len(), tokens.len());
    }

    #[test]
    fn a_token_is_not_shown_whole() {
        let token = Token::random().expect("randomness");
        let whole = std::str::from_utf8(token.as_bytes()).expect("ascii").to_owned();
        assert!(!format!("{token:?}").contains(&whole));
    }
}

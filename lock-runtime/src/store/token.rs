//! Owner tokens: who holds a key.

use std::fmt;

use crate::format::WireFormat;

/// 128 random bits from the operating system, as 32 hexadecimal digits; fresh for every
/// acquisition, so that a stale holder can never be mistaken for its successor.
///
/// It knows the format that it is written in, so that all requests about one hold are in one format.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Token {
    digits: [u8; 32],
    format: WireFormat,
}

impl Token {
    /// A fresh token, in the default format.
    pub(crate) fn random() -> Result<Self, getrandom::Error> {
        const DIGITS: &[u8; 16] = b"0123456789abcdef";
        let mut random = [0_u8; 16];
        getrandom::fill(&mut random)?;
        let mut text = [0_u8; 32];
        for (pair, byte) in text.chunks_exact_mut(2).zip(random) {
            pair[0] = DIGITS[usize::from(byte >> 4)];
            pair[1] = DIGITS[usize::from(byte & 15)];
        }
        Ok(Self { digits: text, format: WireFormat::default() })
    }

    /// The same in another format.
    pub(crate) fn in_format(self, format: WireFormat) -> Self {
        Self { format, ..self }
    }

    pub(crate) fn format(&self) -> WireFormat {
        self.format
    }

    pub(crate) fn as_bytes(&self) -> &[u8] {
        &self.digits
    }

    /// 63 of its bits, as a positive number.
    pub(crate) fn number(&self) -> i64 {
        let digit = |digit: &u8| i64::from(char::from(*digit).to_digit(16).unwrap_or_default());
        let number = self.digits[..16].iter().fold(0_i64, |number, next| number << 4 | digit(next));
        (number & i64::MAX).max(1)
    }
}

/// The first digits: enough to tell holders apart in a log, too few to act as one.
impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let start = std::str::from_utf8(&self.digits[..6]).unwrap_or_default();
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
        let distinct: std::collections::HashSet<_> = tokens.iter().map(|t| t.digits).collect();
        assert_eq!(distinct.len(), tokens.len());
    }

    #[test]
    fn a_token_is_a_positive_number_as_well() {
        let token = |digits: &[u8; 32]| Token { digits: *digits, format: WireFormat::Redisson };
        assert_eq!(token(b"0000000000000000ffffffffffffffff").number(), 1);
        assert_eq!(token(b"ffffffffffffffff0000000000000000").number(), i64::MAX);
        assert_eq!(token(b"800000000000012c0000000000000000").number(), 300);
    }

    #[test]
    fn a_token_is_not_shown_whole() {
        let token = Token::random().expect("randomness");
        let whole = std::str::from_utf8(token.as_bytes()).expect("ascii").to_owned();
        assert!(!format!("{token:?}").contains(&whole));
    }
}

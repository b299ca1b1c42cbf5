//! Owner ids.

use std::fmt;

/// Identifies one acquisition: 128 random bits from the operating system, so that a stale holder is
/// never mistaken for a later one.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct OwnerId(u128);

impl OwnerId {
    pub(crate) fn random() -> Result<Self, getrandom::Error> {
        let mut random = [0_u8; 16];
        getrandom::fill(&mut random)?;
        Ok(Self(u128::from_be_bytes(random)))
    }

    /// The id as 32 hexadecimal digits.
    pub(crate) fn to_hex(self) -> [u8; 32] {
        const DIGITS: &[u8; 16] = b"0123456789abcdef";
        let mut text = [0_u8; 32];
        for (pair, byte) in text.chunks_exact_mut(2).zip(self.0.to_be_bytes()) {
            pair[0] = DIGITS[usize::from(byte >> 4)];
            pair[1] = DIGITS[usize::from(byte & 15)];
        }
        text
    }

    /// The id that [`to_hex`](Self::to_hex) has written. `None` if these are not 32 digits.
    #[cfg(feature = "redis")]
    pub(crate) fn from_hex(text: &[u8]) -> Option<Self> {
        let digit = |id: u128, digit: &u8| {
            let value = char::from(*digit).to_digit(16)?;
            Some(id << 4 | u128::from(value))
        };
        (text.len() == 32).then_some(())?;
        text.iter().try_fold(0, digit).map(Self)
    }

    /// 63 bits of the id, as a positive number.
    pub(crate) fn number(self) -> i64 {
        let bits = (self.0 >> 64) & u128::from(i64::MAX.unsigned_abs());
        i64::try_from(bits).unwrap_or(i64::MAX).max(1)
    }
}

/// Shows the first digits only: enough to distinguish owners in a log, and too few to release a
/// lock.
impl fmt::Debug for OwnerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "OwnerId({:06x}…)", self.0 >> 104)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_distinct() {
        let ids: Vec<u128> = (0..1000).map(|_| OwnerId::random().expect("randomness").0).collect();
        let distinct: std::collections::HashSet<_> = ids.iter().collect();
        assert_eq!(distinct.len(), ids.len());
    }

    #[test]
    fn an_id_has_32_digits() {
        assert_eq!(&OwnerId(0x12ab).to_hex(), b"000000000000000000000000000012ab");
        assert_eq!(&OwnerId(u128::MAX).to_hex(), &[b'f'; 32]);
    }

    #[cfg(feature = "redis")]
    #[test]
    fn an_id_is_read_as_it_is_written() {
        let id = OwnerId::random().expect("randomness");
        assert_eq!(OwnerId::from_hex(&id.to_hex()), Some(id));
        for other in [&b"12ab"[..], &[b'g'; 32], &[b'1'; 33], &[200; 32]] {
            assert_eq!(OwnerId::from_hex(other), None);
        }
    }

    #[test]
    fn an_id_has_a_positive_number() {
        assert_eq!(OwnerId(u128::from(u64::MAX)).number(), 1);
        assert_eq!(OwnerId(u128::from(u64::MAX) << 64).number(), i64::MAX);
        assert_eq!(OwnerId(0x8000_0000_0000_012c << 64).number(), 300);
    }

    #[test]
    fn an_id_is_shown_only_in_part() {
        let shown = format!("{:?}", OwnerId(0xfedc_ba98_7654_3210_0123_4567_89ab_cdef));
        assert_eq!(shown, "OwnerId(fedcba…)");
    }
}

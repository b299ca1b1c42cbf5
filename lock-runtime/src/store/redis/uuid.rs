//! UUIDs, which are the ids of clients. Versions of the crate `uuid` need a newer Rust than this library does.

use std::fmt;

/// The length of a UUID, as text.
pub(super) const UUID: usize = 36;

/// Where the text of a UUID has hyphens.
const HYPHENS: [usize; 4] = [8, 13, 18, 23];

/// The 128 bits of a UUID.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Uuid(u128);

impl Uuid {
    /// A UUID of version 4, whose other bits are these.
    pub(super) fn from_random(random: [u8; 16]) -> Self {
        const VERSION: u128 = 0xf << 76;
        const VARIANT: u128 = 0b11 << 62;
        Self(u128::from_be_bytes(random) & !(VERSION | VARIANT) | 4 << 76 | 0b10 << 62)
    }

    /// The UUID with this text. `None` if it is a different text.
    pub(super) fn parse(text: &[u8]) -> Option<Self> {
        if text.len() != UUID {
            return None;
        }
        let mut bits = 0;
        for (at, &byte) in text.iter().enumerate() {
            if HYPHENS.contains(&at) {
                (byte == b'-').then_some(())?;
            } else {
                bits = bits << 4 | u128::from(char::from(byte).to_digit(16)?);
            }
        }
        Some(Self(bits))
    }

    pub(super) fn bits(self) -> u128 {
        self.0
    }
}

impl fmt::Display for Uuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let part = |end: u32, digits: u32| self.0 >> end & ((1 << (4 * digits)) - 1);
        let (first, second, third) = (part(96, 8), part(80, 4), part(64, 4));
        write!(f, "{first:08x}-{second:04x}-{third:04x}-{:04x}-{:012x}", part(48, 4), part(0, 12))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "b983c153-0421-469a-addb-04fb92259a1b";

    #[test]
    fn a_text_is_parsed_and_written_again() {
        let uuid = Uuid::parse(TEXT.as_bytes()).expect("a UUID");
        assert_eq!(uuid.bits(), 0xb983_c153_0421_469a_addb_04fb_9225_9a1b);
        assert_eq!(uuid.to_string(), TEXT);
        assert_eq!(Uuid::parse(TEXT.to_uppercase().as_bytes()), Some(uuid));
    }

    #[test]
    fn other_texts_are_no_uuids() {
        let moved = TEXT.replacen("3-0", "-30", 1);
        for other in ["", &TEXT[1..], &format!("{TEXT}0"), &moved, &TEXT.replace('b', "g")] {
            assert_eq!(Uuid::parse(other.as_bytes()), None, "{other}");
        }
    }

    #[test]
    fn random_bits_make_a_uuid_of_version_4() {
        let texts = [[0; 16], [0xff; 16]].map(|random| Uuid::from_random(random).to_string());
        assert_eq!(texts[0], "00000000-0000-4000-8000-000000000000");
        assert_eq!(texts[1], "ffffffff-ffff-4fff-bfff-ffffffffffff");
    }
}

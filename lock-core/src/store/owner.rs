//! Owner ids.

use std::fmt;
use std::time::{Duration, SystemTime};

use crate::clock;
use crate::error::LockError;

/// The bits after the time.
const RANDOM_BITS: u32 = 80;

/// Identifies one acquisition: the time at which it began, in ms since 1970, and 80 random bits from the
/// operating system. A client prefixes its own id, so a stale holder is never mistaken for a later one, and
/// no other client can guess the name of an owner.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct OwnerId(u128);

impl OwnerId {
    /// The id of an acquisition that begins now.
    pub fn new() -> Result<Self, getrandom::Error> {
        let mut random = [0_u8; 16];
        getrandom::fill(&mut random[6..])?;
        let time = u128::from(clock::unix_millis()) << RANDOM_BITS;
        Ok(Self(time | u128::from_be_bytes(random)))
    }

    /// When the acquisition began, by the clock of its client.
    pub fn began(self) -> SystemTime {
        let millis = u64::try_from(self.0 >> RANDOM_BITS).unwrap_or(u64::MAX);
        SystemTime::UNIX_EPOCH + Duration::from_millis(millis)
    }

    /// The id as 22 digits of base64url (RFC 4648).
    pub fn to_text(self) -> [u8; OWNER_DIGITS] {
        digits(self.0)
    }

    /// The id that [`to_text`](Self::to_text) has written. `None` if the text is different.
    pub fn from_text(text: &[u8]) -> Option<Self> {
        (text.len() == OWNER_DIGITS).then_some(())?;
        number(text).map(Self)
    }

    /// 63 random bits of the id, as a positive number.
    pub fn number(self) -> i64 {
        let bits = self.0 & u128::from(i64::MAX.unsigned_abs());
        i64::try_from(bits).unwrap_or(i64::MAX).max(1)
    }
}

/// The digits of an id.
pub const OWNER_DIGITS: usize = 22;

const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";

/// The lowest bits of a number as digits of base64url, the highest first.
pub fn digits<const N: usize>(mut number: u128) -> [u8; N] {
    let mut text = [0; N];
    for digit in text.iter_mut().rev() {
        *digit = DIGITS[usize::try_from(number & 63).unwrap_or_default()];
        number >>= 6;
    }
    text
}

/// The number of these digits. `None` if there are other characters, or it has more than 128 bits.
pub fn number(digits: &[u8]) -> Option<u128> {
    digits.iter().try_fold(0_u128, |number, digit| {
        let value = DIGITS.iter().position(|known| known == digit)?;
        Some(number.checked_mul(64)? | u128::try_from(value).ok()?)
    })
}

/// Shows a few of the random digits only: enough to distinguish owners in a log, and too few to release a
/// lock.
impl fmt::Debug for OwnerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "OwnerId({:06x}…)", (self.0 >> (RANDOM_BITS - 24)) & 0xff_ffff)
    }
}

/// Distinguishes the owners of a client from those of others.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ClientTag([u8; TAG_DIGITS]);

const TAG_DIGITS: usize = 9;

impl ClientTag {
    pub fn random() -> Result<Self, getrandom::Error> {
        let mut random = [0_u8; 16];
        getrandom::fill(&mut random)?;
        Ok(Self(digits(u128::from_be_bytes(random))))
    }

    /// That of a client that is made now.
    pub fn of_new_client() -> Result<Self, LockError> {
        Self::random().map_err(|error| {
            let cause = format!("no random numbers: {error}");
            LockError::unavailable(None, Duration::ZERO, cause)
        })
    }

    /// The name of an owner of this client, such as `kX3_8fRtq.ABmrE8eHkD2vXnq4mTjP5s`, as in Redis.
    pub fn owner_name(self, owner: OwnerId) -> String {
        let text = [&self.0[..], b".", &owner.to_text()].concat();
        // Cannot fail: the digits are ASCII.
        String::from_utf8(text).unwrap_or_default()
    }

    /// The client of the owner with this name, and its id of the owner. `None` for the token of another library.
    pub fn of_owner(name: &str) -> Option<(Self, OwnerId)> {
        let (tag, owner) = name.as_bytes().split_first_chunk()?;
        let owner = OwnerId::from_text(owner.strip_prefix(b".")?)?;
        number(tag).map(|_| (Self(*tag), owner))
    }

    /// The tag as text, which is the id of the client.
    pub fn to_text(self) -> String {
        String::from_utf8_lossy(&self.0).into_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_tells_its_owner_and_the_client() {
        let (client, owner) =
            (ClientTag::random().expect("randomness"), OwnerId::new().expect("randomness"));
        let name = client.owner_name(owner);
        assert_eq!((name.len(), &name[..TAG_DIGITS]), (32, &*client.to_text()));
        assert_eq!(ClientTag::of_owner(&name), Some((client, owner)));
        let unknown = ["", "somebody", &name[1..], &name.replace('.', "-"), &"é".repeat(16)];
        assert!(unknown.iter().all(|name| ClientTag::of_owner(name).is_none()));
    }

    #[test]
    fn ids_are_distinct() {
        let ids: Vec<u128> = (0..1000).map(|_| OwnerId::new().expect("randomness").0).collect();
        let distinct: std::collections::HashSet<_> = ids.iter().map(|id| id << 48).collect();
        assert_eq!(distinct.len(), ids.len());
    }

    #[test]
    fn an_id_has_22_digits() {
        assert_eq!(&OwnerId(0x12ab).to_text(), b"AAAAAAAAAAAAAAAAAAABKr");
        assert_eq!(&OwnerId(u128::MAX).to_text(), b"D_____________________");
    }

    #[test]
    fn an_id_is_read_as_it_is_written() {
        for id in [OwnerId::new().expect("randomness"), OwnerId(0), OwnerId(u128::MAX)] {
            assert_eq!(OwnerId::from_text(&id.to_text()), Some(id));
        }
        for other in [&b"12ab"[..], &[b'.'; 22], &[b'1'; 23], &[200; 22], &[b'_'; 22], &[b'E'; 22]]
        {
            assert_eq!(OwnerId::from_text(other), None);
        }
    }

    #[test]
    fn an_id_knows_when_its_acquisition_began() {
        let before = SystemTime::now();
        let began = OwnerId::new().expect("randomness").began();
        // The clock is read in steps of up to 10 ms.
        let step = Duration::from_millis(20);
        assert!(began + step >= before && began <= SystemTime::now() + step, "{began:?}");
    }

    #[test]
    fn an_id_has_a_positive_number() {
        assert_eq!(OwnerId(u128::from(u64::MAX) + 1).number(), 1);
        assert_eq!(OwnerId(u128::from(u64::MAX)).number(), i64::MAX);
        assert_eq!(OwnerId(0x8000_0000_0000_012c).number(), 300);
    }

    #[test]
    fn an_id_is_shown_only_in_part() {
        let shown = format!("{:?}", OwnerId(0xfedc_ba98_7654_3210_0123_4567_89ab_cdef));
        assert_eq!(shown, "OwnerId(321001…)");
    }
}

//! Hash slots, which determine the node of a Redis Cluster that stores a key.
//!
//! A slot is the CRC-16 (XMODEM) of the key, or of its hash tag, modulo 16,384
//! (<https://redis.io/docs/latest/operate/oss_and_stack/reference/cluster-spec/>). Data that the
//! locks of a slot share is stored under one key per slot. The hash tag of this key is the smallest
//! number that hashes to the slot. The table of these numbers is built when it is first needed.

use std::fmt::Write;
use std::sync::LazyLock;

/// The number of slots.
pub(super) const SLOTS: u16 = 16_384;

/// The CRC-16 of each byte.
static CRC16: [u16; 256] = {
    let mut table = [0; 256];
    let mut byte = 0;
    while byte < table.len() {
        // The table is indexed by a byte.
        #[allow(clippy::cast_possible_truncation)]
        let mut crc = (byte as u16) << 8;
        let mut bit = 0;
        while bit < 8 {
            crc = if crc & 0x8000 == 0 { crc << 1 } else { (crc << 1) ^ 0x1021 };
            bit += 1;
        }
        table[byte] = crc;
        byte += 1;
    }
    table
};

/// For each slot, the smallest number whose decimal digits hash to it. The first request that needs
/// the table builds it, in about two milliseconds.
static TAGS: LazyLock<Box<[u32]>> = LazyLock::new(|| {
    let mut tags = vec![u32::MAX; usize::from(SLOTS)].into_boxed_slice();
    let mut missing = tags.len();
    for number in 0_u32.. {
        let tag = &mut tags[usize::from(crc16(number.to_string().as_bytes()) % SLOTS)];
        if *tag == u32::MAX {
            *tag = number;
            missing -= 1;
            if missing == 0 {
                break;
            }
        }
    }
    tags
});

/// A short hash tag for the slot of `key`.
pub(super) fn tag(key: &str) -> u32 {
    tag_of(slot(key))
}

/// The name of data about the lock `key`, in its slot.
pub(super) fn name_beside(key: &str, prefix: &str) -> String {
    const DIGITS: usize = 10;
    // `format!` would take longer than to encode the rest of the command of a release.
    let mut name = String::with_capacity(prefix.len() + DIGITS + 3 + key.len());
    name.push_str(prefix);
    name.push('{');
    // Cannot fail: a text takes everything.
    let _ = write!(name, "{}", tag(key));
    name.push_str("}:");
    name.push_str(key);
    name
}

/// A short hash tag for a slot.
pub(super) fn tag_of(slot: u16) -> u32 {
    TAGS[usize::from(slot)]
}

/// The slot of `key`.
pub(super) fn slot(key: &str) -> u16 {
    crc16(hash_tag(key).as_bytes()) % SLOTS
}

/// The text between the first `{` and the next `}` if it is not empty, otherwise the whole key.
pub(super) fn hash_tag(key: &str) -> &str {
    let tag = key.split_once('{').and_then(|(_, rest)| rest.split_once('}'));
    tag.map(|(tag, _)| tag).filter(|tag| !tag.is_empty()).unwrap_or(key)
}

fn crc16(bytes: &[u8]) -> u16 {
    bytes.iter().fold(0, |crc: u16, byte| {
        (crc << 8) ^ CRC16[usize::from((crc >> 8).to_le_bytes()[0] ^ byte)]
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Values from the specification of Redis Cluster, and from `CLUSTER KEYSLOT` of a server.
    #[test]
    fn slots_are_those_of_redis() {
        assert_eq!(crc16(b"123456789"), 0x31c3);
        for (key, expected) in
            [("", 0), ("foo", 12182), ("{foo}:bar", 12182), ("a{}b", 13694), ("{{b}}c", 6215)]
        {
            assert_eq!(slot(key), expected, "{key}");
        }
    }

    #[test]
    fn a_tag_hashes_to_the_slot_of_its_key() {
        for key in ["order:42", "{user:7}:cart", "a{}b", "}{", "", "käse"] {
            assert_eq!(slot(&format!("anything:{{{}}}", tag(key))), slot(key), "{key}");
        }
    }
}

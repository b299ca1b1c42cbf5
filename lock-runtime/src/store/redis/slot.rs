//! Hash slots: which keys a Redis Cluster keeps on one node.
//!
//! A slot is the CRC-16 (XMODEM) of the key, or of its hash tag, modulo 16,384
//! (<https://redis.io/docs/latest/operate/oss_and_stack/reference/cluster-spec/>). What belongs to a
//! lock and is not to exist once per lock is kept under one key per slot. Its name has a tag that
//! leads there: the smallest number of that slot, from a table that is made when it is first needed.

use std::sync::LazyLock;

const SLOTS: u16 = 16_384;

/// For each slot the smallest number whose decimal digits lead to it. Made in about two milliseconds,
/// once, by whoever asks for the first fencing token; others never pay for it.
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

/// A short tag that leads to the slot of `key`.
pub(super) fn tag(key: &str) -> u32 {
    TAGS[usize::from(slot(key))]
}

fn slot(key: &str) -> u16 {
    crc16(hash_tag(key).as_bytes()) % SLOTS
}

/// What is between the first `{` and the next `}`, if that is anything; else the whole key.
fn hash_tag(key: &str) -> &str {
    let tag = key.split_once('{').and_then(|(_, rest)| rest.split_once('}'));
    tag.map(|(tag, _)| tag).filter(|tag| !tag.is_empty()).unwrap_or(key)
}

fn crc16(bytes: &[u8]) -> u16 {
    bytes.iter().fold(0, |mut crc: u16, byte| {
        crc ^= u16::from(*byte) << 8;
        for _ in 0..8 {
            crc = if crc & 0x8000 == 0 { crc << 1 } else { (crc << 1) ^ 0x1021 };
        }
        crc
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// From the specification of Redis Cluster, and `CLUSTER KEYSLOT` of a server.
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
    fn a_tag_leads_to_the_slot_of_its_key() {
        for key in ["order:42", "{user:7}:cart", "a{}b", "}{", "", "käse"] {
            assert_eq!(slot(&format!("anything:{{{}}}", tag(key))), slot(key), "{key}");
        }
    }
}

//! The id of a client, and the names that it gives to the owners of its locks.
//!
//! The id is a UUID, as in Redisson. The value of a lock has to be short, so it begins with the last 54 bits
//! of the UUID, which are random as well.

use std::sync::Arc;
use std::time::SystemTime;

use uuid::Uuid;

use lock_core::store::owner::{OWNER_DIGITS, OwnerId, digits, number};

/// The digits of a short id.
const SHORT: usize = 9;

/// The length of the name of an owner: a short id, a point and an owner id.
pub(super) const OWNER_NAME: usize = SHORT + 1 + OWNER_DIGITS;

/// The length of a UUID.
pub(super) const UUID: usize = 36;

/// What a lock that stays for its `min_hold` begins with.
const KEPT: &[u8] = b"kept:";

/// The id of a client. Cheap to clone.
#[derive(Debug, Clone)]
pub(super) struct ClientId {
    uuid: Arc<str>,
    short: ShortId,
}

/// The last 54 bits of the id of a client.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct ShortId([u8; SHORT]);

impl ClientId {
    pub(super) fn random() -> Result<Self, getrandom::Error> {
        let mut random = [0_u8; 16];
        getrandom::fill(&mut random)?;
        Ok(Self::of(uuid::Builder::from_random_bytes(random).into_uuid()))
    }

    fn of(uuid: Uuid) -> Self {
        Self { uuid: Uuid::hyphenated(uuid).to_string().into(), short: ShortId::of(uuid) }
    }

    /// The client with this UUID.
    #[cfg(test)]
    pub(super) fn parse(uuid: &str) -> Self {
        Self::of(Uuid::parse_str(uuid).expect("a UUID"))
    }

    /// The UUID, as text.
    pub(super) fn uuid(&self) -> &str {
        &self.uuid
    }

    pub(super) fn short(&self) -> ShortId {
        self.short
    }

    /// The name of an owner of this client, such as `kX3_8fRtq.ABmrE8eHkD2vXnq4mTjP5s`.
    pub(super) fn owner_name(&self, owner: OwnerId) -> [u8; OWNER_NAME] {
        let mut name = [b'.'; OWNER_NAME];
        name[..SHORT].copy_from_slice(&self.short.0);
        name[SHORT + 1..].copy_from_slice(&owner.to_text());
        name
    }
}

impl ShortId {
    fn of(uuid: Uuid) -> Self {
        Self(digits(uuid.as_u128()))
    }

    pub(super) fn as_str(&self) -> &str {
        // Cannot fail: the digits are ASCII.
        std::str::from_utf8(&self.0).unwrap_or_default()
    }
}

/// The owner that this name names. `None` if it is a different text.
pub(super) fn owner_of(name: &[u8]) -> Option<OwnerId> {
    named(name).map(|(_, owner)| owner)
}

/// The client and the owner id of the name of an owner.
fn named(name: &[u8]) -> Option<(ShortId, OwnerId)> {
    let (client, owner) = name.split_at_checked(SHORT)?;
    let [b'.', owner @ ..] = owner else { return None };
    number(client)?;
    Some((ShortId(client.try_into().ok()?), OwnerId::from_text(owner)?))
}

/// The client that has a lock whose key holds this name of an owner, in any layout, and when its acquisition
/// began. `None` if the name is that of a different client.
pub(super) fn client_of(name: &[u8]) -> Option<(ShortId, Option<SystemTime>)> {
    let name = name.strip_prefix(KEPT).unwrap_or(name);
    if let Some((uuid, [b':', ..])) = name.split_at_checked(UUID) {
        return Some((ShortId::of(Uuid::try_parse_ascii(uuid).ok()?), None));
    }
    let (client, owner) = named(name.get(..OWNER_NAME)?)?;
    Some((client, Some(owner.began())))
}

#[cfg(test)]
mod tests {
    use super::*;

    const CLIENT: &str = "b983c153-7421-469a-addb-44fb92259a1b";

    fn client() -> ClientId {
        ClientId::parse(CLIENT)
    }

    #[test]
    fn each_client_has_ids_of_its_own() {
        let (one, two) =
            (ClientId::random().expect("randomness"), ClientId::random().expect("randomness"));
        assert_ne!(one.uuid(), two.uuid());
        assert_ne!(one.short(), two.short());
        assert_eq!(Uuid::parse_str(one.uuid()).expect("a UUID").get_version_num(), 4);
    }

    #[test]
    fn the_name_of_an_owner_has_32_characters_and_names_the_client() {
        let owner = OwnerId::new().expect("randomness");
        let name = client().owner_name(owner);
        assert_eq!(name.len(), 32);
        assert_eq!(owner_of(&name), Some(owner));
        assert_eq!(client_of(&name), Some((client().short(), Some(owner.began()))));
        for (before, after) in
            [("kept:", ""), ("", "/1/10"), ("kept:", "/2/10"), ("", ":1764028800000")]
        {
            let text = [before.as_bytes(), &name, after.as_bytes()].concat();
            assert_eq!(client_of(&text).map(|(client, _)| client), Some(client().short()));
            assert_eq!(owner_of(&text), None, "not the name alone");
        }
    }

    #[test]
    fn the_owner_of_redisson_names_the_client() {
        for name in [format!("{CLIENT}:7"), format!("kept:{CLIENT}:7")] {
            assert_eq!(client_of(name.as_bytes()), Some((client().short(), None)));
        }
    }

    #[test]
    fn other_texts_name_nobody() {
        let name = client().owner_name(OwnerId::new().expect("randomness"));
        let (mut dot, mut digit) = (name, name);
        (dot[9], digit[3]) = (b'_', b'.');
        for other in
            [&dot[..], &digit, &name[1..], b"", b"kept:", &[b'a'; 32], &[200; 40], b"uuid:7"]
        {
            assert_eq!(client_of(other), None, "{other:?}");
        }
        let not_hexadecimal = CLIENT.replace('b', "g") + ":7";
        assert_eq!(client_of(not_hexadecimal.as_bytes()), None);
    }
}

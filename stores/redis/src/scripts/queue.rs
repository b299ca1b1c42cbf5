//! The queue of the claims that wait for a lock: its name, its entries, and the messages about it.
//!
//! The scripts of a dialect keep the queue, a sorted set beside the lock. A release gives the lock
//! to the first claim and sends a message to its client, which has one channel for all keys, or one
//! for each slot of a cluster in which it waits. See `token/transfer.lua` for the layout.

use std::borrow::Cow;
use std::io::{Cursor, Write};
use std::sync::Arc;
use std::time::Duration;

use redis::{RedisWrite, ToRedisArgs};

use crate::client_id::{ClientId, UUID, owner_of};
use crate::hash_slot;
use lock_core::key;
use lock_core::store::contract::Mode;
use lock_core::store::owner::OwnerId;
use lock_core::store::queueing::{QueueTicket, Queueing, transfer_term};
use lock_core::store::subscriptions::QueueMessage;

/// Higher than any ticket. Entries that are no claims have higher scores.
pub(crate) const AFTER_TICKETS: &str = "(8000000000000000";

/// A mode, and the digits of the longest lease, in milliseconds.
const MODE_AND_LEASE: usize = "s10000000000/10000000000/".len() + 4;

/// The key of the queue of the lock with this key, in the slot of the lock.
pub(crate) fn name(key: &str) -> String {
    hash_slot::name_beside(key, key::QUEUES)
}

/// The key of the lock whose queue has this key; `None` if this is no queue.
pub(crate) fn key_of_queue(queue: &str) -> Option<Arc<str>> {
    let (_, key) = queue.strip_prefix(key::QUEUES)?.split_once("}:")?;
    Some(Arc::from(key))
}

/// What the channels of all clients for a key begin with.
pub(crate) fn channels(key: &str, in_cluster: bool) -> Cow<'static, str> {
    if in_cluster {
        Cow::Owned(format!("{}{{{}}}:", key::CLIENTS, hash_slot::tag(key)))
    } else {
        Cow::Borrowed(key::CLIENTS)
    }
}

/// Whether this is the channel of a client.
pub(crate) fn is_of_client(channel: &str) -> bool {
    channel.starts_with(key::CLIENTS)
}

/// What an entry has after the owner id: the client, the mode if the lock has modes, and the lease that a
/// transfer gives.
#[derive(Debug, Clone, Copy)]
pub(crate) struct EntryRest {
    bytes: [u8; UUID + MODE_AND_LEASE],
    length: usize,
}

impl EntryRest {
    /// For a claim of this client. Empty if the claim does not wait.
    pub(crate) fn new(
        client: &ClientId,
        queueing: Queueing,
        (mode, term): (Mode, Duration),
    ) -> Self {
        let mut rest = Cursor::new([0; UUID + MODE_AND_LEASE]);
        let client = client.uuid();
        let lease = transfer_term(term).as_millis();
        // Cannot fail: the buffer has room for both.
        let _ = match queueing {
            Queueing::None => Ok(()),
            Queueing::Woken => write!(rest, "{client}{mode}{lease}"),
            Queueing::Polling => write!(rest, "{:-<UUID$}{mode}{lease}", ""),
        };
        Self::written(rest)
    }

    /// For a holder, which has no claim.
    pub(crate) fn of_holder(mode: Mode) -> Self {
        let mut rest = Cursor::new([0; UUID + MODE_AND_LEASE]);
        // Cannot fail, as above.
        let _ = write!(rest, "{mode}");
        Self::written(rest)
    }

    fn written(rest: Cursor<[u8; UUID + MODE_AND_LEASE]>) -> Self {
        let length = usize::try_from(rest.position()).unwrap_or_default();
        Self { bytes: rest.into_inner(), length }
    }

    pub(crate) fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.length]
    }
}

impl ToRedisArgs for EntryRest {
    fn write_redis_args<W: RedisWrite + ?Sized>(&self, out: &mut W) {
        out.write_arg(self.as_bytes());
    }
}

/// Decodes a message: the owner id, the ticket and the lease. `None` if it is no such message.
pub(crate) fn decode_message(message: &[u8]) -> Option<(OwnerId, QueueMessage)> {
    let mut parts = std::str::from_utf8(message).ok()?.splitn(3, ' ');
    let owner = owner_of(parts.next()?.as_bytes())?;
    let ticket: u64 = parts.next()?.parse().ok()?;
    let time = Duration::from_millis(parts.next()?.parse().ok()?);
    let message = match ticket {
        0 => QueueMessage::Attempt { after: time },
        ticket => QueueMessage::Transfer { ticket: QueueTicket(ticket), term: time },
    };
    Some((owner, message))
}

#[cfg(test)]
mod tests {
    use super::*;

    const CLIENT: &str = "b983c153-7421-469a-addb-44fb92259a1b";

    #[test]
    fn a_queue_and_its_channels_are_in_the_slot_of_the_key() {
        for key in ["order:42", "{user:7}:cart", "a{", "a{}b", "}{", "a{b}c{d}"] {
            let slot = hash_slot::slot(key);
            let queue = name(key);
            assert_eq!(hash_slot::slot(&queue), slot, "{key}");
            assert_eq!(key_of_queue(&queue).as_deref(), Some(key));
            assert_eq!(hash_slot::slot(&format!("{}{CLIENT}", channels(key, true))), slot);
            assert_eq!(channels(key, false), key::CLIENTS);
            assert_eq!(key_of_queue(key), None);
        }
    }

    #[test]
    fn an_entry_has_the_client_and_the_lease_of_a_transfer() {
        let rest_in = |mode, queueing, term| {
            let rest = EntryRest::new(&ClientId::parse(CLIENT), queueing, (mode, term));
            String::from_utf8(rest.as_bytes().to_vec()).expect("text")
        };
        let rest = |queueing, term| rest_in(Mode::Exclusive, queueing, term);
        let (term, hour) = (Duration::from_millis(250), Duration::from_secs(3600));
        assert_eq!(rest(Queueing::Woken, term), format!("{CLIENT}250"));
        assert_eq!(rest(Queueing::Woken, hour), format!("{CLIENT}3000"));
        assert_eq!(rest(Queueing::Polling, term), format!("{}250", "-".repeat(CLIENT.len())));
        assert_eq!(rest(Queueing::None, term), "");
        let reader = rest_in(Mode::Read, Queueing::Woken, hour);
        assert_eq!(reader, format!("{CLIENT}s1/10000000000/3000"));
        assert_eq!(
            rest_in(Mode::Write, Queueing::Woken, term),
            format!("{CLIENT}s10000000000/10000000000/250")
        );
    }

    #[test]
    fn a_message_names_the_owner_the_ticket_and_the_lease() {
        let owner = OwnerId::new().expect("randomness");
        let name = ClientId::parse(CLIENT).owner_name(owner).to_vec();
        let name = String::from_utf8(name).expect("text");
        let text = format!("{name} 17 3000");
        let (ticket, term) = (QueueTicket(17), Duration::from_secs(3));
        let transfer = QueueMessage::Transfer { ticket, term };
        assert_eq!(decode_message(text.as_bytes()), Some((owner, transfer)));
        let attempt = QueueMessage::Attempt { after: Duration::from_millis(20) };
        assert_eq!(decode_message(format!("{name} 0 20").as_bytes()), Some((owner, attempt)));
        for other in ["", "x", &name, &text[1..], &format!("{name} 1 2 3"), &format!("{name} -1 2")]
        {
            assert_eq!(decode_message(other.as_bytes()), None, "{other}");
        }
        assert_eq!(decode_message(&[255, 254]), None);
    }
}

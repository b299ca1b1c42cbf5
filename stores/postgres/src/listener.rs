//! The notifications of released keys.
//!
//! A pooler in transaction mode accepts `LISTEN`, but the notifications go to a connection of its own. So a listener counts
//! only when a notification has arrived that this client has sent over another connection. Otherwise it ends what it has
//! begun in the session of the pooler, which would be notified from then on.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use tokio::time::{sleep, timeout};
use tokio_postgres::types::Type;
use tokio_postgres::{AsyncMessage, Client, SimpleQueryMessage};
use tracing::Level;

use super::connector::{DatabaseConnector, OpenedConnection, next_message};
use super::pool::{ConnectionPool, Parameter};
use super::statements::{LISTEN, PROBE, UNLISTEN};
use lock_core::backoff::between;
use lock_core::events;
use lock_core::store::queueing::QueueTicket;
use lock_core::store::runner::WakeUps;
use lock_core::store::store_error::StoreError;

/// The pause before another connection.
const AGAIN: Duration = Duration::from_millis(500);

/// How long the first notification may take.
const PROBE_TIMEOUT: Duration = Duration::from_secs(2);

/// The shortest and the longest pause after notifications did not arrive over a connection that works.
const AGAIN_WITHOUT: Duration = Duration::from_secs(60);
const LONGEST_WITHOUT: Duration = Duration::from_secs(32 * 60);

/// How often, and with which pauses, a session that listens in vain is looked for.
const UNLISTEN_ATTEMPTS: usize = 20;
const UNLISTEN_PAUSE: Duration = Duration::from_millis(20);

/// What a listener needs.
pub(super) struct ReleaseListener {
    pub(super) connector: DatabaseConnector,
    /// Sends the first notification.
    pub(super) pool: Arc<ConnectionPool>,
    pub(super) wake_ups: WakeUps,
    /// Whether notifications arrive.
    pub(super) is_live: Arc<AtomicBool>,
}

/// Why a connection is over.
enum ListenerEnd {
    /// It was lost.
    Lost,
    /// Notifications do not arrive over it.
    Deaf,
}

impl ReleaseListener {
    /// Receives notifications until the runtime of the client ends.
    pub(super) async fn run(self) {
        let mut without = None;
        loop {
            let end = self.receive().await.unwrap_or(ListenerEnd::Lost);
            if self.is_live.swap(false, Relaxed) {
                // Notifications did arrive.
                without = None;
            }
            self.wake_ups.interrupted();
            let pause = match end {
                // An error is not reported: without notifications, calls poll.
                ListenerEnd::Lost => between(AGAIN / 2, AGAIN),
                ListenerEnd::Deaf => {
                    if without.is_none() {
                        events::emit(Level::INFO, || {
                            tracing::info!(
                                target: "lock_runtime::store::postgres",
                                "notifications of PostgreSQL do not arrive, perhaps because of a pooler in transaction mode; waiting calls poll"
                            );
                        });
                    }
                    *without.insert(pause_without(without))
                }
            };
            sleep(pause).await;
        }
    }

    async fn receive(&self) -> Result<ListenerEnd, StoreError> {
        let opened = self.connector.connect().await?;
        let OpenedConnection { client, mut connection, epoch, .. } = opened;
        let lost = |_| StoreError::Refused("the connection was lost".to_owned());
        // The connection is polled here, also while the statements are served.
        let name = format!("probe-{:016x}", fastrand::u64(..));
        let silent = |_| StoreError::Refused("the server does not answer".to_owned());
        let listening = async {
            let started = timeout(PROBE_TIMEOUT, client.simple_query(LISTEN)).await;
            let session = session(&started.map_err(silent)?.map_err(lost)?);
            let probe: [Parameter<'_>; 1] = [(&name, Type::TEXT)];
            let probed = timeout(PROBE_TIMEOUT, self.pool.query(PROBE, &probe)).await;
            if matches!(probed, Ok(Ok(_))) {
                sleep(PROBE_TIMEOUT).await;
            }
            let is_heard = self.is_live.load(Relaxed);
            if !is_heard {
                let ended = timeout(PROBE_TIMEOUT, unlisten(&client, session)).await;
                ended.map_err(silent)?.map_err(lost)?;
            }
            probed.map_err(silent)??;
            Ok::<_, StoreError>(is_heard)
        };
        let mut listening = pin!(listening);
        let mut is_listening = true;
        loop {
            tokio::select! {
                () = self.connector.primary.leaves(epoch) => return Ok(ListenerEnd::Lost),
                // To its end, also when the notification has come, so that the answer of the pool is read.
                ended = &mut listening, if is_listening => {
                    is_listening = false;
                    if !ended? {
                        return Ok(ListenerEnd::Deaf);
                    }
                }
                message = next_message(&mut connection) => match message {
                    Some(message) => self.told(message.map_err(lost)?, &name),
                    None => return Ok(ListenerEnd::Lost),
                }
            }
        }
    }

    fn told(&self, message: AsyncMessage, probe: &str) {
        let AsyncMessage::Notification(notification) = message else { return };
        if notification.payload() == probe {
            self.is_live.store(true, Relaxed);
            // Those who wait have watched their keys in vain until now.
            self.wake_ups.interrupted();
            return;
        }
        match Notice::decode(notification.payload()) {
            Some(Notice::Released(key)) => self.wake_ups.released(&key),
            Some(Notice::Granted { key, owner, ticket, term }) => {
                self.wake_ups.granted(&key, owner, ticket, term);
            }
            None => {}
        }
    }
}

/// The pause after notifications did not arrive, and after the last pause of that kind.
fn pause_without(last: Option<Duration>) -> Duration {
    last.map_or(AGAIN_WITHOUT, |last| (last * 2).min(LONGEST_WITHOUT))
}

/// The process of the server that has answered.
fn session(answer: &[SimpleQueryMessage]) -> Option<String> {
    answer.iter().find_map(|message| match message {
        SimpleQueryMessage::Row(row) => row.get(0).map(str::to_owned),
        _ => None,
    })
}

/// Ends the listening of this session. A pooler may execute each statement in another one, most likely in the last that was
/// used. The others do not listen, or listen in vain as well.
async fn unlisten(client: &Client, listening: Option<String>) -> Result<(), tokio_postgres::Error> {
    for _ in 0..UNLISTEN_ATTEMPTS {
        if session(&client.simple_query(UNLISTEN).await?) == listening {
            break;
        }
        // Others use the pooler, so that it is the turn of another session.
        sleep(UNLISTEN_PAUSE).await;
    }
    Ok(())
}

/// What a notification says.
#[derive(Debug, PartialEq, Eq)]
enum Notice<'a> {
    /// A plain lock was released.
    Released(String),
    /// A claim that has waited has got its shares, for a lease of this term.
    Granted { key: String, owner: &'a str, ticket: QueueTicket, term: Duration },
}

impl<'a> Notice<'a> {
    /// A key; or a key, an owner, a ticket and seconds. `None` if somebody else has sent something else.
    fn decode(payload: &'a str) -> Option<Self> {
        let words: Vec<&str> = payload.split(' ').collect();
        Some(match words[..] {
            [key] => Self::Released(decode(key)?),
            [key, owner, ticket, term] => Self::Granted {
                key: decode(key)?,
                owner,
                ticket: QueueTicket(ticket.parse().ok()?),
                term: Duration::try_from_secs_f64(term.parse().ok()?).ok()?,
            },
            _ => return None,
        })
    }
}

/// The key that is written in hexadecimal digits.
fn decode(payload: &str) -> Option<String> {
    let digit = |digit: u8| char::from(digit).to_digit(16).and_then(|it| u8::try_from(it).ok());
    let pairs = payload.as_bytes().chunks(2);
    let bytes: Option<Vec<u8>> = pairs
        .map(|pair| match *pair {
            [high, low] => Some(digit(high)? << 4 | digit(low)?),
            _ => None,
        })
        .collect();
    String::from_utf8(bytes?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_notification_names_a_key_or_a_claim_that_was_granted() {
        let key = || "k1".to_owned();
        assert_eq!(Notice::decode("6b31"), Some(Notice::Released(key())));
        let (ticket, term) = (QueueTicket(42), Duration::from_millis(1500));
        let granted = Notice::Granted { key: key(), owner: "owner", ticket, term };
        assert_eq!(Notice::decode("6b31 owner 42 1.5"), Some(granted));
        let foreign = [
            "",
            "xyz",
            "6b3",
            "6b31 o",
            "6b31 o x 1",
            "6b31 o 1 -1",
            "6b31 o 1 1e99",
            "6b31 o 1 1 1",
        ];
        for payload in foreign {
            assert!(
                Notice::decode(payload).is_none_or(|it| it == Notice::Released(String::new())),
                "{payload}"
            );
        }
    }

    #[test]
    fn the_pause_without_notifications_doubles_up_to_half_an_hour() {
        let mut pauses = Vec::new();
        for _ in 0..7 {
            pauses.push(pause_without(pauses.last().copied()));
        }
        let minutes: Vec<u64> = pauses.iter().map(|pause| pause.as_secs() / 60).collect();
        assert_eq!(minutes, [1, 2, 4, 8, 16, 32, 32]);
    }

    #[test]
    fn a_payload_is_a_key_or_nothing() {
        assert_eq!(decode("6b3ac3a9").as_deref(), Some("k:é"));
        assert_eq!(decode("").as_deref(), Some(""));
        for other in ["6", "6z", "éé", "c3", "order:7"] {
            assert_eq!(decode(other), None, "{other}");
        }
    }
}

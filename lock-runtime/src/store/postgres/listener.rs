//! The notifications of released keys.
//!
//! A pooler in transaction mode accepts `LISTEN`, but the notifications go to a connection of its own. So a listener counts
//! only when a notification has arrived that this client has sent over another connection.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{sleep, timeout};
use tokio_postgres::types::Type;
use tokio_postgres::{AsyncMessage, Connection, Socket};
use tracing::Level;

use super::connector::{DatabaseConnector, DatabaseStream};
use super::pool::{ConnectionPool, Parameter};
use super::statements::{LISTEN, PROBE};
use crate::backoff::between;
use crate::events;
use crate::store::custom::WakeUps;
use crate::store::store_error::StoreError;

/// The pause before another connection.
const AGAIN: Duration = Duration::from_millis(500);

/// How long the first notification may take.
const PROBE_TIMEOUT: Duration = Duration::from_secs(2);

/// The pause after notifications did not arrive over a connection that works.
const AGAIN_WITHOUT: Duration = Duration::from_secs(60);

/// What a listener needs.
pub(super) struct ReleaseListener {
    pub(super) connector: DatabaseConnector,
    /// Sends the first notification.
    pub(super) pool: Arc<ConnectionPool>,
    pub(super) wake_ups: WakeUps,
    /// Whether notifications arrive.
    pub(super) is_live: Arc<watch::Sender<bool>>,
}

/// Why a connection is over.
enum ListenerEnd {
    /// The store was dropped.
    Dropped,
    /// It was lost.
    Lost,
    /// Notifications do not arrive over it.
    Deaf,
}

impl ReleaseListener {
    /// Receives notifications until the receiver of its state is dropped.
    pub(super) async fn run(self) {
        let mut is_told = false;
        loop {
            let end = self.receive().await.unwrap_or(ListenerEnd::Lost);
            self.is_live.send_replace(false);
            self.wake_ups.interrupted();
            let pause = match end {
                ListenerEnd::Dropped => return,
                // An error is not reported: without notifications, calls poll.
                ListenerEnd::Lost => between(AGAIN / 2, AGAIN),
                ListenerEnd::Deaf => {
                    if !std::mem::replace(&mut is_told, true) {
                        events::emit(Level::INFO, || {
                            tracing::info!(
                                "notifications of PostgreSQL do not arrive, perhaps because of a pooler in transaction mode; waiting calls poll"
                            );
                        });
                    }
                    AGAIN_WITHOUT
                }
            };
            tokio::select! {
                () = self.is_live.closed() => return,
                () = sleep(pause) => {}
            }
        }
    }

    async fn receive(&self) -> Result<ListenerEnd, StoreError> {
        let (client, mut connection) = self.connector.connect().await?;
        let lost = |_| StoreError::Refused("the connection was lost".to_owned());
        // The connection is polled here, also while the statements are served.
        let name = format!("probe-{:016x}", fastrand::u64(..));
        let silent = |_| StoreError::Refused("the server does not answer".to_owned());
        let listening = async {
            let started = timeout(PROBE_TIMEOUT, client.batch_execute(LISTEN)).await;
            started.map_err(silent)?.map_err(lost)?;
            let probe: [Parameter<'_>; 1] = [(&name, Type::TEXT)];
            timeout(PROBE_TIMEOUT, self.pool.query(PROBE, &probe)).await.map_err(silent)??;
            sleep(PROBE_TIMEOUT).await;
            Ok::<_, StoreError>(())
        };
        let mut listening = pin!(listening);
        let mut is_listening = true;
        loop {
            tokio::select! {
                () = self.is_live.closed() => return Ok(ListenerEnd::Dropped),
                // To its end, also when the notification has come, so that the answer of the pool is read.
                ended = &mut listening, if is_listening => {
                    is_listening = false;
                    ended?;
                    if !*self.is_live.borrow() {
                        return Ok(ListenerEnd::Deaf);
                    }
                }
                message = next(&mut connection) => match message {
                    Some(message) => self.told(message.map_err(lost)?, &name),
                    None => return Ok(ListenerEnd::Lost),
                }
            }
        }
    }

    fn told(&self, message: AsyncMessage, probe: &str) {
        let AsyncMessage::Notification(notification) = message else { return };
        if notification.payload() == probe {
            self.is_live.send_replace(true);
            // Those who wait have watched their keys in vain until now.
            self.wake_ups.interrupted();
        } else if let Some(key) = decode(notification.payload()) {
            self.wake_ups.released(&key);
        }
    }
}

async fn next(
    connection: &mut Connection<Socket, DatabaseStream>,
) -> Option<Result<AsyncMessage, tokio_postgres::Error>> {
    poll_fn(|cx| connection.poll_message(cx)).await
}

/// The key that is written in hexadecimal digits. `None` if somebody else has sent something else.
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
    fn a_payload_is_a_key_or_nothing() {
        assert_eq!(decode("6b3ac3a9").as_deref(), Some("k:é"));
        assert_eq!(decode("").as_deref(), Some(""));
        for other in ["6", "6z", "éé", "c3", "order:7"] {
            assert_eq!(decode(other), None, "{other}");
        }
    }
}

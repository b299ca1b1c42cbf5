//! The notifications of released keys.

use std::future::poll_fn;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio_postgres::tls::NoTlsStream;
use tokio_postgres::{AsyncMessage, Config, Connection, NoTls, Socket};

use super::statements::LISTEN;
use crate::backoff::between;
use crate::store::custom::WakeUps;

/// The pause before another connection.
const AGAIN: Duration = Duration::from_millis(500);

/// Receives notifications until the receiver of its state is dropped.
pub(super) async fn run(config: Config, wake_ups: WakeUps, is_live: Arc<watch::Sender<bool>>) {
    loop {
        // An error is not reported: without notifications, calls poll.
        let _ = receive(&config, &wake_ups, &is_live).await;
        is_live.send_replace(false);
        wake_ups.interrupted();
        if is_live.is_closed() {
            return;
        }
        tokio::time::sleep(between(AGAIN / 2, AGAIN)).await;
    }
}

async fn receive(
    config: &Config,
    wake_ups: &WakeUps,
    is_live: &watch::Sender<bool>,
) -> Result<(), tokio_postgres::Error> {
    let (client, mut connection) = config.connect(NoTls).await?;
    // The connection is polled here, also while the statement is served.
    let listening = client.batch_execute(LISTEN);
    tokio::pin!(listening);
    loop {
        tokio::select! {
            biased;
            listening = &mut listening => {
                listening?;
                break;
            }
            message = next(&mut connection) => match message {
                Some(message) => told(message?, wake_ups),
                None => return Ok(()),
            }
        }
    }
    is_live.send_replace(true);
    loop {
        tokio::select! {
            () = is_live.closed() => return Ok(()),
            message = next(&mut connection) => match message {
                Some(message) => told(message?, wake_ups),
                None => return Ok(()),
            }
        }
    }
}

async fn next(
    connection: &mut Connection<Socket, NoTlsStream>,
) -> Option<Result<AsyncMessage, tokio_postgres::Error>> {
    poll_fn(|cx| connection.poll_message(cx)).await
}

fn told(message: AsyncMessage, wake_ups: &WakeUps) {
    if let AsyncMessage::Notification(notification) = message
        && let Some(key) = decode(notification.payload())
    {
        wake_ups.released(&key);
    }
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

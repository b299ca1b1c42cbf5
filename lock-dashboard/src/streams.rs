//! Server-sent events: the history, and then the age and the state of each round.
//!
//! A stream ends when the page is to be shut down, when the client that asks is, and after half a minute. A graceful
//! shutdown of the service waits for its connections, so it ends as well. The browser connects again.
//!
//! The state is encoded once for all viewers; the streams share its bytes.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::{HeaderName, HeaderValue, header};
use axum::response::{IntoResponse, Response};
use futures_util::future::{BoxFuture, Shared};
use futures_util::stream::unfold;
use tokio::time::{Instant, sleep_until, timeout};

use crate::hub::Viewer;
use crate::view::View;

/// The longest life of a stream.
const LONGEST: Duration = Duration::from_secs(30);

/// The longest time without bytes.
const QUIET: Duration = Duration::from_secs(15);

/// A browser connects again after this time if a stream ends without the event `end`. In ms.
const RECONNECT: u32 = 1000;

/// Resolves when the streams are to end.
pub(crate) type ShutdownSignal = Shared<BoxFuture<'static, ()>>;

/// The events for one viewer.
pub(crate) struct EventStream {
    viewer: Viewer,
    shutdown: ShutdownSignal,
    /// When it ends.
    until: Instant,
    /// What is to be sent.
    ready: VecDeque<Bytes>,
    has_history: bool,
    is_over: bool,
}

impl EventStream {
    pub(crate) fn new(viewer: Viewer, shutdown: ShutdownSignal) -> Self {
        Self {
            viewer,
            shutdown,
            until: Instant::now() + LONGEST,
            ready: VecDeque::new(),
            has_history: false,
            is_over: false,
        }
    }

    pub(crate) fn response(self) -> Response {
        let headers = [
            (header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream")),
            // nginx would collect the events.
            (HeaderName::from_static("x-accel-buffering"), HeaderValue::from_static("no")),
        ];
        let chunks = unfold(self, async |mut stream| {
            Some((Ok::<_, Infallible>(stream.next().await?), stream))
        });
        (headers, Body::from_stream(chunks)).into_response()
    }

    async fn next(&mut self) -> Option<Bytes> {
        loop {
            if let Some(chunk) = self.ready.pop_front() {
                return Some(chunk);
            }
            if self.is_over {
                return None;
            }
            tokio::select! {
                () = self.shutdown.clone() => return None,
                () = sleep_until(self.until) => {
                    self.is_over = true;
                    // An event without data is none.
                    self.ready.push_back(Bytes::from_static(b"event: end\ndata: {}\n\n"));
                }
                view = timeout(QUIET, self.viewer.next()) => match view {
                    Ok(view) => self.add(&view),
                    Err(_) => self.ready.push_back(Bytes::from_static(b":\n\n")),
                },
            }
        }
    }

    fn add(&mut self, view: &View) {
        if !std::mem::replace(&mut self.has_history, true) {
            let start = format!("retry: {RECONNECT}\nevent: history\ndata: ");
            self.add_event(start, view.history.clone());
        }
        let start = format!("event: age\ndata: {}\n\nevent: state\ndata: ", view.age());
        self.add_event(start, view.state.clone());
        self.is_over = view.is_last;
    }

    /// JSON has no line breaks.
    fn add_event(&mut self, start: String, json: Bytes) {
        self.ready.extend([Bytes::from(start), json, Bytes::from_static(b"\n\n")]);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use futures_util::FutureExt;
    use futures_util::future::pending;
    use lock_runtime::LockClient;
    use lock_runtime::admin::LockAdmin;

    use super::*;
    use crate::hub::{Hub, Pace};

    const PATIENCE: Duration = Duration::from_secs(60);

    fn stream(client: &LockClient) -> EventStream {
        let hub = Hub::new(LockAdmin::new(client), Duration::from_millis(500), false);
        EventStream::new(Arc::clone(&hub).viewer(Pace::Live), pending().boxed().shared())
    }

    /// All that it sends until it ends.
    async fn text(mut stream: EventStream) -> String {
        let mut bytes = Vec::new();
        let ends = async {
            while let Some(chunk) = stream.next().await {
                bytes.extend_from_slice(&chunk);
            }
        };
        timeout(PATIENCE, ends).await.expect("it ends");
        String::from_utf8(bytes).expect("a text")
    }

    #[tokio::test]
    async fn a_stream_ends_after_its_time_and_says_so() {
        let mut stream = stream(&LockClient::memory());
        stream.until = Instant::now() + Duration::from_millis(300);
        let text = text(stream).await;
        assert!(text.contains("event: state\ndata: {"), "{text}");
        assert!(text.ends_with("event: end\ndata: {}\n\n"), "{text}");
    }

    #[tokio::test]
    async fn a_stream_ends_when_the_client_that_asks_is_shut_down() {
        let client = LockClient::memory();
        let mut stream = stream(&client);
        stream.until = Instant::now() + PATIENCE * 2;
        stream.next().await.expect("the first event");
        client.shutdown().await.expect("nothing is held");
        let text = text(stream).await;
        assert!(text.contains("\"problem\":{\"text\":"), "{text}");
    }
}

//! The connections of browsers.
//!
//! Each connection has a task. None lives for more than two minutes, and their number is limited, so browsers that have
//! gone and programs that read nothing use up neither the memory nor the file descriptors of the process. A browser
//! connects again.
//!
//! At the limit, a new connection takes the place of the oldest one that has sent no request. If all have sent one, the
//! new connection gets the status 503. So no set of connections makes others wait.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::io::ErrorKind;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use axum::Router;
use axum::extract::{Request, State};
use axum::http::{StatusCode, header};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{Instant, sleep, timeout};

use crate::messages::Messages;

/// The most connections at one time.
const MOST: usize = 200;

/// The most connections beyond them that are being refused. Others wait for the end of one of these.
const MOST_REFUSALS: usize = 20;

/// The time for a request that is refused, and for its answer.
const REFUSAL: Duration = Duration::from_secs(2);

/// The shortest time between two warnings of the limit.
const WARNING: Duration = Duration::from_secs(60);

/// The time for the head of a request, and also from one request to the next.
const HEAD: Duration = Duration::from_secs(10);

/// After this time, a connection ends with its current answer. The longest answer is a stream of events, of half a
/// minute.
const RENEWAL: Duration = Duration::from_secs(80);

/// The time for that answer.
const LAST_ANSWER: Duration = Duration::from_secs(40);

/// The pause after a connection that could not be accepted, so that others can end.
const PAUSE: Duration = Duration::from_secs(1);

/// The connections of one page.
pub(super) struct PageConnections {
    page: Router,
    tasks: JoinSet<()>,
    /// Those of the tasks whose connections had sent no request when this was last read, the oldest first.
    silent: VecDeque<SilentConnection>,
    /// The connections beyond the limit.
    refusals: JoinSet<()>,
    /// When the last warning of the limit was written.
    warned: Option<Instant>,
    is_ending: watch::Receiver<bool>,
}

/// A connection that may not have sent a request.
struct SilentConnection {
    task: AbortHandle,
    has_request: Arc<AtomicBool>,
}

impl PageConnections {
    /// The page is sent until `is_ending`.
    pub(super) fn new(page: Router, is_ending: watch::Receiver<bool>) -> Self {
        Self {
            page,
            tasks: JoinSet::new(),
            silent: VecDeque::new(),
            refusals: JoinSet::new(),
            warned: None,
            is_ending,
        }
    }

    /// Accepts connections. Cancel safe: those that are accepted go on, except the last one, which may not have a place.
    pub(super) async fn accept(
        &mut self,
        listener: &TcpListener,
        messages: Messages,
    ) -> Infallible {
        loop {
            tokio::select! {
                accepted = listener.accept(), if self.refusals.len() < MOST_REFUSALS => match accepted {
                    Ok((stream, _)) => self.admit(stream, messages).await,
                    // The browser has gone.
                    Err(error) if matches!(error.kind(), ErrorKind::ConnectionAborted | ErrorKind::ConnectionReset) => {}
                    Err(error) => {
                        messages.warning(format!("cannot accept a connection: {error}"));
                        sleep(PAUSE).await;
                    }
                },
                Some(_) = self.tasks.join_next() => {}
                Some(_) = self.refusals.join_next() => {}
            }
        }
    }

    /// Gives a connection a place, or refuses it.
    async fn admit(&mut self, stream: TcpStream, messages: Messages) {
        self.forget_requests();
        if self.tasks.len() >= MOST {
            self.warn(messages);
            let Some(oldest) = self.silent.pop_front() else { return self.refuse(stream) };
            oldest.task.abort();
            // The task ends as soon as it would run.
            while self.tasks.len() >= MOST {
                self.tasks.join_next().await;
            }
        }
        self.start(stream);
    }

    fn start(&mut self, stream: TcpStream) {
        let has_request = Arc::new(AtomicBool::new(false));
        let page = self.page.clone().layer(from_fn_with_state(Arc::clone(&has_request), note));
        let task = self.tasks.spawn(send(stream, page, self.is_ending.clone()));
        self.silent.push_back(SilentConnection { task, has_request });
    }

    fn refuse(&mut self, stream: TcpStream) {
        let answer = send(stream, Router::new().fallback(refusal), self.is_ending.clone());
        self.refusals.spawn(async {
            // The client has had its time.
            let _ = timeout(REFUSAL, answer).await;
        });
    }

    /// Removes connections that have sent a request, and those that have ended.
    fn forget_requests(&mut self) {
        self.silent.retain(|connection| {
            !connection.task.is_finished() && !connection.has_request.load(Ordering::Relaxed)
        });
    }

    fn warn(&mut self, messages: Messages) {
        if self.warned.is_some_and(|warned| warned.elapsed() < WARNING) {
            return;
        }
        self.warned = Some(Instant::now());
        messages.warning(format!(
            "all {MOST} connections are in use: a new one replaces the oldest one that has sent no request, or gets \
             the status 503"
        ));
    }

    /// Waits for the end of all connections, for at most this long. Returns how many of them have not ended.
    pub(super) async fn end(&mut self, limit: Duration) -> usize {
        let all = async { while self.tasks.join_next().await.is_some() {} };
        // The rest is counted.
        let _ = timeout(limit, all).await;
        self.tasks.len()
    }
}

/// Notes that a connection has sent a request.
async fn note(
    State(has_request): State<Arc<AtomicBool>>,
    request: Request,
    next: Next,
) -> Response {
    has_request.store(true, Ordering::Relaxed);
    next.run(request).await
}

/// The answer to a connection without a place.
async fn refusal() -> Response {
    let text =
        format!("all {MOST} connections of this page are in use: try again in a few seconds");
    let headers = [(header::CONNECTION, "close"), (header::RETRY_AFTER, "5")];
    (StatusCode::SERVICE_UNAVAILABLE, headers, text).into_response()
}

/// Resolves when the connections are to end.
pub(super) async fn ending(mut is_ending: watch::Receiver<bool>) {
    // It fails if the sender has gone, and the page with it.
    let _ = is_ending.wait_for(|is_ending| *is_ending).await;
}

/// Answers the requests of a connection. Its errors are those of the browser.
async fn send(stream: TcpStream, page: Router, is_ending: watch::Receiver<bool>) {
    // Without it, events would only be late.
    let _ = stream.set_nodelay(true);
    let mut builder = Builder::new(TokioExecutor::new()).http1_only();
    builder.http1().timer(TokioTimer::new()).header_read_timeout(HEAD);
    let connection = builder.serve_connection(TokioIo::new(stream), TowerToHyperService::new(page));
    let mut connection = pin!(connection);
    tokio::select! {
        _ = connection.as_mut() => return,
        () = ending(is_ending) => {}
        () = sleep(RENEWAL) => {}
    }
    connection.as_mut().graceful_shutdown();
    let _ = timeout(LAST_ANSWER, connection).await;
}

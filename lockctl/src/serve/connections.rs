//! The connections of browsers.
//!
//! Each connection has a task. None lives for more than two minutes, and their number is limited, so browsers that have
//! gone and programs that read nothing use up neither the memory nor the file descriptors of the process. A browser
//! connects again.

use std::convert::Infallible;
use std::io::ErrorKind;
use std::pin::pin;
use std::time::Duration;

use axum::Router;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use crate::messages::Messages;

/// The most connections at one time. Others wait until one of them ends.
const MOST: usize = 200;

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
    is_ending: watch::Receiver<bool>,
}

impl PageConnections {
    /// The page is sent until `is_ending`.
    pub(super) fn new(page: Router, is_ending: watch::Receiver<bool>) -> Self {
        Self { page, tasks: JoinSet::new(), is_ending }
    }

    /// Accepts connections. Cancel safe: those that are accepted go on.
    pub(super) async fn accept(
        &mut self,
        listener: &TcpListener,
        messages: Messages,
    ) -> Infallible {
        loop {
            tokio::select! {
                accepted = listener.accept(), if self.tasks.len() < MOST => match accepted {
                    Ok((stream, _)) => self.start(stream),
                    // The browser has gone.
                    Err(error) if matches!(error.kind(), ErrorKind::ConnectionAborted | ErrorKind::ConnectionReset) => {}
                    Err(error) => {
                        messages.warning(format!("cannot accept a connection: {error}"));
                        sleep(PAUSE).await;
                    }
                },
                Some(_) = self.tasks.join_next() => {}
            }
        }
    }

    fn start(&mut self, stream: TcpStream) {
        self.tasks.spawn(send(stream, self.page.clone(), self.is_ending.clone()));
    }

    /// Waits for the end of all connections, for at most this long. Returns how many of them have not ended.
    pub(super) async fn end(&mut self, limit: Duration) -> usize {
        let all = async { while self.tasks.join_next().await.is_some() {} };
        // The rest is counted.
        let _ = timeout(limit, all).await;
        self.tasks.len()
    }
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

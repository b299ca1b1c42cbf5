//! Following the redirections of a cluster: `MOVED`, `ASK` and `TRYAGAIN`.

use std::time::Duration;

use redis::{Cmd, Value};
use tokio::time::{sleep, timeout};

use super::{FailedRequest, NodeConnections};
use crate::connections::request::RoutedAnswer;
use crate::scripts::decode::Unexpected;
use crate::topology::Redirect;
use lock_core::backoff::Backoff;
use lock_core::store::contract::StoreError;
use lock_core::timeout::RequestTimeout;

/// How often a request follows a redirection.
const MOST_HOPS: usize = 8;

/// The first and the longest pause before a request is repeated because its slot is being moved.
const TRY_AGAIN: (Duration, Duration) = (Duration::from_millis(2), Duration::from_millis(100));

impl NodeConnections {
    /// Follows the redirections of a request that has failed.
    pub(super) async fn follow<T, A: Fn(&mut Cmd)>(
        &self,
        failed: FailedRequest<'_, A>,
        decode: impl Fn(&Value) -> Result<T, Unexpected>,
    ) -> Result<RoutedAnswer<T>, StoreError> {
        let FailedRequest { request, mut node, mut error, started } = failed;
        let RequestTimeout { answer, total } = request.options.timeout;
        let mut pauses = Backoff::new(TRY_AGAIN.0, TRY_AGAIN.1);
        let (mut hops, mut was_asked) = (0, false);
        loop {
            let left = total.saturating_sub(started.elapsed());
            match Redirect::of(&error) {
                Some(Redirect::Moved { .. } | Redirect::Ask { .. }) if hops == MOST_HOPS => {
                    self.cluster.refresh();
                    return Err(StoreError::Refused(format!(
                        "the nodes of the cluster have redirected the request {hops} times; the \
                         last answer is {error}"
                    )));
                }
                Some(Redirect::Moved { slot, to }) => {
                    let next = timeout(left, self.cluster.moved(slot, to, &node)).await;
                    (node, was_asked) = (next.unwrap_or_else(|_| Err(error.clone()))?, false);
                    hops += 1;
                }
                Some(Redirect::Ask { to }) => {
                    let next = timeout(left, self.cluster.named(to, &node)).await;
                    (node, was_asked) = (next.unwrap_or_else(|_| Err(error.clone()))?, true);
                    hops += 1;
                }
                Some(Redirect::TryAgain) => {
                    let pause = pauses.pause();
                    if pause >= left {
                        return Err(error);
                    }
                    sleep(pause).await;
                }
                None => {
                    self.failed(&error);
                    return Err(error);
                }
            }
            let left = total.saturating_sub(started.elapsed());
            if left.is_zero() {
                return Err(error);
            }
            let connection = self.to(&node);
            let connection = if was_asked { connection.asking() } else { connection };
            let timeout = RequestTimeout { answer: answer.min(left), total: left };
            match request.send(&connection, timeout, &decode).await {
                Ok(value) => return Ok(RoutedAnswer { value, was_asked }),
                Err(next) => error = next,
            }
        }
    }
}

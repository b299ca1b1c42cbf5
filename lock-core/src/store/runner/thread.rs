//! The thread of a store.

use std::io;
use std::time::Duration;

use tokio::runtime::{Builder, Handle};
use tokio::sync::oneshot;

use super::started::start;
use crate::store::patience::answer_within;
use crate::store::store_error::StoreError;

const PANICKED: &str = "the store has panicked";
const ENDED: &str = "the client or the runtime has ended";

/// A thread with a runtime, which ends when this is dropped. Its tasks are dropped then.
#[derive(Debug)]
pub(super) struct StoreThread {
    runtime: Handle,
    /// The thread ends when it is dropped.
    _alive: oneshot::Sender<()>,
}

impl StoreThread {
    pub(super) fn start() -> io::Result<Self> {
        let (started, outcome) = std::sync::mpsc::sync_channel(1);
        let (alive, ended) = oneshot::channel::<()>();
        std::thread::Builder::new().name("lock-store".into()).spawn(move || {
            // Built here, because a runtime must not be dropped inside another one.
            match Builder::new_current_thread().enable_all().build() {
                Ok(runtime) => {
                    // The receiver is missing only if the starting thread panicked.
                    let _ = started.send(Ok(runtime.handle().clone()));
                    let _ = runtime.block_on(ended);
                }
                Err(error) => {
                    let _ = started.send(Err(error));
                }
            }
        })?;
        let runtime = outcome.recv().unwrap_or_else(|gone| Err(io::Error::other(gone)))?;
        Ok(Self { runtime, _alive: alive })
    }

    pub(super) fn runtime(&self) -> &Handle {
        &self.runtime
    }
}

/// Runs a request on this runtime. It goes on if the caller drops the future, or does not poll it.
pub(super) fn run<T: Send + 'static, F>(
    runtime: &Handle,
    request: F,
) -> impl Future<Output = Result<T, StoreError>> + Send + 'static + use<T, F>
where
    F: Future<Output = Result<T, StoreError>> + Send + 'static,
{
    let is_here = Handle::try_current().is_ok_and(|here| here.id() == runtime.id());
    let answered = if is_here {
        let (answer, answered) = oneshot::channel();
        // The caller may have dropped the future.
        let request = async move { drop(answer.send(request.await)) };
        start(runtime, Box::pin(request));
        Ok(answered)
    } else {
        Err(runtime.spawn(request))
    };
    async move {
        match answered {
            Ok(answered) => {
                let ended = |_| Err(StoreError::Unknown(format!("{ENDED}, or {PANICKED}")));
                answered.await.unwrap_or_else(ended)
            }
            Err(task) => task.await.unwrap_or_else(|ended| {
                let text = if ended.is_panic() { PANICKED } else { ENDED };
                Err(StoreError::Unknown(text.to_owned()))
            }),
        }
    }
}

/// The answer to a request, or an error after this time.
pub(super) async fn within<T>(
    limit: Duration,
    request: impl Future<Output = Result<T, StoreError>>,
) -> Result<T, StoreError> {
    let answer = answer_within(limit, request).await;
    answer.unwrap_or_else(|| Err(StoreError::Unknown(format!("no answer in {limit:?}"))))
}

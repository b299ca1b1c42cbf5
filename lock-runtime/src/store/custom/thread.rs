//! The thread of a custom store.

use std::io;
use std::time::Duration;

use tokio::runtime::{Builder, Handle};
use tokio::sync::oneshot;

use crate::store::store_error::StoreError;

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

    /// Runs a request, for at most this time. A request that was sent goes on if the caller drops the future.
    pub(super) fn request<T: Send + 'static>(
        &self,
        within: Duration,
        request: impl Future<Output = Result<T, StoreError>> + Send + 'static,
    ) -> impl Future<Output = Result<T, StoreError>> + Send + 'static {
        // The clock of the caller may be paused, or the executor blocked.
        let task = self.runtime.spawn(async move {
            let answered = tokio::time::timeout(within, request).await;
            answered
                .unwrap_or_else(|_| Err(StoreError::Unknown(format!("no answer in {within:?}"))))
        });
        async move { task.await.unwrap_or_else(|ended| Err(StoreError::Unknown(ended_text(&ended)))) }
    }
}

fn ended_text(ended: &tokio::task::JoinError) -> String {
    if ended.is_panic() { "the store has panicked" } else { "the client has ended" }.to_owned()
}

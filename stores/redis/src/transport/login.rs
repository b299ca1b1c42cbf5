//! Logging in: with the credentials of the URL, or with those that the program supplies.
//!
//! The program's function is user code, which may block or panic. It therefore runs on a thread of
//! its own, and never on the thread of the renewals, whose connection needs credentials as well.

use std::time::Duration;

use redis::RedisConnectionInfo;
use tokio::runtime::Builder;
use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;

use lock_core::credentials::{Credentials, CredentialsSource, Obtained};
use lock_core::store::contract::StoreError;
use lock_core::sync::{Mutex, lock};

/// How long the program may take to supply credentials: less than an attempt to connect may take.
const SOURCE_TIMEOUT: Duration = Duration::from_secs(3);

/// How connections log in.
pub(crate) struct Login {
    /// Everything but credentials of the program.
    settings: RedisConnectionInfo,
    source: Option<Source>,
}

/// The program's function and the thread that calls it.
struct Source {
    function: CredentialsSource,
    /// The requests to the thread; `None` until the first one.
    requests: Mutex<Option<mpsc::UnboundedSender<oneshot::Sender<Obtained>>>>,
}

impl Login {
    pub(crate) fn new(settings: RedisConnectionInfo, source: Option<CredentialsSource>) -> Self {
        let source = source.map(|function| Source { function, requests: Mutex::default() });
        Self { settings, source }
    }

    /// Whether the program supplies the credentials.
    pub(crate) fn has_source(&self) -> bool {
        self.source.is_some()
    }

    #[cfg(test)]
    pub(crate) fn settings(&self) -> &RedisConnectionInfo {
        &self.settings
    }

    /// The current settings for a new connection, and for how long its credentials are valid.
    pub(crate) async fn current(
        &self,
    ) -> Result<(RedisConnectionInfo, Option<Duration>), StoreError> {
        let Some(source) = &self.source else { return Ok((self.settings.clone(), None)) };
        let Credentials { user, password, valid_for } = source.obtain().await?;
        let mut settings = self.settings.clone().set_password(password);
        if let Some(user) = user {
            settings = settings.set_username(user);
        }
        Ok((settings, valid_for))
    }
}

impl Source {
    /// Obtains credentials from the program.
    async fn obtain(&self) -> Result<Credentials, StoreError> {
        let failed = |cause: &str| {
            StoreError::Refused(format!("the program supplied no credentials: {cause}"))
        };
        let (reply, answer) = oneshot::channel();
        self.request(reply).map_err(|error| failed(&error.to_string()))?;
        match timeout(SOURCE_TIMEOUT, answer).await {
            Ok(Ok(Ok(credentials))) => Ok(credentials),
            Ok(Ok(Err(error))) => Err(failed(&error)),
            Ok(Err(_)) => Err(failed("its function panicked")),
            Err(_) => Err(failed(&format!("its function took longer than {SOURCE_TIMEOUT:?}"))),
        }
    }

    /// Sends a request to the thread. Starts the thread if it does not run.
    fn request(&self, reply: oneshot::Sender<Obtained>) -> std::io::Result<()> {
        let mut requests = lock(&self.requests);
        let reply = match &*requests {
            Some(sender) => match sender.send(reply) {
                Ok(()) => return Ok(()),
                Err(mpsc::error::SendError(reply)) => reply,
            },
            None => reply,
        };
        let sender = start(self.function.clone())?;
        let _ = sender.send(reply);
        *requests = Some(sender);
        Ok(())
    }
}

/// Starts the thread that calls the program's function. It ends when the sender is dropped.
fn start(
    function: CredentialsSource,
) -> std::io::Result<mpsc::UnboundedSender<oneshot::Sender<Obtained>>> {
    let (sender, mut requests) = mpsc::unbounded_channel::<oneshot::Sender<Obtained>>();
    std::thread::Builder::new().name("lock-credentials".into()).spawn(move || {
        // Built here, because a runtime must not be dropped inside another one. Without it, all
        // requests end without an answer.
        let Ok(runtime) = Builder::new_current_thread().enable_all().build() else { return };
        runtime.block_on(async {
            while let Some(reply) = requests.recv().await {
                // A panic drops `reply`.
                tokio::spawn(answer(function.clone(), reply));
            }
        });
    })?;
    Ok(sender)
}

/// Answers a request, unless its sender gives up first.
async fn answer(function: CredentialsSource, mut reply: oneshot::Sender<Obtained>) {
    if reply.is_closed() {
        return;
    }
    let obtained = tokio::select! {
        obtained = function.obtain() => obtained,
        () = reply.closed() => return,
    };
    let _ = reply.send(obtained);
}

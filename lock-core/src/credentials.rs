//! The credentials of a server's connections.

// Only a remote store uses them.
use std::error::Error;
use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

/// A password, with or without a user name, for the connections to a server. See
/// `LockClientBuilder::credentials`.
///
/// `Debug` does not show the password.
///
/// # Examples
///
/// ```
/// use lock_runtime::Credentials;
/// use std::time::Duration;
///
/// let token = String::from("eyJhbGciOi…");
/// let lifetime = Duration::from_secs(15 * 60);
/// let credentials = Credentials::new(token).user("locks").valid_for(lifetime);
/// let shown = format!("{credentials:?}");
/// assert_eq!(shown, "Credentials { user: Some(\"locks\"), valid_for: Some(900s) }");
/// ```
#[derive(Clone)]
#[must_use]
pub struct Credentials {
    #[doc(hidden)]
    pub user: Option<String>,
    #[doc(hidden)]
    pub password: String,
    #[doc(hidden)]
    pub valid_for: Option<Duration>,
}

impl Credentials {
    /// A password for the server's default user.
    pub fn new(password: impl Into<String>) -> Self {
        Self { user: None, password: password.into(), valid_for: None }
    }

    /// The user to log in as.
    pub fn user(mut self, name: impl Into<String>) -> Self {
        self.user = Some(name.into());
        self
    }

    /// For how long the server accepts connections with these credentials: the rest of the lifetime
    /// of a token. When about three quarters of this time have passed, each open connection logs in
    /// again with new credentials, at most twice a second. Without it, open connections keep the
    /// credentials that they logged in with.
    pub fn valid_for(mut self, time: Duration) -> Self {
        self.valid_for = Some(time);
        self
    }
}

/// Without the password.
impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { user, password: _, valid_for } = self;
        f.debug_struct("Credentials").field("user", user).field("valid_for", valid_for).finish()
    }
}

/// The outcome of a request for credentials. The error is a text, because an error type of the
/// program is user code.
pub type Obtained = Result<Credentials, String>;

/// The program's function that supplies credentials. It is user code.
#[derive(Clone)]
pub struct CredentialsSource(Arc<SourceFunction>);

type SourceFunction = dyn Fn() -> Pin<Box<dyn Future<Output = Obtained> + Send>> + Send + Sync;

impl CredentialsSource {
    pub fn new<F, E>(source: impl Fn() -> F + Send + Sync + 'static) -> Self
    where
        F: Future<Output = Result<Credentials, E>> + Send + 'static,
        E: Into<Box<dyn Error + Send + Sync>>,
    {
        Self(Arc::new(move || {
            let credentials = source();
            Box::pin(async move {
                credentials
                    .await
                    .map_err(|error| Into::<Box<dyn Error + Send + Sync>>::into(error).to_string())
            })
        }))
    }

    /// Calls the program's function.
    pub fn obtain(&self) -> impl Future<Output = Obtained> + Send {
        (self.0)()
    }
}

impl fmt::Debug for CredentialsSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("CredentialsSource")
    }
}

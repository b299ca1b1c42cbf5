//! How a client reaches its servers, and what it tells about itself there.

use std::error::Error;
use std::time::Duration;

use super::LockClientBuilder;
use crate::address_map::AddressMap;
use crate::credentials::{Credentials, CredentialsSource};
use crate::identity::Identity;
#[cfg(feature = "tls")]
use crate::tls::TlsOptions;

impl LockClientBuilder {
    /// A function that supplies the credentials of each new connection, instead of the URL: for
    /// passwords that change, and for tokens that end. With sentinels, it supplies the credentials
    /// for the master, and with a cluster, those for all nodes.
    ///
    /// It is called before each connection, on a thread of the library with a tokio runtime of its
    /// own, and has 3 s to return. (Objects that it creates there, such as an HTTP client, end with
    /// that runtime when the client is dropped.) If it fails, panics or takes longer, the connection
    /// is not made, and later attempts call it again. If the server rejects the credentials, the
    /// function is called once more before the call fails with
    /// [`LockError::Denied`](crate::LockError::Denied). Its error is shown in
    /// [`LockError::Unavailable`](crate::LockError::Unavailable) and in the log.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// use lock_runtime::{Credentials, LockClient, LockError};
    /// use std::time::Duration;
    ///
    /// # async fn new_token() -> Result<String, std::io::Error> { unimplemented!() }
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), LockError> {
    /// let client = LockClient::builder()
    ///     .url("rediss://cache.internal:6379")
    ///     .credentials(|| async {
    ///         let token = new_token().await?;
    ///         let lifetime = Duration::from_secs(15 * 60);
    ///         Ok::<_, std::io::Error>(Credentials::new(token).user("locks").valid_for(lifetime))
    ///     })
    ///     .connect()
    ///     .await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn credentials<F, E>(mut self, source: impl Fn() -> F + Send + Sync + 'static) -> Self
    where
        F: Future<Output = Result<Credentials, E>> + Send + 'static,
        E: Into<Box<dyn Error + Send + Sync>>,
    {
        self.credentials = Some(CredentialsSource::new(source));
        self
    }

    /// Maps the addresses that the nodes of a cluster announce, or that sentinels name, to those at
    /// which this client reaches the servers, such as forwarded ports of containers. The hosts of
    /// the URL are not mapped. The default is to use the announced addresses.
    ///
    /// The function must return at once, because it is called on the thread that wakes waiting
    /// calls. If it panics, the announced address is used. If it does not return within a second,
    /// its latest result for the address is used, or the connection fails if there is none.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// use lock_runtime::{LockClient, LockError};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), LockError> {
    /// let client = LockClient::builder()
    ///     .url("redis+cluster://localhost:7000,localhost:7001")
    ///     .address_map(|_host, port| ("localhost".to_owned(), port))
    ///     .connect()
    ///     .await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn address_map(
        mut self,
        map: impl Fn(&str, u16) -> (String, u16) + Send + Sync + 'static,
    ) -> Self {
        self.address_map = Some(AddressMap::new(map));
        self
    }

    /// What this client tells others about itself: in [`LockError::Busy`](crate::LockError::Busy), their calls
    /// see which process holds a lock. [`Identity::of_process`] by default: the name of the host, and the
    /// process id.
    ///
    /// While a client with Redis acquires or renews locks, it writes this to the key `lock_client:<id>`, every
    /// third of its lease, but at most once a second: one request each time, on the connection for renewals.
    /// The key expires when the locks of a process that has died have ended. Without the permission to write
    /// it, everything else works. The memory store tells the host and the process id.
    ///
    /// A client that says who it is also answers questions about its locks (`LockAdmin`, feature `admin`). It
    /// subscribes to the channel `lock_ask:<namespace>` when it connects, with one request, and answers at most
    /// ten questions a second. A client with [`Identity::none`] tells nothing.
    ///
    /// # Errors
    ///
    /// [`connect`](Self::connect) returns [`LockError::Config`](crate::LockError::Config) if a text is empty,
    /// has more than 253 bytes or a control character.
    ///
    /// # Examples
    ///
    /// ```
    /// use lock_runtime::{Identity, LockClient, LockError};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), LockError> {
    /// let identity = Identity::named("checkout-3").service("shop", "1.4.2");
    /// let client = LockClient::builder().url("memory:").identity(identity).connect().await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn identity(mut self, identity: Identity) -> Self {
        self.identity = identity;
        self
    }

    /// Sets whether others may end the holds of this client. They may not by default.
    ///
    /// A hold that is revoked (`LockAdmin::revoke`, feature `admin`) is lost with the reason
    /// [`Revoked`](crate::LostReason::Revoked): its body is dropped, and the key is then released. Anybody who may
    /// publish to the channel `lock_ask:<namespace>` can do it. A client with [`Identity::none`] receives no such
    /// request.
    pub fn revocable(mut self, revocable: bool) -> Self {
        self.is_revocable = revocable;
        self
    }

    /// How to connect to servers over TLS: the trusted authorities, the client's certificate, or a
    /// whole configuration of rustls. Without it, the options of the URL are used.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// use lock_runtime::{LockClient, LockError, TlsOptions};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), LockError> {
    /// let certificates = TlsOptions::new()
    ///     .ca_file("/etc/cache/ca.pem")
    ///     .client_certificate("/etc/cache/client.pem", "/etc/cache/client.key");
    /// let client = LockClient::builder()
    ///     .url("rediss://cache.internal:6379")
    ///     .tls(certificates)
    ///     .connect()
    ///     .await?;
    /// # Ok(())
    /// # }
    /// ```
    #[cfg(feature = "tls")]
    pub fn tls(mut self, tls: impl Into<TlsOptions>) -> Self {
        self.tls = Some(tls.into());
        self
    }

    /// Sets how long calls keep trying while the store neither grants a lock nor says that it is busy, from
    /// 10 ms to 7 days. After an outage of this length, calls fail with
    /// [`LockError::Unavailable`](crate::LockError::Unavailable) although their waits have not ended. By default,
    /// they try again until then.
    ///
    /// An outage begins with the first attempt that fails. Once it has lasted for this long, a call fails when
    /// its current attempt ends, which may take a response timeout. While the outage lasts, one call makes an
    /// attempt every half second, and the others fail without a request. In a cluster, each node has outages of its own. A server in
    /// [quarantine](Self::quarantine), and replicas that are missing, count as an outage. Held locks are not
    /// affected.
    ///
    /// # Examples
    ///
    /// ```
    /// # async fn example() -> Result<(), lock_runtime::LockError> {
    /// use lock_runtime::LockClient;
    /// use std::time::Duration;
    ///
    /// // Wait for a busy lock for up to 30 s, but for a server that is down only for 3 s.
    /// let builder = LockClient::builder().url("memory:").wait(Duration::from_secs(30));
    /// let client = builder.unavailable_after(Duration::from_secs(3)).connect().await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn unavailable_after(mut self, outage: Duration) -> Self {
        self.unavailable_after = Some(outage);
        self
    }
}

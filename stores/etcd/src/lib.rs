//! Locks in etcd.
//!
//! A lock is one key, whose value is the token of its owner. It ends with a lease of etcd: see `leases.rs`. What a client may
//! have left in etcd is plain data in `holds.rs`, and `cleanup.rs` deletes it. `members.rs` sends requests to the member that
//! `member_list.rs` chooses, and `watcher.rs` has the stream that tells of released and lost keys.

#![cfg_attr(docsrs, feature(doc_cfg))]
#![forbid(unsafe_code)]
#![allow(
    missing_debug_implementations,
    clippy::must_use_candidate,
    reason = "only lock-runtime uses it"
)]

mod address;
mod auth;
mod batch;
mod cleanup;
mod client;
mod clusters;
mod connect;
mod errors;
mod holds;
mod inspection;
mod joined;
mod leases;
mod locks;
mod member_list;
mod members;
mod messages;
mod presence;
mod renewals;
mod tls;
mod transactions;
mod versions;
mod watcher;

use std::fmt;
use std::sync::Arc;

use self::address::EtcdAddress;
use self::members::Members;
use self::tls::EtcdTls;
use lock_core::error::LockError;
use lock_core::store::contract::{Backend, OpenStore};
use lock_core::store::settings::Settings;
#[cfg(feature = "tls")]
use lock_core::store::url_options::tls_options;
#[cfg(feature = "tls")]
use lock_core::tls::TlsOptions;

/// Locks in [etcd](https://etcd.io), 3.4 or newer: what URLs with `etcd://` and `etcds://` stand for.
///
/// # Promise
///
/// At any time, at most one owner has a key in etcd, whichever minority of the members crashes or is cut off. (An error of
/// etcd is the exception, for a leader that was suspended: see below.) The client stops a body before the lease of its key ends. Like every lock, it cannot stop a write to another system that is
/// already on its way: such a system has to reject writes with a fencing token (`LockGuard::fencing_token`) below the
/// highest one that it has seen. The token is the revision of etcd at which the key was acquired; it comes with the grant,
/// and is above every earlier one for the key, also after restarts. (If etcd is restored from an old backup, its revisions
/// go back, unless it is told to raise them.)
///
/// # Costs
///
/// | | requests |
/// |---|---|
/// | an acquire of a lock that is renewed | 1; 2 if the client has not extended its lease for a second |
/// | extending that lease while locks are acquired | 1 every half second, beside them |
/// | an acquire with a fixed lease | 3 |
/// | a release | 1; 2 with a fixed lease, which is revoked in the background |
/// | holding locks that are renewed | 2 for up to 64 locks and 3 for up to 100, every third of the lease |
/// | a fencing token | 0; 1 for a call that is handed the lock over inside the process, or has locked several keys |
/// | waiting | 2 when the wait begins and after each release (3 with a fixed lease), and one message to watch the key; 1 attempt every 5 s |
/// | who has the lock, when a wait ends without it | 3, which calls for the key share for a second |
/// | a lease for the marks of waiting calls | 1 every 30 s while there are any |
/// | who the client is (`identity`) | 1 for each lease that its holds share, beside the acquire that grants it |
/// | learning of members | 1 a minute for each client |
/// | checking the cluster of a member | 1 before its first use, and after each of its failures |
///
/// While eight acquires of a runtime are in flight, more of them wait for one of those to end, and then go together, up to 48 in one
/// transaction of etcd. The same holds for releases.
///
/// A client has one connection to a member for the calls of the first runtime that uses it, and one for everything else.
///
/// All locks of a client that are renewed share one lease of etcd for each length. etcd writes to the disks of a majority of
/// its members for each acquire and each release, but not for a renewal.
///
/// # Time
///
/// A lease of etcd lasts for whole seconds, rounded up, and at least one and a half times its election timeout: 2 s by
/// default. A shorter lease works: the client counts its own term, and releases the key. Only after a crash of the process,
/// the key stays taken for as long as etcd has granted. The shared lease lasts a second longer than its term. A leader that
/// fails is replaced after about a second, and all leases then begin anew, so a lease of 10 s or more survives it. Below 3 s,
/// a client logs a warning. A leader that was suspended and replaced may end leases that were renewed meanwhile; the holder
/// is told at once that its lock is lost, but may overlap with the next one until then. etcd 3.4.31 and 3.5.13 have made this
/// less likely, and a client logs a warning when it connects to an earlier version.
///
/// # Users
///
/// With authentication, the URL has a user and a password, and the user needs the permission to read and write the keys of
/// the locks, as a prefix: `etcdctl role grant-permission ROLE readwrite --prefix=true PREFIX`. The client's
/// `namespace` is such a prefix.
///
/// # Examples
///
/// ```no_run
/// use lock_runtime::{LockClient, LockError};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), LockError> {
/// let client = LockClient::connect("etcd://10.0.0.1:2379,10.0.0.2:2379,10.0.0.3:2379").await?;
/// let guard = client.lock("report").acquire().await?;
/// guard.release().await?;
/// # Ok(())
/// # }
/// ```
pub struct EtcdStore {
    address: EtcdAddress,
    tls: Option<EtcdTls>,
}

impl EtcdStore {
    /// A store in the cluster with these members:
    /// `etcd://[user:password@]host[:port][,host[:port]…]`, or `etcds://…` for TLS (feature `tls`), which may have the options
    /// `tls_ca`, `tls_cert`, `tls_key` and `tls_server_name` of [`TlsOptions`] after a `?`. Characters of
    /// the user, the password and the options that have a meaning in URLs are percent-encoded. Does not connect.
    ///
    /// The URL should name all members: the client uses one, and another one when that one fails. When all of them have
    /// failed, it also uses the other members of the cluster that it has learned of, by the addresses that they announce
    /// (`--advertise-client-urls`).
    ///
    /// # Errors
    ///
    /// [`LockError::Config`]: the URL is invalid, or there is no TLS in this build. The error does not show the URL.
    ///
    /// # Examples
    ///
    /// ```
    /// use lock_runtime::store::EtcdStore;
    ///
    /// assert!(EtcdStore::new("etcd://locks:secret@10.0.0.1:2379,10.0.0.2:2379").is_ok());
    /// assert!(EtcdStore::new("etcd://10.0.0.1:2379,10.0.0.1:2379").is_err());
    /// ```
    pub fn new(url: &str) -> Result<Self, LockError> {
        let address = EtcdAddress::parse(url)?;
        #[cfg(feature = "tls")]
        let tls = Self::tls(&address, None)?;
        #[cfg(not(feature = "tls"))]
        let tls = without_tls(&address)?;
        Self::at(address, tls)
    }

    /// The store of a client with these settings.
    pub fn of_client(url: &str, settings: &Settings) -> Result<Self, LockError> {
        if settings.credentials.is_some() {
            return Err(LockError::config(
                "credentials",
                "etcd takes its user and password from the URL",
            ));
        }
        let address = EtcdAddress::parse(url)?;
        #[cfg(feature = "tls")]
        let tls = Self::tls(&address, settings.tls.as_ref())?;
        #[cfg(not(feature = "tls"))]
        let tls = without_tls(&address)?;
        Self::at(address, tls)
    }

    #[cfg(feature = "tls")]
    fn tls(
        address: &EtcdAddress,
        of_client: Option<&TlsOptions>,
    ) -> Result<Option<EtcdTls>, LockError> {
        if address.tls {
            let options = tls_options(of_client, address.tls_options.clone())?;
            return EtcdTls::new(options).map(Some);
        }
        if of_client.is_some() {
            let problem = "the URL uses no TLS; write `etcds://`";
            return Err(LockError::config("tls", problem));
        }
        Ok(None)
    }

    fn at(address: EtcdAddress, tls: Option<EtcdTls>) -> Result<Self, LockError> {
        // Checks the addresses.
        Members::new(address.clone(), tls.clone())?;
        Ok(Self { address, tls })
    }
}

#[cfg(not(feature = "tls"))]
fn without_tls(address: &EtcdAddress) -> Result<Option<EtcdTls>, LockError> {
    if address.tls { Err(EtcdTls::missing()) } else { Ok(None) }
}

/// Without the user and the password.
impl fmt::Debug for EtcdStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("EtcdStore");
        shown.field("members", &self.address.members).field("tls", &self.address.tls);
        shown.finish_non_exhaustive()
    }
}

impl OpenStore for EtcdStore {
    fn name(&self) -> &'static str {
        "etcd"
    }

    fn open(&self, settings: &Settings) -> Result<Arc<dyn Backend>, LockError> {
        locks::open(Members::new(self.address.clone(), self.tls.clone())?, settings)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn no_secret_is_shown() {
        let store = EtcdStore::new("etcd://locks:geheim@a,b:1").expect("a URL");
        let shown = format!("{store:?}");
        assert!(shown.contains("a:2379") && !shown.contains("geheim"), "{shown}");
        assert!(!shown.contains("locks:"), "{shown}");
    }

    #[test]
    fn credentials_of_the_program_are_refused() {
        use lock_core::credentials::{Credentials, CredentialsSource};

        let source = || async { Ok::<_, LockError>(Credentials::new("any")) };
        let credentials = Some(CredentialsSource::new(source));
        let settings = Settings { credentials, ..Settings::default() };
        let refused = EtcdStore::of_client("etcd://a", &settings).map(drop);
        assert!(matches!(refused, Err(LockError::Config { option: "credentials", .. })));
    }
}

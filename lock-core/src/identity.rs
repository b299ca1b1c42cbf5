//! What a client tells others about itself.

use std::time::{Duration, SystemTime};

use crate::client_info::{ClientInfo, LONGEST_TEXT};
use crate::client_name;
use crate::clock;
use crate::error::LockError;

/// What a client tells others about itself, who read it in [`LockError::Busy`]: by default, the name of its
/// host and its process id.
///
/// # Examples
///
/// ```
/// use lock_runtime::{Identity, LockClient, LockError};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), LockError> {
/// let identity = Identity::of_process().service("shop", env!("CARGO_PKG_VERSION"));
/// let client = LockClient::builder().url("memory:").identity(identity).connect().await?;
/// client.lock("report").run(async { /* … */ }).await?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[must_use = "an identity does nothing until a client uses it"]
pub struct Identity(Option<Told>);

/// What is told.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
struct Told {
    /// `None` for the name of the host.
    name: Option<String>,
    service: Option<(String, String)>,
}

impl Default for Identity {
    fn default() -> Self {
        Self::of_process()
    }
}

impl Identity {
    /// The name of the host and the process id. In Kubernetes, the name of the host is that of the pod.
    pub fn of_process() -> Self {
        Self(Some(Told::default()))
    }

    /// This name, such as that of a container or an instance, and the process id.
    pub fn named(name: impl Into<String>) -> Self {
        Self(Some(Told { name: Some(name.into()), ..Told::default() }))
    }

    /// Nothing. The client has no presence, and others see its id alone.
    pub fn none() -> Self {
        Self(None)
    }

    /// Adds the name and the version of the service. Has no effect on [`none`](Self::none).
    pub fn service(mut self, name: impl Into<String>, version: impl Into<String>) -> Self {
        if let Some(told) = &mut self.0 {
            told.service = Some((name.into(), version.into()));
        }
        self
    }

    /// Checks the texts: they are not empty, have at most 253 bytes and no control characters.
    #[doc(hidden)]
    pub fn check(&self) -> Result<(), LockError> {
        let Some(Told { name, service }) = &self.0 else { return Ok(()) };
        let (service, version) = service.as_ref().map(|(name, version)| (name, version)).unzip();
        let texts = [("name", name.as_ref()), ("service", service), ("version", version)];
        for (what, text) in texts {
            let problem = match text.map(String::as_str) {
                Some("") => format!("the {what} is empty"),
                Some(text) if text.len() > LONGEST_TEXT => {
                    format!("the {what} has {} bytes; the limit is {LONGEST_TEXT}", text.len())
                }
                Some(text) if text.contains(char::is_control) => {
                    format!("the {what} contains a control character")
                }
                _ => continue,
            };
            return Err(LockError::config("identity", problem));
        }
        Ok(())
    }

    /// What others read about a client of this process that has this identity; `None` if it tells nothing.
    #[doc(hidden)]
    pub fn info(&self) -> Option<ClientInfo> {
        let Told { name, service } = self.0.clone()?;
        let (service, version) = service.unzip();
        Some(ClientInfo {
            id: None,
            name: name.or_else(client_name::host),
            process: Some(std::process::id()),
            service,
            version,
            started: Some(SystemTime::UNIX_EPOCH + Duration::from_millis(clock::unix_millis())),
            library: Some(env!("CARGO_PKG_VERSION").to_owned()),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_identity_without_texts_is_the_process() {
        let info = Identity::default().info().expect("told");
        assert_eq!(info.process, Some(std::process::id()));
        assert_eq!(info.name, client_name::host());
        assert_eq!(Identity::none().service("shop", "1").info(), None);
    }

    #[test]
    fn texts_are_checked() {
        let service = |name: &str, version: &str| Identity::of_process().service(name, version);
        let long = "x".repeat(LONGEST_TEXT + 1);
        for (identity, problem) in [
            (Identity::named(""), "the name is empty"),
            (Identity::named("a\nb"), "the name contains a control character"),
            (service("shop", &long), "the version has 254 bytes; the limit is 253"),
            (service("", "1"), "the service is empty"),
        ] {
            let expected = LockError::config("identity", problem);
            assert_eq!(identity.check(), Err(expected));
        }
        for good in [Identity::none(), Identity::of_process(), service(&long[1..], "1 <b>")] {
            assert_eq!(good.check(), Ok(()));
        }
    }
}

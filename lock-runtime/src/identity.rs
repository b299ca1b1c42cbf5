//! What a client tells others about itself.
//!
//! A client with an identity keeps a key in the store, its *presence*, from which others read which process
//! holds a lock. The text has one line for each value, so that people can read it as well.

use std::fmt;
use std::time::{Duration, SystemTime};

use crate::client_name;
use crate::clock;
use crate::error::LockError;

/// The longest text of an identity, in bytes: that of a DNS name.
const LONGEST_TEXT: usize = 253;

/// The longest presence that is read, in bytes.
#[cfg(feature = "redis")]
pub(crate) const LONGEST_PRESENCE: usize = 1024;

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

    /// Nothing. The client has no presence, and others see a client that does not say who it is.
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
    pub(crate) fn check(&self) -> Result<(), LockError> {
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
            return Err(LockError::Config { option: "identity", problem });
        }
        Ok(())
    }

    /// What others read about a client of this process that has this identity; `None` if it tells nothing.
    pub(crate) fn info(&self) -> Option<ClientInfo> {
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

/// What a client tells about itself, as far as it is known. Other libraries tell nothing.
///
/// The texts are those of another client, which may be hostile: they have no control characters, and at most
/// 253 bytes each, but may contain markup.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct ClientInfo {
    /// The id with which the values of the client's locks begin, if it uses this library.
    pub id: Option<String>,
    /// The name of its host, or the name that it was given.
    pub name: Option<String>,
    /// Its process id.
    pub process: Option<u32>,
    /// The name of its service.
    pub service: Option<String>,
    /// The version of its service.
    pub version: Option<String>,
    /// When it was started, by its own clock.
    pub started: Option<SystemTime>,
    /// The version of this library that it uses.
    pub library: Option<String>,
}

impl ClientInfo {
    /// The text of the presence.
    #[cfg(feature = "redis")]
    pub(crate) fn to_presence(&self) -> String {
        let mut text = "v=1\n".to_owned();
        let process = self.process.map(|process| process.to_string());
        let started = self.started.and_then(|at| at.duration_since(SystemTime::UNIX_EPOCH).ok());
        let started = started.map(|at| at.as_millis().to_string());
        for (name, value) in [
            ("name", &self.name),
            ("pid", &process),
            ("service", &self.service),
            ("version", &self.version),
            ("started", &started),
            ("library", &self.library),
        ] {
            if let Some(value) = value {
                text.extend([name, "=", value, "\n"]);
            }
        }
        text
    }

    /// What a presence tells, which may be any text.
    #[cfg(feature = "redis")]
    pub(crate) fn of_presence(text: &[u8]) -> Self {
        let mut info = Self::default();
        for line in String::from_utf8_lossy(text).lines() {
            let Some((name, value)) = line.split_once('=') else { continue };
            let value = harmless(value);
            match name {
                "name" => info.name = value,
                "pid" => info.process = value.and_then(|value| value.parse().ok()),
                "service" => info.service = value,
                "version" => info.version = value,
                "started" => {
                    let millis = value.and_then(|value| value.parse().ok());
                    info.started = millis.and_then(|millis| {
                        SystemTime::UNIX_EPOCH.checked_add(Duration::from_millis(millis))
                    });
                }
                "library" => info.library = value,
                _ => {}
            }
        }
        info
    }
}

/// A text of another client, without control characters, and not too long. `None` if nothing is left.
#[cfg(feature = "redis")]
fn harmless(text: &str) -> Option<String> {
    let mut text: String = text.chars().filter(|c| !c.is_control()).collect();
    while text.len() > LONGEST_TEXT {
        text.pop();
    }
    (!text.is_empty()).then_some(text)
}

/// Such as `web-3 (pid 4711, shop 1.4.2)`.
impl fmt::Display for ClientInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(name) = &self.name else {
            return f.write_str("a client that does not say who it is");
        };
        f.write_str(name)?;
        let process = self.process.map(|process| format!("pid {process}"));
        let service = self.service.as_ref().map(|service| {
            let version = self.version.as_ref().map(|version| format!(" {version}"));
            format!("{service}{}", version.unwrap_or_default())
        });
        match (process, service) {
            (None, None) => Ok(()),
            (Some(one), None) | (None, Some(one)) => write!(f, " ({one})"),
            (Some(process), Some(service)) => write!(f, " ({process}, {service})"),
        }
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
            let expected = LockError::Config { option: "identity", problem: problem.to_owned() };
            assert_eq!(identity.check(), Err(expected));
        }
        for good in [Identity::none(), Identity::of_process(), service(&long[1..], "1 <b>")] {
            assert_eq!(good.check(), Ok(()));
        }
    }

    #[test]
    fn a_client_is_shown_with_what_is_known() {
        let full = Identity::named("web-3").service("shop", "1.4.2").info().expect("told");
        let full = ClientInfo { process: Some(4711), ..full };
        assert_eq!(full.to_string(), "web-3 (pid 4711, shop 1.4.2)");
        let service = ClientInfo { process: None, version: None, ..full.clone() };
        assert_eq!(service.to_string(), "web-3 (shop)");
        let process = ClientInfo { service: None, ..full.clone() };
        assert_eq!(process.to_string(), "web-3 (pid 4711)");
        let name = ClientInfo { process: None, service: None, ..full };
        assert_eq!(name.to_string(), "web-3");
        assert_eq!(ClientInfo::default().to_string(), "a client that does not say who it is");
    }

    #[cfg(feature = "redis")]
    #[test]
    fn a_presence_is_read_as_it_is_written() {
        let long = "x".repeat(LONGEST_TEXT);
        for identity in [
            Identity::of_process(),
            Identity::named("web=3").service("shop <script>", "1.4.2"),
            Identity::named(&long).service(&long, &long),
        ] {
            let info = identity.info().expect("told");
            let text = info.to_presence();
            assert!(text.len() <= LONGEST_PRESENCE, "{}", text.len());
            assert_eq!(ClientInfo::of_presence(text.as_bytes()), info);
        }
    }

    #[cfg(feature = "redis")]
    #[test]
    fn any_text_is_a_presence() {
        let info = |text: &[u8]| ClientInfo::of_presence(text);
        for nothing in [&b""[..], b"garbage", b"name=\npid=\nstarted=\n=x", &[200; 100]] {
            assert_eq!(info(nothing), ClientInfo::default());
        }
        let hostile = info(b"v=9\nname=a\x1b[31m\x07\npid=-1\nstarted=99999999999999999999\nnew=1");
        assert_eq!(hostile, ClientInfo { name: Some("a[31m".to_owned()), ..ClientInfo::default() });
        let long = info(["name=".as_bytes(), "é".repeat(500).as_bytes()].concat().as_slice());
        assert_eq!(long.name.map(|name| name.len()), Some(LONGEST_TEXT - 1));
        assert_eq!(
            info(b"started=18446744073709551615").started.is_some(),
            cfg!(target_os = "linux")
        );
    }
}

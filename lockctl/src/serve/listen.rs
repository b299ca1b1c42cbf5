//! Where the page listens.

use std::fmt;
use std::io::{self, ErrorKind};
use std::net::{Ipv4Addr, SocketAddr};
use std::str::FromStr;

use tokio::net::TcpListener;

use crate::exit::{Code, Failure};

/// An address and a port of this machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ListenAddress(SocketAddr);

impl ListenAddress {
    /// Whether only this machine reaches the address.
    pub(super) fn is_loopback(self) -> bool {
        self.0.ip().to_canonical().is_loopback()
    }

    pub(super) async fn bind(self) -> Result<TcpListener, Failure> {
        TcpListener::bind(self.0).await.map_err(|error| self.failure(&error))
    }

    /// Why it is not possible to listen, and what to do.
    fn failure(self, error: &io::Error) -> Failure {
        let (code, advice) = match error.kind() {
            ErrorKind::AddrInUse => (
                Code::Unavailable,
                "another program listens there; end it, or choose another port with `--listen`",
            ),
            ErrorKind::AddrNotAvailable => (
                Code::Config,
                "this machine has no such address; choose another one with `--listen`",
            ),
            ErrorKind::PermissionDenied => (
                Code::Denied,
                "this user may not use the port; choose one from 1024 on with `--listen`",
            ),
            _ => return Failure::internal(&format!("listen on {self}"), error),
        };
        Failure::new(code, format!("cannot listen on {self}: {advice}"))
    }
}

impl FromStr for ListenAddress {
    type Err = &'static str;

    /// Names other than `localhost` are not looked up: it would not be clear who reaches their addresses.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let port = text.strip_prefix("localhost:").and_then(|port| port.parse().ok());
        let local = port.map(|port| SocketAddr::from((Ipv4Addr::LOCALHOST, port)));
        let address = local.or_else(|| text.parse().ok());
        address
            .map(Self)
            .ok_or("expected an IP address or `localhost`, and a port, such as `127.0.0.1:7379`")
    }
}

impl fmt::Display for ListenAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The URL of the page on this machine.
pub(super) fn url(address: SocketAddr) -> String {
    if address.ip().is_unspecified() {
        format!("http://localhost:{}/", address.port())
    } else {
        format!("http://{address}/")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_this_machine_are_loopback() {
        for (text, is_loopback) in [
            ("127.0.0.1:7379", true),
            ("127.8.8.8:0", true),
            ("localhost:7379", true),
            ("[::1]:7379", true),
            ("[::ffff:127.0.0.1]:7379", true),
            ("0.0.0.0:7379", false),
            ("[::]:7379", false),
            ("192.0.2.1:7379", false),
            ("[::ffff:192.0.2.1]:7379", false),
            ("[fe80::1]:7379", false),
        ] {
            let address = text.parse::<ListenAddress>().expect(text);
            assert_eq!(address.is_loopback(), is_loopback, "{text}");
        }
    }

    #[test]
    fn other_texts_are_no_addresses() {
        for text in [
            "",
            ":7379",
            "7379",
            "127.0.0.1",
            "localhost",
            "localhost:",
            "localhost:65536",
            "localhost.example:7379",
            "::1:7379",
            "locks.example:7379",
            "http://127.0.0.1:7379",
        ] {
            assert!(text.parse::<ListenAddress>().is_err(), "{text}");
        }
    }

    #[test]
    fn each_reason_has_its_exit_code() {
        let address: ListenAddress = "127.0.0.1:80".parse().expect("an address");
        for (kind, code) in [
            (ErrorKind::AddrInUse, Code::Unavailable),
            (ErrorKind::AddrNotAvailable, Code::Config),
            (ErrorKind::PermissionDenied, Code::Denied),
            (ErrorKind::Other, Code::Internal),
        ] {
            let failure = address.failure(&kind.into());
            assert_eq!(failure.code, code);
            assert!(failure.to_string().contains("listen on 127.0.0.1:80: "), "{failure}");
        }
    }

    #[test]
    fn the_url_works_in_a_browser_on_this_machine() {
        for (address, expected) in [
            ("127.0.0.1:7379", "http://127.0.0.1:7379/"),
            ("[::1]:7379", "http://[::1]:7379/"),
            ("0.0.0.0:7379", "http://localhost:7379/"),
            ("[::]:7379", "http://localhost:7379/"),
        ] {
            assert_eq!(url(address.parse().expect("an address")), expected);
        }
    }
}

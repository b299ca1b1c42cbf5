//! The hosts under which browsers may request the page.
//!
//! Any site can let its own name lead to the address of the page, and its scripts would then pass for the page itself.
//! So the page is only sent under names that no other site has: those of this machine, the address where it listens,
//! and those that the options name. Their ports do not matter, so that the page can be reached through a tunnel.

use std::net::{Ipv6Addr, SocketAddr};
use std::str::FromStr;

use axum::http::uri::Authority;

/// The names of every machine for itself.
const OWN: [&str; 3] = ["localhost", "127.0.0.1", "[::1]"];

/// A host, with or without a port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct AllowedHost(String);

/// All hosts of a page that listens there.
pub(super) fn all(address: SocketAddr, allowed: &[AllowedHost]) -> Vec<String> {
    let mut hosts: Vec<_> = OWN.map(ToOwned::to_owned).into();
    if !address.ip().is_unspecified() {
        let host = address.to_string();
        hosts.extend(host.rsplit_once(':').map(|(host, _)| host.to_owned()));
    }
    hosts.extend(allowed.iter().map(|AllowedHost(host)| host.clone()));
    hosts
}

impl FromStr for AllowedHost {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if text.parse::<Ipv6Addr>().is_ok() {
            return Ok(Self(format!("[{text}]")));
        }
        // Patterns and URLs would never be the host of a request.
        let is_usual = |c: char| c.is_ascii_alphanumeric() || "-._:[]".contains(c);
        let authority = text.parse::<Authority>().ok().filter(|_| text.chars().all(is_usual));
        match authority {
            Some(authority) if !authority.host().is_empty() => Ok(Self(text.to_owned())),
            _ => Err(
                "expected a host with or without a port, such as `locks.example` or `locks.example:8443`",
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_address_of_the_page_is_one_of_its_hosts() {
        let named = ["locks.example".parse().expect("a host")];
        for (address, expected) in [
            ("127.0.0.1:7379", &["127.0.0.1", "locks.example"][..]),
            ("192.0.2.1:7379", &["192.0.2.1", "locks.example"]),
            ("[2001:db8::1]:7379", &["[2001:db8::1]", "locks.example"]),
            ("0.0.0.0:7379", &["locks.example"]),
            ("[::]:7379", &["locks.example"]),
        ] {
            let hosts = all(address.parse().expect("an address"), &named);
            assert_eq!(hosts, [&OWN[..], expected].concat(), "{address}");
        }
    }

    #[test]
    fn only_hosts_are_allowed() {
        for (text, host) in [
            ("locks.example", "locks.example"),
            ("locks.example:8443", "locks.example:8443"),
            ("192.0.2.1", "192.0.2.1"),
            ("[2001:db8::1]", "[2001:db8::1]"),
            ("2001:db8::1", "[2001:db8::1]"),
        ] {
            assert_eq!(text.parse(), Ok(AllowedHost(host.to_owned())), "{text}");
        }
        for text in [
            "",
            "*",
            "*.example",
            ":80",
            "https://locks.example",
            "a/b",
            "ada@host",
            "schlüssel.example",
        ] {
            assert!(text.parse::<AllowedHost>().is_err(), "{text}");
        }
    }
}

//! URLs that name one server.

use redis::ConnectionAddr;

use super::parts;
use super::scheme::Scheme;
use crate::transport::endpoint::{Address, Endpoint};
use lock_core::error::LockError;
use lock_core::safeguard::Safeguard;
use lock_core::store::settings::Settings;

/// The server of a URL with `scheme`, whose rest begins with `//`.
pub(super) fn parse(
    scheme: Scheme,
    rest: &str,
    settings: &Settings,
) -> Result<Endpoint, LockError> {
    // The scheme by which redis-rs knows the same address without TLS.
    let plain = if scheme == Scheme::Unix { "redis+unix" } else { "redis" };
    let address = rest.strip_prefix("//").and_then(|rest| rest.split_once(['/', '?', '#']));
    if let Some((_, after)) = address.filter(|_| scheme != Scheme::Unix) {
        parts::check_address_end(after)?;
    }
    let (info, options) = parts::read(scheme, &format!("{plain}:{rest}"))?;
    let mut shown = match info.addr() {
        // An IPv6 address.
        ConnectionAddr::Tcp(host, port) if host.contains(':') => format!("[{host}]:{port}"),
        other => other.to_string(),
    };
    if !Safeguard::SecretsAreHidden.is_on() {
        shown = format!("{plain}:{rest}");
    }
    let address = match info.addr() {
        ConnectionAddr::Tcp(host, port) => Address::Tcp { host: host.clone(), port: *port },
        #[cfg(unix)]
        ConnectionAddr::Unix(path) => Address::Unix(path.clone()),
        _ => return Err(parts::error("this system cannot connect to such an address")),
    };
    Ok(Endpoint::new(address, shown, parts::access(scheme, &info, options, settings)?))
}

//! The addresses of servers, as a client reaches them.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

type Map = dyn Fn(&str, u16) -> (String, u16) + Send + Sync;

/// The program's function that maps the addresses that servers announce.
#[derive(Clone)]
pub struct AddressMap(Arc<Map>);

impl AddressMap {
    pub fn new(map: impl Fn(&str, u16) -> (String, u16) + Send + Sync + 'static) -> Self {
        Self(Arc::new(map))
    }

    /// The address at which this client reaches the server: the announced one if the function
    /// panics.
    pub fn map(&self, host: &str, port: u16) -> (String, u16) {
        let mapped = catch_unwind(AssertUnwindSafe(|| (self.0)(host, port)));
        mapped.unwrap_or_else(|_| (host.to_owned(), port))
    }
}

impl fmt::Debug for AddressMap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("AddressMap")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_mapped_unless_the_function_panics() {
        let map = AddressMap::new(|host, port| {
            assert!(port > 1, "no such port");
            (format!("mapped-{host}"), port - 1)
        });
        assert_eq!(map.map("one", 7), ("mapped-one".into(), 6));
        assert_eq!(map.map("one", 1), ("one".into(), 1));
    }
}

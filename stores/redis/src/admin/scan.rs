//! Reads the names of all keys, step by step.

use redis::{Value, cmd};

use crate::connections::admission::RequestClass;
use crate::connections::connection::RequestOptions;
use crate::scripts::decode::Unexpected;
use crate::shared::Shared;
use lock_core::store::contract::{Lane, StoreError};
use lock_core::store::scanning::{ScanPage, ScanPosition};
use lock_core::timeout::RequestTimeout;

impl Shared {
    /// The next keys whose names match a pattern: the server looks at about `limit` keys. In a cluster, one master after the other is scanned.
    pub(crate) async fn scan(
        &self,
        position: ScanPosition,
        pattern: &str,
        limit: u32,
    ) -> Result<ScanPage, StoreError> {
        let (mut nodes, cursor) = match position {
            ScanPosition::Servers { nodes, cursor } => (nodes, cursor),
            _ => (self.servers.keys_of_all(""), 0),
        };
        let Some(node) = nodes.last() else { return Ok(ScanPage::default()) };
        let (route, within) = (self.route(Lane::Caller)?, self.response_timeout);
        let connection = route.server_of(node, within).await?.connection;
        let mut scan = cmd("SCAN");
        scan.arg(cursor).arg("MATCH").arg(pattern).arg("COUNT").arg(limit);
        let options = RequestOptions::new(RequestClass::Unlimited, RequestTimeout::of(within));
        let (cursor, keys) = connection.send(&scan, &options, scanned).await?;
        if cursor == 0 {
            nodes.pop();
        }
        let next = (!nodes.is_empty()).then_some(ScanPosition::Servers { nodes, cursor });
        Ok(ScanPage { keys, next, ..ScanPage::default() })
    }
}

/// Decodes the reply to `SCAN`: the next cursor, and keys. Keys that are no text are not those of locks.
fn scanned(reply: &Value) -> Result<(u64, Vec<String>), Unexpected> {
    let unexpected = || Unexpected::new(reply);
    let Value::Array(parts) = reply else { return Err(unexpected()) };
    let [Value::BulkString(cursor), Value::Array(keys)] = &parts[..] else {
        return Err(unexpected());
    };
    let cursor = std::str::from_utf8(cursor).ok().and_then(|cursor| cursor.parse().ok());
    let text = |key: &Value| match key {
        Value::BulkString(key) => String::from_utf8(key.clone()).ok(),
        _ => None,
    };
    Ok((cursor.ok_or_else(unexpected)?, keys.iter().filter_map(text).collect()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(text: &[u8]) -> Value {
        Value::BulkString(text.to_vec())
    }

    #[test]
    fn a_cursor_and_keys_are_decoded() {
        let keys = Value::Array(vec![text(b"a"), text(&[200]), text(b"b")]);
        let reply = Value::Array(vec![text(b"7"), keys.clone()]);
        assert_eq!(scanned(&reply).ok(), Some((7, vec!["a".to_owned(), "b".to_owned()])));
        for other in [Value::Nil, Value::Array(vec![]), Value::Array(vec![text(b"x"), keys])] {
            assert!(scanned(&other).is_err(), "{other:?}");
        }
    }
}

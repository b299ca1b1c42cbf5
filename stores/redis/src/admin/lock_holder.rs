//! The question who holds a lock.

use redis::{Cmd, Value, cmd};

use crate::client_id::{ShortId, client_of};
use crate::connections::connection::RequestOptions;
use crate::connections::route::Route;
use crate::hash_slot;
use crate::presence;
use crate::scripts::decode::Unexpected;
use crate::scripts::dialects;
use crate::shared::Shared;
use lock_core::client_info::{ClientInfo, LONGEST_PRESENCE};
use lock_core::key;
use lock_core::store::contract::{Lane, StoreError};
use lock_core::store::key_holder::KeyHolder;

impl Shared {
    /// Who has a lock, in any layout; `None` if nobody has it. Costs two requests.
    pub(crate) async fn holder(&self, lock: &str) -> Result<Option<KeyHolder>, StoreError> {
        let route = self.route(Lane::Caller)?;
        let options = self.inspection_options();
        let args = |call: &mut Cmd| {
            call.arg(1).arg(lock);
            call.arg(hash_slot::name_beside(lock, key::OWNERS));
        };
        let script = (lock, &dialects::HOLDER);
        let Some(owner) = route.run(script, &args, &options, named).await?.value else {
            return Ok(None);
        };
        let Some((id, began)) = client_of(&owner) else { return Ok(Some(KeyHolder::default())) };
        let info = self.presence_of(&route, id, &options).await?;
        let client = identified(info, id, began.is_some());
        Ok(Some(KeyHolder { client, began, is_own: id == self.id.short() }))
    }

    /// What the presence of a client tells. Costs one request.
    pub(crate) async fn presence_of(
        &self,
        route: &Route,
        id: ShortId,
        options: &RequestOptions<'_>,
    ) -> Result<ClientInfo, StoreError> {
        let key = presence::name(id);
        let mut get = cmd("GETRANGE");
        get.arg(&key).arg(0).arg(LONGEST_PRESENCE - 1);
        let presence = match route.send(&key, &get, options, text).await {
            // The key of a presence may hold anything, and the user may not be allowed to read it.
            Err(StoreError::Refused(_) | StoreError::Denied(_)) => None,
            answer => answer?,
        };
        Ok(ClientInfo::of_presence(&presence.unwrap_or_default()))
    }
}

/// The client with this id. `is_own_kind` says whether it is known to be one of this library: other clients of the
/// layout `Redisson` have ids of the same form, and no presence.
pub(crate) fn identified(mut info: ClientInfo, id: ShortId, is_own_kind: bool) -> ClientInfo {
    let is_own_kind = is_own_kind || info != ClientInfo::default();
    info.id = is_own_kind.then(|| id.as_str().to_owned());
    info
}

/// Decodes the reply of `holder.lua`: what names the holder.
fn named(reply: &Value) -> Result<Option<Vec<u8>>, Unexpected> {
    let Value::Array(string) = reply else { return text(reply) };
    let [Value::BulkString(value), Value::BulkString(note)] = &string[..] else {
        return Err(Unexpected::new(reply));
    };
    let (value, note) = (String::from_utf8_lossy(value), String::from_utf8_lossy(note));
    Ok(Some(noted_owner(&value, &note).unwrap_or(&value).as_bytes().to_vec()))
}

/// The owner of a lock whose value is a time, which names nobody. The note of its owner was written with the same time,
/// unless another client has the lock now.
pub(crate) fn noted_owner<'a>(time: &str, note: &'a str) -> Option<&'a str> {
    note.strip_suffix(time)?.strip_suffix(':')
}

/// Decodes a text, or none.
fn text(reply: &Value) -> Result<Option<Vec<u8>>, Unexpected> {
    match reply {
        Value::BulkString(text) => Ok(Some(text.clone())),
        Value::Nil => Ok(None),
        other => Err(Unexpected::new(other)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_note_of_a_time_names_its_owner() {
        let string = |value: &str, note: &str| {
            let texts = [value, note].map(|text| Value::BulkString(text.as_bytes().to_vec()));
            named(&Value::Array(texts.to_vec())).ok().flatten()
        };
        assert_eq!(string("owner", ""), Some(b"owner".to_vec()));
        assert_eq!(string("1764028800700", "owner:1764028800700"), Some(b"owner".to_vec()));
        for stale in ["owner:1764028800699", "owner1764028800700", "", "1764028800700"] {
            let found = string("1764028800700", stale);
            assert_eq!(found, Some(b"1764028800700".to_vec()), "{stale}");
        }
        assert_eq!(
            named(&Value::BulkString(b"field".to_vec())).ok(),
            Some(Some(b"field".to_vec()))
        );
        assert!(named(&Value::Array(vec![Value::Nil])).is_err());
    }

    #[test]
    fn a_text_or_nothing_is_decoded() {
        assert_eq!(text(&Value::BulkString(b"a".to_vec())).ok(), Some(Some(b"a".to_vec())));
        assert_eq!(text(&Value::Nil).ok(), Some(None));
        assert!(text(&Value::Int(1)).is_err());
    }
}

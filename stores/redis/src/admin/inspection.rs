//! What a key holds, for operators.

use std::time::{Duration, SystemTime};

use redis::{Cmd, Value};

use super::lock_holder::{identified, noted_owner};
use crate::client_id::{ShortId, client_of, owner_of};
use crate::hash_slot;
use crate::scripts::decode::Unexpected;
use crate::scripts::dialects;
use crate::scripts::queue;
use crate::shared::Shared;
use lock_core::client_info::ClientInfo;
use lock_core::join::join_all;
use lock_core::key;
use lock_core::lock_mode::LockMode;
use lock_core::lock_state::{LockState, StoredHolder, StoredLayout};
use lock_core::permits::Permits;
use lock_core::store::contract::{Lane, StoreError};
use lock_core::store::layout::ALL_SHARES;

/// What the name of a lock begins with that stays taken after its release.
const KEPT: &str = "kept:";

/// The scores of the holders of a counted lock begin here; see `counted/shares.lua`.
const COUNTED: u64 = 50_000_000_000_000;

/// The first member of a counted lock, which is no holder.
const TAKEN: &str = "taken";

/// The most members of a sorted set that are read: a thousand holders, and the first member.
const MOST_MEMBERS: usize = 1001;

/// The most presences that are read at the same time.
const PRESENCES_AT_ONCE: usize = 100;

/// What a key holds. The texts have tokens, so there is no `Debug`.
struct KeyContents {
    kind: String,
    /// `None` without an expiry.
    left: Option<Duration>,
    /// The server's time in Unix time.
    now: Duration,
    queued: u64,
    texts: Vec<String>,
}

impl Shared {
    /// What the key of a lock holds; `None` if there is nothing that can be a lock. It does not tell who the clients
    /// are. Costs one request.
    pub(crate) async fn read_lock(&self, lock: &str) -> Result<Option<LockState>, StoreError> {
        let route = self.route(Lane::Caller)?;
        let options = self.inspection_options();
        let args = |call: &mut Cmd| {
            call.arg(1).arg(lock);
            call.arg(hash_slot::name_beside(lock, key::OWNERS));
            call.arg(queue::name(lock));
        };
        let script = (lock, &dialects::INSPECT);
        let Some(contents) = route.run(script, &args, &options, contents).await?.value else {
            return Ok(None);
        };
        Ok(contents.into_state(lock))
    }

    /// Adds who the clients of the holders of these locks are, as their presences tell. Costs one request for each
    /// client.
    pub(crate) async fn name_holders(&self, locks: &mut [LockState]) -> Result<(), StoreError> {
        let mut ids: Vec<ShortId> = holders_of(locks).map(|(_, id, _)| id).collect();
        ids.sort_unstable();
        ids.dedup();
        let (route, options) = (self.route(Lane::Caller)?, self.inspection_options());
        let mut presences = Vec::with_capacity(ids.len());
        for ids in ids.chunks(PRESENCES_AT_ONCE) {
            let presences_of = ids.iter().map(|id| self.presence_of(&route, *id, &options));
            presences.extend(join_all(presences_of).await);
        }
        let presences: Vec<ClientInfo> = presences.into_iter().collect::<Result<_, _>>()?;
        for (holder, id, is_own_kind) in holders_of(locks) {
            let info = ids.binary_search(&id).ok().map(|place| presences[place].clone());
            holder.client = identified(info.unwrap_or_default(), id, is_own_kind);
        }
        Ok(())
    }
}

/// The holders that name a client, its id, and whether it is known to be one of this library.
fn holders_of(locks: &mut [LockState]) -> impl Iterator<Item = (&mut StoredHolder, ShortId, bool)> {
    let holders = locks.iter_mut().flat_map(|lock| &mut lock.holders);
    holders.filter_map(|holder| {
        let (id, began) = client_of(holder.token.as_str().as_bytes())?;
        Some((holder, id, began.is_some()))
    })
}

/// Decodes the reply of `inspect.lua`. `None` if the key does not exist.
fn contents(reply: &Value) -> Result<Option<KeyContents>, Unexpected> {
    let unexpected = || Unexpected::new(reply);
    let Value::Array(values) = reply else { return Err(unexpected()) };
    let text = |value: &Value| match value {
        Value::BulkString(text) => Some(String::from_utf8_lossy(text).into_owned()),
        Value::SimpleString(text) => Some(text.clone()),
        _ => None,
    };
    match &values[..] {
        [kind] if text(kind).as_deref() == Some("none") => Ok(None),
        [kind, Value::Int(left), now, Value::Int(queued), texts @ ..] => {
            let millis = text(now).and_then(|now| now.parse().ok()).ok_or_else(unexpected)?;
            Ok(Some(KeyContents {
                kind: text(kind).ok_or_else(unexpected)?,
                left: u64::try_from(*left).ok().map(Duration::from_millis),
                now: Duration::from_millis(millis),
                queued: u64::try_from(*queued).unwrap_or_default(),
                texts: texts.iter().filter_map(text).collect(),
            }))
        }
        _ => Err(unexpected()),
    }
}

impl KeyContents {
    /// `None` if this is no lock.
    fn into_state(self, key: &str) -> Option<LockState> {
        let mut is_complete = true;
        let (layout, holders) = match (&*self.kind, &self.texts[..]) {
            ("string", [value, note]) => self.of_string(value, note),
            ("hash", [field]) => {
                let is_ours = client_of(field.as_bytes()).is_some();
                is_ours.then(|| (StoredLayout::Redisson, vec![self.holder(field, self.left)]))?
            }
            ("zset", members) => {
                // Each with its score.
                let most = 2 * MOST_MEMBERS;
                is_complete = members.len() <= most;
                self.of_scores(&members[..members.len().min(most)])?
            }
            _ => return None,
        };
        let mut state = LockState::new(key, layout, holders);
        (state.is_complete, state.queued) = (is_complete, self.queued);
        Some(state)
    }

    fn of_string(&self, value: &str, note: &str) -> (StoredLayout, Vec<StoredHolder>) {
        if let Some(until) = time_of(value) {
            let left = until.saturating_sub(self.now);
            let holder = self.holder(noted_owner(value, note).unwrap_or(value), Some(left));
            return (StoredLayout::Timestamp, vec![holder]);
        }
        let is_ours = owner_of(value.strip_prefix(KEPT).unwrap_or(value).as_bytes()).is_some();
        let layout = if is_ours { StoredLayout::Token } else { StoredLayout::OtherToken };
        (layout, vec![self.holder(value, self.left)])
    }

    /// The holders of a read-write lock or of a semaphore: members, each with a score.
    fn of_scores(&self, members: &[String]) -> Option<(StoredLayout, Vec<StoredHolder>)> {
        let (mut layout, mut holders) = (None, Vec::new());
        let [first, _, rest @ ..] = members else { return None };
        for pair in rest.chunks_exact(2).filter(|_| first == TAKEN) {
            let until = pair[1].parse::<u64>().ok()?.checked_sub(COUNTED)?;
            let left = Duration::from_millis(until).saturating_sub(self.now);
            // The holder's lease has ended, and nobody has removed it yet.
            if left.is_zero() {
                continue;
            }
            let mut parts = pair[0].rsplitn(3, '/');
            let (capacity, count) = (parts.next()?.parse::<u64>().ok()?, parts.next()?);
            let mut holder = self.holder(parts.next()?, Some(left));
            if capacity == ALL_SHARES {
                layout = Some(StoredLayout::ReadWrite);
                let is_reader = count == "1";
                holder.mode = Some(if is_reader { LockMode::Read } else { LockMode::Write });
            } else {
                layout = Some(StoredLayout::Semaphore);
                let limit = u32::try_from(capacity).ok()?;
                holder.permits = Some(Permits::new(count.parse().ok()?, limit));
            }
            holders.push(holder);
        }
        Some((layout?, holders))
    }

    fn holder(&self, token: &str, lease_left: Option<Duration>) -> StoredHolder {
        let (_, began) = client_of(token.as_bytes()).unzip();
        let now = SystemTime::UNIX_EPOCH + self.now;
        let mut holder = StoredHolder::new(token, lease_left);
        holder.held_for = began.flatten().and_then(|began| now.duration_since(began).ok());
        holder.is_released = token.starts_with(KEPT);
        holder
    }
}

/// The time of a lock in the layout `Timestamp`, in Unix time.
fn time_of(value: &str) -> Option<Duration> {
    let digits = value.split_once('.').map_or(value, |(digits, _)| digits);
    let is_time = digits.len() == 13 && digits.bytes().all(|digit| digit.is_ascii_digit());
    is_time.then(|| digits.parse().ok().map(Duration::from_millis)).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    const OWNER: &str = "kX3_8fRtq.AABrmE8eHkD2vXnq4mTjP5";
    const NOW: u64 = 1_764_028_800_000;

    fn state(kind: &str, left: i64, texts: &[&str]) -> Option<LockState> {
        let text = |text: &str| Value::BulkString(text.as_bytes().to_vec());
        let head = [text(kind), Value::Int(left), text(&NOW.to_string()), Value::Int(3)];
        let reply = head.into_iter().chain(texts.iter().map(|it| text(it))).collect();
        contents(&Value::Array(reply)).expect("a reply").expect("a value").into_state("k")
    }

    fn holders(state: &LockState) -> Vec<(&str, Option<u64>)> {
        let left = |holder: &StoredHolder| {
            holder.lease_left.and_then(|left| u64::try_from(left.as_millis()).ok())
        };
        state.holders.iter().map(|holder| (holder.token.as_str(), left(holder))).collect()
    }

    #[test]
    fn strings_are_tokens_or_times() {
        let token = state("string", 1500, &[OWNER, ""]).expect("a lock");
        assert_eq!((token.layout, token.queued), (StoredLayout::Token, 3));
        assert_eq!(holders(&token), [(OWNER, Some(1500))]);
        let kept = format!("kept:{OWNER}");
        let kept = state("string", 1500, &[&kept, ""]).expect("a lock");
        assert!(kept.layout == StoredLayout::Token && kept.holders[0].is_released);
        let other = state("string", -1, &["stranger", ""]).expect("perhaps a lock");
        assert_eq!(
            (other.layout, holders(&other)),
            (StoredLayout::OtherToken, vec![("stranger", None)])
        );
        let (time, later) = ((NOW + 700).to_string(), (NOW + 1).to_string());
        let noted = state("string", 9, &[&time, &format!("{OWNER}:{time}")]).expect("a lock");
        assert_eq!(noted.layout, StoredLayout::Timestamp);
        assert_eq!(holders(&noted), [(OWNER, Some(700))]);
        let foreign = state("string", -1, &[&time, &format!("{OWNER}:{later}")]).expect("a lock");
        assert_eq!(holders(&foreign), [(&*time, Some(700))]);
    }

    #[test]
    fn hashes_are_locks_of_redisson_if_they_have_one_owner() {
        let owner = "b983c153-7421-469a-addb-44fb92259a1b:7";
        let lock = state("hash", 1500, &[owner]).expect("a lock");
        assert_eq!(
            (lock.layout, holders(&lock)),
            (StoredLayout::Redisson, vec![(owner, Some(1500))])
        );
        for other in [&["field"][..], &[], &[owner, "mode"]] {
            assert_eq!(state("hash", 1500, other), None, "{other:?}");
        }
    }

    #[test]
    fn sorted_sets_are_read_write_locks_or_semaphores() {
        let score = |left: u64| (COUNTED + NOW + left).to_string();
        let held = |member: &str, left: u64| {
            let own = [&*format!("{OWNER}/{member}"), &*score(left)].map(str::to_owned);
            let texts = ["taken", "9", "other/1/10", &score(0), &own[0], &own[1]];
            state("zset", 1500, &texts).expect("a lock")
        };
        let reader = held("1/10000000000", 500);
        let found = (StoredLayout::ReadWrite, vec![(OWNER, Some(500))]);
        assert_eq!((reader.layout, holders(&reader)), found);
        assert_eq!(reader.holders[0].mode, Some(LockMode::Read));
        let writer = held("10000000000/10000000000", 500);
        assert_eq!(writer.holders[0].mode, Some(LockMode::Write));
        let semaphore = held("2/10", 500);
        let found = (StoredLayout::Semaphore, vec![(OWNER, Some(500))]);
        assert_eq!((semaphore.layout, holders(&semaphore)), found);
        assert_eq!(semaphore.holders[0].permits, Some(Permits::new(2, 10)));
        let (in_time, early) = (score(500), NOW.to_string());
        for other in [
            &["x", "1"][..],
            &["x", "nan"],
            &["x", "1", OWNER, &in_time],
            &["taken", "1", "x/1/3", &early],
            &["taken", "1", "x/y/3", &in_time],
            &["taken", "1", OWNER, &in_time],
            &["taken", "1"],
            &[],
        ] {
            assert_eq!(state("zset", 1500, other), None, "{other:?}");
        }
    }

    #[test]
    fn other_values_and_replies_are_no_locks() {
        assert_eq!(state("list", 1500, &[]), None);
        let none = Value::Array(vec![Value::BulkString(b"none".to_vec())]);
        assert!(contents(&none).is_ok_and(|contents| contents.is_none()));
        for other in [Value::Nil, Value::Int(1), Value::Array(vec![Value::Int(1)])] {
            assert!(contents(&other).is_err(), "{other:?}");
        }
    }
}

//! The keys of the simulated server, and the commands that read and change them.

use std::collections::BTreeMap;

use super::reply::Reply;

const WRONG_TYPE: &str = "WRONGTYPE Operation against a key holding the wrong kind of value";

#[derive(Default)]
pub(super) struct Data {
    keys: BTreeMap<Vec<u8>, Entry>,
    /// The time since 1970, in microseconds.
    pub(super) now: u64,
}

struct Entry {
    value: Value,
    /// In milliseconds.
    expires: Option<u64>,
}

type Fields = BTreeMap<Vec<u8>, Vec<u8>>;

enum Value {
    Text(Vec<u8>),
    Hash(Fields),
    /// In the order of the scores.
    Sorted(Vec<(f64, Vec<u8>)>),
}

/// An argument as a number.
fn number(argument: &[u8]) -> f64 {
    match argument {
        b"+inf" => f64::INFINITY,
        b"-inf" => f64::NEG_INFINITY,
        _ => std::str::from_utf8(argument).expect("text").parse().expect("a number"),
    }
}

#[expect(clippy::cast_possible_truncation, reason = "as the server does")]
fn integer(argument: &[u8]) -> i64 {
    number(argument) as i64
}

fn milliseconds(argument: &[u8]) -> u64 {
    u64::try_from(integer(argument)).expect("not negative")
}

/// The text of a score.
pub(super) fn shown(score: f64) -> Vec<u8> {
    score.to_string().into_bytes()
}

/// The part of a list of this length that two indexes select, of which negative ones count from the end.
fn selected(length: usize, first: &[u8], last: &[u8]) -> std::ops::Range<usize> {
    let length = i64::try_from(length).expect("short");
    let index = |at: &[u8]| match integer(at) {
        at @ ..0 => (length + at).max(0),
        at => at,
    };
    let end = if integer(last) + length < 0 { 0 } else { (index(last) + 1).min(length) };
    let at = |index| usize::try_from(index).expect("not negative");
    at(index(first).min(end))..at(end)
}

/// Whether a score is at least, or with `(` more than, this limit.
fn is_from(score: f64, limit: &[u8]) -> bool {
    match limit {
        [b'(', limit @ ..] => score > number(limit),
        limit => score >= number(limit),
    }
}

fn is_to(score: f64, limit: &[u8]) -> bool {
    match limit {
        [b'(', limit @ ..] => score < number(limit),
        limit => score <= number(limit),
    }
}

fn sort(members: &mut [(f64, Vec<u8>)]) {
    members.sort_by(|a, b| a.0.total_cmp(&b.0).then_with(|| a.1.cmp(&b.1)));
}

impl Data {
    pub(super) fn clear(&mut self) {
        self.keys.clear();
    }

    /// The keys that exist.
    pub(super) fn existing(&mut self) -> Vec<String> {
        self.expire();
        self.keys.keys().map(|key| String::from_utf8_lossy(key).into_owned()).collect()
    }

    fn expire(&mut self) {
        let now = self.now / 1000;
        self.keys.retain(|_, entry| entry.expires.is_none_or(|expires| now < expires));
    }

    fn text(&self, key: &[u8]) -> Result<Option<&Vec<u8>>, Reply> {
        match self.keys.get(key).map(|entry| &entry.value) {
            Some(Value::Text(text)) => Ok(Some(text)),
            None => Ok(None),
            Some(_) => Err(Reply::Error(WRONG_TYPE.into())),
        }
    }

    fn hash(&self, key: &[u8]) -> Result<Option<&Fields>, Reply> {
        match self.keys.get(key).map(|entry| &entry.value) {
            Some(Value::Hash(fields)) => Ok(Some(fields)),
            None => Ok(None),
            Some(_) => Err(Reply::Error(WRONG_TYPE.into())),
        }
    }

    fn sorted(&self, key: &[u8]) -> Result<&[(f64, Vec<u8>)], Reply> {
        match self.keys.get(key).map(|entry| &entry.value) {
            Some(Value::Sorted(members)) => Ok(members),
            None => Ok(&[]),
            Some(_) => Err(Reply::Error(WRONG_TYPE.into())),
        }
    }

    /// Changes the members of a sorted set, which is deleted when it is empty.
    fn change_sorted<T>(
        &mut self,
        key: &[u8],
        change: impl FnOnce(&mut Vec<(f64, Vec<u8>)>) -> T,
    ) -> Result<T, Reply> {
        self.sorted(key)?;
        let default = || Entry { value: Value::Sorted(Vec::new()), expires: None };
        let entry = self.keys.entry(key.to_vec()).or_insert_with(default);
        let Value::Sorted(members) = &mut entry.value else { unreachable!("checked above") };
        let outcome = change(members);
        sort(members);
        if members.is_empty() {
            self.keys.remove(key);
        }
        Ok(outcome)
    }

    fn set(&mut self, key: &[u8], value: Value, expires: Option<u64>) {
        self.keys.insert(key.to_vec(), Entry { value, expires });
    }

    /// Runs a command that a script may call.
    pub(super) fn call(&mut self, command: &[Vec<u8>]) -> Reply {
        self.expire();
        match self.run(command) {
            Ok(reply) | Err(reply) => reply,
        }
    }

    #[expect(clippy::too_many_lines, reason = "one arm for each command")]
    fn run(&mut self, command: &[Vec<u8>]) -> Result<Reply, Reply> {
        let command: Vec<&[u8]> = command.iter().map(Vec::as_slice).collect();
        let name = String::from_utf8_lossy(command[0]).to_lowercase();
        let now = self.now / 1000;
        Ok(match (&*name, &command[1..]) {
            ("time", []) => Reply::Array(vec![
                Reply::text(&(self.now / 1_000_000).to_string()),
                Reply::text(&(self.now % 1_000_000).to_string()),
            ]),
            ("exists", keys) => {
                Reply::count(keys.iter().filter(|key| self.keys.contains_key(**key)).count())
            }
            ("del", keys) => {
                Reply::count(keys.iter().filter(|key| self.keys.remove(**key).is_some()).count())
            }
            ("type", [key]) => Reply::Status(match self.keys.get(*key).map(|entry| &entry.value) {
                Some(Value::Text(_)) => "string",
                Some(Value::Hash(_)) => "hash",
                Some(Value::Sorted(_)) => "zset",
                None => "none",
            }),
            ("pttl", [key]) => Reply::Integer(match self.keys.get(*key) {
                Some(Entry { expires: Some(expires), .. }) => {
                    i64::try_from(expires - now).expect("soon")
                }
                Some(_) => -1,
                None => -2,
            }),
            ("pexpire", [key, time]) => match self.keys.get_mut(*key) {
                Some(entry) => {
                    entry.expires = Some(now + milliseconds(time));
                    Reply::Integer(1)
                }
                None => Reply::Integer(0),
            },
            ("get", [key]) => self.text(key)?.map_or(Reply::Nil, |text| Reply::Bulk(text.clone())),
            ("getrange", [key, first, last]) => match self.text(key)? {
                Some(text) => Reply::Bulk(text[selected(text.len(), first, last)].to_vec()),
                None => Reply::text(""),
            },
            ("set", [key, value, options @ ..]) => {
                let mut expires = None;
                let mut options = options.iter();
                while let Some(option) = options.next() {
                    match option.to_ascii_lowercase().as_slice() {
                        b"nx" if self.keys.contains_key(*key) => return Ok(Reply::Nil),
                        b"nx" => {}
                        b"px" => expires = options.next().map(|time| now + milliseconds(time)),
                        other => panic!("SET with {other:?}"),
                    }
                }
                self.set(key, Value::Text(value.to_vec()), expires);
                Reply::OK
            }
            ("hset", [key, pairs @ ..]) => {
                self.hash(key)?;
                let expires = self.keys.get(*key).and_then(|entry| entry.expires);
                let mut fields = self.hash(key)?.cloned().unwrap_or_default();
                let before = fields.len();
                for pair in pairs.chunks(2) {
                    fields.insert(pair[0].to_vec(), pair[1].to_vec());
                }
                let added = fields.len() - before;
                self.set(key, Value::Hash(fields), expires);
                Reply::count(added)
            }
            ("hdel", [key, names @ ..]) => {
                let Some(mut fields) = self.hash(key)?.cloned() else {
                    return Ok(Reply::Integer(0));
                };
                let deleted = names.iter().filter(|name| fields.remove(**name).is_some()).count();
                let expires = self.keys.get(*key).and_then(|entry| entry.expires);
                self.set(key, Value::Hash(fields), expires);
                if self.hash(key)?.is_some_and(BTreeMap::is_empty) {
                    self.keys.remove(*key);
                }
                Reply::count(deleted)
            }
            ("hexists", [key, name]) => {
                Reply::flag(self.hash(key)?.is_some_and(|fields| fields.contains_key(*name)))
            }
            ("hlen", [key]) => Reply::count(self.hash(key)?.map_or(0, BTreeMap::len)),
            ("hkeys", [key]) => {
                let fields = self.hash(key)?.into_iter().flat_map(BTreeMap::keys);
                Reply::Array(fields.cloned().map(Reply::Bulk).collect())
            }
            ("hmget", [key, names @ ..]) => {
                let fields = self.hash(key)?;
                let value = |name: &&[u8]| fields.and_then(|fields| fields.get(*name)).cloned();
                let values = names.iter().map(|name| value(name).map_or(Reply::Nil, Reply::Bulk));
                Reply::Array(values.collect())
            }
            ("zadd", [key, arguments @ ..]) => {
                let (option, pairs) = arguments.split_at(arguments.len() % 2);
                let option = option.first().map(|option| option.to_ascii_lowercase());
                let added = self.change_sorted(key, |members| {
                    let (mut added, mut last) = (0, 0.0);
                    for pair in pairs.chunks(2) {
                        let (score, member) = (number(pair[0]), pair[1]);
                        let known = members.iter_mut().find(|(_, it)| it == member);
                        last = match (known, option.as_deref()) {
                            (Some(known), None | Some(b"xx")) => {
                                known.0 = score;
                                score
                            }
                            (Some(known), Some(b"incr")) => {
                                known.0 += score;
                                known.0
                            }
                            (Some(known), Some(b"nx")) => known.0,
                            (None, None | Some(b"nx" | b"incr")) => {
                                members.push((score, member.to_vec()));
                                added += 1;
                                score
                            }
                            (None, Some(b"xx")) => score,
                            (_, Some(other)) => panic!("ZADD with {other:?}"),
                        };
                    }
                    (added, last)
                })?;
                match option.as_deref() {
                    Some(b"incr") => Reply::Bulk(shown(added.1)),
                    _ => Reply::count(added.0),
                }
            }
            ("zrem", [key, removed @ ..]) => {
                let count = self.change_sorted(key, |members| {
                    let before = members.len();
                    members.retain(|(_, member)| !removed.contains(&&**member));
                    before - members.len()
                })?;
                Reply::count(count)
            }
            ("zscore", [key, member]) => {
                let found = self.sorted(key)?.iter().find(|(_, it)| it == member);
                found.map_or(Reply::Nil, |(score, _)| Reply::Bulk(shown(*score)))
            }
            ("zrank", [key, member]) => {
                let found = self.sorted(key)?.iter().position(|(_, it)| it == member);
                found.map_or(Reply::Nil, Reply::count)
            }
            ("zcount", [key, from, to]) => {
                let members = self.sorted(key)?.iter();
                Reply::count(members.filter(|it| is_from(it.0, from) && is_to(it.0, to)).count())
            }
            ("zrangebyscore", [key, from, to]) => {
                let members = self.sorted(key)?.iter();
                let found = members.filter(|it| is_from(it.0, from) && is_to(it.0, to));
                Reply::Array(found.map(|(_, member)| Reply::Bulk(member.clone())).collect())
            }
            ("zremrangebyscore", [key, from, to]) => {
                let count = self.change_sorted(key, |members| {
                    let before = members.len();
                    members.retain(|it| !(is_from(it.0, from) && is_to(it.0, to)));
                    before - members.len()
                })?;
                Reply::count(count)
            }
            ("zrange", [key, first, last, with_scores @ ..]) => {
                assert!(with_scores.iter().all(|it| it.eq_ignore_ascii_case(b"withscores")));
                let members = self.sorted(key)?;
                let found = members[selected(members.len(), first, last)].iter();
                let shown = |(score, member): &(f64, Vec<u8>)| {
                    let score =
                        Some(Reply::Bulk(shown(*score))).filter(|_| !with_scores.is_empty());
                    [Some(Reply::Bulk(member.clone())), score]
                };
                Reply::Array(found.flat_map(shown).flatten().collect())
            }
            ("zpopmin", [key]) => {
                let first = self.change_sorted(key, |members| {
                    (!members.is_empty()).then(|| members.remove(0))
                })?;
                let shown = |(score, member)| vec![Reply::Bulk(member), Reply::Bulk(shown(score))];
                Reply::Array(first.map(shown).unwrap_or_default())
            }
            _ => panic!("the simulated server does not know {name} with {}", command.len()),
        })
    }
}

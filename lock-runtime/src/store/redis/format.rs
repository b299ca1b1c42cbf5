//! The wire formats: what sets one apart, and nothing else does.
//!
//! A format is its scripts, the keys of a lock, the way in which they name its owner, and where and how
//! a release is told of. Of each there is one [`Format`]; all that is sent about a lock goes by it.
//!
//! An owner's name is made of the [`Token`] of its acquisition, so it is as fresh as that: where it has
//! to be shorter than the token, the rest of it is random as well.

use std::io::{Cursor, Write};

use redis::{Cmd, Pipeline, ToRedisArgs};

use super::script::{Script, script};
use super::{milliseconds, slot};
use crate::format::WireFormat;
use crate::key;
use crate::protection::Protection;
use crate::store::{Claim, Token};

pub(super) struct Format {
    pub(super) acquire: Script,
    pub(super) renew: Script,
    pub(super) release: Script,
    pub(super) release_all: Script,
    pub(super) fence: Script,
    pub(super) look: Script,
    /// The command that takes a lock which is free, where one does.
    pub(super) take: Option<fn(&Claim<'_>) -> Cmd>,
    /// How the name of a lock's second key begins, if it has one.
    beside: Option<&'static str>,
    /// The name of an owner, of this client.
    name: fn(&Token, client: &str, &mut Cursor<[u8; LONGEST_NAME]>) -> std::io::Result<()>,
    /// What stands before a lock's key in the name of its wake-up channel.
    channel: &'static str,
    /// What is said there; `None`: which client says so.
    message: Option<&'static str>,
}

/// A UUID, a colon and a number.
const LONGEST_NAME: usize = 36 + 1 + 19;

static TOKEN: Format = Format {
    acquire: script!("token/acquire.lua"),
    renew: script!("token/held.lua", "extend.lua", "renew.lua"),
    release: script!(
        "token/free.lua",
        "token/held.lua",
        "token/keep.lua",
        "release.lua",
        "release_one.lua"
    ),
    release_all: script!("token/held.lua", "token/keep.lua", "release.lua", "release_all.lua"),
    fence: script!("token/held.lua", "fence.lua"),
    look: script!("token/look.lua"),
    take: Some(|claim| {
        let mut set = Cmd::with_capacity(6, claim.key.len() + 64);
        set.arg("SET").arg(claim.key).arg(claim.token.as_bytes());
        if Protection::OnlyIfFree.is_on() {
            set.arg("NX");
        }
        if Protection::Expiry.is_on() {
            set.arg("PX").arg(milliseconds(claim.lease));
        }
        set
    }),
    beside: None,
    name: |token, _, name| name.write_all(token.as_bytes()),
    channel: "lock_wake:",
    message: None,
};

/// The owners of Redisson are threads: a UUID for each client, and a number for each thread of it. Here
/// the number is a random one for each acquisition. Two owners of one client share a name once in 2^63
/// times; those of two clients, as often as their UUIDs are the same.
static REDISSON: Format = Format {
    acquire: script!("redisson/acquire.lua"),
    renew: script!("redisson/held.lua", "extend.lua", "renew.lua"),
    release: script!("redisson/held.lua", "redisson/keep.lua", "release.lua", "release_one.lua"),
    release_all: script!(
        "redisson/held.lua",
        "redisson/keep.lua",
        "release.lua",
        "release_all.lua"
    ),
    fence: script!("redisson/held.lua", "fence.lua"),
    look: script!("redisson/look.lua"),
    take: None,
    beside: None,
    name: |token, client, name| write!(name, "{client}:{}", token.number()),
    channel: "redisson_lock__channel:",
    message: Some("0"),
};

/// The lock itself names nobody, and others read it as a number, so the owner stands beside it.
static TIMESTAMP: Format = Format {
    acquire: script!("timestamp/held.lua", "timestamp/write.lua", "timestamp/acquire.lua"),
    renew: script!(
        "timestamp/held.lua",
        "timestamp/write.lua",
        "timestamp/extend.lua",
        "renew.lua"
    ),
    release: script!("timestamp/held.lua", "timestamp/keep.lua", "release.lua", "release_one.lua"),
    release_all: script!(
        "timestamp/held.lua",
        "timestamp/keep.lua",
        "release.lua",
        "release_all.lua"
    ),
    fence: script!("timestamp/held.lua", "fence.lua"),
    look: script!("timestamp/held.lua", "timestamp/look.lua"),
    take: None,
    beside: Some(key::OWNERS),
    name: |token, _, name| name.write_all(token.as_bytes()),
    channel: "lock_wake:",
    message: None,
};

const ALL: [&Format; 3] = [&TOKEN, &REDISSON, &TIMESTAMP];

/// Gives the server the text of all scripts.
pub(super) fn load_all() -> Pipeline {
    let mut load = Pipeline::new();
    for script in ALL.iter().flat_map(|format| format.scripts()) {
        load.cmd("SCRIPT").arg("LOAD").arg(script.text());
    }
    load
}

impl Format {
    pub(super) fn of(format: WireFormat) -> &'static Self {
        match format {
            WireFormat::Token => &TOKEN,
            WireFormat::Redisson => &REDISSON,
            WireFormat::Timestamp => &TIMESTAMP,
        }
    }

    fn scripts(&self) -> [&Script; 6] {
        [&self.acquire, &self.renew, &self.release, &self.release_all, &self.fence, &self.look]
    }

    /// How many keys a lock has.
    pub(super) fn keys(&self) -> usize {
        1 + usize::from(self.beside.is_some())
    }

    /// Adds the keys of a lock.
    pub(super) fn add_keys(&self, call: &mut Cmd, key: &str) {
        call.arg(key);
        if let Some(beside) = self.beside {
            call.arg(format!("{beside}{{{}}}:{key}", slot::tag(key)));
        }
    }

    /// How the keys of a lock name its owner.
    pub(super) fn owner(&self, token: &Token, client: &str) -> Owner {
        let mut name = Cursor::new([0; LONGEST_NAME]);
        // It is as long as the longest.
        let _ = (self.name)(token, client, &mut name);
        Owner(name)
    }

    /// The channel on which the release of `key` is told. Two keys may share one (`a` and `{a}`), which
    /// costs a try for nothing and no more.
    ///
    /// It has the key's hash tag, or the whole key as its tag. Redisson's rule.
    pub(super) fn channel(&self, key: &str) -> String {
        let parts = if key.contains('{') { ["", key, ""] } else { ["{", key, "}"] };
        let mut channel = String::with_capacity(self.channel.len() + key.len() + 2);
        channel.push_str(self.channel);
        channel.extend(parts);
        channel
    }

    /// Whether what is said there does not tell who says so.
    pub(super) fn is_anonymous(&self) -> bool {
        self.message.is_some()
    }

    /// What is said there.
    pub(super) fn message<'a>(&self, client: &'a str) -> &'a str {
        self.message.unwrap_or(client)
    }
}

/// The name of an owner.
pub(super) struct Owner(Cursor<[u8; LONGEST_NAME]>);

impl Owner {
    fn as_bytes(&self) -> &[u8] {
        let length = usize::try_from(self.0.position()).unwrap_or(LONGEST_NAME);
        &self.0.get_ref()[..length]
    }
}

impl ToRedisArgs for Owner {
    fn write_redis_args<W: redis::RedisWrite + ?Sized>(&self, out: &mut W) {
        out.write_arg(self.as_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    #[cfg(lock_controls)]
    use crate::store::redis::script::SWITCHES;

    /// A script that has changed would disarm a control in silence.
    #[cfg(lock_controls)]
    #[test]
    fn what_the_controls_take_out_is_there() {
        for (_, with, _) in SWITCHES {
            let mut texts = ALL.iter().flat_map(|format| format.scripts()).map(Script::text);
            assert!(texts.any(|text| text.contains(with)), "{with}");
        }
    }

    const CLIENT: &str = "b983c153-7421-469a-addb-44fb92259a1b";

    fn owner(format: &Format, token: &Token) -> String {
        String::from_utf8(format.owner(token, CLIENT).as_bytes().to_vec()).expect("text")
    }

    #[test]
    fn an_owner_is_its_token_or_named_like_a_thread() {
        let token = Token::random().expect("randomness");
        for format in [&TOKEN, &TIMESTAMP] {
            assert_eq!(owner(format, &token).as_bytes(), token.as_bytes());
        }
        let name = owner(&REDISSON, &token);
        let (client, number) = name.rsplit_once(':').expect("a colon");
        assert_eq!(client, CLIENT);
        assert_eq!(number.parse(), Ok(token.number()));
    }

    #[test]
    fn the_longest_name_is_whole() {
        let mut name = Cursor::new([0; LONGEST_NAME]);
        write!(name, "{CLIENT}:{}", i64::MAX).expect("it fits");
        assert_eq!(usize::try_from(name.position()), Ok(LONGEST_NAME));
    }

    #[test]
    fn channels_are_named_by_the_rule_of_redisson() {
        assert_eq!(TOKEN.channel("order:42"), "lock_wake:{order:42}");
        assert_eq!(REDISSON.channel("order:42"), "redisson_lock__channel:{order:42}");
        assert_eq!(REDISSON.channel("{user:7}:cart"), "redisson_lock__channel:{user:7}:cart");
        // Wherever the brace is, and whether or not it is closed.
        assert_eq!(REDISSON.channel("a{"), "redisson_lock__channel:a{");
    }
}

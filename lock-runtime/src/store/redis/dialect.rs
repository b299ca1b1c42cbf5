//! Everything that differs between the wire formats.
//!
//! A [`Dialect`] has the scripts of one wire format, the keys of a lock, the name of its owner in
//! these keys, and the channel and the message that announce a release. Every request about a lock
//! uses one.
//!
//! The name of an owner is derived from the [`OwnerId`] of its acquisition. A format with shorter
//! names uses some of its random bits.

use std::io::{Cursor, Write};
use std::time::Duration;

use redis::{Cmd, Pipeline, ToRedisArgs};

use super::hash_slot;
use super::queue::QueueName;
use super::script::{Publish, Script, script};
use crate::key;
use crate::safeguard::Safeguard;
use crate::store::contract::Claim;
use crate::store::owner::OwnerId;
use crate::wire_format::WireFormat;

pub(super) struct Dialect {
    pub(super) format: WireFormat,
    /// What a lock looks like, for errors.
    pub(super) layout: &'static str,
    acquire: PublishingScript,
    pub(super) renew: Script,
    release: PublishingScript,
    release_all: PublishingScript,
    pub(super) fence: Script,
    pub(super) check: Script,
    /// The script that acquires several locks of one slot, if the format has one.
    pub(super) acquire_all: Option<Script>,
    /// The scripts that announce the holder of a lock, and read that, if the format has them.
    pub(super) announcements: Option<[Script; 2]>,
    /// The command that acquires a free lock, if the format has one.
    pub(super) take: Option<fn(&Claim<'_>) -> Cmd>,
    /// The prefix of a lock's second key, if it has one.
    second_key: Option<&'static str>,
    /// Whether waiting claims stand in a queue beside the lock. Otherwise a release wakes them all.
    pub(super) queues: bool,
    /// Writes the name of an owner of this client.
    owner_name: fn(OwnerId, client: &str, &mut Cursor<[u8; LONGEST_NAME]>) -> std::io::Result<()>,
    /// The prefix of the wake-up channels.
    channel_prefix: &'static str,
    /// The message that announces a release; `None` for the id of the client.
    fixed_message: Option<&'static str>,
}

/// A script that publishes messages, in both ways.
struct PublishingScript {
    everywhere: Script,
    to_shard: Script,
}

impl PublishingScript {
    const fn new(script: Script) -> Self {
        let to_shard = script.publishing(Publish::ToShard);
        Self { everywhere: script, to_shard }
    }

    fn publishing(&self, publish: Publish) -> &Script {
        match publish {
            Publish::Everywhere => &self.everywhere,
            Publish::ToShard => &self.to_shard,
        }
    }
}

/// A UUID, a colon and a number.
const LONGEST_NAME: usize = 36 + 1 + 19;

static TOKEN: Dialect = Dialect {
    format: WireFormat::Token,
    layout: "string",
    acquire: PublishingScript::new(script!(
        notes_asking: "token/transfer.lua",
        "token/acquire.lua"
    )),
    renew: script!("token/held.lua", "extend.lua", "renew.lua"),
    release: PublishingScript::new(script!(
        "token/free.lua",
        "token/transfer.lua",
        "token/held.lua",
        "token/keep.lua",
        "token/release.lua",
        "token/release_one.lua"
    )),
    release_all: PublishingScript::new(script!(
        "token/transfer.lua",
        "token/held.lua",
        "token/keep.lua",
        "token/release.lua",
        "token/release_all.lua"
    )),
    fence: script!("token/held.lua", "fence.lua"),
    check: script!("token/check.lua"),
    acquire_all: Some(script!(notes_asking: "token/acquire_all.lua")),
    announcements: Some([
        script!("token/held.lua", "token/announce.lua"),
        script!("token/announced.lua"),
    ]),
    take: Some(|claim| {
        let mut set = Cmd::with_capacity(6, claim.resource.key.len() + 64);
        set.arg("SET").arg(claim.resource.key).arg(&claim.owner.to_hex()[..]);
        if Safeguard::OnlyIfFree.is_on() {
            set.arg("NX");
        }
        if Safeguard::Expiry.is_on() {
            set.arg("PX").arg(milliseconds(claim.term));
        }
        set
    }),
    second_key: None,
    queues: true,
    owner_name: |owner, _, name| name.write_all(&owner.to_hex()),
    channel_prefix: "lock_wake:",
    fixed_message: None,
};

/// In Redisson, owners are threads: the UUID of a client, and the number of a thread. Here the
/// number is random for each acquisition. Two acquisitions of one client have the same name with a
/// probability of 2^-63, and those of two clients only if the UUIDs of the clients are equal as
/// well.
static REDISSON: Dialect = Dialect {
    format: WireFormat::Redisson,
    layout: "hash",
    acquire: PublishingScript::new(script!("redisson/acquire.lua")),
    renew: script!("redisson/held.lua", "extend.lua", "renew.lua"),
    release: PublishingScript::new(script!(
        "redisson/held.lua",
        "redisson/keep.lua",
        "release.lua",
        "release_one.lua"
    )),
    release_all: PublishingScript::new(script!(
        "redisson/held.lua",
        "redisson/keep.lua",
        "release.lua",
        "release_all.lua"
    )),
    fence: script!("redisson/held.lua", "fence.lua"),
    check: script!("redisson/check.lua"),
    acquire_all: None,
    announcements: None,
    take: None,
    second_key: None,
    queues: false,
    owner_name: |owner, client, name| write!(name, "{client}:{}", owner.number()),
    channel_prefix: "redisson_lock__channel:",
    fixed_message: Some("0"),
};

/// Other clients read the lock as a number, so it cannot name its owner. A second key does.
static TIMESTAMP: Dialect = Dialect {
    format: WireFormat::Timestamp,
    layout: "Unix time in ms",
    acquire: PublishingScript::new(script!(
        "timestamp/held.lua",
        "timestamp/write.lua",
        "timestamp/acquire.lua"
    )),
    renew: script!(
        "timestamp/held.lua",
        "timestamp/write.lua",
        "timestamp/extend.lua",
        "renew.lua"
    ),
    release: PublishingScript::new(script!(
        "timestamp/held.lua",
        "timestamp/keep.lua",
        "release.lua",
        "release_one.lua"
    )),
    release_all: PublishingScript::new(script!(
        "timestamp/held.lua",
        "timestamp/keep.lua",
        "release.lua",
        "release_all.lua"
    )),
    fence: script!("timestamp/held.lua", "fence.lua"),
    check: script!("timestamp/held.lua", "timestamp/check.lua"),
    acquire_all: None,
    announcements: None,
    take: None,
    second_key: Some(key::OWNERS),
    queues: false,
    owner_name: |owner, _, name| name.write_all(&owner.to_hex()),
    channel_prefix: "lock_wake:",
    fixed_message: None,
};

const ALL: [&Dialect; 3] = [&TOKEN, &REDISSON, &TIMESTAMP];

/// Does nothing. Its reply shows that the server runs scripts.
pub(super) static PROBE: Script = Script::new("return 1", false);

/// Loads the texts of all scripts into the server, which may be a node of a cluster.
pub(super) fn load_all(into_node: bool) -> Pipeline {
    let mut load = Pipeline::new();
    let scripts = ALL.iter().flat_map(|format| format.scripts());
    let to_shard = ALL.iter().filter(|_| into_node);
    let to_shard = to_shard.flat_map(|format| {
        [&format.acquire.to_shard, &format.release.to_shard, &format.release_all.to_shard]
    });
    for script in scripts.chain(to_shard).chain([&PROBE]) {
        load.cmd("SCRIPT").arg("LOAD").arg(script.text());
    }
    load
}

impl Dialect {
    pub(super) fn of(format: WireFormat) -> &'static Self {
        match format {
            WireFormat::Token => &TOKEN,
            WireFormat::Redisson => &REDISSON,
            WireFormat::Timestamp => &TIMESTAMP,
        }
    }

    fn scripts(&self) -> impl Iterator<Item = &Script> {
        let [acquire, release, release_all] =
            [&self.acquire, &self.release, &self.release_all].map(|script| &script.everywhere);
        let all = [acquire, &self.renew, release, release_all, &self.fence, &self.check];
        all.into_iter().chain(&self.acquire_all).chain(self.announcements.iter().flatten())
    }

    /// The script that acquires a lock.
    pub(super) fn acquire(&self, publish: Publish) -> &Script {
        self.acquire.publishing(publish)
    }

    /// The script that releases one lock.
    pub(super) fn release(&self, publish: Publish) -> &Script {
        self.release.publishing(publish)
    }

    /// The script that releases several locks.
    pub(super) fn release_all(&self, publish: Publish) -> &Script {
        self.release_all.publishing(publish)
    }

    /// The number of keys of a lock.
    pub(super) fn keys(&self) -> usize {
        1 + usize::from(self.second_key.is_some())
    }

    /// Adds the keys of a lock.
    pub(super) fn add_keys(&self, call: &mut Cmd, key: &str) {
        call.arg(key);
        if let Some(prefix) = self.second_key {
            call.arg(format!("{prefix}{{{}}}:{key}", hash_slot::tag(key)));
        }
    }

    /// Adds the number of keys of some locks, and the keys: those of each lock, then the queues,
    /// except in a cluster.
    pub(super) fn add_all_keys<'k>(
        &self,
        call: &mut Cmd,
        keys: impl ExactSizeIterator<Item = &'k str> + Clone,
        in_cluster: bool,
    ) {
        let declares_queues = self.queues && !in_cluster;
        call.arg(keys.len() * (self.keys() + usize::from(declares_queues)));
        for key in keys.clone() {
            self.add_keys(call, key);
        }
        for key in keys.filter(|_| declares_queues) {
            call.arg(QueueName(key));
        }
    }

    /// The name of an owner in the keys of a lock.
    pub(super) fn owner(&self, owner: OwnerId, client: &str) -> OwnerName {
        let mut name = Cursor::new([0; LONGEST_NAME]);
        // Cannot fail: the buffer holds the longest name.
        let _ = (self.owner_name)(owner, client, &mut name);
        OwnerName(name)
    }

    /// The channel that announces the releases of `key`. Two keys may share one (`a` and `{a}`),
    /// which costs no more than an attempt that finds the lock busy.
    ///
    /// Its hash tag is that of the key, or the whole key if it has none, by the rule of Redisson.
    /// If that leads to another slot, because the braces of the key are not balanced, a channel
    /// that no other library uses has a short tag of the right slot instead.
    pub(super) fn channel(&self, key: &str) -> String {
        let parts = if key.contains('{') { ["", key, ""] } else { ["{", key, "}"] };
        let mut channel = String::with_capacity(self.channel_prefix.len() + key.len() + 2);
        channel.push_str(self.channel_prefix);
        channel.extend(parts);
        let is_own = self.fixed_message.is_none();
        if is_own && key.contains(['{', '}']) {
            let tag = hash_slot::hash_tag(key);
            if hash_slot::hash_tag(&channel) != tag {
                return format!("{}{{{}}}:{key}", self.channel_prefix, hash_slot::tag(key));
            }
        }
        channel
    }

    /// Whether messages do not name their sender.
    pub(super) fn is_anonymous(&self) -> bool {
        self.fixed_message.is_some()
    }

    /// The message that announces a release by this client.
    pub(super) fn message<'a>(&self, client: &'a str) -> &'a str {
        self.fixed_message.unwrap_or(client)
    }
}

/// The name of an owner.
pub(super) struct OwnerName(Cursor<[u8; LONGEST_NAME]>);

impl OwnerName {
    fn as_bytes(&self) -> &[u8] {
        let length = usize::try_from(self.0.position()).unwrap_or(LONGEST_NAME);
        &self.0.get_ref()[..length]
    }
}

impl ToRedisArgs for OwnerName {
    fn write_redis_args<W: redis::RedisWrite + ?Sized>(&self, out: &mut W) {
        out.write_arg(self.as_bytes());
    }
}

pub(super) fn milliseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests;

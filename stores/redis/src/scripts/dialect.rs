//! Everything that differs between the layouts of locks.
//!
//! A [`Dialect`] has the scripts of one layout, the keys of a lock, the name of its owner in
//! these keys, and the channel and the message that announce a release. Every request about a lock
//! uses one. All of them are in [`dialects`](super::dialects).
//!
//! The name of an owner is derived from the [`OwnerId`] of its acquisition. A format with shorter
//! names uses some of its random bits.

use std::io::Cursor;
use std::time::Duration;

use redis::{Cmd, ToRedisArgs};

use super::queue;
use super::script::{Publish, Script};
use crate::client_id::ClientId;
use crate::hash_slot;
use lock_core::store::contract::{Claim, Extension, Extensions, Layout};
use lock_core::store::owner::OwnerId;

/// The scripts about runs that happen at most once per period.
pub(crate) struct RunScripts {
    pub(crate) start: Script,
    pub(crate) end: Script,
    pub(crate) last: Script,
}

pub(crate) struct Dialect {
    pub(crate) layout: Layout,
    pub(crate) acquire: PublishingScript,
    pub(crate) renew: Script,
    pub(crate) release: PublishingScript,
    pub(crate) release_all: PublishingScript,
    /// The script that issues fencing tokens, if the locks have them.
    pub(crate) fence: Option<Script>,
    pub(crate) check: PublishingScript,
    /// The script that acquires several locks of one slot, if the format has one.
    pub(crate) acquire_all: Option<Script>,
    /// The scripts that announce the holder of a lock, and read that, if the format has them.
    pub(crate) announcements: Option<[Script; 2]>,
    /// The scripts about runs, if the format has them.
    pub(crate) runs: Option<RunScripts>,
    /// The script that changes the mode of a hold, if the locks have modes.
    pub(crate) change: Option<PublishingScript>,
    /// The command that acquires a free lock, if the format has one.
    pub(crate) take: Option<fn(&Claim<'_>, &ClientId) -> Cmd>,
    /// The prefix of a lock's second key, if it has one.
    pub(crate) second_key: Option<&'static str>,
    /// Whether waiting claims stand in a queue beside the lock. Otherwise a release wakes them all.
    pub(crate) queues: bool,
    /// Writes the name of an owner of this client.
    pub(crate) owner_name:
        fn(OwnerId, client: &ClientId, &mut Cursor<[u8; LONGEST_NAME]>) -> std::io::Result<()>,
    /// The prefix of the wake-up channels.
    pub(crate) channel_prefix: &'static str,
    /// The message that announces a release; `None` for the id of the client.
    pub(crate) fixed_message: Option<&'static str>,
}

/// A script that publishes messages, in both ways.
pub(crate) struct PublishingScript {
    pub(crate) everywhere: Script,
    pub(crate) to_shard: Script,
}

impl PublishingScript {
    pub(crate) const fn new(script: Script) -> Self {
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
pub(crate) const LONGEST_NAME: usize = 36 + 1 + 19;

impl Dialect {
    pub(crate) fn publishing(&self) -> [&PublishingScript; 4] {
        [&self.acquire, &self.release, &self.release_all, &self.check]
    }

    pub(crate) fn scripts(&self) -> impl Iterator<Item = &Script> {
        let publishing = self.publishing().into_iter().chain(&self.change);
        let publishing = publishing.map(|script| &script.everywhere);
        let all = publishing.chain([&self.renew]).chain(&self.fence);
        let optional = self.acquire_all.iter().chain(self.announcements.iter().flatten());
        let runs = self.runs.iter().flat_map(|RunScripts { start, end, last }| [start, end, last]);
        all.chain(optional).chain(runs)
    }

    /// The script that acquires a lock.
    pub(crate) fn acquire(&self, publish: Publish) -> &Script {
        self.acquire.publishing(publish)
    }

    /// The script that checks locks that claims wait for.
    pub(crate) fn check(&self, publish: Publish) -> &Script {
        self.check.publishing(publish)
    }

    /// The script that changes the mode of a hold, if the locks have modes.
    pub(crate) fn change(&self, publish: Publish) -> Option<&Script> {
        self.change.as_ref().map(|script| script.publishing(publish))
    }

    /// What locks in this layout have besides the required requests.
    pub(crate) const fn extensions(&self) -> Extensions {
        let mut all = Extensions::of(&[Extension::KeptKeys, Extension::Acknowledgements]);
        if self.queues {
            all = all.with(Extension::Queues);
        }
        if self.runs.is_some() {
            all = all.with(Extension::Runs);
        }
        if self.announcements.is_some() {
            all = all.with(Extension::Announcements);
        }
        if self.fence.is_some() {
            all = all.with(Extension::Tokens);
        }
        if self.acquire_all.is_some() {
            all = all.with(Extension::SeveralKeys);
        }
        all
    }

    /// Whether a lock may have several holders. Requests about it say in which mode.
    pub(crate) fn has_modes(&self) -> bool {
        !matches!(self.layout, Layout::Wire(_) | Layout::Vote)
    }

    /// The script that releases one lock.
    pub(crate) fn release(&self, publish: Publish) -> &Script {
        self.release.publishing(publish)
    }

    /// The script that releases several locks.
    pub(crate) fn release_all(&self, publish: Publish) -> &Script {
        self.release_all.publishing(publish)
    }

    /// The number of keys of a lock.
    pub(crate) fn keys(&self) -> usize {
        1 + usize::from(self.second_key.is_some())
    }

    /// Adds the keys of a lock.
    pub(crate) fn add_keys(&self, call: &mut Cmd, key: &str) {
        call.arg(key);
        if let Some(prefix) = self.second_key {
            call.arg(hash_slot::name_beside(key, prefix));
        }
    }

    /// Adds the number of keys of some locks, and the keys: those of each lock, then the queues,
    /// except in a cluster.
    pub(crate) fn add_all_keys<'k>(
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
            call.arg(queue::name(key));
        }
    }

    /// The name of an owner in the keys of a lock.
    pub(crate) fn owner(&self, owner: OwnerId, client: &ClientId) -> OwnerName {
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
    pub(crate) fn channel(&self, key: &str) -> String {
        let parts = if key.contains('{') { ["", key, ""] } else { ["{", key, "}"] };
        let mut channel = String::with_capacity(self.channel_prefix.len() + key.len() + 2);
        channel.push_str(self.channel_prefix);
        channel.extend(parts);
        let is_own = self.fixed_message.is_none();
        if is_own && key.contains(['{', '}']) {
            let tag = hash_slot::hash_tag(key);
            if hash_slot::hash_tag(&channel) != tag {
                return hash_slot::name_beside(key, self.channel_prefix);
            }
        }
        channel
    }

    /// Whether messages do not name their sender.
    pub(crate) fn is_anonymous(&self) -> bool {
        self.fixed_message.is_some()
    }

    /// The message that announces a release by this client.
    pub(crate) fn message<'a>(&self, client: &'a str) -> &'a str {
        self.fixed_message.unwrap_or(client)
    }
}

/// The name of an owner.
pub(crate) struct OwnerName(Cursor<[u8; LONGEST_NAME]>);

impl OwnerName {
    pub(crate) fn as_bytes(&self) -> &[u8] {
        let length = usize::try_from(self.0.position()).unwrap_or(LONGEST_NAME);
        &self.0.get_ref()[..length]
    }
}

impl ToRedisArgs for OwnerName {
    fn write_redis_args<W: redis::RedisWrite + ?Sized>(&self, out: &mut W) {
        out.write_arg(self.as_bytes());
    }
}

pub(crate) fn milliseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

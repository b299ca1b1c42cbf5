//! The keys and the arguments of the scripts that take and free locks.

use std::borrow::Cow;

use redis::Cmd;

use super::store::RedisStore;
use crate::scripts::dialect::milliseconds;
use crate::scripts::queue::{self, EntryRest};
use lock_core::store::contract::{Queueing, Release};

/// For how many ms a lock stays free if a release leaves a gap: long enough for clients that poll
/// every 100 ms to hit one of a few gaps.
const GAP_MILLIS: i64 = 20;

impl RedisStore {
    /// Adds the arguments of the release of one lock.
    pub(crate) fn add_single_release(&self, call: &mut Cmd, release: &Release<'_>, channel: &str) {
        let key = release.resource.key;
        let is_plain = release.queued.is_none() && release.keep.is_zero() && !release.leaves_gap;
        self.add_before_releases(call, key);
        let is_short = self.dialect.queues && !self.dialect.has_modes();
        if is_short && is_plain && !self.shared.servers.is_cluster() {
            call.arg(self.dialect.owner(release.owner, &self.shared.id));
            return;
        }
        self.add_release(call, release, channel);
        self.add_after_releases(call);
    }

    /// Adds the arguments that come before those of the locks.
    pub(crate) fn add_before_releases(&self, call: &mut Cmd, key: &str) {
        if self.dialect.queues {
            call.arg(&*self.channels(key));
        }
    }

    /// Adds the arguments of one release.
    pub(crate) fn add_release(&self, call: &mut Cmd, release: &Release<'_>, channel: &str) {
        call.arg(self.dialect.owner(release.owner, &self.shared.id));
        if !self.dialect.queues {
            call.arg(channel).arg(milliseconds(release.keep));
            return;
        }
        let mode = release.resource.mode;
        call.arg(match release.queued {
            Some(term) => EntryRest::new(&self.shared.id, Queueing::Woken, (mode, term)),
            None => EntryRest::of_holder(mode),
        });
        if release.leaves_gap && release.keep.is_zero() {
            call.arg(-GAP_MILLIS);
        } else {
            call.arg(milliseconds(release.keep));
        }
        call.arg(self.undeclared_queue(release.resource.key));
    }

    /// Adds the arguments that come after those of the locks.
    pub(crate) fn add_after_releases(&self, call: &mut Cmd) {
        if !self.dialect.queues {
            call.arg(self.dialect.message(self.shared.id.uuid()));
        }
    }

    /// Adds the number of keys of some locks, and the keys. A node of a cluster would refuse several
    /// keys while their slot is being moved, so only other servers are told the queues in advance.
    pub(crate) fn add_keys<'k>(
        &self,
        call: &mut Cmd,
        keys: impl ExactSizeIterator<Item = &'k str> + Clone,
    ) {
        self.dialect.add_all_keys(call, keys, self.shared.servers.is_cluster());
    }

    /// The queue of a lock, unless it is among the keys.
    pub(crate) fn undeclared_queue(&self, key: &str) -> String {
        if self.shared.servers.is_cluster() { queue::name(key) } else { String::new() }
    }

    /// What the channels of all clients for a key begin with.
    pub(crate) fn channels(&self, key: &str) -> Cow<'static, str> {
        queue::channels(key, self.shared.servers.is_cluster())
    }

    /// The channel that announces the releases of `key`; empty if there is none.
    pub(crate) fn key_channel(&self, key: &str) -> String {
        if self.dialect.queues { String::new() } else { self.dialect.channel(key) }
    }
}

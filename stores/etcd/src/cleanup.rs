//! Tasks of a store: deleting what requests without an answer may have left, revoking retired leases, watching the keys of
//! locks that are held for more than a moment, and learning which members the cluster has.

use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::sleep;

use super::client::EtcdClient;
use super::errors::EtcdFailure;
use super::members::Members;
use super::transactions::{Owned, SeenKey};
use super::watcher::WatchCommand;
use lock_core::clock::BootInstant;
use lock_core::join::join_all;
use lock_core::safeguard::Safeguard;
use lock_core::sync::lock;

/// The number of keys that are deleted at a time.
const AT_ONCE: usize = 32;

/// The longest pause while there is something to do.
const PAUSE: Duration = Duration::from_secs(1);

/// How long a lock is held before its key is watched, up to twice this time. Most are released before that, and etcd reads what
/// it has written since the grant for each key that it begins to watch.
const BEFORE_WATCH: Duration = Duration::from_millis(50);

/// How often the cluster is asked for its members.
const LISTED: Duration = Duration::from_secs(60);

/// Starts the tasks, which end with the store.
pub(super) fn start(client: &Arc<EtcdClient>) {
    tokio::spawn(clean_up(Arc::downgrade(client), Arc::clone(&client.cleanup)));
    tokio::spawn(watch_held(Arc::downgrade(client), Arc::clone(&client.granted)));
    if client.members.may_learn() {
        tokio::spawn(learn_members(Arc::downgrade(&client.members)));
    }
}

/// Asks for the members at the beginning, when another member is used, and once a minute.
async fn learn_members(members: Weak<Members>) {
    let Some(mut changes) = members.upgrade().map(|members| members.changes()) else { return };
    loop {
        let Some(members) = members.upgrade() else { return };
        let pause = match members.learn().await {
            // The user may not ask.
            Ok(()) | Err(EtcdFailure::Refused(_)) => LISTED,
            Err(_) => PAUSE,
        };
        drop(members);
        tokio::select! {
            told = changes.changed() => {
                if told.is_err() {
                    return;
                }
            }
            () = sleep(pause) => {}
        }
    }
}

async fn clean_up(client: Weak<EtcdClient>, notify: Arc<Notify>) {
    loop {
        let Some(pause) = (match client.upgrade() {
            Some(client) => Some(client.clean_up().await),
            None => None,
        }) else {
            return;
        };
        match pause {
            Some(pause) => {
                tokio::select! {
                    () = notify.notified() => {}
                    () = sleep(pause) => {}
                }
            }
            None => notify.notified().await,
        }
    }
}

async fn watch_held(client: Weak<EtcdClient>, notify: Arc<Notify>) {
    let mut has_more = false;
    loop {
        if !has_more {
            notify.notified().await;
        }
        sleep(BEFORE_WATCH).await;
        let Some(client) = client.upgrade() else { return };
        // The command is sent before a release can send the opposite one.
        let mut holds = lock(&client.holds);
        let held = holds.take_unwatched();
        has_more = holds.has_unwatched();
        if !Safeguard::Tracking.is_on() {
            continue;
        }
        for (key, revision) in held {
            client.tell_watcher(WatchCommand::Hold { key, from: revision + 1 });
        }
    }
}

impl EtcdClient {
    /// Does what is due. Returns the pause until there is more to do; `None` if there is nothing.
    async fn clean_up(&self) -> Option<Duration> {
        let now = BootInstant::now();
        let due = lock(&self.holds).due(now, AT_ONCE);
        for key in due.unwatch {
            self.tell_watcher(WatchCommand::NoHold { key });
        }
        for lease in due.retire {
            self.leases.retire(lease);
        }
        if Safeguard::LeftoversAreFreed.is_on() {
            join_all(due.delete.iter().map(|owned| self.delete_left(owned))).await;
            self.revoke_unused(now).await;
        }
        let has_more = due.delete.len() == AT_ONCE;
        {
            let mut holds = lock(&self.holds);
            if holds.is_empty() && self.leases.retired().is_empty() {
                holds.set_cleaner_asleep();
                return None;
            }
        }
        let next = due.next.map_or(PAUSE, |next| next.since(BootInstant::now()));
        Some(if has_more { Duration::ZERO } else { next.min(PAUSE) })
    }

    async fn delete_left(&self, owned: &Owned) {
        let deleted = self.members.delete(owned).await;
        let (mut holds, now) = (lock(&self.holds), BootInstant::now());
        match deleted {
            Ok((answer, _)) => {
                let had_it = matches!(answer.what, SeenKey::Own { .. });
                holds.freed(owned, had_it, now);
            }
            Err(_) => holds.retry(owned, now, Duration::ZERO),
        }
    }

    /// Revokes retired leases without holds. All that they may have left is gone then.
    async fn revoke_unused(&self, now: BootInstant) {
        for lease in self.leases.retired() {
            {
                let holds = lock(&self.holds);
                // An acquire that begins later does not use a retired lease. A hold that is found to have it later, because
                // of an earlier request, gets another one.
                if holds.uses(lease, now) {
                    continue;
                }
                self.leases.begin_revocation(lease);
            }
            if self.members.revoke_lease(lease).await.is_ok() {
                self.leases.ended(lease);
                lock(&self.holds).lease_ended(lease);
            }
        }
    }
}

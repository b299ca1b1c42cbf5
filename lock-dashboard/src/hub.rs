//! One poller for all viewers.
//!
//! The poller is a task that asks the processes, and publishes a view of the answers to all viewers. It is started by
//! the first viewer, and ends one interval after the last one has left. Viewers that do not take the views, because
//! their connection is stuck, do not keep it alive. A viewer that takes one again starts it again.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use lock_runtime::admin::LockAdmin;
use tokio::sync::{Notify, watch};
use tokio::time::{Instant, sleep_until};

use crate::asked::AskedRound;
use crate::digest::Digest;
use crate::view::View;

/// How often the processes are asked if all pages are hidden.
const SLOW: Duration = Duration::from_secs(5);

/// The number of views after which viewers that have taken none of them do not count.
const MOST_UNTAKEN: u32 = 30;

/// How often a viewer wants a view.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Pace {
    /// As often as the settings say.
    Live,
    /// For a page that is hidden.
    Hidden,
}

/// The poller, and those who look at what it has found.
pub(crate) struct Hub {
    admin: LockAdmin,
    refresh: Duration,
    /// `None` while nobody watches.
    views: watch::Sender<Option<Arc<View>>>,
    watchers: Mutex<Watchers>,
    /// The viewers have changed.
    changed: Notify,
    /// What the poller remembers from one round to the next.
    digest: Mutex<Digest>,
}

#[derive(Default)]
struct Watchers {
    live: usize,
    hidden: usize,
    is_polling: bool,
    /// The number of views since one was taken.
    untaken: u32,
}

impl Hub {
    pub(crate) fn new(admin: LockAdmin, refresh: Duration, allow_actions: bool) -> Arc<Self> {
        let digest = Digest::new(admin.namespace(), refresh, allow_actions);
        Arc::new(Self {
            admin,
            refresh,
            views: watch::Sender::new(None),
            watchers: Mutex::default(),
            changed: Notify::new(),
            digest: Mutex::new(digest),
        })
    }

    pub(crate) fn admin(&self) -> &LockAdmin {
        &self.admin
    }

    /// Begins to watch.
    pub(crate) fn viewer(self: &Arc<Self>, pace: Pace) -> Viewer {
        let mut watchers = self.watchers();
        match pace {
            Pace::Live => watchers.live += 1,
            Pace::Hidden => watchers.hidden += 1,
        }
        drop(watchers);
        self.changed.notify_one();
        let mut views = self.views.subscribe();
        views.mark_changed();
        Viewer { hub: Arc::clone(self), pace, views }
    }

    fn watchers(&self) -> MutexGuard<'_, Watchers> {
        self.watchers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn digest(&self) -> MutexGuard<'_, Digest> {
        self.digest.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts the poller unless it runs.
    fn ensure_polling(self: &Arc<Self>) {
        let mut watchers = self.watchers();
        watchers.untaken = 0;
        if !watchers.is_polling {
            watchers.is_polling = true;
            tokio::spawn(poll(Polling(Arc::clone(self))));
        }
    }

    /// The time from one round to the next.
    fn interval(&self) -> Duration {
        let watchers = self.watchers();
        if watchers.live == 0 && watchers.hidden > 0 {
            self.refresh.max(SLOW)
        } else {
            self.refresh
        }
    }

    /// Whether anybody still watches. Otherwise, the poller counts as ended.
    fn goes_on(&self) -> bool {
        let mut watchers = self.watchers();
        let goes_on = watchers.live + watchers.hidden > 0 && watchers.untaken < MOST_UNTAKEN;
        if !goes_on {
            watchers.is_polling = false;
            // Under the lock, so that this cannot hide the view of a poller that is started now.
            self.views.send_replace(None);
        }
        goes_on
    }

    /// One round: asks, and computes the view on a thread for computations, because there may be many locks.
    async fn round(self: &Arc<Self>) {
        let needs_losses = |snapshots: &_| self.digest().needs_losses(snapshots);
        let asked = AskedRound::ask(&self.admin, needs_losses).await;
        let hub = Arc::clone(self);
        let computing = tokio::task::spawn_blocking(move || {
            let view = hub.digest().add(asked);
            hub.watchers().untaken += 1;
            hub.views.send_replace(Some(Arc::new(view)));
        });
        // It fails only if the runtime shuts down.
        let _ = computing.await;
    }
}

/// A poller that runs.
struct Polling(Arc<Hub>);

impl Drop for Polling {
    /// Also if the runtime of the poller was shut down.
    fn drop(&mut self) {
        self.0.watchers().is_polling = false;
    }
}

async fn poll(polling: Polling) {
    let hub = &polling.0;
    loop {
        let began = Instant::now();
        hub.round().await;
        loop {
            let changed = hub.changed.notified();
            tokio::select! {
                () = sleep_until(began + hub.interval()) => break,
                () = changed => {}
            }
        }
        if !hub.goes_on() {
            break;
        }
    }
}

/// One who watches.
pub(crate) struct Viewer {
    hub: Arc<Hub>,
    pace: Pace,
    views: watch::Receiver<Option<Arc<View>>>,
}

impl Viewer {
    /// The next view; at first, the current one. A viewer that is late misses views.
    ///
    /// Cancel safe.
    pub(crate) async fn next(&mut self) -> Arc<View> {
        loop {
            self.hub.ensure_polling();
            // The sender lives as long as the hub.
            let _ = self.views.changed().await;
            let view = self.views.borrow_and_update().clone();
            if let Some(view) = view {
                self.hub.watchers().untaken = 0;
                return view;
            }
        }
    }
}

impl Drop for Viewer {
    fn drop(&mut self) {
        let mut watchers = self.hub.watchers();
        match self.pace {
            Pace::Live => watchers.live -= 1,
            Pace::Hidden => watchers.hidden -= 1,
        }
        drop(watchers);
        self.hub.changed.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use lock_runtime::LockClient;
    use tokio::time::{sleep, timeout};

    use super::*;

    const PATIENCE: Duration = Duration::from_secs(60);

    fn hub() -> Arc<Hub> {
        Hub::new(LockAdmin::new(&LockClient::memory()), Duration::from_millis(20), false)
    }

    async fn until_ended(hub: &Hub) {
        let ended = async {
            while hub.watchers().is_polling {
                sleep(Duration::from_millis(5)).await;
            }
        };
        timeout(PATIENCE, ended).await.expect("the poller ends");
        assert!(hub.views.borrow().is_none(), "no locks are kept");
    }

    #[tokio::test]
    async fn the_poller_ends_with_the_last_viewer() {
        let hub = hub();
        assert!(!hub.watchers().is_polling);
        let (mut one, mut two) = (hub.viewer(Pace::Live), hub.viewer(Pace::Hidden));
        one.next().await;
        two.next().await;
        drop(one);
        sleep(Duration::from_millis(100)).await;
        assert!(hub.watchers().is_polling);
        drop(two);
        until_ended(&hub).await;
        let Watchers { live, hidden, .. } = *hub.watchers();
        assert_eq!((live, hidden), (0, 0));
        let is_gone = async {
            while Arc::strong_count(&hub) > 1 {
                sleep(Duration::from_millis(5)).await;
            }
        };
        timeout(PATIENCE, is_gone).await.expect("the task is gone");
        hub.viewer(Pace::Live).next().await;
        until_ended(&hub).await;
    }

    /// A connection that takes no more bytes is not closed for a long time.
    #[tokio::test]
    async fn a_viewer_that_takes_nothing_does_not_keep_the_poller_alive() {
        let hub = hub();
        let mut stuck = hub.viewer(Pace::Live);
        stuck.next().await;
        until_ended(&hub).await;
        timeout(PATIENCE, stuck.next()).await.expect("it may continue");
        assert!(hub.watchers().is_polling);
    }

    #[tokio::test]
    async fn a_viewer_that_is_dropped_while_it_waits_does_not_count() {
        let hub = hub();
        for _ in 0..10 {
            let mut viewer = hub.viewer(Pace::Live);
            drop(timeout(Duration::from_millis(1), viewer.next()).await);
        }
        until_ended(&hub).await;
    }
}

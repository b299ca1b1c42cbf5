//! One poller for all viewers.
//!
//! The poller is a task that asks the processes, and publishes a view of the answers to all viewers. The first viewer
//! starts it. It asks nobody once the last viewer has left, and ends a few intervals later, unless one of them has
//! connected again. Viewers that do not take the views, because their connection is stuck, do not keep it alive. A
//! viewer that takes one again starts it again.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use lock_runtime::admin::LockAdmin;
use tokio::sync::{Notify, watch};
use tokio::time::{Instant, sleep_until, timeout};

use crate::asked::AskedRound;
use crate::digest::Digest;
use crate::view::View;

/// How often the processes are asked if all pages are hidden.
const SLOW: Duration = Duration::from_secs(5);

/// The number of views after which viewers that have taken none of them do not count.
const MOST_UNTAKEN: u32 = 30;

/// The number of intervals after the last viewer for which the poller remembers the answers, and the longest time.
const LINGER: u32 = 4;
const LONGEST_LINGER: Duration = Duration::from_secs(10);

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
    /// Somebody has come since the last round, and may have left.
    visited: bool,
    /// The number of the poller that runs.
    poller: Option<u64>,
    /// The number of pollers that were started.
    started: u64,
    /// The number of views since one was taken.
    untaken: u32,
}

impl Watchers {
    /// Whether somebody takes the views, or has just come for one.
    fn is_any(&self) -> bool {
        self.visited || (self.live + self.hidden > 0 && self.untaken < MOST_UNTAKEN)
    }
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
        watchers.visited = true;
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
        match Polling::start(self) {
            Some(polling) => drop(tokio::spawn(poll(polling))),
            // It may have counted this viewer as stuck.
            None => self.changed.notify_one(),
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

    /// Whether anybody watches.
    fn is_watched(&self) -> bool {
        self.watchers().is_any()
    }

    /// One round: asks, and computes the view on a thread for blocking work, because there may be many locks.
    async fn round(self: &Arc<Self>) {
        self.watchers().visited = false;
        let needs_snapshots = self.digest().needs_snapshots(Instant::now().into_std());
        let needs_losses = |snapshots: &_| self.digest().needs_losses(snapshots);
        let asked = AskedRound::ask(&self.admin, needs_snapshots, needs_losses).await;
        let hub = Arc::clone(self);
        let computing = tokio::task::spawn_blocking(move || hub.digest().add(asked));
        let view = match computing.await {
            Ok(view) => view,
            // The panic hook has reported it.
            Err(error) if error.is_panic() => {
                self.digest().fail("the dashboard could not evaluate the answers: it panicked")
            }
            // The runtime shuts down.
            Err(_) => return,
        };
        self.watchers().untaken += 1;
        self.views.send_replace(Some(Arc::new(view)));
    }
}

/// A poller that runs.
struct Polling {
    hub: Arc<Hub>,
    number: u64,
}

impl Polling {
    /// `None` if another one runs.
    fn start(hub: &Arc<Hub>) -> Option<Self> {
        let mut watchers = hub.watchers();
        watchers.untaken = 0;
        if watchers.poller.is_some() {
            return None;
        }
        watchers.started += 1;
        let number = watchers.started;
        watchers.poller = Some(number);
        drop(watchers);
        Some(Self { hub: Arc::clone(hub), number })
    }

    /// Whether anybody still watches. Otherwise, the poller counts as ended, and the answers are forgotten.
    fn goes_on(&self) -> bool {
        let mut watchers = self.hub.watchers();
        let goes_on = watchers.is_any();
        if !goes_on {
            watchers.poller = None;
            // Under the lock, so that this cannot hide the view of a poller that is started now.
            self.hub.views.send_replace(None);
            self.hub.digest().forget();
        }
        goes_on
    }
}

impl Drop for Polling {
    /// Also if the runtime of the poller was shut down. Another poller may run by now.
    fn drop(&mut self) {
        let mut watchers = self.hub.watchers();
        if watchers.poller == Some(self.number) {
            watchers.poller = None;
        }
    }
}

async fn poll(polling: Polling) {
    let hub = &polling.hub;
    loop {
        let began = Instant::now();
        hub.round().await;
        let ended = Instant::now();
        loop {
            let changed = hub.changed.notified();
            tokio::select! {
                () = sleep_until(next_round(began, ended, hub.interval())) => break,
                () = changed => {}
            }
        }
        let returned = async {
            while !hub.is_watched() {
                hub.changed.notified().await;
            }
        };
        // A viewer that is here in time finds the answers.
        let _ = timeout((hub.refresh * LINGER).min(LONGEST_LINGER), returned).await;
        if !polling.goes_on() {
            break;
        }
    }
}

/// When the round begins that follows one from `began` to `ended`. The pause is at least as long as the round.
fn next_round(began: Instant, ended: Instant, interval: Duration) -> Instant {
    (began + interval).max(ended + (ended - began))
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
            while hub.watchers().poller.is_some() {
                sleep(Duration::from_millis(5)).await;
            }
        };
        timeout(PATIENCE, ended).await.expect("the poller ends");
        assert!(hub.views.borrow().is_none(), "no locks are kept");
        assert!(hub.digest().is_empty(), "no locks are kept");
    }

    #[tokio::test]
    async fn the_poller_ends_with_the_last_viewer() {
        let hub = hub();
        assert!(hub.watchers().poller.is_none());
        let (mut one, mut two) = (hub.viewer(Pace::Live), hub.viewer(Pace::Hidden));
        one.next().await;
        two.next().await;
        drop(one);
        sleep(Duration::from_millis(100)).await;
        assert!(hub.watchers().poller.is_some());
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
        assert!(hub.watchers().poller.is_some());
    }

    #[tokio::test]
    async fn a_long_round_is_followed_by_a_long_pause() {
        let (began, interval) = (Instant::now(), Duration::from_secs(1));
        let after = |took| next_round(began, began + took, interval) - began;
        assert_eq!(after(interval / 10), interval);
        assert_eq!(after(interval * 3), interval * 6);
    }

    /// The task of a poller may be dropped long after it has counted as ended.
    #[tokio::test]
    async fn a_poller_that_has_ended_does_not_end_the_next_one() {
        let hub = hub();
        let first = Polling::start(&hub).expect("none runs");
        assert!(!first.goes_on(), "nobody watches");
        let second = Polling::start(&hub).expect("none runs");
        drop(first);
        assert!(Polling::start(&hub).is_none(), "the second one runs");
        drop(second);
        assert!(Polling::start(&hub).is_some());
    }

    #[tokio::test]
    async fn a_viewer_that_connects_again_finds_the_answers() {
        let (client, refresh) = (LockClient::memory(), Duration::from_millis(500));
        let hub = Hub::new(LockAdmin::new(&client), refresh, false);
        hub.viewer(Pace::Live).next().await;
        sleep(refresh * 2).await;
        let begun = hub.watchers().started;
        hub.viewer(Pace::Live).next().await;
        assert_eq!((hub.watchers().started, begun), (1, 1));
        assert!(!hub.digest().is_empty());
    }

    #[tokio::test]
    async fn a_view_is_as_old_as_its_answers() {
        let (client, refresh) = (LockClient::memory(), Duration::from_secs(60));
        let hub = Hub::new(LockAdmin::new(&client), refresh, false);
        let first = hub.viewer(Pace::Live).next().await;
        sleep(Duration::from_millis(200)).await;
        let again = hub.viewer(Pace::Live).next().await;
        assert!(Arc::ptr_eq(&first, &again) && again.age() >= 200, "{} ms", again.age());
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

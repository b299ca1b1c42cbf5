//! A claim that waits, and what the store tells about it.

use std::sync::Arc;
use std::time::Duration;

use crate::backoff::between;
use crate::clock::BootInstant;
use crate::safeguard::Safeguard;
use crate::store::layout::{Layout, Mode};
use crate::store::left::Left;
use crate::store::owner::OwnerId;
use crate::store::queueing::{QueueTicket, Queued};
use crate::sync::atomic::{AtomicBool, Ordering};
use crate::sync::{Mutex, MutexGuard, Notify, lock};
use crate::user_code::contained;

/// The longest time between two checks of a key, unless there are very many keys.
pub(super) const CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// The shortest time between two checks of a key because of reports.
const REPORT_INTERVAL: Duration = Duration::from_millis(100);

/// A claim with fewer claims before it is checked more often, because its turn may come soon.
const NEAR: usize = 64;

/// The store's side of one [`Subscription`](super::Subscription).
#[derive(Debug)]
pub struct Listener {
    channel: Arc<str>,
    key: Arc<str>,
    layout: Layout,
    owner: OwnerId,
    /// The mode and the term of the claim.
    terms: (Mode, Duration),
    /// Stores one wake-up, so that a wake-up before the wait is not lost.
    pub(super) woken: Notify,
    pub(super) live: AtomicBool,
    became_live: Notify,
    progress: Mutex<ClaimProgress>,
}

/// What is known about a claim that waits.
#[derive(Debug, Default)]
struct ClaimProgress {
    /// The result and the time of the last check.
    last_check: Option<(Left, BootInstant)>,
    /// The claim's stay in the queue, and when the last request was sent whose answer has confirmed
    /// it.
    stay: Option<(QueueTicket, BootInstant)>,
    /// The number of claims that come first.
    ahead: Option<usize>,
    /// The last message that the resource was given to the claim, and for how long.
    transfer: Option<(QueueTicket, Duration)>,
    /// The ticket of the last such message.
    given: Option<QueueTicket>,
    /// The end of the pause before the next attempt.
    pause_until: Option<BootInstant>,
    watch: Watch,
    /// The time of the last check because of a report.
    reported: Option<BootInstant>,
}

/// Whether the store reports the next change of the key of a claim.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum Watch {
    #[default]
    Off,
    /// It does after the next check.
    Wanted,
    On,
    /// The last request for reports has failed.
    Refused,
}

impl ClaimProgress {
    /// Whether the resource was given to the claim in its current stay in the queue.
    fn has_ended(&self) -> bool {
        self.given.is_some() && self.given == self.stay.map(|(ticket, _)| ticket)
    }

    /// When a claim in a queue has to be checked next.
    fn next_check(&self) -> Option<BootInstant> {
        let ((_, confirmed), ahead) = (self.stay?, self.ahead?);
        let interval = if ahead < NEAR { CHECK_INTERVAL } else { CHECK_INTERVAL * 2 };
        Some(confirmed.after(interval * 3 / 4))
    }
}

impl Listener {
    /// For a claim of `owner` and `term`, on this channel.
    pub(super) fn new(
        channel: Arc<str>,
        (key, layout): (&str, Layout),
        (owner, mode, term): (OwnerId, Mode, Duration),
        live: bool,
    ) -> Self {
        Self {
            channel,
            key: Arc::from(key),
            layout,
            owner,
            terms: (mode, term),
            woken: Notify::new(),
            live: AtomicBool::new(live),
            became_live: Notify::new(),
            progress: Mutex::default(),
        }
    }

    pub fn channel(&self) -> &Arc<str> {
        &self.channel
    }

    /// The layout and the key.
    pub(super) fn lock(&self) -> (Layout, Arc<str>) {
        (self.layout, Arc::clone(&self.key))
    }

    /// The owner of the claim.
    pub fn owner(&self) -> OwnerId {
        self.owner
    }

    /// Resolves as soon as messages arrive.
    pub(super) async fn live(&self) {
        loop {
            let became_live = self.became_live.notified();
            if self.is_live() {
                return;
            }
            became_live.await;
        }
    }

    /// Passes a message on to the claim. Calls wakers, which are user code.
    pub fn receive(&self, message: QueueMessage) {
        match message {
            QueueMessage::Transfer { ticket, term } => {
                let mut progress = self.progress();
                (progress.transfer, progress.given) = (Some((ticket, term)), Some(ticket));
            }
            QueueMessage::Attempt { after } => {
                self.progress().pause_until = Some(BootInstant::now().after(after));
            }
        }
        contained(|| self.woken.notify_one());
    }

    /// The result and the time of the last check.
    pub(super) fn last_check(&self) -> Option<(Left, BootInstant)> {
        self.progress().last_check
    }

    /// When the claim has to be checked next, if it stands in a queue.
    pub(super) fn next_check(&self) -> Option<BootInstant> {
        self.progress().next_check()
    }

    /// Records the answer to an attempt that was sent at `sent`.
    pub fn queued(&self, queued: Queued, sent: BootInstant) {
        let mut progress = self.progress();
        progress.stay = Some((queued.ticket, sent));
        progress.ahead = Some(queued.ahead);
    }

    /// The number of claims that come first, if the claim stands in the queue.
    pub fn ahead(&self) -> Option<usize> {
        self.progress().ahead
    }

    /// Takes the message that the resource was given to the claim. A message about an earlier stay
    /// in the queue does not count: the claim may have lost the resource since.
    pub fn take_transfer(&self) -> Option<LockTransfer> {
        let mut progress = self.progress();
        let (ticket, term) = progress.transfer.take()?;
        let (current, not_before) = progress.stay?;
        let is_current = current == ticket || !Safeguard::TicketsAreCompared.is_on();
        is_current.then_some(LockTransfer { not_before, term })
    }

    /// Requests reports of changes of the key, if the claim is the first one in the queue. Returns
    /// whether a check has to begin them.
    pub(super) fn want_watch(&self) -> bool {
        let mut progress = self.progress();
        let begins = progress.ahead == Some(0) && progress.watch == Watch::Off;
        if begins {
            progress.watch = Watch::Wanted;
        }
        begins
    }

    /// Whether the next check begins the reports of changes, and must not be put off.
    pub(super) fn is_urgent(&self) -> bool {
        let progress = self.progress();
        progress.watch == Watch::Wanted && !progress.has_ended()
    }

    /// Whether the next check requests reports of changes. That also renews the request, because a
    /// store can forget it.
    pub fn wants_watch(&self) -> bool {
        let progress = self.progress();
        progress.watch != Watch::Off && !progress.has_ended()
    }

    /// Whether the store reports the next change of the key.
    pub(super) fn is_watched(&self) -> bool {
        self.progress().watch == Watch::On
    }

    /// Records that the store is asked to report the next change of the key, or has refused it.
    pub fn set_watched(&self, is_watched: bool) {
        self.progress().watch = if is_watched { Watch::On } else { Watch::Refused };
    }

    /// Records that the store reports nothing any more.
    pub(super) fn end_watch(&self) {
        self.progress().watch = Watch::Off;
    }

    /// Records that the key has changed. Returns when a check is necessary.
    pub(super) fn changed(&self, now: BootInstant) -> Option<BootInstant> {
        let mut progress = self.progress();
        // The message that the resource was given to the claim has come before.
        if progress.watch != Watch::On || progress.has_ended() {
            return None;
        }
        progress.watch = Watch::Wanted;
        let at = progress.reported.map_or(now, |last| now.max(last.after(REPORT_INTERVAL)));
        progress.reported = Some(at);
        Some(at)
    }

    /// Takes the end of the pause before the next attempt, if the store has requested one.
    pub fn take_pause(&self) -> Option<BootInstant> {
        self.progress().pause_until.take()
    }

    pub fn key(&self) -> &str {
        &self.key
    }

    pub fn layout(&self) -> Layout {
        self.layout
    }

    /// The mode and the term of the claim.
    pub fn terms(&self) -> (Mode, Duration) {
        self.terms
    }

    /// The ticket of the claim, if it stands in the queue.
    pub fn ticket(&self) -> Option<QueueTicket> {
        self.progress().stay.map(|(ticket, _)| ticket)
    }

    /// Records the answer to a check of a claim with this ticket, which was sent at `sent`.
    pub(super) fn checked(
        &self,
        ticket: Option<QueueTicket>,
        (left, ahead): (Left, Option<usize>),
        sent: BootInstant,
    ) {
        let mut progress = self.progress();
        progress.last_check = Some((left, sent));
        if let (Some(ahead), Some((current, confirmed))) = (ahead, &mut progress.stay)
            && Some(*current) == ticket
        {
            *confirmed = sent.max(*confirmed);
            progress.ahead = Some(ahead);
        }
    }

    /// Whether messages about releases arrive.
    pub fn is_live(&self) -> bool {
        self.live.load(Ordering::Acquire)
    }

    pub(super) fn set_live(&self) {
        self.live.store(true, Ordering::Release);
        contained(|| self.became_live.notify_waiters());
    }

    fn progress(&self) -> MutexGuard<'_, ClaimProgress> {
        lock(&self.progress)
    }
}

/// The result of a check.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CheckResult {
    Free,
    Busy(Left),
    /// Busy, and the claim stands in the queue behind so many others.
    Queued(Left, usize),
    /// The check failed.
    Failed,
}

/// A message to a client about one of its claims.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum QueueMessage {
    /// The resource was given to the claim with this ticket, for this time.
    Transfer { ticket: QueueTicket, term: Duration },
    /// The claim has to make an attempt after a pause.
    Attempt { after: Duration },
}

/// A resource that was given to a claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LockTransfer {
    /// An instant before the transfer.
    pub not_before: BootInstant,
    /// The time for which the resource was given to the claim.
    pub term: Duration,
}

/// The time of the next check of a key that was checked just now.
pub(super) fn next_check() -> BootInstant {
    BootInstant::now().after(between(CHECK_INTERVAL * 3 / 4, CHECK_INTERVAL))
}

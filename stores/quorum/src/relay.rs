//! Forwarding the wake-ups of the stores of a quorum to a waiter.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;

use tokio::time::{Instant, sleep_until};

use super::reports::{GATHER, ReportEffect, Reports};
use super::tally::majority;
use lock_core::clock::BootInstant;
use lock_core::store::subscriptions::{Listener, Subscription, Subscriptions};

/// Subscribes at all stores for one waiter.
pub(super) struct WakeUpRelay {
    subscriptions: Arc<Subscriptions>,
    listener: Arc<Listener>,
    stores: Vec<Subscription>,
    /// The number of releases by other clients that each store has reported so far.
    releases: Vec<u64>,
    reports: Reports,
    /// When another wake-up follows.
    follows: Option<Instant>,
    has_been_live: bool,
}

impl WakeUpRelay {
    pub(super) fn new(
        subscriptions: Arc<Subscriptions>,
        listener: Arc<Listener>,
        stores: Vec<Subscription>,
    ) -> Self {
        let releases = stores.iter().map(Subscription::releases).collect();
        let (reports, follows) = (Reports::new(stores.len()), None);
        let has_been_live = false;
        Self { subscriptions, listener, stores, releases, reports, follows, has_been_live }
    }

    /// Forwards wake-ups until it is dropped.
    pub(super) async fn run(mut self) {
        loop {
            self.set_live();
            for number in self.next().await {
                match self.reports.add(number, BootInstant::now()) {
                    ReportEffect::None => {}
                    ReportEffect::Wake => {
                        self.follows = None;
                        self.wake();
                    }
                    ReportEffect::WakeSoon => self.follows = Some(Instant::now() + GATHER),
                }
            }
            if self.follows.take_if(|follows| *follows <= Instant::now()).is_some() {
                self.wake();
            }
        }
    }

    /// The stores that have reported something. None if a subscription has become live, or a wake-up has to follow.
    async fn next(&self) -> Vec<usize> {
        let mut woken: Vec<_> = self.stores.iter().map(|store| Box::pin(store.woken())).collect();
        let dead = self.stores.iter().filter(|store| !store.is_live());
        let mut live: Vec<_> = dead.map(|store| Box::pin(store.live())).collect();
        let follows = self.follows;
        let mut timer = pin!(async move {
            match follows {
                Some(follows) => sleep_until(follows).await,
                None => std::future::pending().await,
            }
        });
        poll_fn(|cx| {
            let mut reported = Vec::new();
            for (number, woken) in woken.iter_mut().enumerate() {
                if woken.as_mut().poll(cx).is_ready() {
                    reported.push(number);
                }
            }
            let is_live = live.iter_mut().any(|live| live.as_mut().poll(cx).is_ready());
            let is_due = timer.as_mut().poll(cx).is_ready();
            if reported.is_empty() && !is_live && !is_due {
                return Poll::Pending;
            }
            Poll::Ready(reported)
        })
        .await
    }

    /// Messages arrive about every release if a majority of the subscriptions is live. A waiter makes an attempt whenever
    /// that begins or ends.
    fn set_live(&mut self) {
        let live = self.stores.iter().filter(|store| store.is_live()).count();
        let is_live = live >= majority(self.stores.len());
        if is_live == self.listener.is_live() {
            return;
        }
        self.listener.relay_live(is_live);
        if self.has_been_live {
            self.wake();
        }
        self.has_been_live = true;
    }

    fn wake(&mut self) {
        let releases: Vec<u64> = self.stores.iter().map(Subscription::releases).collect();
        let by_another = releases.iter().zip(&self.releases).any(|(now, before)| now > before);
        self.releases = releases;
        self.subscriptions.wake(self.listener.channel(), by_another);
    }
}

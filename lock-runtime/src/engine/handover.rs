//! Passing a lock on from its holder to the next task of this process, without the store.
//!
//! The lease stays what it is in the store, and the watchdog goes on renewing it; what begins anew
//! is the hold. On its way it is an [`Inherited`], which is offered to those in the queue, and which
//! wherever it is dropped is offered again, or released when nobody is left. So whoever gives up
//! between the offer and the next hold passes the lock on.
//!
//! One who asks for the same as the holder before takes the lease as it is. One who asks for
//! another term renews it to that term first, if that only makes the key last longer; a key that
//! would last longer than its holder has asked for is released and acquired anew, and so is one in
//! another format.
//!
//! Keeps the promises that nothing leaks, and that a guard touches its own hold only: each grant is
//! a hold of its own, and the guards of the one before have ended with it.

use std::sync::Arc;

use super::Engine;
use super::gate::{News, Pass, Spot};
use super::lease::{Hold, Lease, Terms};
use crate::clock::BootInstant;
use crate::format::WireFormat;
use crate::protection::Protection;
use crate::store::{Lane, Renewal, Renewed};

/// A lease between two holders.
pub(crate) struct Inherited {
    engine: Arc<Engine>,
    lease: Arc<Lease>,
    /// `None` once somebody else answers for the lease.
    pass: Option<Pass>,
    /// Since when the store has been asked to renew it, for one or several who have not got it.
    asked: Option<BootInstant>,
}

impl std::fmt::Debug for Inherited {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Inherited").field("key", &self.lease.key()).finish_non_exhaustive()
    }
}

/// What became of a lease that was handed over.
#[derive(Debug)]
pub(crate) enum Accepted {
    /// It is held again.
    Held(Hold),
    /// It was not to be had as it is, and its key was freed or is being freed.
    Freed(Option<Pass>),
}

impl Inherited {
    pub(crate) fn new(engine: &Arc<Engine>, lease: &Arc<Lease>, pass: Pass) -> Self {
        let (engine, lease) = (Arc::clone(engine), Arc::clone(lease));
        Self { engine, lease, pass: Some(pass), asked: None }
    }

    pub(crate) fn engine(&self) -> Arc<Engine> {
        Arc::clone(&self.engine)
    }

    /// See [`Pass::spot`]; `None` once somebody else answers for the lease.
    pub(crate) fn spot(&self, number: u64) -> Option<Spot> {
        self.pass.as_ref().map(|pass| pass.spot(number))
    }

    /// Since when the store has been asked for it, or will have been.
    pub(crate) fn asked(&self) -> BootInstant {
        self.asked.unwrap_or_else(BootInstant::now)
    }

    /// The number of its owner's turn.
    pub(crate) fn turn(&self) -> u64 {
        self.pass.as_ref().map_or(0, Pass::turn)
    }

    /// See [`Pass::comes_in`].
    pub(crate) fn comes_in(&mut self, turn: u64) {
        if let Some(pass) = &mut self.pass {
            pass.comes_in(turn);
        }
    }

    /// Offers it to those in the queue; gives the pass back if nobody is there, or nobody is awake.
    pub(crate) fn pass_on(mut self) -> Option<Pass> {
        let pass = self.pass.take()?;
        let refused = pass.offer(|pass| {
            self.pass = Some(pass);
            self
        });
        refused.err().and_then(|mut inherited| inherited.pass.take())
    }

    /// Nobody comes for it: frees its key in the background, and offers the pass alone.
    pub(crate) fn give_up(mut self) {
        let pass = self.pass.take();
        if self.lease.close() {
            self.engine.free_in_background(&self.lease, pass, BootInstant::PAST);
        }
    }

    /// Makes it the hold of one who asks for `terms` in `format`; back if it is another than that.
    pub(crate) fn take(mut self, format: WireFormat, terms: &Terms) -> Result<Hold, Self> {
        if self.lease.format() != format {
            return Err(self);
        }
        let spot = self.pass.as_ref().filter(|_| self.asked.is_some()).map(|pass| pass.spot(0));
        let Some((hold, replan)) = self.lease.take_over(terms, &mut self.pass) else {
            return Err(self);
        };
        if let Some(spot) = spot {
            spot.granted();
        }
        if replan {
            self.engine.keeper().replan(&self.lease);
        }
        Ok(hold)
    }

    /// Renews it for one who asks for `terms` in `format`, or frees the key.
    ///
    /// Dropped half-way, it goes to the next.
    pub(crate) async fn renew(mut self, format: WireFormat, terms: &Terms) -> Accepted {
        if self.lease.format() == format
            && let Some(hold) = self.renew_for(terms).await
        {
            self.engine.keeper().replan(&self.lease);
            return Accepted::Held(hold);
        }
        let pass = self.pass.take();
        let lease = Arc::clone(&self.lease);
        if lease.close() {
            let mut pass = self.engine.free(&lease, pass).await.1;
            pass.iter_mut().for_each(Pass::owe);
            return Accepted::Freed(pass);
        }
        Accepted::Freed(pass)
    }

    /// One round trip, if it comes to that.
    async fn renew_for(&mut self, terms: &Terms) -> Option<Hold> {
        let sent = BootInstant::now();
        let asked = self.lease.about_to_renew_for(terms, sent)?;
        self.asked.get_or_insert(sent);
        if let Some(pass) = &self.pass {
            pass.tell(&News::Asking(sent));
        }
        let renewal = [Renewal { key: self.lease.key(), token: self.lease.token(), lease: asked }];
        let answer = self.engine.store().renew(&renewal, Lane::Caller).await.into_iter().next();
        match answer {
            Some(Ok(Renewed::Extended)) => {
                let spot = self.spot(0);
                let hold = self.lease.renewed_for(terms, sent, &mut self.pass)?;
                if let Some(spot) = spot {
                    spot.granted();
                }
                Some(hold)
            }
            _ => None,
        }
    }
}

impl Drop for Inherited {
    fn drop(&mut self) {
        let Some(pass) = self.pass.take() else { return };
        if !Protection::PassOn.is_on() {
            return;
        }
        let mut passed_on = Self::new(&self.engine, &self.lease, pass);
        passed_on.asked = self.asked;
        let Some(pass) = passed_on.pass_on() else { return };
        if self.lease.close() {
            self.engine.free_in_background(&self.lease, Some(pass), BootInstant::PAST);
        }
    }
}

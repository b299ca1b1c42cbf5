//! The readers of this process, which share one hold of a read-write lock.
//!
//! The readers of a key have a queue of their own. The first one acquires the lock from the store. When
//! its caller has it, the hold is shared, and all readers in the queue are woken and join it. So do the
//! readers that come later, without a request, unless they ask for other terms. The permit of the readers
//! stays with the hold, which is handed off when its last holder leaves while other readers wait.
//!
//! Readers of this process must not keep writers of other processes out. Joining therefore has the
//! limits of hand-offs: see [`limit`](crate::engine::fairness::limit). At the limit, the hold gives the
//! permit back, and the next reader stands in the queue of the store, behind the writers.

use std::sync::Arc;

use super::call::AcquireRequest;
use crate::engine::core::Engine;
use crate::engine::handoff::{Hold, Permit};
use crate::engine::lease::Joined;
use crate::store::contract::{Mode, is_same};

/// The result of a reader that looks for the hold of others.
pub(super) enum Readers {
    Joined(Hold),
    /// The reader needs a hold of its own.
    Differ,
    /// There is no hold to join.
    None,
}

impl Engine {
    /// Joins the hold of other readers of this process, without waiting. `has_waited` says whether the
    /// reader has stood in the queue of the readers.
    pub(super) fn join_readers(
        self: &Arc<Self>,
        request: &AcquireRequest,
        has_waited: bool,
    ) -> Readers {
        if request.mode != Mode::Read {
            return Readers::None;
        }
        let Some(hold) = self.reads().of(&request.key) else { return Readers::None };
        if !is_same(hold.lease().store(), &request.store) {
            return Readers::None;
        }
        let limit = &self.config().handoff_limit;
        match hold.join_as_reader((&request.terms, limit), has_waited) {
            Joined::Yes { counts } => {
                if counts {
                    self.background().count_waiters(hold.lease());
                }
                Readers::Joined(hold)
            }
            Joined::Differs => Readers::Differ,
            Joined::Full => {
                self.share_no_longer(&hold);
                Readers::None
            }
            Joined::Over => {
                self.reads().forget(&hold);
                Readers::None
            }
        }
    }

    /// Lets other readers of this process join the hold of a reader that has it now.
    pub(in crate::engine) fn share_with_readers(self: &Arc<Self>, hold: &Hold) {
        if hold.lease().mode() != Mode::Read {
            return;
        }
        if self.reads().share(hold, self.queues().waiting_readers(hold.key())) {
            self.queues().wake_readers(hold.key());
        }
    }

    /// Lets no more readers join a hold. The readers that wait acquire a hold of their own.
    pub(in crate::engine) fn share_no_longer(self: &Arc<Self>, hold: &Hold) {
        self.reads().forget(hold);
        // A release of the hold has to be driven all the same, so the hold gets the permit of another
        // queue.
        if hold.has_permit(Permit::is_of_readers)
            && let Some(alone) = self.queues().enter_alone(hold.key())
        {
            alone.granted();
            drop(hold.replace_permit(alone));
        }
    }
}

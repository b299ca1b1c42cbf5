//! What the lock is there for: it is written to, and refuses the writes that a fence tells it are late.

use crate::assumptions::Protections;
use crate::contender::Poll;

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Resource {
    /// The highest fencing token it has seen.
    fencing: Option<u8>,
    /// The latest grant under which something was written. Nobody in the model can see it.
    grant: u8,
    /// A write was accepted after one of a later grant.
    pub(crate) stale: bool,
    /// A write was refused.
    pub(crate) refused: bool,
}

impl Resource {
    /// The write of one poll, at whatever time it arrives.
    pub(crate) fn write(&mut self, poll: Poll, held: &Protections) {
        if held.fence && poll.fencing < self.fencing {
            self.refused = true;
            return;
        }
        self.fencing = poll.fencing;
        self.stale |= poll.grant < self.grant;
        self.grant = self.grant.max(poll.grant);
    }
}

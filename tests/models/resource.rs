//! The guarded resource. Bodies write to it, and it refuses late writes by their fencing tokens.

use crate::acquisition::Poll;
use crate::assumptions::Safeguards;

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct ModelResource {
    /// The highest fencing token so far.
    fencing: Option<u8>,
    /// The latest grant under which a write was accepted. Not visible to the protocol.
    grant: u8,
    /// Whether a write was accepted after a write of a later grant.
    pub(crate) stale: bool,
    /// Whether a write was refused.
    pub(crate) refused: bool,
}

impl ModelResource {
    /// The write of one poll arrives, at any time.
    pub(crate) fn write(&mut self, poll: Poll, safeguards: &Safeguards) {
        if safeguards.fence && poll.fencing < self.fencing {
            self.refused = true;
            return;
        }
        self.fencing = poll.fencing;
        self.stale |= poll.grant < self.grant;
        self.grant = self.grant.max(poll.grant);
    }
}

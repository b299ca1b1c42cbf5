//! The server: one key with an expiry, and the atomic scripts.
//!
//! Models `SET … NX PX`, `acquire.lua`, `renew.lua`, `release.lua` and the script that issues
//! fencing tokens. Times are remaining times in ticks of the clock of the server. There is no
//! absolute time, so the number of states is finite without a bound on time.

use crate::assumptions::{Assumptions, Safeguards};

/// The lease of a lock, in ticks.
pub(crate) const LEASE: u8 = 3;
/// The number of ticks from the deadline of the holder to the expiry on the server.
pub(crate) const MARGIN: u8 = 1;
/// The length to which a fixed lease is extended, in models with extensions.
pub(crate) const EXTENDED: u8 = 5;

/// The owner of a key.
pub(crate) type Token = u8;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct ModelKey {
    pub(crate) owner: Token,
    /// The number of ticks until the key expires; never zero.
    pub(crate) left: u8,
    /// The number of ticks that the clock of the server may still gain during this lease.
    gain: u8,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct ModelServer {
    pub(crate) key: Option<ModelKey>,
    /// The last fencing token, stored beside the key.
    fencing: u8,
    /// The clock for fencing tokens. It advances with each token.
    instant: u8,
    /// The number of grants. Not visible to the protocol.
    pub(crate) grants: u8,
    wiped: bool,
    jumped: bool,
}

impl ModelServer {
    fn put(&mut self, owner: Token, left: u8, assumed: &Assumptions) {
        let gain = if assumed.drift_within_margin { MARGIN } else { MARGIN + 1 };
        // If the remaining time does not change, no new lease begins.
        let same = self.key.filter(|key| key.owner == owner && key.left == left);
        self.key = same.or(Some(ModelKey { owner, left, gain }));
    }

    /// Returns whether the key is granted. The first attempt of an acquisition is a `SET … NX`,
    /// which never grants an existing key. Each later attempt is `acquire.lua`.
    pub(crate) fn acquire(
        &mut self,
        token: Token,
        first: bool,
        (safeguards, assumed): (&Safeguards, &Assumptions),
    ) -> bool {
        let left = match self.key {
            None => LEASE,
            Some(key) if key.owner == token && !first => {
                if safeguards.retry_never_shortens {
                    key.left.max(LEASE)
                } else {
                    LEASE
                }
            }
            Some(_) => return false,
        };
        self.put(token, left, assumed);
        true
    }

    /// Returns whether the key is extended.
    pub(crate) fn renew(
        &mut self,
        token: Token,
        term: u8,
        (safeguards, assumed): (&Safeguards, &Assumptions),
    ) -> bool {
        let (owner, left) = match self.key {
            None if safeguards.renewal_never_recreates => return false,
            None => (token, term),
            Some(key) if key.owner != token && safeguards.renewal_compares => return false,
            Some(key) => (key.owner, key.left.max(term)),
        };
        self.put(owner, left, assumed);
        true
    }

    /// Returns whether a key was deleted.
    pub(crate) fn release(&mut self, token: Token, safeguards: &Safeguards) -> bool {
        let is_owner =
            self.key.is_some_and(|key| key.owner == token || !safeguards.release_compares);
        if is_owner {
            self.key = None;
        }
        is_owner
    }

    /// Returns a new fencing token, if the key has this owner.
    pub(crate) fn fencing_token(&mut self, token: Token, safeguards: &Safeguards) -> Option<u8> {
        self.key.filter(|key| key.owner == token)?;
        self.instant += 1;
        let clock = if safeguards.token_from_clock { self.instant } else { 0 };
        self.fencing = clock.max(self.fencing + 1);
        Some(self.fencing)
    }

    pub(crate) fn tick(&mut self) {
        self.key =
            self.key.and_then(|key| (key.left > 1).then(|| ModelKey { left: key.left - 1, ..key }));
    }

    /// Advances only the clock of the server.
    pub(crate) fn gain(&mut self) -> Option<()> {
        let key = self.key.as_mut().filter(|key| key.gain > 0)?;
        key.gain -= 1;
        self.tick();
        Some(())
    }

    /// The server loses its data, but keeps its clock.
    pub(crate) fn wipe(&mut self) -> Option<()> {
        let first = !std::mem::replace(&mut self.wiped, true);
        (self.key, self.fencing) = (None, 0);
        first.then_some(())
    }

    /// The clock is set forward by a lease or more.
    pub(crate) fn jump_forward(&mut self) -> Option<()> {
        let first = !std::mem::replace(&mut self.jumped, true);
        self.key = None;
        self.instant += 1;
        first.then_some(())
    }

    /// The clock is set back by a lease, and to before the first fencing token.
    pub(crate) fn jump_back(&mut self) -> Option<()> {
        let first = !std::mem::replace(&mut self.jumped, true);
        self.instant = 0;
        self.key = self.key.map(|key| ModelKey { left: key.left + LEASE, ..key });
        first.then_some(())
    }
}

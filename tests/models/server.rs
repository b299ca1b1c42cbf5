//! The server: one key, its expiry, and the scripts, each of them atomic.
//!
//! Mirrors `SET … NX PX`, `acquire.lua`, `renew.lua`, `release.lua` and the script that makes a
//! fencing token. Times are what is left of them, in ticks of the server's clock, so that they
//! start from nowhere and time needs no bound.

use crate::assumptions::{Assumptions, Protections};

/// Of a lock, in ticks.
pub(crate) const LEASE: u8 = 3;
/// By how much sooner than the server its holder believes it to be over.
pub(crate) const MARGIN: u8 = 1;
/// What a fixed lease is extended to, where that is modelled.
pub(crate) const EXTENDED: u8 = 5;

/// Who owns a key.
pub(crate) type Token = u8;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Key {
    pub(crate) owner: Token,
    /// Ticks until it expires; never zero.
    pub(crate) left: u8,
    /// Ticks by which the server's clock may still gain on the holder's during this lease.
    gain: u8,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Server {
    pub(crate) key: Option<Key>,
    /// The last fencing token, stored beside the key.
    fencing: u8,
    /// The instant at which the next fencing token is made: no two are made at one.
    instant: u8,
    /// How often the key was granted to somebody new. Nobody in the model can see it.
    pub(crate) grants: u8,
    wiped: bool,
    jumped: bool,
}

impl Server {
    fn put(&mut self, owner: Token, left: u8, assumed: &Assumptions) {
        let gain = if assumed.drift_within_margin { MARGIN } else { MARGIN + 1 };
        // What gives no more time begins no new lease.
        let same = self.key.filter(|key| key.owner == owner && key.left == left);
        self.key = same.or(Some(Key { owner, left, gain }));
    }

    /// Whether it is granted. The first try of an acquisition is a `SET … NX`, which grants nothing
    /// that is there; each later one is `acquire.lua`.
    pub(crate) fn acquire(
        &mut self,
        token: Token,
        first: bool,
        (held, assumed): (&Protections, &Assumptions),
    ) -> bool {
        let left = match self.key {
            None => LEASE,
            Some(key) if key.owner == token && !first => {
                if held.retry_never_shortens {
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

    /// Whether it is extended.
    pub(crate) fn renew(
        &mut self,
        token: Token,
        term: u8,
        (held, assumed): (&Protections, &Assumptions),
    ) -> bool {
        let (owner, left) = match self.key {
            None if held.renewal_never_recreates => return false,
            None => (token, term),
            Some(key) if key.owner != token && held.renewal_compares => return false,
            Some(key) => (key.owner, key.left.max(term)),
        };
        self.put(owner, left, assumed);
        true
    }

    /// Whether there was something to free.
    pub(crate) fn release(&mut self, token: Token, held: &Protections) -> bool {
        let ours = self.key.is_some_and(|key| key.owner == token || !held.release_compares);
        if ours {
            self.key = None;
        }
        ours
    }

    /// A new fencing token, if the key is its owner's.
    pub(crate) fn fencing_token(&mut self, token: Token, held: &Protections) -> Option<u8> {
        self.key.filter(|key| key.owner == token)?;
        self.instant += 1;
        let clock = if held.token_from_clock { self.instant } else { 0 };
        self.fencing = clock.max(self.fencing + 1);
        Some(self.fencing)
    }

    pub(crate) fn tick(&mut self) {
        self.key =
            self.key.and_then(|key| (key.left > 1).then(|| Key { left: key.left - 1, ..key }));
    }

    /// A tick of the server's clock alone.
    pub(crate) fn gain(&mut self) -> Option<()> {
        let key = self.key.as_mut().filter(|key| key.gain > 0)?;
        key.gain -= 1;
        self.tick();
        Some(())
    }

    /// Everything is forgotten but the time.
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
        self.key = self.key.map(|key| Key { left: key.left + LEASE, ..key });
        first.then_some(())
    }
}

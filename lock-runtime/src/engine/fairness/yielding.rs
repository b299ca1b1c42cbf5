//! Yielding a key to other processes, with stores that have no queues of processes.
//!
//! If a release has woken other processes, this process sends no request for the key until each of
//! them has had the lock. It counts the releases of the others as they arrive. It waits only a moment
//! for each release, so that the key does not stay idle if a woken process does not acquire it. After
//! such a pause in vain (the other process may be far away or suspended), the next pause is longer.
//! After three pauses in vain, this process stops yielding the key for a second.
//!
//! With stores that have queues, the same memory only says whether others were waiting.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use crate::clock::BootInstant;

/// The longest wait for each release, by the number of pauses in vain.
const PAUSES: [Duration; 3] =
    [Duration::from_millis(2), Duration::from_millis(10), Duration::from_millis(50)];

/// The time after which the pauses in vain are forgotten.
const MEMORY: Duration = Duration::from_secs(1);

/// The number of keys at which old ones are first removed.
const FIRST_PURGE: usize = 64;

/// The keys that this process has to yield.
#[derive(Debug, Default)]
pub(crate) struct Yields {
    keys: HashMap<Arc<str>, WokenProcesses>,
}

/// The processes that the last release of a key has woken.
#[derive(Debug)]
struct WokenProcesses {
    processes: usize,
    released: BootInstant,
    /// The number of pauses in vain.
    in_vain: usize,
    /// When that number last changed.
    since: BootInstant,
}

/// The wait before the next request for a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Yield {
    /// The number of releases by other processes to wait for.
    pub(crate) releases: usize,
    /// The longest wait for each of them.
    pub(crate) pause: Duration,
}

impl Yields {
    pub(crate) fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }

    /// A release of `key` has woken this many other processes.
    pub(crate) fn released(&mut self, key: &Arc<str>, processes: usize) {
        if processes == 0 && self.keys.is_empty() {
            return;
        }
        self.released_at(key, processes, BootInstant::now());
    }

    fn released_at(&mut self, key: &Arc<str>, processes: usize, now: BootInstant) {
        if processes == 0 {
            self.keys.remove(key);
            return;
        }
        if let Some(woken) = self.keys.get_mut(key) {
            (woken.processes, woken.released) = (processes, now);
            return;
        }
        if self.keys.len() >= FIRST_PURGE && self.keys.len().is_power_of_two() {
            self.keys.retain(|_, woken| now.since(woken.released) < MEMORY);
        }
        let woken = WokenProcesses { processes, released: now, in_vain: 0, since: now };
        self.keys.insert(Arc::clone(key), woken);
    }

    /// Whether the last release of `key`, not long ago, has left other processes waiting.
    pub(crate) fn is_contended(&self, key: &str, now: BootInstant) -> bool {
        self.keys.get(key).is_some_and(|woken| now.since(woken.released) < MEMORY)
    }

    /// The wait that is due now; `None` if the other processes have had enough time.
    pub(crate) fn due(&mut self, key: &str, now: BootInstant) -> Option<Yield> {
        let woken = self.keys.get_mut(key)?;
        if now.since(woken.since) >= MEMORY {
            (woken.in_vain, woken.since) = (0, now);
        }
        let pause = *PAUSES.get(woken.in_vain)?;
        let elapsed = now.since(woken.released);
        (elapsed < pause).then_some(Yield { releases: woken.processes, pause })
    }

    /// A pause has ended. `taken`: another process took the key.
    pub(crate) fn yielded(&mut self, key: &str, taken: bool, now: BootInstant) {
        if let Some(woken) = self.keys.get_mut(key) {
            woken.in_vain += usize::from(!taken);
            woken.since = now;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key() -> Arc<str> {
        Arc::from("k")
    }

    #[test]
    fn a_process_that_woke_others_yields_to_them() {
        let (mut yields, now) = (Yields::default(), BootInstant::now());
        yields.released_at(&key(), 3, now);
        assert_eq!(yields.due("k", now), Some(Yield { releases: 3, pause: PAUSES[0] }));
        assert_eq!(yields.due("k", now.after(PAUSES[0])), None, "the others have had enough time");
        assert_eq!(yields.due("other", now), None);
        yields.released_at(&key(), 0, now);
        assert_eq!(yields.due("k", now), None);
    }

    #[test]
    fn pauses_in_vain_grow_and_then_stop_for_a_while() {
        let (mut yields, now) = (Yields::default(), BootInstant::now());
        yields.released_at(&key(), 1, now);
        for pause in PAUSES {
            assert_eq!(yields.due("k", now).map(|due| due.pause), Some(pause));
            yields.yielded("k", false, now);
        }
        assert_eq!(yields.due("k", now), None, "no other process comes");
        let later = now.after(MEMORY);
        yields.released_at(&key(), 1, later);
        assert_eq!(yields.due("k", later).map(|due| due.pause), Some(PAUSES[0]));
    }

    #[test]
    fn the_length_of_a_successful_pause_is_remembered() {
        let (mut yields, mut now) = (Yields::default(), BootInstant::now());
        yields.released_at(&key(), 1, now);
        yields.yielded("k", false, now);
        for _ in 0..3 {
            now = now.after(MEMORY / 2);
            yields.yielded("k", true, now);
        }
        yields.released_at(&key(), 1, now);
        assert_eq!(yields.due("k", now).map(|due| due.pause), Some(PAUSES[1]));
    }

    #[test]
    fn old_keys_are_removed() {
        let (mut yields, mut now) = (Yields::default(), BootInstant::now());
        for n in 0..10_000 {
            now = now.after(MEMORY / 100);
            yields.released_at(&Arc::from(format!("k{n}")), 1, now);
        }
        assert!(yields.keys.len() <= FIRST_PURGE * 4, "{}", yields.keys.len());
    }
}

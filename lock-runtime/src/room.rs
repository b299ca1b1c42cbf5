//! Maps that give memory back.
//!
//! A map keeps the room that it has once needed: after a million locks that were held together that
//! is some hundred megabytes, for as long as the process lives.

use std::collections::HashMap;
use std::hash::{BuildHasher, Hash};

/// The room that a map keeps however few there are.
pub(crate) const KEPT: usize = 1024;

/// How many there have been in a map since it was last made smaller. (What a map says of its own
/// capacity leaves out what its removals have left unusable.)
#[derive(Debug, Default)]
pub(crate) struct Peak(usize);

impl Peak {
    /// Something was removed from `map`, in which there were `before`: makes it smaller if it is
    /// nearly empty. A constant cost on average, because as much is removed before it is done again.
    pub(crate) fn give_back<K: Eq + Hash, V, S: BuildHasher>(
        &mut self,
        map: &mut HashMap<K, V, S>,
        before: usize,
    ) {
        self.0 = self.0.max(before);
        if self.0 > KEPT.max(map.len() * 8) {
            map.shrink_to(KEPT.max(map.len() * 2));
            self.0 = map.len();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn remove(map: &mut HashMap<usize, usize>, peak: &mut Peak, numbers: std::ops::Range<usize>) {
        for n in numbers {
            let before = map.len();
            map.remove(&n);
            peak.give_back(map, before);
        }
    }

    #[test]
    fn a_map_that_was_large_is_made_small_again() {
        let (all, mut peak) = (100 * KEPT, Peak::default());
        for _ in 0..2 {
            let mut map: HashMap<usize, usize> = (0..all).map(|n| (n, n)).collect();
            remove(&mut map, &mut peak, 0..all - 1);
            // Without what was removed, this is all the room that there is.
            map.insert(all, all);
            assert!(map.capacity() <= 4 * KEPT, "{}", map.capacity());
        }
    }

    #[test]
    fn it_is_made_smaller_a_few_times_only() {
        let (all, mut peak) = (100 * KEPT, Peak::default());
        let mut map: HashMap<usize, usize> = (0..all).map(|n| (n, n)).collect();
        let mut peaks = vec![all];
        for n in 0..all {
            remove(&mut map, &mut peak, n..n + 1);
            peaks.push(peak.0);
        }
        peaks.dedup();
        assert!(peaks.len() <= 5, "{peaks:?}");
    }
}

//! Shrinking of maps.
//!
//! A `HashMap` never shrinks by itself. If a million locks were held at the same time, it would
//! keep some hundred megabytes for as long as the process runs.

use std::collections::HashMap;
use std::hash::{BuildHasher, Hash};

/// The capacity that a map always keeps.
pub const KEPT: usize = 1024;

/// The largest number of entries since the map was last shrunk. (`HashMap::capacity` does not count
/// the slots that removals have made unusable.)
#[derive(Debug, Default)]
pub struct Peak(usize);

impl Peak {
    /// Shrinks `map` if it is nearly empty. Call it after the removal of entries from a map that
    /// had `before` entries. The amortized cost is constant: before the map shrinks again, more
    /// entries have to be removed than a shrink moves.
    pub fn give_back<K: Eq + Hash, V, S: BuildHasher>(
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
    fn a_map_that_was_large_is_shrunk() {
        let (all, mut peak) = (100 * KEPT, Peak::default());
        for _ in 0..2 {
            let mut map: HashMap<usize, usize> = (0..all).map(|n| (n, n)).collect();
            remove(&mut map, &mut peak, 0..all - 1);
            // An insertion makes `capacity` count all slots again.
            map.insert(all, all);
            assert!(map.capacity() <= 4 * KEPT, "{}", map.capacity());
        }
    }

    #[test]
    fn a_map_is_shrunk_only_a_few_times() {
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

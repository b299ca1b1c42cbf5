//! Maps that give memory back.
//!
//! A map keeps the room that it has once needed: after a million locks that were held together that
//! is some hundred megabytes, for as long as the process lives.

use std::collections::HashMap;
use std::hash::Hash;

/// The room that a map keeps however few there are.
pub(crate) const KEPT: usize = 1024;

/// Something was removed from `map`: makes it smaller if it is nearly empty. A constant cost on
/// average, because as much is removed before this is done again.
pub(crate) fn give_back<K: Eq + Hash, V>(map: &mut HashMap<K, V>) {
    if map.capacity() > KEPT.max(map.len() * 8) {
        map.shrink_to(KEPT.max(map.len() * 2));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_map_that_was_large_is_made_small_again() {
        let mut map: HashMap<usize, usize> = (0..100 * KEPT).map(|n| (n, n)).collect();
        for n in 0..100 * KEPT {
            assert_eq!(map.remove(&n), Some(n));
            give_back(&mut map);
        }
        assert!(map.capacity() <= 4 * KEPT, "{}", map.capacity());
    }

    #[test]
    fn a_map_that_is_in_use_keeps_its_room() {
        let mut map: HashMap<usize, usize> = (0..100 * KEPT).map(|n| (n, n)).collect();
        let room = map.capacity();
        for n in 0..50 * KEPT {
            map.remove(&n);
            give_back(&mut map);
        }
        assert_eq!(map.capacity(), room);
    }
}

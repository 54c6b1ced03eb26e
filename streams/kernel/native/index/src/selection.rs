//! Of changes those that are of some blocks: what a past answer about one prompt needs of a
//! context's rows. `streams/kernel/selection.py` is its specification.

use hashbrown::HashSet;

use crate::changes::{CHANGE_BYTES, clears};

/// Blocks by their prefix hashes, entries by their keys.
pub struct Selection {
    prefixes: HashSet<u64>,
    keys: HashSet<u64>,
}

impl Selection {
    /// Both as (n,) u64 LE.
    pub fn new(prefixes: &[u8], keys: &[u8]) -> Self {
        Self { prefixes: numbers(prefixes), keys: numbers(keys) }
    }

    /// The changes that are of one of them, and all that clear; in order. None where the length is
    /// no multiple of a change's.
    pub fn of(&self, changes: &[u8]) -> Option<Vec<u8>> {
        let (changes, rest) = changes.as_chunks::<CHANGE_BYTES>();
        if !rest.is_empty() {
            return None;
        }
        let mut selected = Vec::new();
        for change in changes {
            let (fields, _) = change.as_chunks::<8>();
            let [key, prefix] = [fields[0], fields[1]].map(u64::from_le_bytes);
            if clears(change) || self.prefixes.contains(&prefix) || self.keys.contains(&key) {
                selected.extend_from_slice(change);
            }
        }
        Some(selected)
    }
}

fn numbers(packed: &[u8]) -> HashSet<u64> {
    packed.as_chunks::<8>().0.iter().copied().map(u64::from_le_bytes).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::changes::Change;

    fn set(key: u64, prefix: u64) -> Change {
        Change { key, prefix, dp_rank: 0, tier: 0, clears: false, count: 1 }
    }

    #[test]
    fn what_is_of_a_block_or_of_a_key_or_clears_is_selected_in_order() {
        let selection = Selection::new(&7u64.to_le_bytes(), &3u64.to_le_bytes());
        let changes = [set(1, 7), set(2, 8), Change::clear(0), set(3, 9), set(7, 3)];
        let packed: Vec<u8> = changes.iter().flat_map(Change::encode).collect();
        let wanted: Vec<u8> = [0, 2, 3].iter().flat_map(|&place| changes[place].encode()).collect();
        assert_eq!(selection.of(&packed), Some(wanted));
    }

    #[test]
    fn a_part_of_a_change_is_refused() {
        assert_eq!(Selection::new(&[], &[]).of(&[0; CHANGE_BYTES + 1]), None);
        assert_eq!(Selection::new(&[], &[]).of(&[]), Some(Vec::new()));
    }
}

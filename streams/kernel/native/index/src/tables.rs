//! A hash table in shards, so that growing moves a small part at a time and shrinks again.

use hashbrown::HashTable;
use hashbrown::hash_table::Entry;

const SHARDS: usize = 256;
/// A table this long is split; below an eighth of it, the shards are joined again.
const SPLIT_LEN: usize = 16_384;
const SHRINK_CAPACITY_MIN: usize = 64;

pub struct Sharded<T> {
    shards: Vec<HashTable<T>>,
    len: usize,
}

impl<T> Default for Sharded<T> {
    fn default() -> Self {
        Self { shards: vec![HashTable::new()], len: 0 }
    }
}

impl<T> Sharded<T> {
    /// hashbrown takes buckets from the low bits and tags from the top seven: these are neither.
    ///
    /// The shares of the shards are uneven on purpose, up to 1 : 2. Even ones would all double at
    /// the same number of values, and the table would be half empty and its growth a stall.
    #[inline]
    fn shard_of(&self, hash: u64) -> usize {
        if self.shards.len() == 1 {
            return 0;
        }
        let even = (hash >> 40) as u32 & 0xffff;
        let uneven = even + ((even * (0xffff - even)) >> 16) / 3;
        (uneven >> 8) as usize % SHARDS
    }

    /// Brings what `find` looks at into the cache. Done for many values first, the misses overlap.
    #[inline]
    pub fn touch(&self, hash: u64, same: impl FnMut(&T) -> bool) {
        std::hint::black_box(self.find(hash, same).is_some());
    }

    #[inline]
    pub fn find(&self, hash: u64, same: impl FnMut(&T) -> bool) -> Option<&T> {
        self.shards[self.shard_of(hash)].find(hash, same)
    }

    /// The value that is there, or the one that was made, and whether it was made.
    #[inline]
    pub fn find_or_insert(
        &mut self,
        hash: u64,
        same: impl FnMut(&T) -> bool,
        place: impl Fn(&T) -> u64,
        make: impl FnOnce() -> T,
    ) -> (&mut T, bool) {
        if self.shards.len() == 1 && self.len >= SPLIT_LEN {
            self.redistribute(SHARDS, &place);
        }
        let shard = self.shard_of(hash);
        match self.shards[shard].entry(hash, same, place) {
            Entry::Occupied(found) => (found.into_mut(), false),
            Entry::Vacant(vacant) => {
                self.len += 1;
                (vacant.insert(make()).into_mut(), true)
            }
        }
    }

    #[inline]
    pub fn find_mut(&mut self, hash: u64, same: impl FnMut(&T) -> bool) -> Option<&mut T> {
        let shard = self.shard_of(hash);
        self.shards[shard].find_mut(hash, same)
    }

    #[inline]
    pub fn remove(
        &mut self,
        hash: u64,
        same: impl FnMut(&T) -> bool,
        place: impl Fn(&T) -> u64,
    ) -> Option<T> {
        let shard = self.shard_of(hash);
        let table = &mut self.shards[shard];
        let (value, _) = table.find_entry(hash, same).ok()?.remove();
        self.len -= 1;
        if table.len() * 8 < table.capacity() && table.capacity() > SHRINK_CAPACITY_MIN {
            table.shrink_to(table.len() * 2, &place);
        }
        if self.shards.len() > 1 && self.len < SPLIT_LEN / 8 {
            self.redistribute(1, &place);
        }
        Some(value)
    }

    /// Takes out the values that are `wanted`. Cost O(all values).
    pub fn extract(
        &mut self,
        mut wanted: impl FnMut(&T) -> bool,
        place: impl Fn(&T) -> u64,
    ) -> Vec<T> {
        let mut taken = Vec::new();
        for table in &mut self.shards {
            taken.extend(table.extract_if(|value| wanted(value)));
            if table.len() * 8 < table.capacity() {
                table.shrink_to(table.len() * 2, &place);
            }
        }
        self.len -= taken.len();
        if self.shards.len() > 1 && self.len < SPLIT_LEN / 8 {
            self.redistribute(1, &place);
        }
        taken
    }

    pub fn len(&self) -> usize {
        self.len
    }

    pub fn iter(&self) -> impl Iterator<Item = &T> {
        self.shards.iter().flat_map(HashTable::iter)
    }

    pub fn shards(&self) -> usize {
        self.shards.len()
    }

    pub fn shard(&self, number: usize) -> impl Iterator<Item = &T> {
        self.shards[number].iter()
    }

    pub fn into_values(self) -> impl Iterator<Item = T> {
        self.shards.into_iter().flatten()
    }

    pub fn memory_bytes(&self) -> usize {
        let tables: usize = self.shards.iter().map(HashTable::allocation_size).sum();
        tables + self.shards.len() * size_of::<HashTable<T>>()
    }

    fn redistribute(&mut self, shards: usize, place: &impl Fn(&T) -> u64) {
        let each = self.len / shards + self.len / shards / 4;
        let fresh = (0..shards).map(|_| HashTable::with_capacity(each)).collect();
        for value in std::mem::replace(&mut self.shards, fresh).into_iter().flatten() {
            let hash = place(&value);
            let shard = self.shard_of(hash);
            self.shards[shard].insert_unique(hash, value, place);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::{SHARDS, SPLIT_LEN, Sharded};
    use crate::random::Random;

    type Pair = (u64, u64);

    /// Spread well, as the index's places are; the same for the same key.
    fn place(pair: &Pair) -> u64 {
        Random(pair.0).next()
    }

    struct Tables {
        table: Sharded<Pair>,
        model: HashMap<u64, u64>,
    }

    impl Tables {
        fn new() -> Self {
            Self { table: Sharded::default(), model: HashMap::new() }
        }

        fn insert(&mut self, key: u64, value: u64) {
            let same = |pair: &Pair| pair.0 == key;
            let make = || (key, value);
            let (pair, made) = self.table.find_or_insert(place(&(key, 0)), same, place, make);
            assert_eq!(made, !self.model.contains_key(&key));
            assert_eq!(pair.1, *self.model.entry(key).or_insert(value));
        }

        fn replace(&mut self, key: u64, value: u64) {
            let found = self.table.find_mut(place(&(key, 0)), |pair| pair.0 == key);
            assert_eq!(found.as_ref().map(|pair| pair.1), self.model.get(&key).copied());
            if let Some(pair) = found {
                pair.1 = value;
                self.model.insert(key, value);
            }
        }

        fn remove(&mut self, key: u64) {
            let removed = self.table.remove(place(&(key, 0)), |pair| pair.0 == key, place);
            assert_eq!(removed.map(|pair| pair.1), self.model.remove(&key));
        }

        fn extract(&mut self, divisor: u64) {
            let taken = self.table.extract(|pair| pair.0 % divisor == 0, place);
            let before = self.model.len();
            self.model.retain(|key, _| key % divisor != 0);
            assert_eq!(taken.len(), before - self.model.len());
            assert!(taken.iter().all(|pair| pair.0 % divisor == 0));
        }

        fn check(&self) {
            assert_eq!(self.table.len, self.model.len());
            let values: HashMap<u64, u64> = self.table.iter().copied().collect();
            assert_eq!(values, self.model);
            for (key, value) in &self.model {
                let found = self.table.find(place(&(*key, 0)), |pair| pair.0 == *key);
                assert_eq!(found, Some(&(*key, *value)));
            }
        }
    }

    #[test]
    fn a_table_is_a_map_while_it_splits_and_joins() {
        for seed in 0..3 {
            let mut random = Random(seed);
            let mut tables = Tables::new();
            let keys = 2 * SPLIT_LEN;
            for _ in 0..3 * SPLIT_LEN {
                tables.insert(random.below(keys) as u64, random.next());
                tables.replace(random.below(keys) as u64, 7);
                if random.below(8) == 0 {
                    tables.remove(random.below(keys) as u64);
                }
            }
            assert_eq!(tables.table.shards.len(), SHARDS, "seed {seed}");
            tables.check();
            tables.extract(3);
            tables.check();
            let full = tables.table.memory_bytes();
            for key in 0..keys as u64 - 500 {
                tables.remove(key);
            }
            assert_eq!(tables.table.shards.len(), 1, "seed {seed}");
            tables.check();
            assert!(tables.table.memory_bytes() < full / 16, "seed {seed}");
        }
    }

    #[test]
    fn a_table_that_is_taken_apart_gives_every_value_once() {
        let mut tables = Tables::new();
        (0..SPLIT_LEN as u64 + 9).for_each(|key| tables.insert(key, key));
        let mut values: Vec<u64> = tables.table.into_values().map(|pair| pair.1).collect();
        values.sort_unstable();
        assert!(values.into_iter().eq(0..SPLIT_LEN as u64 + 9));
    }

    #[test]
    fn extracting_joins_the_shards_too() {
        let mut tables = Tables::new();
        (0..SPLIT_LEN as u64 + 9).for_each(|key| tables.insert(key, key));
        tables.extract(1);
        assert_eq!((tables.table.shards.len(), tables.table.len), (1, 0));
        tables.check();
    }
}

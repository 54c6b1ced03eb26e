//! A hash table in shards, which split and join one at a time: growing and shrinking move few values
//! at once, however many there are (extendible hashing).

use crate::lines::{Lines, Spot};

/// A shard with so many lines, of 7 or 12 places, is split once it is full.
const LINES_MAX: usize = 2048;
/// Bits of a hash that choose the shard.
const POSITION_BITS: u32 = 24;
/// How many values ahead a shard that grows asks for what their hashes are computed from.
const AHEAD: usize = 32;

/// Where values are: a closure, or something that can also ask for what it will read.
pub trait Places<T> {
    /// The hash of a value.
    fn of(&self, value: &T) -> u64;

    /// Has what `of` will read brought into the cache.
    #[inline]
    fn touch(&self, _value: &T) {}
}

impl<T, F: Fn(&T) -> u64> Places<T> for F {
    #[inline]
    fn of(&self, value: &T) -> u64 {
        self(value)
    }
}

/// A shard has the values whose positions begin with the `depth` bits of `prefix`.
#[derive(Clone, Copy)]
struct Range {
    depth: u32,
    prefix: u32,
}

/// Values of `N` to a line, with `W` bytes for their tags.
pub struct Sharded<T, const N: usize, const W: usize> {
    /// The shards; apart from their ranges, which are needed only to split and join them.
    shards: Vec<Lines<T, N, W>>,
    ranges: Vec<Range>,
    /// The shard of each possible beginning of a position, of `depth` bits; empty for one shard.
    directory: Vec<u32>,
    depth: u32,
    /// Shards with as many bits as the directory.
    deepest: usize,
    len: usize,
}

impl<T, const N: usize, const W: usize> Default for Sharded<T, N, W> {
    fn default() -> Self {
        Self {
            shards: vec![Lines::default()],
            ranges: vec![Range { depth: 0, prefix: 0 }],
            directory: Vec::new(),
            depth: 0,
            deepest: 1,
            len: 0,
        }
    }
}

/// Lines are chosen by the low bits, tags are the top eight: these are neither.
///
/// The shares of the positions are uneven on purpose, 1 : 2 from one end to the other. With even ones
/// all shards would be split at the same number of values, and the table would be half empty and its
/// growth a stall. As they are, `log2(1 + x)` of an even `x`, it is equally full at any number.
#[inline]
fn position_of(hash: u64) -> u32 {
    let top = (1 << POSITION_BITS) - 1;
    let even = hash >> 32 & top;
    let bulge = (even * (top - even)) >> POSITION_BITS;
    // x + x (1 - x) (0.4427 - 0.164 x) has the slopes of log2(1 + x) at both ends, 1.4427 and 0.7213.
    let slope = 29_013 - ((even * 10_748) >> POSITION_BITS);
    (even + ((bulge * slope) >> 16)) as u32
}

/// Each value with its hash.
fn with_hashes<T: Copy>(
    values: impl Iterator<Item = T>,
    places: &impl Places<T>,
    mut take: impl FnMut(u64, T),
) {
    let values: Vec<T> = values.collect();
    values.iter().take(AHEAD).for_each(|value| places.touch(value));
    for (at, &value) in values.iter().enumerate() {
        if let Some(further) = values.get(at + AHEAD) {
            places.touch(further);
        }
        take(places.of(&value), value);
    }
}

impl<T: Copy + Default, const N: usize, const W: usize> Sharded<T, N, W> {
    #[inline]
    fn shard_of(&self, hash: u64) -> usize {
        if self.depth == 0 {
            return 0;
        }
        self.directory[(position_of(hash) >> (POSITION_BITS - self.depth)) as usize] as usize
    }

    /// Brings what `find` looks at first into the cache. Done for many values, the misses overlap.
    #[inline]
    pub fn touch(&self, hash: u64) {
        self.shards[self.shard_of(hash)].touch(hash);
    }

    #[inline]
    pub fn find(&self, hash: u64, same: impl FnMut(&T) -> bool) -> Option<&T> {
        self.shards[self.shard_of(hash)].find(hash, same)
    }

    /// Adds a value that is not there. `places` has the hash of any value.
    #[inline]
    pub fn insert(&mut self, hash: u64, value: T, places: impl Places<T>) {
        let mut shard = self.shard_of(hash);
        while self.shards[shard].is_full() {
            self.grow(shard, &places);
            shard = self.shard_of(hash);
        }
        self.shards[shard].insert(hash, value);
        self.len += 1;
    }

    /// Shows a value to `change`, which says what is returned and whether to remove it; false where
    /// there is none.
    #[inline]
    pub fn change(
        &mut self,
        hash: u64,
        same: impl FnMut(&T) -> bool,
        change: impl FnOnce(&mut T) -> (bool, bool),
        places: impl Places<T>,
    ) -> bool {
        self.change_at(hash, same, change, &places)
    }

    #[inline]
    fn change_at(
        &mut self,
        hash: u64,
        same: impl FnMut(&T) -> bool,
        change: impl FnOnce(&mut T) -> (bool, bool),
        places: &impl Places<T>,
    ) -> bool {
        let number = self.shard_of(hash);
        let Some(spot) = self.shards[number].seek(hash, same) else { return false };
        let (answer, goes) = change(self.shards[number].at(spot));
        if goes {
            self.remove(number, hash, spot, places);
        }
        answer
    }

    #[inline]
    fn remove(&mut self, number: usize, hash: u64, spot: Spot, places: &impl Places<T>) {
        let shard = &mut self.shards[number];
        shard.remove(hash, spot);
        self.len -= 1;
        if shard.len() * 8 < N * shard.lines() && shard.lines() > 1 {
            self.shrink(number, places);
        }
    }

    /// Takes out the values that are `wanted`. Looks at all, which takes some 2 ns each, and asks for
    /// the places of those that it takes, not of the others.
    pub fn extract(&mut self, mut wanted: impl FnMut(&T) -> bool, places: impl Places<T>) -> Vec<T>
    where
        T: PartialEq,
    {
        let taken: Vec<T> = self.iter().filter(|value| wanted(value)).copied().collect();
        with_hashes(taken.iter().copied(), &places, |hash, value| {
            self.change_at(hash, |known| *known == value, |_| (true, true), &places);
        });
        taken
    }

    pub fn len(&self) -> usize {
        self.len
    }

    fn iter(&self) -> impl Iterator<Item = &T> {
        self.shards.iter().flat_map(Lines::iter)
    }

    /// The values from a position on, up to the end of the shard that has it, and the position they
    /// end at: None at the end of the table. To begin with 0.
    ///
    /// A value that stays while others come and go between such calls is seen, once or, where
    /// shards are joined, more often.
    pub fn part(&self, position: u32) -> (impl Iterator<Item = &T>, Option<u32>) {
        let number = match self.depth {
            0 => 0,
            depth => self.directory[(position >> (POSITION_BITS - depth)) as usize] as usize,
        };
        let Range { depth, prefix } = self.ranges[number];
        let next = (prefix + 1) << (POSITION_BITS - depth);
        (self.shards[number].iter(), (next < 1 << POSITION_BITS).then_some(next))
    }

    pub fn into_values(self) -> impl Iterator<Item = T> {
        self.shards.into_iter().flat_map(Lines::into_values)
    }

    pub fn memory_bytes(&self) -> usize {
        let tables: usize = self.shards.iter().map(Lines::memory_bytes).sum();
        let shards = self.shards.capacity() * (size_of::<Lines<T, N, W>>() + size_of::<Range>());
        tables + shards + self.directory.capacity() * size_of::<u32>()
    }

    /// Makes room in a full shard: with more lines, or where it has all it may have, by giving the
    /// upper half of its positions to a new one.
    #[cold]
    fn grow(&mut self, number: usize, places: &impl Places<T>) {
        let Range { depth, prefix } = self.ranges[number];
        let lines = self.shards[number].lines();
        if lines < LINES_MAX || depth == POSITION_BITS {
            return self.resize(number, (2 * lines).max(1), places);
        }
        if depth == self.depth {
            let known = if depth == 0 { &[0][..] } else { &self.directory };
            self.directory = known.iter().flat_map(|&shard| [shard, shard]).collect();
            self.depth += 1;
            self.deepest = 0;
        }
        let (mut lower, mut upper) = (Lines::new(LINES_MAX), Lines::new(LINES_MAX));
        let bit = 1 << (POSITION_BITS - depth - 1);
        let values = std::mem::take(&mut self.shards[number]).into_values();
        with_hashes(values, places, |hash, value| {
            let half = if position_of(hash) & bit == 0 { &mut lower } else { &mut upper };
            half.insert(hash, value);
        });
        let depth = depth + 1;
        self.shards[number] = lower;
        self.ranges[number] = Range { depth, prefix: 2 * prefix };
        self.shards.push(upper);
        self.ranges.push(Range { depth, prefix: 2 * prefix + 1 });
        self.enter(self.shards.len() - 1);
        if depth == self.depth {
            self.deepest += 2;
        }
    }

    fn resize(&mut self, number: usize, lines: usize, places: &impl Places<T>) {
        let mut resized = Lines::new(lines);
        let values = std::mem::take(&mut self.shards[number]).into_values();
        with_hashes(values, places, |hash, value| resized.insert(hash, value));
        self.shards[number] = resized;
    }

    /// Writes a shard's number wherever the directory is to have it.
    fn enter(&mut self, number: usize) {
        if self.depth == 0 {
            return;
        }
        let Range { depth, prefix } = self.ranges[number];
        let each = 1 << (self.depth - depth);
        let first = prefix as usize * each;
        self.directory[first..first + each].fill(number as u32);
    }

    /// Makes a shard's table smaller, or joins it with the one that it was split from.
    #[cold]
    fn shrink(&mut self, number: usize, places: &impl Places<T>) {
        let Range { depth, prefix } = self.ranges[number];
        let (len, bits) = (self.shards[number].len(), self.depth - depth);
        let other = (depth > 0).then(|| self.directory[((prefix ^ 1) << bits) as usize] as usize);
        let other = other.filter(|&other| {
            let both = self.shards[other].len() + len;
            self.ranges[other].depth == depth && 2 * both <= N * self.shards[other].lines()
        });
        let Some(other) = other else {
            return self.resize(number, Lines::<T, N, W>::lines_for(len), places);
        };
        let values = std::mem::take(&mut self.shards[number]).into_values();
        let kept = &mut self.shards[other];
        with_hashes(values, places, |hash, value| kept.insert(hash, value));
        self.ranges[other] = Range { depth: depth - 1, prefix: prefix / 2 };
        self.enter(other);
        self.shards.swap_remove(number);
        self.ranges.swap_remove(number);
        if number < self.shards.len() {
            self.enter(number);
        }
        if depth == self.depth {
            self.deepest -= 2;
            self.narrow();
        }
    }

    /// Drops the bits of the directory that no shard needs.
    fn narrow(&mut self) {
        while self.deepest == 0 && self.depth > 0 {
            self.depth -= 1;
            self.directory = self.directory.iter().step_by(2).copied().collect();
            let depth = self.depth;
            self.deepest = self.ranges.iter().filter(|range| range.depth == depth).count();
        }
        if self.depth == 0 {
            self.directory = Vec::new();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::{LINES_MAX, POSITION_BITS, Sharded, position_of};
    use crate::random::Random;

    type Pair = (u64, u64);
    type Table = Sharded<Pair, 7, 8>;

    /// A shard is split before it has so many.
    const SPLIT_LEN: usize = 7 * LINES_MAX;

    /// Spread well, as the index's places are; the same for the same key.
    fn place(pair: &Pair) -> u64 {
        Random(pair.0).next()
    }

    struct Tables {
        table: Table,
        model: HashMap<u64, u64>,
    }

    impl Tables {
        fn new() -> Self {
            Self { table: Sharded::default(), model: HashMap::new() }
        }

        fn insert(&mut self, key: u64, value: u64) {
            let (hash, same) = (place(&(key, 0)), |pair: &Pair| pair.0 == key);
            let known = self.table.find(hash, same).map(|pair| pair.1);
            assert_eq!(known, self.model.get(&key).copied());
            if known.is_none() {
                self.table.insert(hash, (key, value), place);
                self.model.insert(key, value);
            }
        }

        fn replace(&mut self, key: u64, value: u64) {
            let write = |pair: &mut Pair| {
                pair.1 = value;
                (true, false)
            };
            let same = |pair: &Pair| pair.0 == key;
            let is_there = self.table.change(place(&(key, 0)), same, write, place);
            assert_eq!(is_there, self.model.contains_key(&key));
            if is_there {
                self.model.insert(key, value);
            }
        }

        fn remove(&mut self, key: u64) {
            let same = |pair: &Pair| pair.0 == key;
            let removed = self.table.change(place(&(key, 0)), same, |_| (true, true), place);
            assert_eq!(removed, self.model.remove(&key).is_some());
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
            self.check_directory();
        }

        /// Each beginning of a position leads to the shard that has it, and no bit is needless.
        fn check_directory(&self) {
            let Table { shards, ranges, directory, depth, deepest, .. } = &self.table;
            assert_eq!(directory.len(), if *depth == 0 { 0 } else { 1 << depth });
            for (beginning, &number) in directory.iter().enumerate() {
                let range = ranges[number as usize];
                assert_eq!(beginning >> (depth - range.depth), range.prefix as usize);
            }
            assert_eq!(*deepest, ranges.iter().filter(|range| range.depth == *depth).count());
            assert!(*deepest > 0, "the directory has a bit that no shard needs");
            for (shard, range) in shards.iter().zip(ranges) {
                let begins = |pair| {
                    let position = u64::from(position_of(place(pair)));
                    position >> (POSITION_BITS - range.depth)
                };
                assert!(shard.iter().all(|pair| begins(pair) == u64::from(range.prefix)));
            }
        }
    }

    #[test]
    fn a_table_is_a_map_while_its_shards_split_and_join() {
        for seed in 0..3 {
            let mut random = Random(seed);
            let mut tables = Tables::new();
            let keys = 8 * SPLIT_LEN;
            for _ in 0..12 * SPLIT_LEN {
                tables.insert(random.below(keys) as u64, random.next());
                tables.replace(random.below(keys) as u64, 7);
                if random.below(8) == 0 {
                    tables.remove(random.below(keys) as u64);
                }
            }
            let shards = tables.table.shards.len();
            assert!((4..32).contains(&shards), "seed {seed}: {shards} shards");
            tables.check();
            tables.extract(3);
            tables.check();
            let full = tables.table.memory_bytes();
            for key in 0..keys as u64 - 500 {
                tables.remove(key);
                if key % 9973 == 0 {
                    tables.check();
                }
            }
            assert_eq!(tables.table.shards.len(), 1, "seed {seed}");
            tables.check();
            assert!(tables.table.memory_bytes() < full / 16, "seed {seed}");
        }
    }

    /// Bounds what one insertion moves, however long the table is.
    #[test]
    fn shards_stay_short_and_are_split_one_by_one() {
        let mut tables = Tables::new();
        let mut shards = 1;
        for key in 0..20 * SPLIT_LEN as u64 {
            tables.insert(key, key);
            let now = tables.table.shards.len();
            assert!(now - shards <= 1, "key {key}");
            shards = now;
        }
        assert!(tables.table.shards.iter().all(|shard| shard.len() <= SPLIT_LEN));
        let room: usize = tables.table.shards.iter().map(|shard| 7 * shard.lines()).sum();
        assert!(room < 2 * tables.table.len(), "{room} for {}", tables.table.len());
    }

    /// Of each shard: its range, its values and its lines.
    type Shards = HashMap<(u32, u32), (usize, usize)>;

    fn shards_of(table: &Table) -> Shards {
        let ranges = table.ranges.iter().map(|range| (range.depth, range.prefix));
        ranges.zip(table.shards.iter().map(|shard| (shard.len(), shard.lines()))).collect()
    }

    /// The shards after one value of a shard was removed.
    fn shrunk(mut shards: Shards, (depth, prefix): (u32, u32)) -> Shards {
        let (len, lines) = shards[&(depth, prefix)];
        let len = len - 1;
        shards.insert((depth, prefix), (len, lines));
        if 8 * len >= 7 * lines || lines == 1 {
            return shards;
        }
        match shards.get(&(depth, prefix ^ 1)).copied() {
            Some((other, lines)) if depth > 0 && 2 * (other + len) <= 7 * lines => {
                shards.remove(&(depth, prefix));
                shards.remove(&(depth, prefix ^ 1));
                shards.insert((depth - 1, prefix / 2), (other + len, lines));
            }
            _ => {
                let lines = (2 * len).div_ceil(7).next_power_of_two();
                shards.insert((depth, prefix), (len, lines));
            }
        }
        shards
    }

    #[test]
    fn a_shard_below_an_eighth_is_joined_with_its_other_half_or_gets_fewer_lines() {
        for seed in 0..5 {
            let mut random = Random(seed);
            let mut tables = Tables::new();
            let mut keys: Vec<u64> = (0..3 * SPLIT_LEN as u64).collect();
            keys.iter().for_each(|&key| tables.insert(key, key));
            // Some positions lose their values sooner than others.
            let weights: Vec<u64> = (0..8).map(|_| 1 + random.below(4) as u64).collect();
            let position = |key| position_of(place(&(key, 0))) >> (POSITION_BITS - 3);
            keys.sort_by_cached_key(|&key| weights[position(key) as usize] * (random.next() >> 16));
            let mut expected = shards_of(&tables.table);
            for key in keys {
                let number = tables.table.shard_of(place(&(key, 0)));
                let range = tables.table.ranges[number];
                let before = expected.len();
                expected = shrunk(expected, (range.depth, range.prefix));
                tables.remove(key);
                assert_eq!(shards_of(&tables.table), expected, "seed {seed}, key {key}");
                if expected.len() != before {
                    tables.check_directory();
                }
            }
        }
    }

    #[test]
    fn a_table_has_as_few_lines_as_its_values_need() {
        let mut tables = Tables::new();
        for key in 0..5000 {
            tables.insert(key, key);
            let lines = (10 * tables.model.len()).div_ceil(9 * 7).next_power_of_two();
            let [shard] = &tables.table.shards[..] else { panic!("{key} values in two shards") };
            assert_eq!(shard.lines(), lines, "key {key}");
        }
    }

    /// One shard is split again and again, while the others keep their few bits.
    #[test]
    fn values_that_come_by_position_are_found_in_shards_of_any_depth() {
        let mut keys: Vec<u64> = (0..5 * SPLIT_LEN as u64).collect();
        keys.sort_by_cached_key(|&key| position_of(place(&(key, 0))));
        let mut tables = Tables::new();
        let mut depths = 0;
        for key in keys {
            let before = tables.table.shards.len();
            tables.insert(key, key);
            if tables.table.shards.len() != before {
                tables.check_directory();
                let ranges = tables.table.ranges.iter();
                let (least, most) = ranges.fold((u32::MAX, 0), |(least, most), range| {
                    (least.min(range.depth), most.max(range.depth))
                });
                depths = depths.max(most - least);
            }
        }
        assert!(depths > 1, "{depths}");
        tables.check();
    }

    #[test]
    fn positions_are_spread_as_a_logarithm() {
        let whole = f64::from(1 << POSITION_BITS);
        for even in (0..1_u64 << POSITION_BITS).step_by(4099) {
            let expected = (1.0 + even as f64 / whole).log2();
            let position = f64::from(position_of(even << 32 | 0xffff_ffff)) / whole;
            assert!((position - expected).abs() < 0.006, "{even}: {position}, not {expected}");
        }
    }

    #[test]
    fn memory_is_that_of_all_lists() {
        let mut tables = Tables::new();
        (0..5 * SPLIT_LEN as u64).for_each(|key| tables.insert(key, key));
        let Table { shards, ranges, directory, .. } = &tables.table;
        assert!(shards.len() > 3 && directory.len() > 3);
        let lines: usize = shards.iter().map(|shard| 128 * shard.lines()).sum();
        assert_eq!(shards.capacity(), ranges.capacity());
        let lists = [lines, 32 * shards.capacity(), 8 * ranges.capacity(), 4 * directory.len()];
        assert_eq!(tables.table.memory_bytes(), lists.iter().sum());
    }

    /// As a secret place cannot make it: all values have one position.
    #[test]
    fn values_that_no_bit_tells_apart_are_kept() {
        let same_place = |pair: &Pair| Random(pair.0).next() & 0xffff_ffff;
        let mut table = Table::default();
        let count = 3 * SPLIT_LEN;
        for key in 0..count as u64 {
            let pair = (key, key);
            table.insert(same_place(&pair), pair, same_place);
        }
        assert_eq!(table.len(), count);
        for key in 0..count as u64 {
            assert_eq!(table.find(same_place(&(key, 0)), |pair| pair.0 == key), Some(&(key, key)));
        }
    }

    #[test]
    fn parts_have_every_value_that_stays() {
        for seed in 0..4 {
            let mut random = Random(seed);
            let mut tables = Tables::new();
            let kept = 5 * SPLIT_LEN as u64;
            (0..kept).for_each(|key| tables.insert(key, key));
            let mut others: Vec<u64> = Vec::new();
            let (mut seen, mut position) = (HashMap::new(), Some(0));
            while let Some(from) = position {
                let (values, next) = tables.table.part(from);
                values.for_each(|pair| *seen.entry(pair.0).or_insert(0) += 1);
                position = next;
                for _ in 0..random.below(SPLIT_LEN) {
                    let key = kept + random.below(8 * SPLIT_LEN) as u64;
                    tables.insert(key, 0);
                    others.push(key);
                }
                if random.below(2) == 0 {
                    others.drain(..).for_each(|key| tables.remove(key));
                }
            }
            assert!((0..kept).all(|key| seen.contains_key(&key)), "seed {seed}");
        }
    }

    #[test]
    fn parts_of_a_table_at_rest_have_each_value_once() {
        let mut tables = Tables::new();
        (0..3 * SPLIT_LEN as u64).for_each(|key| tables.insert(key, key));
        let (mut seen, mut position) = (Vec::new(), Some(0));
        while let Some(from) = position {
            let (values, next) = tables.table.part(from);
            seen.extend(values.map(|pair| pair.0));
            position = next;
        }
        seen.sort_unstable();
        assert!(seen.into_iter().eq(0..3 * SPLIT_LEN as u64));
    }

    #[test]
    fn a_table_that_is_taken_apart_gives_every_value_once() {
        let mut tables = Tables::new();
        (0..SPLIT_LEN as u64 + 9).for_each(|key| tables.insert(key, key));
        let mut values: Vec<u64> = tables.table.into_values().map(|pair| pair.1).collect();
        values.sort_unstable();
        assert!(values.into_iter().eq(0..SPLIT_LEN as u64 + 9));
    }

    /// Else a publisher with many adapters, whose parts are cleared one by one, would have all its
    /// entries placed anew for each of them.
    #[test]
    fn extracting_few_places_few() {
        let mut tables = Tables::new();
        let count = 3 * SPLIT_LEN as u64;
        (0..count).for_each(|key| tables.insert(key, key));
        let placed = std::cell::Cell::new(0);
        let counted = |pair: &Pair| {
            placed.set(placed.get() + 1);
            place(pair)
        };
        let taken = tables.table.extract(|pair| pair.0 % 1000 == 0, counted);
        assert_eq!((taken.len(), placed.get()), (44, 44));
        tables.model.retain(|key, _| key % 1000 != 0);
        tables.check();
    }

    #[test]
    fn extracting_joins_the_shards_too() {
        let mut tables = Tables::new();
        (0..SPLIT_LEN as u64 + 9).for_each(|key| tables.insert(key, key));
        assert_eq!(tables.table.shards.len(), 2);
        tables.extract(1);
        assert_eq!((tables.table.shards.len(), tables.table.len), (1, 0));
        tables.check();
    }
}

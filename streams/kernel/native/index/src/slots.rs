//! The blocks of one scope: prefix hash, holder set and key of each, in chain order as far as
//! possible. The key is what the block's first holder calls it; most of the others do so, too.
//!
//! A chain takes the slot after its previous block while that is free, else the start of an extent
//! that is free altogether. So the blocks of a prompt lie side by side even after much churn, and a
//! query finds the next block by looking at the next slot.

use cache::prefetch;

/// Slots of one free mask.
const EXTENT_SLOTS: u32 = 64;
/// The pool grows by chunks of this many slots, which are never copied once full.
const CHUNK_SLOTS: u32 = 65_536;

/// The set of a slot that holds no block.
pub const EMPTY_SET: u32 = 0;

#[derive(Default)]
struct Chunk {
    prefixes: Vec<u64>,
    keys: Vec<u64>,
    sets: Vec<u32>,
}

#[derive(Default)]
pub struct Slots {
    chunks: Vec<Chunk>,
    /// Per extent: bit i says that its slot i is free.
    free: Vec<u64>,
    /// Extents that were free altogether when they were pushed; `queued` keeps each in here once.
    empty: Vec<u32>,
    queued: Vec<bool>,
    live: usize,
    /// Where the search for a partly free extent goes on.
    cursor: usize,
}

impl Slots {
    pub fn len(&self) -> usize {
        self.live
    }

    fn capacity(&self) -> usize {
        self.free.len() * EXTENT_SLOTS as usize
    }

    /// Prefix and set of a slot; None past the end. A free slot has the set `EMPTY_SET`.
    #[inline]
    pub fn get(&self, slot: u32) -> Option<(u64, u32)> {
        let chunk = self.chunks.get((slot / CHUNK_SLOTS) as usize)?;
        let at = (slot % CHUNK_SLOTS) as usize;
        Some((*chunk.prefixes.get(at)?, *chunk.sets.get(at)?))
    }

    #[inline]
    pub fn prefix(&self, slot: u32) -> u64 {
        self.chunks[(slot / CHUNK_SLOTS) as usize].prefixes[(slot % CHUNK_SLOTS) as usize]
    }

    /// What the first holder of the block called it; the same until the slot is free again.
    #[inline]
    pub fn key(&self, slot: u32) -> u64 {
        self.chunks[(slot / CHUNK_SLOTS) as usize].keys[(slot % CHUNK_SLOTS) as usize]
    }

    #[inline]
    pub fn set(&self, slot: u32) -> u32 {
        self.chunks[(slot / CHUNK_SLOTS) as usize].sets[(slot % CHUNK_SLOTS) as usize]
    }

    /// Has the key of a slot brought into the cache; likewise the others.
    #[inline]
    pub fn touch_key(&self, slot: u32) {
        prefetch(&self.chunks[(slot / CHUNK_SLOTS) as usize].keys[(slot % CHUNK_SLOTS) as usize]);
    }

    #[inline]
    pub fn touch_prefix(&self, slot: u32) {
        let chunk = &self.chunks[(slot / CHUNK_SLOTS) as usize];
        prefetch(&chunk.prefixes[(slot % CHUNK_SLOTS) as usize]);
    }

    #[inline]
    pub fn touch_set(&self, slot: u32) {
        prefetch(&self.chunks[(slot / CHUNK_SLOTS) as usize].sets[(slot % CHUNK_SLOTS) as usize]);
    }

    #[inline]
    pub fn replace_set(&mut self, slot: u32, set: u32) {
        self.chunks[(slot / CHUNK_SLOTS) as usize].sets[(slot % CHUNK_SLOTS) as usize] = set;
    }

    /// How many of the prefixes are those of the slots after `slot`, one by one, with this set.
    #[inline]
    pub fn run(&self, slot: u32, prefixes: &[u64], set: u32) -> usize {
        let at = (slot % CHUNK_SLOTS) as usize + 1;
        let Some(chunk) = self.chunks.get((slot / CHUNK_SLOTS) as usize) else {
            return 0;
        };
        let (Some(slots), Some(sets)) = (chunk.prefixes.get(at..), chunk.sets.get(at..)) else {
            return 0;
        };
        let pairs = prefixes.iter().zip(slots).zip(sets);
        pairs.take_while(|((wanted, prefix), known)| wanted == prefix && **known == set).count()
    }

    /// A slot for a new block, with `EMPTY_SET`; `after` is the slot of the block before it.
    pub fn allocate(&mut self, prefix: u64, key: u64, after: Option<u32>) -> u32 {
        let slot = after
            .and_then(|slot| self.next_slot(slot))
            .or_else(|| self.empty_extent())
            .or_else(|| self.partly_free_slot())
            .unwrap_or_else(|| self.grow());
        self.free[(slot / EXTENT_SLOTS) as usize] &= !(1 << (slot % EXTENT_SLOTS));
        let chunk = &mut self.chunks[(slot / CHUNK_SLOTS) as usize];
        chunk.prefixes[(slot % CHUNK_SLOTS) as usize] = prefix;
        chunk.keys[(slot % CHUNK_SLOTS) as usize] = key;
        self.live += 1;
        slot
    }

    /// Gives a slot back. Its set must be `EMPTY_SET` already.
    pub fn release(&mut self, slot: u32) {
        let extent = (slot / EXTENT_SLOTS) as usize;
        self.free[extent] |= 1 << (slot % EXTENT_SLOTS);
        self.live -= 1;
        if self.live == 0 {
            *self = Self::default();
        } else if self.free[extent] == u64::MAX && !self.queued[extent] {
            self.queued[extent] = true;
            self.empty.push(extent as u32);
        }
    }

    pub fn memory_bytes(&self) -> usize {
        let chunks: usize = self
            .chunks
            .iter()
            .map(|chunk| {
                8 * (chunk.prefixes.capacity() + chunk.keys.capacity()) + 4 * chunk.sets.capacity()
            })
            .sum();
        chunks + 8 * self.free.capacity() + 4 * self.empty.capacity() + self.queued.capacity()
    }

    fn next_slot(&mut self, slot: u32) -> Option<u32> {
        let next = slot.checked_add(1)?;
        match self.free.get((next / EXTENT_SLOTS) as usize) {
            Some(mask) => (mask >> (next % EXTENT_SLOTS) & 1 == 1).then_some(next),
            // The chain runs over the end of the pool: the extent that comes next continues it.
            None => (next as usize == self.capacity()).then(|| self.grow()),
        }
    }

    fn empty_extent(&mut self) -> Option<u32> {
        while let Some(extent) = self.empty.pop() {
            self.queued[extent as usize] = false;
            if self.free[extent as usize] == u64::MAX {
                return Some(extent * EXTENT_SLOTS);
            }
        }
        None
    }

    /// A free slot in a used extent, if over half of the pool is free: many short chains would
    /// otherwise take an extent each.
    fn partly_free_slot(&mut self) -> Option<u32> {
        if self.live * 2 >= self.capacity() {
            return None;
        }
        let extents = self.free.len();
        for step in 0..extents {
            let extent = (self.cursor + step) % extents;
            if self.free[extent] != 0 {
                // Next time further on, so that this chain can go on where it starts.
                self.cursor = extent + 1;
                return Some(extent as u32 * EXTENT_SLOTS + self.free[extent].trailing_zeros());
            }
        }
        None
    }

    /// One more extent; returns its first slot.
    fn grow(&mut self) -> u32 {
        let first = self.capacity();
        assert!(first < u32::MAX as usize - CHUNK_SLOTS as usize, "slots are numbered by u32");
        if first.is_multiple_of(CHUNK_SLOTS as usize) {
            self.chunks.push(Chunk::default());
        }
        let chunk = self.chunks.last_mut().expect("a chunk was pushed with the first extent");
        let slots = chunk.prefixes.len() + EXTENT_SLOTS as usize;
        if slots > chunk.prefixes.capacity() {
            let room = (2 * slots).min(CHUNK_SLOTS as usize) - chunk.prefixes.len();
            chunk.prefixes.reserve_exact(room);
            chunk.keys.reserve_exact(room);
            chunk.sets.reserve_exact(room);
        }
        chunk.prefixes.resize(slots, 0);
        chunk.keys.resize(slots, 0);
        chunk.sets.resize(slots, EMPTY_SET);
        self.free.push(u64::MAX);
        self.queued.push(false);
        first as u32
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::{CHUNK_SLOTS, EMPTY_SET, EXTENT_SLOTS, Slots};
    use crate::random::Random;

    /// Slots with what must be in them.
    #[derive(Default)]
    struct Pool {
        slots: Slots,
        model: BTreeMap<u32, (u64, u32)>,
    }

    impl Pool {
        fn allocate(&mut self, prefix: u64, set: u32, after: Option<u32>) -> u32 {
            let slot = self.slots.allocate(prefix, !prefix, after);
            assert_eq!(self.slots.get(slot), Some((prefix, EMPTY_SET)));
            self.slots.replace_set(slot, set);
            assert!(self.model.insert(slot, (prefix, set)).is_none(), "slot {slot} was not free");
            slot
        }

        fn release(&mut self, slot: u32) {
            self.slots.replace_set(slot, EMPTY_SET);
            self.slots.release(slot);
            self.model.remove(&slot);
        }

        fn nth(&self, at: usize) -> u32 {
            *self.model.keys().nth(at).expect("below the length")
        }

        fn check(&self) {
            assert_eq!(self.slots.len(), self.model.len());
            for slot in 0..self.slots.capacity() as u32 {
                let (prefix, set) = self.slots.get(slot).expect("below the capacity");
                match self.model.get(&slot) {
                    Some(&known) => {
                        assert_eq!((prefix, set), known);
                        assert_eq!((self.slots.prefix(slot), self.slots.set(slot)), known);
                        assert_eq!(self.slots.key(slot), !prefix);
                    }
                    None => assert_eq!(set, EMPTY_SET),
                }
            }
            assert_eq!(self.slots.get(self.slots.capacity() as u32), None);
            let Slots { free, empty, queued, .. } = &self.slots;
            let mut listed = vec![false; free.len()];
            for &extent in empty {
                assert!(!std::mem::replace(&mut listed[extent as usize], true), "listed twice");
            }
            assert_eq!(*queued, listed);
            for (mask, is_listed) in free.iter().zip(&listed) {
                assert!(*mask != u64::MAX || *is_listed, "an empty extent was forgotten");
            }
        }

        /// `run` counted one by one, within the slot's chunk.
        fn run(&self, slot: u32, prefixes: &[u64], set: u32) -> usize {
            let chunk_end = (slot / CHUNK_SLOTS + 1) * CHUNK_SLOTS;
            let slots = slot + 1..chunk_end;
            let pairs = slots.zip(prefixes);
            pairs.take_while(|(at, prefix)| self.slots.get(*at) == Some((**prefix, set))).count()
        }
    }

    #[test]
    fn no_slot_is_given_twice_and_none_is_lost_through_random_chains() {
        for seed in 0..6 {
            let mut random = Random(seed);
            let mut pool = Pool::default();
            for step in 0..400 {
                let mut after = match pool.model.len() {
                    0 => None,
                    len => (random.below(2) == 0).then(|| pool.nth(random.below(len))),
                };
                for _ in 0..random.below(90) {
                    after = Some(pool.allocate(random.next(), 1 + random.below(3) as u32, after));
                }
                for _ in 0..random.below(90).min(pool.model.len()) {
                    let slot = pool.nth(random.below(pool.model.len()));
                    pool.release(slot);
                }
                if step % 37 == 0 {
                    pool.check();
                }
            }
            pool.check();
            let (used, capacity) = (pool.model.len(), pool.slots.capacity());
            assert!(used < capacity && capacity < 16 * used + 100 * 64, "{used} of {capacity}");
            while let Some((&slot, _)) = pool.model.first_key_value() {
                pool.release(slot);
            }
            assert_eq!((pool.slots.len(), pool.slots.memory_bytes()), (0, 0), "seed {seed}");
        }
    }

    #[test]
    fn a_chain_lies_side_by_side() {
        let mut pool = Pool::default();
        let mut chain = |prefix: u64, len: u32| {
            let first = pool.allocate(prefix, 1, None);
            for slot in first..first + len - 1 {
                assert_eq!(pool.allocate(prefix + u64::from(slot), 1, Some(slot)), slot + 1);
            }
            first
        };
        assert_eq!(chain(1, 3 * EXTENT_SLOTS), 0);
        // Another chain begins in an extent of its own, and a long one goes over the chunk's end.
        assert_eq!(chain(2, 5), 3 * EXTENT_SLOTS);
        assert_eq!(chain(3, CHUNK_SLOTS), 4 * EXTENT_SLOTS);
        // At the end of the pool a chain goes on there, though other extents are free.
        (0..EXTENT_SLOTS).for_each(|slot| pool.release(slot));
        let last = pool.slots.capacity() as u32 - 1;
        assert_eq!(pool.allocate(9, 1, Some(last)), last + 1);
        assert_eq!(pool.allocate(9, 1, None), 0);
    }

    #[test]
    fn free_slots_are_used_before_the_pool_grows() {
        let mut pool = Pool::default();
        let slots: Vec<u32> = (0..20 * 64)
            .scan(None, |after, prefix| {
                *after = Some(pool.allocate(prefix, 1, *after));
                *after
            })
            .collect();
        let capacity = pool.slots.capacity();
        for slot in slots.iter().filter(|slot| *slot % 4 != 0) {
            pool.release(*slot);
        }
        for prefix in 0..300 {
            pool.allocate(prefix, 1, None);
        }
        assert_eq!(pool.slots.capacity(), capacity);
        pool.check();
    }

    #[test]
    fn short_chains_begin_in_one_partly_free_extent_after_the_other() {
        let mut pool = Pool::default();
        let slots: Vec<u32> = (0..20 * EXTENT_SLOTS)
            .scan(None, |after, prefix| {
                *after = Some(pool.allocate(prefix.into(), 1, *after));
                *after
            })
            .collect();
        let is_full = |slot: u32| slot / EXTENT_SLOTS % 4 == 1;
        for &slot in slots.iter().filter(|&&slot| slot % 8 != 3 && !is_full(slot)) {
            pool.release(slot);
        }
        let expected: Vec<u32> = (0..20).filter(|extent| extent % 4 != 1).collect();
        for round in 0..3 {
            let extents = expected.iter().map(|_| pool.allocate(1, 1, None) / EXTENT_SLOTS);
            assert!(extents.eq(expected.iter().copied()), "round {round}");
        }
        pool.check();
    }

    #[test]
    fn a_chunk_takes_twice_the_room_when_it_is_full() {
        let mut slots = Slots::default();
        let (mut after, mut room) = (None, 0);
        for len in 1..=CHUNK_SLOTS as usize + 1 {
            after = Some(slots.allocate(0, 0, after));
            let chunk = slots.chunks.last().expect("a slot was taken");
            let of_chunk = (len - 1) % CHUNK_SLOTS as usize / 64 * 64 + 64;
            if len > CHUNK_SLOTS as usize {
                assert_eq!(chunk.prefixes.capacity(), 128);
            } else if of_chunk > room {
                room = (2 * of_chunk).min(CHUNK_SLOTS as usize);
            }
            if len <= CHUNK_SLOTS as usize {
                assert_eq!(chunk.prefixes.capacity(), room, "{len} slots");
            }
            let capacities = (chunk.keys.capacity(), chunk.sets.capacity());
            assert_eq!(capacities, (chunk.prefixes.capacity(), chunk.prefixes.capacity()));
        }
        (0..64).for_each(|slot| slots.release(slot));
        let room: usize = slots.chunks.iter().map(|chunk| chunk.prefixes.capacity()).sum();
        let lists = [20 * room, 8 * slots.free.capacity(), 4 * slots.empty.capacity()];
        assert!(lists.iter().all(|&bytes| bytes > 0));
        let lists: usize = lists.iter().sum();
        assert_eq!(slots.memory_bytes(), lists + slots.queued.capacity());
    }

    #[test]
    fn a_run_is_counted_as_one_by_one() {
        let mut random = Random(11);
        let mut pool = Pool::default();
        let mut after = None;
        for _ in 0..CHUNK_SLOTS + 200 {
            after =
                Some(pool.allocate(random.below(2) as u64, 1 + random.below(8) as u32 / 7, after));
        }
        for at in (0..2000).chain(CHUNK_SLOTS - 60..CHUNK_SLOTS + 199) {
            let len = random.below(12) as u32;
            let wanted: Vec<u64> = (at + 1..=at + len)
                .filter_map(|at| pool.slots.get(at))
                .map(|pair| pair.0)
                .collect();
            assert_eq!(pool.slots.run(at, &wanted, 1), pool.run(at, &wanted, 1), "slot {at}");
        }
        assert_eq!(pool.slots.run(u32::MAX - 1, &[0], 1), 0);
    }
}

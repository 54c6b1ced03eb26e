//! The blocks of one scope: prefix hash and holder set of each, in chain order as far as possible.
//!
//! A chain takes the slot after its previous block while that is free, else the start of an extent
//! that is free altogether. So the blocks of a prompt lie side by side even after much churn, and a
//! query finds the next block by looking at the next slot.

/// Slots of one free mask.
const EXTENT_SLOTS: u32 = 64;
/// The pool grows by chunks of this many slots, which are never copied once full.
const CHUNK_SLOTS: u32 = 65_536;

/// The set of a slot that holds no block.
pub const EMPTY_SET: u32 = 0;

#[derive(Default)]
struct Chunk {
    prefixes: Vec<u64>,
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

    #[inline]
    pub fn set(&self, slot: u32) -> u32 {
        self.chunks[(slot / CHUNK_SLOTS) as usize].sets[(slot % CHUNK_SLOTS) as usize]
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
    pub fn allocate(&mut self, prefix: u64, after: Option<u32>) -> u32 {
        let slot = after
            .and_then(|slot| self.next_slot(slot))
            .or_else(|| self.empty_extent())
            .or_else(|| self.partly_free_slot())
            .unwrap_or_else(|| self.grow());
        self.free[(slot / EXTENT_SLOTS) as usize] &= !(1 << (slot % EXTENT_SLOTS));
        self.chunks[(slot / CHUNK_SLOTS) as usize].prefixes[(slot % CHUNK_SLOTS) as usize] = prefix;
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
            .map(|chunk| 8 * chunk.prefixes.capacity() + 4 * chunk.sets.capacity())
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
            chunk.sets.reserve_exact(room);
        }
        chunk.prefixes.resize(slots, 0);
        chunk.sets.resize(slots, EMPTY_SET);
        self.free.push(u64::MAX);
        self.queued.push(false);
        first as u32
    }
}

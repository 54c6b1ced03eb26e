//! Interned holder sets: every distinct set of holders is stored once, and a block names it by
//! number.
//!
//! A *holder* is a member of the scope on one tier, as one number. Bringing one holder to a block, or
//! taking it away, is a transition between two sets, found in a memo. Sets that no block uses stay
//! until they outnumber the others, so that a chain of blocks reuses one transition.

use hashbrown::hash_table::Entry;
use hashbrown::{HashMap, HashTable};
use xxhash_rust::xxh3::xxh3_64;

use crate::masks::Masks;
use crate::names::TIERS;
use crate::slots::EMPTY_SET;

const UNUSED_MIN: usize = 1024;

pub fn holder_of(member: u32, tier: u32) -> u32 {
    member * TIERS + tier
}

struct HolderSet {
    holders: Box<[u32]>,
    /// Blocks that have this set.
    blocks: u32,
}

pub struct HolderSets {
    sets: Vec<HolderSet>,
    free: Vec<u32>,
    unused: usize,
    interned: HashTable<u32>,
    memo: HashMap<(u32, u32), u32>,
    /// The memo's last answer: consecutive blocks mostly make one and the same transition.
    last: ((u32, u32), u32),
    pub masks: Masks,
}

impl Default for HolderSets {
    fn default() -> Self {
        let empty = HolderSet { holders: Box::default(), blocks: 0 };
        Self {
            sets: vec![empty],
            free: Vec::new(),
            unused: 0,
            interned: HashTable::new(),
            memo: HashMap::new(),
            last: ((EMPTY_SET, u32::MAX), EMPTY_SET),
            masks: Masks::default(),
        }
    }
}

impl HolderSets {
    pub fn holders(&self, set: u32) -> &[u32] {
        &self.sets[set as usize].holders
    }

    /// The set with the holder; the same set where it has it already.
    #[inline]
    pub fn with(&mut self, set: u32, holder: u32) -> u32 {
        self.transition(set, holder << 1 | 1)
    }

    /// The set without the holder.
    #[inline]
    pub fn without(&mut self, set: u32, holder: u32) -> u32 {
        self.transition(set, holder << 1)
    }

    #[inline]
    fn transition(&mut self, set: u32, step: u32) -> u32 {
        if self.last.0 == (set, step) {
            return self.last.1;
        }
        let next = match self.memo.get(&(set, step)) {
            Some(&next) => next,
            None => self.make_transition(set, step),
        };
        self.last = ((set, step), next);
        next
    }

    fn make_transition(&mut self, set: u32, step: u32) -> u32 {
        let (holder, adds) = (step >> 1, step & 1 == 1);
        let holders = &self.sets[set as usize].holders;
        let next = match (holders.binary_search(&holder), adds) {
            (Ok(_), true) | (Err(_), false) => set,
            (Err(at), true) => {
                let grown = [&holders[..at], &[holder], &holders[at..]].concat();
                self.intern(grown.into())
            }
            (Ok(at), false) => {
                let shrunk = [&holders[..at], &holders[at + 1..]].concat();
                self.intern(shrunk.into())
            }
        };
        self.memo.insert((set, step), next);
        next
    }

    fn intern(&mut self, holders: Box<[u32]>) -> u32 {
        if holders.is_empty() {
            return EMPTY_SET;
        }
        let sets = &mut self.sets;
        let next = self.free.last().copied().unwrap_or(sets.len() as u32);
        let found = self.interned.entry(
            holders_hash(&holders),
            |&set| sets[set as usize].holders == holders,
            |&set| holders_hash(&sets[set as usize].holders),
        );
        match found {
            Entry::Occupied(known) => return *known.get(),
            Entry::Vacant(vacant) => vacant.insert(next),
        };
        self.masks.write(next, &holders);
        let made = HolderSet { holders, blocks: 0 };
        if self.free.pop().is_some() {
            sets[next as usize] = made;
        } else {
            sets.push(made);
        }
        self.unused += 1;
        next
    }

    /// One block goes from one set to another.
    #[inline]
    pub fn move_block(&mut self, from: u32, to: u32) {
        if to != EMPTY_SET {
            let blocks = &mut self.sets[to as usize].blocks;
            self.unused -= usize::from(*blocks == 0);
            *blocks += 1;
        }
        if from != EMPTY_SET {
            let blocks = &mut self.sets[from as usize].blocks;
            *blocks -= 1;
            self.unused += usize::from(*blocks == 0);
        }
    }

    /// Holders of each set that has blocks.
    pub fn used(&self) -> impl Iterator<Item = &[u32]> {
        self.sets.iter().filter(|set| set.blocks > 0).map(|set| &*set.holders)
    }

    pub fn used_len(&self) -> usize {
        self.sets.len() - 1 - self.free.len() - self.unused
    }

    pub fn is_wasteful(&self) -> bool {
        self.unused > UNUSED_MIN + self.used_len()
    }

    /// Drops the sets that no block uses; afterwards no set names a holder without blocks.
    pub fn collect(&mut self) {
        self.memo = HashMap::new();
        self.last = ((EMPTY_SET, u32::MAX), EMPTY_SET);
        let sets = &mut self.sets;
        self.interned.retain(|&mut set| sets[set as usize].blocks > 0);
        self.interned
            .shrink_to(self.interned.len() * 2, |&set| holders_hash(&sets[set as usize].holders));
        for (number, set) in sets.iter_mut().enumerate().skip(1) {
            if set.blocks == 0 && !set.holders.is_empty() {
                set.holders = Box::default();
                self.free.push(number as u32);
            }
        }
        self.unused = 0;
    }

    /// Makes the masks wide enough; they are then computed again.
    pub fn widen(&mut self, instances: usize, members: usize) {
        if !self.masks.widen(instances, members) {
            return;
        }
        for (number, set) in self.sets.iter().enumerate() {
            self.masks.write(number as u32, &set.holders);
        }
    }

    /// All there are, used or not.
    pub fn len(&self) -> usize {
        self.sets.len()
    }

    /// The member holds nothing any more, whatever the sets say. `hide` makes that so of sets that
    /// there are.
    pub fn retire(&mut self, member: u32) {
        self.masks.retire(member);
    }

    /// Hides a retired member in so many sets from a number on; returns how many there were. Cost
    /// O(these).
    pub fn hide(&mut self, member: u32, from: usize, count: usize) -> usize {
        let end = self.sets.len().min(from + count);
        let from = from.min(end);
        for (number, set) in self.sets[from..end].iter().enumerate() {
            let at = set.holders.partition_point(|&holder| holder < holder_of(member, 0));
            if set.holders.get(at).is_some_and(|holder| holder / TIERS == member) {
                self.masks.write((from + number) as u32, &set.holders);
            }
        }
        end - from
    }

    pub fn memory_bytes(&self) -> usize {
        let holders: usize = self.sets.iter().map(|set| 4 * set.holders.len()).sum();
        holders
            + self.sets.capacity() * size_of::<HolderSet>()
            + 4 * self.free.capacity()
            + self.interned.allocation_size()
            + self.memo.allocation_size()
            + self.masks.memory_bytes()
    }
}

fn holders_hash(holders: &[u32]) -> u64 {
    // Holders are the kernel's own numbers, so no adversary chooses them.
    if let &[holder] = holders {
        return xxh3_64(&holder.to_le_bytes());
    }
    let bytes: Vec<u8> = holders.iter().flat_map(|holder| holder.to_le_bytes()).collect();
    xxh3_64(&bytes)
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use super::{HolderSets, UNUSED_MIN, holder_of};
    use crate::names::{SHARED, TIERS};
    use crate::random::Random;
    use crate::slots::EMPTY_SET;

    type Model = BTreeSet<u32>;

    const MEMBERS: u32 = 9;

    /// Blocks with their holders, as the sets say and as plain sets of numbers.
    struct Blocks {
        sets: HolderSets,
        numbers: Vec<u32>,
        models: Vec<Model>,
    }

    impl Blocks {
        fn new(len: usize) -> Self {
            let mut sets = HolderSets::default();
            for member in 0..MEMBERS {
                sets.masks.assign(member, member / 2);
            }
            Self { sets, numbers: vec![EMPTY_SET; len], models: vec![Model::new(); len] }
        }

        /// Brings a holder to a block, or takes it away.
        fn change(&mut self, at: usize, holder: u32, adds: bool) {
            let set = self.numbers[at];
            let next =
                if adds { self.sets.with(set, holder) } else { self.sets.without(set, holder) };
            self.sets.move_block(set, next);
            self.numbers[at] = next;
            if adds {
                self.models[at].insert(holder);
            } else {
                self.models[at].remove(&holder);
            }
        }

        fn check(&self) {
            let mut numbers = BTreeMap::new();
            for (&number, model) in self.numbers.iter().zip(&self.models) {
                assert_eq!(number == EMPTY_SET, model.is_empty());
                assert_eq!(*numbers.entry(model).or_insert(number), number, "one number a set");
            }
            numbers.remove(&Model::new());
            let distinct: BTreeSet<u32> = numbers.values().copied().collect();
            assert_eq!(distinct.len(), numbers.len(), "one set a number");
            let used: BTreeSet<Model> =
                self.sets.used().map(|holders| holders.iter().copied().collect()).collect();
            assert_eq!(used, numbers.keys().map(|&model| model.clone()).collect());
            assert_eq!(self.sets.used_len(), used.len());
        }
    }

    #[test]
    fn sets_are_those_of_a_model_through_random_changes() {
        for seed in 0..8 {
            let mut random = Random(seed);
            let mut blocks = Blocks::new(40);
            let mut collected = 0;
            for step in 0..6000 {
                let holder = random.below((MEMBERS * TIERS) as usize) as u32;
                blocks.change(random.below(40), holder, random.below(5) < 3);
                if blocks.sets.is_wasteful() {
                    blocks.sets.collect();
                    collected += 1;
                    assert_eq!(blocks.sets.interned.len(), blocks.sets.used_len());
                }
                if step % 97 == 0 {
                    blocks.check();
                }
            }
            blocks.check();
            assert!(collected > 0, "seed {seed}: no set was ever dropped");
            assert!(blocks.sets.unused <= UNUSED_MIN + blocks.sets.used_len() + 1);
        }
    }

    #[test]
    fn a_holder_that_is_there_or_not_there_changes_no_set() {
        let mut blocks = Blocks::new(1);
        let (gpu, pool) = (holder_of(3, 0), holder_of(3, SHARED));
        assert_eq!(blocks.sets.without(EMPTY_SET, gpu), EMPTY_SET);
        blocks.change(0, gpu, true);
        let set = blocks.numbers[0];
        assert_eq!(blocks.sets.with(set, gpu), set);
        assert_eq!(blocks.sets.without(set, pool), set);
        assert_eq!(blocks.sets.without(set, gpu), EMPTY_SET);
    }

    #[test]
    fn the_last_transition_is_forgotten_with_its_set() {
        let mut sets = HolderSets::default();
        sets.masks.assign(0, 0);
        sets.with(EMPTY_SET, 4);
        sets.collect();
        let again = sets.with(EMPTY_SET, 4);
        sets.move_block(EMPTY_SET, again);
        assert!(sets.used().eq([&[4][..]]));
    }

    #[test]
    fn unused_sets_are_too_many_when_they_outnumber_the_others_by_far() {
        let mut blocks = Blocks::new(5);
        (0..5).for_each(|at| blocks.change(at, at as u32, true));
        let sets = &mut blocks.sets;
        let mut random = Random(1);
        while sets.unused <= UNUSED_MIN + 5 {
            assert!(!sets.is_wasteful(), "{} of {}", sets.unused, sets.len());
            let pair = [random.below(1000) as u32 * TIERS + 1, random.below(1000) as u32 * TIERS];
            pair.iter().for_each(|holder| sets.masks.assign(holder / TIERS, 0));
            sets.masks.widen(1, 1000);
            let one = sets.with(EMPTY_SET, pair[0]);
            if sets.unused <= UNUSED_MIN + 5 {
                assert!(!sets.is_wasteful());
                sets.with(one, pair[1]);
            }
        }
        assert_eq!(sets.used_len(), 5);
        assert!(sets.is_wasteful());
    }

    /// Sets of up to six random holders, without blocks.
    fn random_sets(random: &mut Random, count: usize) -> HolderSets {
        let mut sets = HolderSets::default();
        (0..MEMBERS).for_each(|member| sets.masks.assign(member, member / 2));
        while sets.len() < count {
            let mut set = EMPTY_SET;
            for _ in 0..1 + random.below(6) {
                set = sets.with(set, random.below((MEMBERS * TIERS) as usize) as u32);
            }
        }
        sets
    }

    /// The masks of all sets, written anew.
    fn assert_masks_are_written(sets: &HolderSets, retired: Option<u32>, places: (usize, usize)) {
        let mut masks = crate::masks::Masks::default();
        (0..MEMBERS).for_each(|member| masks.assign(member, member / 2));
        masks.widen(places.0, places.1);
        retired.iter().for_each(|&member| masks.retire(member));
        for (number, set) in sets.sets.iter().enumerate().skip(1) {
            masks.write(number as u32, &set.holders);
            assert_eq!(sets.masks.of(number as u32), masks.of(number as u32), "{:?}", set.holders);
        }
    }

    #[test]
    fn a_retired_member_is_hidden_in_all_sets_step_by_step() {
        for member in 0..MEMBERS {
            let mut sets = random_sets(&mut Random(u64::from(member)), 300);
            sets.retire(member);
            let mut from = 0;
            loop {
                let seen = sets.hide(member, from, 7);
                assert_eq!(seen, 7.min(sets.len() - from));
                from += seen;
                if seen == 0 {
                    break;
                }
            }
            assert_eq!(from, sets.sets.len());
            assert_eq!(sets.hide(member, from + 5, 7), 0);
            assert_masks_are_written(&sets, Some(member), (1, 1));
        }
    }

    /// Each costs as much as to write it: hidden are those that the member is in.
    #[test]
    fn only_the_sets_of_a_retired_member_are_written_again() {
        let mut sets = random_sets(&mut Random(5), 300);
        let (mut left, member) = (0, MEMBERS / 2);
        for number in 1..sets.len() {
            let holders = sets.sets[number].holders.clone();
            if holders.iter().all(|holder| holder / TIERS != member) {
                sets.masks.write(number as u32, &[]); // so that it shows
                left += 1;
            }
        }
        sets.retire(member);
        sets.hide(member, 0, 300);
        let words = sets.masks.words();
        let is_left = |&number: &usize| sets.masks.of(number as u32) == vec![0; words];
        let pools = |number: &usize| sets.sets[*number].holders.iter().all(|h| h / TIERS == member);
        let empty = (1..sets.len()).filter(is_left).filter(|number| !pools(number)).count();
        assert_eq!((left > 50, empty), (true, left));
    }

    #[test]
    fn wider_masks_are_those_of_the_same_sets() {
        let mut sets = random_sets(&mut Random(4), 300);
        sets.widen(64, 64);
        assert_masks_are_written(&sets, None, (64, 64));
        sets.widen(65, 200);
        assert_masks_are_written(&sets, None, (65, 200));
    }

    #[test]
    fn memory_is_that_of_all_lists() {
        let mut sets = random_sets(&mut Random(3), 300);
        let some = sets.with(EMPTY_SET, 1);
        sets.move_block(EMPTY_SET, some);
        sets.collect();
        sets.with(EMPTY_SET, 2);
        let holders: usize = sets.sets.iter().map(|set| size_of_val(&*set.holders)).sum();
        let lists = [
            holders,
            24 * sets.sets.capacity(),
            4 * sets.free.capacity(),
            sets.interned.allocation_size(),
            sets.memo.allocation_size(),
            sets.masks.memory_bytes(),
        ];
        assert!(lists.iter().all(|&bytes| bytes > 0));
        assert_eq!(sets.memory_bytes(), lists.iter().sum());
    }

    #[test]
    fn numbers_of_dropped_sets_are_used_again() {
        let mut blocks = Blocks::new(1);
        for holder in 0..MEMBERS {
            blocks.change(0, holder_of(holder, 0), true);
        }
        let before = blocks.sets.sets.len();
        blocks.sets.collect();
        for holder in 0..MEMBERS - 1 {
            blocks.change(0, holder_of(holder, 0), false);
        }
        assert_eq!(blocks.sets.sets.len(), before);
        blocks.check();
    }
}

//! Holder sets as bitmaps over what a query asks for: one mask of words per set.
//!
//! A mask has eight parts, the first four with a bit per instance, the others with a bit per member
//! (rank):
//!
//!     any | GPU | CPU | DISK   on any rank of the instance or in a shared pool
//!     own                      the rank's own tiers, any of them
//!     walk GPU                 the rank's GPU
//!     walk CPU | walk DISK     the rank's own tier or a shared pool of that medium
//!
//! A pool sets the bits of all instances and members, present and future, so a member that joins
//! changes no mask.

use crate::names::{SHARED, TIERS, answered_tier, is_shared};

/// Sets whose masks are allocated at once; masks are not copied when more sets come.
const CHUNK_SETS: usize = 1024;
const PARTS: usize = 4;

pub struct Masks {
    /// Words per instance part and per member part.
    pub instance_words: usize,
    pub member_words: usize,
    /// Instance of each member.
    instance_of: Vec<u32>,
    /// Members that hold nothing any more, whatever the sets say.
    retired: Vec<bool>,
    chunks: Vec<Vec<u64>>,
}

impl Default for Masks {
    fn default() -> Self {
        Self {
            instance_words: 1,
            member_words: 1,
            instance_of: Vec::new(),
            retired: Vec::new(),
            chunks: Vec::new(),
        }
    }
}

impl Masks {
    pub fn words(&self) -> usize {
        PARTS * (self.instance_words + self.member_words)
    }

    #[inline]
    pub fn of(&self, set: u32) -> &[u64] {
        let start = set as usize % CHUNK_SETS * self.words();
        &self.chunks[set as usize / CHUNK_SETS][start..start + self.words()]
    }

    /// Whether the member holds the blocks of a set on a tier of its own.
    #[inline]
    pub fn is_own(&self, set: u32, member: u32) -> bool {
        let word = PARTS * self.instance_words + member as usize / 64;
        self.of(set)[word] >> (member % 64) & 1 == 1
    }

    pub fn assign(&mut self, member: u32, instance: u32) {
        let members = self.instance_of.len().max(member as usize + 1);
        self.instance_of.resize(members, 0);
        self.instance_of[member as usize] = instance;
        self.retired.resize(members, false);
        self.retired[member as usize] = false;
    }

    /// From now on the member's bits are left out. Masks with them must be written again.
    pub fn retire(&mut self, member: u32) {
        self.retired[member as usize] = true;
    }

    /// Makes room for this many; true where all masks must be written again.
    pub fn widen(&mut self, instances: usize, members: usize) -> bool {
        let fits = instances <= 64 * self.instance_words && members <= 64 * self.member_words;
        if fits {
            return false;
        }
        while instances > 64 * self.instance_words {
            self.instance_words *= 2;
        }
        while members > 64 * self.member_words {
            self.member_words *= 2;
        }
        self.chunks = Vec::new();
        true
    }

    /// Computes the mask of a set.
    pub fn write(&mut self, set: u32, holders: &[u32]) {
        let words = self.words();
        let chunk = set as usize / CHUNK_SETS;
        while self.chunks.len() <= chunk {
            self.chunks.push(Vec::new());
        }
        let start = set as usize % CHUNK_SETS * words;
        let masks = &mut self.chunks[chunk];
        if masks.len() < start + words {
            // The first chunk starts small: most scopes have few sets.
            masks.resize((2 * start).clamp(8 * words, CHUNK_SETS * words), 0);
        }
        let mask = &mut masks[start..start + words];
        mask.fill(0);
        let (per_instance, per_member) = mask.split_at_mut(PARTS * self.instance_words);
        for &holder in holders {
            let (member, tier) = (holder / TIERS, holder % TIERS);
            if self.retired.get(member as usize) == Some(&true) {
                continue;
            }
            if !is_shared(tier) {
                let tier = answered_tier(tier);
                let instance = self.instance_of[member as usize];
                set_bit(per_instance, 0, instance);
                set_bit(per_instance, (1 + tier) as usize * self.instance_words, instance);
                set_bit(per_member, 0, member);
                set_bit(per_member, (1 + tier) as usize * self.member_words, member);
            } else {
                let medium = (tier - SHARED) as usize;
                fill_part(per_instance, 0, self.instance_words);
                fill_part(per_instance, 1 + medium, self.instance_words);
                if medium > 0 {
                    fill_part(per_member, 1 + medium, self.member_words);
                }
            }
        }
    }

    pub fn memory_bytes(&self) -> usize {
        let masks: usize = self.chunks.iter().map(|masks| 8 * masks.capacity()).sum();
        masks + 4 * self.instance_of.capacity() + self.retired.capacity()
    }
}

pub fn set_bit(words: &mut [u64], start: usize, bit: u32) {
    words[start + bit as usize / 64] |= 1 << (bit % 64);
}

fn fill_part(words: &mut [u64], part: usize, len: usize) {
    words[part * len..(part + 1) * len].fill(u64::MAX);
}

#[cfg(test)]
mod tests {
    use super::{CHUNK_SETS, Masks, PARTS};
    use crate::names::{SHARED, TIERS, is_shared};
    use crate::random::Random;

    fn bit(masks: &Masks, set: u32, part: usize, at: u32) -> bool {
        let (instance_words, member_words) = (masks.instance_words, masks.member_words);
        let start = if part < PARTS {
            part * instance_words
        } else {
            PARTS * instance_words + (part - PARTS) * member_words
        };
        masks.of(set)[start + at as usize / 64] >> (at % 64) & 1 == 1
    }

    /// What the bit must be, straight from the description of the parts.
    fn expected(holders: &[u32], part: usize, at: u32, instance_of: impl Fn(u32) -> u32) -> bool {
        holders.iter().any(|holder| {
            let (member, tier) = (holder / TIERS, holder % TIERS);
            let medium = [0, 1, 2, 0, 1, 2, 1, 2][tier as usize];
            let own = !(3..=5).contains(&tier);
            match part {
                0 => !own || instance_of(member) == at,
                1..=3 => medium == part - 1 && (!own || instance_of(member) == at),
                4 => own && member == at,
                5 => own && medium == 0 && member == at,
                _ => medium == part - 5 && (!own || member == at),
            }
        })
    }

    fn check(masks: &Masks, set: u32, holders: &[u32], instances: u32, members: u32) {
        for part in 0..2 * PARTS {
            for at in 0..if part < PARTS { instances } else { members } {
                let wanted = expected(holders, part, at, |member| member / 3);
                assert_eq!(bit(masks, set, part, at), wanted, "{holders:?}, part {part}, bit {at}");
            }
        }
    }

    #[test]
    fn every_bit_says_what_its_part_means() {
        for (seed, members) in [(1, 1), (2, 20), (3, 64), (4, 65), (5, 200)] {
            let mut random = Random(seed);
            let mut masks = Masks::default();
            for member in 0..members {
                masks.assign(member, member / 3);
            }
            let instances = members.div_ceil(3);
            masks.widen(instances as usize, members as usize);
            for _ in 0..60 {
                // A number is written again for another set, as after the sets were collected.
                let set = 1 + random.below(20) as u32;
                let holders: Vec<u32> = (0..random.below(6))
                    .map(|_| random.below((members * TIERS) as usize) as u32)
                    .collect();
                masks.write(set, &holders);
                check(&masks, set, &holders, instances, members);
            }
        }
    }

    #[test]
    fn masks_of_many_sets_do_not_touch_each_other() {
        let mut masks = Masks::default();
        (0..30).for_each(|member| masks.assign(member, member / 3));
        let sets = 3 * CHUNK_SETS as u32;
        let holders = |set: u32| [set % 30 * TIERS + set % TIERS];
        for set in 0..sets {
            masks.write(set, &holders(set));
        }
        for set in (0..sets).step_by(7) {
            check(&masks, set, &holders(set), 10, 30);
        }
    }

    #[test]
    fn a_retired_member_counts_nowhere_until_its_number_is_given_again() {
        let mut masks = Masks::default();
        (0..4).for_each(|member| masks.assign(member, member / 3));
        let (own, pool) = (2 * TIERS + 1, 2 * TIERS + SHARED);
        masks.retire(2);
        masks.write(1, &[TIERS, own, pool]);
        check(&masks, 1, &[TIERS], 2, 4);
        masks.assign(2, 2 / 3);
        masks.write(1, &[TIERS, own, pool]);
        check(&masks, 1, &[TIERS, own, pool], 2, 4);
    }

    #[test]
    fn masks_have_the_fewest_words_by_doubling() {
        for instances in 1..=300_usize {
            for members in [1, 64, 65, 128, 129, 256, 257] {
                let mut masks = Masks::default();
                masks.widen(2, 3);
                let words = |bits: usize| bits.div_ceil(64).next_power_of_two();
                let is_wider = words(instances).max(words(members)) > 1;
                assert_eq!(masks.widen(instances, members), is_wider, "{instances}, {members}");
                let has = (masks.instance_words, masks.member_words);
                assert_eq!(has, (words(instances), words(members)));
                assert_eq!(masks.words(), 4 * (has.0 + has.1));
                let most = (64 * has.0, 64 * has.1);
                assert!(!masks.widen(most.0, most.1), "there is room");
            }
        }
    }

    #[test]
    fn the_masks_of_a_chunk_take_twice_the_room_when_they_are_full() {
        let mut masks = Masks::default();
        let mut len = 0;
        for set in 0..CHUNK_SETS {
            masks.write(set as u32, &[]);
            if set >= len {
                len = (2 * set).max(8);
            }
            assert_eq!(masks.chunks[0].len(), 8 * len, "set {set}");
        }
        masks.write(CHUNK_SETS as u32, &[]);
        let lens: Vec<usize> = masks.chunks.iter().map(Vec::len).collect();
        assert_eq!(lens, [8 * CHUNK_SETS, 8 * 8]);
    }

    #[test]
    fn own_blocks_are_those_of_the_member_on_tiers_of_its_own() {
        let mut masks = Masks::default();
        masks.widen(70, 200);
        (0..200).for_each(|member| masks.assign(member, member / 3));
        for set in 0..200 {
            masks.write(set, &[set * TIERS + set % TIERS, 7 * TIERS + SHARED]);
            for member in 0..200 {
                let expected = member == set && !is_shared(set % TIERS);
                assert_eq!(masks.is_own(set, member), expected, "{member} of {set}");
            }
        }
    }

    #[test]
    fn memory_is_that_of_all_lists() {
        let mut masks = Masks::default();
        (0..200).for_each(|member| masks.assign(member, 0));
        (0..2000).for_each(|set| masks.write(set, &[]));
        let chunks: usize = masks.chunks.iter().map(|masks| 8 * masks.capacity()).sum();
        let lists = [chunks, 4 * masks.instance_of.capacity(), masks.retired.capacity()];
        assert!(lists.iter().all(|&bytes| bytes > 0));
        assert_eq!(masks.memory_bytes(), lists.iter().sum());
    }

    #[test]
    fn a_pool_counts_for_members_that_join_later() {
        let mut masks = Masks::default();
        masks.assign(0, 0);
        masks.write(1, &[SHARED + 1]);
        assert!(!masks.widen(64, 64), "there is room for 64 from the start");
        check(&masks, 1, &[SHARED + 1], 22, 64);
        assert!(masks.widen(64, 65), "a wider mask has to be written again");
    }
}

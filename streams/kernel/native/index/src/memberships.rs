//! A publisher's parts in scopes, by number.
//!
//! A publisher may name thousands of LoRA adapters, each a scope: what is asked for with each event
//! or clear costs no more where many were named before.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::sync::Arc;

use hashbrown::HashMap;

/// A publisher's part in one scope; it lives while there are entries or a registration.
#[derive(Clone)]
pub struct Membership {
    pub lora_name: Arc<str>,
    pub scope: u32,
    /// Number within the scope.
    pub member: u32,
    pub context: u32,
    /// Held (key, tier) pairs; `own` are those that are not in shared pools, `owned` those of an
    /// owner beside the engine.
    pub entries: u64,
    pub own: u64,
    pub owned: u64,
    pub digest: u64,
    /// Registered here, and routable.
    pub registered: bool,
    /// In a scope in which blocks wait, or of aliases: (prefix, key) -> a bit per tier; else None.
    pub named: Option<Named>,
    /// A scope in which blocks wait.
    pub waits: bool,
    /// A scope of what engines call blocks.
    pub aliases: bool,
    /// A scope of blocks that are left out.
    pub left_out: bool,
    /// The scope of how often blocks were announced again.
    pub repeated: bool,
    /// A scope that no answer sees, as these are.
    pub hidden: bool,
    /// Blocks, by tier, that not all groups hold which form prefixes; see `groups`.
    pub uneven: u64,
}

pub type Named = BTreeMap<(u64, u64), u8>;

impl Membership {
    pub fn is_used(&self) -> bool {
        self.entries > 0 || self.registered
    }

    /// The keys of the entries of one prefix, ascending, where these are kept (`named`).
    pub fn keys_of(&self, prefix: u64) -> Vec<u64> {
        let found =
            self.named.iter().flat_map(|named| named.range((prefix, 0)..=(prefix, u64::MAX)));
        found.map(|(&(_, key), _)| key).collect()
    }

    pub fn member_id(&self) -> MemberId {
        MemberId { scope: self.scope, member: self.member }
    }
}

/// What a scope calls a member.
#[derive(Clone, Copy)]
pub struct MemberId {
    pub scope: u32,
    pub member: u32,
}

/// A membership, and where its number stands among the `present` ones.
struct Part {
    membership: Membership,
    place: u32,
}

#[derive(Default)]
pub struct Memberships {
    parts: Vec<Option<Part>>,
    vacant: BinaryHeap<Reverse<u32>>,
    present: Vec<u32>,
    by_lora: HashMap<Arc<str>, u32>,
}

impl Memberships {
    #[inline]
    pub fn get(&self, number: u32) -> Option<&Membership> {
        Some(&self.parts.get(number as usize)?.as_ref()?.membership)
    }

    #[inline]
    pub fn get_mut(&mut self, number: u32) -> Option<&mut Membership> {
        Some(&mut self.parts.get_mut(number as usize)?.as_mut()?.membership)
    }

    /// The number of the one in the scope of an adapter.
    pub fn number_of(&self, lora_name: &str) -> Option<u32> {
        self.by_lora.get(lora_name).copied()
    }

    /// Adds one, whose adapter has none; returns its number, the lowest that is free.
    pub fn insert(&mut self, membership: Membership) -> u32 {
        let number = self.vacant.pop().map_or(self.parts.len() as u32, |Reverse(free)| free);
        assert!(number < 1 << 24, "an entry has 24 bits for its membership");
        if number as usize == self.parts.len() {
            self.parts.push(None);
        }
        self.by_lora.insert(membership.lora_name.clone(), number);
        let place = self.present.len() as u32;
        self.present.push(number);
        self.parts[number as usize] = Some(Part { membership, place });
        number
    }

    /// Takes one out that has no entries and no registration.
    pub fn remove_unused(&mut self, number: u32) -> Option<Membership> {
        let unused = |part: &mut Part| !part.membership.is_used();
        let Part { membership, place } = self.parts.get_mut(number as usize)?.take_if(unused)?;
        self.present.swap_remove(place as usize);
        if let Some(&moved) = self.present.get(place as usize)
            && let Some(part) = &mut self.parts[moved as usize]
        {
            part.place = place;
        }
        self.by_lora.remove(&membership.lora_name);
        self.vacant.push(Reverse(number));
        Some(membership)
    }

    /// The numbers of all, ascending. Cost O(n log n) of those that there are.
    pub fn numbers(&self) -> Vec<u32> {
        let mut numbers = self.present.clone();
        numbers.sort_unstable();
        numbers
    }

    /// All of them, in no particular order.
    pub fn iter(&self) -> impl Iterator<Item = &Membership> {
        self.present.iter().filter_map(|&number| self.get(number))
    }

    /// What `of` says of each, by number; None for a number that is free.
    pub fn map<T: Clone>(&self, of: impl Fn(&Membership) -> T) -> Vec<Option<T>> {
        let mut mapped = vec![None; self.parts.len()];
        for &number in &self.present {
            mapped[number as usize] = self.get(number).map(&of);
        }
        mapped
    }

    pub fn memory_bytes(&self) -> usize {
        self.parts.capacity() * size_of::<Option<Part>>()
            + (self.vacant.capacity() + self.present.capacity()) * size_of::<u32>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn membership(lora_name: &str, entries: u64) -> Membership {
        Membership {
            lora_name: lora_name.into(),
            scope: 0,
            member: 0,
            context: 0,
            entries,
            own: entries,
            owned: 0,
            digest: 0,
            registered: false,
            named: None,
            waits: false,
            aliases: false,
            left_out: false,
            repeated: false,
            hidden: false,
            uneven: 0,
        }
    }

    fn names(memberships: &Memberships) -> Vec<&str> {
        let of = |&number: &u32| &*memberships.get(number).unwrap().lora_name;
        memberships.numbers().iter().map(of).collect()
    }

    #[test]
    fn lowest_free_number_is_given_again() {
        let mut memberships = Memberships::default();
        for (number, name) in ["a", "b", "c", "d"].into_iter().enumerate() {
            assert_eq!(memberships.insert(membership(name, 0)), number as u32);
        }
        for number in [2, 0, 1] {
            assert!(memberships.remove_unused(number).is_some());
        }
        assert_eq!(memberships.numbers(), [3]);
        assert_eq!(memberships.insert(membership("e", 1)), 0);
        assert_eq!(memberships.insert(membership("f", 1)), 1);
        assert_eq!(names(&memberships), ["e", "f", "d"]);
        assert_eq!(memberships.number_of("f"), Some(1));
        assert_eq!(memberships.number_of("b"), None);
    }

    #[test]
    fn what_is_used_stays() {
        let mut memberships = Memberships::default();
        let held = memberships.insert(membership("held", 1));
        let registered = memberships.insert(Membership { registered: true, ..membership("r", 0) });
        assert!(memberships.remove_unused(held).is_none());
        assert!(memberships.remove_unused(registered).is_none());
        memberships.get_mut(held).unwrap().entries = 0;
        assert!(memberships.remove_unused(held).is_some());
        assert!(memberships.remove_unused(held).is_none());
        assert!(memberships.remove_unused(7).is_none());
        assert_eq!(names(&memberships), ["r"]);
        assert_eq!(memberships.map(|part| part.registered), [None, Some(true)]);
    }

    #[test]
    fn memory_is_that_of_all_numbers_ever_given() {
        let mut memberships = Memberships::default();
        for number in 0..4096 {
            memberships.insert(membership(&number.to_string(), 0));
        }
        (0..2048).for_each(|number| assert!(memberships.remove_unused(number).is_some()));
        let least = 4096 * size_of::<Option<Part>>() + (4096 + 2048) * size_of::<u32>();
        assert!((least..2 * least).contains(&memberships.memory_bytes()));
    }

    #[test]
    fn present_ones_are_those_that_were_not_removed() {
        let mut random = crate::random::Random(7);
        let mut memberships = Memberships::default();
        let mut expected = std::collections::BTreeMap::new();
        for step in 0..10_000 {
            let number = random.below(40) as u32;
            if random.below(2) == 0 {
                let name = format!("{step}");
                expected.insert(memberships.insert(membership(&name, 0)), name);
            } else {
                let gone = memberships.remove_unused(number).map(|part| part.lora_name.to_string());
                assert_eq!(gone, expected.remove(&number), "step {step}, seed 7");
            }
            let mut present: Vec<_> = memberships.iter().map(|p| p.lora_name.to_string()).collect();
            present.sort_unstable();
            let mut names: Vec<_> = expected.values().cloned().collect();
            names.sort_unstable();
            assert_eq!(present, names, "step {step}, seed 7");
            assert!(memberships.numbers().is_sorted());
        }
    }
}

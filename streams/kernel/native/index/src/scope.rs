//! One scope: its blocks, who holds them, and which ranks take part in its answers.

use std::sync::Arc;

use hashbrown::HashMap;

use crate::hashing::Placement;
use crate::names::{ScopeKey, Sharing, TIERS};
use crate::roster::{Roster, RosterEntry};
use crate::sets::{HolderSets, holder_of};
use crate::slots::{EMPTY_SET, Slots};
use crate::tables::{Places, Sharded};

/// A publisher that is registered in the scope or holds blocks there.
struct Member {
    publisher: u64,
    instance: u32,
    dp_rank: u32,
    participates: bool,
    /// Registered as one that has a part of each block.
    is_shard: bool,
    sharing: Sharing,
}

struct Instance {
    name: Arc<str>,
    members: u32,
}

pub struct Scope {
    pub key: ScopeKey,
    pub slots: Slots,
    pub sets: HolderSets,
    pub roster: Roster,
    index: Sharded<u32, 12, 16>,
    /// (slot, holder) -> further keys of the holder that name the block, beyond the first.
    repeats: HashMap<(u32, u32), u32>,
    members: Vec<Option<Member>>,
    instances: Vec<Option<Instance>>,
    instance_ids: HashMap<Arc<str>, u32>,
    free_members: Vec<u32>,
    free_instances: Vec<u32>,
    /// Numbers that left, which unused sets may still contain: free after the next `collect`.
    left_members: Vec<u32>,
    left_instances: Vec<u32>,
    joined: usize,
    /// Numbers of members that were cleared, while blocks are yet to be released from them.
    retired: usize,
    roster_is_stale: bool,
}

impl Scope {
    pub fn new(key: ScopeKey) -> Self {
        Self {
            key,
            slots: Slots::default(),
            sets: HolderSets::default(),
            roster: Roster::default(),
            index: Sharded::default(),
            repeats: HashMap::new(),
            members: Vec::new(),
            instances: Vec::new(),
            instance_ids: HashMap::new(),
            free_members: Vec::new(),
            free_instances: Vec::new(),
            left_members: Vec::new(),
            left_instances: Vec::new(),
            joined: 0,
            retired: 0,
            roster_is_stale: false,
        }
    }

    /// Whether nothing refers to the scope any more.
    pub fn is_vacant(&self) -> bool {
        self.joined == 0 && self.retired == 0
    }

    /// Whether anybody is registered or holds blocks in it.
    pub fn has_members(&self) -> bool {
        self.joined > 0
    }

    // Members

    pub fn join(&mut self, publisher: u64, instance_id: &Arc<str>, dp_rank: u32) -> u32 {
        let instance = match self.instance_ids.get(instance_id) {
            Some(&instance) => instance,
            None => self.add_instance(instance_id.clone()),
        };
        if let Some(instance) = &mut self.instances[instance as usize] {
            instance.members += 1;
        }
        let (participates, is_shard, sharing) = (false, false, Sharing::default());
        let member = Member { publisher, instance, dp_rank, participates, is_shard, sharing };
        self.joined += 1;
        self.number(member)
    }

    fn number(&mut self, member: Member) -> u32 {
        let instance = member.instance;
        // Whoever reads it names it by its number.
        self.roster_is_stale |= self.roster.has_readers();
        let number = take_number(&mut self.free_members, &mut self.members, member);
        self.sets.masks.assign(number, instance);
        self.sets.widen(self.instances.len(), self.members.len());
        number
    }

    /// The member holds nothing from now on, and is given another number; its blocks are yet to be
    /// released from the old one, which is to be given to `sets.hide` first and to `bury` then.
    pub fn retire(&mut self, number: u32) -> u32 {
        let Some(member) = self.members[number as usize].take() else { return number };
        self.roster_is_stale |= member.participates;
        self.retired += 1;
        self.sets.retire(number);
        self.number(member)
    }

    /// A retired number has no blocks any more.
    pub fn bury(&mut self, number: u32) {
        self.retired -= 1;
        self.left_members.push(number);
    }

    fn add_instance(&mut self, name: Arc<str>) -> u32 {
        let instance = Instance { name: name.clone(), members: 0 };
        let number = take_number(&mut self.free_instances, &mut self.instances, instance);
        self.instance_ids.insert(name, number);
        number
    }

    /// The member must hold no block any more.
    pub fn leave(&mut self, member: u32) {
        let Some(gone) = self.members[member as usize].take() else { return };
        self.joined -= 1;
        self.left_members.push(member);
        self.roster_is_stale |= gone.participates;
        let Some(instance) = &mut self.instances[gone.instance as usize] else { return };
        instance.members -= 1;
        if instance.members == 0 {
            self.instance_ids.remove(&instance.name);
            self.instances[gone.instance as usize] = None;
            self.left_instances.push(gone.instance);
        }
    }

    /// The publishers of its members, in no order.
    pub fn publishers(&self) -> impl Iterator<Item = u64> {
        self.members.iter().flatten().map(|member| member.publisher)
    }

    pub fn publisher_of(&self, member: u32) -> u64 {
        self.members[member as usize].as_ref().map_or(u64::MAX, |member| member.publisher)
    }

    pub fn set_participates(&mut self, member: u32, participates: bool) {
        if let Some(member) = &mut self.members[member as usize] {
            self.roster_is_stale |= member.participates != participates;
            member.participates = participates;
        }
    }

    /// Whether the member is registered as one that has a part of each block.
    pub fn set_shard(&mut self, member: u32, is_shard: bool) {
        if let Some(member) = &mut self.members[member as usize] {
            self.roster_is_stale |= member.is_shard != is_shard;
            member.is_shard = is_shard;
        }
    }

    /// What the member is registered with, in whatever scope.
    pub fn set_sharing(&mut self, member: u32, sharing: &Sharing) {
        if let Some(member) = &mut self.members[member as usize]
            && member.sharing != *sharing
        {
            self.roster_is_stale = true;
            member.sharing = sharing.clone();
        }
    }

    /// To be done before queries see the scope again.
    pub fn settle(&mut self) {
        let many_left = self.left_members.len() > 64 + self.joined;
        if self.sets.is_wasteful() || many_left {
            self.sets.collect();
            self.free_members.append(&mut self.left_members);
            self.free_instances.append(&mut self.left_instances);
        }
        if self.roster_is_stale {
            self.roster_is_stale = false;
            self.roster = self.new_roster();
        }
    }

    fn new_roster(&self) -> Roster {
        let mut ranks: HashMap<u32, (Vec<(u32, u32)>, bool)> = HashMap::new();
        for (number, member) in self.members.iter().enumerate() {
            if let Some(member) = member.as_ref().filter(|member| member.participates) {
                let (of_instance, is_sharded) = ranks.entry(member.instance).or_default();
                of_instance.push((member.dp_rank, number as u32));
                *is_sharded |= member.is_shard;
            }
        }
        let sharers = self.sharers();
        let mut entries = Vec::with_capacity(ranks.len());
        for (instance, (mut ranks, is_sharded)) in ranks {
            if let Some(known) = &self.instances[instance as usize] {
                ranks.sort_unstable();
                let name = known.name.clone();
                let readable = sharers
                    .as_ref()
                    .map_or_else(Vec::new, |sharers| self.readable(&ranks, sharers));
                entries.push(RosterEntry { name, instance, ranks, is_sharded, readable });
            }
        }
        Roster::new(entries)
    }

    /// All members by what others call them, and by their instance; None where each that takes part
    /// reads all.
    fn sharers(&self) -> Option<Sharers<'_>> {
        let does_read = |member: &Member| member.participates && member.sharing.reads.is_some();
        self.members.iter().flatten().any(does_read).then(|| {
            let mut sharers = Sharers::default();
            for (number, member) in self.members.iter().enumerate() {
                let Some(member) = member else { continue };
                let instance = self.instances[member.instance as usize].as_ref();
                let name = member.sharing.shared_as.as_ref();
                if let Some(name) = name.or(instance.map(|instance| &instance.name)) {
                    sharers.by_name.entry(&**name).or_default().push(number as u32);
                }
                sharers.by_instance.entry(member.instance).or_default().push(number as u32);
            }
            sharers
        })
    }

    /// See `RosterEntry`.
    fn readable(&self, ranks: &[(u32, u32)], sharers: &Sharers) -> Vec<Vec<u32>> {
        let members =
            ranks.iter().filter_map(|&(_, member)| self.members[member as usize].as_ref());
        if members.clone().all(|member| member.sharing.reads.is_none()) {
            return Vec::new();
        }
        let of_rank = |member: &Member| -> Vec<u32> {
            let Some(reads) = &member.sharing.reads else {
                return sharers.by_instance.values().flatten().copied().collect();
            };
            let named = reads.iter().filter_map(|name| sharers.by_name.get(&**name));
            let own = sharers.by_instance.get(&member.instance);
            named.chain(own).flatten().copied().collect()
        };
        let mut readable: Vec<Vec<u32>> = members.map(of_rank).collect();
        readable.iter_mut().for_each(|numbers| numbers.sort_unstable());
        readable
    }

    // Blocks

    #[inline]
    pub fn find(&self, prefix: u64, placement: Placement) -> Option<u32> {
        let same = |&slot: &u32| self.slots.prefix(slot) == prefix;
        self.index.find(placement.of(prefix), same).copied()
    }

    #[inline]
    pub fn touch(&self, prefix: u64, placement: Placement) {
        self.index.touch(placement.of(prefix));
    }

    /// The slot of a block, made where it is new; `key` is what its holder calls it, `after` the slot
    /// of the block before it. A new slot must be given a holder.
    #[inline]
    pub fn place(
        &mut self,
        prefix: u64,
        key: u64,
        after: Option<u32>,
        placement: Placement,
    ) -> u32 {
        if let Some(next) = after.and_then(|slot| slot.checked_add(1)) {
            let guess = self.slots.get(next);
            if guess.is_some_and(|(known, set)| known == prefix && set != EMPTY_SET) {
                return next;
            }
        }
        if let Some(slot) = self.find(prefix, placement) {
            return slot;
        }
        let slot = self.slots.allocate(prefix, key, after);
        let places = SlotPlaces { slots: &self.slots, placement };
        self.index.insert(placement.of(prefix), slot, places);
        slot
    }

    /// One more key of the holder names the block.
    #[inline]
    pub fn hold(&mut self, slot: u32, holder: u32) {
        let set = self.slots.set(slot);
        let next = self.sets.with(set, holder);
        if next == set {
            *self.repeats.entry((slot, holder)).or_insert(0) += 1;
        } else {
            self.sets.move_block(set, next);
            self.slots.replace_set(slot, next);
        }
    }

    /// How many keys of a holder of the block name it.
    #[inline]
    pub fn names(&self, slot: u32, holder: u32) -> u64 {
        1 + u64::from(self.repeats.get(&(slot, holder)).copied().unwrap_or(0))
    }

    /// Whether a member holds the block of a prefix, on any tier.
    pub fn is_held(&self, prefix: u64, member: u32, placement: Placement) -> bool {
        let Some(slot) = self.find(prefix, placement) else { return false };
        let holders = self.sets.holders(self.slots.set(slot));
        (0..TIERS).any(|tier| holders.contains(&holder_of(member, tier)))
    }

    /// One key less; a block without holders goes.
    #[inline]
    pub fn release(&mut self, slot: u32, holder: u32, placement: Placement) {
        if !self.repeats.is_empty()
            && let Some(further) = self.repeats.get_mut(&(slot, holder))
        {
            *further -= 1;
            if *further == 0 {
                self.repeats.remove(&(slot, holder));
            }
            return;
        }
        let set = self.slots.set(slot);
        let next = self.sets.without(set, holder);
        self.sets.move_block(set, next);
        self.slots.replace_set(slot, next);
        if next == EMPTY_SET {
            let prefix = self.slots.prefix(slot);
            let places = SlotPlaces { slots: &self.slots, placement };
            self.index.change(
                placement.of(prefix),
                |&known| known == slot,
                |_| (true, true),
                places,
            );
            self.slots.release(slot);
        }
    }

    pub fn memory_bytes(&self) -> usize {
        self.slots.memory_bytes()
            + self.sets.memory_bytes()
            + self.index.memory_bytes()
            + self.repeats.allocation_size()
            + self.members.capacity() * size_of::<Option<Member>>()
            + self.instances.capacity() * size_of::<Option<Instance>>()
            + size_of::<Self>()
    }
}

/// Members by number, as those find them who read what they share.
#[derive(Default)]
struct Sharers<'a> {
    by_name: HashMap<&'a str, Vec<u32>>,
    by_instance: HashMap<u32, Vec<u32>>,
}

/// Where the slots are in the index.
struct SlotPlaces<'a> {
    slots: &'a Slots,
    placement: Placement,
}

impl Places<u32> for SlotPlaces<'_> {
    #[inline]
    fn of(&self, &slot: &u32) -> u64 {
        self.placement.of(self.slots.prefix(slot))
    }

    #[inline]
    fn touch(&self, &slot: &u32) {
        self.slots.touch_prefix(slot);
    }
}

/// Puts a value in a free place or a new one; returns its number.
fn take_number<T>(free: &mut Vec<u32>, values: &mut Vec<Option<T>>, value: T) -> u32 {
    if let Some(number) = free.pop() {
        values[number as usize] = Some(value);
        return number;
    }
    values.push(Some(value));
    values.len() as u32 - 1
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::names::test_context;

    /// Else a scope whose instances come and go would grow for good.
    #[test]
    fn numbers_of_members_and_instances_that_left_are_given_again() {
        let mut scope = Scope::new(test_context("").scope);
        let stays: Arc<str> = "stays".into();
        let kept = scope.join(0, &stays, 0);
        scope.join(1, &stays, 1);
        for round in 0..1000_u64 {
            let name: Arc<str> = format!("{round}").into();
            let members = [scope.join(2, &name, 0), scope.join(3, &name, 1)];
            assert_eq!(scope.instance_ids.len(), 2);
            scope.leave(members[0]);
            scope.settle();
            assert_eq!(scope.instance_ids.len(), 2, "it has another member");
            scope.leave(members[1]);
            scope.settle();
            assert_eq!(scope.instance_ids.len(), 1);
            assert!(scope.left_members.len() <= 64 + 3, "{}", scope.left_members.len());
        }
        // Those that left are free once there are more than 64, and more than there are members.
        assert!((60..72).contains(&scope.members.len()), "{}", scope.members.len());
        assert!((30..40).contains(&scope.instances.len()), "{}", scope.instances.len());
        assert_eq!((scope.publisher_of(kept), scope.joined), (0, 2));
    }

    #[test]
    fn memory_is_that_of_all_parts() {
        let mut scope = Scope::new(test_context("").scope);
        let placement = Placement::random();
        for at in 0..3_u32 {
            let member = scope.join(at.into(), &format!("{at}").into(), 0);
            let slot = scope.place(7, 7, None, placement);
            (0..2).for_each(|_| scope.hold(slot, crate::sets::holder_of(member, 0)));
        }
        let parts = [
            scope.slots.memory_bytes(),
            scope.sets.memory_bytes(),
            scope.index.memory_bytes(),
            scope.repeats.allocation_size(),
            scope.members.capacity() * size_of::<Option<Member>>(),
            scope.instances.capacity() * size_of::<Option<Instance>>(),
            size_of::<Scope>(),
        ];
        assert!(parts.iter().all(|&bytes| bytes > 0));
        assert_eq!(scope.memory_bytes(), parts.iter().sum());
    }
}

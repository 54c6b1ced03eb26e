//! One scope: its blocks, who holds them, and which ranks take part in its answers.

use std::sync::Arc;

use hashbrown::HashMap;

use crate::hashing::Placement;
use crate::names::ScopeKey;
use crate::rows::{EMPTY_SET, Rows};
use crate::sets::HolderSets;
use crate::tables::Sharded;

/// A publisher that is registered in the scope or holds blocks there.
struct Member {
    publisher: u64,
    instance: u32,
    dp_rank: u32,
    participates: bool,
}

struct Instance {
    name: Arc<str>,
    members: u32,
}

/// An instance with ranks that take part, in the order of answers.
pub struct RosterEntry {
    pub name: Arc<str>,
    pub instance: u32,
    /// (dp_rank, member), sorted.
    pub ranks: Vec<(u32, u32)>,
}

pub struct Scope {
    pub key: ScopeKey,
    pub rows: Rows,
    pub sets: HolderSets,
    /// Sorted by name.
    pub roster: Vec<RosterEntry>,
    index: Sharded<u32>,
    /// (row, slot) -> further keys of the holder that name the block, beyond the first.
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
    roster_is_stale: bool,
}

impl Scope {
    pub fn new(key: ScopeKey) -> Self {
        Self {
            key,
            rows: Rows::default(),
            sets: HolderSets::default(),
            roster: Vec::new(),
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
            roster_is_stale: false,
        }
    }

    /// Whether nothing refers to the scope any more.
    pub fn is_vacant(&self) -> bool {
        self.joined == 0
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
        let member = Member { publisher, instance, dp_rank, participates: false };
        let number = take_number(&mut self.free_members, &mut self.members, member);
        self.joined += 1;
        self.sets.masks.assign(number, instance);
        self.sets.widen(self.instances.len(), self.members.len());
        number
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

    pub fn publisher_of(&self, member: u32) -> u64 {
        self.members[member as usize].as_ref().map_or(u64::MAX, |member| member.publisher)
    }

    pub fn set_participates(&mut self, member: u32, participates: bool) {
        if let Some(member) = &mut self.members[member as usize] {
            self.roster_is_stale |= member.participates != participates;
            member.participates = participates;
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
            self.rebuild_roster();
        }
    }

    fn rebuild_roster(&mut self) {
        let mut ranks: HashMap<u32, Vec<(u32, u32)>> = HashMap::new();
        for (number, member) in self.members.iter().enumerate() {
            if let Some(member) = member.as_ref().filter(|member| member.participates) {
                let of_instance = ranks.entry(member.instance).or_default();
                of_instance.push((member.dp_rank, number as u32));
            }
        }
        let mut roster = Vec::with_capacity(ranks.len());
        for (instance, mut ranks) in ranks {
            if let Some(known) = &self.instances[instance as usize] {
                ranks.sort_unstable();
                roster.push(RosterEntry { name: known.name.clone(), instance, ranks });
            }
        }
        roster.sort_unstable_by(|a, b| a.name.cmp(&b.name));
        self.roster = roster;
    }

    // Blocks

    #[inline]
    pub fn find(&self, prefix: u64, placement: Placement) -> Option<u32> {
        let same = |&row: &u32| self.rows.prefix(row) == prefix;
        self.index.find(placement.of(prefix), same).copied()
    }

    #[inline]
    pub fn touch(&self, prefix: u64, placement: Placement) {
        let same = |&row: &u32| self.rows.prefix(row) == prefix;
        self.index.touch(placement.of(prefix), same);
    }

    /// The row of a block, made where it is new; `after` is the row of the block before it. A new
    /// row must be given a holder.
    #[inline]
    pub fn place(&mut self, prefix: u64, after: Option<u32>, placement: Placement) -> u32 {
        if let Some(next) = after.and_then(|row| row.checked_add(1)) {
            let guess = self.rows.get(next);
            if guess.is_some_and(|(known, set)| known == prefix && set != EMPTY_SET) {
                return next;
            }
        }
        // Both closures look at rows while the third makes one, so the steps are apart.
        if let Some(row) = self.find(prefix, placement) {
            return row;
        }
        let row = self.rows.allocate(prefix, after);
        let rows = &self.rows;
        self.index.find_or_insert(
            placement.of(prefix),
            |_| false,
            |&row| placement.of(rows.prefix(row)),
            || row,
        );
        row
    }

    /// One more key of the holder names the block.
    #[inline]
    pub fn hold(&mut self, row: u32, slot: u32) {
        let set = self.rows.set(row);
        let next = self.sets.with(set, slot);
        if next == set {
            *self.repeats.entry((row, slot)).or_insert(0) += 1;
        } else {
            self.sets.move_block(set, next);
            self.rows.replace_set(row, next);
        }
    }

    /// One key less; a block without holders goes.
    #[inline]
    pub fn release(&mut self, row: u32, slot: u32, placement: Placement) {
        if !self.repeats.is_empty()
            && let Some(further) = self.repeats.get_mut(&(row, slot))
        {
            *further -= 1;
            if *further == 0 {
                self.repeats.remove(&(row, slot));
            }
            return;
        }
        let set = self.rows.set(row);
        let next = self.sets.without(set, slot);
        self.sets.move_block(set, next);
        self.rows.replace_set(row, next);
        if next == EMPTY_SET {
            let prefix = self.rows.prefix(row);
            let rows = &self.rows;
            self.index.remove(
                placement.of(prefix),
                |&known| known == row,
                |&row| placement.of(rows.prefix(row)),
            );
            self.rows.release(row);
        }
    }

    pub fn memory_bytes(&self) -> usize {
        self.rows.memory_bytes()
            + self.sets.memory_bytes()
            + self.index.memory_bytes()
            + self.repeats.allocation_size()
            + self.members.capacity() * size_of::<Option<Member>>()
            + self.instances.capacity() * size_of::<Option<Instance>>()
            + size_of::<Self>()
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

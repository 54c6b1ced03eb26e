//! The elementary steps on one entry: its count goes up, goes down, or is set.

use std::sync::Arc;

use crate::block::Block;
use crate::changes::Change;
use crate::counters::Counter;
use crate::entry_table::Entry;
use crate::hashing::entry_digest;
use crate::left_out::CONFLICT;
use crate::limits::HOLD_COUNT_MAX;
use crate::memberships::Membership;
use crate::names::{OWNED, is_shared};
use crate::publisher::Publisher;
use crate::sets::holder_of;
use crate::state::Index;

/// Blocks whose places in the tables are asked for together, so that cache misses overlap.
pub const AHEAD: usize = 64;

/// A new count of one entry.
struct Step {
    block: Block,
    slot: u32,
    dp_rank: u32,
    groups: u64,
    before: u16,
    after: u16,
}

impl Step {
    #[inline]
    fn of(publisher: &Publisher, block: Block, slot: u32, (before, after): (u16, u16)) -> Self {
        let (dp_rank, groups) = (publisher.dp_rank, publisher.groups);
        Self { block, slot, dp_rank, groups, before, after }
    }
}

impl Index {
    /// Brings the blocks' places in the index into the cache.
    #[inline]
    pub fn touch_blocks(&self, publisher: &Publisher, number: u32, prefixes: &[u64]) {
        if let Some(membership) = publisher.memberships.get(number) {
            let scope = &self.scopes[membership.scope as usize];
            for &prefix in prefixes {
                scope.touch(prefix, self.placement);
            }
        }
    }

    /// The same for changes of one publisher, `AHEAD` at most: of their keys, too. What is not its
    /// own of them is only looked at in vain.
    pub fn touch_changes(&self, publisher: &Publisher, lora_name: &str, changes: &[Change]) {
        for change in changes {
            publisher.entries.touch(change.key, self.placement);
        }
        if let Some(number) = publisher.memberships.number_of(lora_name) {
            let mut prefixes = [0; AHEAD];
            for (prefix, change) in prefixes.iter_mut().zip(changes) {
                *prefix = change.prefix;
            }
            self.touch_blocks(publisher, number, &prefixes[..changes.len()]);
        }
    }

    /// The entries of some keys, `AHEAD` at most, whose blocks are brought into the cache.
    pub fn find_ahead(
        &self,
        publisher: &Publisher,
        hashes: &[[u8; 8]],
        mask: u64,
    ) -> [Option<Entry>; AHEAD] {
        let mut wanted = [0; AHEAD];
        let wanted = &mut wanted[..hashes.len()];
        for (key, &hash) in wanted.iter_mut().zip(hashes) {
            *key = u64::from_le_bytes(hash) ^ mask;
        }
        let mut found = [None; AHEAD];
        publisher.entries.find_all(wanted, self.keys(publisher), &mut found);
        for entry in found.iter().flatten() {
            if let Some(membership) = publisher.memberships.get(entry.membership) {
                let scope = &self.scopes[membership.scope as usize];
                scope.touch(scope.slots.prefix(entry.slot), self.placement);
                scope.slots.touch_set(entry.slot);
            }
        }
        found
    }

    /// LoRA name and prefix hash of an entry's block.
    #[inline]
    pub fn block_of(&self, publisher: &Publisher, entry: &Entry) -> Option<(Arc<str>, u64)> {
        let membership = publisher.memberships.get(entry.membership)?;
        let prefix = self.scopes[membership.scope as usize].slots.prefix(entry.slot);
        Some((membership.lora_name.clone(), prefix))
    }

    /// One more announcement of a block; `after` is the slot of the block before it. Returns its
    /// slot, or None where the key names another block.
    #[inline]
    pub fn hold(
        &mut self,
        publisher: &mut Publisher,
        number: u32,
        block: Block,
        after: Option<u32>,
    ) -> Option<u32> {
        let scope = publisher.memberships.get(number)?.scope as usize;
        let Some(mut entry) = self.find(publisher, block.key) else {
            self.is_sure_again(publisher, block);
            let slot = self.add(publisher, number, block, after)?;
            self.count(Counter::Stored, 1);
            self.begin(publisher, number, block, slot, 1);
            self.take_in(publisher, block);
            return Some(slot);
        };
        let slot = entry.slot;
        if entry.membership != number || self.scopes[scope].slots.prefix(slot) != block.prefix {
            self.count(Counter::HashConflict, 1);
            self.leave_out(publisher, block, CONFLICT);
            return None;
        }
        let before = publisher.counts.of(&entry, block.tier);
        let is_sure = self.is_sure_again(publisher, block);
        if before > 0 && block.reported {
            self.count(Counter::Reported, 1);
            publisher.unheld_removed = None; // it may be a copy
            return Some(slot);
        }
        self.count(Counter::Stored, 1);
        let is_set = block.tier >= OWNED;
        if before > 0 && (is_sure || is_set || block.undecided) {
            self.count(Counter::Repeated, 1);
            if !(is_sure || is_set) {
                self.note_repeated(publisher, block, 1);
            }
            return Some(slot);
        }
        if before == HOLD_COUNT_MAX {
            self.count(Counter::HoldCountOverflow, 1);
            self.leave_out(publisher, block, "hold_count");
            return Some(slot);
        }
        if before == 0 {
            entry.set(block.tier, true);
            let (entries, keys) = self.entries_mut(publisher);
            entries.update(&entry, keys);
        } else {
            self.count(Counter::Repeated, 1);
            publisher.counts.keep(block.key, block.tier, before + 1);
        }
        let step = Step::of(publisher, block, slot, (before, before + 1));
        self.step(publisher.memberships.get_mut(number)?, &step, true);
        if before == 0 {
            self.take_in(publisher, block);
        }
        Some(slot)
    }

    /// Makes the entry of a key that has none. Returns its slot, which is yet to be given the holder.
    #[inline]
    pub fn add(
        &mut self,
        publisher: &mut Publisher,
        number: u32,
        block: Block,
        after: Option<u32>,
    ) -> Option<u32> {
        let scope = publisher.memberships.get(number)?.scope as usize;
        let slot = self.scopes[scope].place(block.prefix, block.key, after, self.placement);
        let (entries, keys) = self.entries_mut(publisher);
        entries.insert(block.key, slot, number, block.tier, keys);
        Some(slot)
    }

    /// One announcement less of an entry that was held on the tier, as it was found; false where it
    /// no longer is.
    #[inline]
    pub fn remove(&mut self, publisher: &mut Publisher, entry: &Entry, tier: u32) -> bool {
        if publisher.counts.is_empty() {
            let (entries, keys) = self.entries_mut(publisher);
            if !entries.take_tier(entry, tier, keys) {
                return false;
            }
            self.carry(publisher, entry, tier, (1, 0), true);
        } else {
            let known = self.find(publisher, entry.key);
            let Some(known) = known.filter(|known| known.has(tier)) else { return false };
            let count = publisher.counts.of(&known, tier).saturating_sub(1);
            self.set_known(publisher, known, tier, count, true);
        }
        let number = entry.membership;
        if let Some(part) = publisher.memberships.get(number) {
            let (scope, is_empty) = (part.scope, part.entries == 0);
            self.touch(scope); // what is left over of its holders may be a new set
            if is_empty {
                self.leave_if_unused(publisher, number);
            }
        }
        true
    }

    /// All announcements less of a block; false where it is not held on the tier.
    pub fn remove_whole(&mut self, publisher: &mut Publisher, key: u64, tier: u32) -> bool {
        let Some(entry) = self.find(publisher, key).filter(|entry| entry.has(tier)) else {
            return false;
        };
        if let Some(part) = publisher.memberships.get(entry.membership) {
            self.touch(part.scope);
        }
        self.set_known(publisher, entry, tier, 0, true);
        self.leave_if_unused(publisher, entry.membership);
        true
    }

    /// Brings an entry to the count of a change that was taken before. Returns its slot, if it has
    /// one.
    pub fn load(
        &mut self,
        publisher: &mut Publisher,
        number: u32,
        change: &Change,
        after: Option<u32>,
    ) -> Option<u32> {
        let Change { key, prefix, tier, .. } = *change;
        let block = Block { key, prefix, tier, ..Block::default() };
        if let Some(known) = self.find(publisher, block.key) {
            let scope = publisher.memberships.get(known.membership)?.scope as usize;
            let prefix = self.scopes[scope].slots.prefix(known.slot);
            if (known.membership, prefix) == (number, block.prefix) {
                self.set_known(publisher, known, block.tier, change.count, false);
                return Some(known.slot);
            }
            if change.count == 0 {
                return None;
            }
            self.drop_entry(publisher, known, number);
        }
        if change.count == 0 {
            return None;
        }
        self.insert(publisher, number, block, change.count, after)
    }

    fn insert(
        &mut self,
        publisher: &mut Publisher,
        number: u32,
        block: Block,
        count: u16,
        after: Option<u32>,
    ) -> Option<u32> {
        let slot = self.add(publisher, number, block, after)?;
        publisher.counts.keep(block.key, block.tier, count);
        let step = Step::of(publisher, block, slot, (0, count));
        self.step(publisher.memberships.get_mut(number)?, &step, false);
        Some(slot)
    }

    /// Moves the entry of a key to a block of another membership, on all its tiers; returns on how
    /// many it is. The membership that it leaves may be left empty.
    pub fn rename(&mut self, publisher: &mut Publisher, key: u64, to: u32, prefix: u64) -> usize {
        let Some(entry) = self.find(publisher, key) else { return 0 };
        let tiers = entry.tiers().map(|tier| (tier, publisher.counts.of(&entry, tier)));
        let held: Vec<(u32, u16)> = tiers.collect();
        for &(tier, _) in &held {
            let Some(now) = self.find(publisher, key) else { return 0 };
            self.set_known(publisher, now, tier, 0, true);
        }
        for &(tier, count) in &held {
            let block = Block { key, prefix, tier, ..Block::default() };
            if self.find(publisher, key).is_none() && self.add(publisher, to, block, None).is_none()
            {
                return 0;
            }
            let Some(mut now) = self.find(publisher, key) else { return 0 };
            now.set(tier, true);
            publisher.counts.keep(key, tier, count);
            let (entries, keys) = self.entries_mut(publisher);
            entries.update(&now, keys);
            self.carry(publisher, &now, tier, (0, count), true);
        }
        held.len()
    }

    /// Drops an entry on all tiers. `kept` is a membership that stays even if it is left empty.
    fn drop_entry(&mut self, publisher: &mut Publisher, entry: Entry, kept: u32) {
        for tier in entry.tiers() {
            let Some(now) = self.find(publisher, entry.key) else { return };
            self.set_known(publisher, now, tier, 0, false);
        }
        if entry.membership != kept {
            self.leave_if_unused(publisher, entry.membership);
        }
    }

    /// Sets the count of a known entry on one tier. Removing its last tier removes the entry.
    #[inline]
    pub fn set_known(
        &mut self,
        publisher: &mut Publisher,
        mut entry: Entry,
        tier: u32,
        count: u16,
        record: bool,
    ) {
        let before = publisher.counts.of(&entry, tier);
        if before == count && !record {
            return;
        }
        if before > 1 || count > 1 {
            publisher.counts.keep(entry.key, tier, count);
        }
        entry.set(tier, count > 0);
        let (entries, keys) = self.entries_mut(publisher);
        entries.update(&entry, keys);
        self.carry(publisher, &entry, tier, (before, count), record);
    }

    /// Carries a count that went from one number to another.
    #[inline]
    fn carry(
        &mut self,
        publisher: &mut Publisher,
        entry: &Entry,
        tier: u32,
        (before, after): (u16, u16),
        record: bool,
    ) {
        let (dp_rank, groups) = (publisher.dp_rank, publisher.groups);
        let Some(membership) = publisher.memberships.get_mut(entry.membership) else {
            return;
        };
        let slot = entry.slot;
        let prefix = self.scopes[membership.scope as usize].slots.prefix(slot);
        let block = Block { key: entry.key, prefix, tier, ..Block::default() };
        let step = Step { block, slot, dp_rank, groups, before, after };
        self.step(membership, &step, record);
    }

    /// Gives an entry that was made its first announcements.
    #[inline]
    pub fn begin(
        &mut self,
        publisher: &mut Publisher,
        number: u32,
        block: Block,
        slot: u32,
        count: u16,
    ) {
        let step = Step::of(publisher, block, slot, (0, count));
        if let Some(membership) = publisher.memberships.get_mut(number) {
            self.step(membership, &step, true);
        }
    }

    /// Carries a new count into the index, the digest and the changes.
    #[inline]
    fn step(&mut self, membership: &mut Membership, step: &Step, record: bool) {
        let Block { key, prefix, tier, .. } = step.block;
        let scope = &mut self.scopes[membership.scope as usize];
        let holder = holder_of(membership.member, tier);
        let is_own = u64::from(!is_shared(tier));
        let is_owned = u64::from(tier >= OWNED);
        let change =
            |count| Change { key, prefix, dp_rank: step.dp_rank, tier, clears: false, count };
        let bytes = change(step.after).encode();
        let own_before = membership.own;
        if let Some(named) = &mut membership.named
            && (step.before == 0) != (step.after == 0)
        {
            let tiers = named.entry((prefix, key)).or_default();
            *tiers ^= 1 << tier;
            if *tiers == 0 {
                named.remove(&(prefix, key));
            }
            if membership.waits {
                self.waiting =
                    self.waiting + u64::from(step.before == 0) - u64::from(step.after == 0);
            }
        }
        if membership.left_out {
            self.left_out =
                self.left_out + u64::from(step.before == 0) - u64::from(step.after == 0);
        }
        if membership.repeated {
            self.repeated =
                self.repeated + u64::from(step.before == 0) - u64::from(step.after == 0);
        }
        let counts_names = step.groups > 1 && !membership.hidden;
        if counts_names && step.before > 0 && step.after == 0 {
            let names = scope.names(step.slot, holder);
            membership.recount(step.groups, (names, names - 1));
        }
        if step.before == 0 {
            scope.hold(step.slot, holder);
            if counts_names {
                let names = scope.names(step.slot, holder);
                membership.recount(step.groups, (names - 1, names));
            }
            membership.entries += 1;
            membership.own += is_own;
            membership.owned += is_owned;
        } else {
            let digest = entry_digest(&change(step.before).encode());
            membership.digest = membership.digest.wrapping_sub(digest);
        }
        if step.after == 0 {
            scope.release(step.slot, holder, self.placement);
            membership.entries -= 1;
            membership.own -= is_own;
            membership.owned -= is_owned;
        } else {
            membership.digest = membership.digest.wrapping_add(entry_digest(&bytes));
        }
        if (own_before == 0) != (membership.own == 0) {
            self.note_participation(membership);
        }
        if record {
            self.changes.record(membership.context, &bytes);
        }
    }
}

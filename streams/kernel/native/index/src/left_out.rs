//! What a publisher holds and the index cannot use: kept, so that what is known of the publisher says
//! so until it holds that no more.
//!
//! It stands as entries of scopes of their own, one for each reason, under keys of their own, so that
//! rows and digests have it like all others, and a clear drops it.

use std::sync::Arc;

use crate::block::Block;
use crate::counters::Counter;
use crate::entry_table::{Entry, Place};
use crate::events::Stored;
use crate::hashing::{LEFT_OUT_MASK, POOL_MASK, REPEATED_MASK};
use crate::limits::{
    COPIES_KEPT_SHARE, HOLD_COUNT_MAX, LEFT_OUT_REASON_BYTES_MAX, LEFT_OUT_REASONS_MAX,
};
use crate::names::{GROUPS, LEFT_OUT, OWNED, REPEATED, RULES};
use crate::publisher::Publisher;
use crate::state::Index;

/// Reason of blocks that a publisher may hold or not.
pub const COPIES_UNKNOWN: &str = "copies_unknown";
/// Reason of a block on another tier than the GPU, of another size.
const CHUNKS_DIFFER: &str = "chunks_differ";
/// Reason of a block of the name of another one.
pub const CONFLICT: &str = "hash_conflict";
/// Reason of a block of which nothing but its name was said, and that was not held.
pub const UNRESOLVED: &str = "unresolved";
/// The scope of what a publisher has removed from a pool, and others have stored there.
pub const POOL_REMOVED: &str = "\0left_out:pool_removed";
/// The scope of blocks of which a pool has objects by two hashes.
pub const HASHES_DIFFER: &str = "\0left_out:hashes_differ";
/// The scopes that outlive a clear.
pub const LASTING: [&str; 3] = [GROUPS, POOL_REMOVED, RULES];
const OVERFLOW: &str = "overflow";
/// Stands for what no longer had room, and for good: it is not counted.
const OVERFLOW_KEY: u64 = LEFT_OUT_MASK ^ u64::MAX;
/// The same, counted by tier: a removal of what is known nowhere is of one of these.
const OVERFLOWED_KEY: u64 = LEFT_OUT_MASK ^ (u64::MAX - 1);

/// The reason for a counter of stored events that are left out; None where nothing is kept of them.
pub fn reason_of(counter: Counter, event: &Stored) -> Option<String> {
    let reason = match counter {
        Counter::BlockSizeMismatch if event.tier != 0 => CHUNKS_DIFFER,
        Counter::BlockSizeMismatch => return Some(format!("block_size:{}", event.block_size)),
        Counter::UnknownParent => "unknown_parent",
        Counter::Unusable if event.left_out.len() > LEFT_OUT_REASON_BYTES_MAX => "other",
        Counter::Unusable => event.left_out,
        Counter::TokenCountMismatch => "token_count",
        Counter::ExtraKeysMismatch => "extra_keys",
        Counter::SeedMismatch => "seed",
        _ => return None,
    };
    Some(reason.to_owned())
}

/// An entry that outlives a clear, on one tier.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
pub struct Lasting {
    key: u64,
    tier: u32,
    prefix: u64,
    count: u16,
    lora_name: Arc<str>,
}

impl Index {
    /// Keeps that the publisher holds a block of this name, and that no answer counts it.
    #[cold]
    pub fn leave_out(&mut self, publisher: &mut Publisher, block: Block, reason: &str) {
        let key = block.key ^ LEFT_OUT_MASK;
        let tier = block.tier;
        let Some(entry) = self.find(publisher, key) else {
            let name = format!("{LEFT_OUT}{reason}");
            if has_room(publisher, &name, self.left_out_max) {
                self.put_apart(publisher, key, (tier, 1), &name);
            } else {
                self.note_overflow(publisher, tier, Some(1));
            }
            return;
        };
        self.touch_part(publisher, entry.membership);
        let count = publisher.counts.of(&entry, tier);
        if count == 0 || !(block.reported || tier >= OWNED || count == HOLD_COUNT_MAX) {
            self.set_known(publisher, entry, tier, count + 1, true);
        } else {
            publisher.unheld_removed = None; // it may be a copy
        }
    }

    /// Makes an entry that is of no block, under a key of its own.
    pub fn put_apart(
        &mut self,
        publisher: &mut Publisher,
        key: u64,
        held: (u32, u16),
        lora_name: &str,
    ) {
        self.put_at(publisher, (key, key), held, lora_name);
    }

    /// The same, at a prefix of its own.
    pub fn put_at(
        &mut self,
        publisher: &mut Publisher,
        (key, prefix): (u64, u64),
        (tier, count): (u32, u16),
        lora_name: &str,
    ) {
        let number = self.join(publisher, lora_name);
        self.touch_part(publisher, number);
        let block = Block { key, prefix, tier, ..Block::default() };
        if let Some(slot) = self.add(publisher, number, block, None) {
            publisher.counts.keep(key, tier, count);
            self.begin(publisher, number, block, slot, count);
        }
    }

    fn touch_part(&mut self, publisher: &Publisher, number: u32) {
        if let Some(part) = publisher.memberships.get(number) {
            self.touch(part.scope);
        }
    }

    /// Something has no room that so many removals end; None: none does.
    fn note_overflow(&mut self, publisher: &mut Publisher, tier: u32, times: Option<u16>) {
        self.count(Counter::LeftOutOverflow, 1);
        let known = self.find(publisher, OVERFLOWED_KEY);
        let before = known.as_ref().map_or(0, |entry| publisher.counts.of(entry, tier));
        let count = times.and_then(|times| before.checked_add(times));
        let name = format!("{LEFT_OUT}{OVERFLOW}");
        match (count, known) {
            (Some(count), Some(entry)) => {
                self.touch_part(publisher, entry.membership);
                self.set_known(publisher, entry, tier, count, true);
            }
            (Some(count), None) => self.put_apart(publisher, OVERFLOWED_KEY, (tier, count), &name),
            (None, _) => {
                if self.find(publisher, OVERFLOW_KEY).is_none() {
                    self.put_apart(publisher, OVERFLOW_KEY, (0, 1), &name);
                }
            }
        }
    }

    /// What is removed was one of those without room; false where there is none.
    #[cold]
    pub fn lower_overflow(&mut self, publisher: &mut Publisher, tier: u32) -> bool {
        let entry = self.find(publisher, OVERFLOWED_KEY);
        entry.is_some_and(|entry| entry.has(tier) && self.remove(publisher, &entry, tier))
    }

    /// The index has found a place for a block: what was left out of it may be further copies, as an
    /// engine has them that removes each. Not so of a conflict, which is another block of this name.
    #[inline]
    pub fn take_in(&mut self, publisher: &mut Publisher, block: Block) {
        if self.left_out > 0 {
            self.take_in_copies(publisher, block);
        }
    }

    #[cold]
    fn take_in_copies(&mut self, publisher: &mut Publisher, block: Block) {
        self.end_pool_removal(publisher, block);
        let Some(entry) = self.find(publisher, block.key ^ LEFT_OUT_MASK) else { return };
        let reason = publisher.memberships.get(entry.membership).map(|part| &*part.lora_name);
        let reason = reason.and_then(|name| name.strip_prefix(LEFT_OUT));
        let times = publisher.counts.of(&entry, block.tier);
        if reason == Some(CONFLICT) {
            return;
        }
        if reason == Some(UNRESOLVED) && !block.is_object {
            self.resolve(publisher, block, &entry);
        }
        if times == 0 {
            return;
        }
        self.remove_whole(publisher, entry.key, block.tier);
        let copies = times - u16::from(block.reported);
        if copies > 0 && !block.is_object && block.tier < OWNED {
            self.note_repeated(publisher, block, copies);
        }
    }

    /// What is left out of a block on other tiers than its own is known by its name now: it is held
    /// there, too.
    fn resolve(&mut self, publisher: &mut Publisher, block: Block, left_out: &Entry) {
        for tier in left_out.tiers().filter(|&tier| tier != block.tier) {
            let held = self.find(publisher, block.key).filter(|held| !held.has(tier));
            let Some(held) = held else { continue };
            let times = publisher.counts.of(left_out, tier);
            self.end_pool_removal(publisher, Block { tier, ..block });
            self.remove_whole(publisher, left_out.key, tier);
            self.set_known(publisher, held, tier, times, true);
        }
    }

    // What outlives a clear

    /// The entries that say which groups form prefixes, and by which rule others are used, and what of
    /// others the publisher has removed from pools; and those of another owner's blocks. Cost
    /// O(entries) where there are any.
    pub fn lasting(&self, publisher: &Publisher) -> Vec<Lasting> {
        let numbers = LASTING.map(|name| publisher.memberships.number_of(name));
        let mut found = Vec::new();
        for number in numbers.into_iter().flatten() {
            self.keep_of(publisher, &mut found, |entry| {
                let tier = entry.tiers().next().filter(|_| entry.membership == number);
                tier.into_iter().collect()
            });
        }
        found.iter_mut().for_each(|one| one.count = 1);
        if publisher.memberships.iter().any(|part| part.owned > 0) {
            self.keep_of(publisher, &mut found, |entry| {
                let lasts = numbers.contains(&Some(entry.membership));
                entry.tiers().filter(|&tier| tier >= OWNED && !lasts).collect()
            });
        }
        found
    }

    /// Adds those of the publisher's entries that these tiers are said of, by rising key and tier.
    fn keep_of(
        &self,
        publisher: &Publisher,
        found: &mut Vec<Lasting>,
        tiers_of: impl Fn(&Entry) -> Vec<u32>,
    ) {
        let mut part = Vec::new();
        let mut place = Some(Place::default());
        while let Some(at) = place {
            let see = |entry: Entry| {
                for tier in tiers_of(&entry) {
                    if let Some((lora_name, prefix)) = self.block_of(publisher, &entry) {
                        let count = publisher.counts.of(&entry, tier);
                        part.push(Lasting { key: entry.key, tier, prefix, count, lora_name });
                    }
                }
            };
            place = publisher.entries.part(at, self.keys(publisher), see);
        }
        part.sort_unstable();
        part.dedup();
        found.append(&mut part);
    }

    /// Puts them back.
    pub fn keep(&mut self, publisher: &mut Publisher, lasting: &[Lasting]) {
        if !lasting.is_empty() {
            for &Lasting { key, tier, prefix, count, ref lora_name } in lasting {
                match self.find(publisher, key) {
                    Some(entry) => self.set_known(publisher, entry, tier, count, true),
                    None => self.put_at(publisher, (key, prefix), (tier, count), lora_name),
                }
            }
            self.regroup(publisher);
            self.read_rules(publisher);
        }
    }

    /// An engine has removed a block from a pool, and had not stored it there.
    #[cold]
    pub fn note_pool_removal(&mut self, publisher: &mut Publisher, key: u64, tier: u32) {
        self.note_apart(publisher, POOL_REMOVED, pool_key(key, tier), tier);
    }

    /// The publisher stores such a block there.
    fn end_pool_removal(&mut self, publisher: &mut Publisher, block: Block) {
        self.end_apart(publisher, POOL_REMOVED, pool_key(block.key, block.tier), block.tier);
    }

    /// Something is so of a block, which has a key of its own.
    pub fn note_apart(&mut self, publisher: &mut Publisher, scope: &str, key: u64, tier: u32) {
        if self.find(publisher, key).is_some() {
            return;
        }
        if has_room(publisher, scope, self.left_out_max) {
            self.put_apart(publisher, key, (tier, 1), scope);
        } else {
            self.note_overflow(publisher, tier, None);
        }
    }

    /// It is so no longer.
    pub fn end_apart(&mut self, publisher: &mut Publisher, scope: &str, key: u64, tier: u32) {
        let Some(entry) = self.find(publisher, key) else { return };
        let part = publisher.memberships.get(entry.membership);
        let is_one = part.is_some_and(|part| *part.lora_name == *scope);
        if is_one && entry.tiers().eq([tier]) {
            self.remove_whole(publisher, key, tier);
        }
    }

    /// A publisher has removed a block from its GPU, and holds none of that name there: where it holds
    /// none anywhere else, its events contradict one another.
    #[cold]
    pub fn note_unheld(&self, publisher: &mut Publisher, key: u64, group: u32) {
        let is_known = [key, key ^ LEFT_OUT_MASK].map(|name| self.find(publisher, name).is_some());
        if is_known == [false, false] && self.forms_prefix(publisher, group) {
            publisher.unheld_removed = publisher.unheld_removed.map(|blocks| blocks + 1);
        }
    }

    /// One announcement less of a block that is left out; false where there is none.
    #[cold]
    pub fn lower_left_out(&mut self, publisher: &mut Publisher, key: u64, tier: u32) -> bool {
        let entry = self.find(publisher, key ^ LEFT_OUT_MASK);
        entry.is_some_and(|entry| entry.has(tier) && self.remove(publisher, &entry, tier))
    }

    /// So many copies are left, which the publisher says: of what it surely holds, else of what it
    /// may hold, else of what is left out. What is left out beside what it holds stays where copies
    /// are left: it may be of another block. False where there is none.
    #[cold]
    pub fn set_left(&mut self, publisher: &mut Publisher, key: u64, tier: u32, left: u16) -> bool {
        let again = repeated_key(key, tier);
        let left = if tier >= OWNED { left.min(1) } else { left };
        let mut is_known = false;
        for name in [key, again, key ^ LEFT_OUT_MASK] {
            let entry = self.find(publisher, name).filter(|entry| entry.has(tier));
            let Some(entry) = entry else { continue };
            if name == again && !entry.tiers().eq([tier]) {
                continue;
            }
            if !is_known || name == again || left == 0 {
                let count = if is_known { 0 } else { left };
                self.touch_part(publisher, entry.membership);
                self.set_known(publisher, entry, tier, count, true);
                self.leave_if_unused(publisher, entry.membership);
            }
            is_known = true;
        }
        is_known
    }

    // Copies that there may be; see REPEATED_MASK

    /// How often a block was announced again, and whether it is sure that it is held.
    fn repeats(&self, publisher: &Publisher, key: u64, tier: u32) -> Option<(Entry, bool)> {
        if self.repeated == 0 && self.left_out == 0 {
            return None;
        }
        let entry = self.find(publisher, repeated_key(key, tier))?;
        let part = publisher.memberships.get(entry.membership)?;
        entry.tiers().eq([tier]).then_some((entry, part.repeated))
    }

    /// Whether it was not known whether a block is held, which its announcement now says.
    #[inline]
    pub fn is_sure_again(&mut self, publisher: &mut Publisher, block: Block) -> bool {
        self.left_out > 0 && self.make_sure(publisher, block)
    }

    #[cold]
    fn make_sure(&mut self, publisher: &mut Publisher, block: Block) -> bool {
        let Some((entry, false)) = self.repeats(publisher, block.key, block.tier) else {
            return false;
        };
        self.move_apart(publisher, entry, REPEATED);
        true
    }

    /// Notes that a block was announced again, so often, each of which may be a further copy.
    #[cold]
    pub fn note_repeated(&mut self, publisher: &mut Publisher, block: Block, times: u16) {
        let key = repeated_key(block.key, block.tier);
        let Some(entry) = self.find(publisher, key) else {
            return self.put_apart(publisher, key, (block.tier, times), REPEATED);
        };
        let before = publisher.counts.of(&entry, block.tier);
        let count = before.saturating_add(times);
        if entry.tiers().eq([block.tier]) && count > before {
            self.set_known(publisher, entry, block.tier, count, true);
        }
    }

    /// A copy is removed of a block: whether it is counted all the same, since the last sure one is
    /// gone, and further ones may be left. None where each announcement was of a copy.
    #[cold]
    pub fn keep_copies(&mut self, publisher: &mut Publisher, key: u64, tier: u32) -> Option<bool> {
        let (entry, is_sure) = self.repeats(publisher, key, tier)?;
        let held = self.find(publisher, key);
        let held = held.map_or(0, |entry| publisher.counts.of(&entry, tier));
        if held > 1 {
            return Some(false);
        }
        let count = publisher.counts.of(&entry, tier);
        self.touch_part(publisher, entry.membership);
        if !is_sure {
            self.set_known(publisher, entry, tier, count - 1, true);
            self.leave_if_unused(publisher, entry.membership);
            return Some(held > 0 && count > 1);
        }
        let name = format!("{LEFT_OUT}{COPIES_UNKNOWN}");
        if !has_room(publisher, &name, self.left_out_max) {
            self.set_known(publisher, entry, tier, 0, true);
            self.leave_if_unused(publisher, entry.membership);
            self.note_overflow(publisher, tier, Some(count));
            return Some(false);
        }
        let kept = publisher.left_out().find(|part| *part.lora_name == *name);
        let kept = kept.map_or(0, |part| part.entries);
        self.move_apart(publisher, entry, &name);
        Some(held > 0 && kept < self.left_out_max / COPIES_KEPT_SHARE)
    }

    fn move_apart(&mut self, publisher: &mut Publisher, entry: Entry, lora_name: &str) {
        let to = self.join(publisher, lora_name);
        self.touch_part(publisher, to);
        self.touch_part(publisher, entry.membership);
        self.rename(publisher, entry.key, to, entry.key);
        self.leave_if_unused(publisher, entry.membership);
    }
}

fn pool_key(key: u64, tier: u32) -> u64 {
    key ^ (POOL_MASK + u64::from(tier))
}

fn repeated_key(key: u64, tier: u32) -> u64 {
    key ^ (REPEATED_MASK + u64::from(tier))
}

/// Whether there is room for another entry in this scope of what is left out.
fn has_room(publisher: &Publisher, lora_name: &str, most: u64) -> bool {
    let (mut entries, mut reasons, mut is_new) = (0, 0, true);
    for part in publisher.left_out().filter(|part| part.entries > 0) {
        (entries, reasons) = (entries + part.entries, reasons + 1);
        is_new &= *part.lora_name != *lora_name;
    }
    entries < most && !(is_new && reasons >= LEFT_OUT_REASONS_MAX)
}

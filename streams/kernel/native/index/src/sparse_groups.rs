//! Cache groups of which an engine needs no more than the end of a prefix: what they hold.
//! `streams/kernel/sparse_groups.py` says what stands where, and is the specification with
//! `reference.py`. How much of a prefix they leave usable is in `sparse_walk`.

use crate::block::Block;
use crate::entry_table::Entry;
use crate::events::Stored;
use crate::groups::known;
use crate::hashing::{GROUPS_MASK, RULES_MASK, UNRULED_KEY, group_mask};
use crate::left_out::COPIES_UNKNOWN;
use crate::limits::{GROUP_MAX, TURN_BLOCKS};
use crate::names::{RULES, UNPLACED, is_shared, is_sparse, sparse_name};
use crate::publisher::{Publisher, Rule};
use crate::state::Index;
use crate::write::{GPU, Result, WriteTurn};

impl WriteTurn<'_> {
    /// Keeps the blocks of an event of a sparse group; false where they are not kept. A report names
    /// all blocks of a prefix, of which the group may have but the last ones that it needs: of an event
    /// that may be one what is not held may be a further copy, or not held.
    #[cold]
    pub fn store_sparse(&mut self, id: u64, event: &Stored) -> Result<bool> {
        let (publisher, index) = self.publisher(id)?;
        *publisher.sparse_blocks.get_or_insert(0) += event.hashes.len() as u64;
        if !index.is_ruled(publisher, event) {
            return Ok(false);
        }
        let mask = group_mask(event.group);
        let groups = index.prefix_groups(publisher);
        let needed = publisher.last_blocks(event.group).unwrap_or(0);
        let is_held = |entry: Option<&Entry>| entry.is_some_and(|entry| entry.has(event.tier));
        let may_be_report = event.undecided
            && event.tokens.len() == 4 * event.block_size as usize * event.hashes.len()
            && event.hashes.iter().rev().take(needed as usize).all(|&hash| {
                let key = u64::from_le_bytes(hash) ^ mask;
                is_held(index.find_sparse(publisher, key).as_ref())
            });
        for hashes in event.hashes.chunks(TURN_BLOCKS) {
            let (publisher, index) = self.publisher(id)?;
            for &hash in hashes {
                let value = u64::from_le_bytes(hash);
                let known = index.find_sparse(publisher, value ^ mask);
                if may_be_report && !is_held(known.as_ref()) {
                    let block = Block::of(event, value ^ mask, 0);
                    index.leave_out(publisher, block, COPIES_UNKNOWN);
                    continue;
                }
                let block = known.and_then(|entry| index.block_of(publisher, &entry));
                let (number, prefix) = match (known, block) {
                    (Some(entry), Some((_, prefix))) => (entry.membership, prefix),
                    _ => index.sparse_place(publisher, &groups, mask, value),
                };
                if let Some(part) = publisher.memberships.get(number) {
                    index.touch(part.scope);
                }
                index.hold(publisher, number, Block::of(event, value ^ mask, prefix), None);
                index.leave_if_unused(publisher, number);
            }
            self.spend(hashes.len());
        }
        Ok(true)
    }

    /// Full attention has been stored: it says which blocks those of its names are, where there are
    /// sparse groups.
    #[inline]
    pub fn place_if_sparse(&mut self, id: u64, event: &Stored) -> Result<()> {
        if self.publisher(id)?.0.rules.is_empty() {
            return Ok(());
        }
        self.place_sparse(id, event)
    }

    #[cold]
    fn place_sparse(&mut self, id: u64, event: &Stored) -> Result<()> {
        let (publisher, index) = self.publisher(id)?;
        index.settle_rules(publisher);
        let masks: Vec<u64> = publisher.rules.iter().map(|rule| group_mask(rule.group)).collect();
        let of_event = group_mask(event.group);
        for hashes in event.hashes.chunks(TURN_BLOCKS) {
            let (publisher, index) = self.publisher(id)?;
            let Some(unplaced) = publisher.memberships.number_of(UNPLACED) else { return Ok(()) };
            for &hash in hashes {
                let value = u64::from_le_bytes(hash);
                for &mask in &masks {
                    index.place(publisher, unplaced, value, (of_event, mask));
                }
            }
            index.leave_if_unused(publisher, unplaced);
            self.spend(hashes.len());
        }
        Ok(())
    }
}

impl Index {
    /// Whether the event's blocks are kept: those of a group whose rule is known, as are those of all
    /// groups that the engine needs.
    fn is_ruled(&mut self, publisher: &mut Publisher, event: &Stored) -> bool {
        self.settle_rules(publisher);
        let size = publisher.stream.block_size;
        let known = publisher.last_blocks(event.group);
        let is_usable = event.left_out.is_empty();
        if event.tier != GPU {
            let is_kept = !publisher.unruled && known.is_some() && is_usable;
            return is_kept && !is_shared(event.tier) && [0, size].contains(&event.block_size);
        }
        let is_new = known.is_none() && event.last_blocks > 0 && event.group <= GROUP_MAX;
        let fits = (is_new || known == Some(event.last_blocks)) && event.block_size == size;
        let key = RULES_MASK ^ u64::from(event.group);
        // An engine may have named a block like an entry of these.
        let has_room = !is_new || self.find(publisher, key).is_none();
        if publisher.unruled || !fits || !is_usable || !has_room {
            self.unrule(publisher);
            return false;
        }
        if is_new {
            self.put_at(publisher, (key, event.last_blocks.into()), (0, 1), RULES);
            self.read_rules(publisher);
        }
        true
    }

    /// A group that the engine needs has no known rule.
    pub fn unrule(&mut self, publisher: &mut Publisher) {
        publisher.unruled = true;
        if publisher.rule_entries() > 0 && self.find(publisher, UNRULED_KEY).is_none() {
            self.put_apart(publisher, UNRULED_KEY, (0, 1), RULES);
            self.read_rules(publisher);
        }
    }

    /// Has rules read again where an engine has named an entry of these.
    #[inline]
    pub fn settle_rules(&mut self, publisher: &mut Publisher) {
        if publisher.has_unruled || !publisher.rules.is_empty() {
            self.read_rules(publisher);
        }
    }

    /// The entries that say rules are others than before.
    #[cold]
    pub fn read_rules(&mut self, publisher: &mut Publisher) {
        let number = publisher.memberships.number_of(RULES);
        let prefix_of = |key| {
            let entry = self.find(publisher, key)?;
            let (_, prefix) = self.block_of(publisher, &entry)?;
            (Some(entry.membership) == number).then_some(prefix)
        };
        let rule = |group: u32| {
            let last_blocks = prefix_of(RULES_MASK ^ u64::from(group))?;
            let last_blocks = u32::try_from(last_blocks).unwrap_or(u32::MAX);
            Some(Rule { group, last_blocks })
        };
        let has_unruled = number.is_some() && prefix_of(UNRULED_KEY).is_some();
        let rules: Vec<Rule> = match number {
            Some(_) => (0..=GROUP_MAX).filter_map(rule).collect(),
            None => Vec::new(),
        };
        self.has_rules |= !rules.is_empty();
        (publisher.rules, publisher.has_unruled) = (rules, has_unruled);
    }

    /// What distinguishes the keys of the cache groups that are known to form prefixes.
    fn prefix_groups(&self, publisher: &Publisher) -> Vec<u64> {
        if known(publisher) == 0 {
            return vec![0];
        }
        let is_known =
            |group: &u32| self.find(publisher, GROUPS_MASK ^ u64::from(*group)).is_some();
        (0..=GROUP_MAX).filter(is_known).map(group_mask).collect()
    }

    fn find_sparse(&self, publisher: &Publisher, key: u64) -> Option<Entry> {
        let entry = self.find(publisher, key)?;
        let part = publisher.memberships.get(entry.membership)?;
        is_sparse(&part.lora_name).then_some(entry)
    }

    /// Where the block stands that the group of the mask calls so.
    fn sparse_place(
        &mut self,
        publisher: &mut Publisher,
        groups: &[u64],
        mask: u64,
        value: u64,
    ) -> (u32, u64) {
        for one in groups {
            let Some((name, prefix)) = self.attention_block(publisher, value ^ one) else {
                continue;
            };
            if let Some(name) = sparse_name(&name) {
                return (self.join(publisher, &name), prefix ^ mask);
            }
            self.unrule(publisher);
        }
        (self.join(publisher, UNPLACED), value)
    }

    fn attention_block(
        &self,
        publisher: &Publisher,
        key: u64,
    ) -> Option<(std::sync::Arc<str>, u64)> {
        let entry = self.find(publisher, key)?;
        let part = publisher.memberships.get(entry.membership)?;
        if part.hidden {
            return None;
        }
        self.block_of(publisher, &entry)
    }

    /// Gives its block to what a group calls so, if it is unplaced.
    fn place(
        &mut self,
        publisher: &mut Publisher,
        unplaced: u32,
        value: u64,
        (of_attention, mask): (u64, u64),
    ) {
        let key = value ^ mask;
        let Some(entry) = self.find(publisher, key) else { return };
        let is_unplaced = entry.membership == unplaced
            && self.block_of(publisher, &entry).is_some_and(|(_, prefix)| prefix == value);
        if !is_unplaced {
            return;
        }
        let block = self.attention_block(publisher, value ^ of_attention);
        let Some((name, prefix)) = block else { return };
        let Some(name) = sparse_name(&name) else { return self.unrule(publisher) };
        let number = self.join(publisher, &name);
        for part in [unplaced, number] {
            if let Some(part) = publisher.memberships.get(part) {
                self.touch(part.scope);
            }
        }
        self.rename(publisher, key, number, prefix ^ mask);
    }
}

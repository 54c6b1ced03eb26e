//! Objects of a shared pool: found by what others call the block that they have.
//!
//! An object is held once, however often it is announced. One that is named by a prefix hash is at
//! that. One that is named by an engine's hash is at the prefix that an engine of the scope announces
//! with its tokens; until one does it waits, as an entry of a scope of its own (`waiting_name`), whose
//! "prefix" is the engine's hash: so it stands in rows and digests like all others.
//!
//! Engines evict blocks that the pool goes on to hold, and the pool stores further objects of these.
//! So it remembers what engines call a block (an alias) for as long as it has an object of it, in
//! entries of a scope of their own (`aliases_name`), and what it drops, to the end of the batch.

use crate::block::Block;
use crate::counters::Counter;
use crate::events::Stored;
use crate::hashing::{ALIASES_MASK, HASHES_MASK};
use crate::left_out::{CONFLICT, HASHES_DIFFER};
use crate::limits::TURN_BLOCKS;
use crate::moves::Moves;
use crate::names::{SHARED, StreamKey, TIERS, aliases_name, waiting_name};
use crate::publisher::Publisher;
use crate::scope::Scope;
use crate::state::{Index, State};
use crate::write::{Result, WriteTurn};

/// The names beside that of an adapter.
struct Beside {
    waiting: Option<String>,
    aliases: Option<String>,
}

impl Beside {
    fn of(lora_name: &str) -> Self {
        Self { waiting: waiting_name(lora_name), aliases: aliases_name(lora_name) }
    }
}

impl WriteTurn<'_> {
    pub fn store_objects(
        &mut self,
        id: u64,
        event: &Stored,
        mask: u64,
        moves: &Moves,
    ) -> Result<()> {
        let beside = Beside::of(event.lora_name);
        let chunks = event.hashes.chunks(TURN_BLOCKS).zip(event.aliases.chunks(TURN_BLOCKS));
        for (hashes, aliases) in chunks {
            for (&hash, &alias) in hashes.iter().zip(aliases) {
                let key = u64::from_le_bytes(hash) ^ mask;
                let names = (key, u64::from_le_bytes(alias));
                self.store_object(id, event, names, &beside, moves)?;
            }
            self.spend(hashes.len());
        }
        Ok(())
    }

    fn store_object(
        &mut self,
        id: u64,
        event: &Stored,
        (key, alias): (u64, u64),
        beside: &Beside,
        moves: &Moves,
    ) -> Result<()> {
        let (publisher, index) = self.publisher(id)?;
        if index.find(publisher, key).is_some() {
            return self.store_known(id, event, (key, alias), beside);
        }
        let prefix = if event.by_hash {
            Some(alias)
        } else {
            let aliases = beside.aliases.as_deref();
            let forgotten = aliases.and_then(|name| moves.forgotten(alias ^ ALIASES_MASK, name));
            let (stream, domain) = (publisher.stream.clone(), publisher.domain);
            let places = Places::of(self.state(), &stream, event.lora_name, aliases);
            prefix_of(self.state(), places, domain, alias, forgotten)
        };
        let name = match prefix {
            Some(_) => Some(event.lora_name),
            None => beside.waiting.as_deref(),
        };
        let (publisher, index) = self.publisher(id)?;
        let Some(name) = name else {
            index.count(Counter::WaitingOverflow, 1);
            index.leave_out(publisher, Block::of(event, key, 0), "waiting");
            return Ok(());
        };
        let number = index.join(publisher, name);
        let Some(membership) = publisher.memberships.get(number) else { return Ok(()) };
        if prefix.is_none() && membership.entries >= index.waiting_max {
            index.count(Counter::WaitingOverflow, 1);
            index.leave_if_unused(publisher, number);
            index.leave_out(publisher, Block::of(event, key, 0), "waiting");
            return Ok(());
        }
        index.touch(membership.scope);
        if prefix.is_none() {
            index.count(Counter::Waiting, 1);
        }
        let is_known = prefix.is_some();
        let prefix = prefix.unwrap_or(alias);
        let block = Block { key, prefix, tier: event.tier, is_object: true, ..Block::default() };
        index.hold(publisher, number, block, None);
        if let Some(aliases) = beside.aliases.as_deref().filter(|_| is_known && !event.by_hash) {
            index.keep_alias(publisher, aliases, alias, prefix);
        }
        Ok(())
    }

    /// An object that is held already, here or on another tier.
    fn store_known(
        &mut self,
        id: u64,
        event: &Stored,
        (key, alias): (u64, u64),
        beside: &Beside,
    ) -> Result<()> {
        let (publisher, index) = self.publisher(id)?;
        let Some(entry) = index.find(publisher, key) else { return Ok(()) };
        let Some((lora_name, prefix)) = index.block_of(publisher, &entry) else { return Ok(()) };
        let is_joined = *lora_name == *event.lora_name;
        let waits = !is_joined && beside.waiting.as_deref() == Some(&*lora_name);
        let fits = if event.by_hash {
            is_joined && prefix == alias
        } else {
            is_joined || (waits && prefix == alias)
        };
        if !fits {
            index.count(Counter::HashConflict, 1);
            index.leave_out(publisher, Block::of(event, key, 0), CONFLICT);
        } else if entry.has(event.tier) {
            index.count(Counter::Stored, 1);
            index.count(Counter::Repeated, 1);
        } else {
            let Some(membership) = publisher.memberships.get(entry.membership) else {
                return Ok(());
            };
            if waits && membership.entries >= index.waiting_max {
                index.count(Counter::WaitingOverflow, 1);
                index.leave_out(publisher, Block::of(event, key, 0), "waiting");
                return Ok(());
            }
            index.touch(membership.scope);
            if waits {
                index.count(Counter::Waiting, 1);
            }
            let block =
                Block { key, prefix, tier: event.tier, is_object: true, ..Block::default() };
            index.hold(publisher, entry.membership, block, None);
        }
        Ok(())
    }

    /// Gives the blocks that an engine has announced, with their tokens, to the objects that wait
    /// for them.
    pub fn join_waiting(&mut self, id: u64, event: &Stored) -> Result<()> {
        let Beside { waiting: Some(name), aliases } = Beside::of(event.lora_name) else {
            return Ok(());
        };
        let (publisher, index) = self.publisher(id)?;
        let (stream, domain) = (publisher.stream.clone(), publisher.domain);
        let Some(&waiting) = index.scope_ids.get(&stream.scope_ref(&name)) else { return Ok(()) };
        for &hash in event.hashes {
            let alias = u64::from_le_bytes(hash);
            let index = &self.state().index;
            if index.scopes[waiting as usize].find(alias, index.placement).is_none() {
                continue;
            }
            let places = Places::of(self.state(), &stream, event.lora_name, aliases.as_deref());
            let Some(prefix) = prefix_of(self.state(), places, domain, alias, None) else {
                continue;
            };
            let waits = &self.state().index.scopes[waiting as usize];
            let mut owners: Vec<u64> = waits.publishers().collect();
            owners.sort_unstable(); // so that the changes come in one order
            for owner in owners {
                if self.publisher(owner).is_ok_and(|(owner, _)| owner.domain == domain) {
                    self.join_objects(owner, (&name, event.lora_name), alias, prefix)?;
                }
            }
        }
        Ok(())
    }

    /// The same of one pool, between two of its scopes, of one block.
    fn join_objects(
        &mut self,
        id: u64,
        (from, to): (&str, &str),
        alias: u64,
        prefix: u64,
    ) -> Result<()> {
        let (publisher, index) = self.publisher(id)?;
        let Some(number) = publisher.memberships.number_of(from) else { return Ok(()) };
        let Some(membership) = publisher.memberships.get(number) else { return Ok(()) };
        let left = membership.scope;
        let keys = membership.keys_of(alias);
        if keys.is_empty() {
            return Ok(());
        }
        let joined = index.join(publisher, to);
        if let Some(membership) = publisher.memberships.get(joined) {
            index.touch(membership.scope);
        }
        index.touch(left);
        for &key in &keys {
            let tiers = index.rename(publisher, key, joined, prefix);
            index.count(Counter::Joined, tiers);
        }
        index.leave_if_unused(publisher, number);
        if let Some(aliases) = aliases_name(to) {
            index.keep_alias(publisher, &aliases, alias, prefix);
        }
        self.spend(keys.len());
        Ok(())
    }
}

impl Index {
    /// The pool has an object of the block that engines call so.
    fn keep_alias(&mut self, publisher: &mut Publisher, aliases: &str, alias: u64, prefix: u64) {
        let key = alias ^ ALIASES_MASK;
        if self.find(publisher, key).is_some() {
            return;
        }
        let number = self.join(publisher, aliases);
        if let Some(membership) = publisher.memberships.get(number) {
            self.touch(membership.scope);
        }
        let block = Block { key, prefix, tier: SHARED, ..Block::default() };
        let has_other =
            publisher.memberships.get(number).is_some_and(|part| !part.keys_of(prefix).is_empty());
        if let Some(slot) = self.add(publisher, number, block, None) {
            self.begin(publisher, number, block, slot, 1);
        }
        if has_other {
            self.note_apart(publisher, HASHES_DIFFER, alias ^ HASHES_MASK, SHARED);
        }
    }

    /// An entry of a block was removed: where it was the last one, nothing is remembered of what
    /// engines call that block.
    #[cold]
    pub fn forget_aliases(
        &mut self,
        publisher: &mut Publisher,
        (lora_name, prefix): (&str, u64),
        moves: &mut Moves,
    ) {
        let Some(name) = aliases_name(lora_name) else { return };
        let number = publisher.memberships.number_of(&name);
        let Some(part) = number.and_then(|number| publisher.memberships.get(number)) else {
            return;
        };
        let (keys, name) = (part.keys_of(prefix), part.lora_name.clone());
        let held = publisher.memberships.number_of(lora_name);
        let held = held.and_then(|number| publisher.memberships.get(number));
        let is_held = held.is_some_and(|part| {
            self.scopes[part.scope as usize].is_held(prefix, part.member, self.placement)
        });
        if is_held {
            return;
        }
        for key in keys {
            moves.forget(key, name.clone(), prefix);
            (0..TIERS).for_each(|tier| {
                self.remove_whole(publisher, key, tier);
            });
            let mark = key ^ ALIASES_MASK ^ HASHES_MASK;
            self.end_apart(publisher, HASHES_DIFFER, mark, SHARED);
        }
    }
}

/// The scopes of an adapter's blocks, and of what engines call them.
struct Places {
    blocks: Option<u32>,
    aliases: Option<u32>,
}

impl Places {
    fn of(state: &State, stream: &StreamKey, lora_name: &str, aliases: Option<&str>) -> Self {
        let of = |name| state.index.scope_ids.get(&stream.scope_ref(name)).copied();
        Self { blocks: of(lora_name), aliases: aliases.and_then(of) }
    }
}

/// The block that the engines of a scope and a domain call by this hash, which they have announced
/// with its tokens, or had when a pool stored an object of it that it still has, or has `forgotten` in
/// this batch; None where none holds one, or they hold different ones.
fn prefix_of(
    state: &State,
    places: Places,
    domain: u32,
    alias: u64,
    forgotten: Option<u64>,
) -> Option<u64> {
    let mut found = forgotten;
    // One that was named by its prefix hash says no tokens.
    let names = [(places.blocks, alias, Some(alias)), (places.aliases, alias ^ ALIASES_MASK, None)];
    for (scope, key, but) in names {
        let Some(scope) = scope else { continue };
        let Scope { slots, .. } = &state.index.scopes[scope as usize];
        for id in state.index.scopes[scope as usize].publishers() {
            let Some(publisher) = state.publishers.get(&id) else { continue };
            if publisher.domain != domain {
                continue;
            }
            let Some(entry) = state.index.find(publisher, key) else { continue };
            let is_there = publisher.memberships.get(entry.membership).map(|part| part.scope);
            if is_there != Some(scope) {
                continue; // and its slot is one of another scope
            }
            let prefix = slots.prefix(entry.slot);
            if Some(prefix) == but {
                continue;
            }
            match found {
                Some(other) if other != prefix => return None,
                _ => found = Some(prefix),
            }
        }
    }
    found
}

//! Objects of a shared pool: found by what others call the block that they have.
//!
//! An object is held once, however often it is announced. One that is named by a prefix hash is at
//! that. One that is named by an engine's hash is at the prefix that an engine of the scope announces
//! with its tokens; until one does it waits, as an entry of a scope of its own (`waiting_name`), whose
//! "prefix" is the engine's hash: so it stands in rows and digests like all others.

use crate::counters::Counter;
use crate::entries::Block;
use crate::events::Stored;
use crate::left_out::CONFLICT;
use crate::limits::TURN_BLOCKS;
use crate::names::waiting_name;
use crate::state::State;
use crate::write::{Result, WriteTurn};

impl WriteTurn<'_> {
    pub fn store_objects(&mut self, id: u64, event: &Stored, mask: u64) -> Result<()> {
        let chunks = event.hashes.chunks(TURN_BLOCKS).zip(event.aliases.chunks(TURN_BLOCKS));
        for (hashes, aliases) in chunks {
            for (&hash, &alias) in hashes.iter().zip(aliases) {
                let key = u64::from_le_bytes(hash) ^ mask;
                self.store_object(id, event, key, u64::from_le_bytes(alias))?;
            }
            self.spend(hashes.len());
        }
        Ok(())
    }

    fn store_object(&mut self, id: u64, event: &Stored, key: u64, alias: u64) -> Result<()> {
        let (publisher, index) = self.publisher(id)?;
        if index.find(publisher, key).is_some() {
            return self.store_known(id, event, key, alias);
        }
        let (scope, domain) = (publisher.stream.scope(event.lora_name), publisher.domain);
        let prefix = if event.by_hash {
            Some(alias)
        } else {
            self.state()
                .index
                .scope_ids
                .get(&scope)
                .copied()
                .and_then(|number| prefix_of(self.state(), number, domain, alias))
        };
        let name = match prefix {
            Some(_) => Some(event.lora_name.to_owned()),
            None => waiting_name(event.lora_name),
        };
        let (publisher, index) = self.publisher(id)?;
        let Some(name) = name else {
            index.count(Counter::WaitingOverflow, 1);
            index.leave_out(publisher, Block::of(event, key, 0), "waiting");
            return Ok(());
        };
        let number = index.join(publisher, &name);
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
        let prefix = prefix.unwrap_or(alias);
        let block = Block { key, prefix, tier: event.tier, is_object: true, ..Block::default() };
        index.hold(publisher, number, block, None);
        Ok(())
    }

    /// An object that is held already, here or on another tier.
    fn store_known(&mut self, id: u64, event: &Stored, key: u64, alias: u64) -> Result<()> {
        let (publisher, index) = self.publisher(id)?;
        let Some(entry) = index.find(publisher, key) else { return Ok(()) };
        let Some((lora_name, prefix)) = index.block_of(publisher, &entry) else { return Ok(()) };
        let is_joined = *lora_name == *event.lora_name;
        let waits =
            !is_joined && waiting_name(event.lora_name).is_some_and(|name| *name == *lora_name);
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
        let Some(name) = waiting_name(event.lora_name) else { return Ok(()) };
        let (publisher, index) = self.publisher(id)?;
        let domain = publisher.domain;
        let scope = index.scope_ids.get(&publisher.stream.scope(event.lora_name)).copied();
        let waiting = index.scope_ids.get(&publisher.stream.scope(&name)).copied();
        let (Some(scope), Some(waiting)) = (scope, waiting) else { return Ok(()) };
        for &hash in event.hashes {
            let alias = u64::from_le_bytes(hash);
            let index = &self.state().index;
            if index.scopes[waiting as usize].find(alias, index.placement).is_none() {
                continue;
            }
            let Some(prefix) = prefix_of(self.state(), scope, domain, alias) else {
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
        let Some(waiting) = &membership.waiting else { return Ok(()) };
        let range = waiting.range((alias, 0)..=(alias, u64::MAX));
        let keys: Vec<u64> = range.map(|(&(_, key), _)| key).collect();
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
        self.spend(keys.len());
        Ok(())
    }
}

/// The block that the engines of a scope and a domain call by this hash, which they have announced
/// with its tokens; None where none holds one, or they hold different ones.
fn prefix_of(state: &State, scope: u32, domain: u32, alias: u64) -> Option<u64> {
    let mut found = None;
    for id in state.index.scopes[scope as usize].publishers() {
        let Some(publisher) = state.publishers.get(&id) else { continue };
        if publisher.domain != domain {
            continue;
        }
        let Some(entry) = state.index.find(publisher, alias) else { continue };
        let is_there = publisher.memberships.get(entry.membership).map(|part| part.scope);
        if is_there != Some(scope) {
            continue;
        }
        let prefix = state.index.scopes[scope as usize].slots.prefix(entry.slot);
        if prefix == alias {
            continue; // one that was named by its prefix hash
        }
        match found {
            Some(other) if other != prefix => return None,
            _ => found = Some(prefix),
        }
    }
    found
}

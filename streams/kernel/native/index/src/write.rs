//! The writes: folding events, loading changes, clearing. Each takes the lock in turns of at most
//! `TURN_BLOCKS` blocks, so that queries get in between.
//!
//! One write runs at a time (the caller holds a mutex), so what a write knows stays true across
//! turns.

use parking_lot::{RwLock, RwLockWriteGuard};

use crate::block::Block;
use crate::changes::Change;
use crate::counters::Counter;
use crate::entries::AHEAD;
use crate::entry_table::{Entry, Place};
use crate::events::{Event, Removed, Stored};
use crate::hashing::{PrefixHasher, TOKEN_HASH_SEED, group_mask};
use crate::left_out::{LASTING, UNRESOLVED, reason_of};
use crate::limits::{ENDED_ENTRIES, GROUP_MAX, RELEASED_BESIDE_MIN, TURN_BLOCKS};
use crate::memberships::{MemberId, Membership};
use crate::moves::Moves;
use crate::names::{ContextKey, GROUPS, RULES, is_shared};
use crate::publisher::Publisher;
use crate::state::{Index, State};

/// The handle is not (or no longer) that of a publisher.
#[derive(Debug)]
pub struct UnknownPublisher;

/// The tier of a publisher's own GPU.
pub const GPU: u32 = 0;

/// Blocks of an event that are asked for before its turn, and how many events before it.
const TOUCHED_MAX: usize = 4;
const EVENTS_AHEAD: usize = 8;

pub type Result<T> = std::result::Result<T, UnknownPublisher>;

/// A write in progress, which holds the state's lock for one turn at a time.
pub struct WriteTurn<'a> {
    state: RwLockWriteGuard<'a, State>,
    hasher: &'a PrefixHasher,
    blocks_left: usize,
    scratch: Vec<u8>,
}

impl Drop for WriteTurn<'_> {
    fn drop(&mut self) {
        self.state.index.settle();
    }
}

/// How far a chain of stored blocks has come.
#[derive(Clone, Copy)]
struct Chain {
    membership: u32,
    prefix: Option<u64>,
    slot: Option<u32>,
}

impl<'a> WriteTurn<'a> {
    pub fn new(state: &'a RwLock<State>, hasher: &'a PrefixHasher) -> Self {
        Self { state: state.write(), hasher, blocks_left: TURN_BLOCKS, scratch: Vec::new() }
    }

    pub fn state(&mut self) -> &mut State {
        &mut self.state
    }

    pub fn publisher(&mut self, id: u64) -> Result<(&mut Publisher, &mut Index)> {
        let State { publishers, index, .. } = &mut *self.state;
        let publisher = publishers.get_mut(&id).ok_or(UnknownPublisher)?;
        Ok((publisher, index))
    }

    /// Lets readers in where this turn is over.
    pub fn spend(&mut self, blocks: usize) {
        if blocks < self.blocks_left {
            self.blocks_left -= blocks;
            return;
        }
        self.state.index.settle();
        RwLockWriteGuard::bump(&mut self.state);
        self.blocks_left = TURN_BLOCKS;
    }

    /// Folds the events whose sequence is above `after`, in order. Returns the sequence of the last
    /// of them that cleared.
    pub fn apply(&mut self, id: u64, events: &[Event], after: i128) -> Result<Option<i128>> {
        self.publisher(id)?;
        let mut cleared = None;
        let mut moves = Moves::new(events);
        for (at, event) in events.iter().enumerate() {
            if let Some(further) = events.get(at + EVENTS_AHEAD) {
                self.touch(id, further)?;
            }
            if event.sequence() <= after {
                continue;
            }
            moves.begin(event.sequence());
            match event {
                Event::Stored(stored) => self.store(id, stored, &moves)?,
                Event::Removed(removed) => self.remove(id, removed, &mut moves)?,
                Event::Cleared { tiers: Some(tiers), .. } => {
                    self.clear_tiers(id, tiers, &mut moves)?;
                }
                Event::Cleared { sequence, tiers: None } => {
                    self.clear_blocks(id)?;
                    cleared = Some(*sequence);
                }
            }
        }
        self.settle(Some(id))?;
        self.release_left_beside(events.iter().map(Event::blocks).sum());
        Ok(cleared)
    }

    /// Has what an event of few blocks looks at first brought into the cache: it has too few of them
    /// to wait for all at once.
    fn touch(&mut self, id: u64, event: &Event) -> Result<()> {
        let (publisher, index) = self.publisher(id)?;
        let (hashes, group) = match event {
            Event::Stored(event) => (event.hashes, group_of_names(event)),
            Event::Removed(event) => (event.hashes, event.group),
            Event::Cleared { .. } => return Ok(()),
        };
        let mask = group_mask(group);
        for &hash in hashes.iter().take(TOUCHED_MAX) {
            publisher.entries.touch(u64::from_le_bytes(hash) ^ mask, index.placement);
        }
        Ok(())
    }

    fn store(&mut self, id: u64, event: &Stored, moves: &Moves) -> Result<()> {
        let seed = self.hasher.seed();
        let (publisher, index) = self.publisher(id)?;
        if event.reported {
            index.settle_rules(publisher); // an event before it may have named one of their keys
        }
        let undecided;
        let event = if event.reported && !publisher.active_rules().is_empty() {
            // Whatever was registered: a prompt is computed again where one group has lost a block.
            undecided = Stored { reported: false, undecided: true, ..event.clone() };
            &undecided
        } else {
            event
        };
        let blocks = event.hashes.len();
        let refusal = refusal(publisher, event, seed);
        if shows_group(event, refusal) {
            // Of an object there is a first shard, though it is not here.
            publisher.has_base |= !event.aliases.is_empty();
            index.note_group(publisher, event.group);
        }
        if let Some(refusal) = refusal {
            if event.is_needed && self.store_sparse(id, event)? {
                return Ok(());
            }
            let (publisher, index) = self.publisher(id)?;
            if matches!(refusal, Counter::SkippedGroup) && event.group <= GROUP_MAX {
                publisher.skipped_groups |= 1 << event.group;
            }
            index.count(refusal, blocks);
            return self.leave_out(id, event, reason_of(refusal, event));
        }
        let mask = group_mask(group_of_names(event));
        if event.is_placeholder() {
            self.store_placeholders(id, event, mask, moves)?;
            return self.place_if_sparse(id, event);
        }
        if !event.aliases.is_empty() {
            return self.store_objects(id, event, mask, moves);
        }
        let Some(mut chain) = start_chain(publisher, index, event, mask, moves) else {
            index.count(Counter::UnknownParent, blocks);
            return self.leave_out(id, event, reason_of(Counter::UnknownParent, event));
        };
        let mut done = 0;
        while done < blocks {
            let end = blocks.min(done + self.blocks_left);
            self.store_blocks(id, event, mask, done..end, &mut chain)?;
            self.spend(end - done);
            done = end;
        }
        if self.state.index.waiting > 0 && event.group == 0 && !event.by_hash {
            self.join_waiting(id, event)?;
        }
        self.place_if_sparse(id, event)?;
        let (publisher, index) = self.publisher(id)?;
        index.leave_if_unused(publisher, chain.membership);
        Ok(())
    }

    /// Keeps that the publisher holds the blocks of an event which the index cannot use.
    #[cold]
    fn leave_out(&mut self, id: u64, event: &Stored, reason: Option<String>) -> Result<()> {
        let Some(reason) = reason else { return Ok(()) };
        let mask = group_mask(group_of_names(event));
        for hashes in event.hashes.chunks(TURN_BLOCKS) {
            let (publisher, index) = self.publisher(id)?;
            for &hash in hashes {
                let block = Block::of(event, u64::from_le_bytes(hash) ^ mask, 0);
                index.leave_out(publisher, block, &reason);
            }
            self.spend(hashes.len());
        }
        Ok(())
    }

    fn store_blocks(
        &mut self,
        id: u64,
        event: &Stored,
        mask: u64,
        blocks: std::ops::Range<usize>,
        chain: &mut Chain,
    ) -> Result<()> {
        let State { publishers, index, .. } = &mut *self.state;
        let publisher = publishers.get_mut(&id).ok_or(UnknownPublisher)?;
        let Some(membership) = publisher.memberships.get(chain.membership) else { return Ok(()) };
        let number = membership.scope as usize;
        index.touch(membership.scope);
        let mut keys = [0; AHEAD];
        let mut prefixes = [0; AHEAD];
        let mut start = blocks.start;
        while start < blocks.end {
            let len = AHEAD.min(blocks.end - start);
            let (keys, prefixes) = (&mut keys[..len], &mut prefixes[..len]);
            // What the first ones wait for comes while the others are hashed.
            let (scope, placement) = (&index.scopes[number], index.placement);
            for (i, (key, place)) in (start..).zip(keys.iter_mut().zip(&mut *prefixes)) {
                let hash = u64::from_le_bytes(event.hashes[i]);
                *key = hash ^ mask;
                publisher.entries.touch(*key, placement);
                let prefix = if event.by_hash {
                    hash
                } else {
                    let local = if let Some(&local) = event.token_hashes.get(i) {
                        u64::from_le_bytes(local)
                    } else {
                        let (tokens, extra) = (event.block_tokens(i), event.extra_key(i));
                        self.hasher.block(tokens, extra, &mut self.scratch)
                    };
                    self.hasher.chain(chain.prefix, local)
                };
                scope.touch(prefix, placement);
                chain.prefix = Some(prefix);
                *place = prefix;
            }
            for (&key, &prefix) in keys.iter().zip(&*prefixes) {
                let block = Block::of(event, key, prefix);
                let slot = index.hold(publisher, chain.membership, block, chain.slot);
                chain.slot = slot.or(chain.slot);
            }
            start += len;
        }
        Ok(())
    }

    /// Placeholders name blocks that the publisher holds already, on another tier, or held before
    /// in the same batch.
    fn store_placeholders(
        &mut self,
        id: u64,
        event: &Stored,
        mask: u64,
        moves: &Moves,
    ) -> Result<()> {
        for hashes in event.hashes.chunks(TURN_BLOCKS) {
            let (publisher, index) = self.publisher(id)?;
            for &hash in hashes {
                let key = u64::from_le_bytes(hash) ^ mask;
                let (number, prefix) = if let Some(entry) = index.find(publisher, key) {
                    let Some((_, prefix)) = index.block_of(publisher, &entry) else { continue };
                    (entry.membership, prefix)
                } else if let Some((lora_name, prefix)) = moves.find(key) {
                    (index.join(publisher, &lora_name), prefix)
                } else {
                    index.count(Counter::Unresolved, 1);
                    let block = Block::of(event, key, 0);
                    index.leave_out(publisher, block, UNRESOLVED);
                    continue;
                };
                if let Some(membership) = publisher.memberships.get(number) {
                    index.touch(membership.scope);
                }
                let block = Block::of(event, key, prefix);
                index.hold(publisher, number, block, None);
            }
            self.spend(hashes.len());
        }
        Ok(())
    }

    fn remove(&mut self, id: u64, event: &Removed, moves: &mut Moves) -> Result<()> {
        let mask = group_mask(event.group);
        for hashes in event.hashes.chunks(TURN_BLOCKS) {
            let (publisher, index) = self.publisher(id)?;
            let skipped =
                event.group <= GROUP_MAX && publisher.skipped_groups >> event.group & 1 == 1;
            let unknown = if skipped { Counter::SkippedGroup } else { Counter::UnknownRemoved };
            let is_of_pool = is_shared(event.tier) && publisher.routable && !skipped;
            for ahead in hashes.chunks(AHEAD) {
                let found = index.find_ahead(publisher, ahead, mask);
                for (&hash, entry) in ahead.iter().zip(found) {
                    let is_noting = moves.is_noting();
                    let key = u64::from_le_bytes(hash) ^ mask;
                    let entry = if is_noting { index.find(publisher, key) } else { entry };
                    let held = entry.as_ref().filter(|entry| entry.has(event.tier));
                    let noted = held.filter(|_| is_noting || publisher.has_aliases);
                    let noted = noted.and_then(|entry| index.block_of(publisher, entry));
                    if let Some(left) = event.left {
                        // One that is named twice may be held no more the second time.
                        let held = index.find(publisher, key).filter(|one| one.has(event.tier));
                        let is_known = index.set_left(publisher, key, event.tier, left);
                        if held.is_none() {
                            let was_left_out = Counter::LeftOutRemoved;
                            index.count(if is_known { was_left_out } else { unknown }, 1);
                            if is_of_pool && !is_known {
                                index.note_pool_removal(publisher, key, event.tier);
                            }
                            continue;
                        }
                    } else {
                        let copies = if index.repeated > 0 || index.left_out > 0 {
                            index.keep_copies(publisher, key, event.tier)
                        } else {
                            None
                        };
                        // Likewise.
                        let is_removed = copies == Some(true)
                            || held.is_some_and(|entry| index.remove(publisher, entry, event.tier));
                        if !is_removed {
                            let was_left_out = copies.is_some()
                                || index.left_out > 0
                                    && (index.lower_left_out(publisher, key, event.tier)
                                        || !skipped && index.lower_overflow(publisher, event.tier));
                            let counter =
                                if was_left_out { Counter::LeftOutRemoved } else { unknown };
                            index.count(counter, 1);
                            if is_of_pool && !was_left_out {
                                index.note_pool_removal(publisher, key, event.tier);
                            }
                            if event.tier == GPU && !was_left_out {
                                index.note_unheld(publisher, key, event.group);
                            }
                            continue;
                        }
                    }
                    if let Some((lora_name, prefix)) = noted {
                        if publisher.has_aliases {
                            index.forget_aliases(publisher, (&lora_name, prefix), moves);
                        }
                        if is_noting {
                            moves.note(key, lora_name, prefix);
                        }
                    }
                    index.count(Counter::Removed, 1);
                }
            }
            self.spend(hashes.len());
        }
        Ok(())
    }

    // Dropping entries

    /// The publisher holds nothing any more, but for what another owns; what outlives that stays
    /// known.
    fn clear_blocks(&mut self, id: u64) -> Result<()> {
        let (publisher, index) = self.publisher(id)?;
        let kept = (publisher.has_base, publisher.sparse_blocks, publisher.unruled);
        let lasting = index.lasting(publisher);
        self.clear(id)?;
        let (publisher, index) = self.publisher(id)?;
        (publisher.has_base, publisher.sparse_blocks, publisher.unruled) = kept;
        index.keep(publisher, &lasting);
        Ok(())
    }

    /// Drops all entries of a publisher; returns how many.
    pub fn clear(&mut self, id: u64) -> Result<u64> {
        let (publisher, _) = self.publisher(id)?;
        (publisher.has_base, publisher.sparse_blocks, publisher.unruled) = (false, None, false);
        publisher.unheld_removed = Some(0);
        let removed = publisher.live_entries() - publisher.aliases();
        let mut emptied = publisher.memberships.numbers();
        emptied.retain(|&number| {
            publisher.memberships.get(number).is_some_and(|part| part.entries > 0)
        });
        self.release_all(id, &emptied)?;
        let (publisher, index) = self.publisher(id)?;
        for number in emptied {
            if let Some(membership) = publisher.memberships.get(number) {
                let change = Change::clear(publisher.dp_rank).encode();
                index.changes.record(membership.context, &change);
            }
            index.leave_if_unused(publisher, number);
        }
        index.count(Counter::Cleared, removed as usize);
        Ok(removed)
    }

    /// Drops a publisher's entries on some tiers.
    fn clear_tiers(&mut self, id: u64, tiers: &[u32], moves: &mut Moves) -> Result<()> {
        if tiers.contains(&GPU) {
            self.publisher(id)?.0.unheld_removed = Some(0);
        }
        for &tier in tiers {
            let (publisher, index) = self.publisher(id)?;
            let lasting = LASTING.map(|name| publisher.memberships.number_of(name));
            let is_alias = |entry: &Entry| {
                let part = publisher.memberships.get(entry.membership);
                publisher.has_aliases && part.is_some_and(|part| part.aliases)
            };
            let mut held = Vec::new();
            let mut place = Some(Place::default());
            while let Some(at) = place {
                let see = |entry: Entry| {
                    let lasts = lasting.contains(&Some(entry.membership));
                    let is_of_blocks = !lasts && !is_alias(&entry);
                    let is_gone = entry.has(tier) && is_of_blocks;
                    held.extend(is_gone.then_some(entry.key));
                };
                place = publisher.entries.part(at, index.keys(publisher), see);
            }
            held.sort_unstable();
            held.dedup();
            for keys in held.chunks(TURN_BLOCKS) {
                let (publisher, index) = self.publisher(id)?;
                for &key in keys {
                    let entry = index.find(publisher, key).filter(|_| publisher.has_aliases);
                    let block = entry.and_then(|entry| index.block_of(publisher, &entry));
                    let removed = index.remove_whole(publisher, key, tier);
                    index.count(Counter::Cleared, removed.into());
                    if let Some((lora_name, prefix)) = block {
                        index.forget_aliases(publisher, (&lora_name, prefix), moves);
                    }
                }
                self.spend(keys.len());
            }
        }
        Ok(())
    }

    /// Releases all entries of a publisher, which are those of these memberships: now, or where they
    /// are many, later.
    fn release_all(&mut self, id: u64, numbers: &[u32]) -> Result<()> {
        let (publisher, index) = self.publisher(id)?;
        let is_later = index.clears_later(publisher, numbers);
        let retired = if is_later { index.retire(publisher, numbers) } else { Vec::new() };
        numbers.iter().for_each(|&number| empty_membership(publisher, index, number));
        publisher.counts.clear();
        publisher.groups = 0;
        publisher.rules.clear();
        publisher.has_unruled = false;
        let entries = std::mem::take(&mut publisher.entries);
        for member in retired {
            self.hide(member);
        }
        self.release(id, entries.into_entries())
    }

    /// Hides what a retired member still has.
    fn hide(&mut self, retired: MemberId) {
        let mut from = 0;
        loop {
            let sets = &mut self.state.index.scopes[retired.scope as usize].sets;
            let seen = sets.hide(retired.member, from, TURN_BLOCKS);
            if seen == 0 {
                return;
            }
            from += seen;
            self.spend(seen);
        }
    }

    /// Releases some of what was cleared; returns how much is left.
    pub fn release_left(&mut self, mut most: usize) -> usize {
        while most > 0 {
            let released = self.state.index.release_left(most.min(TURN_BLOCKS));
            if released == 0 {
                break;
            }
            most = most.saturating_sub(released);
            self.spend(released);
        }
        self.state.index.leaving.len()
    }

    /// Releases of what was cleared more than this write can have brought, so that there is an end.
    fn release_left_beside(&mut self, blocks: usize) {
        let joined = std::mem::take(&mut self.state.index.joined);
        if self.state.index.leaving.len() > 0 {
            self.release_left((2 * blocks + ENDED_ENTRIES * joined).max(RELEASED_BESIDE_MIN));
        }
    }

    pub fn unregister(&mut self, id: u64) -> Result<u64> {
        let removed = self.clear(id)?;
        self.state.forget(id);
        Ok(removed)
    }

    /// Drops the entries of a publisher in one scope.
    fn clear_membership(&mut self, id: u64, number: u32) -> Result<()> {
        let (publisher, index) = self.publisher(id)?;
        if publisher.memberships.get(number).is_some_and(|p| p.entries == publisher.live_entries())
        {
            return self.release_all(id, &[number]);
        }
        let (entries, keys) = index.entries_mut(publisher);
        let entries = entries.extract(number, keys);
        for entry in &entries {
            for tier in entry.tiers() {
                publisher.counts.keep(entry.key, tier, 0);
            }
        }
        empty_membership(publisher, index, number);
        self.release(id, entries.into_iter())
    }

    /// Takes entries out of the index that are no longer the publisher's.
    fn release(&mut self, id: u64, mut entries: impl Iterator<Item = Entry>) -> Result<()> {
        let (publisher, _) = self.publisher(id)?;
        let members = publisher.memberships.map(Membership::member_id);
        loop {
            let batch: Vec<Entry> = entries.by_ref().take(TURN_BLOCKS).collect();
            if batch.is_empty() {
                return Ok(());
            }
            self.state.index.release(&batch, &members);
            self.spend(batch.len());
        }
    }

    // Loading

    /// Applies changes that were taken or dumped before.
    pub fn load(&mut self, context: &ContextKey, changes: &[Change]) -> Result<()> {
        let stream = context.stream();
        let lora_name = &context.scope.lora_name;
        let mut slot = None;
        let mut last: Option<(u32, u64)> = None;
        for (place, change) in changes.iter().enumerate() {
            let id = match last {
                Some((dp_rank, id)) if dp_rank == change.dp_rank => id,
                before => {
                    self.settle(before.map(|(_, id)| id))?;
                    self.state.open_publisher(stream.clone(), change.dp_rank)
                }
            };
            last = Some((change.dp_rank, id));
            let (publisher, index) = self.publisher(id)?;
            if place % AHEAD == 0 {
                let next = &changes[place..changes.len().min(place + AHEAD)];
                index.touch_changes(publisher, lora_name, next);
            }
            if change.clears {
                if let Some(number) = publisher.memberships.number_of(lora_name) {
                    self.clear_membership(id, number)?;
                    let (publisher, index) = self.publisher(id)?;
                    index.leave_if_unused(publisher, number);
                    if **lora_name == *GROUPS {
                        index.regroup(publisher);
                    }
                    index.settle_rules(publisher);
                }
                slot = None;
                continue;
            }
            let number = index.join(publisher, lora_name);
            if let Some(membership) = publisher.memberships.get(number) {
                index.touch(membership.scope);
            }
            slot = index.load(publisher, number, change, slot).or(slot);
            index.leave_if_unused(publisher, number);
            if **lora_name == *GROUPS {
                index.regroup(publisher);
            }
            if **lora_name == *RULES {
                index.read_rules(publisher);
            }
            self.spend(1);
        }
        self.settle(last.map(|(_, id)| id))?;
        self.release_left_beside(changes.len());
        Ok(())
    }

    /// Has a publisher's groups and rules looked at again, where one of their keys may have been
    /// named.
    fn settle(&mut self, id: Option<u64>) -> Result<()> {
        if let Some(id) = id {
            let (publisher, index) = self.publisher(id)?;
            index.settle_groups(publisher);
            index.settle_rules(publisher);
        }
        Ok(())
    }
}

/// Sets a membership to no entries; the index still has them.
fn empty_membership(publisher: &mut Publisher, index: &mut Index, number: u32) {
    if let Some(membership) = publisher.memberships.get_mut(number) {
        let entries = std::mem::take(&mut membership.entries);
        membership.own = 0;
        membership.owned = 0;
        membership.digest = 0;
        membership.uneven = 0;
        if let Some(named) = &mut membership.named {
            named.clear();
        }
        if membership.waits {
            index.waiting -= entries;
        }
        if membership.left_out {
            index.left_out -= entries;
        }
        if membership.repeated {
            index.repeated -= entries;
        }
        index.note_participation(membership);
    }
}

/// Where the event's blocks begin; None where its parent is not held in the same scope.
fn start_chain(
    publisher: &mut Publisher,
    index: &mut Index,
    event: &Stored,
    mask: u64,
    moves: &Moves,
) -> Option<Chain> {
    let Some(parent) = event.parent.filter(|_| !event.by_hash) else {
        let membership = index.join(publisher, event.lora_name);
        return Some(Chain { membership, prefix: None, slot: None });
    };
    let Some(parent) = index.find(publisher, parent ^ mask) else {
        let (lora_name, prefix) = moves.find(parent ^ mask)?;
        let is_ours = *lora_name == *event.lora_name;
        let membership = is_ours.then(|| index.join(publisher, &lora_name))?;
        return Some(Chain { membership, prefix: Some(prefix), slot: None });
    };
    let membership = publisher.memberships.get(parent.membership)?;
    if *membership.lora_name != *event.lora_name {
        return None;
    }
    let prefix = index.scopes[membership.scope as usize].slots.prefix(parent.slot);
    Some(Chain { membership: parent.membership, prefix: Some(prefix), slot: Some(parent.slot) })
}

/// The cache group whose names its blocks have: objects have names of their own, and their group is
/// the shard of a block that they are.
fn group_of_names(event: &Stored) -> u32 {
    if event.aliases.is_empty() { event.group } else { 0 }
}

/// Whether a stored event shows that its group forms prefixes, though it may not be usable: not one
/// whose tokens do not cover its blocks, as those of a sparse group may not.
fn shows_group(event: &Stored, refusal: Option<Counter>) -> bool {
    let is_sparse = matches!(refusal, Some(Counter::SkippedGroup | Counter::TokenCountMismatch));
    !(is_sparse || event.is_placeholder())
}

/// The counter under which a stored event is left out, if it is.
fn refusal(publisher: &Publisher, event: &Stored, seed: u64) -> Option<Counter> {
    let blocks = event.hashes.len();
    if !event.forms_prefix {
        return Some(Counter::SkippedGroup);
    }
    if !event.left_out.is_empty() {
        return Some(Counter::Unusable);
    }
    if event.is_placeholder() && event.block_size == 0 {
        return None;
    }
    if event.block_size != publisher.stream.block_size {
        return Some(Counter::BlockSizeMismatch);
    }
    if event.is_placeholder() {
        return None;
    }
    if event.by_hash || !event.aliases.is_empty() {
        let is_mixed = !event.tokens.is_empty() || !event.token_hashes.is_empty();
        return is_mixed.then_some(Counter::TokenCountMismatch);
    }
    if !event.token_hashes.is_empty() {
        if !event.tokens.is_empty() || event.token_hashes.len() != blocks {
            return Some(Counter::TokenCountMismatch);
        }
        if !event.extra_keys.is_empty() {
            return Some(Counter::ExtraKeysMismatch);
        }
        return (seed != TOKEN_HASH_SEED).then_some(Counter::SeedMismatch);
    }
    // Both factors are below 2**61 and 2**32, so the product takes more than 64 bits.
    if event.tokens.len() as u128 != 4 * blocks as u128 * u128::from(event.block_size) {
        return Some(Counter::TokenCountMismatch);
    }
    if !event.extra_keys.is_empty() && event.extra_keys.len() != blocks {
        return Some(Counter::ExtraKeysMismatch);
    }
    None
}

#[cfg(test)]
mod tests {
    //! Rules that no answer shows, or only with many blocks.

    use super::*;
    use crate::core::Core;
    use crate::events::read_events;
    use crate::limits::CLEARED_SCOPES_AT_ONCE_MAX;
    use crate::names::{Sharing, StreamKey};
    use crate::sample_events::{SampleEvent, encode};
    use crate::views;
    use crate::walk::{self, Prompt};

    struct Known {
        core: Core,
    }

    impl Known {
        fn new(cleared_at_once: usize) -> Self {
            Self { core: Core::new(1, cleared_at_once, 9, 9) }
        }

        fn write<T>(&self, work: impl FnOnce(&mut WriteTurn) -> T) -> T {
            work(&mut WriteTurn::new(&self.core.state, &self.core.hasher))
        }

        fn open(&self, instance: &str) -> u64 {
            let stream = StreamKey {
                tenant_id: "t".into(),
                model_name: "m".into(),
                block_size: 2,
                additional_salt: "".into(),
                instance_id: instance.into(),
            };
            self.write(|turn| turn.state().open_publisher(stream, 0))
        }

        fn apply(&self, id: u64, events: &[SampleEvent]) {
            let encoded = encode(events);
            let events = read_events(&encoded).expect("events");
            self.write(|turn| turn.apply(id, &events, -1)).expect("a publisher");
        }

        /// Blocks by their prefix hashes, of an adapter each time.
        fn hold(&self, id: u64, lora: &str, hashes: impl IntoIterator<Item = u64>) {
            self.apply(id, &[by_hash(lora, hashes)]);
        }

        fn left(&self) -> usize {
            self.core.state.read().index.leaving.len()
        }
    }

    fn by_hash(lora: &str, hashes: impl IntoIterator<Item = u64>) -> SampleEvent {
        SampleEvent {
            hashes: hashes.into_iter().collect(),
            by_hash: true,
            lora_name: lora.to_owned(),
            ..SampleEvent::default()
        }
    }

    #[test]
    fn a_clear_of_more_than_may_be_done_at_once_is_done_later() {
        for (cleared_at_once, held, left) in [(5, 5, 0), (5, 6, 6 + 1), (6, 6, 0), (0, 1, 1 + 1)] {
            let known = Known::new(cleared_at_once);
            let id = known.open("a");
            known.hold(id, "", 0..held);
            assert_eq!(known.write(|turn| turn.clear(id)).expect("a publisher"), held);
            assert_eq!(known.left(), left, "{held} of {cleared_at_once}");
        }
        let most = CLEARED_SCOPES_AT_ONCE_MAX;
        for (adapters, left) in [(most, 0), (most + 1, 2 * (most + 1))] {
            let known = Known::new(1000);
            let id = known.open("a");
            (0..adapters).for_each(|at| known.hold(id, &at.to_string(), [7 + at as u64]));
            known.write(|turn| turn.clear(id)).expect("a publisher");
            assert_eq!(known.left(), left, "{adapters} adapters");
        }
    }

    /// 5 parts of 8 entries each.
    fn cleared() -> Known {
        let known = Known::new(0);
        let id = known.open("a");
        for part in 0..5 {
            known.hold(id, &part.to_string(), 100 * part..100 * part + 8);
        }
        known.write(|turn| turn.clear(id)).expect("a publisher");
        assert_eq!(known.left(), 40 + 5);
        known
    }

    #[test]
    fn entries_are_released_first_and_the_end_of_a_part_counts_as_some() {
        let known = cleared();
        let release = |most| known.core.state.write().index.release_left(most);
        assert_eq!(release(10), 10);
        assert_eq!((release(38), known.left()), (30 + 16, 4));
        assert_eq!((release(20), known.left()), (32, 2));
        assert_eq!((release(100), known.left()), (32, 0));
        assert_eq!(release(100), 0);
        let known = cleared();
        assert_eq!(known.write(|turn| turn.release_left(0)), 45);
        assert_eq!(known.write(|turn| turn.release_left(7)), 38);
        assert_eq!(known.write(|turn| turn.release_left(1000)), 0);
        assert!(known.core.state.read().index.scope_ids.is_empty());
    }

    #[test]
    fn a_write_releases_more_than_it_can_have_brought() {
        let known = Known::new(0);
        let (id, other) = (known.open("a"), known.open("b"));
        known.hold(id, "", 0..5000);
        known.hold(other, "", [1]);
        known.write(|turn| turn.clear(id)).expect("a publisher");
        let mut left = known.left();
        assert_eq!(left, 5001);
        let mut released = |events: &[SampleEvent]| {
            known.apply(other, events);
            let before = std::mem::replace(&mut left, known.left());
            before - left
        };
        assert_eq!(released(&[]), RELEASED_BESIDE_MIN);
        assert_eq!(released(&[by_hash("", 6000..6100)]), 200);
        let joins: Vec<SampleEvent> =
            (0..10).map(|at| by_hash(&at.to_string(), [7000 + at])).collect();
        assert_eq!(released(&joins), 2 * 10 + 16 * 10);
        assert_eq!(released(&[by_hash("", [6100])]), RELEASED_BESIDE_MIN, "nothing is joined anew");
    }

    #[test]
    fn what_was_cleared_is_hidden_in_all_sets_and_sets_without_blocks_are_dropped() {
        let known = Known::new(0);
        let ids: Vec<u64> = (0..11).map(|at| known.open(&at.to_string())).collect();
        // As many sets as there are choices of the others.
        for (bit, &id) in ids[1..].iter().enumerate() {
            known.hold(id, "", (0..1024_u64).filter(|block| block >> bit & 1 == 1));
        }
        known.hold(ids[0], "", 0..1024);
        known.write(|turn| turn.state().register(ids[0], "", true, false, Sharing::default()));
        let held = || {
            let state = known.core.state.read();
            let scope = &state.index.scopes[0];
            let query = |block: u64| {
                let hashes = [block.to_le_bytes()];
                let asked = Prompt::Hashes(&hashes);
                let found = walk::query(&state, scope, &known.core.hasher, &asked, Some("0"));
                found[0].depths[0]
            };
            (0..1024).map(query).collect::<Vec<u64>>()
        };
        assert_eq!(held(), [2; 1024]);
        assert!(known.core.state.read().index.scopes[0].sets.len() > 2 * TURN_BLOCKS);
        known.write(|turn| turn.clear(ids[0])).expect("a publisher");
        assert_eq!(held(), [0; 1024]);
        // Of each but one, which keeps its holders.
        for &id in &ids[1..] {
            let event = SampleEvent {
                is_removal: true,
                hashes: (0..1023).collect(),
                ..SampleEvent::default()
            };
            known.apply(id, &[event]);
            let state = known.core.state.read();
            let sets = &state.index.scopes[0].sets;
            assert!(!sets.is_wasteful(), "{} of {}", sets.used_len(), sets.len());
        }
    }

    #[test]
    fn a_scope_without_members_is_not_shown_and_goes_with_its_last_block() {
        let known = Known::new(0);
        let id = known.open("a");
        known.hold(id, "", [1, 2]);
        known.write(|turn| turn.unregister(id)).expect("a publisher");
        assert!(known.left() > 0);
        let state = known.core.state.read();
        assert!(views::scopes(&state).is_empty());
        assert_eq!(views::stats(&state)[..6].iter().map(|one| one.1).sum::<u64>(), 0);
        drop(state);
        let id = known.open("b");
        known.hold(id, "x", [1, 2]);
        for hash in [1, 2] {
            assert!(known.core.state.read().index.scope_ids.len() <= 2);
            known.apply(
                id,
                &[SampleEvent { is_removal: true, hashes: vec![hash], ..SampleEvent::default() }],
            );
        }
        known.write(|turn| turn.release_left(1000));
        assert!(known.core.state.read().index.scope_ids.is_empty());
    }

    #[test]
    fn events_of_any_length_are_folded_in_turns() {
        for blocks in [TURN_BLOCKS - 1, TURN_BLOCKS, TURN_BLOCKS + 1, 3 * TURN_BLOCKS] {
            let known = Known::new(0);
            let id = known.open("a");
            known.hold(id, "", 0..blocks as u64);
            known.hold(id, "", [u64::MAX]);
            let state = known.core.state.read();
            assert_eq!(views::stats(&state)[0].1, blocks as u64 + 1);
        }
    }

    /// Such an entry takes 8 bytes, one with a key of its own 16.
    #[test]
    fn publishers_that_call_blocks_alike_have_no_keys_of_their_own() {
        let known = Known::new(0);
        let ids = ["a", "b", "c"].map(|instance| known.open(instance));
        let chain = |first: u64| SampleEvent {
            hashes: (first..first + 50).collect(),
            tokens: (0..100).collect(),
            ..SampleEvent::default()
        };
        known.apply(ids[0], &[chain(1000)]);
        known.apply(ids[1], &[chain(1000)]);
        known.apply(ids[2], &[chain(2000)]);
        let state = known.core.state.read();
        let rows_only = ids.map(|id| state.publishers[&id].entries.has_rows_only());
        assert_eq!(rows_only, [true, true, false]);
    }
}

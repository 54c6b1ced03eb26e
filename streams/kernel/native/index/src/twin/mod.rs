//! For tests: the index as a few maps, which shows what `streams/kernel/reference.py` says without
//! Python. `told` has the events, `copies` what removals leave, `world`
//! random ones for both, and `rules` what neither shows.

mod copies;
mod rules;
pub mod told;
mod world;

use std::collections::{BTreeMap, BTreeSet};

use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

use crate::changes::Change;
use crate::counters::{COUNTER_NAMES, Counter};
use crate::hashing::{ALIASES_MASK, GROUPS_MASK, LEFT_OUT_MASK, REPEATED_MASK};
use crate::names::{ContextKey, SHARED, ScopeKey, StreamKey, TIERS};
use told::{Kind, Told};

type Counts = [u16; TIERS as usize];

/// What a publisher calls by one key.
#[derive(Clone)]
struct Held {
    lora: String,
    prefix: u64,
    counts: Counts,
}

struct Owner {
    stream: StreamKey,
    dp_rank: u32,
    held: BTreeMap<u64, Held>,
    registered: Option<(String, bool)>,
    is_shard: bool,
    domain: u32,
    skipped: BTreeSet<u32>,
}

impl Owner {
    fn context(&self, lora: &str) -> ContextKey {
        let instance_id = self.stream.instance_id.clone();
        ContextKey { scope: self.stream.scope(lora), instance_id }
    }

    fn change(&self, key: u64, held: &Held, tier: u32) -> Change {
        let (prefix, count) = (held.prefix, held.counts[tier as usize]);
        Change { key, prefix, dp_rank: self.dp_rank, tier, clears: false, count }
    }

    fn live<'a>(&'a self, lora: &'a str) -> impl Iterator<Item = Change> + 'a {
        let of_scope = self.held.iter().filter(move |(_, held)| held.lora == lora);
        of_scope.flat_map(move |(&key, held)| {
            let tiers = (0..TIERS).filter(|&tier| held.counts[tier as usize] > 0);
            tiers.map(move |tier| self.change(key, held, tier))
        })
    }

    fn takes_part(&self, lora: &str) -> bool {
        self.registered.as_ref().is_some_and(|known| *known == (lora.to_owned(), true))
            || self.live(lora).any(|change| change.tier < SHARED)
    }
}

const REPEATED: &str = "\0repeated";
const GROUPS: &str = "\0groups";
const COPIES: &str = "\0left_out:copies_unknown";

/// What the present batch has removed, and what of aliases it no longer remembers, by key.
#[derive(Default)]
struct Gone {
    removed: BTreeMap<u64, Held>,
    forgotten: BTreeMap<u64, (String, u64)>,
}

/// Of an instance: its name, its depths, and those of its ranks.
type Answer = (String, [u64; 4], Vec<(u32, [u64; 4])>);

struct Twin {
    seed: u64,
    waiting_max: u64,
    left_out_max: u64,
    owners: BTreeMap<u64, Owner>,
    next_id: u64,
    changes: BTreeMap<ContextKey, Vec<u8>>,
    counters: [u64; COUNTER_NAMES.len()],
}

fn waiting(lora: &str) -> String {
    format!("\0waiting:{lora}")
}

fn aliases(lora: &str) -> String {
    format!("\0aliases:{lora}")
}

fn is_hidden(lora: &str) -> bool {
    lora.starts_with('\0')
}

fn key_of(hash: u64, group: u32) -> u64 {
    if group == 0 { hash } else { hash ^ xxh3_64(&group.to_le_bytes()) }
}

impl Twin {
    fn new(seed: u64, waiting_max: u64, left_out_max: u64) -> Self {
        let counters = [0; COUNTER_NAMES.len()];
        let (owners, changes) = (BTreeMap::new(), BTreeMap::new());
        Self { seed, waiting_max, left_out_max, owners, next_id: 0, changes, counters }
    }

    fn count(&mut self, counter: Counter, blocks: usize) {
        self.counters[counter as usize] += blocks as u64;
    }

    fn open(&mut self, stream: &StreamKey, dp_rank: u32) -> u64 {
        let is_it = |owner: &Owner| owner.stream == *stream && owner.dp_rank == dp_rank;
        if let Some((&id, _)) = self.owners.iter().find(|(_, owner)| is_it(owner)) {
            return id;
        }
        let (held, skipped) = (BTreeMap::new(), BTreeSet::new());
        let stream = stream.clone();
        let (registered, is_shard, domain) = (None, false, 0);
        let owner = Owner { stream, dp_rank, held, registered, is_shard, domain, skipped };
        self.owners.insert(self.next_id, owner);
        self.next_id += 1;
        self.next_id - 1
    }

    fn clear(&mut self, id: u64) -> u64 {
        let owner = self.owners.get_mut(&id).unwrap();
        let held = std::mem::take(&mut owner.held);
        let loras: BTreeSet<&String> = held.values().map(|held| &held.lora).collect();
        for lora in loras {
            let change = Change::clear(owner.dp_rank).encode();
            self.changes.entry(owner.context(lora)).or_default().extend(change);
        }
        let gone = held.values().filter(|held| !held.lora.starts_with("\0aliases:"));
        let gone = gone.map(|held| held.counts.iter().filter(|&&count| count > 0).count());
        let gone = gone.sum();
        self.count(Counter::Cleared, gone);
        gone as u64
    }

    fn unregister(&mut self, id: u64) -> u64 {
        let gone = self.clear(id);
        self.owners.remove(&id);
        gone
    }

    fn apply(&mut self, id: u64, events: &[Told], after: i64) -> Option<i128> {
        let mut cleared = None;
        let moving: BTreeSet<i64> =
            events.iter().filter(|event| event.is_placeholder()).map(|one| one.sequence).collect();
        let mut gone: (i64, Gone) = (i64::MIN, Gone::default());
        for event in events.iter().filter(|event| event.sequence > after) {
            if gone.0 != event.sequence {
                gone = (event.sequence, Gone::default());
            }
            match event.kind {
                Kind::Stored => self.store(id, event, &gone.1),
                Kind::Removed => {
                    let removed = self.remove(id, event, &mut gone.1);
                    if moving.contains(&event.sequence) {
                        gone.1.removed.extend(removed);
                    }
                }
                Kind::Cleared if event.medium.is_some() => {
                    self.clear_medium(id, event.medium.unwrap(), &mut gone.1);
                }
                Kind::Cleared => {
                    self.clear(id);
                    cleared = Some(event.sequence.into());
                }
            }
        }
        cleared
    }

    fn refusal(&self, id: u64, event: &Told) -> Option<Counter> {
        let blocks = event.hashes.len();
        let covered = 2 * blocks == event.tokens.len(); // all blocks here are of two tokens
        let is_right = |is: bool, otherwise| (!is).then_some(otherwise);
        let has_tokens = !event.tokens.is_empty();
        if !["", "full_attention"].contains(&event.spec_kind) {
            Some(Counter::SkippedGroup)
        } else if !event.left_out.is_empty() {
            Some(Counter::Unusable)
        } else if event.is_placeholder() {
            None
        } else if event.block_size != self.owners[&id].stream.block_size {
            Some(Counter::BlockSizeMismatch)
        } else if event.by_hash || !event.aliases.is_empty() {
            let is_plain = !has_tokens && event.token_hashes.is_empty();
            is_right(is_plain, Counter::TokenCountMismatch)
        } else if !event.token_hashes.is_empty() {
            let is_whole = !has_tokens && event.token_hashes.len() == blocks;
            is_right(is_whole, Counter::TokenCountMismatch)
                .or(is_right(event.extra_keys.is_empty(), Counter::ExtraKeysMismatch))
                .or(is_right(self.seed == 1337, Counter::SeedMismatch))
        } else {
            let has_keys = event.extra_keys.is_empty() || event.extra_keys.len() == blocks;
            is_right(covered, Counter::TokenCountMismatch)
                .or(is_right(has_keys, Counter::ExtraKeysMismatch))
        }
    }

    fn store(&mut self, id: u64, event: &Told, gone: &Gone) {
        let refusal = self.refusal(id, event);
        let is_sparse = [Counter::SkippedGroup, Counter::TokenCountMismatch].map(Some);
        let names_blocks = !event.is_placeholder() && event.aliases.is_empty();
        if names_blocks && !is_sparse.contains(&refusal) {
            self.note_group(id, event.group);
        }
        if let Some(refusal) = refusal {
            if refusal == Counter::SkippedGroup && event.group < 64 {
                self.owners.get_mut(&id).unwrap().skipped.insert(event.group);
            }
            self.count(refusal, event.hashes.len());
            let reason = match refusal {
                Counter::SkippedGroup => return,
                Counter::Unusable if event.left_out.len() > 64 => "other".to_owned(),
                Counter::Unusable => event.left_out.to_owned(),
                Counter::BlockSizeMismatch => format!("block_size:{}", event.block_size),
                Counter::TokenCountMismatch => "token_count".to_owned(),
                Counter::ExtraKeysMismatch => "extra_keys".to_owned(),
                _ => "seed".to_owned(),
            };
            return self.leave_out_all(id, event, &reason);
        }
        let keys = event.hashes.iter().map(|&hash| key_of(hash, event.group));
        if event.is_placeholder() {
            for key in keys {
                match self.owners[&id].held.get(&key).or(gone.removed.get(&key)).cloned() {
                    Some(Held { lora, prefix, .. }) => self.hold(id, event, key, &lora, prefix),
                    None => {
                        self.count(Counter::Unresolved, 1);
                        self.leave_out(id, event, key, "unresolved");
                    }
                }
            }
        } else if !event.aliases.is_empty() {
            for (key, &alias) in keys.zip(&event.aliases) {
                self.store_object(id, event, key, alias, gone);
            }
        } else if event.by_hash {
            for (key, &hash) in keys.zip(&event.hashes) {
                self.hold(id, event, key, &event.lora, hash);
            }
        } else {
            let mut previous = None;
            if let Some(parent) = event.parent {
                let known = self.owners[&id].held.get(&key_of(parent, event.group));
                let Some(known) = known.filter(|held| held.lora == event.lora) else {
                    self.count(Counter::UnknownParent, event.hashes.len());
                    return self.leave_out_all(id, event, "unknown_parent");
                };
                previous = Some(known.prefix);
            }
            for (key, local) in keys.zip(event.locals(self.seed)) {
                let prefix = chained(previous, local, self.seed);
                previous = Some(prefix);
                self.hold(id, event, key, &event.lora, prefix);
            }
            if event.group == 0 {
                event.hashes.iter().for_each(|&alias| self.join(id, &event.lora, alias));
            }
        }
    }

    fn note_group(&mut self, id: u64, group: u32) {
        let key = GROUPS_MASK ^ u64::from(group);
        let (held, known) = (&self.owners[&id].held, self.left_out(id, GROUPS));
        if held.contains_key(&key) || (group == 0 && known == 0) || known > 63 {
            return;
        }
        if known == 0 && held.values().any(|held| !is_hidden(&held.lora)) {
            self.set(id, GROUPS_MASK, GROUPS, GROUPS_MASK, (0, 1), true);
        }
        self.set(id, key, GROUPS, key, (0, 1), true);
    }

    /// What is left out, by reason.
    fn reasons(&self, id: u64) -> BTreeMap<String, u64> {
        let mut reasons: BTreeMap<String, u64> = BTreeMap::new();
        let mut names: BTreeMap<_, u64> = BTreeMap::new();
        let groups = self.left_out(id, GROUPS);
        for held in self.owners[&id].held.values() {
            for tier in (0..TIERS).filter(|&tier| held.counts[tier as usize] > 0) {
                if let Some(reason) = held.lora.strip_prefix("\0left_out:") {
                    *reasons.entry(reason.to_owned()).or_default() += 1;
                } else if held.lora.starts_with("\0waiting:") {
                    *reasons.entry("objects_wait".to_owned()).or_default() += 1;
                } else if !is_hidden(&held.lora) && groups > 1 {
                    *names.entry((&held.lora, held.prefix, tier)).or_default() += 1;
                }
            }
        }
        let uneven = names.values().filter(|&&names| names != groups).count() as u64;
        reasons.extend((uneven > 0).then(|| ("groups_differ".to_owned(), uneven)));
        reasons
    }

    fn hold(&mut self, id: u64, event: &Told, key: u64, lora: &str, prefix: u64) {
        let new = Held { lora: lora.to_owned(), prefix, counts: Counts::default() };
        let held = self.owners[&id].held.get(&key).unwrap_or(&new);
        if (&*held.lora, held.prefix) != (lora, prefix) {
            self.count(Counter::HashConflict, 1);
            return self.leave_out(id, event, key, "hash_conflict");
        }
        let count = held.counts[event.tier as usize];
        let again = key ^ (REPEATED_MASK + u64::from(event.tier));
        let doubt = self.only_on(id, again, event.tier).filter(|held| held.lora != REPEATED);
        if let Some(doubt) = &doubt {
            self.carry_over(id, again, doubt, event.tier, REPEATED);
        }
        if count > 0 && event.reported && event.aliases.is_empty() {
            return self.count(Counter::Reported, 1);
        }
        self.count(Counter::Stored, 1);
        if count > 0 && (doubt.is_some() || (event.undecided && event.aliases.is_empty())) {
            self.count(Counter::Repeated, 1);
            if doubt.is_none() {
                self.note_repeated(id, again, event.tier, 1);
            }
            return;
        }
        if count == u16::MAX {
            self.count(Counter::HoldCountOverflow, 1);
            return self.leave_out(id, event, key, "hold_count");
        }
        self.count(Counter::Repeated, (count > 0).into());
        self.set(id, key, lora, prefix, (event.tier, count + 1), true);
        let left_out = self.owners[&id].held.get(&(key ^ LEFT_OUT_MASK)).cloned();
        let left_out = left_out.filter(|one| count == 0 && one.lora != "\0left_out:hash_conflict");
        let times = left_out.as_ref().map_or(0, |one| one.counts[event.tier as usize]);
        if let (Some(known), 1..) = (left_out, times) {
            self.set(id, key ^ LEFT_OUT_MASK, &known.lora, known.prefix, (event.tier, 0), true);
            if event.aliases.is_empty() {
                self.note_repeated(id, again, event.tier, times - u16::from(event.reported));
            }
        }
    }

    /// So many announcements more that may be of copies; `again` is the key of such.
    fn note_repeated(&mut self, id: u64, again: u64, tier: u32, times: u16) {
        let known = self.owners[&id].held.get(&again);
        let is_other = known.is_some() && self.only_on(id, again, tier).is_none();
        let before = known.map_or(0, |held| held.counts[tier as usize]);
        let count = before.saturating_add(times);
        if count > before && !is_other {
            self.set(id, again, REPEATED, again, (tier, count), true);
        }
    }

    fn leave_out_all(&mut self, id: u64, event: &Told, reason: &str) {
        for &hash in &event.hashes {
            self.leave_out(id, event, key_of(hash, event.group), reason);
        }
    }

    fn leave_out(&mut self, id: u64, event: &Told, key: u64, reason: &str) {
        let (key, tier) = (key ^ LEFT_OUT_MASK, event.tier);
        let known = self.owners[&id].held.get(&key);
        let lora = known.map_or(format!("\0left_out:{reason}"), |held| held.lora.clone());
        let (is_known, count) =
            (known.is_some(), known.map_or(0, |held| held.counts[tier as usize]));
        if !is_known && !self.has_room(id, &lora) {
            return self.overflow(id);
        }
        if count == 0 || !(event.reported || count == u16::MAX) {
            self.set(id, key, &lora, key, (tier, count + 1), true);
        }
    }

    /// How much there is under one LoRA name.
    fn left_out<'a>(&'a self, id: u64, lora: &'a str) -> u64 {
        let of_reason = self.owners[&id].held.values().filter(move |held| held.lora == lora);
        of_reason.map(|held| held.counts.iter().filter(|&&count| count > 0).count() as u64).sum()
    }

    fn has_room(&self, id: u64, lora: &str) -> bool {
        let loras = self.owners[&id].held.values().map(|held| &held.lora);
        let reasons: BTreeSet<&String> =
            loras.filter(|lora| lora.starts_with("\0left_out:")).collect();
        let blocks: u64 = reasons.iter().map(|lora| self.left_out(id, lora)).sum();
        let is_new = !reasons.iter().any(|reason| **reason == lora);
        blocks < self.left_out_max && !(is_new && reasons.len() >= 16)
    }

    fn overflow(&mut self, id: u64) {
        self.count(Counter::LeftOutOverflow, 1);
        let key = !LEFT_OUT_MASK;
        if !self.owners[&id].held.contains_key(&key) {
            self.set(id, key, "\0left_out:overflow", key, (0, 1), true);
        }
    }

    /// What is held by a key on this tier and no other.
    fn only_on(&self, id: u64, key: u64, tier: u32) -> Option<Held> {
        let held = self.owners[&id].held.get(&key)?;
        let mut others = held.counts;
        others[tier as usize] = 0;
        (held.counts != others && others == Counts::default()).then(|| held.clone())
    }

    fn carry_over(&mut self, id: u64, key: u64, held: &Held, tier: u32, lora: &str) {
        self.set(id, key, &held.lora, held.prefix, (tier, 0), true);
        self.set(id, key, lora, key, (tier, held.counts[tier as usize]), true);
    }

    fn set(&mut self, id: u64, key: u64, lora: &str, prefix: u64, to: (u32, u16), record: bool) {
        let (tier, count) = to;
        let owner = self.owners.get_mut(&id).unwrap();
        let new = || Held { lora: lora.to_owned(), prefix, counts: Counts::default() };
        let held = owner.held.entry(key).or_insert_with(new);
        held.counts[tier as usize] = count;
        let (held, is_gone) = (held.clone(), held.counts == Counts::default());
        if is_gone {
            owner.held.remove(&key);
        }
        if record {
            let change = owner.change(key, &held, tier).encode();
            self.changes.entry(owner.context(lora)).or_default().extend(change);
        }
    }

    /// What was removed, by key.
    fn remove(&mut self, id: u64, event: &Told, moves: &mut Gone) -> Vec<(u64, Held)> {
        let is_skipped = self.owners[&id].skipped.contains(&event.group);
        let mut gone = Vec::new();
        for key in event.hashes.iter().map(|&hash| key_of(hash, event.group)) {
            let held = self.owners[&id].held.get(&key).cloned();
            let count = held.as_ref().map_or(0, |held| held.counts[event.tier as usize]);
            let says_left = event.whole || event.left > 0;
            let copies = if says_left {
                self.set_left(id, event, key).then_some(count > 0)
            } else {
                self.keep_copies(id, event, key, count)
            };
            match held {
                Some(held) if count > 0 => {
                    if copies != Some(true) {
                        self.set(id, key, &held.lora, held.prefix, (event.tier, count - 1), true);
                    }
                    self.count(Counter::Removed, 1);
                    self.forget_aliases(id, &held, moves);
                    gone.push((key, held));
                }
                _ if copies.is_some() || (!says_left && self.lower_left_out(id, event, key)) => {
                    self.count(Counter::LeftOutRemoved, 1);
                }
                _ if is_skipped => self.count(Counter::SkippedGroup, 1),
                _ => self.count(Counter::UnknownRemoved, 1),
            }
        }
        gone
    }

    fn clear_medium(&mut self, id: u64, medium: u32, moves: &mut Gone) {
        for tier in [medium, medium + SHARED] {
            for (key, held) in self.owners[&id].held.clone() {
                let stays = held.lora == GROUPS || held.lora.starts_with("\0aliases:");
                if held.counts[tier as usize] > 0 && !stays {
                    self.count(Counter::Cleared, 1);
                    self.set(id, key, &held.lora, held.prefix, (tier, 0), true);
                    self.forget_aliases(id, &held, moves);
                }
            }
        }
    }

    fn lower_left_out(&mut self, id: u64, event: &Told, key: u64) -> bool {
        let tier = event.tier;
        let key = key ^ LEFT_OUT_MASK;
        let Some(held) = self.owners[&id].held.get(&key).cloned() else { return false };
        let count = held.counts[tier as usize];
        if count > 0 {
            self.set(id, key, &held.lora, held.prefix, (tier, count - 1), true);
        }
        count > 0
    }

    fn store_object(&mut self, id: u64, event: &Told, key: u64, alias: u64, gone: &Gone) {
        let is_new = !self.owners[&id].held.contains_key(&key);
        let waits = waiting(&event.lora);
        let (found_in, prefix) = match self.owners[&id].held.get(&key) {
            Some(held) => {
                let is_joined = held.lora == event.lora && (!event.by_hash || held.prefix == alias);
                let is_waiting = !event.by_hash && (&held.lora, held.prefix) == (&waits, alias);
                if !is_joined && !is_waiting {
                    self.count(Counter::HashConflict, 1);
                    return self.leave_out(id, event, key, "hash_conflict");
                }
                if held.counts[event.tier as usize] > 0 {
                    self.count(Counter::Stored, 1);
                    return self.count(Counter::Repeated, 1);
                }
                (held.lora.clone(), held.prefix)
            }
            None if event.by_hash => (event.lora.clone(), alias),
            None => match self.prefix_of(id, &event.lora, alias, gone) {
                Some(prefix) => (event.lora.clone(), prefix),
                None => (waits, alias),
            },
        };
        if found_in != event.lora {
            if self.owners[&id].live(&found_in).count() as u64 >= self.waiting_max {
                self.count(Counter::WaitingOverflow, 1);
                return self.leave_out(id, event, key, "waiting");
            }
            self.count(Counter::Waiting, 1);
        }
        self.hold(id, event, key, &found_in, prefix);
        if is_new && found_in == event.lora && !event.by_hash {
            self.keep_alias(id, &event.lora, alias, prefix);
        }
    }

    fn keep_alias(&mut self, id: u64, lora: &str, alias: u64, prefix: u64) {
        let key = alias ^ ALIASES_MASK;
        if !self.owners[&id].held.contains_key(&key) {
            self.set(id, key, &aliases(lora), prefix, (SHARED, 1), true);
        }
    }

    /// What engines call a block of which something was removed, where nothing of it is left.
    fn forget_aliases(&mut self, id: u64, gone: &Held, moves: &mut Gone) {
        let (aliases, held) = (aliases(&gone.lora), &self.owners[&id].held);
        if held.values().any(|held| (&held.lora, held.prefix) == (&gone.lora, gone.prefix)) {
            return;
        }
        let of_block = held.clone().into_iter();
        let of_block =
            of_block.filter(|(_, held)| (&held.lora, held.prefix) == (&aliases, gone.prefix));
        for (key, held) in of_block {
            moves.forgotten.insert(key, (aliases.clone(), gone.prefix));
            for tier in (0..TIERS).filter(|&tier| held.counts[tier as usize] > 0) {
                self.set(id, key, &aliases, held.prefix, (tier, 0), true);
            }
        }
    }

    /// The block that engines of the publisher's domain call so, or that pools know by that.
    fn prefix_of(&self, id: u64, lora: &str, alias: u64, gone: &Gone) -> Option<u64> {
        let key = alias ^ ALIASES_MASK;
        let asked = &self.owners[&id];
        let owners = self.owners.values().filter(|owner| {
            owner.domain == asked.domain && owner.stream.scope(lora) == asked.stream.scope(lora)
        });
        let mut prefixes = BTreeSet::new();
        for owner in owners {
            let named = owner.held.get(&alias);
            let named = named.filter(|held| held.lora == lora && held.prefix != alias);
            let known = owner.held.get(&key).filter(|held| held.lora == aliases(lora));
            prefixes.extend(named.into_iter().chain(known).map(|held| held.prefix));
        }
        let forgotten = gone.forgotten.get(&key).filter(|(name, _)| *name == aliases(lora));
        prefixes.extend(forgotten.map(|&(_, prefix)| prefix));
        if prefixes.len() == 1 { prefixes.first().copied() } else { None }
    }

    fn join(&mut self, id: u64, lora: &str, alias: u64) {
        let Some(prefix) = self.prefix_of(id, lora, alias, &Gone::default()) else { return };
        let (waits, domain) = (waiting(lora), self.owners[&id].domain);
        let scope = self.owners[&id].stream.scope(lora);
        let mut objects = Vec::new();
        for (&owner, of_owner) in &self.owners {
            if of_owner.domain == domain && of_owner.stream.scope(lora) == scope {
                let waiting = of_owner.held.iter();
                let waiting =
                    waiting.filter(|(_, held)| held.lora == waits && held.prefix == alias);
                objects.extend(waiting.map(|(&key, held)| (owner, key, held.counts)));
            }
        }
        let pools: BTreeSet<u64> = objects.iter().map(|&(owner, _, _)| owner).collect();
        for (owner, key, counts) in objects {
            let held: Vec<u32> = (0..TIERS).filter(|&tier| counts[tier as usize] > 0).collect();
            for &tier in &held {
                self.set(owner, key, &waits, alias, (tier, 0), true);
            }
            for &tier in &held {
                self.set(owner, key, lora, prefix, (tier, counts[tier as usize]), true);
            }
            self.count(Counter::Joined, held.len());
        }
        for owner in pools {
            self.keep_alias(owner, lora, alias, prefix);
        }
    }

    fn load(&mut self, context: &ContextKey, changes: &[Change]) {
        let lora = &*context.scope.lora_name;
        for change in changes {
            let id = self.open(&context.stream(), change.dp_rank);
            let owner = self.owners.get_mut(&id).unwrap();
            if change.clears {
                owner.held.retain(|_, held| held.lora != lora);
                continue;
            }
            let known = owner.held.get(&change.key);
            let is_other =
                known.is_some_and(|held| (&*held.lora, held.prefix) != (lora, change.prefix));
            if change.count == 0 && (is_other || known.is_none()) {
                continue;
            }
            if is_other {
                owner.held.remove(&change.key);
            }
            self.set(id, change.key, lora, change.prefix, (change.tier, change.count), false);
        }
    }

    /// Of each block its holders, as publisher and tier.
    fn blocks(&self, scope: &ScopeKey) -> BTreeMap<u64, BTreeSet<(u64, u32)>> {
        let mut blocks: BTreeMap<u64, BTreeSet<(u64, u32)>> = BTreeMap::new();
        for (&id, owner) in &self.owners {
            if owner.stream.scope(&scope.lora_name) == *scope {
                for change in owner.live(&scope.lora_name) {
                    blocks.entry(change.prefix).or_default().insert((id, change.tier));
                }
            }
        }
        blocks
    }

    /// Of each instance its ranks, of a scope.
    fn participants(&self, scope: &ScopeKey) -> BTreeMap<String, BTreeMap<u32, u64>> {
        let mut found: BTreeMap<String, BTreeMap<u32, u64>> = BTreeMap::new();
        for (&id, owner) in &self.owners {
            let lora = &scope.lora_name;
            if owner.stream.scope(lora) == *scope && owner.takes_part(lora) {
                let ranks = found.entry(owner.stream.instance_id.to_string()).or_default();
                ranks.insert(owner.dp_rank, id);
            }
        }
        found
    }

    fn query(&self, scope: &ScopeKey, prefixes: &[u64], instance: Option<&str>) -> Vec<Answer> {
        let blocks = self.blocks(scope);
        let nobody = BTreeSet::new();
        let run = |from: u64, accepts: &dyn Fn(u64, u32) -> bool| {
            let left = prefixes[from as usize..].iter();
            let holders = left.map(|prefix| blocks.get(prefix).unwrap_or(&nobody));
            let held =
                holders.take_while(|block| block.iter().any(|&(id, tier)| accepts(id, tier)));
            from + held.count() as u64
        };
        let of_shards = |ranks: &BTreeMap<u32, u64>, mut alone: Vec<(u32, [u64; 4])>| {
            let least = |accepts: &dyn Fn(u64, u32, u64) -> bool| {
                let ends = ranks.values().map(|&own| {
                    prefixes
                        .iter()
                        .map(|prefix| blocks.get(prefix).unwrap_or(&nobody))
                        .take_while(|block| block.iter().any(|&(id, tier)| accepts(id, tier, own)))
                        .count() as u64
                });
                2 * ends.min().unwrap_or(0)
            };
            let on = |medium: u32| {
                least(&|id, tier, own| {
                    (id == own && tier == medium) || (medium > 0 && tier == SHARED + medium)
                })
            };
            let longest = least(&|id, tier, own| (id == own && tier < SHARED) || tier > SHARED);
            for (_, depths) in &mut alone {
                *depths = depths.map(|depth| depth.min(longest));
            }
            ([longest, on(0), on(1), on(2)], alone)
        };
        let of_instance = |(name, ranks): (String, BTreeMap<u32, u64>)| {
            let answers = ranks.iter().map(|(&dp_rank, &own)| {
                let gpu = run(0, &|id, tier| id == own && tier == 0);
                let cpu = run(gpu, &|id, tier| (id == own && tier == 1) || tier == SHARED + 1);
                let disk = run(cpu, &|id, tier| (id == own && tier == 2) || tier == SHARED + 2);
                let matched = run(0, &|id, tier| id == own && tier < SHARED);
                (dp_rank, [matched, gpu, cpu, disk].map(|blocks| 2 * blocks))
            });
            let answers: Vec<(u32, [u64; 4])> = answers.collect();
            let lora = &scope.lora_name;
            let is_sharded = ranks.values().any(|own| {
                let owner = &self.owners[own];
                owner.is_shard && owner.registered == Some((lora.to_string(), true))
            });
            if is_sharded {
                let (depths, answers) = of_shards(&ranks, answers);
                return (name, depths, answers);
            }
            let is_its = |id: u64| ranks.values().any(|&own| own == id);
            let on = |medium: u32| {
                run(0, &|id, tier| tier == SHARED + medium || (tier == medium && is_its(id)))
            };
            let longest = run(0, &|id, tier| tier >= SHARED || is_its(id));
            (name, [longest, on(0), on(1), on(2)].map(|blocks| 2 * blocks), answers)
        };
        let wanted = |name: &str| instance.is_none_or(|wanted| wanted == name);
        let all = self.participants(scope).into_iter();
        all.filter(|(name, _)| wanted(name)).map(of_instance).collect()
    }

    /// Of each publisher how many of the keys it holds itself, one after the other.
    fn query_by_key(&self, model: Option<&str>, keys: &[u64]) -> Vec<(u64, usize)> {
        let asked = self
            .owners
            .iter()
            .filter(|(_, owner)| model.is_none_or(|model| model == &*owner.stream.model_name));
        let counts = asked.map(|(&id, owner)| {
            let is_held = |key: &&u64| {
                owner.held.get(*key).is_some_and(|held| {
                    !is_hidden(&held.lora) && held.counts[..SHARED as usize] != [0; 3]
                })
            };
            (id, keys.iter().take_while(is_held).count())
        });
        counts.filter(|&(_, count)| count > 0).collect()
    }
}

fn chained(previous: Option<u64>, local: u64, seed: u64) -> u64 {
    let Some(previous) = previous else { return local };
    xxh3_64_with_seed(&[previous.to_le_bytes(), local.to_le_bytes()].concat(), seed)
}

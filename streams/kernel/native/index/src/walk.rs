//! The query: how far each instance and rank holds a prompt.
//!
//! The prompt is hashed a few blocks ahead. Each block is looked for in the slot after the one
//! before it, and in the index only where it is not there. Who still holds all blocks so far is a
//! mask of bits (`masks`) that changes only where the holder set does.

use std::sync::{Arc, OnceLock};

use crate::hashing::{Placement, PrefixHasher};
use crate::names::{SHARED, TIERS, is_shared, owned_tier};
use crate::roster::{Bits, MissedParts, Misses, RosterEntry};
use crate::scope::Scope;
use crate::sets::holder_of;
use crate::slots::EMPTY_SET;
use crate::sparse_walk;
use crate::state::State;

/// Blocks hashed at a time: a miss costs at most so many hashes in vain.
const AHEAD: usize = 32;

/// Depths in tokens, as `InstanceMatch` in `streams/kernel/interface.py` has them.
pub struct InstanceDepths {
    pub instance_id: Arc<str>,
    /// longest, gpu, cpu, disk.
    pub depths: [u64; 4],
    pub ranks: Vec<RankDepths>,
}

pub struct RankDepths {
    pub dp_rank: u32,
    /// matched, gpu_walk, cpu_walk, disk_walk.
    pub depths: [u64; 4],
}

/// What besides tokens enters the hashes of a prompt's first blocks; that of all others is empty.
pub type Keys<'a> = &'a [&'a [u8]];

/// What the prefix hashes of a query are made from.
pub enum Prompt<'a> {
    Tokens(&'a [u8], Keys<'a>),
    Hashes(&'a [[u8; 8]]),
}

/// How far a prompt is held in one scope: by whom is asked of it.
pub struct Walked<'a> {
    pub roster: &'a [RosterEntry],
    /// Of these, where everybody is asked.
    misses: Option<&'a Misses>,
    alive: Alive,
    block_size: u64,
    /// Some hold its blocks as plain ones, and some as blocks of pairs: no list of hashes has both.
    pub is_mixed: bool,
}

impl Walked<'_> {
    /// The continuous prefix that an instance holds on any tier, in tokens. Where that is none, so
    /// are all its other depths.
    #[inline]
    pub fn longest(&self, entry: &RosterEntry) -> u64 {
        self.block_size * u64::from(self.alive.depths[entry.instance as usize])
    }

    /// The longest of all.
    pub fn most(&self) -> u64 {
        let instances = &self.alive.depths[..64 * self.alive.bits.instance_words];
        self.block_size * u64::from(instances.iter().copied().max().unwrap_or(0))
    }

    pub fn depths(&self, entry: &RosterEntry) -> InstanceDepths {
        self.alive.answer(entry, self.block_size)
    }

    /// How many instances an answer lists: all, or those that hold something.
    pub fn listed(&self, hits_only: bool) -> usize {
        if hits_only { self.hits().count() } else { self.roster.len() }
    }

    /// The places of those that hold something.
    fn hits(&self) -> impl Iterator<Item = usize> {
        let holders = if self.most() > 0 { self.roster } else { &[] };
        let entries = holders.iter().enumerate();
        entries.filter(|(_, entry)| self.longest(entry) > 0).map(|(place, _)| place)
    }

    /// Writes the part of each instance that an answer lists; what is said of those that hold
    /// nothing is kept. None where `write` says so.
    pub fn write_parts(
        &self,
        to: &mut Vec<u8>,
        hits_only: bool,
        kept: impl Fn(&Misses) -> &OnceLock<Option<MissedParts>>,
        write: impl Fn(&mut Vec<u8>, &InstanceDepths) -> Option<()>,
    ) -> Option<()> {
        let misses = match self.misses {
            Some(misses) if !hits_only => {
                let missed = |to: &mut _, entry: &RosterEntry| write(to, &entry.no_depths());
                let made = || MissedParts::new(self.roster, missed);
                Some(kept(misses).get_or_init(made).as_ref()?)
            }
            _ => None,
        };
        let mut next = 0;
        for place in self.hits().chain([self.roster.len()]) {
            match misses {
                Some(misses) => to.extend_from_slice(misses.of(next..place)),
                None if hits_only => {}
                None => {
                    let missed = self.roster[next..place].iter();
                    missed.map(|entry| write(to, &entry.no_depths())).collect::<Option<()>>()?;
                }
            }
            if let Some(entry) = self.roster.get(place) {
                write(to, &self.depths(entry))?;
            }
            next = place + 1;
        }
        Some(())
    }
}

impl RosterEntry {
    /// Of an instance that holds nothing.
    pub fn no_depths(&self) -> InstanceDepths {
        let ranks = self.ranks.iter().map(|&(dp_rank, _)| RankDepths { dp_rank, depths: [0; 4] });
        InstanceDepths { instance_id: self.name.clone(), depths: [0; 4], ranks: ranks.collect() }
    }
}

pub fn query(
    state: &State,
    scope: &Scope,
    hasher: &PrefixHasher,
    prompt: &Prompt,
    instance_id: Option<&str>,
) -> Vec<InstanceDepths> {
    let walked = walk(state, scope, hasher, prompt, instance_id, None);
    walked.map_or_else(Vec::new, |walked| {
        walked.roster.iter().map(|entry| walked.depths(entry)).collect()
    })
}

/// The instances whose longest prefix would be longer by their full attention alone, each with the
/// cache group that ended it.
pub fn limiting_groups(
    state: &State,
    scope: &Scope,
    prefixes: &[[u8; 8]],
    instance_id: Option<&str>,
) -> Vec<(Arc<str>, u32)> {
    let roster = match instance_id {
        None => scope.roster.entries(),
        Some(wanted) => scope.roster.of(wanted),
    };
    let mut alive = Alive::new(Bits::new(&scope.sets.masks, roster));
    let hashes = prefixes.iter().map(|&hash| u64::from_le_bytes(hash));
    alive.walk(scope, roster, state.index.placement, hashes, None);
    let mut cut = Vec::new();
    alive.limit(state, scope, roster, prefixes, Some(&mut cut));
    cut
}

/// None where there is nobody to ask. `seen` is given the prefix hashes, u64 LE, as far as they were
/// looked at.
pub fn walk<'a>(
    state: &State,
    scope: &'a Scope,
    hasher: &PrefixHasher,
    prompt: &Prompt,
    instance_id: Option<&str>,
    mut seen: Option<&mut Vec<u8>>,
) -> Option<Walked<'a>> {
    let roster = match instance_id {
        None => scope.roster.entries(),
        Some(wanted) => scope.roster.of(wanted),
    };
    if roster.is_empty() {
        return None;
    }
    let placement = state.index.placement;
    let misses = instance_id.is_none().then_some(&scope.roster.misses);
    let masks = &scope.sets.masks;
    let mut alive = Alive::new(match instance_id {
        None => scope.roster.bits(masks),
        Some(_) => Bits::new(masks, roster),
    });
    let block_size = scope.key.block_size as usize;
    let mut is_mixed = false;
    match prompt {
        Prompt::Tokens(tokens, keys) => {
            let mut previous = None;
            let mut scratch = Vec::new();
            let blocks = tokens.chunks_exact(4 * block_size).enumerate();
            let prefixes = blocks.map(|(i, block)| {
                let extra = keys.get(i).copied().unwrap_or_default();
                let prefix = hasher.chain(previous, hasher.block(block, extra, &mut scratch));
                previous = Some(prefix);
                prefix
            });
            let mut hashes = Vec::new();
            if seen.is_none() && state.index.has_rules {
                alive.walk(scope, roster, placement, prefixes, Some(&mut hashes));
            } else {
                alive.walk(scope, roster, placement, prefixes, seen.as_deref_mut());
            }
            if state.index.has_rules {
                let hashes = seen.as_deref().unwrap_or(&hashes);
                alive.limit(state, scope, roster, hashes.as_chunks().0, None);
            }
            let mut paired = PairedPrefixes::new(hasher, tokens, keys, block_size);
            if is_held(scope, placement, paired.next()) {
                let paired = PairedPrefixes::new(hasher, tokens, keys, block_size);
                is_mixed = alive.walk_pairs(state, scope, roster, paired, seen);
            }
        }
        Prompt::Hashes(hashes) => {
            let prefixes = hashes.iter().map(|&hash| u64::from_le_bytes(hash));
            alive.walk(scope, roster, placement, prefixes, seen);
            if state.index.has_rules {
                alive.limit(state, scope, roster, hashes, None);
            }
        }
    }
    Some(Walked { roster, misses, alive, block_size: block_size as u64, is_mixed })
}

/// The prefix hashes of a prompt's blocks of pairs: each needs the token behind it.
struct PairedPrefixes<'a> {
    hasher: &'a PrefixHasher,
    tokens: &'a [u8],
    keys: Keys<'a>,
    block_bytes: usize,
    at: usize,
    previous: Option<u64>,
    scratch: Vec<u8>,
}

impl<'a> PairedPrefixes<'a> {
    fn new(hasher: &'a PrefixHasher, tokens: &'a [u8], keys: Keys<'a>, block_size: usize) -> Self {
        let (block_bytes, scratch) = (4 * block_size, Vec::new());
        Self { hasher, tokens, keys, block_bytes, at: 0, previous: None, scratch }
    }
}

impl Iterator for PairedPrefixes<'_> {
    type Item = u64;

    fn next(&mut self) -> Option<u64> {
        let end = self.at + self.block_bytes;
        let next = self.tokens.get(end..end + 4)?;
        let extra = self.keys.get(self.at / self.block_bytes).copied().unwrap_or_default();
        let tokens = &self.tokens[self.at..end];
        let local = self.hasher.block_of_pairs(tokens, extra, next, &mut self.scratch);
        let prefix = self.hasher.chain(self.previous, local);
        (self.at, self.previous) = (end, Some(prefix));
        Some(prefix)
    }
}

fn is_held(scope: &Scope, placement: Placement, prefix: Option<u64>) -> bool {
    let slot = prefix.and_then(|prefix| scope.find(prefix, placement));
    slot.is_some_and(|slot| scope.slots.set(slot) != EMPTY_SET)
}

/// Whether anybody holds the prompt's first block as one of pairs: then its plain hashes do not say
/// all.
pub fn has_pairs(
    scope: &Scope,
    placement: Placement,
    hasher: &PrefixHasher,
    (tokens, keys): (&[u8], Keys),
) -> bool {
    let block_size = scope.key.block_size as usize;
    is_held(scope, placement, PairedPrefixes::new(hasher, tokens, keys, block_size).next())
}

/// By which of its hashes a prompt is held: those of blocks of pairs where its first block is one,
/// and no plain one. As `prefix_hashes`.
pub fn prompt_hashes(
    scope: Option<&Scope>,
    placement: Placement,
    hasher: &PrefixHasher,
    (tokens, keys): (&[u8], Keys),
    block_size: usize,
    most: usize,
) -> Vec<u8> {
    let mut paired = PairedPrefixes::new(hasher, tokens, keys, block_size);
    let has_pairs = scope.is_some_and(|scope| {
        let first = prefix_hashes(hasher, tokens, keys, block_size, 1);
        let first = first.first_chunk().map(|first| u64::from_le_bytes(*first));
        is_held(scope, placement, paired.next()) && !is_held(scope, placement, first)
    });
    if !has_pairs {
        return prefix_hashes(hasher, tokens, keys, block_size, most);
    }
    let paired = PairedPrefixes::new(hasher, tokens, keys, block_size);
    paired.take(most).flat_map(u64::to_le_bytes).collect()
}

/// Of the first blocks of a prompt, at most so many, u64 LE; `block_size` is above 0. A walk has
/// the same lines: called from two places they took it a tenth longer.
pub fn prefix_hashes(
    hasher: &PrefixHasher,
    tokens: &[u8],
    keys: Keys,
    block_size: usize,
    most: usize,
) -> Vec<u8> {
    let mut hashes = Vec::new();
    let mut previous = None;
    let mut scratch = Vec::new();
    for (i, block) in tokens.chunks_exact(4 * block_size).take(most).enumerate() {
        let extra = keys.get(i).copied().unwrap_or_default();
        let prefix = hasher.chain(previous, hasher.block(block, extra, &mut scratch));
        hashes.extend_from_slice(&prefix.to_le_bytes());
        previous = Some(prefix);
    }
    hashes
}

/// Of all blocks of a prompt, of pairs or plain. As `prefix_hashes`.
pub fn block_hashes(
    hasher: &PrefixHasher,
    tokens: &[u8],
    keys: Keys,
    block_size: usize,
    pairs: bool,
) -> Vec<u8> {
    if !pairs {
        return prefix_hashes(hasher, tokens, keys, block_size, usize::MAX);
    }
    let paired = PairedPrefixes::new(hasher, tokens, keys, block_size);
    paired.flat_map(u64::to_le_bytes).collect()
}

/// Of blocks whose tokens have these hashes; all u64 LE.
pub fn chain_hashes(hasher: &PrefixHasher, token_hashes: &[[u8; 8]]) -> Vec<u8> {
    let mut hashes = Vec::with_capacity(8 * token_hashes.len());
    let mut previous = None;
    for &local in token_hashes {
        let prefix = hasher.chain(previous, u64::from_le_bytes(local));
        hashes.extend_from_slice(&prefix.to_le_bytes());
        previous = Some(prefix);
    }
    hashes
}

/// Those who hold all blocks so far, and the depths of those who do not.
struct Alive {
    bits: Bits,
    /// By the bit's place.
    depths: Vec<u32>,
}

impl Alive {
    fn new(bits: Bits) -> Self {
        let depths = vec![0; 64 * bits.words.len()];
        Self { bits, depths }
    }

    fn walk(
        &mut self,
        scope: &Scope,
        roster: &[RosterEntry],
        placement: Placement,
        mut prefixes: impl Iterator<Item = u64>,
        mut seen: Option<&mut Vec<u8>>,
    ) {
        let mut slot: Option<u32> = None;
        let mut last_set = EMPTY_SET;
        let mut depth = 0;
        let mut ahead = [0; AHEAD];
        let mut whole = Vec::new();
        loop {
            let mut len = 0;
            for (place, prefix) in ahead.iter_mut().zip(prefixes.by_ref()) {
                *place = prefix;
                len += 1;
            }
            if let Some(seen) = &mut seen {
                seen.extend(ahead[..len].iter().flat_map(|prefix| prefix.to_le_bytes()));
            }
            let mut left = &ahead[..len];
            while let [prefix, rest @ ..] = left {
                let Some((at, set)) = find(scope, placement, slot, *prefix) else {
                    return self.end(depth);
                };
                if set != last_set {
                    last_set = set;
                    let mask = scope.sets.masks.of(set);
                    if scope.roster.is_limited() {
                        whole.clear();
                        whole.extend_from_slice(mask);
                        self.drop_unread(&mut whole, roster, scope.sets.holders(set));
                        for entry in roster.iter().filter(|entry| entry.is_sharded) {
                            self.drop_partial(&mut whole, entry);
                        }
                        self.narrow(&whole, depth);
                    } else {
                        self.narrow(mask, depth);
                    }
                    if self.bits.words[..self.bits.instance_words].iter().all(|&word| word == 0) {
                        return self.end(depth);
                    }
                }
                let run = scope.slots.run(at, rest, set);
                slot = Some(at + run as u32);
                depth += 1 + run as u32;
                left = &rest[run..];
            }
            if len < AHEAD {
                return self.end(depth);
            }
        }
    }

    /// Takes the bits of ranks and instances from `mask` that they have of pools alone which they
    /// do not read.
    fn drop_unread(&self, mask: &mut [u64], roster: &[RosterEntry], holders: &[u32]) {
        let shared = holders.iter().copied().filter(|holder| is_shared(holder % TIERS));
        let shared: Vec<u32> = shared.collect();
        if shared.is_empty() {
            return;
        }
        let walk = self.bits.own() + self.bits.member_words;
        for entry in roster.iter().filter(|entry| !entry.readable.is_empty()) {
            let mut any = [false; SHARED as usize];
            for (&(_, member), readable) in entry.ranks.iter().zip(&entry.readable) {
                for (medium, any) in (0..).zip(&mut any) {
                    let is_read = |&holder: &u32| {
                        holder % TIERS == SHARED + medium
                            && readable.binary_search(&(holder / TIERS)).is_ok()
                    };
                    let is_own = [medium, owned_tier(medium)]
                        .iter()
                        .any(|&tier| holders.binary_search(&holder_of(member, tier)).is_ok());
                    let is_held = is_own || shared.iter().any(is_read);
                    *any |= is_held;
                    if !is_held {
                        let start = walk + medium as usize * self.bits.member_words;
                        mask[start + member as usize / 64] &= !(1 << (member % 64));
                    }
                }
            }
            let parts = [any.contains(&true)].into_iter().chain(any).enumerate();
            for (part, _) in parts.filter(|(_, any)| !any) {
                self.take_part(mask, part, entry);
            }
        }
    }

    /// Takes the bit of an instance from one of its parts of `mask`.
    fn take_part(&self, mask: &mut [u64], part: usize, entry: &RosterEntry) {
        let start = part * self.bits.instance_words + entry.instance as usize / 64;
        mask[start] &= !(1 << (entry.instance % 64));
    }

    /// Takes the bits of an instance from `mask` that not all of its ranks have, in a pool or
    /// themselves.
    fn drop_partial(&self, mask: &mut [u64], entry: &RosterEntry) {
        let walk = self.bits.own() + self.bits.member_words;
        let has = |mask: &[u64], start: usize, bit: u32| {
            mask[start + bit as usize / 64] >> (bit % 64) & 1 == 1
        };
        let mut all = [true; 4]; // any, GPU, CPU, DISK
        for &(_, member) in &entry.ranks {
            let on = [0, 1, 2].map(|tier| has(mask, walk + tier * self.bits.member_words, member));
            all[0] &= on.contains(&true);
            all.iter_mut().skip(1).zip(on).for_each(|(all, on)| *all &= on);
        }
        for (part, _) in all.into_iter().enumerate().filter(|(_, all)| !all) {
            self.take_part(mask, part, entry);
        }
    }

    /// The same by blocks of pairs, of which an instance has none where it has plain ones; whether
    /// some have the one and some the other. What has been `seen` is then of no use.
    #[cold]
    fn walk_pairs(
        &mut self,
        state: &State,
        scope: &Scope,
        roster: &[RosterEntry],
        prefixes: PairedPrefixes,
        seen: Option<&mut Vec<u8>>,
    ) -> bool {
        let mut paired = Self::new(Bits::new(&scope.sets.masks, roster));
        let mut unseen = Vec::new();
        let seen = seen.unwrap_or(&mut unseen);
        seen.clear();
        paired.walk(scope, roster, state.index.placement, prefixes, Some(seen));
        if state.index.has_rules {
            paired.limit(state, scope, roster, seen.as_chunks().0, None);
        }
        let is_mixed = self.depths.iter().any(|&depth| depth > 0);
        for (depth, other) in self.depths.iter_mut().zip(paired.depths) {
            *depth = other.max(*depth);
        }
        is_mixed
    }

    /// Cuts depths to what instances with sparse cache groups can use.
    #[cold]
    fn limit(
        &mut self,
        state: &State,
        scope: &Scope,
        roster: &[RosterEntry],
        prefixes: &[[u8; 8]],
        cut: Option<&mut Vec<(Arc<str>, u32)>>,
    ) {
        let depths = (&mut self.depths[..], &self.bits);
        sparse_walk::limit(state, scope, roster, depths, prefixes, cut);
    }

    /// Those without a bit in `mask` have ended before the block at `depth`.
    fn narrow(&mut self, mask: &[u64], depth: u32) {
        let walk = self.bits.own() + self.bits.member_words;
        for (at, &held) in mask.iter().enumerate().take(walk) {
            self.keep(at, held, 0, depth);
        }
        for at in walk..walk + self.bits.member_words {
            // Where the GPU's part of the walk ends, the CPU's begins, and so on.
            let from_gpu = self.keep(at, mask[at], 0, depth);
            let cpu = at + self.bits.member_words;
            let from_cpu = self.keep(cpu, mask[cpu], from_gpu, depth);
            let disk = cpu + self.bits.member_words;
            self.keep(disk, mask[disk], from_cpu, depth);
        }
    }

    /// Adds `arrived` to a word and keeps what is `held`; returns what ended, with its depth noted.
    #[inline]
    fn keep(&mut self, at: usize, held: u64, arrived: u64, depth: u32) -> u64 {
        let present = self.bits.words[at] | arrived;
        let ended = present & !held;
        self.bits.words[at] = present & held;
        // Depths are 0 as they are made, which they stay for most of many instances.
        let mut left = if depth == 0 { 0 } else { ended };
        while left != 0 {
            self.depths[64 * at + left.trailing_zeros() as usize] = depth;
            left &= left - 1;
        }
        ended
    }

    /// All who are left end here.
    fn end(&mut self, depth: u32) {
        if depth == 0 {
            return;
        }
        let nobody = vec![0; self.bits.words.len()];
        self.narrow(&nobody, depth);
    }

    fn answer(&self, entry: &RosterEntry, block_size: u64) -> InstanceDepths {
        let tokens =
            |start: usize, bit: u32| block_size * u64::from(self.depths[64 * start + bit as usize]);
        let part = |i| tokens(i * self.bits.instance_words, entry.instance);
        let depths = [part(0), part(1), part(2), part(3)];
        // What one of its ranks has beyond the others is of no use.
        let most = if entry.is_sharded { depths[0] } else { u64::MAX };
        let ranks = entry.ranks.iter().map(|&(dp_rank, member)| {
            let part = |i| tokens(self.bits.own() + i * self.bits.member_words, member).min(most);
            RankDepths { dp_rank, depths: [part(0), part(1), part(2), part(3)] }
        });
        InstanceDepths { instance_id: entry.name.clone(), depths, ranks: ranks.collect() }
    }
}

/// Slot and set of a block, if it has holders; `previous` is the slot of the block before it.
#[inline]
fn find(
    scope: &Scope,
    placement: Placement,
    previous: Option<u32>,
    prefix: u64,
) -> Option<(u32, u32)> {
    if let Some(next) = previous.and_then(|slot| slot.checked_add(1))
        && let Some((known, set)) = scope.slots.get(next)
        && known == prefix
        && set != EMPTY_SET
    {
        return Some((next, set));
    }
    let slot = scope.find(prefix, placement)?;
    Some((slot, scope.slots.set(slot)))
}

//! Random events for the index and its twin, which must show the same after each.

use std::collections::{BTreeMap, BTreeSet};

use super::told::{Kind, Told, encode, u32s};
use super::{COPIES, GROUPS, Twin, is_hidden, waiting};
use crate::changes::{Change, decode};
use crate::core::Core;
use crate::dumps::Dump;
use crate::events::read_events;
use crate::hashing::{ALIASES_MASK, LEFT_OUT_MASK, REPEATED_MASK};
use crate::names::{ContextKey, SHARED, StreamKey, TIERS};
use crate::random::Random;
use crate::walk::{InstanceDepths, Prompt, RankDepths};
use crate::write::WriteTurn;
use crate::{engine_hashes, views, walk};

const LORAS: [&str; 2] = ["", "x"];
/// The third one has keys of its own for most blocks, the last one is a pool now and then.
const INSTANCES: [&str; 4] = ["a", "b", "c", "pool"];

/// What differs between worlds.
struct Bounds {
    seed: u64,
    cleared_at_once: usize,
    waiting_max: u64,
    left_out_max: u64,
    /// Blocks of the longest prompt.
    longest: usize,
    /// How many prompts there are, which begin alike.
    prompts: usize,
    steps: usize,
}

struct World {
    bounds: Bounds,
    random: Random,
    core: Core,
    twin: Twin,
    prompts: Vec<Vec<u32>>,
    /// What was taken, to be loaded again.
    taken: Vec<(ContextKey, Vec<u8>)>,
    sequence: i64,
}

fn stream(instance: &str, model: &str) -> StreamKey {
    StreamKey {
        tenant_id: "t".into(),
        model_name: model.into(),
        block_size: 2,
        additional_salt: "".into(),
        instance_id: instance.into(),
    }
}

impl World {
    fn new(number: u64, bounds: Bounds) -> Self {
        let mut random = Random(number);
        let mut prompts: Vec<Vec<u32>> = vec![Vec::new()];
        while prompts.len() < bounds.prompts {
            let old = &prompts[random.below(prompts.len())];
            let mut prompt = old[..random.below(old.len() + 1)].to_vec();
            let len = 1 + random.below(bounds.longest);
            while prompt.len() < len {
                prompt.push(random.below(1000) as u32);
            }
            prompts.push(prompt);
        }
        let Bounds { seed, cleared_at_once, waiting_max, left_out_max, .. } = bounds;
        let core = Core::new(seed, cleared_at_once, waiting_max, left_out_max);
        let twin = Twin::new(seed, waiting_max, left_out_max);
        Self { bounds, random, core, twin, prompts, taken: Vec::new(), sequence: 0 }
    }

    fn write<T>(&self, work: impl FnOnce(&mut WriteTurn) -> T) -> T {
        work(&mut WriteTurn::new(&self.core.state, &self.core.hasher))
    }

    fn chance(&mut self, of: usize) -> bool {
        self.random.below(of) == 0
    }

    fn one_of<T: Copy>(&mut self, values: &[T]) -> T {
        values[self.random.below(values.len())]
    }

    fn publisher(&mut self) -> u64 {
        let instance = self.one_of(&INSTANCES);
        let (model, rank) = (if self.chance(9) { "n" } else { "m" }, self.random.below(2) as u32);
        let stream = stream(instance, model);
        let id = self.write(|turn| turn.state().open_publisher(stream.clone(), rank));
        assert_eq!(id, self.twin.open(&stream, rank));
        id
    }

    /// What a publisher calls a prompt's blocks; one with names of its own does so for most.
    fn keys(&mut self, has_own: bool, prompt: &[u32], lora: &str) -> Vec<u64> {
        let odd = if has_own && !self.chance(4) { 1 << 60 } else { 0 };
        let mut named = Random(lora.len() as u64).next();
        let blocks = prompt.iter().map(|&block| {
            named = Random(named ^ u64::from(block)).next();
            named ^ odd
        });
        let mut keys: Vec<u64> = blocks.collect();
        if self.chance(20) {
            let at = self.random.below(keys.len().max(1));
            keys.iter_mut().skip(at).take(1).for_each(|key| *key = 7);
        }
        keys
    }

    fn store(&mut self, id: u64) -> Told {
        let prompt = self.random.below(self.prompts.len());
        let prompt = self.prompts[prompt].clone();
        let lora = self.one_of(&LORAS);
        let has_own = *self.twin.owners[&id].stream.instance_id == *INSTANCES[2];
        let keys = self.keys(has_own, &prompt, lora);
        let is_pool = *self.twin.owners[&id].stream.instance_id == *INSTANCES[3];
        let tier = self.random.below(if is_pool { TIERS } else { SHARED } as usize) as u32;
        let start = if self.chance(2) { self.random.below(prompt.len().max(1)) } else { 0 };
        let mut event = Told {
            sequence: self.sequence,
            hashes: keys[start..].to_vec(),
            tokens: prompt[start..].iter().flat_map(|&block| [block, block + 1]).collect(),
            parent: (start > 0).then(|| keys[start - 1]),
            block_size: 2,
            tier,
            lora: lora.to_owned(),
            group: self.one_of(&[0, 0, 0, 0, 1, 63, 64]),
            reported: self.chance(4),
            undecided: self.chance(2),
            ..Told::default()
        };
        let len = event.hashes.len();
        match self.random.below(12) {
            0 => event.tokens.clear(), // placeholders
            1 | 2 => {
                event.by_hash = true;
                event.tokens.clear();
                event.hashes.iter_mut().for_each(|hash| *hash ^= 1 << 61);
            }
            3 | 4 if len > 0 => {
                event.tokens.clear();
                event.aliases = std::mem::take(&mut event.hashes);
                event.hashes = event.aliases.iter().map(|alias| alias ^ 1 << 62).collect();
                event.by_hash = self.chance(4);
            }
            5 => {
                event.token_hashes = event.locals(self.bounds.seed);
                event.tokens.clear();
            }
            6 => event.extra_keys = (0..len).map(|_| b"key"[..len % 3].to_vec()).collect(),
            7 if self.chance(2) => self.spoil(&mut event),
            _ => {}
        }
        event
    }

    /// Makes it one that is left out.
    fn spoil(&mut self, event: &mut Told) {
        match self.random.below(9) {
            0 => event.block_size = 3,
            7 => {
                event.left_out = self.one_of(&["unknown_field", "bad_tokens"]);
                event.tokens.clear();
            }
            1 => event.tokens.push(1),
            2 => event.extra_keys = vec![b"one too many".to_vec(); event.hashes.len() + 1],
            3 => event.spec_kind = "sliding_window",
            4 => event.by_hash = true,
            5 => event.token_hashes = vec![1; event.hashes.len()],
            6 => {
                event.token_hashes = vec![1; event.hashes.len() + 1];
                event.tokens.clear();
            }
            _ => {
                event.token_hashes = event.locals(self.bounds.seed);
                event.tokens.clear();
                event.extra_keys = vec![Vec::new(); event.hashes.len()];
            }
        }
    }

    fn remove(&mut self, id: u64) -> Told {
        let tier = self.random.below(TIERS as usize) as u32;
        let held = self.twin.owners[&id].held.iter();
        let on_tier =
            held.filter(|(_, held)| held.counts[tier as usize] > 0 && held.lora.len() < 9);
        let mut keys: Vec<u64> = on_tier.map(|(&key, _)| key).collect();
        let held = self.twin.owners[&id].held.iter();
        let left_out = held.filter(|(_, held)| held.lora.starts_with("\0left_out:"));
        keys.extend(left_out.map(|(&key, _)| key ^ LEFT_OUT_MASK));
        let held = self.twin.owners[&id].held.iter();
        let again = held.filter(|(_, held)| ["\0repeated", COPIES].contains(&&*held.lora));
        keys.extend(again.map(|(&key, _)| key ^ (REPEATED_MASK + u64::from(tier))));
        let share = 1 + self.random.below(4) as u64;
        let salt = self.random.next();
        keys.retain(|&key| Random(key ^ salt).next() % 4 < share);
        if self.chance(3) {
            keys.extend([5, 7]);
            keys.extend_from_within(..keys.len().min(2));
        }
        // By whichever group it is asked for, a key is that of the hash that it masks.
        let group = if self.chance(3) { self.one_of(&[1, 63, 64]) } else { 0 };
        keys.iter_mut().for_each(|key| *key = super::key_of(*key, group));
        Told {
            kind: Kind::Removed,
            sequence: self.sequence,
            hashes: keys,
            tier,
            group,
            whole: self.chance(5),
            left: if self.chance(4) { 1 + self.random.below(3) as u16 } else { 0 },
            ..Told::default()
        }
    }

    /// A block of which a pool remembers what engines call it: all that it has of it goes, and
    /// another object of it comes.
    fn replace_objects(&mut self, id: u64) -> Vec<Told> {
        let held = &self.twin.owners[&id].held;
        let known = held.iter().filter_map(|(key, held)| {
            let lora = held.lora.strip_prefix("\0aliases:")?;
            Some((key ^ ALIASES_MASK, lora.to_owned(), held.prefix))
        });
        let known: Vec<_> = known.collect();
        if known.is_empty() {
            return Vec::new();
        }
        let (alias, lora, prefix) = known[self.random.below(known.len())].clone();
        let event = Told { sequence: self.sequence, ..Told::default() };
        let held = &self.twin.owners[&id].held;
        let gone = (0..TIERS).map(|tier| {
            let of_block = held.iter().filter(|(_, held)| {
                (&held.lora, held.prefix) == (&lora, prefix) && held.counts[tier as usize] > 0
            });
            let hashes = of_block.map(|(&key, _)| key).collect();
            Told { kind: Kind::Removed, hashes, tier, whole: true, ..event.clone() }
        });
        let mut events: Vec<Told> = gone.collect();
        events.retain(|event| !event.hashes.is_empty());
        let hashes = vec![alias ^ self.one_of(&[1 << 62, 1 << 62 | 1 << 59])];
        let tier = self.random.below(TIERS as usize) as u32;
        events.push(Told { hashes, aliases: vec![alias], block_size: 2, tier, lora, ..event });
        events
    }

    /// Events of a batch or two, some of which were told before.
    fn apply(&mut self, id: u64) {
        let mut events = Vec::new();
        for _ in 0..1 + self.random.below(4) {
            self.sequence += i64::from(self.chance(3));
            events.push(match self.random.below(14) {
                0 => {
                    let medium = [None, Some(0), Some(1), Some(2)][self.random.below(4)];
                    let (kind, sequence) = (Kind::Cleared, self.sequence);
                    Told { kind, sequence, medium, ..Told::default() }
                }
                1..=4 => self.remove(id),
                _ => self.store(id),
            });
        }
        if self.chance(4) && events[0].kind == Kind::Removed {
            // To another tier, in the same batch.
            let mut moved = events[0].clone();
            (moved.kind, moved.block_size) = (Kind::Stored, 2);
            moved.tier = (moved.tier + 1) % SHARED;
            if self.chance(2) {
                moved.aliases = moved.hashes.iter().map(|hash| hash ^ 1 << 62).collect();
                moved.lora = self.one_of(&LORAS).to_owned();
            }
            events.insert(1, moved);
        }
        if self.chance(2) {
            self.sequence += i64::from(self.chance(2));
            events.extend(self.replace_objects(id));
        }
        let after = self.sequence - 1 - self.random.below(5) as i64;
        let encoded = encode(&events, self.random.below(20));
        let read = read_events(&encoded).expect("events");
        let ours = self.write(|turn| turn.apply(id, &read, after.into())).expect("a publisher");
        assert_eq!(ours, self.twin.apply(id, &events, after));
    }

    fn load(&mut self) {
        let (context, mut changes) = match self.taken.len() {
            0 => return,
            len => {
                let (context, taken) = &self.taken[self.random.below(len)];
                (context.clone(), decode(taken).expect("changes"))
            }
        };
        let from = self.random.below(changes.len());
        changes.drain(..from);
        for change in &mut changes {
            match self.random.below(12) {
                0 => change.prefix ^= 1,
                1 => change.count = self.random.below(3) as u16,
                2 => change.tier = self.random.below(TIERS as usize) as u32,
                _ => {}
            }
        }
        self.write(|turn| turn.load(&context, &changes)).expect("publishers");
        self.twin.load(&context, &changes);
    }

    fn step(&mut self) {
        let id = self.publisher();
        match self.random.below(40) {
            0 => {
                let ours = self.write(|turn| turn.clear(id)).expect("a publisher");
                assert_eq!(ours, self.twin.clear(id));
            }
            1 => {
                let ours = self.write(|turn| turn.unregister(id)).expect("a publisher");
                assert_eq!(ours, self.twin.unregister(id));
                assert!(self.write(|turn| turn.clear(id)).is_err());
            }
            2..=4 => {
                let (lora, routable) = (self.one_of(&LORAS), !self.chance(4));
                let is_shard = self.sequence % 4 == 0;
                assert!(self.write(|turn| turn.state().register(id, lora, routable, is_shard)));
                let owner = self.twin.owners.get_mut(&id).unwrap();
                (owner.registered, owner.is_shard) = (Some((lora.to_owned(), routable)), is_shard);
                let domain = u32::from(self.chance(6));
                self.twin.owners.get_mut(&id).unwrap().domain = domain;
                self.write(|turn| turn.publisher(id).unwrap().0.domain = domain);
            }
            5 | 6 => self.load(),
            7 => {
                let most = self.one_of(&[0, 1, 40, 1000]);
                self.write(|turn| turn.release_left(most));
            }
            _ => self.apply(id),
        }
    }

    fn check(&mut self) {
        let state = self.core.state.read();
        assert_eq!(state.index.counters, self.twin.counters);
        let mut ours: BTreeMap<ContextKey, (u64, u64)> = BTreeMap::new();
        for view in views::contexts(&state) {
            assert!(ours.insert(view.key, (view.digest, view.entries)).is_none());
        }
        let mut theirs: BTreeMap<ContextKey, (u64, u64)> = BTreeMap::new();
        for owner in self.twin.owners.values() {
            for (&key, held) in &owner.held {
                for tier in (0..TIERS).filter(|&tier| held.counts[tier as usize] > 0) {
                    let sum = theirs.entry(owner.context(&held.lora)).or_default();
                    let bytes = owner.change(key, held, tier).encode();
                    sum.0 = sum.0.wrapping_add(xxhash_rust::xxh3::xxh3_64(&bytes));
                    sum.1 += 1;
                }
            }
        }
        assert_eq!(ours, theirs);
        for (&id, publisher) in &state.publishers {
            let ours = views::left_out(publisher).into_iter();
            let ours = ours.map(|(reason, blocks)| (reason.to_owned(), blocks));
            assert_eq!(ours.collect::<BTreeMap<_, _>>(), self.twin.reasons(id));
        }
        let pending: usize = self.twin.changes.values().map(|list| list.len() / 24).sum();
        assert_eq!(state.index.changes.pending(), pending);
    }

    fn take(&mut self) {
        let ours = self.core.state.write().index.changes.take();
        let ours: BTreeMap<ContextKey, Vec<u8>> = ours.into_iter().collect();
        assert_eq!(ours, std::mem::take(&mut self.twin.changes));
        self.taken.extend(ours);
    }

    /// Scopes and sizes; of blocks only where nothing is yet to be released.
    fn check_views(&self) {
        let state = self.core.state.read();
        let is_whole = state.index.leaving.len() == 0;
        let mut sizes = [0; 7]; // blocks, entries, publishers, scopes, sets, waiting, left out
        let mut sets = BTreeSet::new();
        let mut theirs = Vec::new();
        let known = self.twin.owners.values().flat_map(|owner| {
            let loras = owner.held.values().map(|held| held.lora.as_str());
            let routable = owner.registered.iter().filter(|known| known.1);
            let loras = loras.chain(routable.map(|known| known.0.as_str()));
            loras.map(|lora| owner.stream.scope(lora)).collect::<Vec<_>>()
        });
        for scope in known.collect::<BTreeSet<_>>() {
            if is_hidden(&scope.lora_name) {
                continue;
            }
            let blocks = self.twin.blocks(&scope);
            sizes[0] += blocks.len() as u64;
            sizes[3] += 1;
            let ranks = self.twin.participants(&scope).into_iter();
            let ranks: Vec<(String, Vec<u32>)> =
                ranks.map(|(name, ranks)| (name, ranks.into_keys().collect())).collect();
            theirs.push((scope, blocks.len(), ranks));
            sets.extend(blocks.into_values());
        }
        let counts = self.twin.owners.values().flat_map(|owner| owner.held.values());
        for held in counts {
            let tiers = held.counts.iter().filter(|&&count| count > 0).count() as u64;
            let says = held.lora == GROUPS || held.lora.starts_with("\0aliases:");
            sizes[1] += if says { 0 } else { tiers };
            sizes[5] += if held.lora.starts_with("\0waiting:") { tiers } else { 0 };
            sizes[6] += if held.lora.starts_with("\0left_out:") { tiers } else { 0 };
        }
        sizes[2] = self.twin.owners.len() as u64;
        sizes[4] = sets.len() as u64;
        let mut ours = views::stats(&state).map(|(_, size)| size)[..7].to_vec();
        let views = views::scopes(&state).into_iter();
        let mut shown: Vec<_> = views.map(|one| (one.key, one.blocks, one.instances)).collect();
        if !is_whole {
            (ours[0], ours[4], sizes[0], sizes[4]) = (0, 0, 0, 0);
            theirs.iter_mut().chain(&mut shown).for_each(|one| one.1 = 0);
        }
        assert_eq!(ours, sizes);
        assert_eq!(shown, theirs);
    }

    fn check_answers(&mut self) {
        let prompt = self.random.below(self.prompts.len());
        let mut prompt = self.prompts[prompt].clone();
        if self.chance(4) {
            prompt.push(3);
        }
        let (first_key, lora) = (self.one_of(&[&b""[..], b"k"]), self.one_of(&LORAS));
        let one = self.one_of(&INSTANCES);
        let has_own = self.chance(2);
        let mut keys = self.keys(has_own, &prompt, lora);
        let state = self.core.state.read();
        let hasher = &self.core.hasher;
        let placement = state.index.placement;
        let tokens: Vec<u32> = prompt.iter().flat_map(|&block| [block, block + 1]).collect();
        let event = Told { tokens: tokens.clone(), ..Told::default() };
        let mut keyed = event.clone();
        keyed.extra_keys = vec![first_key.to_vec()];
        let mut previous = None;
        let prefixes = keyed.locals(self.bounds.seed).into_iter().map(|local| {
            previous = Some(super::chained(previous, local, self.bounds.seed));
            previous.unwrap()
        });
        let prefixes: Vec<u64> = prefixes.collect();
        let scope = stream("", "m").scope(lora);
        let waits = stream("", "m").scope(&waiting(lora));
        let alike = |ours: Vec<InstanceDepths>, theirs: Vec<super::Answer>| {
            let rank = |one: &RankDepths| (one.dp_rank, one.depths);
            let ours = ours.iter().map(|one| {
                (one.instance_id.to_string(), one.depths, one.ranks.iter().map(rank).collect())
            });
            assert_eq!(ours.collect::<Vec<super::Answer>>(), theirs);
        };
        if let Some(&number) = state.index.scope_ids.get(&scope) {
            let known = &state.index.scopes[number as usize];
            let mut tail = u32s(&tokens);
            tail.extend([0; 7]); // a part of a block, which does not count
            for instance in [None, Some(one), Some("absent")] {
                let theirs = self.twin.query(&scope, &prefixes, instance);
                let asked = Prompt::Tokens(&tail, first_key);
                alike(walk::query(known, placement, hasher, &asked, instance), theirs);
                let hashed: Vec<[u8; 8]> =
                    keys.iter().map(|key| (key ^ 1 << 61).to_le_bytes()).collect();
                let named: Vec<u64> = keys.iter().map(|key| key ^ 1 << 61).collect();
                let theirs = self.twin.query(&scope, &named, instance);
                let asked = Prompt::Hashes(&hashed);
                alike(walk::query(known, placement, hasher, &asked, instance), theirs);
            }
        } else {
            assert!(self.twin.participants(&scope).is_empty());
        }
        let is_known = state.index.scope_ids.contains_key(&waits);
        assert!(is_known || self.twin.blocks(&waits).is_empty());
        if let Some(key) = keys.last_mut().filter(|_| prompt.len().is_multiple_of(3)) {
            *key ^= 1 << 60;
        }
        let hashes: Vec<[u8; 8]> = keys.iter().map(|key| key.to_le_bytes()).collect();
        for model in [None, Some("m"), Some("n"), Some("o")] {
            let ours = engine_hashes::query(&state, "t", model, &hashes);
            assert_eq!(ours, self.twin.query_by_key(model, &keys));
        }
        assert!(engine_hashes::query(&state, "u", None, &hashes).is_empty());
    }

    fn check_dumps(&mut self) {
        let state = self.core.state.read();
        for view in views::contexts(&state) {
            let mut dump = Dump::new(&state, view.key.clone());
            while dump.gather(&state, 50) >= 50 {}
            let mut dumped: Vec<[u8; 24]> = Vec::new();
            loop {
                let part = dump.take(7);
                dumped.extend(part.as_chunks::<24>().0);
                if part.is_empty() {
                    break;
                }
            }
            dumped.sort_unstable();
            let owners = self.twin.owners.values();
            let of_stream = owners.filter(|owner| owner.stream == view.key.stream());
            let live = of_stream.flat_map(|owner| owner.live(&view.key.scope.lora_name));
            let mut theirs: Vec<[u8; 24]> = live.map(|change: Change| change.encode()).collect();
            theirs.sort_unstable();
            assert_eq!(dumped, theirs);
        }
    }

    fn run(number: u64, bounds: Bounds) {
        let mut world = Self::new(number, bounds);
        let mut most = 0;
        for step in 0..world.bounds.steps {
            world.step();
            world.check();
            world.check_answers();
            if step % 3 == 0 {
                world.take();
                world.check_views();
            }
            if step % 40 == 39 {
                world.check_dumps();
                most = most.max(world.core.state.read().index.leaving.len());
            }
        }
        assert!(most == 0 || world.bounds.cleared_at_once < 1000);
        while world.write(|turn| turn.release_left(100)) > 0 {}
        world.check_views();
        for id in world.twin.owners.keys().copied().collect::<Vec<_>>() {
            let ours = world.write(|turn| turn.unregister(id)).expect("a publisher");
            assert_eq!(ours, world.twin.unregister(id));
        }
        while world.write(|turn| turn.release_left(100)) > 0 {}
        world.check();
        world.take();
        world.check_views();
        let state = world.core.state.read();
        assert!(state.index.scope_ids.is_empty() && state.ids.is_empty());
    }
}

#[test]
fn the_index_shows_what_its_twin_shows_with_few_blocks() {
    for number in 0..6 {
        let cleared_at_once = [4096, 0, 5][number as usize % 3];
        let (seed, steps) = (if number == 0 { 1337 } else { number }, 250);
        let bounds = Bounds {
            seed,
            cleared_at_once,
            waiting_max: 4,
            left_out_max: 9,
            longest: 6,
            prompts: 8,
            steps,
        };
        World::run(number, bounds);
    }
}

#[test]
fn the_index_shows_what_its_twin_shows_with_long_prompts() {
    for number in 10..13 {
        let cleared_at_once = [4096, 0, 100][number as usize % 3];
        let bounds = Bounds {
            seed: 1337,
            cleared_at_once,
            waiting_max: 150,
            left_out_max: 300,
            longest: 200,
            prompts: 12,
            steps: 60,
        };
        World::run(number, bounds);
    }
}

//! All entries of a context as SET changes, gathered in slices beside the writes between them.
//!
//! What is written meanwhile may be in it or not. Whoever loads a dump and then all changes since it
//! was begun, in order, has the entries as of the last of these: a change says what an entry is, not
//! by how much it differs.

use crate::changes::{CHANGE_BYTES, Change};
use crate::entry_table::Place;
use crate::names::ContextKey;
use crate::publisher::Publisher;
use crate::scope::Scope;
use crate::state::State;

/// Slots whose entries are sorted together: few enough for a slice, and so many that what is added to
/// in turn stays in the cache.
const BUCKET_SLOTS: u32 = 4096;
/// With more of them, as where a block goes by many keys, they stay as they were found.
const SORTED_MAX: usize = 16_384;

struct Found {
    slot: u32,
    change: [u8; CHANGE_BYTES],
}

pub struct Dump {
    context: ContextKey,
    /// Those of the context's stream that are yet to be looked at; the present one is the last.
    publishers: Vec<u64>,
    /// Where the present one's next entries are; None once there are none.
    place: Option<Place>,
    /// By the slots they are of, so that the parts of a dump follow the index.
    buckets: Vec<Vec<Found>>,
    /// How many of the buckets were taken.
    taken: usize,
    /// Sorted, and not taken yet.
    ready: Vec<u8>,
}

impl Dump {
    pub fn new(state: &State, context: ContextKey) -> Self {
        let stream = context.stream();
        let known = state.publishers.values().filter(|known| known.stream == stream);
        let publishers = known.map(|known| known.id).collect();
        let place = Some(Place::default());
        Self { context, publishers, place, buckets: Vec::new(), taken: 0, ready: Vec::new() }
    }

    /// Looks at so many further entries, or up to a shard more. Returns how many; fewer once all
    /// were looked at.
    pub fn gather(&mut self, state: &State, entries: usize) -> usize {
        let mut seen = 0;
        let scope = state.index.scope_ids.get(&self.context.scope);
        let Some(scope) = scope.map(|&number| &state.index.scopes[number as usize]) else {
            self.publishers.clear();
            return 0;
        };
        while let Some(id) = self.publishers.last() {
            if seen >= entries {
                break;
            }
            let (Some(publisher), Some(place)) = (state.publishers.get(id), self.place) else {
                self.publishers.pop();
                self.place = Some(Place::default());
                continue;
            };
            seen += 1 + self.gather_part(publisher, scope, place, state);
        }
        seen
    }

    fn gather_part(
        &mut self,
        publisher: &Publisher,
        scope: &Scope,
        place: Place,
        state: &State,
    ) -> usize {
        let number = publisher.memberships.number_of(&self.context.scope.lora_name);
        let mut seen = 0;
        let buckets = &mut self.buckets;
        let next = publisher.entries.part(place, state.index.keys(publisher), |entry| {
            seen += 1;
            if Some(entry.membership) != number {
                return;
            }
            for tier in entry.tiers() {
                let change = Change {
                    key: entry.key,
                    prefix: scope.slots.prefix(entry.slot),
                    dp_rank: publisher.dp_rank,
                    tier,
                    clears: false,
                    count: publisher.counts.of(&entry, tier),
                };
                let found = Found { slot: entry.slot, change: change.encode() };
                let bucket = (entry.slot / BUCKET_SLOTS) as usize;
                if bucket >= buckets.len() {
                    buckets.resize_with(bucket + 1, Vec::new);
                }
                buckets[bucket].push(found);
            }
        });
        self.place = next;
        seen
    }

    /// The next changes, at most so many and that many but at the end, in the order of the index's
    /// slots. To be called once all were gathered.
    pub fn take(&mut self, entries_max: usize) -> Vec<u8> {
        let bytes_max = CHANGE_BYTES.saturating_mul(entries_max);
        while self.ready.len() < bytes_max
            && let Some(bucket) = self.buckets.get_mut(self.taken)
        {
            let mut bucket = std::mem::take(bucket);
            self.taken += 1;
            if bucket.len() <= SORTED_MAX {
                // By slot; then by the rest, so that the same entries give the same bytes.
                bucket.sort_unstable_by_key(|found| (found.slot, found.change));
            }
            self.ready.extend(bucket.iter().flat_map(|found| found.change));
        }
        let rest = self.ready.split_off(self.ready.len().min(bytes_max));
        std::mem::replace(&mut self.ready, rest)
    }
}

#[cfg(test)]
mod tests {
    use super::Dump;
    use crate::changes::{CHANGE_BYTES, Change, decode};
    use crate::hashing::PrefixHasher;
    use crate::names::test_context;
    use crate::random::Random;
    use crate::state::State;
    use crate::write::WriteTurn;
    use parking_lot::RwLock;

    fn change(key: u64, dp_rank: u32, count: u16) -> Change {
        Change { key, prefix: key / 2, dp_rank, tier: 0, clears: false, count }
    }

    fn all(state: &RwLock<State>) -> Vec<Vec<u8>> {
        let mut dump = Dump::new(&state.read(), test_context("i"));
        dump.gather(&state.read(), usize::MAX);
        let mut changes: Vec<Vec<u8>> =
            dump.take(usize::MAX).chunks(CHANGE_BYTES).map(<[u8]>::to_vec).collect();
        changes.sort_unstable();
        changes
    }

    /// So that whoever loads it finds each block behind the one before.
    #[test]
    fn a_dump_follows_the_slots() {
        let hasher = PrefixHasher::new(7);
        let state = RwLock::new(State::new(1000, 1000, 1000));
        let changes: Vec<Change> = (0..30_000).map(|key| change(key, 0, 1)).collect();
        WriteTurn::new(&state, &hasher).load(&test_context("i"), &changes).expect("loaded");
        let mut dump = Dump::new(&state.read(), test_context("i"));
        dump.gather(&state.read(), usize::MAX);
        let mut slots = Vec::new();
        while let Some(part) = Some(dump.take(1000)).filter(|part| !part.is_empty()) {
            let state = state.read();
            slots.extend(decode(&part).expect("changes").iter().map(|change| {
                state.index.scopes[0].find(change.prefix, state.index.placement).expect("held")
            }));
        }
        assert_eq!(slots.len(), 30_000);
        assert!(slots.is_sorted());
    }

    fn loaded(changes: &[Change]) -> RwLock<State> {
        let state = RwLock::new(State::new(1000, 1000, 1000));
        WriteTurn::new(&state, &PrefixHasher::new(7))
            .load(&test_context("i"), changes)
            .expect("loaded");
        state
    }

    /// What each slice of a dump of the state has looked at.
    fn slices(state: &RwLock<State>, entries: usize) -> Vec<usize> {
        let mut dump = Dump::new(&state.read(), test_context("i"));
        let mut slices = vec![dump.gather(&state.read(), entries)];
        while slices.last() >= Some(&entries) {
            slices.push(dump.gather(&state.read(), entries));
        }
        slices
    }

    /// Else a large dump would keep the writes waiting.
    #[test]
    fn a_slice_ends_where_it_is_to_or_with_its_shard() {
        let count = 200_000;
        let state = loaded(&(0..count).map(|key| change(key, 0, 1)).collect::<Vec<_>>());
        let slices = slices(&state, 100);
        let (last, full) = slices.split_last().expect("one");
        assert!(full.iter().all(|seen| (100..100 + 16 * 2048).contains(seen)), "{slices:?}");
        assert!(*last < 100);
        let seen: usize = slices.iter().sum();
        assert!((200_000..201_000).contains(&seen), "each once: {seen}");
    }

    #[test]
    fn publishers_without_entries_count_too() {
        let blocks = (0..500).map(|rank| change(u64::from(rank), rank, 1));
        let state = loaded(&blocks.chain((1..500).map(Change::clear)).collect::<Vec<_>>());
        let slices = slices(&state, 100);
        assert!(slices.len() > 4, "{slices:?}");
        assert!(slices[..4].iter().all(|&seen| seen == 100), "{slices:?}");
    }

    /// Through splits and joins of the tables, clears, and publishers that come and go.
    #[test]
    fn a_dump_and_the_changes_since_are_what_there_is() {
        for seed in 0..6 {
            let hasher = PrefixHasher::new(7);
            let mut random = Random(seed);
            let state = RwLock::new(State::new(1000, 1000, 1000));
            let load = |state: &RwLock<State>, changes: &[Change]| {
                WriteTurn::new(state, &hasher).load(&test_context("i"), changes).expect("loaded");
            };
            let first: Vec<Change> =
                (0..40_000).map(|key| change(key, (key % 3) as u32, 1)).collect();
            load(&state, &first);
            let mut dump = Dump::new(&state.read(), test_context("i"));
            let mut since = Vec::new();
            while dump.gather(&state.read(), 2000) >= 2000 {
                let changes: Vec<Change> = (0..1 + random.below(3000))
                    .map(|_| {
                        let key = random.below(60_000) as u64;
                        change(key, (key % 4) as u32, random.below(3) as u16)
                    })
                    .collect();
                load(&state, &changes);
                since.extend(changes);
                if random.below(8) == 0 {
                    let clear = Change::clear(random.below(4) as u32);
                    load(&state, &[clear]);
                    since.push(clear);
                }
            }
            let copy = RwLock::new(State::new(1000, 1000, 1000));
            let mut last = (0, 0);
            loop {
                let chunk = dump.take(4096);
                if chunk.is_empty() {
                    break;
                }
                assert!(last.1 == 0 || last.1 == 4096 * CHANGE_BYTES, "a chunk before is full");
                last = (last.0 + 1, chunk.len());
                load(&copy, &decode(&chunk).expect("changes"));
            }
            load(&copy, &since);
            assert_eq!(all(&copy), all(&state), "seed {seed}");
            assert!(last.0 > 1, "seed {seed}");
        }
    }
}

//! Rules of the index that no answer shows, or only with many blocks.

use super::told::{Kind, Told, encode};
use crate::core::Core;
use crate::events::read_events;
use crate::limits::{CLEARED_SCOPES_AT_ONCE_MAX, RELEASED_BESIDE_MIN, TURN_BLOCKS};
use crate::names::StreamKey;
use crate::views;
use crate::walk::{self, Prompt};
use crate::write::WriteTurn;

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

    fn apply(&self, id: u64, events: &[Told]) {
        let encoded = encode(events, 0);
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

fn by_hash(lora: &str, hashes: impl IntoIterator<Item = u64>) -> Told {
    Told {
        hashes: hashes.into_iter().collect(),
        by_hash: true,
        block_size: 2,
        lora: lora.to_owned(),
        ..Told::default()
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
    let mut released = |events: &[Told]| {
        known.apply(other, events);
        let before = std::mem::replace(&mut left, known.left());
        before - left
    };
    assert_eq!(released(&[]), RELEASED_BESIDE_MIN);
    assert_eq!(released(&[by_hash("", 6000..6100)]), 200);
    let joins: Vec<Told> = (0..10).map(|at| by_hash(&at.to_string(), [7000 + at])).collect();
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
    known.write(|turn| turn.state().register(ids[0], "", true, false));
    let held = || {
        let state = known.core.state.read();
        let scope = &state.index.scopes[0];
        let query = |block: u64| {
            let hashes = [block.to_le_bytes()];
            let asked = Prompt::Hashes(&hashes);
            let found =
                walk::query(scope, state.index.placement, &known.core.hasher, &asked, Some("0"));
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
        let event = Told { kind: Kind::Removed, hashes: (0..1023).collect(), ..Told::default() };
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
        known.apply(id, &[Told { kind: Kind::Removed, hashes: vec![hash], ..Told::default() }]);
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
    let chain = |first: u64| Told {
        hashes: (first..first + 50).collect(),
        tokens: (0..100).collect(),
        block_size: 2,
        ..Told::default()
    };
    known.apply(ids[0], &[chain(1000)]);
    known.apply(ids[1], &[chain(1000)]);
    known.apply(ids[2], &[chain(2000)]);
    let state = known.core.state.read();
    let rows_only = ids.map(|id| state.publishers[&id].entries.has_rows_only());
    assert_eq!(rows_only, [true, true, false]);
}

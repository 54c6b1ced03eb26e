//! Blocks that one batch removes and then names again: they have moved to a tier.
//!
//! `streams/kernel/tier_moves.py` is the specification.

use std::sync::Arc;

use hashbrown::{HashMap, HashSet};

use crate::events::Event;

/// What blocks were that the present batch has removed. Nothing is kept of batches of which no event
/// may name one again.
pub struct Moves {
    moving: HashSet<i128>,
    sequence: Option<i128>,
    removed: HashMap<u64, (Arc<str>, u64)>,
    forgotten: HashMap<u64, (Arc<str>, u64)>,
}

impl Moves {
    pub fn new(events: &[Event]) -> Self {
        let moving = events.iter().filter_map(|event| match event {
            Event::Stored(stored) if stored.may_name_removed() => Some(stored.sequence),
            _ => None,
        });
        let (removed, forgotten) = (HashMap::new(), HashMap::new());
        Self { moving: moving.collect(), sequence: None, removed, forgotten }
    }

    /// An event of this batch is next.
    pub fn begin(&mut self, sequence: i128) {
        if self.sequence != Some(sequence) {
            self.sequence = Some(sequence);
            self.removed.clear();
            self.forgotten.clear();
        }
    }

    /// Whether the present batch may name removed blocks, so that its removals are to be noted.
    pub fn is_noting(&self) -> bool {
        self.sequence.is_some_and(|sequence| self.moving.contains(&sequence))
    }

    pub fn note(&mut self, key: u64, lora_name: Arc<str>, prefix: u64) {
        self.removed.insert(key, (lora_name, prefix));
    }

    /// LoRA name and prefix hash of a block that was removed.
    pub fn find(&self, key: u64) -> Option<(Arc<str>, u64)> {
        self.removed.get(&key).cloned()
    }
    /// The pool remembers the block of an alias no longer, which stood under this key.
    pub fn forget(&mut self, key: u64, lora_name: Arc<str>, prefix: u64) {
        self.forgotten.insert(key, (lora_name, prefix));
    }

    /// The prefix hash of that block, if it stood in the scope of this name.
    pub fn forgotten(&self, key: u64, lora_name: &str) -> Option<u64> {
        let (name, prefix) = self.forgotten.get(&key)?;
        (**name == *lora_name).then_some(*prefix)
    }
}

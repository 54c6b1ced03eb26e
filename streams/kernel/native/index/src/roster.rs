//! The instances that the answers of a scope name, and where a walk for all of them begins.

use std::ops::Range;
use std::sync::{Arc, OnceLock};

use crate::masks::{Masks, set_bit};

/// An instance with ranks that take part.
pub struct RosterEntry {
    pub name: Arc<str>,
    pub instance: u32,
    /// (dp_rank, member), sorted.
    pub ranks: Vec<(u32, u32)>,
    /// Each rank has a part of each block: it holds what all of them hold.
    pub is_sharded: bool,
    /// Of each rank, in their order, the members whose shared blocks it reads, sorted. Empty where
    /// each reads all.
    pub readable: Vec<Vec<u32>>,
}

/// What answers say of entries that hold nothing of a prompt, by form of answer; made when it is
/// first wanted. None where a name does not stand in it as it is.
#[derive(Default)]
pub struct Misses {
    pub json: OnceLock<Option<MissedParts>>,
    pub msgpack: OnceLock<Option<MissedParts>>,
    pub audited: OnceLock<Option<MissedParts>>,
}

/// Of all entries, one behind the other: most of many hold nothing, and stand side by side.
pub struct MissedParts {
    text: Box<[u8]>,
    /// Of each entry's part.
    ends: Box<[usize]>,
}

impl MissedParts {
    pub fn new(
        entries: &[RosterEntry],
        write: impl Fn(&mut Vec<u8>, &RosterEntry) -> Option<()>,
    ) -> Option<Self> {
        let mut text = Vec::new();
        let mut ends = Vec::with_capacity(entries.len());
        for entry in entries {
            write(&mut text, entry)?;
            ends.push(text.len());
        }
        Some(Self { text: text.into(), ends: ends.into() })
    }

    /// The parts of these entries.
    pub fn of(&self, entries: Range<usize>) -> &[u8] {
        let end = |entries: usize| entries.checked_sub(1).map_or(0, |last| self.ends[last]);
        &self.text[end(entries.start)..end(entries.end)]
    }
}

#[derive(Default)]
pub struct Roster {
    /// In the order of answers, which is that of names.
    entries: Vec<RosterEntry>,
    /// Whether a mask may say more of an entry than it can use: it is sharded, or does not read all.
    is_limited: bool,
    /// Whether an entry does not read all.
    has_readers: bool,
    /// The bits of all entries, made when they are first wanted.
    bits: OnceLock<Bits>,
    pub misses: Misses,
}

impl Roster {
    pub fn new(mut entries: Vec<RosterEntry>) -> Self {
        entries.sort_unstable_by(|a, b| a.name.cmp(&b.name));
        let has_readers = entries.iter().any(|entry| !entry.readable.is_empty());
        let is_limited = has_readers || entries.iter().any(|entry| entry.is_sharded);
        let (bits, misses) = (OnceLock::new(), Misses::default());
        Self { entries, is_limited, has_readers, bits, misses }
    }

    #[inline]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    #[inline]
    pub fn is_limited(&self) -> bool {
        self.is_limited
    }

    #[inline]
    pub fn has_readers(&self) -> bool {
        self.has_readers
    }

    #[inline]
    pub fn entries(&self) -> &[RosterEntry] {
        &self.entries
    }

    /// The entry of one instance; none where the instance is not there.
    pub fn of(&self, instance_id: &str) -> &[RosterEntry] {
        match self.entries.binary_search_by(|known| (*known.name).cmp(instance_id)) {
            Ok(at) => &self.entries[at..=at],
            Err(_) => &[],
        }
    }

    /// The bits of all entries.
    pub fn bits(&self, masks: &Masks) -> Bits {
        let bits = self.bits.get_or_init(|| Bits::new(masks, &self.entries));
        if bits.is_like(masks) { bits.clone() } else { Bits::new(masks, &self.entries) }
    }
}

/// Bits of instances and ranks, in the layout that the masks had.
#[derive(Clone)]
pub struct Bits {
    pub instance_words: usize,
    pub member_words: usize,
    pub words: Vec<u64>,
}

impl Bits {
    /// The bits of these entries.
    pub fn new(masks: &Masks, entries: &[RosterEntry]) -> Self {
        let mut bits = Self {
            instance_words: masks.instance_words,
            member_words: masks.member_words,
            words: vec![0; masks.words()],
        };
        for entry in entries {
            for part in 0..4 {
                bits.set(part * bits.instance_words, entry.instance);
            }
            for &(_, member) in &entry.ranks {
                bits.set(bits.own(), member);
                bits.set(bits.own() + bits.member_words, member);
            }
        }
        bits
    }

    fn set(&mut self, start: usize, bit: u32) {
        set_bit(&mut self.words, start, bit);
    }

    fn is_like(&self, masks: &Masks) -> bool {
        (self.instance_words, self.member_words) == (masks.instance_words, masks.member_words)
    }

    /// Where the part of the ranks' own tiers starts; the three walk parts follow.
    #[inline]
    pub fn own(&self) -> usize {
        4 * self.instance_words
    }
}

//! What one publisher calls the blocks it holds: its entries, by key.
//!
//! Engines whose block hashes have one seed call a block by the same key, so the key stands with the
//! block, once, as its first holder calls it. An entry under that key is 8 bytes, slot, membership
//! and tiers; one under another key has it with itself.

use crate::hashing::Placement;
use crate::memberships::Memberships;
use crate::names::TIERS;
use crate::scope::Scope;
use crate::slots::Slots;
use crate::tables::{Places, Sharded};

/// A block under the publisher's own key, on one tier or more.
#[derive(Clone, Copy)]
pub struct Entry {
    pub key: u64,
    pub slot: u32,
    pub membership: u32,
    /// A bit per tier that holds the block.
    tiers: u32,
    /// Its key is that of the slot.
    is_row: bool,
}

impl Entry {
    #[inline]
    pub fn has(&self, tier: u32) -> bool {
        self.tiers >> tier & 1 == 1
    }

    #[inline]
    pub fn set(&mut self, tier: u32, held: bool) {
        self.tiers = self.tiers & !(1 << tier) | u32::from(held) << tier;
    }

    pub fn tiers(&self) -> impl Iterator<Item = u32> + use<> {
        let entry = *self;
        (0..TIERS).filter(move |&tier| entry.has(tier))
    }
}

/// How many entries ahead a walk asks for what it will show.
const AHEAD: usize = 32;

const TIER_MASK: u32 = (1 << TIERS) - 1;

/// An entry whose key is that of its slot.
#[derive(Clone, Copy, Default, PartialEq)]
struct Row {
    slot: u32,
    /// The number of the membership, above a bit per tier.
    packed: u32,
}

impl Row {
    #[inline]
    fn membership(self) -> u32 {
        self.packed >> TIERS
    }

    /// A publisher has one row at most for each slot.
    #[inline]
    fn is_of(self, entry: &Entry) -> bool {
        self.slot == entry.slot && self.membership() == entry.membership
    }

    #[inline]
    fn entry(self, key: u64) -> Entry {
        let (slot, membership) = (self.slot, self.membership());
        Entry { key, slot, membership, tiers: self.packed & TIER_MASK, is_row: true }
    }
}

/// An entry with a key of its own.
#[derive(Clone, Copy, Default, PartialEq)]
struct Own {
    key: u64,
    slot: u32,
    /// The number of the membership, above a bit per tier.
    packed: u32,
}

impl Own {
    #[inline]
    fn entry(self) -> Entry {
        let Self { key, slot, packed } = self;
        let (membership, tiers) = (packed >> TIERS, packed & TIER_MASK);
        Entry { key, slot, membership, tiers, is_row: false }
    }
}

/// Where the keys of rows are looked up: the scopes, and the publisher's parts in them.
#[derive(Clone, Copy)]
pub struct Keys<'a> {
    scopes: &'a [Scope],
    memberships: &'a Memberships,
    placement: Placement,
}

impl<'a> Keys<'a> {
    #[inline]
    pub fn new(scopes: &'a [Scope], memberships: &'a Memberships, placement: Placement) -> Self {
        Self { scopes, memberships, placement }
    }

    /// The key of a row's slot. A membership stays while there are entries of it.
    #[inline]
    fn of_row(self, row: Row) -> u64 {
        self.of_slot(row.membership(), row.slot)
    }

    #[inline]
    fn of_slot(self, membership: u32, slot: u32) -> u64 {
        self.slots_of(membership).map_or(0, |slots| slots.key(slot))
    }

    #[inline]
    fn slots_of(self, membership: u32) -> Option<&'a Slots> {
        Some(&self.scopes[self.memberships.get(membership)?.scope as usize].slots)
    }

    /// Has key and prefix hash of an entry's block brought into the cache.
    #[inline]
    fn touch_block(self, membership: u32, slot: u32) {
        if let Some(slots) = self.slots_of(membership) {
            slots.touch_key(slot);
            slots.touch_prefix(slot);
        }
    }
}

impl Places<Row> for Keys<'_> {
    #[inline]
    fn of(&self, row: &Row) -> u64 {
        self.placement.of(self.of_row(*row))
    }

    #[inline]
    fn touch(&self, row: &Row) {
        if let Some(slots) = self.slots_of(row.membership()) {
            slots.touch_key(row.slot);
        }
    }
}

impl Places<Own> for Keys<'_> {
    #[inline]
    fn of(&self, own: &Own) -> u64 {
        self.placement.of(own.key)
    }
}

/// Where a walk over all entries has come to.
#[derive(Clone, Copy, Default)]
pub struct Place {
    is_own: bool,
    position: u32,
}

type Rows = Sharded<Row, 7, 8>;
type Owns = Sharded<Own, 7, 8>;

#[derive(Default)]
pub struct EntryTable {
    rows: Rows,
    own: Owns,
}

impl EntryTable {
    #[inline]
    pub fn len(&self) -> usize {
        self.rows.len() + self.own.len()
    }

    /// Whether every key is that of its slot.
    #[inline]
    pub fn has_rows_only(&self) -> bool {
        self.own.len() == 0
    }

    #[inline]
    pub fn find(&self, key: u64, keys: Keys<'_>) -> Option<Entry> {
        let hash = keys.placement.of(key);
        if self.own.len() <= self.rows.len() {
            self.find_row(key, hash, keys).or_else(|| self.find_own(key, hash))
        } else {
            self.find_own(key, hash).or_else(|| self.find_row(key, hash, keys))
        }
    }

    #[inline]
    fn find_row(&self, key: u64, hash: u64, keys: Keys<'_>) -> Option<Entry> {
        Some(self.rows.find(hash, |&row| keys.of_row(row) == key)?.entry(key))
    }

    #[inline]
    fn find_own(&self, key: u64, hash: u64) -> Option<Entry> {
        if self.own.len() == 0 {
            return None;
        }
        Some(self.own.find(hash, |own| own.key == key)?.entry())
    }

    /// Brings what `find` looks at first into the cache. Done for many keys, the misses overlap.
    #[inline]
    pub fn touch(&self, key: u64, placement: Placement) {
        self.rows.touch(placement.of(key));
        if self.own.len() > 0 {
            self.own.touch(placement.of(key));
        }
    }

    /// A row that has the tag of the hash: one time in fifty another key's.
    #[inline]
    fn likely_row(&self, hash: u64) -> Option<&Row> {
        self.rows.find(hash, |_| true)
    }

    /// `find` for many keys, in steps, so that the misses of each step overlap: lines, then the keys
    /// that rows have with their slots.
    pub fn find_all(&self, wanted: &[u64], keys: Keys<'_>, found: &mut [Option<Entry>]) {
        for &key in wanted {
            self.touch(key, keys.placement);
        }
        for (&key, found) in wanted.iter().zip(&mut *found) {
            *found = self.likely_row(keys.placement.of(key)).map(|row| row.entry(key));
        }
        for entry in found.iter().flatten() {
            keys.touch_block(entry.membership, entry.slot);
        }
        for (&key, found) in wanted.iter().zip(found) {
            let is_right =
                found.is_some_and(|entry| keys.of_slot(entry.membership, entry.slot) == key);
            if !is_right {
                *found = self.find(key, keys);
            }
        }
    }

    /// Makes an entry, held on a tier, for a key that has none.
    #[inline]
    pub fn insert(&mut self, key: u64, slot: u32, membership: u32, tier: u32, keys: Keys<'_>) {
        let hash = keys.placement.of(key);
        let packed = membership << TIERS | 1 << tier;
        if keys.of_slot(membership, slot) == key {
            self.rows.insert(hash, Row { slot, packed }, keys);
        } else {
            self.own.insert(hash, Own { key, slot, packed }, keys);
        }
    }

    /// Writes the tiers of a known entry; one without tiers goes.
    #[inline]
    pub fn update(&mut self, entry: &Entry, keys: Keys<'_>) {
        let hash = keys.placement.of(entry.key);
        let write = |packed: &mut u32| {
            *packed = *packed & !TIER_MASK | entry.tiers;
            (true, entry.tiers == 0)
        };
        if entry.is_row {
            let (same, change) =
                (|row: &Row| row.is_of(entry), |row: &mut Row| write(&mut row.packed));
            self.rows.change(hash, same, change, keys);
        } else {
            let (same, change) =
                (|own: &Own| own.key == entry.key, |own: &mut Own| write(&mut own.packed));
            self.own.change(hash, same, change, keys);
        }
    }

    /// Takes a tier from an entry, which goes with its last one; false where it has not got it any
    /// more, or is gone.
    #[inline]
    pub fn take_tier(&mut self, entry: &Entry, tier: u32, keys: Keys<'_>) -> bool {
        let hash = keys.placement.of(entry.key);
        let take = |packed: &mut u32| {
            let had = *packed >> tier & 1 == 1;
            *packed &= !(1 << tier);
            (had, *packed & TIER_MASK == 0)
        };
        if entry.is_row {
            let (same, change) =
                (|row: &Row| row.is_of(entry), |row: &mut Row| take(&mut row.packed));
            self.rows.change(hash, same, change, keys)
        } else {
            let (same, change) =
                (|own: &Own| own.key == entry.key, |own: &mut Own| take(&mut own.packed));
            self.own.change(hash, same, change, keys)
        }
    }

    /// Takes out all entries of one membership. Looks at all that there are.
    pub fn extract(&mut self, membership: u32, keys: Keys<'_>) -> Vec<Entry> {
        let rows = self
            .rows
            .extract(|row| row.membership() == membership, keys)
            .into_iter()
            .map(|row| row.entry(keys.of_row(row)));
        let own = self
            .own
            .extract(|own| own.packed >> TIERS == membership, keys)
            .into_iter()
            .map(Own::entry);
        rows.chain(own).collect()
    }

    /// All of them, in no order. Those under their slot's key come without it, with 0.
    pub fn into_entries(self) -> impl Iterator<Item = Entry> {
        let rows = self.rows.into_values().map(|row| row.entry(0));
        rows.chain(self.own.into_values().map(Own::entry))
    }

    /// The next entries of a walk that begins at `Place::default()`, and where it goes on; None
    /// where it ends. Key and prefix hash of each are in the cache as it is shown. What stays while others come and go is seen, once or more often.
    pub fn part(&self, place: Place, keys: Keys<'_>, mut see: impl FnMut(Entry)) -> Option<Place> {
        if place.is_own {
            let (all, next) = self.own.part(place.position);
            all.for_each(|own| see(own.entry()));
            return Some(Place { is_own: true, position: next? });
        }
        let (rows, next) = self.rows.part(place.position);
        let rows: Vec<Row> = rows.copied().collect();
        let touch = |row: &Row| keys.touch_block(row.membership(), row.slot);
        rows.iter().take(AHEAD).for_each(touch);
        for (at, &row) in rows.iter().enumerate() {
            rows.get(at + AHEAD).into_iter().for_each(touch);
            see(row.entry(keys.of_row(row)));
        }
        Some(Place { is_own: next.is_none(), position: next.unwrap_or(0) })
    }

    pub fn memory_bytes(&self) -> usize {
        self.rows.memory_bytes() + self.own.memory_bytes()
    }
}

//! What one publisher calls the blocks it holds: its entries, by key.
//!
//! Engines whose block hashes have one seed call a block by the same key, so the key stands with the
//! block, once, as its first holder calls it. An entry under that key is 8 bytes, slot, membership
//! and tiers; one under another key has it with itself.

use crate::hashing::Placement;
use crate::memberships::Memberships;
use crate::names::TIERS;
use crate::scope::Scope;
use crate::tables::{Sharded, Vacancy};

/// A block under the publisher's own key, on one tier or more.
#[derive(Clone, Copy)]
pub struct Entry {
    pub key: u64,
    row: Row,
    /// Its key is that of the slot.
    is_row: bool,
}

/// An entry without its key.
#[derive(Clone, Copy)]
struct Row {
    slot: u32,
    /// Number of the membership, above a bit per tier that holds the block.
    packed: u32,
}

/// An entry under another key than its slot's.
#[derive(Clone, Copy)]
struct Own {
    key: u64,
    row: Row,
}

impl Row {
    #[inline]
    fn membership(self) -> u32 {
        self.packed >> TIERS
    }

    #[inline]
    fn has(self, tier: u32) -> bool {
        self.packed >> tier & 1 == 1
    }

    #[inline]
    fn set(&mut self, tier: u32, held: bool) {
        self.packed = self.packed & !(1 << tier) | u32::from(held) << tier;
    }

    #[inline]
    fn is_vacant(self) -> bool {
        self.packed & ((1 << TIERS) - 1) == 0
    }

    /// A publisher has one entry at most for each slot under its key.
    #[inline]
    fn is_of(self, other: Row) -> bool {
        self.slot == other.slot && self.membership() == other.membership()
    }
}

impl Entry {
    #[inline]
    pub fn slot(&self) -> u32 {
        self.row.slot
    }

    #[inline]
    pub fn membership(&self) -> u32 {
        self.row.membership()
    }

    #[inline]
    pub fn has(&self, tier: u32) -> bool {
        self.row.has(tier)
    }

    #[inline]
    pub fn set(&mut self, tier: u32, held: bool) {
        self.row.set(tier, held);
    }

    pub fn tiers(&self) -> impl Iterator<Item = u32> + use<> {
        let row = self.row;
        (0..TIERS).filter(move |&tier| row.has(tier))
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
    fn of(self, row: Row) -> u64 {
        let membership = self.memberships.get(row.membership());
        membership.map_or(0, |part| self.scopes[part.scope as usize].slots.key(row.slot))
    }

    #[inline]
    fn place_of_row(self, row: &Row) -> u64 {
        self.placement.of(self.of(*row))
    }

    #[inline]
    fn place_of_own(self, own: &Own) -> u64 {
        self.placement.of(own.key)
    }
}

/// Where a walk over all entries has come to.
#[derive(Clone, Copy, Default)]
pub struct Place {
    is_own: bool,
    position: u32,
}

#[derive(Default)]
pub struct EntryTable {
    rows: Sharded<Row>,
    own: Sharded<Own>,
}

/// Where a key has no entry: what is needed to make one.
pub struct Vacant<'a> {
    key: u64,
    hash: u64,
    place: Vacancy<'a, Row>,
    own: &'a mut Sharded<Own>,
    placement: Placement,
}

impl Vacant<'_> {
    /// Makes the entry, held on a tier; `slot_key` is the key of its slot.
    #[inline]
    pub fn fill(self, slot: u32, slot_key: u64, membership: u32, tier: u32) {
        let row = Row { slot, packed: membership << TIERS | 1 << tier };
        if slot_key == self.key {
            return self.place.fill(row);
        }
        let Self { key, hash, own, placement, .. } = self;
        own.insert(hash, Own { key, row }, |known| placement.of(known.key));
    }
}

impl EntryTable {
    #[inline]
    pub fn len(&self) -> usize {
        self.rows.len() + self.own.len()
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
        let row = *self.rows.find(hash, |&row| keys.of(row) == key)?;
        Some(Entry { key, row, is_row: true })
    }

    #[inline]
    fn find_own(&self, key: u64, hash: u64) -> Option<Entry> {
        if self.own.len() == 0 {
            return None;
        }
        let own = self.own.find(hash, |own| own.key == key)?;
        Some(Entry { key, row: own.row, is_row: false })
    }

    /// Brings what `find` looks at into the cache. Done for many keys first, the misses overlap.
    #[inline]
    pub fn touch(&self, key: u64, keys: Keys<'_>) {
        std::hint::black_box(self.find(key, keys).is_some());
    }

    /// What the key has, or where to make it.
    #[inline]
    pub fn find_or_vacant(&mut self, key: u64, keys: Keys<'_>) -> Result<Entry, Vacant<'_>> {
        let placement = keys.placement;
        let hash = placement.of(key);
        if let Some(known) = self.find_own(key, hash) {
            return Ok(known);
        }
        let Self { rows, own } = self;
        let found =
            rows.find_or_vacancy(hash, |&row| keys.of(row) == key, |row| keys.place_of_row(row));
        match found {
            Ok(&mut row) => Ok(Entry { key, row, is_row: true }),
            Err(place) => Err(Vacant { key, hash, place, own, placement }),
        }
    }

    /// Writes the tiers of a known entry; one without tiers goes.
    #[inline]
    pub fn update(&mut self, entry: Entry, keys: Keys<'_>) {
        let Entry { key, row, is_row } = entry;
        let hash = keys.placement.of(key);
        match (is_row, row.is_vacant()) {
            (true, true) => {
                self.rows.remove(hash, |known| known.is_of(row), |row| keys.place_of_row(row));
            }
            (true, false) => {
                if let Some(place) = self.rows.find_mut(hash, |known| known.is_of(row)) {
                    *place = row;
                }
            }
            (false, true) => {
                self.own.remove(hash, |known| known.key == key, |own| keys.place_of_own(own));
            }
            (false, false) => {
                if let Some(place) = self.own.find_mut(hash, |known| known.key == key) {
                    place.row = row;
                }
            }
        }
    }

    /// Takes a tier from an entry, which goes with its last one; false where it has not got it any
    /// more, or is gone.
    #[inline]
    pub fn take_tier(&mut self, entry: &Entry, tier: u32, keys: Keys<'_>) -> bool {
        let &Entry { key, row, is_row } = entry;
        let hash = keys.placement.of(key);
        if !is_row {
            let Some(mut known) = self.find_own(key, hash).filter(|known| known.has(tier)) else {
                return false;
            };
            known.set(tier, false);
            self.update(known, keys);
            return true;
        }
        self.rows.remove_if(
            hash,
            |known| known.is_of(row),
            |known| {
                let had = known.has(tier);
                known.set(tier, false);
                (had, had && known.is_vacant())
            },
            |row| keys.place_of_row(row),
        )
    }

    /// Takes out all entries of one membership. Cost O(all entries).
    pub fn extract(&mut self, membership: u32, keys: Keys<'_>) -> Vec<Entry> {
        let rows = self
            .rows
            .extract(|row| row.membership() == membership, |row| keys.place_of_row(row))
            .into_iter()
            .map(|row| Entry { key: keys.of(row), row, is_row: true });
        let own = self
            .own
            .extract(|own| own.row.membership() == membership, |own| keys.place_of_own(own))
            .into_iter()
            .map(|own| Entry { key: own.key, row: own.row, is_row: false });
        rows.chain(own).collect()
    }

    /// All of them, in no order. Those under their slot's key come without it, with 0.
    pub fn into_entries(self) -> impl Iterator<Item = Entry> {
        let rows = self.rows.into_values().map(|row| Entry { key: 0, row, is_row: true });
        let own = self.own.into_values();
        rows.chain(own.map(|own| Entry { key: own.key, row: own.row, is_row: false }))
    }

    /// The next entries of a walk that begins at `Place::default()`, and where it goes on; None
    /// where it ends. What stays while others come and go is seen, once or more often.
    pub fn part(&self, place: Place, keys: Keys<'_>, mut see: impl FnMut(Entry)) -> Option<Place> {
        if place.is_own {
            let (all, next) = self.own.part(place.position);
            all.for_each(|own| see(Entry { key: own.key, row: own.row, is_row: false }));
            return Some(Place { is_own: true, position: next? });
        }
        let (rows, next) = self.rows.part(place.position);
        rows.for_each(|&row| see(Entry { key: keys.of(row), row, is_row: true }));
        Some(Place { is_own: next.is_none(), position: next.unwrap_or(0) })
    }

    pub fn memory_bytes(&self) -> usize {
        self.rows.memory_bytes() + self.own.memory_bytes()
    }
}

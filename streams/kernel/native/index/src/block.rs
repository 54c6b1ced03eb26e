//! A block as an event of its publisher names it.

use crate::events::Stored;

/// A block as a publisher names it, on one tier.
#[derive(Clone, Copy, Default)]
pub struct Block {
    pub key: u64,
    pub prefix: u64,
    pub tier: u32,
    /// Whether its publisher only says again that it holds it.
    pub reported: bool,
    /// Whether that, or that it has stored another copy of it.
    pub undecided: bool,
    /// Whether it is of an object, which is held once however often it is announced.
    pub is_object: bool,
}

impl Block {
    /// A block of an event.
    #[inline]
    pub fn of(event: &Stored, key: u64, prefix: u64) -> Self {
        let Stored { tier, reported, undecided, .. } = *event;
        Self { key, prefix, tier, reported, undecided, is_object: false }
    }
}

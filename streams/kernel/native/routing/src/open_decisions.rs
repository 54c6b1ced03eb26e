//! Decisions that were made here, of which reports may be taken here: Python has been told nothing of
//! them.

use std::collections::VecDeque;

use hashbrown::{HashMap, HashSet};

/// Decisions whose end has not been told; of those beyond, Python knows.
const OPEN_MAX: usize = 32_768;
/// For how long they are kept: Python drops what it books no sooner (`BOOKING_EXPIRY_S`).
pub(crate) const OPEN_S: f64 = 240.0;

/// A decision that was made here.
pub struct Open {
    pub tenant_id: Box<str>,
    pub target: u32,
    pub time: f64,
    pub work_s: f64,
    /// When its first token was expected.
    pub end_at: f64,
    pub uncached: u64,
    pub tokens: u64,
    /// Bits of the events that were told.
    pub seen: u8,
}

/// Decisions whose reports may be taken here. Cost O(1) each, amortized.
#[derive(Default)]
pub struct OpenDecisions {
    pub(crate) known: HashMap<u64, Open>,
    order: VecDeque<(f64, u64)>,
    /// Of which Python has yet to be told something.
    pub(crate) told: HashSet<u64>,
}

impl OpenDecisions {
    pub fn add(&mut self, number: u64, open: Open) {
        self.order.push_back((open.time, number));
        let now = open.time;
        self.known.insert(number, open);
        while let Some(&(time, number)) = self.order.front()
            && (now - time > OPEN_S || self.order.len() > OPEN_MAX || !self.is_open(number))
        {
            self.order.pop_front();
            self.known.remove(&number);
        }
    }

    fn is_open(&self, number: u64) -> bool {
        self.known.contains_key(&number)
    }

    /// Python takes what is told of it from now on; says whether it has yet to be told something.
    pub fn close(&mut self, number: u64) -> bool {
        self.known.remove(&number);
        self.told.contains(&number)
    }

    pub fn close_all(&mut self) {
        self.known.clear();
        self.order.clear();
    }

    /// Python is told all.
    pub fn taken(&mut self) {
        self.told.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decisions_are_open_for_so_long_and_so_many_are() {
        let open = |time: f64| Open {
            tenant_id: "t".into(),
            target: 1,
            time,
            work_s: 1.0,
            end_at: time + 1.0,
            uncached: 1,
            tokens: 1,
            seen: 0,
        };
        let mut known = OpenDecisions::default();
        known.add(0, open(1.0));
        known.add(1, open(2.0));
        known.close(1);
        known.add(2, open(1.5 + OPEN_S));
        assert_eq!((known.known.len(), known.order.len()), (1, 1));
        for number in 3..=OPEN_MAX as u64 + 3 {
            known.add(number, open(2.0 + OPEN_S));
        }
        assert_eq!((known.known.len(), known.order.len()), (OPEN_MAX, OPEN_MAX));
        assert!(!known.is_open(2));
        known.close_all();
        assert_eq!((known.known.len(), known.order.len()), (0, 0));
    }
}

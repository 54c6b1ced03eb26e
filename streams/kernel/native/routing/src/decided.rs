//! What was decided and told and has yet to be booked by Python, and what each decision and report of
//! late has changed at its target.

use std::collections::VecDeque;

/// For how long what a decision has added is kept: longer than anything is decided by a board.
const KEPT_S: f64 = 4.0;
const KEPT_MAX: usize = 65_536;

/// What a decision adds to its target, or a report of it takes away.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Effect {
    pub target: u32,
    pub time: f64,
    pub work_s: f64,
    /// Tokens to be computed; and that the request takes in the end.
    pub uncached: u64,
    pub tokens: u64,
    pub what: What,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum What {
    Decided,
    /// Its prompt is computed, or its request has ended; its first token was expected then.
    Told {
        begins: bool,
        ends: bool,
        end_at: f64,
    },
}

/// The last effects, numbered: whoever has published a board says up to which it has them.
#[derive(Default)]
pub struct Effects {
    first: u64,
    kept: VecDeque<Effect>,
}

impl Effects {
    /// Of the next one.
    pub fn next(&self) -> u64 {
        self.first + self.kept.len() as u64
    }

    pub fn push(&mut self, effect: Effect) {
        self.kept.push_back(effect);
        while self.kept.len() > KEPT_MAX
            || self.kept.front().is_some_and(|first| effect.time - first.time > KEPT_S)
        {
            self.kept.pop_front();
            self.first += 1;
        }
    }

    /// Whom they are about.
    pub fn targets(&self) -> impl Iterator<Item = u32> {
        self.kept.iter().map(|effect| effect.target)
    }

    /// Those from a number on; None where some of them are not kept.
    pub fn since(&self, number: u64) -> Option<impl Iterator<Item = &Effect>> {
        let skipped = number.checked_sub(self.first)?;
        Some(self.kept.iter().skip(skipped as usize))
    }
}

/// As Python reads it.
pub enum Item {
    Decision(Vec<u8>),
    Report(Vec<u8>),
}

impl Item {
    fn bytes(&self) -> &[u8] {
        match self {
            Self::Decision(bytes) | Self::Report(bytes) => bytes,
        }
    }
}

/// Decisions, in the order of their numbers, and each report behind its own; bounded.
pub struct Waiting {
    pub count_max: usize,
    pub bytes_max: usize,
    /// Each with the number of the effect behind its own.
    items: VecDeque<(Item, u64)>,
    bytes: usize,
}

impl Waiting {
    pub fn new(count_max: usize, bytes_max: usize) -> Self {
        Self { count_max, bytes_max, items: VecDeque::new(), bytes: 0 }
    }

    pub fn len(&self) -> usize {
        self.items.len()
    }

    pub fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    pub fn is_full(&self) -> bool {
        self.items.len() >= self.count_max || self.bytes >= self.bytes_max
    }

    /// `behind`: the next effect is that one.
    pub fn push(&mut self, item: Item, behind: u64) {
        self.bytes += item.bytes().len();
        self.items.push_back((item, behind));
    }

    /// So many of the first; and up to which effect they go, where others stay.
    pub fn take(&mut self, most: usize) -> (Vec<Item>, Option<u64>) {
        let count = self.items.len().min(most);
        let mut behind = None;
        let taken = self.items.drain(..count).map(|(item, effect)| {
            behind = Some(effect);
            item
        });
        let taken: Vec<Item> = taken.collect();
        self.bytes -= taken.iter().map(|item| item.bytes().len()).sum::<usize>();
        (taken, behind.filter(|_| !self.items.is_empty()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn effect(time: f64) -> Effect {
        Effect { target: 1, time, work_s: 0.5, uncached: 1, tokens: 2, what: What::Decided }
    }

    #[test]
    fn effects_are_kept_for_longer_than_a_board_holds() {
        let mut effects = Effects::default();
        for time in [1.0, 2.0, 5.5] {
            effects.push(effect(time));
        }
        assert_eq!(effects.next(), 3);
        assert!(effects.since(0).is_none(), "the first is not kept");
        let times: Vec<f64> = effects.since(1).unwrap().map(|one| one.time).collect();
        assert_eq!(times, [2.0, 5.5]);
        assert_eq!(effects.since(3).unwrap().count(), 0);
    }

    #[test]
    fn no_more_wait_than_may() {
        let mut waiting = Waiting::new(2, 10);
        waiting.push(Item::Decision(vec![0; 3]), 1);
        assert!(!waiting.is_full());
        waiting.push(Item::Report(vec![0; 3]), 2);
        assert!(waiting.is_full());
        assert_eq!((waiting.take(9).0.len(), waiting.len(), waiting.is_full()), (2, 0, false));
        waiting.push(Item::Decision(vec![0; 10]), 3);
        assert!(waiting.is_full() && !waiting.is_empty());
    }

    #[test]
    fn what_is_taken_in_part_goes_up_to_its_last_effect() {
        let mut waiting = Waiting::new(9, 99);
        for behind in 1..=3 {
            waiting.push(Item::Report(vec![behind as u8]), behind);
        }
        let (taken, behind) = waiting.take(2);
        assert_eq!((taken.len(), behind, waiting.len(), waiting.bytes), (2, Some(2), 1, 1));
        let (taken, behind) = waiting.take(2);
        assert_eq!((taken[0].bytes(), behind), (&[3][..], None), "whatever else has happened");
        assert_eq!(waiting.bytes, 0);
    }
}

//! What was decided and has yet to be booked by Python, and what each decision of late has added to
//! its target.

use std::collections::VecDeque;

/// For how long what a decision has added is kept: longer than anything is decided by a board.
const KEPT_S: f64 = 4.0;
const KEPT_MAX: usize = 65_536;

/// What a decision adds to its target.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Effect {
    pub target: u32,
    pub time: f64,
    pub work_s: f64,
    /// Tokens to be computed; and that the request takes in the end.
    pub uncached: u64,
    pub tokens: u64,
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

/// Decisions as Python reads them, in the order of their numbers; bounded.
pub struct Waiting {
    pub count_max: usize,
    pub bytes_max: usize,
    items: Vec<Vec<u8>>,
    bytes: usize,
}

impl Waiting {
    pub fn new(count_max: usize, bytes_max: usize) -> Self {
        Self { count_max, bytes_max, items: Vec::new(), bytes: 0 }
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

    pub fn push(&mut self, item: Vec<u8>) {
        self.bytes += item.len();
        self.items.push(item);
    }

    pub fn take(&mut self) -> Vec<Vec<u8>> {
        self.bytes = 0;
        std::mem::take(&mut self.items)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn effect(time: f64) -> Effect {
        Effect { target: 1, time, work_s: 0.5, uncached: 1, tokens: 2 }
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
        waiting.push(vec![0; 3]);
        assert!(!waiting.is_full());
        waiting.push(vec![0; 3]);
        assert!(waiting.is_full());
        assert_eq!((waiting.take().len(), waiting.len(), waiting.is_full()), (2, 0, false));
        waiting.push(vec![0; 10]);
        assert!(waiting.is_full() && !waiting.is_empty());
    }
}

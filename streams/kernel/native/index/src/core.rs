//! A prefix index that threads share: the state behind its lock, and where the fold of it is.

use std::collections::BTreeMap;
use std::io::Write;

use parking_lot::{Mutex, RwLock};

use crate::answers::{Answered, Kind, answer};
use crate::hashing::PrefixHasher;
use crate::state::State;

pub struct Core {
    pub hasher: PrefixHasher,
    pub state: RwLock<State>,
    pub positions: Positions,
}

impl Core {
    pub fn new(seed: u64, cleared_at_once: usize) -> Self {
        Self {
            hasher: PrefixHasher::new(seed),
            state: RwLock::new(State::new(cleared_at_once)),
            positions: Positions::default(),
        }
    }

    /// The answer to a plain body; None where it is unusual.
    pub fn answer<'a>(&self, body: &'a [u8], kind: Kind<'a>) -> Option<Answered<'a>> {
        answer(body, kind, &self.hasher, || self.state.read())
    }
}

/// What has been folded of each partition of the log, as an answer says it.
#[derive(Default)]
pub struct Positions(Mutex<Noted>);

#[derive(Default)]
struct Noted {
    offsets: BTreeMap<u32, i64>,
    /// Of all of them; empty where one has changed since.
    text: Vec<u8>,
}

impl Positions {
    /// Everything up to the offset is in the index.
    pub fn note(&self, partition: u32, offset: i64) {
        let mut noted = self.0.lock();
        noted.offsets.insert(partition, offset);
        noted.text.clear();
    }

    /// `partition:offset` of each, with commas between; empty where none was noted.
    pub fn text(&self) -> Vec<u8> {
        let Noted { offsets, text } = &mut *self.0.lock();
        if text.is_empty() {
            for (place, (partition, offset)) in offsets.iter().enumerate() {
                let comma = if place == 0 { "" } else { "," };
                // To a vector, which takes all of it.
                let _ = write!(text, "{comma}{partition}:{offset}");
            }
        }
        text.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::Positions;

    #[test]
    fn positions_are_told_by_rising_partition() {
        let positions = Positions::default();
        assert_eq!(positions.text(), b"");
        positions.note(10, -1);
        positions.note(2, 7);
        assert_eq!(positions.text(), b"2:7,10:-1");
        positions.note(10, 123_456);
        assert_eq!(positions.text(), b"2:7,10:123456");
        assert_eq!(positions.text(), b"2:7,10:123456");
    }
}

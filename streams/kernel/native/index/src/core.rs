//! A prefix index that threads share: the state behind its lock, and where the fold of it is.

use std::collections::BTreeMap;
use std::io::Write;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use parking_lot::{Mutex, RwLock};

use crate::audit::Queue;
use crate::hashing::PrefixHasher;
use crate::state::State;

pub struct Core {
    pub hasher: PrefixHasher,
    pub state: RwLock<State>,
    pub positions: Positions,
    /// Where answers are kept, if they are.
    pub audit: OnceLock<Arc<Queue>>,
    /// Writes that may have changed answers; each is counted before it takes the state's lock.
    writes: AtomicU64,
}

impl Core {
    pub fn new(seed: u64, cleared_at_once: usize, waiting_max: u64, left_out_max: u64) -> Self {
        Self {
            hasher: PrefixHasher::new(seed),
            state: RwLock::new(State::new(cleared_at_once, waiting_max, left_out_max)),
            positions: Positions::default(),
            audit: OnceLock::new(),
            writes: AtomicU64::new(0),
        }
    }

    /// A write that may change answers begins. By the one thread that writes.
    pub fn begin_write(&self) {
        self.writes.fetch_add(1, Ordering::Release);
    }

    /// Everything up to the offset is in the index. By the thread that has written it.
    pub fn note_position(&self, partition: u32, offset: i64) {
        self.positions.note(partition, offset, self.writes.load(Ordering::Acquire));
    }

    /// How many writes have begun, and where the fold stands; None while a record is half folded.
    ///
    /// Whoever holds the state's lock for reading meanwhile sees the table as of exactly there: no
    /// write has begun since the position was noted, and none begins that it could see. A fold of
    /// records that changed no answer may have moved the position on.
    pub fn settled(&self) -> Option<(u64, Vec<(u32, i64)>)> {
        let writes = self.writes.load(Ordering::Acquire);
        self.positions.after(writes).map(|offsets| (writes, offsets))
    }
}

/// What has been folded of each partition of the log, as an answer says it.
#[derive(Default)]
pub struct Positions(Mutex<Noted>);

#[derive(Default)]
struct Noted {
    offsets: BTreeMap<u32, i64>,
    /// How many writes had begun.
    writes: u64,
    /// Of all of them; empty where one has changed since.
    text: Vec<u8>,
}

impl Positions {
    fn note(&self, partition: u32, offset: i64, writes: u64) {
        let mut noted = self.0.lock();
        noted.offsets.insert(partition, offset);
        noted.writes = writes;
        noted.text.clear();
    }

    /// Those that were noted after so many writes; None where there is none, or others were.
    fn after(&self, writes: u64) -> Option<Vec<(u32, i64)>> {
        let noted = self.0.lock();
        let is_settled = noted.writes == writes && !noted.offsets.is_empty();
        is_settled.then(|| noted.offsets.iter().map(|(&at, &offset)| (at, offset)).collect())
    }

    /// `partition:offset` of each, with commas between; empty where none was noted.
    pub fn text(&self) -> Vec<u8> {
        let Noted { offsets, text, .. } = &mut *self.0.lock();
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
    use super::{Core, Positions};
    use crate::limits::CLEARED_AT_ONCE_MAX;

    #[test]
    fn positions_are_told_by_rising_partition() {
        let positions = Positions::default();
        assert_eq!(positions.text(), b"");
        positions.note(10, -1, 0);
        positions.note(2, 7, 0);
        assert_eq!(positions.text(), b"2:7,10:-1");
        positions.note(10, 123_456, 0);
        assert_eq!(positions.text(), b"2:7,10:123456");
        assert_eq!(positions.text(), b"2:7,10:123456");
    }
    #[test]
    fn nothing_is_settled_between_a_write_and_the_position_behind_it() {
        let core = Core::new(1, CLEARED_AT_ONCE_MAX, 1000, 1000);
        assert_eq!(core.settled(), None, "nothing was noted");
        core.note_position(0, -1);
        assert_eq!(core.settled(), Some((0, vec![(0, -1)])));
        core.begin_write();
        core.begin_write();
        assert_eq!(core.settled(), None);
        core.note_position(0, 3);
        assert_eq!(core.settled(), Some((2, vec![(0, 3)])));
        core.note_position(0, 4); // a record that wrote nothing
        assert_eq!(core.settled(), Some((2, vec![(0, 4)])));
    }
}

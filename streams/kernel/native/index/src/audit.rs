//! Answers that are kept, to be derived again from the log later: which of them, and a bounded queue
//! of what they were. `schemas/answer_records.py` documents the bytes.
//!
//! An answer never waits for whoever takes them: what finds no room is counted and dropped.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};

use msgpack::write;
use parking_lot::Mutex;

use crate::names::ScopeRef;
use crate::walk::{InstanceDepths, Walked};

/// What time, state and number of an answer take, about.
const TAIL_BYTES: usize = 64;
/// Numbers and tags of an answer, beside names, hashes and instances, about.
const HEAD_BYTES: usize = 128;
const INSTANCE_BYTES: usize = 64;

/// What is asked of many threads.
pub struct Queue {
    rate: f64,
    bytes_max: usize,
    chunk_bytes: usize,
    draws: AtomicU64,
    waiting: Mutex<Waiting>,
}

/// Encoded answers, one behind the other.
#[derive(Debug, Default, PartialEq)]
pub struct Chunk {
    pub answers: usize,
    pub bytes: Vec<u8>,
}

#[derive(Default)]
struct Waiting {
    chunks: VecDeque<Chunk>,
    bytes: usize,
    /// Of the next answer, kept or not.
    sequence: u64,
    counts: Counts,
}

/// Since the queue was made.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Counts {
    /// Found room.
    pub kept: u64,
    /// Found none.
    pub dropped: u64,
    /// Given while a record was half folded: no position has them.
    pub unsettled: u64,
}

impl Queue {
    /// `rate`: the share that is kept, from 0 to 1. A chunk that has `chunk_bytes` takes no more
    /// answers: it becomes one record.
    pub fn new(rate: f64, bytes_max: usize, chunk_bytes: usize) -> Self {
        let (draws, waiting) = (AtomicU64::new(0), Mutex::default());
        Self { rate, bytes_max, chunk_bytes, draws, waiting }
    }

    /// Whether the next answer is one of those that are kept: by a hash of its number, so that
    /// nothing of the answer decides it, and it decides nothing of the answer.
    pub fn draw(&self) -> bool {
        let number = self.draws.fetch_add(1, Ordering::Relaxed);
        ((mixed(number) >> 11) as f64) < self.rate * (1u64 << 53) as f64
    }

    /// Keeps an answer (`encode`), given at `time`, Unix seconds, in this state.
    pub fn push(&self, answer: &[u8], time: f64, state: &str) {
        let mut tail = Vec::with_capacity(TAIL_BYTES);
        write::float(&mut tail, time);
        write::str(&mut tail, state);
        let mut waiting = self.waiting.lock();
        write::uint(&mut tail, waiting.number());
        let size = answer.len() + tail.len();
        if waiting.bytes + size > self.bytes_max {
            waiting.counts.dropped += 1;
            return;
        }
        if waiting.chunks.back().is_none_or(|chunk| chunk.bytes.len() >= self.chunk_bytes) {
            waiting.chunks.push_back(Chunk::default());
        }
        let Some(chunk) = waiting.chunks.back_mut() else { return };
        chunk.bytes.extend_from_slice(answer);
        chunk.bytes.extend_from_slice(&tail);
        chunk.answers += 1;
        waiting.bytes += size;
        waiting.counts.kept += 1;
    }

    /// Counts one that was given while a record was half folded.
    pub fn note_unsettled(&self) {
        let mut waiting = self.waiting.lock();
        waiting.number();
        waiting.counts.unsettled += 1;
    }

    /// What was kept since the last call.
    pub fn take(&self) -> Vec<Chunk> {
        let mut waiting = self.waiting.lock();
        waiting.bytes = 0;
        let chunks = std::mem::take(&mut waiting.chunks);
        drop(waiting);
        chunks.into()
    }

    pub fn counts(&self) -> Counts {
        self.waiting.lock().counts
    }
}

impl Waiting {
    fn number(&mut self) -> u64 {
        let sequence = self.sequence;
        self.sequence += 1;
        sequence
    }
}

/// `SplitMix64`.
fn mixed(number: u64) -> u64 {
    let mixed = number.wrapping_add(1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    let mixed = (mixed ^ mixed >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
    mixed ^ mixed >> 31
}

/// What one answer was, beside what its walk found.
pub struct Told<'a> {
    pub positions: &'a [(u32, i64)],
    pub scope: ScopeRef<'a>,
    pub instance_id: Option<&'a str>,
    pub hits_only: bool,
    /// Of the prompt.
    pub tokens: usize,
    /// Prefix hashes, u64 LE: at least those that the walk needed.
    pub hashes: &'a [u8],
}

/// An answer as it is pushed: all but its time, its state and its number.
pub fn encode(told: &Told, walked: Option<&Walked>) -> Vec<u8> {
    let listed = walked.map_or(0, |walked| walked.listed(told.hits_only));
    let hit_tokens = walked.map_or(0, Walked::most);
    let mut bytes =
        Vec::with_capacity(HEAD_BYTES + told.hashes.len() + INSTANCE_BYTES * (1 + listed));
    write::array(&mut bytes, 10);
    write::array(&mut bytes, told.positions.len());
    for &(partition, offset) in told.positions {
        write::array(&mut bytes, 2);
        write::uint(&mut bytes, partition.into());
        write::int(&mut bytes, offset.into());
    }
    let ScopeRef { tenant_id, model_name, lora_name, block_size, additional_salt } = told.scope;
    write::array(&mut bytes, 5);
    for name in [tenant_id, model_name, lora_name] {
        write::str(&mut bytes, name);
    }
    write::uint(&mut bytes, block_size.into());
    write::str(&mut bytes, additional_salt);
    match told.instance_id {
        Some(name) => write::str(&mut bytes, name),
        None => write::nil(&mut bytes),
    }
    write::bool(&mut bytes, told.hits_only);
    write::uint(&mut bytes, told.tokens as u64);
    let needed = 8 * (hit_tokens / u64::from(block_size.max(1)) + 1) as usize;
    write::bin(&mut bytes, &told.hashes[..needed.min(told.hashes.len())]);
    write::array(&mut bytes, listed);
    if let Some(walked) = walked {
        let written = walked.write_parts(
            &mut bytes,
            told.hits_only,
            |misses| &misses.audited,
            |to, instance| {
                encode_instance(to, instance);
                Some(())
            },
        );
        written.expect("any name is kept");
    }
    bytes
}

fn encode_instance(to: &mut Vec<u8>, instance: &InstanceDepths) {
    write::array(to, 6);
    write::str(to, &instance.instance_id);
    for depth in instance.depths {
        write::uint(to, depth);
    }
    write::array(to, instance.ranks.len());
    for rank in &instance.ranks {
        write::array(to, 5);
        write::uint(to, rank.dp_rank.into());
        for depth in rank.depths {
            write::uint(to, depth);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_none_or_about_a_share_is_drawn() {
        let drawn = |rate| {
            let queue = Queue::new(rate, 0, 0);
            (0..10_000).filter(|_| queue.draw()).count()
        };
        assert_eq!(drawn(0.0), 0);
        assert_eq!(drawn(1.0), 10_000);
        assert!((2_300..2_700).contains(&drawn(0.25)), "{}", drawn(0.25));
    }

    #[test]
    fn answers_are_drawn_by_split_mix() {
        let mut random = crate::random::Random(0);
        let drawn: Vec<u64> = (0..1000).map(mixed).collect();
        assert!(drawn.iter().all(|&number| number == random.next()));
        let rate = (drawn[0] >> 11) as f64 / (1_u64 << 53) as f64;
        assert!(!Queue::new(rate, 0, 0).draw(), "a share is below its bound");
    }

    #[test]
    fn an_answer_that_fills_the_queue_is_kept() {
        let queue = Queue::new(1.0, 14, 1024); // an answer takes 1 + 9 + 3 + 1
        queue.push(b"a", 0.0, "ok");
        queue.push(b"b", 0.0, "ok");
        assert_eq!(queue.counts(), Counts { kept: 1, dropped: 1, unsettled: 0 });
    }

    #[test]
    fn what_finds_no_room_is_counted_and_its_number_is_missing() {
        let queue = Queue::new(1.0, 2 * 14 + 1, 1024); // an answer takes 1 + 9 + 3 + 1
        for answer in [b"a", b"b", b"c", b"d"] {
            queue.push(answer, 0.0, "ok");
        }
        let counts = queue.counts();
        assert_eq!((counts.kept, counts.dropped), (2, 2));
        let taken = queue.take();
        assert_eq!(taken.len(), 1);
        assert_eq!(taken[0].answers as u64, counts.kept);
        assert_eq!(queue.take(), []);
        queue.note_unsettled();
        queue.push(b"e", 0.0, "ok");
        assert_eq!(queue.take()[0].bytes.last(), Some(&5), "its number follows on all of them");
        assert_eq!(queue.counts(), Counts { kept: counts.kept + 1, unsettled: 1, ..counts });
    }

    #[test]
    fn a_full_chunk_takes_no_more() {
        let queue = Queue::new(1.0, 10_000, 1000);
        for _ in 0..3 {
            queue.push(&[0; 1000], 0.0, "ok");
        }
        let answers: Vec<usize> = queue.take().iter().map(|chunk| chunk.answers).collect();
        assert_eq!(answers, [1, 1, 1]);
    }
}

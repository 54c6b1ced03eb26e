//! Changes, 24 bytes each, as `streams/kernel/changes.py` defines them; and the lists not yet
//! taken.

use crate::names::{ContextKey, TIERS};

pub const CHANGE_BYTES: usize = 24;
const OP_SET: u8 = 0;
const OP_CLEAR: u8 = 1;

#[derive(Clone, Copy, Debug)]
pub struct Change {
    pub key: u64,
    pub prefix: u64,
    pub dp_rank: u32,
    pub tier: u32,
    pub clears: bool,
    pub count: u16,
}

impl Change {
    pub fn clear(dp_rank: u32) -> Self {
        Self { key: 0, prefix: 0, dp_rank, tier: 0, clears: true, count: 0 }
    }

    #[inline]
    pub fn encode(&self) -> [u8; CHANGE_BYTES] {
        let mut bytes = [0; CHANGE_BYTES];
        bytes[..8].copy_from_slice(&self.key.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.prefix.to_le_bytes());
        bytes[16..20].copy_from_slice(&self.dp_rank.to_le_bytes());
        bytes[20] = self.tier as u8;
        bytes[21] = if self.clears { OP_CLEAR } else { OP_SET };
        bytes[22..].copy_from_slice(&self.count.to_le_bytes());
        bytes
    }
}

/// Whether an encoded change is a clear.
#[inline]
pub fn clears(change: &[u8; CHANGE_BYTES]) -> bool {
    change[21] == OP_CLEAR
}

/// Decodes changes; None if one of them is none, or the length is no multiple of 24.
pub fn decode(encoded: &[u8]) -> Option<Vec<Change>> {
    let (changes, rest) = encoded.as_chunks::<CHANGE_BYTES>();
    if !rest.is_empty() {
        return None;
    }
    changes.iter().map(decode_one).collect()
}

fn decode_one(bytes: &[u8; CHANGE_BYTES]) -> Option<Change> {
    if u32::from(bytes[20]) >= TIERS || bytes[21] > OP_CLEAR {
        return None;
    }
    Some(Change {
        key: u64_at(bytes, 0),
        prefix: u64_at(bytes, 8),
        dp_rank: u64_at(bytes, 16) as u32,
        tier: u32::from(bytes[20]),
        clears: bytes[21] == OP_CLEAR,
        count: u16::from_le_bytes([bytes[22], bytes[23]]),
    })
}

fn u64_at(bytes: &[u8; CHANGE_BYTES], at: usize) -> u64 {
    let mut word = [0; 8];
    word.copy_from_slice(&bytes[at..at + 8]);
    u64::from_le_bytes(word)
}

struct List {
    key: ContextKey,
    pending: Vec<u8>,
    members: u32,
}

/// The change list of every context. A list lives while it has members or changes.
#[derive(Default)]
pub struct ChangeLists {
    lists: Vec<Option<List>>,
    free: Vec<u32>,
    numbers: hashbrown::HashMap<ContextKey, u32>,
    /// Lists with changes, in the order of their first one.
    changed: Vec<u32>,
    pending: usize,
}

impl ChangeLists {
    pub fn join(&mut self, key: ContextKey) -> u32 {
        if let Some(&number) = self.numbers.get(&key) {
            if let Some(list) = &mut self.lists[number as usize] {
                list.members += 1;
            }
            return number;
        }
        let list = List { key: key.clone(), pending: Vec::new(), members: 1 };
        let number = self.free.pop().unwrap_or(self.lists.len() as u32);
        if number as usize == self.lists.len() {
            self.lists.push(Some(list));
        } else {
            self.lists[number as usize] = Some(list);
        }
        self.numbers.insert(key, number);
        number
    }

    pub fn leave(&mut self, number: u32) {
        if let Some(list) = &mut self.lists[number as usize] {
            list.members -= 1;
        }
        self.drop_unused(number);
    }

    fn drop_unused(&mut self, number: u32) {
        let place = &mut self.lists[number as usize];
        if let Some(list) = place.take_if(|list| list.members == 0 && list.pending.is_empty()) {
            self.numbers.remove(&list.key);
            self.free.push(number);
        }
    }

    #[inline]
    pub fn record(&mut self, number: u32, change: &[u8; CHANGE_BYTES]) {
        if let Some(list) = &mut self.lists[number as usize] {
            if list.pending.is_empty() {
                self.changed.push(number);
            }
            list.pending.extend_from_slice(change);
            self.pending += 1;
        }
    }

    pub fn key(&self, number: u32) -> Option<&ContextKey> {
        self.lists[number as usize].as_ref().map(|list| &list.key)
    }

    pub fn pending(&self) -> usize {
        self.pending
    }

    /// How many contexts they are of.
    pub fn pending_contexts(&self) -> usize {
        self.changed.len()
    }

    pub fn take(&mut self) -> Vec<(ContextKey, Vec<u8>)> {
        self.pending = 0;
        let mut taken = Vec::with_capacity(self.changed.len());
        for number in std::mem::take(&mut self.changed) {
            if let Some(list) = &mut self.lists[number as usize] {
                taken.push((list.key.clone(), std::mem::take(&mut list.pending)));
            }
            self.drop_unused(number);
        }
        taken
    }

    pub fn memory_bytes(&self) -> usize {
        self.lists.iter().flatten().map(|list| list.pending.capacity()).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::{CHANGE_BYTES, Change, ChangeLists, decode};
    use crate::names::{TIERS, test_context};
    use crate::random::Random;

    fn any_change(random: &mut Random) -> Change {
        Change {
            key: random.next(),
            prefix: random.next(),
            dp_rank: random.next() as u32,
            tier: random.below(TIERS as usize) as u32,
            clears: random.below(4) == 0,
            count: random.next() as u16,
        }
    }

    #[test]
    fn a_change_has_its_published_bytes() {
        let change = Change {
            key: 0x0102_0304_0506_0708,
            prefix: 0x1112_1314_1516_1718,
            dp_rank: 0x2122_2324,
            tier: 5,
            clears: false,
            count: 0x3132,
        };
        let bytes = [
            8, 7, 6, 5, 4, 3, 2, 1, 0x18, 0x17, 0x16, 0x15, 0x14, 0x13, 0x12, 0x11, 0x24, 0x23,
            0x22, 0x21, 5, 0, 0x32, 0x31,
        ];
        assert_eq!(change.encode(), bytes);
        assert_eq!(Change::clear(7).encode()[16..], [7, 0, 0, 0, 0, 1, 0, 0]);
    }

    #[test]
    fn changes_are_decoded_as_they_were_encoded_or_not_at_all() {
        let mut random = Random(3);
        for len in 0..50 {
            let changes: Vec<Change> = (0..len).map(|_| any_change(&mut random)).collect();
            let encoded: Vec<u8> = changes.iter().flat_map(Change::encode).collect();
            let decoded = decode(&encoded).expect("changes");
            assert_eq!(decoded.len(), len);
            assert!(decoded.iter().flat_map(Change::encode).eq(encoded.iter().copied()));
            if len > 0 {
                let cut = 1 + random.below(CHANGE_BYTES - 1);
                assert!(decode(&encoded[..encoded.len() - cut]).is_none());
                for (field, value) in [(20, TIERS as u8), (20, 255), (21, 2), (21, 255)] {
                    let mut wrong = encoded.clone();
                    wrong[CHANGE_BYTES * random.below(len) + field] = value;
                    assert!(decode(&wrong).is_none(), "byte {field} is {value}");
                }
            }
        }
    }

    #[test]
    fn memory_is_that_of_what_was_not_taken() {
        let mut lists = ChangeLists::default();
        assert_eq!(lists.memory_bytes(), 0);
        let numbers = ["a", "b"].map(|name| lists.join(test_context(name)));
        for (number, count) in numbers.into_iter().zip([100, 1000]) {
            (0..count).for_each(|_| lists.record(number, &Change::clear(0).encode()));
        }
        let least = 1100 * CHANGE_BYTES;
        assert!((least..3 * least).contains(&lists.memory_bytes()));
        lists.take();
        assert_eq!(lists.memory_bytes(), 0);
    }

    /// One context's list: its members and what was recorded.
    #[derive(Default, Clone)]
    struct Model {
        number: u32,
        members: usize,
        pending: Vec<u8>,
    }

    #[test]
    fn lists_are_those_of_a_model_through_random_use() {
        for seed in 0..8 {
            let mut random = Random(seed);
            let mut lists = ChangeLists::default();
            let mut models = vec![Model::default(); 12];
            let mut order: Vec<usize> = Vec::new();
            for _ in 0..3000 {
                let at = random.below(models.len());
                let model = &mut models[at];
                match random.below(10) {
                    0..=2 => {
                        let number = lists.join(test_context(&at.to_string()));
                        if model.members > 0 || !model.pending.is_empty() {
                            assert_eq!(number, model.number, "a context has one list");
                        }
                        (model.number, model.members) = (number, model.members + 1);
                    }
                    3..=4 if model.members > 0 => {
                        lists.leave(model.number);
                        model.members -= 1;
                    }
                    5..=8 if model.members > 0 => {
                        let change = any_change(&mut random).encode();
                        lists.record(model.number, &change);
                        if model.pending.is_empty() {
                            order.push(at);
                        }
                        model.pending.extend(change);
                    }
                    9 if random.below(20) == 0 => {
                        let expected: Vec<_> = order
                            .drain(..)
                            .map(|at| {
                                (
                                    test_context(&at.to_string()),
                                    std::mem::take(&mut models[at].pending),
                                )
                            })
                            .collect();
                        assert_eq!(lists.take(), expected);
                    }
                    _ => {}
                }
                let bytes: usize = models.iter().map(|model| model.pending.len()).sum();
                assert_eq!(lists.pending() * CHANGE_BYTES, bytes);
                let changed = models.iter().filter(|model| !model.pending.is_empty()).count();
                assert_eq!(lists.pending_contexts(), changed);
                let kept = |model: &&Model| model.members > 0 || !model.pending.is_empty();
                assert_eq!(lists.numbers.len(), models.iter().filter(kept).count());
            }
            assert!(lists.lists.len() <= models.len(), "numbers that are free are used again");
        }
    }
}

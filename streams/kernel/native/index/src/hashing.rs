//! XXH3-64 as the index, the digests and the engine keys use it.

use xxhash_rust::const_xxh3::const_custom_default_secret;
use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_secret, xxh3_64_with_seed};

use crate::changes::CHANGE_BYTES;
use crate::limits::GROUP_MAX;

/// Inputs up to this length mix the seed in directly; longer ones use a secret derived from it.
const SEEDED_BYTES_MAX: usize = 240;

const PRIME64_1: u64 = 0x9E37_79B1_85EB_CA87;
const AVALANCHE: u64 = 0x1656_6791_9E37_79F9;

/// XXH3-64 with one seed. What follows from the seed alone is computed once: the library would
/// derive it on every call. Blocks of 64 bytes (16 tokens) and the links of a chain have their own
/// short form, which halves the time of a query.
pub struct PrefixHasher {
    seed: u64,
    secret: [u8; 192],
    /// The first 64 bytes of the secret, which a 64-byte input is mixed with.
    words: [u64; 8],
    /// What both halves of a link are mixed with.
    link: [u64; 2],
}

impl PrefixHasher {
    pub fn new(seed: u64) -> Self {
        let secret = const_custom_default_secret(seed);
        let words = std::array::from_fn(|i| word_at(&secret, i));
        // A link is mixed with words of the secret without the seed, which the derived one has in
        // it.
        let plain = |i: usize| {
            let word = word_at(&secret, i);
            if i.is_multiple_of(2) { word.wrapping_sub(seed) } else { word.wrapping_add(seed) }
        };
        let link =
            [(plain(3) ^ plain(4)).wrapping_add(seed), (plain(5) ^ plain(6)).wrapping_sub(seed)];
        Self { seed, secret, words, link }
    }

    pub fn seed(&self) -> u64 {
        self.seed
    }

    #[inline]
    pub fn hash(&self, content: &[u8]) -> u64 {
        if let Ok(block) = content.try_into() {
            return self.hash64(block);
        }
        if content.len() <= SEEDED_BYTES_MAX {
            xxh3_64_with_seed(content, self.seed)
        } else {
            xxh3_64_with_secret(content, &self.secret)
        }
    }

    /// `prefix[0] = local[0]; prefix[i] = XXH3(prefix[i-1] LE || local[i] LE)`.
    #[inline]
    pub fn chain(&self, previous: Option<u64>, local: u64) -> u64 {
        let Some(previous) = previous else {
            return local;
        };
        // XXH3 of 9 to 16 bytes.
        let low = previous ^ self.link[0];
        let high = local ^ self.link[1];
        let sum = 16_u64.wrapping_add(low.swap_bytes()).wrapping_add(high);
        avalanche(sum.wrapping_add(fold_product(low, high)))
    }

    /// XXH3 of 17 to 128 bytes, for 64.
    #[inline]
    fn hash64(&self, block: &[u8; 64]) -> u64 {
        let mix = |at: usize, key: usize| {
            fold_product(
                word_at(block, at) ^ self.words[key],
                word_at(block, at + 1) ^ self.words[key + 1],
            )
        };
        let sum = PRIME64_1.wrapping_mul(64).wrapping_add(mix(2, 4)).wrapping_add(mix(4, 6));
        avalanche(sum.wrapping_add(mix(0, 0)).wrapping_add(mix(6, 2)))
    }

    /// The hash of one block: its tokens and what the engine adds to them.
    #[inline]
    pub fn block(&self, tokens: &[u8], extra: &[u8], scratch: &mut Vec<u8>) -> u64 {
        if extra.is_empty() {
            return self.hash(tokens);
        }
        scratch.clear();
        scratch.extend_from_slice(tokens);
        scratch.extend_from_slice(extra);
        self.hash(scratch)
    }

    /// The same of a block of pairs, which the token behind it is of, too.
    #[cold]
    pub fn block_of_pairs(
        &self,
        tokens: &[u8],
        extra: &[u8],
        next: &[u8],
        scratch: &mut Vec<u8>,
    ) -> u64 {
        scratch.clear();
        scratch.extend_from_slice(tokens);
        scratch.extend_from_slice(extra);
        scratch.push(NEXT_TOKEN);
        scratch.extend_from_slice(next);
        self.hash(scratch)
    }
}

/// Stands before the token behind a block; no key begins so, since no msgpack does.
const NEXT_TOKEN: u8 = 0xc1;

/// Of the hashes of blocks' tokens that publishers send: `TOKEN_HASH_SEED` of `schemas/events.py`.
pub const TOKEN_HASH_SEED: u64 = 1337;

#[inline]
fn word_at(bytes: &[u8], index: usize) -> u64 {
    let mut word = [0; 8];
    word.copy_from_slice(&bytes[8 * index..8 * index + 8]);
    u64::from_le_bytes(word)
}

/// The halves of the 128-bit product, folded.
#[inline]
fn fold_product(a: u64, b: u64) -> u64 {
    let product = u128::from(a) * u128::from(b);
    (product as u64) ^ ((product >> 64) as u64)
}

#[inline]
fn avalanche(sum: u64) -> u64 {
    let mixed = (sum ^ sum >> 37).wrapping_mul(AVALANCHE);
    mixed ^ mixed >> 32
}

/// What distinguishes the keys of one cache group from those of another; 0 for group 0.
pub fn group_mask(group: u32) -> u64 {
    if group == 0 { 0 } else { xxh3_64(&group.to_le_bytes()) }
}

/// What distinguishes the key of a block that is left out: XXH3-64 of `left_out`.
pub const LEFT_OUT_MASK: u64 = 0xfa93_eaa4_0580_68f9;

/// With the tier added, what distinguishes the key of the entry that counts how often a block was
/// announced again without saying whether that is a further copy: XXH3-64 of `repeated`.
/// `streams/kernel/reference.py` says what stands where.
pub const REPEATED_MASK: u64 = 0xc76f_d921_dd10_2b32;

/// With the number of a cache group, the key of the entry that says that the group forms prefixes:
/// XXH3-64 of `groups`.
pub const GROUPS_MASK: u64 = 0x45c8_0335_5165_d5c1;

/// With the tier added, what distinguishes the key of the entry that says that a publisher has removed
/// a block from a pool that it had not stored there: XXH3-64 of `pool_removed`.
pub const POOL_MASK: u64 = 0xffa0_6898_bc32_08de;

/// What distinguishes the key of the entry that says that a pool has objects of a block by another hash
/// than this one of an engine, too: XXH3-64 of `hashes_differ`.
pub const HASHES_MASK: u64 = 0xec0a_7ffa_e125_3216;

/// What distinguishes the key under which a pool remembers the block that engines call so: XXH3-64 of
/// `aliases`.
pub const ALIASES_MASK: u64 = 0x6dad_6739_8f62_366b;

/// With the number of a cache group, the key of the entry that says by which rule it is used: XXH3-64
/// of `rules`.
pub const RULES_MASK: u64 = 0x38c2_873a_cee2_54fe;

/// The key of the entry that says that there are groups without a known rule.
pub const UNRULED_KEY: u64 = RULES_MASK ^ (GROUP_MAX as u64 + 1);

/// The share of one live entry in its context's digest.
#[inline]
pub fn entry_digest(change: &[u8; CHANGE_BYTES]) -> u64 {
    xxh3_64(change)
}

/// Places a 64-bit key in a table. XXH3 with a public seed resists no adversary, and engines name
/// their blocks as they like, so the place depends on secrets of this process; no answer does.
#[derive(Clone, Copy)]
pub struct Placement {
    mask: u64,
    factor: u64,
}

impl Placement {
    pub fn random() -> Self {
        use std::hash::{BuildHasher, Hasher};
        let secret = || std::collections::hash_map::RandomState::new().build_hasher().finish();
        Self::of_secrets(secret(), secret())
    }

    fn of_secrets(mask: u64, factor: u64) -> Self {
        Self { mask, factor: factor | 1 }
    }

    #[inline]
    pub fn of(self, key: u64) -> u64 {
        // One product, folded, is not enough: of multiples of a divisor of 2^64 - 1, as of a number
        // that is written four times, both halves are alike, whatever they are multiplied with.
        let mixed = (key ^ self.mask).wrapping_mul(self.factor);
        // Folded, each bit of the place depends on each bit of what is mixed.
        fold_product(mixed ^ mixed >> 32, self.mask | 1)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use xxhash_rust::xxh3::xxh3_64_with_seed;

    use super::{Placement, PrefixHasher, group_mask};
    use crate::random::Random;

    const SEEDS: [u64; 5] = [0, 1, 1337, 1 << 63, u64::MAX];

    #[test]
    fn the_short_forms_equal_the_library_at_every_length() {
        let mut random = Random(1);
        let content: Vec<u8> = (0..1100).map(|_| random.next() as u8).collect();
        for seed in SEEDS {
            let hasher = PrefixHasher::new(seed);
            for len in 0..content.len() {
                let content = &content[content.len() - len..];
                assert_eq!(hasher.hash(content), xxh3_64_with_seed(content, seed), "{len} bytes");
            }
        }
    }

    #[test]
    fn a_link_is_the_hash_of_its_sixteen_bytes() {
        let mut random = Random(2);
        for seed in SEEDS {
            let hasher = PrefixHasher::new(seed);
            for _ in 0..1000 {
                let (previous, local) = (random.next(), random.next());
                let bytes = [previous.to_le_bytes(), local.to_le_bytes()].concat();
                let link = hasher.chain(Some(previous), local);
                assert_eq!(link, xxh3_64_with_seed(&bytes, seed));
                assert_eq!(hasher.chain(None, local), local);
            }
        }
    }

    #[test]
    fn an_extra_key_is_hashed_after_the_tokens() {
        let hasher = PrefixHasher::new(9);
        let mut scratch = b"left from the block before".to_vec();
        for tokens in [&[1; 64][..], &[2; 16], &[3; 400]] {
            assert_eq!(hasher.block(tokens, b"", &mut scratch), hasher.hash(tokens));
            let whole = [tokens, b"salt"].concat();
            assert_eq!(hasher.block(tokens, b"salt", &mut scratch), hasher.hash(&whole));
        }
    }

    #[test]
    fn groups_have_masks_of_their_own_but_for_the_first() {
        assert_eq!(group_mask(0), 0);
        assert_eq!((0..1000).map(group_mask).collect::<HashSet<_>>().len(), 1000);
    }

    #[test]
    fn consecutive_keys_are_placed_apart() {
        let placement = Placement::random();
        for shift in [0, 8, 32, 56] {
            // The low bits choose the line, the top eight are the tag.
            let places: HashSet<u64> =
                (0..256_u64).map(|key| placement.of(key << shift) & 0xffff).collect();
            assert!(places.len() > 128, "shift {shift}: {} places of 256 keys", places.len());
        }
    }

    /// How unevenly keys are placed in the lines of eight shards: 1 as by chance.
    fn unevenness(placement: Placement, keys: impl Iterator<Item = u64>) -> f64 {
        let (mut found, mut count) = (vec![0_u32; 1 << 14], 0_u32);
        for key in keys {
            let place = placement.of(key);
            found[(place & 0x7ff | place >> 42 & 0x3800) as usize] += 1;
            count += 1;
        }
        let mean = f64::from(count) / found.len() as f64;
        let squares: f64 = found.iter().map(|&found| (f64::from(found) - mean).powi(2)).sum();
        squares / f64::from(count)
    }

    /// Engines choose their keys, and so can make a table slow where it shows in the places.
    #[test]
    fn no_form_of_keys_is_placed_less_evenly_than_by_chance() {
        let bits_of = |bits: [u32; 16]| {
            move |n: u64| (0..16).map(|i| (n >> i & 1) << bits[i as usize]).sum::<u64>()
        };
        type Form = Box<dyn Fn(u64) -> u64>;
        let forms: [(&str, Form); 7] = [
            ("by chance", Box::new(|n| Random(n).next())),
            ("a number four times", Box::new(|n| n * 0x0001_0001_0001_0001)),
            ("a multiple of (2^64 - 1) / 65537", Box::new(|n| n * (u64::MAX / 65_537))),
            ("all but for two numbers", Box::new(|n| !n.wrapping_mul(0x0001_0000_0000_0001))),
            ("one after the other", Box::new(|n| n)),
            ("high numbers", Box::new(|n| n << 47)),
            (
                "some bits",
                Box::new(bits_of([45, 16, 60, 47, 4, 46, 20, 48, 0, 2, 43, 59, 24, 26, 49, 37])),
            ),
        ];
        let mut random = Random(3);
        for _ in 0..6 {
            let placement = Placement::of_secrets(random.next(), random.next());
            for (name, key_of) in &forms {
                let uneven = unevenness(placement, (1..60_000).map(key_of));
                assert!(uneven < 1.5, "{name}: {uneven} times as uneven");
            }
        }
    }
}

//! XXH3-64 as the index, the digests and the engine keys use it.

use xxhash_rust::const_xxh3::const_custom_default_secret;
use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_secret, xxh3_64_with_seed};

/// Inputs up to this length mix the seed in directly; longer ones use a secret derived from it.
const SEEDED_BYTES_MAX: usize = 240;

/// XXH3-64 with one seed. The long-input secret is derived once: the library would do so on every call.
pub struct PrefixHasher {
    seed: u64,
    secret: [u8; 192],
}

impl PrefixHasher {
    pub fn new(seed: u64) -> Self {
        Self { seed, secret: const_custom_default_secret(seed) }
    }

    pub fn seed(&self) -> u64 {
        self.seed
    }

    #[inline]
    pub fn hash(&self, content: &[u8]) -> u64 {
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
        let mut link = [0; 16];
        link[..8].copy_from_slice(&previous.to_le_bytes());
        link[8..].copy_from_slice(&local.to_le_bytes());
        xxh3_64_with_seed(&link, self.seed)
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
}

/// What distinguishes the keys of one cache group from those of another; 0 for group 0.
pub fn group_mask(group: u32) -> u64 {
    if group == 0 { 0 } else { xxh3_64(&group.to_le_bytes()) }
}

/// The share of one live entry in its context's digest.
#[inline]
pub fn entry_digest(change: &[u8; 24]) -> u64 {
    xxh3_64(change)
}

/// Places a 64-bit key in a table. XXH3 with a public seed resists no adversary, so the place depends on
/// a secret of this process; no answer does.
#[derive(Clone, Copy)]
pub struct Placement(u64);

impl Placement {
    pub fn random() -> Self {
        use std::hash::{BuildHasher, Hasher};
        let secret = std::collections::hash_map::RandomState::new().build_hasher().finish();
        Self(secret | 1)
    }

    #[inline]
    pub fn of(self, key: u64) -> u64 {
        // High and low half folded: each bit of the place depends on each bit of the key.
        let product = u128::from(key) * u128::from(self.0);
        (product as u64) ^ ((product >> 64) as u64)
    }
}

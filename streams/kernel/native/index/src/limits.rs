//! The bounds that the kernel shares with the service; a contract test compares their
//! effects.

/// How often one publisher may announce a block on a tier; the field in a change is a u16.
pub const HOLD_COUNT_MAX: u16 = u16::MAX;
/// Cache groups above it are not remembered as skipped, nor more of them as forming prefixes.
pub const GROUP_MAX: u32 = 63;
pub const QUERY_TOKENS_MAX: usize = 4 * 1024 * 1024;
pub const BLOCK_SIZE_MAX: u64 = 65_536;
pub const NAME_BYTES_MAX: usize = 1024;

/// Entries that a clear releases itself; of more it hides all, and releases them in slices later.
/// `MAINTAINED_ENTRIES` in `schemas/limits.py` is how large the slices are while there is no write.
pub const CLEARED_AT_ONCE_MAX: usize = 4096;

/// Scopes in which a clear releases its entries itself, likewise: one for each LoRA adapter.
pub const CLEARED_SCOPES_AT_ONCE_MAX: usize = 64;

/// What the end of a cleared publisher's part in a scope counts as, in entries: it takes some 4 us
/// where the scope goes with it.
pub const ENDED_ENTRIES: usize = 16;

/// Holder sets of a scope above which a clear hides nothing: it looks at each, which takes about as
/// long as to release a block.
pub const HIDDEN_SETS_MAX: usize = 131_072;

/// Entries of a large clear that each write releases at the least; twice as many as it names blocks,
/// and ENDED_ENTRIES for each membership that it makes: in proportion to what it costs itself.
pub const RELEASED_BESIDE_MIN: usize = 64;

/// Blocks of one publisher that may wait for an engine, by adapter.
pub const WAITING_MAX: u64 = 1 << 20;

/// Blocks of one publisher that are left out, and for how many reasons.
pub const LEFT_OUT_BLOCKS_MAX: u64 = 65_536;
pub const LEFT_OUT_REASONS_MAX: usize = 16;
pub const LEFT_OUT_REASON_BYTES_MAX: usize = 64;
/// One in so many of them may be of a block that answers count all the same.
pub const COPIES_KEPT_SHARE: u64 = 64;

/// Blocks that a writer folds before it lets waiting queries in: about 0.1 ms of work.
pub const TURN_BLOCKS: usize = 512;

//! The prefix index: which publisher holds which KV-cache blocks, found by the tokens of a prompt.
//!
//! Without Python, so that `cargo test` needs none. `streams/kernel/reference.py` is its
//! specification, for `scan` it is `streams/kernel/scan.py`. From the outside in:
//!
//!     write, walk, views  writes in turns, queries, and what is shown
//!     core                all of it, for threads to share, and where its fold is
//!     engine_hashes       the query by what engines call their blocks
//!     answers             a query's answer as text
//!     audit               answers that are kept, to be derived again later
//!     events              canonical block events, borrowed from their bytes
//!     scan, bodies, urls  a query's body in JSON, in msgpack, and as octets with a URL
//!     state, entries      publishers and scopes; the elementary steps on a `block`
//!     scope               blocks of a scope (`slots`), their holders (`sets`, `masks`), its ranks
//!     roster              whom the answers of a scope name
//!     publisher, moves    a publisher, and its blocks that change their tier
//!     memberships         its parts in scopes
//!     entry_table         what a publisher calls its blocks
//!     waiting             objects of a pool that are yet to be joined to a block
//!     left_out            what a publisher holds and no answer counts
//!     groups              cache groups that form prefixes, and whether they agree
//!     sparse_groups       cache groups of which the end of a prefix needs the last blocks
//!     sparse_walk         what they leave usable of it
//!     leaving             what was cleared and is yet to be released
//!     changes, counters   what a write leaves to be taken and shown
//!     selection           of changes those that are of some blocks
//!     dumps               all entries of a context, in slices
//!     tables, lines       hash tables in shards, and a shard
//!     hashing             XXH3-64
//!     names, limits       keys, tiers and bounds

#![deny(clippy::all)]
#![forbid(unsafe_code)]

pub mod answers;
pub mod audit;
mod block;
mod bodies;
pub mod changes;
pub mod core;
pub mod counters;
pub mod dumps;
pub mod engine_hashes;
mod entries;
mod entry_table;
pub mod events;
mod groups;
pub mod hashing;
mod leaving;
mod left_out;
pub mod limits;
mod lines;
mod masks;
mod memberships;
mod moves;
pub mod names;
mod publisher;
mod query_fields;
#[cfg(test)]
mod random;
mod roster;
#[cfg(test)]
mod sample_events;
pub mod scan;
mod scope;
pub mod selection;
mod sets;
mod slots;
mod sparse_groups;
mod sparse_walk;
pub mod state;
mod tables;
mod urls;
pub mod views;
mod waiting;
pub mod walk;
pub mod write;

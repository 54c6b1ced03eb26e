//! What engines publish, packed for records. `schemas/arrays.py` and `bridge/wire/` are the
//! specification, in Python:
//!
//!     batches     a whole batch, to the canonical events of a record
//!     layout      which fields the events of a kind of publisher have
//!     extra_keys  what enters a block's hash beside its tokens
//!     arrays      hashes and tokens
//!     runs        batches that follow on one another
//!     parts       a large batch cut into several

#![deny(clippy::all)]
#![forbid(unsafe_code)]

pub mod arrays;
pub mod batches;
mod extra_keys;
pub mod layout;
pub mod parts;
pub mod runs;

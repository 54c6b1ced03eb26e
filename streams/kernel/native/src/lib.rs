//! The prefix index: which publisher holds which KV-cache blocks, found by the tokens of a prompt.
//!
//! `streams/kernel/reference.py` is its specification. From the outside in:
//!
//!     python              the classes `Kernel` and `ArrayPacker`
//!     convert, tuples     Python values in and out
//!     fold, walk, views   writes in turns, queries, and what is shown
//!     events, msgpack     canonical block events, borrowed from their bytes
//!     scan, arrays        a query's JSON body; the engines' number arrays
//!     state, entries      publishers and scopes; the elementary steps
//!     scope               blocks of a scope (`rows`), their holders (`sets`, `masks`), its ranks
//!     publisher           what a publisher calls its blocks
//!     tables, hashing     sharded hash tables; XXH3-64

#![deny(clippy::all)]
#![deny(unsafe_code)]

mod arrays;
mod changes;
mod convert;
mod entries;
mod events;
mod fold;
mod hashing;
mod limits;
mod masks;
mod msgpack;
mod names;
mod publisher;
mod python;
mod rows;
mod scan;
mod scope;
mod sets;
mod state;
mod tables;
mod tuples;
mod views;
mod walk;

#[pyo3::pymodule]
mod _native {
    #[pymodule_export]
    use crate::python::{ArrayPacker, Kernel};
}

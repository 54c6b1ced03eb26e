//! msgpack: `read` borrows, and checks all that it reads; `write` writes each value in its shortest
//! form, as msgspec does.

#![deny(clippy::all)]
#![forbid(unsafe_code)]

mod read;
pub mod write;

pub use read::{Malformed, Reader, Result};

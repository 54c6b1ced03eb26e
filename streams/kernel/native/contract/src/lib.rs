//! Nothing: see `tests/python.rs`.

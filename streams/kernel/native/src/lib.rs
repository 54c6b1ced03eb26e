//! The Python module `streams.kernel._native`: the prefix index (`index/`) for Python.
//!
//!     python              the classes `Kernel` and `ArrayPacker`
//!     convert, tuples     Python values in and out

#![deny(clippy::all)]
#![deny(unsafe_code)]

mod convert;
mod python;
mod tuples;

#[pyo3::pymodule]
mod _native {
    #[pymodule_export]
    use crate::python::{ArrayPacker, Kernel};
}

//! Named tuples made without their constructor.
//!
//! An answer for 256 instances is 512 named tuples. Through `tuple.__new__` each takes three tuples
//! more, and making the answer took ten times as long as finding it; this way it takes half of
//! that.

#![allow(unsafe_code)]

use pyo3::exceptions::PyTypeError;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyTuple, PyType};

/// A subclass of tuple whose instances have no state but their elements.
pub struct TupleClass(Py<PyType>);

impl TupleClass {
    /// The named tuple of that name.
    pub fn import(module: &Bound<'_, PyModule>, name: &str) -> PyResult<Self> {
        let class = module.getattr(name)?.cast_into::<PyType>()?;
        let plain = module.py().get_type::<PyTuple>();
        let size = |of: &Bound<'_, PyType>| of.getattr("__basicsize__")?.extract::<usize>();
        if !class.is_subclass(&plain)? || size(&class)? != size(&plain)? {
            return Err(PyTypeError::new_err(format!("Expected a named tuple, got `{name}`")));
        }
        Ok(Self(class.unbind()))
    }

    pub fn make<'py, const N: usize>(
        &self,
        py: Python<'py>,
        fields: [Bound<'py, PyAny>; N],
    ) -> PyResult<Bound<'py, PyAny>> {
        let class = self.0.bind(py).as_type_ptr();
        // SAFETY: `import` checked that the class is a tuple's with nothing added, so this
        // allocates a tuple of N empty places, as `tuple.__new__` does. Nobody else refers to it
        // yet, which `PyTuple_SetItem` demands; it takes over each field, also where it fails.
        unsafe {
            let made = ffi::PyType_GenericAlloc(class, N as ffi::Py_ssize_t);
            let made = Bound::from_owned_ptr_or_err(py, made)?;
            for (at, field) in fields.into_iter().enumerate() {
                if ffi::PyTuple_SetItem(made.as_ptr(), at as isize, field.into_ptr()) != 0 {
                    return Err(PyErr::fetch(py));
                }
            }
            Ok(made)
        }
    }
}

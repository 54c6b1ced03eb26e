//! The class `AuditQueue`. `streams/kernel/interface.py` documents every method.

use std::sync::Arc;

use prefix_index::audit::{Counts, Queue};
use pyo3::prelude::*;
use pyo3::types::PyBytes;

#[pyclass(frozen, module = "streams.kernel._native")]
pub struct AuditQueue(pub Arc<Queue>);

#[pymethods]
impl AuditQueue {
    #[new]
    #[pyo3(signature = (rate, bytes_max, chunk_bytes, /))]
    fn new(rate: f64, bytes_max: usize, chunk_bytes: usize) -> Self {
        Self(Arc::new(Queue::new(rate, bytes_max, chunk_bytes)))
    }

    fn draw(&self) -> bool {
        self.0.draw()
    }

    #[pyo3(signature = (answer, time, state, /))]
    fn push(&self, answer: &[u8], time: f64, state: &str) {
        self.0.push(answer, time, state);
    }

    fn note_unsettled(&self) {
        self.0.note_unsettled();
    }

    fn take<'py>(&self, py: Python<'py>) -> Vec<(usize, Bound<'py, PyBytes>)> {
        let taken = self.0.take().into_iter();
        taken.map(|chunk| (chunk.answers, PyBytes::new(py, &chunk.bytes))).collect()
    }

    fn counts(&self) -> (u64, u64, u64) {
        let Counts { kept, dropped, unsettled } = self.0.counts();
        (kept, dropped, unsettled)
    }
}

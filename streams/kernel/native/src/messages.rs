//! The class `MessageRun`: messages of one publisher in one buffer, without a Python object for each
//! of them or their frames. `schemas.arrays` documents every method.

use std::sync::Arc;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList};

/// Topic, number, payload.
const FRAMES: usize = 3;
const NUMBER: usize = 1;
const NUMBER_BYTES: usize = 8;

/// Whole messages of so many frames, one after the other.
#[derive(Default)]
pub struct Messages {
    bytes: Vec<u8>,
    /// Where each frame ends.
    ends: Vec<usize>,
}

/// Where a message begins.
pub struct Mark {
    bytes: usize,
    frames: usize,
}

impl Messages {
    pub fn mark(&self) -> Mark {
        Mark { bytes: self.bytes.len(), frames: self.ends.len() }
    }

    /// Appends the next frame of the message that began at the mark; false where that is no message
    /// of a run, so that nothing was appended.
    pub fn push(&mut self, mark: &Mark, frame: &[u8], more: bool, bytes_max: usize) -> bool {
        let place = self.ends.len() - mark.frames;
        let is_plain = place < FRAMES
            && more == (place < FRAMES - 1)
            && (place != NUMBER || frame.len() == NUMBER_BYTES)
            && self.bytes.len() - mark.bytes + frame.len() <= bytes_max;
        if is_plain {
            self.bytes.extend_from_slice(frame);
            self.ends.push(self.bytes.len());
        }
        is_plain
    }

    /// Takes back what was appended since the mark; its frames.
    pub fn take_back<'py>(&mut self, py: Python<'py>, mark: &Mark) -> PyResult<Bound<'py, PyList>> {
        let frames = self.frames(py, mark.frames, self.ends.len())?;
        self.forget(mark);
        Ok(frames)
    }

    pub fn forget(&mut self, mark: &Mark) {
        self.ends.truncate(mark.frames);
        self.bytes.truncate(mark.bytes);
    }

    pub fn len(&self) -> usize {
        self.ends.len() / FRAMES
    }

    fn begin(&self, frame: usize) -> usize {
        if frame == 0 { 0 } else { self.ends[frame - 1] }
    }

    fn frame(&self, at: usize) -> &[u8] {
        &self.bytes[self.begin(at)..self.ends[at]]
    }

    fn frames<'py>(
        &self,
        py: Python<'py>,
        first: usize,
        end: usize,
    ) -> PyResult<Bound<'py, PyList>> {
        PyList::new(py, (first..end).map(|at| PyBytes::new(py, self.frame(at))))
    }

    pub fn message<'py>(&self, py: Python<'py>, at: usize) -> PyResult<Bound<'py, PyList>> {
        self.frames(py, FRAMES * at, FRAMES * (at + 1))
    }

    fn size_bytes(&self, first: usize, end: usize) -> usize {
        self.begin(FRAMES * end) - self.begin(FRAMES * first)
    }
}

#[pyclass(frozen, module = "streams.kernel._native")]
pub struct MessageRun {
    messages: Arc<Messages>,
    first: usize,
    end: usize,
}

impl MessageRun {
    pub fn of(mut messages: Messages) -> Self {
        messages.bytes.shrink_to_fit();
        let end = messages.len();
        Self { messages: Arc::new(messages), first: 0, end }
    }

    /// Number and payload of each.
    pub fn batches(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        (self.first..self.end).map(|at| {
            let topic = FRAMES * at;
            (self.messages.frame(topic + NUMBER), self.messages.frame(topic + FRAMES - 1))
        })
    }

    pub fn size_bytes(&self) -> usize {
        self.messages.size_bytes(self.first, self.end)
    }

    fn cut(&self, first: usize, end: usize) -> Self {
        Self { messages: self.messages.clone(), first, end }
    }
}

#[pymethods]
impl MessageRun {
    #[new]
    fn new(messages: Vec<Vec<Vec<u8>>>) -> PyResult<Self> {
        let mut run = Messages::default();
        for frames in messages {
            let mark = run.mark();
            let all = frames.len();
            for (place, frame) in frames.iter().enumerate() {
                if !run.push(&mark, frame, place + 1 < all, usize::MAX) {
                    return Err(PyValueError::new_err(
                        "Expected topic, number of 8 bytes, payload",
                    ));
                }
            }
        }
        Ok(Self::of(run))
    }

    fn __len__(&self) -> usize {
        self.end - self.first
    }

    #[getter(size_bytes)]
    fn all_bytes(&self) -> usize {
        self.size_bytes()
    }

    #[pyo3(signature = (number, /))]
    fn begins(&self, number: u64) -> bool {
        self.batches().next().is_some_and(|(first, _)| first == number.to_be_bytes())
    }

    #[pyo3(signature = (at, /))]
    fn message<'py>(&self, py: Python<'py>, at: usize) -> PyResult<Bound<'py, PyList>> {
        if at >= self.__len__() {
            return Err(PyValueError::new_err(format!("Expected a message, got number {at}")));
        }
        self.messages.message(py, self.first + at)
    }

    #[pyo3(signature = (count, /))]
    fn first(&self, count: usize) -> Self {
        self.cut(self.first, self.end.min(self.first.saturating_add(count)))
    }

    #[pyo3(signature = (count, /))]
    fn after(&self, count: usize) -> Self {
        self.cut(self.end.min(self.first.saturating_add(count)), self.end)
    }

    #[pyo3(signature = (messages_max, bytes_until, bytes_max, /))]
    fn fitting(&self, messages_max: usize, bytes_until: i64, bytes_max: i64) -> usize {
        let most = self.__len__().min(messages_max);
        let size = |count| self.messages.size_bytes(self.first, self.first + count) as i64;
        (0..most)
            .take_while(|&count| size(count) < bytes_until && size(count + 1) <= bytes_max)
            .count()
    }
}

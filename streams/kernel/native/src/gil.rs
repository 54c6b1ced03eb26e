//! When a call lets other Python threads run.
//!
//! Calls longer than about 50 us release the GIL. Shorter ones keep it: getting it back costs up to
//! 5 ms (CPython's switch interval) when other Python threads are busy.

use pyo3::Python;

/// Runs `work` without the GIL if it is long, with it otherwise.
pub fn detached_if<T: Send>(is_long: bool, py: Python<'_>, work: impl FnOnce() -> T + Send) -> T {
    if is_long { py.detach(work) } else { work() }
}

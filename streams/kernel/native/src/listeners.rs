//! The class `Listener`. `query_api/http/listener.py` documents every method.

use std::os::fd::{FromRawFd, IntoRawFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::time::Duration;

use listener::counts::Queries;
use listener::shown::{Service, Verdict};
use listener::{Bounds, Rights};
use prefix_index::core::Core;
use prefix_index::names::ScopeRef;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::boards::RouteBoards;
use crate::python::Kernel;

/// A `query_api.http.listener.Answers`.
struct Answers(Py<PyAny>);

impl Answers {
    /// What a call gives; None where it fails, which the interpreter reports.
    fn ask<T>(&self, call: impl FnOnce(&Bound<'_, PyAny>) -> PyResult<T>) -> Option<T> {
        Python::attach(|py| {
            let object = self.0.bind(py);
            call(object).map_err(|error| error.write_unraisable(py, Some(object))).ok()
        })
    }
}

impl Service for Answers {
    fn core(&self) -> Option<(Arc<Core>, Duration)> {
        self.ask(|answers| {
            let found = answers.call_method0("kernel")?;
            let found: Option<(Py<Kernel>, f64)> = found.extract()?;
            Ok(found.map(|(kernel, seconds)| (kernel.get().core.clone(), duration(seconds))))
        })?
    }

    fn verdict(&self, scope: &ScopeRef) -> Option<Verdict> {
        self.ask(|answers| {
            let ScopeRef { tenant_id, model_name, lora_name, block_size, additional_salt } = scope;
            let scope = (tenant_id, model_name, lora_name, block_size, additional_salt);
            let (state, seconds): (usize, f64) = answers.call_method1("state", scope)?.extract()?;
            Ok(Verdict { state, holds: duration(seconds) })
        })
    }
}

fn duration(seconds: f64) -> Duration {
    Duration::try_from_secs_f64(seconds).unwrap_or_default()
}

type Handed<'py> = (RawFd, Bound<'py, PyBytes>, Bound<'py, PyBytes>, f64, bool);
type Counted = (u64, Vec<u64>, f64, Vec<u64>, f64, u64);

#[pyclass(frozen, module = "streams.kernel._native")]
pub struct Listener(listener::Listener<Answers>);

#[pymethods]
impl Listener {
    #[new]
    #[pyo3(signature = (
        descriptor, answers, *, threads, states, seconds, tokens, body_bytes, bodies_bytes,
        request_s, idle_s, connections, descriptor_max, needs_keys=false, answers_traced=true,
        boards=None,
    ))]
    #[expect(clippy::too_many_arguments, reason = "they are named where it is called")]
    fn new(
        descriptor: RawFd,
        answers: Py<PyAny>,
        threads: usize,
        states: Vec<String>,
        seconds: Vec<f64>,
        tokens: Vec<f64>,
        body_bytes: usize,
        bodies_bytes: usize,
        request_s: f64,
        idle_s: f64,
        connections: usize,
        descriptor_max: RawFd,
        needs_keys: bool,
        answers_traced: bool,
        boards: Option<Py<RouteBoards>>,
    ) -> PyResult<Self> {
        let bounds = Bounds {
            body_bytes,
            bodies_bytes,
            request: duration(request_s),
            idle: duration(idle_s),
            connections,
            descriptor: descriptor_max,
            answers_traced,
        };
        let queries = Queries::new(seconds, tokens);
        let listening = owned(descriptor).into();
        let answers = Answers(answers);
        let started = listener::Listener::start(
            listening,
            threads,
            answers,
            bounds,
            needs_keys,
            states,
            &queries,
            boards.map(|boards| boards.get().0.clone()),
        )?;
        Ok(Self(started))
    }

    #[getter]
    fn bell(&self) -> RawFd {
        self.0.bell()
    }

    #[getter]
    fn open(&self) -> usize {
        self.0.open()
    }

    #[getter]
    fn held_bytes(&self) -> usize {
        self.0.held_bytes()
    }

    fn take<'py>(&self, py: Python<'py>) -> Vec<Handed<'py>> {
        let taken = self.0.take().into_iter().map(|handed| {
            let bytes = |of: &[u8]| PyBytes::new(py, of);
            let (received, unsent) = (bytes(&handed.received), bytes(&handed.unsent));
            let age = handed.age.as_secs_f64();
            (handed.descriptor.into_raw_fd(), received, unsent, age, handed.is_last)
        });
        taken.collect()
    }

    #[pyo3(signature = (descriptor, served, has_room, /))]
    fn give(&self, descriptor: RawFd, served: bool, has_room: bool) {
        self.0.give(owned(descriptor).into(), served, has_room);
    }

    fn close_idle(&self) {
        self.0.close_idle();
    }

    fn change(&self) {
        self.0.change();
    }

    #[pyo3(signature = (field, seconds, queries, routes, reports, tenants, /))]
    fn admit(
        &self,
        field: &[u8],
        seconds: f64,
        queries: bool,
        routes: bool,
        reports: bool,
        tenants: Option<Vec<String>>,
    ) {
        self.0.admit(field, duration(seconds), Rights { queries, routes, reports }, tenants);
    }

    fn forget_admitted(&self) {
        self.0.forget_admitted();
    }

    fn take_admitted<'py>(&self, py: Python<'py>) -> Vec<(Bound<'py, PyBytes>, u64)> {
        let taken = self.0.take_admitted().into_iter();
        taken.map(|(field, answered)| (PyBytes::new(py, &field), answered)).collect()
    }

    #[pyo3(signature = (count, /))]
    fn note_others(&self, count: usize) {
        self.0.note_others(count);
    }

    fn take_counted(&self) -> Vec<Counted> {
        let numbers = |queries: Queries| {
            let Queries { answered, seconds, tokens, hit_tokens } = queries;
            (answered, seconds.counts, seconds.sum, tokens.counts, tokens.sum, hit_tokens)
        };
        self.0.take_counted().map(numbers).into()
    }

    fn take_ended(&self) -> (usize, usize) {
        self.0.take_ended()
    }

    fn stop(&self, py: Python<'_>) {
        py.detach(|| self.0.stop());
    }
}

/// A descriptor that the caller gives up.
#[allow(unsafe_code)]
fn owned(descriptor: RawFd) -> OwnedFd {
    // SAFETY: callers detach it from its Python object first (`socket.detach`, `os.dup`), so nobody
    // else closes it.
    unsafe { OwnedFd::from_raw_fd(descriptor) }
}

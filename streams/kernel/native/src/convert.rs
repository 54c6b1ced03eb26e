//! Python values in and out: the named tuples of `schemas.identities` and `streams.kernel.interface`.

use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyBytes, PyDict, PyInt, PyList, PyMemoryView, PyString, PyTuple};

use crate::msgpack::Malformed;
use crate::names::{ContextKey, ScopeKey, ScopeRef, StreamKey};
use crate::scan::ScannedQuery;
use crate::views::{ContextView, ScopeView};
use crate::walk::InstanceDepths;

/// The Python classes that answers are made of.
pub struct Classes {
    /// `tuple.__new__`: makes a named tuple without running its Python-level constructor.
    tuple_new: Py<PyAny>,
    prefix_scope: Py<PyAny>,
    model_context: Py<PyAny>,
    instance_match: Py<PyAny>,
    rank_match: Py<PyAny>,
    scope_view: Py<PyAny>,
    context_view: Py<PyAny>,
    scanned_query: Py<PyAny>,
    events_format_error: Py<PyAny>,
}

static CLASSES: PyOnceLock<Classes> = PyOnceLock::new();

impl Classes {
    pub fn get(py: Python<'_>) -> PyResult<&Self> {
        CLASSES.get_or_try_init(py, || {
            let identities = py.import("schemas.identities")?;
            let interface = py.import("streams.kernel.interface")?;
            let errors = py.import("schemas.errors")?;
            Ok(Self {
                tuple_new: py.get_type::<PyTuple>().getattr("__new__")?.unbind(),
                prefix_scope: identities.getattr("PrefixScope")?.unbind(),
                model_context: identities.getattr("ModelContext")?.unbind(),
                instance_match: interface.getattr("InstanceMatch")?.unbind(),
                rank_match: interface.getattr("RankMatch")?.unbind(),
                scope_view: interface.getattr("ScopeView")?.unbind(),
                context_view: interface.getattr("ContextView")?.unbind(),
                scanned_query: interface.getattr("ScannedQuery")?.unbind(),
                events_format_error: errors.getattr("EventsFormatError")?.unbind(),
            })
        })
    }

    /// A named tuple of one of the classes.
    fn make<'py>(
        &self,
        class: &Py<PyAny>,
        fields: impl IntoPyObject<'py, Target = PyTuple, Output = Bound<'py, PyTuple>, Error = PyErr>,
        py: Python<'py>,
    ) -> PyResult<Bound<'py, PyAny>> {
        self.tuple_new.bind(py).call1((class, fields.into_pyobject(py)?))
    }

    pub fn scope<'py>(&self, key: &ScopeKey, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let fields = (
            &*key.tenant_id,
            &*key.model_name,
            &*key.lora_name,
            key.block_size,
            &*key.additional_salt,
        );
        self.make(&self.prefix_scope, fields, py)
    }

    pub fn context<'py>(&self, key: &ContextKey, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let scope = &key.scope;
        let fields = (
            &*scope.tenant_id,
            &*scope.model_name,
            &*scope.lora_name,
            scope.block_size,
            &*scope.additional_salt,
            &*key.instance_id,
        );
        self.make(&self.model_context, fields, py)
    }

    pub fn matches<'py>(
        &self,
        answer: &[InstanceDepths],
        py: Python<'py>,
    ) -> PyResult<Bound<'py, PyList>> {
        let mut matches = Vec::with_capacity(answer.len());
        for instance in answer {
            let mut ranks = Vec::with_capacity(instance.ranks.len());
            for rank in &instance.ranks {
                let [matched, gpu, cpu, disk] = rank.depths;
                let fields = (rank.dp_rank, matched, gpu, cpu, disk);
                ranks.push(self.make(&self.rank_match, fields, py)?);
            }
            let [longest, gpu, cpu, disk] = instance.depths;
            let ranks = PyList::new(py, ranks)?;
            let fields = (&*instance.instance_id, longest, gpu, cpu, disk, ranks);
            matches.push(self.make(&self.instance_match, fields, py)?);
        }
        PyList::new(py, matches)
    }

    pub fn scope_view<'py>(
        &self,
        view: &ScopeView,
        py: Python<'py>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let instances = PyDict::new(py);
        for (instance, ranks) in &view.instances {
            instances.set_item(instance, ranks)?;
        }
        self.make(&self.scope_view, (self.scope(&view.key, py)?, view.blocks, instances), py)
    }

    pub fn context_view<'py>(
        &self,
        view: &ContextView,
        py: Python<'py>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let fields = (self.context(&view.key, py)?, view.digest, view.entries);
        self.make(&self.context_view, fields, py)
    }

    pub fn scanned<'py>(
        &self,
        query: &ScannedQuery,
        py: Python<'py>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let fields = (
            query.model,
            query.lora_name,
            query.tenant_id,
            query.instance_id,
            query.block_size,
            query.cache_salt,
            PyBytes::new(py, &query.tokens),
        );
        self.make(&self.scanned_query, fields, py)
    }

    pub fn events_error(&self, malformed: &Malformed, py: Python<'_>) -> PyErr {
        let text = format!("Expected an array of block events: {}", describe(malformed));
        match self.events_format_error.bind(py).call1((text,)) {
            Ok(error) => PyErr::from_value(error),
            Err(error) => error,
        }
    }
}

pub fn describe(malformed: &Malformed) -> String {
    format!("expected {} (byte {})", malformed.expected, malformed.at)
}

pub fn array_error(malformed: &Malformed, what: &str) -> PyErr {
    PyValueError::new_err(format!("Expected an array of {what}: {}", describe(malformed)))
}

/// The bytes of an argument: `bytes` themselves, anything else with a buffer as a copy.
pub fn bytes_of<'py>(argument: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyBytes>> {
    if let Ok(bytes) = argument.cast::<PyBytes>() {
        return Ok(bytes.clone());
    }
    let copy = PyMemoryView::from(argument)?.call_method0("tobytes")?;
    Ok(copy.cast_into::<PyBytes>()?)
}

/// The elements of a tuple of names; named tuples are tuples.
struct Names<'py>(Bound<'py, PyTuple>);

impl<'py> Names<'py> {
    fn new(argument: &Bound<'py, PyAny>, len: usize) -> PyResult<Self> {
        let tuple = argument.cast::<PyTuple>()?;
        if tuple.len() != len {
            let text = format!("Expected a tuple of {len} names, got {}", tuple.len());
            return Err(PyTypeError::new_err(text));
        }
        Ok(Self(tuple.clone()))
    }

    fn text(&self, at: usize) -> PyResult<Bound<'py, PyString>> {
        Ok(self.0.get_item(at)?.cast_into::<PyString>()?)
    }

    fn size(&self, at: usize) -> PyResult<u32> {
        self.0.get_item(at)?.cast::<PyInt>()?.extract()
    }
}

/// Calls `with` with the scope that a Python tuple names, without copying its strings.
pub fn with_scope<T>(
    argument: &Bound<'_, PyAny>,
    with: impl FnOnce(ScopeRef<'_>) -> PyResult<T>,
) -> PyResult<T> {
    let names = Names::new(argument, 5)?;
    let (tenant, model, lora, salt) =
        (names.text(0)?, names.text(1)?, names.text(2)?, names.text(4)?);
    with(ScopeRef {
        tenant_id: tenant.to_str()?,
        model_name: model.to_str()?,
        lora_name: lora.to_str()?,
        block_size: names.size(3)?,
        additional_salt: salt.to_str()?,
    })
}

pub fn stream_key(argument: &Bound<'_, PyAny>) -> PyResult<StreamKey> {
    let names = Names::new(argument, 5)?;
    Ok(StreamKey {
        tenant_id: names.text(0)?.to_str()?.into(),
        model_name: names.text(1)?.to_str()?.into(),
        block_size: names.size(2)?,
        additional_salt: names.text(3)?.to_str()?.into(),
        instance_id: names.text(4)?.to_str()?.into(),
    })
}

pub fn context_key(argument: &Bound<'_, PyAny>) -> PyResult<ContextKey> {
    let names = Names::new(argument, 6)?;
    let scope = ScopeKey {
        tenant_id: names.text(0)?.to_str()?.into(),
        model_name: names.text(1)?.to_str()?.into(),
        lora_name: names.text(2)?.to_str()?.into(),
        block_size: names.size(3)?,
        additional_salt: names.text(4)?.to_str()?.into(),
    };
    Ok(ContextKey { scope, instance_id: names.text(5)?.to_str()?.into() })
}

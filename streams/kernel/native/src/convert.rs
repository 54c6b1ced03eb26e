//! Python values in and out: the named tuples of `schemas.identities` and
//! `streams.kernel.interface`.

use msgpack::Malformed;
use prefix_index::answers::Answered;
use prefix_index::names::{ContextKey, ScopeKey, ScopeRef, StreamKey};
use prefix_index::scan::ScannedQuery;
use prefix_index::views::{ContextView, ScopeView};
use prefix_index::walk::InstanceDepths;
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyBytes, PyDict, PyInt, PyList, PyMemoryView, PyString, PyTuple};

use crate::tuples::TupleClass;

/// The Python classes that answers are made of.
pub struct Classes {
    prefix_scope: TupleClass,
    model_context: TupleClass,
    stream_key: TupleClass,
    publisher_key: TupleClass,
    engine_match: TupleClass,
    instance_match: TupleClass,
    rank_match: TupleClass,
    scope_view: TupleClass,
    context_view: TupleClass,
    scanned_query: TupleClass,
    plain_answer: TupleClass,
    events_format_error: Py<PyAny>,
}

static CLASSES: PyOnceLock<Classes> = PyOnceLock::new();

type Object<'py> = Bound<'py, PyAny>;

fn text<'py>(py: Python<'py>, value: &str) -> Object<'py> {
    PyString::new(py, value).into_any()
}

fn number(py: Python<'_>, value: u64) -> Object<'_> {
    PyInt::new(py, value).into_any()
}

impl Classes {
    pub fn get(py: Python<'_>) -> PyResult<&Self> {
        CLASSES.get_or_try_init(py, || {
            let identities = py.import("schemas.identities")?;
            let interface = py.import("streams.kernel.interface")?;
            let errors = py.import("schemas.errors")?;
            Ok(Self {
                prefix_scope: TupleClass::import(&identities, "PrefixScope")?,
                model_context: TupleClass::import(&identities, "ModelContext")?,
                stream_key: TupleClass::import(&identities, "StreamKey")?,
                publisher_key: TupleClass::import(&identities, "PublisherKey")?,
                engine_match: TupleClass::import(&interface, "EngineMatch")?,
                instance_match: TupleClass::import(&interface, "InstanceMatch")?,
                rank_match: TupleClass::import(&interface, "RankMatch")?,
                scope_view: TupleClass::import(&interface, "ScopeView")?,
                context_view: TupleClass::import(&interface, "ContextView")?,
                scanned_query: TupleClass::import(&interface, "ScannedQuery")?,
                plain_answer: TupleClass::import(&interface, "PlainAnswer")?,
                events_format_error: errors.getattr("EventsFormatError")?.unbind(),
            })
        })
    }

    pub fn scope<'py>(&self, key: &ScopeKey, py: Python<'py>) -> PyResult<Object<'py>> {
        let fields = [
            text(py, &key.tenant_id),
            text(py, &key.model_name),
            text(py, &key.lora_name),
            number(py, key.block_size.into()),
            text(py, &key.additional_salt),
        ];
        self.prefix_scope.make(py, fields)
    }

    pub fn context<'py>(&self, key: &ContextKey, py: Python<'py>) -> PyResult<Object<'py>> {
        let scope = &key.scope;
        let fields = [
            text(py, &scope.tenant_id),
            text(py, &scope.model_name),
            text(py, &scope.lora_name),
            number(py, scope.block_size.into()),
            text(py, &scope.additional_salt),
            text(py, &key.instance_id),
        ];
        self.model_context.make(py, fields)
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
                let [matched, gpu, cpu, disk] = rank.depths.map(|depth| number(py, depth));
                let fields = [number(py, rank.dp_rank.into()), matched, gpu, cpu, disk];
                ranks.push(self.rank_match.make(py, fields)?);
            }
            let [longest, gpu, cpu, disk] = instance.depths.map(|depth| number(py, depth));
            let ranks = PyList::new(py, ranks)?.into_any();
            let fields = [text(py, &instance.instance_id), longest, gpu, cpu, disk, ranks];
            matches.push(self.instance_match.make(py, fields)?);
        }
        PyList::new(py, matches)
    }

    /// Of publishers and blocks.
    pub fn engine_matches<'py>(
        &self,
        found: &[(u64, usize)],
        py: Python<'py>,
    ) -> PyResult<Bound<'py, PyList>> {
        let mut matches = Vec::with_capacity(found.len());
        for &(publisher, blocks) in found {
            let fields = [number(py, publisher), number(py, blocks as u64)];
            matches.push(self.engine_match.make(py, fields)?);
        }
        PyList::new(py, matches)
    }

    pub fn publisher<'py>(
        &self,
        key: &StreamKey,
        dp_rank: u32,
        py: Python<'py>,
    ) -> PyResult<Object<'py>> {
        let fields = [
            text(py, &key.tenant_id),
            text(py, &key.model_name),
            number(py, key.block_size.into()),
            text(py, &key.additional_salt),
            text(py, &key.instance_id),
        ];
        let stream = self.stream_key.make(py, fields)?;
        self.publisher_key.make(py, [stream, number(py, dp_rank.into())])
    }

    pub fn scope_view<'py>(&self, view: &ScopeView, py: Python<'py>) -> PyResult<Object<'py>> {
        let instances = PyDict::new(py);
        for (instance, ranks) in &view.instances {
            instances.set_item(instance, ranks)?;
        }
        let blocks = number(py, view.blocks as u64);
        self.scope_view.make(py, [self.scope(&view.key, py)?, blocks, instances.into_any()])
    }

    pub fn context_view<'py>(&self, view: &ContextView, py: Python<'py>) -> PyResult<Object<'py>> {
        let (digest, entries) = (number(py, view.digest), number(py, view.entries));
        self.context_view.make(py, [self.context(&view.key, py)?, digest, entries])
    }

    pub fn scanned<'py>(&self, query: &ScannedQuery, py: Python<'py>) -> PyResult<Object<'py>> {
        let instance = query.instance_id.map(|name| text(py, name));
        let fields = [
            text(py, query.model),
            text(py, query.lora_name),
            text(py, query.tenant_id),
            instance.unwrap_or_else(|| py.None().into_bound(py)),
            number(py, query.block_size),
            text(py, query.cache_salt),
            PyBytes::new(py, &query.tokens).into_any(),
        ];
        self.scanned_query.make(py, fields)
    }

    pub fn plain_answer<'py>(&self, answered: &Answered, py: Python<'py>) -> PyResult<Object<'py>> {
        let scope = &answered.scope;
        let scope = [
            text(py, scope.tenant_id),
            text(py, scope.model_name),
            text(py, scope.lora_name),
            number(py, scope.block_size.into()),
            text(py, scope.additional_salt),
        ];
        let fields = [
            self.prefix_scope.make(py, scope)?,
            number(py, answered.tokens as u64),
            number(py, answered.hit_tokens),
            PyBytes::new(py, &answered.text).into_any(),
            match &answered.audited {
                Some(audited) => PyBytes::new(py, audited).into_any(),
                None => py.None().into_bound(py),
            },
        ];
        self.plain_answer.make(py, fields)
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

//! The classes `ArrayPacker` and `BatchPacker`: `schemas.arrays` documents every method.

use std::borrow::Cow;
use std::collections::HashMap;

use msgpack::{Malformed, Reader};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList, PyTuple};
use wire::arrays::{pack_hashes, pack_seconds, pack_tokens};
use wire::batches::{self, Limits, Packed, Roots};
use wire::layout::Layout;
use wire::parts;
use wire::runs::PackedRun;
use xxhash_rust::xxh3::xxh3_64;

use crate::convert::{bytes_of, describe};
use crate::gil::detached_if;
use crate::messages::MessageRun;

// See `gil`.
const DETACHED_ARRAY_BYTES: usize = 128 * 1024;
const DETACHED_BATCH_BYTES: usize = 32 * 1024;

#[pyclass(frozen, module = "streams.kernel._native")]
pub struct ArrayPacker;

#[pymethods]
impl ArrayPacker {
    #[new]
    fn new() -> Self {
        Self
    }

    fn pack_hashes<'py>(&self, encoded: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyBytes>> {
        packed(encoded, "hashes", pack_hashes)
    }

    fn pack_tokens<'py>(&self, encoded: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyBytes>> {
        packed(encoded, "tokens", pack_tokens)
    }

    fn pack_seconds<'py>(&self, encoded: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyBytes>> {
        packed(encoded, "tokens", |bytes| Ok(pack_seconds(bytes)))
    }

    fn count_values(&self, encoded: &Bound<'_, PyAny>, most: usize) -> PyResult<usize> {
        let py = encoded.py();
        let bytes = bytes_of(encoded)?;
        let bytes = bytes.as_bytes();
        Ok(py.detach(|| Reader::new(bytes).skip_some(most).unwrap_or(0)))
    }

    #[pyo3(signature = (run, count, bytes_max, /))]
    fn split_run<'py>(
        &self,
        run: &Bound<'py, PyBytes>,
        count: usize,
        bytes_max: usize,
    ) -> PyResult<Bound<'py, PyList>> {
        let py = run.py();
        let bytes = run.as_bytes();
        let split = py.detach(|| parts::split(bytes, bytes_max));
        let parts = split.map_err(|malformed| array_error(&malformed, "events"))?;
        let split: usize = parts.iter().map(|part| part.events).sum();
        if split < count {
            return Err(PyValueError::new_err(format!("Expected {count} events, got {split}")));
        }
        PyList::new(py, parts.iter().map(|part| (part.events, PyBytes::new(py, &part.run))))
    }

    #[expect(clippy::too_many_arguments, reason = "each has its name where it is called")]
    #[pyo3(signature = (*, arrays, maps, dp_rank, lora_name, roots, all_chains, scopeless_tiers, has_rules))]
    fn batch_packer(
        &self,
        arrays: HashMap<String, Vec<String>>,
        maps: HashMap<String, Vec<String>>,
        dp_rank: i128,
        lora_name: String,
        roots: &str,
        all_chains: bool,
        scopeless_tiers: bool,
        has_rules: bool,
        py: Python<'_>,
    ) -> PyResult<Option<BatchPacker>> {
        let (Some(arrays), Some(maps)) = (layout(&arrays), layout(&maps)) else {
            return Ok(None);
        };
        let limits = limits(py)?;
        let roots = match roots {
            "reported" => Roots::Reported,
            "undecided" => Roots::Undecided,
            _ => Roots::Copies,
        };
        let packer = batches::BatchPacker {
            arrays,
            maps,
            dp_rank,
            lora_name,
            roots,
            all_chains,
            scopeless_tiers,
            has_rules,
            limits,
        };
        Ok(Some(BatchPacker { packer }))
    }
}

fn packed<'py>(
    encoded: &Bound<'py, PyAny>,
    what: &str,
    pack: fn(&[u8]) -> msgpack::Result<Vec<u8>>,
) -> PyResult<Bound<'py, PyBytes>> {
    let py = encoded.py();
    let bytes = bytes_of(encoded)?;
    let bytes = bytes.as_bytes();
    match detached_if(bytes.len() > DETACHED_ARRAY_BYTES, py, || pack(bytes)) {
        Ok(packed) => Ok(PyBytes::new(py, &packed)),
        Err(malformed) => Err(array_error(&malformed, what)),
    }
}

fn array_error(malformed: &Malformed, what: &str) -> PyErr {
    PyValueError::new_err(format!("Expected an array of {what}: {}", describe(malformed)))
}

fn layout(events: &HashMap<String, Vec<String>>) -> Option<Layout> {
    let mut layout = Layout::default();
    for (tag, fields) in events {
        layout.add(tag, fields)?;
    }
    Some(layout)
}

fn limits(py: Python<'_>) -> PyResult<Limits> {
    let limits = py.import("schemas.limits")?;
    let size = |name: &str| limits.getattr(name)?.extract::<usize>();
    Ok(Limits {
        batch_events: size("BATCH_EVENTS_MAX")?,
        event_blocks: size("EVENT_BLOCKS_MAX")?,
        block_size: size("BLOCK_SIZE_MAX")? as i128,
        group: size("GROUP_NUMBER_MAX")? as i128,
        name_bytes: size("NAME_BYTES_MAX")?,
        lora_names: size("LORA_NAMES_MAX")?,
        packed_bytes: size("PACKED_BATCH_BYTES_MAX")?,
    })
}

#[pyclass(frozen, module = "streams.kernel._native")]
pub struct BatchPacker {
    packer: batches::BatchPacker,
}

#[pymethods]
impl BatchPacker {
    #[pyo3(signature = (payload, sequence, /))]
    fn pack<'py>(
        &self,
        payload: &Bound<'py, PyAny>,
        sequence: u64,
    ) -> PyResult<Option<Bound<'py, PyTuple>>> {
        let py = payload.py();
        let payload = bytes_of(payload)?;
        let bytes = payload.as_bytes();
        let packed = detached_if(bytes.len() > DETACHED_BATCH_BYTES, py, || {
            self.packer.pack(bytes, sequence).map(|packed| (packed, xxh3_64(bytes)))
        });
        let Some((packed, digest)) = packed else {
            return Ok(None);
        };
        let run = PyBytes::new(py, &packed.run);
        let names = names_of(py, &packed.lora_names)?;
        let first_blocks = PyBytes::new(py, &packed.first_blocks);
        let Packed { engine_time, events, clears, media, .. } = packed;
        let fields = (digest, engine_time, events, clears, run, names, media, first_blocks);
        Ok(Some(fields.into_pyobject(py)?))
    }

    #[pyo3(signature = (messages, sequence, bytes_max, /))]
    fn pack_run<'py>(
        &self,
        messages: &Bound<'py, PyAny>,
        sequence: u64,
        bytes_max: usize,
    ) -> PyResult<Bound<'py, PyTuple>> {
        let py = messages.py();
        if let Ok(run) = messages.cast::<MessageRun>() {
            let run = run.get();
            let is_long = run.size_bytes() > DETACHED_BATCH_BYTES;
            let pack = || self.packer.pack_run(run.batches(), sequence, bytes_max);
            return fields_of(py, detached_if(is_long, py, pack));
        }
        // Of three frames each; what has others is not part of a run.
        let messages = messages.cast::<PyList>()?;
        let mut frames = Vec::with_capacity(messages.len());
        for message in messages.iter() {
            let message = message.cast_into::<PyList>()?;
            if message.len() != 3 {
                break;
            }
            let number = message.get_item(1)?.cast_into::<PyBytes>()?;
            let payload = message.get_item(2)?.cast_into::<PyBytes>()?;
            frames.push((number, payload));
        }
        let batches: Vec<_> = frames
            .iter()
            .map(|(number, payload)| (number.as_bytes(), payload.as_bytes()))
            .collect();
        let size_bytes: usize = batches.iter().map(|(_, payload)| payload.len()).sum();
        let is_long = size_bytes > DETACHED_BATCH_BYTES;
        let pack = || self.packer.pack_run(batches, sequence, bytes_max);
        fields_of(py, detached_if(is_long, py, pack))
    }
}

fn fields_of<'py>(py: Python<'py>, packed: PackedRun<'_>) -> PyResult<Bound<'py, PyTuple>> {
    let digests: Vec<u8> = packed.digests.iter().flat_map(|digest| digest.to_ne_bytes()).collect();
    let digests = PyBytes::new(py, &digests);
    let run = PyBytes::new(py, &packed.run);
    let names = names_of(py, &packed.lora_names)?;
    let first_blocks = PyBytes::new(py, &packed.first_blocks);
    let PackedRun { engine_time, events, media, .. } = packed;
    (digests, engine_time, events, run, names, media, first_blocks).into_pyobject(py)
}

fn names_of<'py>(py: Python<'py>, names: &[Cow<'_, str>]) -> PyResult<Bound<'py, PyTuple>> {
    PyTuple::new(py, names.iter().map(|name| name.as_ref()))
}

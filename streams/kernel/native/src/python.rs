//! The class `Kernel`. `streams/kernel/interface.py` documents every method.
//!
//! Order of locks: the writer's mutex, then the state. Neither is held while waiting for the GIL,
//! so a thread with the GIL may wait for them.

use std::sync::Arc;

use parking_lot::Mutex;
use prefix_index::answers::{Form, Kind, answer};
use prefix_index::changes::CHANGE_BYTES;
use prefix_index::core::Core;
use prefix_index::counters::COUNTER_NAMES;
use prefix_index::dumps::Dump;
use prefix_index::events::{Event, read_events};
use prefix_index::limits::{CLEARED_AT_ONCE_MAX, LEFT_OUT_BLOCKS_MAX, WAITING_MAX};
use prefix_index::names::{Sharing, TIERS};
use prefix_index::scan::scan_query;
use prefix_index::selection::Selection;
use prefix_index::walk::Prompt;
use prefix_index::write::{UnknownPublisher, WriteTurn};
use prefix_index::{changes, engine_hashes, views, walk};
use pyo3::exceptions::{PyKeyError, PyValueError};
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::{PyBytes, PyDict, PyList};

use crate::audits::AuditQueue;
use crate::convert::{Classes, bytes_of, context_key, stream_key, with_scope};
use crate::gil::detached_if;

// See `gil`.
const DETACHED_EVENT_BYTES: usize = 16 * 1024;
const DETACHED_TOKEN_BYTES: usize = 4 * 32 * 1024;
const DETACHED_JSON_BYTES: usize = 128 * 1024;
const DETACHED_ENTRIES: u64 = 512;
const DETACHED_HASHES: usize = 2048;
const DETACHED_PUBLISHERS: usize = 512;

/// As `streams/kernel/interface.py` numbers them.
const FORMS: [Form; 3] = [Form::Json, Form::Msgpack, Form::Octets];

/// As `streams/kernel/selection.py` documents it.
#[pyclass(frozen, module = "streams.kernel._native")]
pub struct ChangeSelection(Selection);

#[pymethods]
impl ChangeSelection {
    #[new]
    #[pyo3(signature = (prefixes, keys, /))]
    fn new(py: Python<'_>, prefixes: &[u8], keys: &[u8]) -> Self {
        let is_long = (prefixes.len() + keys.len()) / 8 > DETACHED_HASHES;
        Self(detached_if(is_long, py, || Selection::new(prefixes, keys)))
    }

    #[pyo3(signature = (changes, /))]
    fn of<'py>(&self, changes: &[u8], py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        let is_long = (changes.len() / CHANGE_BYTES) as u64 > DETACHED_ENTRIES;
        match detached_if(is_long, py, || self.0.of(changes)) {
            Some(selected) => Ok(PyBytes::new(py, &selected)),
            None => Err(PyValueError::new_err(format!(
                "Expected a multiple of {CHANGE_BYTES} bytes, got {}",
                changes.len()
            ))),
        }
    }
}

#[pyclass(frozen, module = "streams.kernel._native")]
pub struct Kernel {
    pub core: Arc<Core>,
    /// Held by the one write that runs, across its turns with the state's lock.
    writing: Mutex<()>,
}

impl Kernel {
    fn write<T>(&self, work: impl FnOnce(&mut WriteTurn) -> T) -> T {
        let _writing = self.writing.lock();
        work(&mut WriteTurn::new(&self.core.state, &self.core.hasher))
    }

    /// Of a write that may change answers.
    fn change<T>(&self, work: impl FnOnce(&mut WriteTurn) -> T) -> T {
        let _writing = self.writing.lock();
        self.core.begin_write();
        work(&mut WriteTurn::new(&self.core.state, &self.core.hasher))
    }

    fn publisher_entries(&self, publisher: u64) -> u64 {
        let state = self.core.state.read();
        state.publishers.get(&publisher).map_or(0, |known| known.live_entries())
    }

    fn matches<'py>(
        &self,
        scope: &Bound<'py, PyAny>,
        prompt: &Prompt<'_>,
        instance_id: Option<&str>,
        is_long: bool,
    ) -> PyResult<Bound<'py, PyList>> {
        let py = scope.py();
        let answer = with_scope(scope, |key| {
            if key.block_size == 0 {
                return Err(PyValueError::new_err("Expected a block_size above 0"));
            }
            Ok(detached_if(is_long, py, || {
                let state = self.core.state.read();
                let Some(&number) = state.index.scope_ids.get(&key) else {
                    return Vec::new();
                };
                let scope = &state.index.scopes[number as usize];
                walk::query(&state, scope, &self.core.hasher, prompt, instance_id)
            }))
        })?;
        Classes::get(py)?.matches(&answer, py)
    }
}

fn unknown(publisher: u64) -> impl Fn(UnknownPublisher) -> PyErr {
    move |_| PyKeyError::new_err(publisher)
}

#[pymethods]
impl Kernel {
    #[new]
    #[pyo3(signature = (
        seed,
        cleared_at_once=CLEARED_AT_ONCE_MAX,
        waiting_max=WAITING_MAX,
        left_out_max=LEFT_OUT_BLOCKS_MAX,
    ))]
    fn new(seed: u64, cleared_at_once: usize, waiting_max: u64, left_out_max: u64) -> Self {
        let core = Core::new(seed, cleared_at_once, waiting_max, left_out_max);
        Self { core: Arc::new(core), writing: Mutex::new(()) }
    }

    #[getter]
    fn name(&self) -> &'static str {
        "rust"
    }

    #[getter]
    fn seed(&self) -> u64 {
        self.core.hasher.seed()
    }

    #[pyo3(signature = (stream, dp_rank, /))]
    fn open_publisher(&self, stream: &Bound<'_, PyAny>, dp_rank: u32) -> PyResult<u64> {
        let stream = stream_key(stream)?;
        Ok(self.write(|turn| turn.state().open_publisher(stream, dp_rank)))
    }

    #[pyo3(signature = (publisher, domain, /))]
    fn set_domain(&self, publisher: u64, domain: u32) -> PyResult<()> {
        self.write(|turn| turn.publisher(publisher).map(|(known, _)| known.domain = domain))
            .map_err(unknown(publisher))
    }

    #[pyo3(signature = (publisher, /))]
    fn has_base_group(&self, publisher: u64) -> PyResult<bool> {
        let state = self.core.state.read();
        let known = state.publishers.get(&publisher).ok_or(UnknownPublisher);
        known.map(|known| known.has_base).map_err(unknown(publisher))
    }

    #[pyo3(signature = (publisher, /))]
    fn set_base_group(&self, publisher: u64) -> PyResult<()> {
        self.write(|turn| turn.publisher(publisher).map(|(known, _)| known.has_base = true))
            .map_err(unknown(publisher))
    }

    #[pyo3(signature = (publisher, /))]
    fn sparse_blocks(&self, publisher: u64) -> PyResult<Option<u64>> {
        let state = self.core.state.read();
        let known = state.publishers.get(&publisher).ok_or(UnknownPublisher);
        known.map(|known| known.sparse_blocks).map_err(unknown(publisher))
    }

    #[pyo3(signature = (publisher, blocks, by_rule, /))]
    fn set_sparse_blocks(&self, publisher: u64, blocks: u64, by_rule: bool) -> PyResult<()> {
        let set = |turn: &mut WriteTurn| {
            let (known, index) = turn.publisher(publisher)?;
            known.sparse_blocks = Some(blocks);
            if !by_rule {
                index.unrule(known);
            }
            Ok(())
        };
        self.change(set).map_err(unknown(publisher))
    }

    #[pyo3(signature = (publisher, /))]
    fn forms_prefixes(&self, publisher: u64) -> PyResult<bool> {
        let state = self.core.state.read();
        let known = state.publishers.get(&publisher).ok_or(UnknownPublisher);
        known.map(|known| known.has_base || known.groups > 0).map_err(unknown(publisher))
    }

    #[pyo3(signature = (publisher, /))]
    fn by_rule(&self, publisher: u64) -> PyResult<bool> {
        let state = self.core.state.read();
        let known = state.publishers.get(&publisher).ok_or(UnknownPublisher);
        known
            .map(|known| known.sparse_blocks.is_some() && !known.unruled)
            .map_err(unknown(publisher))
    }

    #[pyo3(signature = (publisher, /))]
    fn unheld_removed(&self, publisher: u64) -> PyResult<Option<u64>> {
        let state = self.core.state.read();
        let known = state.publishers.get(&publisher).ok_or(UnknownPublisher);
        known.map(|known| known.unheld_removed).map_err(unknown(publisher))
    }

    #[pyo3(signature = (publisher, blocks, /))]
    fn set_unheld_removed(&self, publisher: u64, blocks: Option<u64>) -> PyResult<()> {
        let set = |turn: &mut WriteTurn| {
            turn.publisher(publisher).map(|(known, _)| known.unheld_removed = blocks)
        };
        self.write(set).map_err(unknown(publisher))
    }

    #[pyo3(signature = (
        publisher, lora_name, routable, is_shard = false, reads = None, shared_as = "", /
    ))]
    fn register(
        &self,
        publisher: u64,
        lora_name: &str,
        routable: bool,
        is_shard: bool,
        reads: Option<Vec<String>>,
        shared_as: &str,
    ) -> PyResult<()> {
        let sharing = Sharing {
            reads: reads.map(|names| names.into_iter().map(Arc::from).collect()),
            shared_as: Some(shared_as).filter(|name| !name.is_empty()).map(Arc::from),
        };
        let register = |turn: &mut WriteTurn| {
            turn.state().register(publisher, lora_name, routable, is_shard, sharing)
        };
        let known = self.change(register);
        if known { Ok(()) } else { Err(PyKeyError::new_err(publisher)) }
    }

    #[pyo3(signature = (publisher, /))]
    fn unregister(&self, publisher: u64, py: Python<'_>) -> PyResult<u64> {
        let is_long = self.publisher_entries(publisher) > DETACHED_ENTRIES;
        detached_if(is_long, py, || self.change(|turn| turn.unregister(publisher)))
            .map_err(unknown(publisher))
    }

    #[pyo3(signature = (publisher, /))]
    fn clear(&self, publisher: u64, py: Python<'_>) -> PyResult<u64> {
        let is_long = self.publisher_entries(publisher) > DETACHED_ENTRIES;
        detached_if(is_long, py, || self.change(|turn| turn.clear(publisher)))
            .map_err(unknown(publisher))
    }

    #[pyo3(signature = (entries, /))]
    fn release_left(&self, entries: usize, py: Python<'_>) -> usize {
        let left = self.core.state.read().index.leaving.len();
        let is_long = left.min(entries) as u64 > DETACHED_ENTRIES;
        detached_if(is_long, py, || self.write(|turn| turn.release_left(entries)))
    }

    #[pyo3(signature = (publisher, events, after, /))]
    fn apply(
        &self,
        publisher: u64,
        events: &Bound<'_, PyAny>,
        after: i64,
    ) -> PyResult<Option<i128>> {
        let py = events.py();
        let events = bytes_of(events)?;
        let bytes = events.as_bytes();
        if !self.core.state.read().publishers.contains_key(&publisher) {
            return Err(PyKeyError::new_err(publisher));
        }
        let apply =
            |events: &[Event]| Ok(self.change(|turn| turn.apply(publisher, events, after.into())));
        let folded = if bytes.len() > DETACHED_EVENT_BYTES {
            py.detach(|| read_events(bytes).and_then(|events| apply(&events)))
        } else {
            read_events(bytes).and_then(|events| {
                // An event that clears is short, and what it does is not.
                let clears = events.iter().any(|event| matches!(event, Event::Cleared { .. }));
                let is_long = clears && self.publisher_entries(publisher) > DETACHED_ENTRIES;
                detached_if(is_long, py, || apply(&events))
            })
        };
        match folded {
            Ok(applied) => applied.map_err(unknown(publisher)),
            Err(malformed) => Err(Classes::get(py)?.events_error(&malformed, py)),
        }
    }

    #[pyo3(signature = (publisher, /))]
    fn left_out(&self, publisher: u64) -> PyResult<Vec<(String, u64)>> {
        let state = self.core.state.read();
        let known =
            state.publishers.get(&publisher).ok_or_else(|| PyKeyError::new_err(publisher))?;
        let found = views::left_out(known).into_iter();
        Ok(found.map(|(reason, blocks)| (reason.to_owned(), blocks)).collect())
    }

    #[pyo3(signature = (publishers, /))]
    fn wait_together(&self, publishers: Vec<u64>) -> PyResult<bool> {
        let state = self.core.state.read();
        let known: Option<Vec<_>> =
            publishers.iter().map(|one| state.publishers.get(one)).collect();
        let known = known.ok_or_else(|| PyKeyError::new_err(publishers))?;
        Ok(views::wait_together(&state, &known))
    }

    #[pyo3(signature = (events, /))]
    fn check_events(&self, events: &Bound<'_, PyAny>) -> PyResult<()> {
        let py = events.py();
        let events = bytes_of(events)?;
        let bytes = events.as_bytes();
        let is_long = bytes.len() > DETACHED_EVENT_BYTES;
        match detached_if(is_long, py, || read_events(bytes).map(|_| ())) {
            Ok(()) => Ok(()),
            Err(malformed) => Err(Classes::get(py)?.events_error(&malformed, py)),
        }
    }

    fn take_changes<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let taken = self.write(|turn| turn.state().index.changes.take());
        let classes = Classes::get(py)?;
        let lists = PyList::empty(py);
        for (key, changes) in taken {
            lists.append((classes.context(&key, py)?, PyBytes::new(py, &changes)))?;
        }
        Ok(lists)
    }

    fn pending_changes(&self) -> usize {
        self.core.state.read().index.changes.pending()
    }

    fn pending_contexts(&self) -> usize {
        self.core.state.read().index.changes.pending_contexts()
    }

    #[pyo3(signature = (context, changes, /))]
    fn load(&self, context: &Bound<'_, PyAny>, changes: &Bound<'_, PyAny>) -> PyResult<()> {
        let key = context_key(context)?;
        let encoded = bytes_of(changes)?;
        let bytes = encoded.as_bytes();
        let is_long = bytes.len() > DETACHED_EVENT_BYTES;
        let loaded = detached_if(is_long, context.py(), || {
            let changes = changes::decode(bytes)?;
            Some(self.change(|turn| turn.load(&key, &changes)))
        });
        let tier = TIERS - 1;
        let text =
            || format!("Expected changes of {CHANGE_BYTES} bytes with op 0..1, tier 0..{tier}");
        let loaded = loaded.ok_or_else(|| PyValueError::new_err(text()))?;
        // Only a second write could have dropped a publisher that this one opened, and there is
        // none.
        loaded.map_err(|_| PyKeyError::new_err("publisher"))
    }

    #[pyo3(signature = (context, entries_max, /))]
    fn dump<'py>(
        &self,
        context: &Bound<'py, PyAny>,
        entries_max: usize,
    ) -> PyResult<Bound<'py, PyList>> {
        let py = context.py();
        let key = context_key(context)?;
        let chunk_bytes = CHANGE_BYTES.saturating_mul(entries_max);
        if chunk_bytes == 0 {
            return Err(PyValueError::new_err("Expected entries_max above 0, got: 0"));
        }
        let encoded = py.detach(|| {
            let state = self.core.state.read();
            let mut dump = Dump::new(&state, key);
            dump.gather(&state, usize::MAX);
            dump.take(usize::MAX)
        });
        PyList::new(py, encoded.chunks(chunk_bytes).map(|chunk| PyBytes::new(py, chunk)))
    }

    #[pyo3(signature = (context, /))]
    fn open_dump(slf: Bound<'_, Self>, context: &Bound<'_, PyAny>) -> PyResult<ContextDump> {
        let dump = Dump::new(&slf.get().core.state.read(), context_key(context)?);
        Ok(ContextDump { kernel: slf.unbind(), dump: Mutex::new(dump) })
    }

    #[pyo3(signature = (scope, tokens, keys, instance_id, /))]
    fn query<'py>(
        &self,
        scope: &Bound<'py, PyAny>,
        tokens: &Bound<'py, PyAny>,
        keys: Vec<PyBackedBytes>,
        instance_id: Option<&str>,
    ) -> PyResult<Bound<'py, PyList>> {
        let tokens = bytes_of(tokens)?;
        let keys: Vec<&[u8]> = keys.iter().map(|key| &**key).collect();
        let is_long = tokens.as_bytes().len() > DETACHED_TOKEN_BYTES;
        let prompt = Prompt::Tokens(tokens.as_bytes(), &keys);
        self.matches(scope, &prompt, instance_id, is_long)
    }

    #[pyo3(signature = (scope, hashes, instance_id, /))]
    fn query_by_hash<'py>(
        &self,
        scope: &Bound<'py, PyAny>,
        hashes: &Bound<'py, PyAny>,
        instance_id: Option<&str>,
    ) -> PyResult<Bound<'py, PyList>> {
        let hashes = bytes_of(hashes)?;
        let (prefixes, _) = hashes.as_bytes().as_chunks();
        let is_long = 8 * prefixes.len() > DETACHED_TOKEN_BYTES;
        self.matches(scope, &Prompt::Hashes(prefixes), instance_id, is_long)
    }

    fn has_rules(&self) -> bool {
        self.core.state.read().index.has_rules
    }

    #[pyo3(signature = (scope, hashes, instance_id, /))]
    fn limiting_groups(
        &self,
        scope: &Bound<'_, PyAny>,
        hashes: &Bound<'_, PyAny>,
        instance_id: Option<&str>,
    ) -> PyResult<Vec<(String, u32)>> {
        let hashes = bytes_of(hashes)?;
        let (prefixes, _) = hashes.as_bytes().as_chunks();
        let is_long = 8 * prefixes.len() > DETACHED_TOKEN_BYTES;
        let py = scope.py();
        let found = with_scope(scope, |key| {
            Ok(detached_if(is_long, py, || {
                let state = self.core.state.read();
                let Some(&number) = state.index.scope_ids.get(&key) else { return Vec::new() };
                let scope = &state.index.scopes[number as usize];
                walk::limiting_groups(&state, scope, prefixes, instance_id)
            }))
        })?;
        Ok(found.into_iter().map(|(name, group)| (name.to_string(), group)).collect())
    }

    #[pyo3(signature = (tenant_id, model_name, hashes, /))]
    fn query_by_engine_hash<'py>(
        &self,
        tenant_id: &str,
        model_name: Option<&str>,
        hashes: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyList>> {
        let py = hashes.py();
        let hashes = bytes_of(hashes)?;
        let (hashes, _) = hashes.as_bytes().as_chunks();
        let is_long = hashes.len() > DETACHED_HASHES
            || self.core.state.read().publishers.len() > DETACHED_PUBLISHERS;
        let found = detached_if(is_long, py, || {
            engine_hashes::query(&self.core.state.read(), tenant_id, model_name, hashes)
        });
        Classes::get(py)?.engine_matches(&found, py)
    }

    #[pyo3(signature = (scope, hashes, instance_id, dp_rank, /))]
    fn engine_hashes<'py>(
        &self,
        scope: &Bound<'py, PyAny>,
        hashes: &Bound<'py, PyAny>,
        instance_id: &str,
        dp_rank: u32,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let py = hashes.py();
        let hashes = bytes_of(hashes)?;
        let (hashes, _) = hashes.as_bytes().as_chunks();
        with_scope(scope, |scope| {
            let names = detached_if(hashes.len() > DETACHED_HASHES, py, || {
                engine_hashes::names(&self.core.state.read(), scope, instance_id, dp_rank, hashes)
            });
            Ok(PyBytes::new(py, &names))
        })
    }

    #[pyo3(signature = (publisher, /))]
    fn publisher<'py>(
        &self,
        publisher: u64,
        py: Python<'py>,
    ) -> PyResult<Option<Bound<'py, PyAny>>> {
        let known = {
            let state = self.core.state.read();
            state.publishers.get(&publisher).map(|known| (known.stream.clone(), known.dp_rank))
        };
        match known {
            Some((stream, dp_rank)) => Ok(Some(Classes::get(py)?.publisher(&stream, dp_rank, py)?)),
            None => Ok(None),
        }
    }

    #[pyo3(signature = (tokens, block_size, keys, pairs, /))]
    fn hash_blocks<'py>(
        &self,
        py: Python<'py>,
        tokens: &[u8],
        block_size: usize,
        keys: Vec<PyBackedBytes>,
        pairs: bool,
    ) -> PyResult<Bound<'py, PyBytes>> {
        if block_size == 0 {
            return Err(PyValueError::new_err("Expected a block_size above 0"));
        }
        let block_size = block_size.min(tokens.len() + 1); // longer: no block, and no overflow
        let is_long = tokens.len() > DETACHED_TOKEN_BYTES;
        let keys: Vec<&[u8]> = keys.iter().map(|key| &**key).collect();
        let hashes = detached_if(is_long, py, || {
            walk::block_hashes(&self.core.hasher, tokens, &keys, block_size, pairs)
        });
        Ok(PyBytes::new(py, &hashes))
    }

    #[pyo3(signature = (token_hashes, /))]
    fn chain_hashes<'py>(&self, token_hashes: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyBytes>> {
        let py = token_hashes.py();
        let locals = bytes_of(token_hashes)?;
        let (locals, _) = locals.as_bytes().as_chunks();
        let is_long = locals.len() > DETACHED_HASHES;
        let chained = detached_if(is_long, py, || walk::chain_hashes(&self.core.hasher, locals));
        Ok(PyBytes::new(py, &chained))
    }

    #[pyo3(signature = (scope, /))]
    fn knows(&self, scope: &Bound<'_, PyAny>) -> PyResult<bool> {
        with_scope(scope, |key| {
            let state = self.core.state.read();
            let number = state.index.scope_ids.get(&key);
            Ok(number.is_some_and(|&n| !state.index.scopes[n as usize].roster.is_empty()))
        })
    }

    #[pyo3(signature = (scope, /))]
    fn without_adapter(&self, scope: &Bound<'_, PyAny>) -> PyResult<Vec<String>> {
        with_scope(scope, |key| {
            let state = self.core.state.read();
            let found = views::without_adapter(&state, key);
            Ok(found.into_iter().map(str::to_owned).collect())
        })
    }

    #[pyo3(signature = (body, /))]
    fn scan_query<'py>(&self, body: &Bound<'py, PyAny>) -> PyResult<Option<Bound<'py, PyAny>>> {
        let py = body.py();
        let body = bytes_of(body)?;
        let bytes = body.as_bytes();
        let is_long = bytes.len() > DETACHED_JSON_BYTES;
        match detached_if(is_long, py, || scan_query(bytes)) {
            Some(scanned) => Ok(Some(Classes::get(py)?.scanned(&scanned, py)?)),
            None => Ok(None),
        }
    }

    #[pyo3(signature = (body, form=0, by_hash=false, url_query=None, /))]
    fn answer<'py>(
        &self,
        body: &Bound<'py, PyAny>,
        form: u8,
        by_hash: bool,
        url_query: Option<&Bound<'py, PyBytes>>,
    ) -> PyResult<Option<Bound<'py, PyAny>>> {
        let py = body.py();
        let form = *FORMS.get(usize::from(form)).ok_or_else(|| {
            PyValueError::new_err(format!("Expected a form below {}, got {form}", FORMS.len()))
        })?;
        let url_query = url_query.map_or(&[][..], |text| text.as_bytes());
        let kind = Kind { form, by_hash, url_query, tenants: None };
        let body = bytes_of(body)?;
        let bytes = body.as_bytes();
        let is_json = form == Form::Json;
        let long_bytes = if is_json { DETACHED_JSON_BYTES } else { DETACHED_TOKEN_BYTES };
        let answered =
            detached_if(bytes.len() > long_bytes, py, || answer(bytes, kind, &self.core));
        match answered {
            Some(answered) => Ok(Some(Classes::get(py)?.plain_answer(&answered, py)?)),
            None => Ok(None),
        }
    }

    #[pyo3(signature = (partition, offset, /))]
    fn note_position(&self, partition: u32, offset: i64) {
        self.core.note_position(partition, offset);
    }

    fn settled(&self) -> Option<(u64, Vec<(u32, i64)>)> {
        let _reading = self.core.state.read();
        self.core.settled()
    }

    #[pyo3(signature = (queue, /))]
    fn audit_into(&self, queue: &AuditQueue) {
        let _ = self.core.audit.set(queue.0.clone()); // the first one stays
    }

    #[pyo3(signature = (scope, tokens, keys, most, /))]
    fn prefix_hashes<'py>(
        &self,
        scope: &Bound<'py, PyAny>,
        tokens: &Bound<'py, PyAny>,
        keys: Vec<PyBackedBytes>,
        most: usize,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let tokens = bytes_of(tokens)?;
        let keys: Vec<&[u8]> = keys.iter().map(|key| &**key).collect();
        let prompt = (tokens.as_bytes(), &keys[..]);
        let packed = with_scope(scope, |key| {
            let block_size = key.block_size as usize;
            if block_size == 0 {
                return Err(PyValueError::new_err("Expected a block_size above 0"));
            }
            let state = self.core.state.read();
            let index = &state.index;
            let known = index.scope_ids.get(&key).map(|&number| &index.scopes[number as usize]);
            let hasher = &self.core.hasher;
            Ok(walk::prompt_hashes(known, index.placement, hasher, prompt, block_size, most))
        })?;
        Ok(PyBytes::new(scope.py(), &packed))
    }

    fn scopes<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let views = views::scopes(&self.core.state.read());
        let classes = Classes::get(py)?;
        let list = PyList::empty(py);
        for view in &views {
            list.append(classes.scope_view(view, py)?)?;
        }
        Ok(list)
    }

    fn contexts<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let views = views::contexts(&self.core.state.read());
        let classes = Classes::get(py)?;
        let list = PyList::empty(py);
        for view in &views {
            list.append(classes.context_view(view, py)?)?;
        }
        Ok(list)
    }

    fn counters<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let counters = self.core.state.read().index.counters;
        let dict = PyDict::new(py);
        for (name, count) in COUNTER_NAMES.iter().zip(counters) {
            dict.set_item(name, count)?;
        }
        Ok(dict)
    }

    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let stats = py.detach(|| views::stats(&self.core.state.read()));
        let dict = PyDict::new(py);
        for (name, size) in stats {
            dict.set_item(name, size)?;
        }
        Ok(dict)
    }
}

#[pyclass(frozen, module = "streams.kernel._native")]
pub struct ContextDump {
    kernel: Py<Kernel>,
    dump: Mutex<Dump>,
}

#[pymethods]
impl ContextDump {
    #[pyo3(signature = (entries, /))]
    fn gather(&self, entries: usize, py: Python<'_>) -> usize {
        let kernel = self.kernel.get();
        let is_long = entries as u64 > DETACHED_ENTRIES;
        detached_if(is_long, py, || self.dump.lock().gather(&kernel.core.state.read(), entries))
    }

    #[pyo3(signature = (entries_max, /))]
    fn take<'py>(&self, entries_max: usize, py: Python<'py>) -> Bound<'py, PyBytes> {
        let is_long = entries_max as u64 > DETACHED_ENTRIES;
        PyBytes::new(py, &detached_if(is_long, py, || self.dump.lock().take(entries_max)))
    }
}

//! The class `RouteBoards`. `routing/decisions/kernel_boards.py` documents every method.

use std::cell::OnceCell;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use prefix_index::names::ScopeRef;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::pybacked::{PyBackedBytes, PyBackedStr};
use pyo3::types::PyBytes;
use routing::boards::{Beside, Boards, Late, Load, Roster, Settings, Target, Usual};
use routing::decided::{Effect, Item, What};
use routing::policy::{Costs, Degraded, RecentWork, Rules};
use routing::predictions::Mark;

use crate::python::Kernel;

#[pyclass(frozen, module = "streams.kernel._native")]
pub struct RouteBoards(pub Arc<Boards>);

type Named = (PyBackedStr, PyBackedStr, u32);
type Scope = (PyBackedStr, PyBackedStr, PyBackedStr, u64, PyBackedStr);
type Standing = (usize, Option<[f64; 11]>, Vec<Late>);
type Loads = (Vec<f64>, Vec<Standing>);
type Published = (Vec<Registered>, Vec<[f64; 7]>, u64, f64, bool, u64);
/// With the tokens of the prompt, and the most that one instance holds of it.
type Answered<'py> = (Bound<'py, PyBytes>, usize, u64);
/// Whether it is a report, else a decision.
type Taken<'py> = (bool, Bound<'py, PyBytes>);
type BoardName = (PyBackedStr, PyBackedStr, Option<PyBackedBytes>);

/// A `BoardTarget` of `kernel_boards.py`.
#[derive(FromPyObject)]
struct Registered {
    instance_id: String,
    dp_rank: u32,
    endpoint: String,
    is_allowed: bool,
    is_degraded: bool,
    is_approximate: bool,
    is_open: bool,
    costs: usize,
    class_name: String,
    kv_bytes: u64,
    capacity_tokens: u64,
    p90: f64,
    is_sure: bool,
    doubts_adapters: bool,
}

/// Numbers of a target's load: as many as `kernel_decisions.py` packs.
const LOAD_FIELDS: usize = 17;

#[pymethods]
impl RouteBoards {
    #[new]
    #[pyo3(signature = (
        run, *, policy, parameters, others, work, degraded, kv_usage_max, wait_max_s, waiting_max,
        too_long_s, approximate_s, queue_items, queue_bytes, answers, answers_bytes, repeat_s,
    ))]
    #[expect(clippy::too_many_arguments, reason = "they are named where it is called")]
    fn new(
        run: u64,
        policy: String,
        parameters: String,
        others: f64,
        work: f64,
        degraded: &str,
        kv_usage_max: f64,
        wait_max_s: f64,
        waiting_max: u64,
        too_long_s: f64,
        approximate_s: f64,
        queue_items: usize,
        queue_bytes: usize,
        answers: usize,
        answers_bytes: usize,
        repeat_s: f64,
    ) -> PyResult<Self> {
        let degraded = Degraded::named(degraded).ok_or_else(|| {
            PyValueError::new_err(format!("Expected keep, zero or drop, got {degraded}"))
        })?;
        let rules = Rules { degraded, kv_usage_max, wait_max_s, waiting_max, others, work };
        Ok(Self(Arc::new(Boards::new(Settings {
            run,
            policy,
            parameters,
            rules,
            too_long_s,
            approximate_s,
            waiting_max: queue_items,
            waiting_bytes_max: queue_bytes,
            answers: routing::boards::Bounds { count: answers, bytes: answers_bytes, repeat_s },
        }))))
    }

    #[getter]
    fn waiting(&self) -> usize {
        self.0.waiting()
    }

    #[pyo3(signature = (name, published, loads, applied, holds_s, /))]
    fn publish(
        &self,
        name: BoardName,
        published: Published,
        loads: Loads,
        applied: u64,
        holds_s: f64,
    ) -> PyResult<()> {
        let (targets, costs, output_tokens, output_token_s, is_closed, label) = published;
        let loads = loads_of(loads, Some(targets.len()))?;
        let targets = targets.into_iter().map(target_of).collect::<Vec<Target>>();
        let costs: Vec<Costs> = costs.into_iter().map(Costs::of).collect();
        if targets.iter().any(|one| one.costs >= costs.len()) {
            return Err(PyValueError::new_err("Expected numbers of costs that are there"));
        }
        let roster = Roster { targets, costs, output_tokens, output_token_s, is_closed, label };
        let until = Instant::now() + Duration::try_from_secs_f64(holds_s).unwrap_or_default();
        self.0.publish(borrowed(&name), roster, loads, applied, until);
        Ok(())
    }

    #[pyo3(signature = (name, loads, applied, holds_s, /))]
    fn refresh(&self, name: BoardName, loads: Loads, applied: u64, holds_s: f64) -> PyResult<bool> {
        let until = Instant::now() + Duration::try_from_secs_f64(holds_s).unwrap_or_default();
        Ok(self.0.refresh(borrowed(&name), loads_of(loads, None)?, applied, until))
    }

    #[pyo3(signature = (name, /))]
    fn withdraw(&self, name: BoardName) {
        self.0.withdraw(borrowed(&name));
    }

    fn withdraw_all(&self) {
        self.0.withdraw_all();
    }

    fn used(&self) -> Vec<u64> {
        self.0.used()
    }

    #[pyo3(signature = (most, /))]
    fn take<'py>(&self, py: Python<'py>, most: usize) -> (Vec<Taken<'py>>, u64) {
        let (items, applied) = self.0.take(if most > 0 { most } else { usize::MAX });
        let taken = items.iter().map(|item| match item {
            Item::Decision(item) => (false, PyBytes::new(py, item)),
            Item::Report(item) => (true, PyBytes::new(py, item)),
        });
        (taken.collect(), applied)
    }

    #[pyo3(signature = (body, now, tenants, /))]
    fn report(&self, body: &[u8], now: f64, tenants: Option<Vec<String>>) -> Option<usize> {
        routing::reports::take(&self.0, body, tenants.as_deref(), now)
    }

    #[pyo3(signature = (count, /))]
    fn set_pace(&self, count: usize) {
        self.0.set_pace(count);
    }

    #[pyo3(signature = (number, /))]
    fn close(&self, number: u64) -> bool {
        self.0.close(number)
    }

    fn close_all(&self) {
        self.0.close_all();
    }

    #[pyo3(signature = (keeps_open, /))]
    fn keep_open(&self, keeps_open: bool) {
        self.0.keep_open(keeps_open);
    }

    #[pyo3(signature = (target, time, work_s, uncached, tokens, /))]
    fn note(&self, target: Named, time: f64, work_s: f64, uncached: u64, tokens: u64) {
        let what = What::Decided;
        let effect = Effect { target: 0, time, work_s, uncached, tokens, what };
        self.0.note(&target.0, &target.1, target.2, effect);
    }

    #[pyo3(signature = (tenant_id, request_id, now, /))]
    fn note_answered(&self, tenant_id: &str, request_id: &str, now: f64) {
        self.0.note_answered(tenant_id, request_id, now);
    }

    #[pyo3(signature = (tenant_id, request_id, /))]
    fn forget_answer(&self, tenant_id: &str, request_id: &str) {
        self.0.forget_answer(tenant_id, request_id);
    }

    #[pyo3(signature = (time, target, scope, marks, *, lasts_s, capacity_blocks=0))]
    fn decided(
        &self,
        time: f64,
        target: Named,
        scope: Scope,
        marks: Vec<Mark>,
        lasts_s: f64,
        capacity_blocks: u64,
    ) {
        // What lasts by a capacity is of targets that Python decides of.
        if capacity_blocks == 0
            && let Some(scope) = scope_of(&scope)
        {
            self.0.hold(time, named(&target), &scope, &marks, lasts_s);
        }
    }

    #[pyo3(signature = (target, scope, marks))]
    fn failed(&self, target: Named, scope: Scope, marks: Vec<Mark>) {
        if let Some(scope) = scope_of(&scope) {
            self.0.fail(named(&target), &scope, &marks);
        }
    }

    #[pyo3(signature = (target, model_name))]
    fn forget(&self, target: Named, model_name: &str) {
        self.0.forget(named(&target), model_name);
    }

    fn forget_all(&self) {
        self.0.forget_predictions();
    }

    fn counts(&self) -> [u64; 5] {
        let Boards { decided, repeated, found_full, reported, rested, .. } = &*self.0;
        [decided, repeated, found_full, reported, rested].map(|count| count.load(Ordering::Relaxed))
    }

    #[pyo3(signature = (kernel, body, state, now, tenants, /))]
    fn route<'py>(
        &self,
        py: Python<'py>,
        kernel: &Kernel,
        body: &[u8],
        state: &Bound<'py, PyAny>,
        now: f64,
        tenants: Option<Vec<String>>,
    ) -> PyResult<Option<Answered<'py>>> {
        let said = OnceCell::new();
        let ask = |scope: &ScopeRef| {
            let ScopeRef { tenant_id, model_name, lora_name, block_size, additional_salt } = scope;
            let scope = (tenant_id, model_name, lora_name, block_size, additional_salt);
            let answer = state.call1(scope).and_then(|found| found.extract::<PyBackedStr>());
            Some(&**said.get_or_init(|| answer).as_ref().ok()?)
        };
        let tenants = tenants.as_deref();
        let routed = routing::route::route(&self.0, body, &kernel.core, tenants, now, ask);
        if let Some(Err(error)) = said.into_inner() {
            return Err(error);
        }
        Ok(routed.map(|routed| (PyBytes::new(py, &routed.text), routed.tokens, routed.held)))
    }
}

fn borrowed(name: &BoardName) -> routing::boards::Name<'_> {
    (&name.0, &name.1, name.2.as_deref())
}

fn named(target: &Named) -> (&str, &str, u32) {
    (&target.0, &target.1, target.2)
}

/// None where its blocks are larger than any that is decided of here.
fn scope_of(scope: &Scope) -> Option<ScopeRef<'_>> {
    let (tenant_id, model_name, lora_name, block_size, additional_salt) = scope;
    let block_size = u32::try_from(*block_size).ok()?;
    Some(ScopeRef { tenant_id, model_name, lora_name, block_size, additional_salt })
}

fn target_of(registered: Registered) -> Target {
    Target {
        instance_id: registered.instance_id,
        dp_rank: registered.dp_rank,
        endpoint: registered.endpoint,
        is_allowed: registered.is_allowed,
        is_degraded: registered.is_degraded,
        is_approximate: registered.is_approximate,
        is_open: registered.is_open,
        costs: registered.costs,
        class_name: registered.class_name,
        kv_bytes: registered.kv_bytes,
        capacity: registered.capacity_tokens,
        p90: registered.p90,
        is_sure: registered.is_sure,
        doubts_adapters: registered.doubts_adapters,
        number: 0,
    }
}

fn loads_of((numbers, standing): Loads, count: Option<usize>) -> PyResult<Vec<Load>> {
    let (loads, rest) = numbers.as_chunks::<LOAD_FIELDS>();
    if !rest.is_empty() || count.is_some_and(|count| count != loads.len()) {
        return Err(PyValueError::new_err(format!(
            "Expected {LOAD_FIELDS} numbers of each target"
        )));
    }
    let known = |value: f64| (!value.is_nan()).then_some(value);
    let load = |numbers: &[f64; LOAD_FIELDS]| {
        let [free_at, requests, pending, active, kv_tokens, rest @ ..] = *numbers;
        let [queued, queued_s, summed_at, rest @ ..] = rest;
        let [at, sent, seconds, span_s, waiting, kv_usage, reachable, sampled, capacity] = rest;
        let work = known(span_s).map(|span_s| RecentWork { at, requests: sent, seconds, span_s });
        Load {
            free_at,
            requests: requests as u64,
            pending: pending as u64,
            active: active as u64,
            kv_tokens: kv_tokens as u64,
            queued: queued as u64,
            queued_s,
            summed_at,
            work,
            waiting: waiting as u64,
            kv_usage,
            is_reachable: reachable != 0.0,
            sampled_at: known(sampled),
            sampled_capacity: capacity as u64,
            beside: None,
            late: Box::default(),
        }
    };
    let mut loads: Vec<Load> = loads.iter().map(load).collect();
    for (place, beside, late) in standing {
        let load = loads.get_mut(place).ok_or_else(|| {
            PyValueError::new_err("Expected what stands at candidates that are there")
        })?;
        (load.beside, load.late) = (beside.map(beside_of), late.into());
    }
    Ok(loads)
}

fn beside_of(numbers: [f64; 11]) -> Beside {
    let [at, requests, waiting, per_s, rest @ ..] = numbers;
    let [tokens, tokens_per_s, prefill_tokens, rest @ ..] = rest;
    let [compute_s, usual_tokens, token_s, each_s] = rest;
    Beside {
        at,
        requests,
        waiting,
        per_s,
        tokens,
        tokens_per_s,
        prefill_tokens: (!prefill_tokens.is_nan()).then_some(prefill_tokens),
        usual: Usual { compute_s, tokens: usual_tokens, token_s },
        each_s,
    }
}

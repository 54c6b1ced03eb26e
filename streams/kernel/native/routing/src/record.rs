//! A decision as Python reads it: `Decision` of `schemas/routing_records.py` with its chosen
//! candidate alone, what its answer says beside it, and all of it as it stands in the log
//! (`routing.decisions.kernel_decisions.KernelDecision`).

use std::ops::Range;

use msgpack::write;
use prefix_index::names::ScopeRef;

use crate::boards::{Load, Roster, Settings};
use crate::policy::{Candidate, Choice, Judged};
use crate::predictions::Mark;

/// All that is known of a decision.
pub struct Made<'a> {
    pub number: u64,
    pub now: f64,
    pub request_id: &'a str,
    pub scope: ScopeRef<'a>,
    pub positions: &'a [(u32, i64)],
    pub state: &'a str,
    pub prompt: u64,
    pub output: u64,
    pub tie: u64,
    pub held: u64,
    pub marks: &'a [Mark],
    pub roster: &'a Roster,
    pub candidates: &'a [Candidate],
    pub judged: &'a [Judged],
    pub chosen: usize,
    pub choice: Choice,
    pub load: Load,
}

impl Made<'_> {
    /// Since the load of the chosen one was observed.
    pub fn load_age_s(&self) -> Option<f64> {
        let age = self.now - self.load.sampled_at?;
        Some(if age > 0.0 { age } else { 0.0 })
    }
}

const FIELDS: usize = 40;
const CANDIDATE_FIELDS: usize = 23;

pub fn encode(made: &Made, settings: &Settings) -> Vec<u8> {
    let mut whole = Vec::with_capacity(512 + 192 * made.candidates.len());
    decision(&mut whole, made, settings, 0..made.judged.len());
    let mut to = Vec::with_capacity(1024 + whole.len());
    write::array(&mut to, 5);
    write::uint(&mut to, made.roster.label);
    write::str(&mut to, &made.roster.targets[made.chosen].endpoint);
    match made.load_age_s() {
        Some(age) => write::float(&mut to, age),
        None => write::nil(&mut to),
    }
    decision(&mut to, made, settings, made.chosen..made.chosen + 1);
    write::bin(&mut to, &whole);
    to
}

/// With these candidates.
fn decision(to: &mut Vec<u8>, made: &Made, settings: &Settings, places: Range<usize>) {
    let roster = made.roster;
    let chosen = &roster.targets[made.chosen];
    write::array(to, FIELDS);
    write::uint(to, made.number);
    write::float(to, made.now);
    write::str(to, made.request_id);
    let ScopeRef { tenant_id, model_name, lora_name, block_size, additional_salt } = made.scope;
    write::array(to, 5);
    for name in [tenant_id, model_name, lora_name] {
        write::str(to, name);
    }
    write::uint(to, block_size.into());
    write::str(to, additional_salt);
    write::str(to, &settings.policy);
    write::array(to, made.positions.len());
    for &(partition, offset) in made.positions {
        write::array(to, 2);
        write::uint(to, partition.into());
        write::int(to, offset.into());
    }
    write::str(to, made.state);
    write::uint(to, made.prompt);
    write::uint(to, made.output);
    write::str(to, "combined");
    write::float(to, 0.0);
    write::float(to, 0.0);
    write::uint(to, 0); // priority
    write::str(to, ""); // session
    write::uint(to, made.tie);
    write::uint(to, 0);
    write::bool(to, false);
    write::array(to, roster.costs.len());
    for costs in &roster.costs {
        write::array(to, 7);
        costs.fields().into_iter().for_each(|field| write::float(to, field));
    }
    write::array(to, places.len());
    places.clone().for_each(|place| candidate(to, made, place, &made.judged[place]));
    write::uint(to, (made.chosen - places.start) as u64);
    write::int(to, -1); // nobody decodes
    write::str(to, ""); // refused
    write::float(to, chosen.p90);
    write::float(to, made.choice.predicted_s());
    write::array(to, made.marks.len());
    for &(blocks, prefix) in made.marks {
        write::array(to, 2);
        write::uint(to, blocks.into());
        write::uint(to, prefix);
    }
    write::bin(to, b"");
    write::uint(to, made.held);
    write::str(to, &chosen.class_name);
    write::str(to, "");
    write::uint(to, chosen.kv_bytes);
    write::uint(to, made.candidates[made.chosen].requests);
    write::uint(to, made.load.kv_tokens);
    write::bool(to, chosen.is_approximate);
    write::uint(to, capacity(made));
    write::nil(to); // last
    write::str(to, settings.rules.degraded.name());
    write::str(to, ""); // traceparent
    write::str(to, ""); // tracestate
    write::float(to, made.output as f64 * roster.output_token_s);
    let is_of_adapter = !made.scope.lora_name.is_empty();
    write::bool(to, chosen.is_sure && !(is_of_adapter && chosen.doubts_adapters));
}

fn capacity(made: &Made) -> u64 {
    let known = made.roster.targets[made.chosen].capacity;
    if known > 0 { known } else { made.load.sampled_capacity }
}

fn candidate(to: &mut Vec<u8>, made: &Made, place: usize, judged: &Judged) {
    let (target, one) = (&made.roster.targets[place], &made.candidates[place]);
    write::array(to, CANDIDATE_FIELDS);
    write::str(to, &target.instance_id);
    write::uint(to, target.dp_rank.into());
    let (reason, choice) = match judged {
        Judged::LeftOut(reason) => (Some(*reason), None),
        Judged::Ranked(choice) => (one.is_degraded.then_some("degraded"), Some(choice)),
    };
    write::array(to, usize::from(reason.is_some()));
    if let Some(reason) = reason {
        write::str(to, reason);
    }
    for tokens in [one.cached, one.gpu, one.cached - one.disk, one.cached] {
        write::uint(to, tokens);
    }
    write::float(to, one.wait_s);
    for count in [one.requests, one.pending, one.active, 0, one.costs as u64] {
        write::uint(to, count);
    }
    write::float(to, choice.map_or(0.0, |choice| choice.key));
    write::uint(to, choice.map_or(0, |choice| choice.prefix));
    write::str(to, ""); // it fetches from nobody
    write::float(to, choice.map_or(0.0, |choice| choice.queue_s));
    write::float(to, choice.map_or(0.0, |choice| choice.load_s));
    write::float(to, 0.0);
    write::float(to, choice.map_or(0.0, |choice| choice.prefill_s));
    write::float(to, 0.0);
    write::uint(to, one.predicted);
    write::float(to, one.others);
}

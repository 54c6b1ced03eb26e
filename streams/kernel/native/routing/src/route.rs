//! One decision, from its body to its answer.

use std::collections::BTreeSet;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use msgpack::write;
use prefix_index::core::Core;
use prefix_index::names::ScopeRef;
use prefix_index::walk::{self, Prompt};
use xxhash_rust::xxh3::xxh3_128;

use crate::answers::{Answer, Found};
use crate::boards::{Boards, Roster};
use crate::bodies::{self, Asked};
use crate::decided::{Effect, Item, What};
use crate::document::{self, is_plain};
use crate::open_decisions::Open;
use crate::policy::{Candidate, Judged, decide, tie_of};
use crate::predictions::{DECISION_MARKS_MAX, Mark, predicted_s};
use crate::record::{self, Made};

pub struct Routed {
    pub text: Arc<[u8]>,
    /// Of the prompt, and the most that one instance holds of it.
    pub tokens: usize,
    pub held: u64,
}

/// What the index says of a prompt, by candidate.
struct Prefix<'a> {
    scope: ScopeRef<'a>,
    hashes: Vec<u8>,
    /// cached, gpu, disk.
    held: Vec<[u64; 3]>,
    longest: u64,
}

/// The answer to a plain body; None where Python has to decide.
///
/// `tenants`: whom it may be about; None: everybody. `now`: Unix seconds. `state`: how far answers
/// of a scope can be trusted, asked once the index was.
pub fn route<'s>(
    boards: &Boards,
    body: &[u8],
    core: &Core,
    tenants: Option<&[String]>,
    now: f64,
    state: impl FnOnce(&ScopeRef) -> Option<&'s str>,
) -> Option<Routed> {
    let asked = bodies::read(body)?;
    // Before anything is looked up: the time that takes would tell of others' prompts.
    tenants.is_none_or(|known| known.iter().any(|one| one == asked.tenant_id)).then_some(())?;
    let name = (asked.tenant_id, asked.model, asked.candidates);
    let roster = boards.roster(name)?;
    let position = String::from_utf8(core.positions.text()).ok()?; // before it is asked: at least this
    let positions = positions_of(&position)?;
    let found = look_up(&asked, &roster, core)?;
    let state = state(&found.scope)?;
    let question = question_of(&asked, &found);
    let prompt = (asked.tokens.len() / 4) as u64;
    let (hashes, _) = found.hashes.as_chunks::<8>();
    let settings = &boards.settings;

    let mut inner = boards.inner.lock();
    if !asked.request_id.is_empty() {
        match inner.answers.find(asked.tenant_id, asked.request_id, question, now) {
            Found::Nothing => {}
            Found::Pythons => return None,
            Found::Again(Answer { text, held, .. }) => {
                boards.repeated.fetch_add(1, Ordering::Relaxed);
                return Some(Routed { text, tokens: prompt as usize, held });
            }
        }
    }
    if inner.waiting.is_full() {
        boards.found_full.fetch_add(1, Ordering::Relaxed);
        return None;
    }
    inner.board(name, &roster)?;
    let candidates = {
        let mut soon = vec![0; roster.targets.len()];
        inner.predictions.longest(&found.scope, hashes, now, |target, blocks| {
            if let Some(place) = roster.targets.iter().position(|one| one.number == target) {
                soon[place] = (u64::from(blocks) * u64::from(asked.block_size)).min(prompt);
            }
        });
        let loads = inner.loads(name);
        let each = roster.targets.iter().zip(loads).zip(found.held).zip(soon);
        let each = each.map(|(((target, load), [mut cached, mut gpu, mut disk]), soon)| {
            let mut predicted = 0;
            if soon > cached {
                (predicted, gpu, disk, cached) = (soon - cached, soon, 0, soon);
            }
            let carried = load.carried(now);
            Candidate {
                cached,
                gpu,
                disk,
                predicted,
                wait_s: carried.wait_s,
                requests: carried.requests,
                pending: carried.pending,
                active: carried.active,
                others: load.work.map_or(0.0, |work| work.others(now)),
                costs: target.costs,
                waiting: load.waiting,
                kv_usage: load.kv_usage,
                is_allowed: target.is_allowed,
                is_reachable: load.is_reachable,
                is_degraded: target.is_degraded,
            }
        });
        each.collect::<Vec<Candidate>>()
    };
    let number = inner.number;
    let tie = tie_of(settings.run, number);
    let named = |place: usize| (&*roster.targets[place].instance_id, roster.targets[place].dp_rank);
    let (judged, chosen) = decide(&candidates, named, prompt, tie, &settings.rules, &roster.costs);
    let chosen = chosen?;
    let Judged::Ranked(choice) = judged[chosen] else { return None };
    (choice.predicted_s() <= settings.too_long_s).then_some(())?;
    // What is not finite stands in no record.
    let is_finite = |one: &Judged| !matches!(one, Judged::Ranked(one) if !one.key.is_finite());
    judged.iter().all(is_finite).then_some(())?;
    candidates.iter().all(|one| one.others.is_finite()).then_some(())?;
    let target = &roster.targets[chosen];
    let load = inner.loads(name)[chosen].clone();
    let held = candidates.iter().map(|one| one.cached).max().unwrap_or(0).max(found.longest);
    let foretold = candidates.iter().filter(|one| one.predicted > 0).map(|one| one.cached).max();
    let longest = found.longest.max(foretold.unwrap_or(0)) / u64::from(asked.block_size);
    let marks = marks_of(hashes, longest as usize);
    let made_up;
    let request_id = if asked.request_id.is_empty() {
        made_up = random_name();
        &made_up
    } else {
        asked.request_id
    };
    let output = asked.expected_output_tokens.unwrap_or(roster.output_tokens);
    let made = Made {
        number,
        now,
        request_id,
        scope: found.scope,
        positions: &positions,
        state,
        prompt,
        output,
        tie,
        held,
        marks: &marks,
        roster: &roster,
        candidates: &candidates,
        judged: &judged,
        chosen,
        choice,
        load,
    };
    let are_plain = [request_id, &target.instance_id, &target.endpoint].into_iter().all(is_plain);
    are_plain.then_some(())?;
    let text: Arc<[u8]> = document::write(&made, settings, &position).into();
    let item = Item::Decision(record::encode(&made, settings));
    inner.number += 1;
    let predicted = choice.predicted_s();
    let effect = Effect {
        target: target.number,
        time: now,
        work_s: choice.work_s(),
        uncached: prompt - choice.prefix.min(prompt),
        tokens: prompt + output,
        what: What::Decided,
    };
    inner.effects.push(effect);
    let behind = inner.effects.next();
    inner.waiting.push(item, behind);
    boards.note_waiting(inner.waiting.len());
    if inner.keeps_open {
        let Effect { target, time, work_s, uncached, tokens, .. } = effect;
        let (tenant_id, end_at) = (asked.tenant_id.into(), time + predicted);
        inner.open.add(
            number,
            Open { tenant_id, target, time, work_s, end_at, uncached, tokens, seen: 0 },
        );
    }
    let lasts_s =
        if target.is_approximate { settings.approximate_s } else { predicted_s(predicted) };
    inner.predictions.hold(now, target.number, &found.scope, &marks, lasts_s);
    let answer = Answer { question, text: text.clone(), held };
    inner.answers.keep(asked.tenant_id, request_id, now, Some(answer));
    boards.decided.fetch_add(1, Ordering::Relaxed);
    Some(Routed { text, tokens: prompt as usize, held })
}

fn look_up<'a>(asked: &Asked<'a>, roster: &Roster, core: &Core) -> Option<Prefix<'a>> {
    let plain = ScopeRef {
        tenant_id: asked.tenant_id,
        model_name: asked.model,
        lora_name: asked.lora_name,
        block_size: asked.block_size,
        additional_salt: "",
    };
    let mut scope = plain;
    let mut first_key = Vec::new();
    let state = core.state.read();
    let index = &state.index;
    let find =
        |scope: &ScopeRef| index.scope_ids.get(scope).map(|&number| &index.scopes[number as usize]);
    if !asked.cache_salt.is_empty() {
        // As a query: a namespace of that name that is known, or else the request's own.
        let named = ScopeRef { additional_salt: asked.cache_salt, ..plain };
        if find(&named).is_some_and(|scope| !scope.roster.is_empty()) {
            scope = named;
        } else {
            write::array(&mut first_key, 1);
            write::str(&mut first_key, asked.cache_salt);
        }
    }
    let known = find(&scope).filter(|scope| !scope.roster.is_empty())?;
    let keys = [&first_key[..]];
    let prompt = (&asked.tokens[..], &keys[..]);
    if walk::has_pairs(known, index.placement, &core.hasher, prompt) {
        return None;
    }
    let size = asked.block_size as usize;
    let hashes = walk::prefix_hashes(&core.hasher, prompt.0, prompt.1, size, usize::MAX);
    let by_hash = Prompt::Hashes(hashes.as_chunks().0);
    let walked = walk::walk(&state, known, &core.hasher, &by_hash, None, None)?;
    let mut held = vec![[0; 3]; roster.targets.len()];
    let mut longest = 0;
    let mut at = 0;
    for entry in walked.roster {
        while roster.targets.get(at).is_some_and(|one| *one.instance_id < *entry.name) {
            at += 1;
        }
        let ranks =
            roster.targets[at..].iter().take_while(|one| *one.instance_id == *entry.name).count();
        if ranks == 0 && roster.is_closed {
            return None; // a holder that nobody has registered
        }
        let places = at..at + ranks;
        let is_known =
            |rank: u32| roster.targets[places.clone()].iter().any(|one| one.dp_rank == rank);
        let is_open = roster.targets[places.clone()].iter().any(|one| one.is_open);
        if is_open && !entry.ranks.iter().all(|&(rank, _)| is_known(rank)) {
            return None; // it has ranks that nobody has registered
        }
        if walked.longest(entry) == 0 {
            continue;
        }
        longest = longest.max(walked.longest(entry));
        for rank in walked.depths(entry).ranks {
            let [matched, gpu, cpu, disk] = rank.depths;
            let place = places.clone().find(|&at| roster.targets[at].dp_rank == rank.dp_rank);
            if let Some(place) = place {
                held[place] = [matched.max(disk), gpu, disk - cpu];
            }
        }
    }
    Some(Prefix { scope, hashes, held, longest })
}

/// Partition and offset of each, from how answers have them; None where nothing was folded.
fn positions_of(text: &str) -> Option<Vec<(u32, i64)>> {
    let each = text.split(',').map(|one| {
        let (partition, offset) = one.split_once(':')?;
        Some((partition.parse().ok()?, offset.parse().ok()?))
    });
    each.collect()
}

/// A prompt is marked at the powers of two, where its match ends, and at its end.
fn marks_of(hashes: &[[u8; 8]], longest: usize) -> Vec<Mark> {
    let mut depths = BTreeSet::new();
    let blocks = hashes.len();
    let mut depth = 1;
    while depth <= blocks {
        depths.insert(depth);
        depth *= 2;
    }
    depths.extend([blocks, longest].into_iter().filter(|depth| (1..=blocks).contains(depth)));
    let mark = |depth: usize| (depth as u32, u64::from_le_bytes(hashes[depth - 1]));
    debug_assert!(depths.len() <= DECISION_MARKS_MAX);
    depths.into_iter().map(mark).collect()
}

/// What makes two requests of one id the same.
fn question_of(asked: &Asked, found: &Prefix) -> u128 {
    let mut text = Vec::with_capacity(256);
    let scope = &found.scope;
    for name in [scope.tenant_id, scope.model_name, scope.lora_name, scope.additional_salt] {
        write::str(&mut text, name);
    }
    write::uint(&mut text, scope.block_size.into());
    write::uint(&mut text, asked.tokens.len() as u64);
    write::bin(&mut text, found.hashes.last_chunk::<8>().map_or(&[], |last| last));
    match asked.candidates {
        Some(raw) => write::bin(&mut text, raw),
        None => write::nil(&mut text),
    }
    xxh3_128(&text)
}

/// 128 bits that no other request has, in hexadecimal.
fn random_name() -> String {
    static MADE: AtomicU64 = AtomicU64::new(0);
    thread_local! {
        static KEYS: [RandomState; 2] = [RandomState::new(), RandomState::new()];
    }
    let number = MADE.fetch_add(1, Ordering::Relaxed);
    let word = |keys: &RandomState| {
        let mut hasher = keys.build_hasher();
        hasher.write_u64(number);
        hasher.finish()
    };
    KEYS.with(|[one, other]| format!("{:016x}{:016x}", word(one), word(other)))
}

//! The query by what engines themselves call their blocks: how many of the first ones each
//! publisher holds.
//!
//! Each publisher's own names decide. Where publishers of a scope call blocks alike, one look-up of
//! a name is good for all of them: it gives the block's holder set, which says who else holds it.

use crate::entry_table::Entry;
use crate::names::{ScopeRef, is_shared};
use crate::publisher::Publisher;
use crate::state::{Index, State};

/// Names looked up at a time, where the first of them was found.
const AHEAD: usize = 32;

/// Of the publishers of a tenant, and of a model where one is named: their numbers, and how much each
/// holds, which is above 0; sorted.
pub fn query(
    state: &State,
    tenant_id: &str,
    model_name: Option<&str>,
    hashes: &[[u8; 8]],
) -> Vec<(u64, usize)> {
    let mut trail = Trail::default();
    let mut found = Vec::new();
    for (&id, publisher) in &state.publishers {
        let stream = &publisher.stream;
        let is_asked = *stream.tenant_id == *tenant_id
            && model_name.is_none_or(|name| *stream.model_name == *name);
        if is_asked && publisher.entries.len() > 0 {
            let blocks = trail.walk(&state.index, publisher, hashes);
            if blocks > 0 {
                found.push((id, blocks));
            }
        }
    }
    found.sort_unstable();
    found
}

/// What a publisher calls the first blocks of a prompt, u64 LE: as far as it holds them itself, under
/// the names that they were announced by first.
pub fn names(
    state: &State,
    scope: ScopeRef<'_>,
    instance_id: &str,
    dp_rank: u32,
    prefixes: &[[u8; 8]],
) -> Vec<u8> {
    let index = &state.index;
    let mut names = Vec::new();
    let Some(&number) = index.scope_ids.get(&scope) else { return names };
    let known = &index.scopes[number as usize];
    let publisher = known
        .publishers()
        .filter_map(|id| state.publishers.get(&id))
        .find(|one| *one.stream.instance_id == *instance_id && one.dp_rank == dp_rank);
    let Some(publisher) = publisher else { return names };
    let keys = index.keys(publisher);
    for prefix in prefixes {
        let slot = known.find(u64::from_le_bytes(*prefix), index.placement);
        let Some(slot) = slot else { break };
        let name = known.slots.key(slot);
        let entry = publisher.entries.find(name, keys);
        let is_own = entry
            .is_some_and(|entry| entry.slot == slot && scope_of(publisher, &entry) == Some(number));
        if !is_own {
            break;
        }
        names.extend(name.to_le_bytes());
    }
    names
}

/// The blocks that the first names were found to mean in one scope each, as far as the names are
/// those of their slots: a publisher all of whose names are those of slots holds the block of a
/// slot if and only if it calls it so.
#[derive(Default)]
struct Trail {
    runs: Vec<Run>,
}

/// Blocks that have one holder set: those before `end` which are in no run before.
struct Run {
    scope: u32,
    set: u32,
    end: usize,
}

impl Trail {
    fn len(&self) -> usize {
        self.runs.last().map_or(0, |run| run.end)
    }

    fn push(&mut self, scope: u32, set: u32) {
        let end = self.len() + 1;
        match self.runs.last_mut() {
            Some(last) if (last.scope, last.set) == (scope, set) => last.end = end,
            _ => self.runs.push(Run { scope, set, end }),
        }
    }

    /// How many of the first names a publisher has, each for a block that it holds itself.
    fn walk(&mut self, index: &Index, publisher: &Publisher, hashes: &[[u8; 8]]) -> usize {
        let mut depth = self.follow(index, publisher);
        let keys = index.keys(publisher);
        let mut wanted = [0; AHEAD];
        let mut found = [None; AHEAD];
        // Behind the trail most have no more.
        let mut ahead = 1;
        while depth < hashes.len() {
            let len = ahead.min(hashes.len() - depth);
            for (place, hash) in wanted.iter_mut().zip(&hashes[depth..]).take(len) {
                *place = u64::from_le_bytes(*hash);
            }
            publisher.entries.find_all(&wanted[..len], keys, &mut found[..len]);
            for entry in &found[..len] {
                let Some(scope) = entry.and_then(|entry| scope_of(publisher, &entry)) else {
                    return depth;
                };
                if let (true, Some(entry)) = (depth == self.len(), entry) {
                    let slots = &index.scopes[scope as usize].slots;
                    if slots.key(entry.slot) == entry.key {
                        self.push(scope, slots.set(entry.slot));
                    }
                }
                depth += 1;
            }
            ahead = AHEAD;
        }
        depth
    }

    /// As far as holder sets tell.
    fn follow(&self, index: &Index, publisher: &Publisher) -> usize {
        if !publisher.entries.has_rows_only() {
            return 0;
        }
        let mut depth = 0;
        let (mut scope, mut member) = (None, None);
        for run in &self.runs {
            if scope != Some(run.scope) {
                scope = Some(run.scope);
                member = member_in(index, publisher, run.scope);
            }
            let masks = &index.scopes[run.scope as usize].sets.masks;
            if !member.is_some_and(|member| masks.is_own(run.set, member)) {
                break;
            }
            depth = run.end;
        }
        depth
    }
}

/// What a scope calls the publisher, where it has a part in it.
fn member_in(index: &Index, publisher: &Publisher, scope: u32) -> Option<u32> {
    let lora_name = &index.scopes[scope as usize].key.lora_name;
    let part = publisher.memberships.get(publisher.memberships.number_of(lora_name)?)?;
    (part.scope == scope).then_some(part.member)
}

/// The scope of a block that the publisher holds on a tier of its own; None where it does not, or
/// no block is known yet.
fn scope_of(publisher: &Publisher, entry: &Entry) -> Option<u32> {
    let part = publisher.memberships.get(entry.membership)?;
    let is_own = !part.hidden && entry.tiers().any(|tier| !is_shared(tier));
    is_own.then_some(part.scope)
}

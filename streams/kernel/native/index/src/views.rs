//! What the state looks like from outside: scopes, contexts, dumps and sizes.

use std::collections::BTreeMap;

use hashbrown::HashSet;
use xxhash_rust::xxh3::xxh3_64;

use crate::memberships::Membership;
use crate::names::{ContextKey, LEFT_OUT, ScopeKey, ScopeRef, TIERS, is_hidden};
use crate::publisher::Publisher;
use crate::scope::Scope;
use crate::state::State;

/// Reason of blocks that not all cache groups hold which form prefixes; answers count them.
const GROUPS_DIFFER: &str = "groups_differ";
/// Reason of objects of a pool of which it is not known which blocks they are.
const OBJECTS_WAIT: &str = "objects_wait";

pub struct ScopeView {
    pub key: ScopeKey,
    pub blocks: usize,
    /// Instances with their ranks, sorted.
    pub instances: Vec<(String, Vec<u32>)>,
}

pub struct ContextView {
    pub key: ContextKey,
    pub digest: u64,
    pub entries: u64,
}

fn scope_is_shown(scope: &Scope) -> bool {
    !is_hidden(&scope.key.lora_name)
        && scope.has_members()
        && (scope.slots.len() > 0 || !scope.roster.is_empty())
}

pub fn scopes(state: &State) -> Vec<ScopeView> {
    let shown = state.index.scope_ids.values();
    let shown = shown.map(|&number| &state.index.scopes[number as usize]);
    let mut views: Vec<ScopeView> = shown
        .filter(|scope| scope_is_shown(scope))
        .map(|scope| {
            let instances = scope.roster.entries().iter().map(|entry| {
                let ranks = entry.ranks.iter().map(|&(dp_rank, _)| dp_rank).collect();
                (entry.name.to_string(), ranks)
            });
            ScopeView {
                key: scope.key.clone(),
                blocks: scope.slots.len(),
                instances: instances.collect(),
            }
        })
        .collect();
    views.sort_unstable_by(|a, b| a.key.cmp(&b.key));
    views
}

/// What a publisher has and no answer counts: blocks by reason, sorted.
pub fn left_out(publisher: &Publisher) -> Vec<(&str, u64)> {
    let parts = publisher.left_out().filter(|part| part.entries > 0);
    let mut found: Vec<_> =
        parts.map(|part| (&part.lora_name[LEFT_OUT.len()..], part.entries)).collect();
    let uneven = publisher.memberships.iter().map(|part| part.uneven).sum();
    found.extend((uneven > 0).then_some((GROUPS_DIFFER, uneven)));
    let waiting = publisher.waiting();
    found.extend((waiting > 0).then_some((OBJECTS_WAIT, waiting)));
    found.sort_unstable();
    found
}

/// The instances of which nothing says whether they could use what a pool has under an adapter: they
/// are registered without one, and hold no block of their own under it; sorted.
pub fn without_adapter<'a>(state: &'a State, key: ScopeRef<'_>) -> Vec<&'a str> {
    let Some(&number) = state.index.scope_ids.get(&key) else { return Vec::new() };
    if key.lora_name.is_empty() {
        return Vec::new();
    }
    let part_of = |publisher: &'a Publisher| {
        let number = publisher.memberships.number_of(key.lora_name)?;
        publisher.memberships.get(number)
    };
    let members = state.index.scopes[number as usize].publishers();
    let members: Vec<&Publisher> = members.filter_map(|id| state.publishers.get(&id)).collect();
    let shares = |part: &Membership| part.entries > part.own;
    let pools: Vec<&Publisher> =
        members.iter().copied().filter(|&one| part_of(one).is_some_and(shares)).collect();
    let takes_part = |part: &Membership| part.registered || part.own > 0;
    let known: HashSet<&str> = (members.iter())
        .copied()
        .filter(|&one| part_of(one).is_some_and(takes_part))
        .map(|one| &*one.stream.instance_id)
        .collect();
    let base = ScopeRef { lora_name: "", ..key };
    let is_registered = |one: &&Publisher| {
        let is_without = one.routable && one.registered_lora.as_deref() == Some("");
        is_without
            && base == one.stream.scope_ref("")
            && pools.iter().any(|pool| one.can_read(pool))
    };
    let registered = state.publishers.values().filter(is_registered);
    let mut found: Vec<&str> = registered.map(|one| &*one.stream.instance_id).collect();
    found.retain(|instance| !known.contains(instance));
    found.sort_unstable();
    found.dedup();
    found
}

/// Whether for one block at least objects wait at each of these publishers.
pub fn wait_together(state: &State, publishers: &[&Publisher]) -> bool {
    let Some((first, others)) = publishers.split_first() else { return false };
    first.memberships.iter().filter(|part| part.waits && part.entries > 0).any(|part| {
        let of_other = |other: &&Publisher| {
            let number = other.memberships.number_of(&part.lora_name)?;
            let other = other.memberships.get(number)?;
            (other.scope == part.scope).then_some(other.member)
        };
        let Some(mut members) = others.iter().map(of_other).collect::<Option<Vec<u32>>>() else {
            return false;
        };
        members.push(part.member);
        let mut sets = state.index.scopes[part.scope as usize].sets.used();
        sets.any(|holders| {
            members.iter().all(|&member| holders.iter().any(|holder| holder / TIERS == member))
        })
    })
}

pub fn contexts(state: &State) -> Vec<ContextView> {
    let mut sums: BTreeMap<&ContextKey, (u64, u64)> = BTreeMap::new();
    let memberships = state.publishers.values().flat_map(|publisher| publisher.memberships.iter());
    for membership in memberships.filter(|membership| membership.entries > 0) {
        if let Some(key) = state.index.changes.key(membership.context) {
            let (digest, entries) = sums.entry(key).or_default();
            *digest = digest.wrapping_add(membership.digest);
            *entries += membership.entries;
        }
    }
    let views = sums.into_iter().map(|(key, (digest, entries))| ContextView {
        key: key.clone(),
        digest,
        entries,
    });
    views.collect()
}

pub fn stats(state: &State) -> [(&'static str, u64); 8] {
    let index = &state.index;
    let shown: Vec<&Scope> = index.scopes.iter().filter(|scope| scope_is_shown(scope)).collect();
    let publishers = state.publishers.values();
    let memory = publishers.clone().map(Publisher::memory_bytes).sum::<usize>()
        + index.scopes.iter().map(Scope::memory_bytes).sum::<usize>()
        + index.changes.memory_bytes()
        + index.leaving.memory_bytes();
    [
        ("blocks", shown.iter().map(|scope| scope.slots.len() as u64).sum()),
        ("entries", publishers.map(Publisher::shown_entries).sum()),
        ("publishers", state.publishers.len() as u64),
        ("scopes", shown.len() as u64),
        ("holder_sets", holder_sets(&shown)),
        ("waiting", index.waiting),
        ("left_out", index.left_out),
        ("memory_bytes", memory as u64),
    ]
}

/// Distinct sets of (publisher, tier). The same set in two scopes counts once.
fn holder_sets(scopes: &[&Scope]) -> u64 {
    if let [scope] = scopes {
        return scope.sets.used_len() as u64;
    }
    let mut distinct = HashSet::new();
    let mut named = Vec::new();
    for scope in scopes {
        for holders in scope.sets.used() {
            // Members are numbered within their scope, publishers are not.
            named.clear();
            named.extend(holders.iter().map(|holder| {
                let publisher = scope.publisher_of(holder / TIERS);
                // Of one that was cleared and is yet to be released it is `u64::MAX`.
                publisher.wrapping_mul(TIERS.into()).wrapping_add((holder % TIERS).into())
            }));
            named.sort_unstable();
            let bytes: Vec<u8> = named.iter().flat_map(|holder| holder.to_le_bytes()).collect();
            distinct.insert(xxh3_64(&bytes));
        }
    }
    distinct.len() as u64
}

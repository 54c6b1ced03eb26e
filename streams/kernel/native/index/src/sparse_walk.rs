//! How much of a prefix an instance can use, where its engines have sparse cache groups:
//! `streams/kernel/sparse_groups.py` is the specification.

use std::sync::Arc;

use crate::hashing::{Placement, group_mask};
use crate::names::{SHARED, ScopeRef, owned_tier, sparse_name};
use crate::publisher::Rule;
use crate::roster::{Bits, RosterEntry};
use crate::scope::Scope;
use crate::sets::holder_of;
use crate::state::State;

/// A rank with such groups.
struct Rank<'a> {
    /// What the prompt's scope calls it.
    member: u32,
    /// What the scope beside it does, where its sparse groups hold something.
    beside: Option<u32>,
    rules: &'a [Rule],
}

/// The blocks of sparse groups, as far as a prompt needs them.
struct Beside<'a> {
    scope: Option<&'a Scope>,
    placement: Placement,
    prefixes: &'a [[u8; 8]],
}

impl Beside<'_> {
    /// Whether one of the ranks holds a group's block at a place itself, on one of these media.
    fn is_held(&self, ranks: &[&Rank], media: &[u32], group: u32, place: u32) -> bool {
        let Some(scope) = self.scope else { return false };
        let prefix = u64::from_le_bytes(self.prefixes[place as usize]) ^ group_mask(group);
        let Some(slot) = scope.find(prefix, self.placement) else { return false };
        let holders = scope.sets.holders(scope.slots.set(slot));
        ranks.iter().filter_map(|rank| rank.beside).any(|member| {
            media
                .iter()
                .flat_map(|&medium| [medium, owned_tier(medium)])
                .any(|tier| holders.binary_search(&holder_of(member, tier)).is_ok())
        })
    }

    fn usable(&self, blocks: u32, rules: &[Rule], ranks: &[&Rank], media: &[u32]) -> u32 {
        usable(blocks, rules, |group, place| self.is_held(ranks, media, group, place))
    }
}

/// The longest prefix of at most so many blocks of which each group has what it needs. Cost O(blocks)
/// for each group.
fn usable(blocks: u32, rules: &[Rule], mut is_held: impl FnMut(u32, u32) -> bool) -> u32 {
    let mut length = blocks;
    // From where on each group is known to have all up to the length.
    let mut known = vec![blocks; rules.len()];
    'shorter: loop {
        for (rule, known) in rules.iter().zip(&mut known) {
            *known = length.min(*known);
            while *known > length.saturating_sub(rule.last_blocks) {
                if !is_held(rule.group, *known - 1) {
                    length = *known - 1; // any longer one needs it, too
                    continue 'shorter;
                }
                *known -= 1;
            }
        }
        return length;
    }
}

/// Cuts the depths of instances with sparse groups to what they can use. `cut` is given those whose
/// longest prefix becomes shorter, each with the group that ended it.
pub fn limit(
    state: &State,
    scope: &Scope,
    roster: &[RosterEntry],
    (depths, bits): (&mut [u32], &Bits),
    prefixes: &[[u8; 8]],
    mut cut: Option<&mut Vec<(Arc<str>, u32)>>,
) {
    let index = &state.index;
    let name = sparse_name(&scope.key.lora_name);
    let beside = name.as_deref().and_then(|lora_name| {
        let key = ScopeRef { lora_name, ..scope.key.as_ref() };
        index.scope_ids.get(&key).map(|&number| &index.scopes[number as usize])
    });
    let beside = Beside { scope: beside, placement: index.placement, prefixes };
    for entry in roster {
        let at = |part: usize| 64 * part * bits.instance_words + entry.instance as usize;
        let longest = depths[at(0)];
        if longest == 0 {
            continue;
        }
        let Some(ranks) = ranks_of(state, scope, entry, name.as_deref()) else { continue };
        // Of a sharded instance each rank must have its part.
        let parts: Vec<Vec<&Rank>> = if entry.is_sharded {
            ranks.iter().map(|rank| vec![rank]).collect()
        } else {
            vec![ranks.iter().collect()]
        };
        let parts: Vec<(Vec<Rule>, Vec<&Rank>)> =
            parts.into_iter().map(|ranks| (together(&ranks), ranks)).collect();
        let of_all = |blocks: u32, media: &[u32]| {
            let of_part = |(rules, ranks): &(Vec<Rule>, Vec<&Rank>)| {
                beside.usable(blocks, rules, ranks, media)
            };
            parts.iter().map(of_part).min().unwrap_or(blocks)
        };
        let every: [u32; SHARED as usize] = std::array::from_fn(|medium| medium as u32);
        let whole = of_all(longest, &every);
        depths[at(0)] = whole;
        for medium in every {
            let at = at(1 + medium as usize);
            depths[at] = of_all(depths[at], &[medium]);
        }
        for rank in &ranks {
            let at =
                |part: usize| 64 * (bits.own() + part * bits.member_words) + rank.member as usize;
            for part in 0..=every.len() {
                let mut depth = depths[at(part)];
                if entry.is_sharded {
                    depth = depth.min(longest);
                }
                let media = if part == 0 { &every[..] } else { &every[..part] };
                depths[at(part)] = beside.usable(depth, rank.rules, &[rank], media);
            }
        }
        if let Some(cut) = cut.as_deref_mut().filter(|_| whole < longest) {
            let alone = parts.iter().flat_map(|(rules, ranks)| {
                let of_rule =
                    |rule: &Rule| (beside.usable(longest, &[*rule], ranks, &every), rule.group);
                rules.iter().map(of_rule)
            });
            cut.extend(alone.min().map(|(_, group)| (entry.name.clone(), group)));
        }
    }
}

/// Those with sparse groups; None where there is none, or one has some without a rule.
fn ranks_of<'a>(
    state: &'a State,
    scope: &Scope,
    entry: &RosterEntry,
    name: Option<&str>,
) -> Option<Vec<Rank<'a>>> {
    let mut ranks = Vec::new();
    for &(_, member) in &entry.ranks {
        let Some(publisher) = state.publishers.get(&scope.publisher_of(member)) else { continue };
        if publisher.has_unruled {
            return None;
        }
        if !publisher.rules.is_empty() {
            let parts = &publisher.memberships;
            let part = name.and_then(|name| parts.get(parts.number_of(name)?));
            let beside = part.map(|part| part.member);
            ranks.push(Rank { member, beside, rules: &publisher.rules });
        }
    }
    Some(ranks).filter(|ranks| !ranks.is_empty())
}

/// The rules of several ranks, as of one, by group.
fn together(ranks: &[&Rank]) -> Vec<Rule> {
    let mut rules: Vec<Rule> = ranks.iter().flat_map(|rank| rank.rules).copied().collect();
    rules.sort_unstable_by_key(|rule| (rule.group, std::cmp::Reverse(rule.last_blocks)));
    rules.dedup_by_key(|rule| rule.group);
    rules
}

#[cfg(test)]
mod tests {
    use super::{Rule, usable};
    use crate::random::Random;

    #[test]
    fn usable_is_the_longest_of_which_each_group_has_its_last_blocks() {
        let mut random = Random(7);
        for _ in 0..5000 {
            let blocks = random.below(12) as u32;
            let rules: Vec<Rule> = (0..random.below(4) as u32)
                .map(|group| Rule { group, last_blocks: 1 + random.below(5) as u32 })
                .collect();
            let held: Vec<u64> = rules.iter().map(|_| random.below(1 << 12) as u64).collect();
            let is_held = |group: u32, place: u32| held[group as usize] >> place & 1 == 1;
            let fits = |length: &u32| {
                rules.iter().all(|rule| {
                    (length.saturating_sub(rule.last_blocks)..*length)
                        .all(|place| is_held(rule.group, place))
                })
            };
            let expected = (0..=blocks).rev().find(fits);
            assert_eq!(Some(usable(blocks, &rules, is_held)), expected, "{rules:?} {held:?}");
        }
    }
}

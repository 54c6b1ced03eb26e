//! Who will hold a prompt soon, as decisions say, until its engine's events do. What holds is
//! Python's to say (`routing.observed.prediction_rules`): it tells the decisions that it makes or
//! reads, and what failed; decisions of this side are noted as they are made.

use std::collections::{BTreeMap, VecDeque};

use hashbrown::HashMap;
use prefix_index::names::{ScopeKey, ScopeRef};
use slab::Slab;

/// As `PREDICTED_MARKS_MAX` in `routing/bounds.py`; beyond, those go that were to end first.
pub const MARKS_MAX: usize = 262_144;
/// Of one decision.
pub const DECISION_MARKS_MAX: usize = 64;

const PREDICTED_S: f64 = 2.0;
const LONGEST: f64 = 32.0;

/// How long a prediction lasts where events are to come.
pub fn predicted_s(ttft_s: f64) -> f64 {
    let mut lasts = PREDICTED_S;
    while lasts < ttft_s + PREDICTED_S / 2.0 && lasts < LONGEST * PREDICTED_S {
        lasts *= 2.0;
    }
    lasts
}

/// A prefix: so many blocks, and its hash.
pub type Mark = (u32, u64);

#[derive(Clone, Copy)]
struct Held {
    target: u32,
    blocks: u32,
    until: f64,
}

struct ScopeMarks {
    key: ScopeKey,
    holders: HashMap<u64, Vec<Held>>,
    /// How many marks there are at each number of blocks.
    depths: BTreeMap<u32, usize>,
}

struct Place {
    until: f64,
    scope: u32,
    prefix: u64,
    target: u32,
}

#[derive(Default)]
pub struct Predictions {
    numbers: HashMap<ScopeKey, u32>,
    scopes: Slab<ScopeMarks>,
    count: usize,
    /// By how long they last, in the order of their ends: nanoseconds, as a key.
    order: BTreeMap<u64, VecDeque<Place>>,
}

impl Predictions {
    /// A prompt was sent to a target, which is to hold it for so long.
    pub fn hold(&mut self, now: f64, target: u32, scope: &ScopeRef, marks: &[Mark], lasts_s: f64) {
        self.expire(now);
        if marks.is_empty() {
            return;
        }
        let until = now + lasts_s;
        let number = self.number(scope);
        let ScopeMarks { holders, depths, .. } = &mut self.scopes[number as usize];
        let group = self.order.entry((lasts_s * 1e9) as u64).or_default();
        for &(blocks, prefix) in marks.iter().take(DECISION_MARKS_MAX) {
            let made = Held { target, blocks, until };
            let held = holders.entry(prefix).or_default();
            let again = match held.iter_mut().find(|held| held.target == target) {
                Some(again) => Some(std::mem::replace(again, made).blocks),
                None => {
                    held.push(made);
                    self.count += 1;
                    None
                }
            };
            if again != Some(blocks) {
                *depths.entry(blocks).or_default() += 1;
                again.inspect(|&blocks| one_less(depths, blocks));
            }
            group.push_back(Place { until, scope: number, prefix, target });
        }
        while self.count > MARKS_MAX && self.drop_first() {}
    }

    fn number(&mut self, scope: &ScopeRef) -> u32 {
        if let Some(&number) = self.numbers.get(scope) {
            return number;
        }
        let (key, holders, depths) = (scope.to_key(), HashMap::new(), BTreeMap::new());
        let number = self.scopes.insert(ScopeMarks { key: key.clone(), holders, depths }) as u32;
        self.numbers.insert(key, number);
        number
    }

    /// It is not known to hold any of the prompt.
    pub fn fail(&mut self, target: u32, scope: &ScopeRef, marks: &[Mark]) {
        for &(_, prefix) in marks.iter().take(DECISION_MARKS_MAX) {
            let Some(&number) = self.numbers.get(scope) else { return };
            self.take(number, prefix, target, None);
        }
    }

    /// Nothing is known any more of what a target holds of a model. Cost O(marks).
    pub fn forget(&mut self, target: u32, model_name: &str) {
        let of_model = |key: &&ScopeKey| key.as_ref().model_name == model_name;
        let numbers: Vec<u32> =
            self.numbers.keys().filter(of_model).map(|key| self.numbers[key]).collect();
        for number in numbers {
            let scope = &self.scopes[number as usize];
            let holds = |held: &[Held]| held.iter().any(|one| one.target == target);
            let found: Vec<u64> = scope
                .holders
                .iter()
                .filter(|(_, held)| holds(held))
                .map(|(&prefix, _)| prefix)
                .collect();
            for prefix in found {
                self.take(number, prefix, target, None);
            }
        }
    }

    /// The longest prefix of a prompt that each target is to hold, in blocks: `found` is called once
    /// with each. `hashes` are those of the prompt's blocks, u64 LE.
    pub fn longest(
        &self,
        scope: &ScopeRef,
        hashes: &[[u8; 8]],
        now: f64,
        mut found: impl FnMut(u32, u32),
    ) {
        let Some(&number) = self.numbers.get(scope) else { return };
        let scope = &self.scopes[number as usize];
        let mut known: Vec<u32> = Vec::new();
        for (&blocks, _) in scope.depths.range(..=hashes.len() as u32).rev() {
            let Some(prefix) = (blocks as usize).checked_sub(1).map(|at| hashes[at]) else { break };
            let prefix = u64::from_le_bytes(prefix);
            for held in scope.holders.get(&prefix).into_iter().flatten() {
                let counts = held.blocks == blocks && held.until > now;
                if counts && !known.contains(&held.target) {
                    known.push(held.target);
                    found(held.target, blocks);
                }
            }
        }
    }

    /// Whom they are about; some come more than once.
    pub fn targets(&self) -> impl Iterator<Item = u32> {
        let holders = self.scopes.iter().flat_map(|(_, scope)| scope.holders.values());
        holders.flatten().map(|held| held.target)
    }

    fn expire(&mut self, now: f64) {
        let mut gone = Vec::new();
        for group in self.order.values_mut() {
            while group.front().is_some_and(|first| first.until <= now) {
                gone.extend(group.pop_front());
            }
        }
        self.order.retain(|_, group| !group.is_empty());
        for Place { until, scope, prefix, target } in gone {
            self.take(scope, prefix, target, Some(until));
        }
    }

    /// Drops the one that ends first.
    fn drop_first(&mut self) -> bool {
        let ends = |group: &VecDeque<Place>| group.front().map_or(f64::INFINITY, |one| one.until);
        let first = self.order.values_mut().min_by(|a, b| ends(a).total_cmp(&ends(b)));
        let Some(Place { until, scope, prefix, target }) = first.and_then(VecDeque::pop_front)
        else {
            return false;
        };
        self.order.retain(|_, group| !group.is_empty());
        self.take(scope, prefix, target, Some(until));
        true
    }

    /// Takes out a mark; `until`: only if it ends then, else it was made again.
    fn take(&mut self, number: u32, prefix: u64, target: u32, until: Option<f64>) {
        let Some(scope) = self.scopes.get_mut(number as usize) else { return };
        let Some(holders) = scope.holders.get_mut(&prefix) else { return };
        let is_it =
            |held: &Held| held.target == target && until.is_none_or(|until| held.until == until);
        let Some(place) = holders.iter().position(is_it) else { return };
        let held = holders.swap_remove(place);
        if holders.is_empty() {
            scope.holders.remove(&prefix);
        }
        one_less(&mut scope.depths, held.blocks);
        self.count -= 1;
        if scope.depths.is_empty() {
            let gone = self.scopes.remove(number as usize);
            self.numbers.remove(&gone.key);
        }
    }
}

fn one_less(depths: &mut BTreeMap<u32, usize>, blocks: u32) {
    if let Some(count) = depths.get_mut(&blocks) {
        *count -= 1;
        if *count == 0 {
            depths.remove(&blocks);
        }
    }
}

#[cfg(test)]
pub(crate) const SCOPE: ScopeRef = ScopeRef {
    tenant_id: "t",
    model_name: "m",
    lora_name: "",
    block_size: 16,
    additional_salt: "",
};

#[cfg(test)]
mod tests {
    use super::*;

    const HASHES: [[u8; 8]; 3] = [[1; 8], [2; 8], [3; 8]];

    fn mark(blocks: u32) -> Mark {
        (blocks, u64::from_le_bytes(HASHES[blocks as usize - 1]))
    }

    fn longest(known: &Predictions, now: f64) -> Vec<(u32, u32)> {
        let mut found = Vec::new();
        known.longest(&SCOPE, &HASHES, now, |target, blocks| found.push((target, blocks)));
        found.sort_unstable();
        found
    }

    #[test]
    fn each_target_holds_its_longest_prefix_for_as_long_as_was_said() {
        let mut known = Predictions::default();
        known.hold(10.0, 1, &SCOPE, &[mark(1), mark(2)], 2.0);
        known.hold(10.5, 2, &SCOPE, &[mark(1), mark(3)], 4.0);
        assert_eq!(longest(&known, 11.0), [(1, 2), (2, 3)]);
        assert_eq!(longest(&known, 12.0), [(2, 3)]);
        known.hold(13.0, 1, &SCOPE, &[mark(1)], 2.0);
        assert_eq!(longest(&known, 13.0), [(1, 1), (2, 3)]);
        assert_eq!(known.count, 3);
        known.fail(2, &SCOPE, &[mark(3)]);
        assert_eq!(longest(&known, 13.0), [(1, 1), (2, 1)]);
        known.forget(1, "other");
        known.forget(1, "m");
        assert_eq!(longest(&known, 13.0), [(2, 1)]);
        let other = ScopeRef { lora_name: "l", ..SCOPE };
        known.hold(100.0, 1, &other, &[], 2.0);
        assert_eq!((known.count, known.order.len(), known.scopes.len()), (0, 0, 0));
    }

    #[test]
    fn a_prompt_without_a_whole_block_is_held_by_nobody() {
        let mut known = Predictions::default();
        known.hold(10.0, 1, &SCOPE, &[mark(1)], 2.0);
        known.longest(&SCOPE, &[], 10.0, |_, _| panic!("nothing is held"));
    }

    #[test]
    fn one_that_was_made_again_does_not_end_with_the_first() {
        let mut known = Predictions::default();
        known.hold(10.0, 1, &SCOPE, &[mark(1)], 4.0);
        known.hold(11.0, 1, &SCOPE, &[mark(1)], 4.0);
        known.hold(14.5, 2, &SCOPE, &[], 4.0);
        assert_eq!(longest(&known, 14.5), [(1, 1)]);
    }

    #[test]
    fn there_are_so_many_and_the_first_to_end_goes() {
        let mut known = Predictions::default();
        for number in 0..=MARKS_MAX as u64 {
            known.hold(1.0 + number as f64 * 1e-9, 1, &SCOPE, &[(1, number)], 600.0);
        }
        assert_eq!(known.count, MARKS_MAX);
        assert!(!known.scopes[0].holders.contains_key(&0));
    }

    #[test]
    fn it_lasts_until_the_prompt_is_computed_and_a_while() {
        let lasts = [0.0, 1.0, 1.1, 3.0, 4.0, 100.0].map(predicted_s);
        assert_eq!(lasts, [2.0, 2.0, 4.0, 4.0, 8.0, 64.0]);
    }
}

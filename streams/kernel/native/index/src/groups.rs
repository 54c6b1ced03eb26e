//! Which cache groups of a publisher form prefixes, and whether they hold the same blocks.
//!
//! An engine finds a block only where each such group has it; answers count it where one has. So the
//! blocks are counted that some have and others do not: by their names, of which a block has one for
//! each group that holds it. Which groups there are stands in entries of a scope of its own; there is
//! none while it is group 0 alone, which costs nothing.

use hashbrown::{HashMap, HashSet};

use crate::entry_table::{Entry, Place};
use crate::hashing::GROUPS_MASK;
use crate::limits::GROUP_MAX;
use crate::memberships::Membership;
use crate::names::GROUPS;
use crate::publisher::Publisher;
use crate::sets::holder_of;
use crate::state::Index;

impl Membership {
    /// A block has another number of names than before.
    pub fn recount(&mut self, groups: u64, (before, after): (u64, u64)) {
        let differs = |names: u64| u64::from(names > 0 && names != groups);
        self.uneven = self.uneven + differs(after) - differs(before);
    }
}

impl Index {
    /// A group forms prefixes.
    #[inline]
    pub fn note_group(&mut self, publisher: &mut Publisher, group: u32) {
        publisher.has_base |= group == 0;
        if group > 0 || publisher.groups > 0 {
            self.add_group(publisher, group);
        }
    }

    #[cold]
    fn add_group(&mut self, publisher: &mut Publisher, group: u32) {
        let (key, known) = (GROUPS_MASK ^ u64::from(group), known(publisher));
        let is_known = self.find(publisher, key).is_some() || known > u64::from(GROUP_MAX);
        if is_known || (group == 0 && known == 0) {
            return;
        }
        let holds = publisher.memberships.iter().any(|part| !part.hidden && part.entries > 0);
        // What it holds before the first of these entries is group 0's. An engine may have named a
        // block like an entry of these.
        let has_base = known == 0 && (publisher.has_base || holds);
        if has_base && self.find(publisher, GROUPS_MASK).is_none() {
            self.put_apart(publisher, GROUPS_MASK, (0, 1), GROUPS);
        }
        self.put_apart(publisher, key, (0, 1), GROUPS);
        self.regroup(publisher);
    }

    /// Whether a group is known to form prefixes.
    pub fn forms_prefix(&self, publisher: &Publisher, group: u32) -> bool {
        if known(publisher) == 0 {
            return group == 0 && publisher.has_base;
        }
        self.find(publisher, GROUPS_MASK ^ u64::from(group)).is_some()
    }

    /// Has blocks counted anew where an engine has named an entry of these.
    #[inline]
    pub fn settle_groups(&mut self, publisher: &mut Publisher) {
        if publisher.groups > 0 && publisher.groups != known(publisher) {
            self.regroup(publisher);
        }
    }

    /// The groups that are known are others than before: all blocks are counted anew.
    #[cold]
    pub fn regroup(&mut self, publisher: &mut Publisher) {
        publisher.groups = known(publisher);
        let mut uneven: HashMap<u32, u64> = HashMap::new();
        let mut seen = HashSet::new();
        let mut place = Some(Place::default()).filter(|_| publisher.groups > 1);
        while let Some(at) = place {
            let see = |entry: Entry| {
                let part = publisher.memberships.get(entry.membership);
                let Some(part) = part.filter(|part| !part.hidden) else { return };
                for tier in entry.tiers() {
                    let holder = holder_of(part.member, tier);
                    let names = self.scopes[part.scope as usize].names(entry.slot, holder);
                    if names != publisher.groups && seen.insert((part.scope, entry.slot, tier)) {
                        *uneven.entry(entry.membership).or_default() += 1;
                    }
                }
            };
            place = publisher.entries.part(at, self.keys(publisher), see);
        }
        for number in publisher.memberships.numbers() {
            if let Some(part) = publisher.memberships.get_mut(number) {
                part.uneven = uneven.get(&number).copied().unwrap_or(0);
            }
        }
    }
}

pub fn known(publisher: &Publisher) -> u64 {
    let number = publisher.memberships.number_of(GROUPS);
    number.and_then(|number| publisher.memberships.get(number)).map_or(0, |part| part.entries)
}

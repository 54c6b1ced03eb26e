//! One publisher: what it calls the blocks it holds, and its part in each scope.

use std::sync::Arc;

use hashbrown::HashMap;

use crate::entry_table::{Entry, EntryTable};
use crate::memberships::{Membership, Memberships};
use crate::names::{RULES, Sharing, StreamKey};

/// (key, tier) -> how often a held block was announced, where more than once.
#[derive(Default)]
pub struct Counts(HashMap<(u64, u32), u16>);

impl Counts {
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    #[inline]
    pub fn of(&self, entry: &Entry, tier: u32) -> u16 {
        if !entry.has(tier) {
            return 0;
        }
        if self.0.is_empty() {
            return 1;
        }
        self.0.get(&(entry.key, tier)).copied().unwrap_or(1)
    }

    #[inline]
    pub fn keep(&mut self, key: u64, tier: u32, count: u16) {
        if count > 1 {
            self.0.insert((key, tier), count);
        } else if !self.0.is_empty() {
            self.0.remove(&(key, tier));
            if self.0.is_empty() {
                self.0 = HashMap::new();
            }
        }
    }

    pub fn clear(&mut self) {
        self.0 = HashMap::new();
    }
}

/// How many blocks an engine needs of a sparse cache group at the end of a prefix.
#[derive(Clone, Copy, Debug)]
pub struct Rule {
    pub group: u32,
    pub last_blocks: u32,
}

pub struct Publisher {
    pub id: u64,
    pub stream: StreamKey,
    pub dp_rank: u32,
    pub entries: EntryTable,
    pub counts: Counts,
    pub memberships: Memberships,
    pub registered_lora: Option<Arc<str>>,
    pub routable: bool,
    /// It has a part of each block, and the other ranks of its instance have the others.
    pub is_shard: bool,
    pub sharing: Sharing,
    /// Objects are joined through engines of the same domain only.
    pub domain: u32,
    /// Bit per cache group that stored events have been left out of.
    pub skipped_groups: u64,
    /// How many cache groups form prefixes; 0 while it is group 0 alone.
    pub groups: u64,
    /// Whether it has stored blocks of group 0 that form prefixes, since all was dropped.
    pub has_base: bool,
    /// Blocks announced of sparse groups that its engine needs, since all was dropped; None where no
    /// such group is known.
    pub sparse_blocks: Option<u64>,
    /// Whether one of these has no known rule.
    pub unruled: bool,
    /// The rules of the others, by group, as its entries say them.
    pub rules: Vec<Rule>,
    /// Whether these say that there is one without.
    pub has_unruled: bool,
    /// Blocks that it has removed from its GPU and held nowhere, since all was dropped; None where it
    /// may have had a copy that is not counted.
    pub unheld_removed: Option<u64>,
    /// Whether it has ever had an object of a block that engines call by a hash of their own.
    pub has_aliases: bool,
}

impl Publisher {
    pub fn new(id: u64, stream: StreamKey, dp_rank: u32) -> Self {
        Self {
            id,
            stream,
            dp_rank,
            entries: EntryTable::default(),
            counts: Counts::default(),
            memberships: Memberships::default(),
            registered_lora: None,
            routable: false,
            is_shard: false,
            sharing: Sharing::default(),
            domain: 0,
            skipped_groups: 0,
            groups: 0,
            has_base: false,
            sparse_blocks: None,
            unruled: false,
            rules: Vec::new(),
            has_unruled: false,
            unheld_removed: Some(0),
            has_aliases: false,
        }
    }

    /// Whether the other one's shared blocks count for it, where both hold some of a scope.
    pub fn can_read(&self, other: &Self) -> bool {
        let instance = &other.stream.instance_id;
        let called = other.sharing.shared_as.as_ref().unwrap_or(instance);
        let reads = self.sharing.reads.as_deref();
        reads.is_none_or(|reads| *instance == self.stream.instance_id || reads.contains(called))
    }

    /// Its parts in the scopes of what is left out.
    pub fn left_out(&self) -> impl Iterator<Item = &Membership> {
        self.memberships.iter().filter(|part| part.left_out)
    }

    /// How many of its entries say by which rule sparse groups are used.
    pub fn rule_entries(&self) -> u64 {
        let number = self.memberships.number_of(RULES);
        number.and_then(|number| self.memberships.get(number)).map_or(0, |part| part.entries)
    }

    /// The rules of its sparse groups; none where one has none.
    pub fn active_rules(&self) -> &[Rule] {
        if self.has_unruled { &[] } else { &self.rules }
    }

    /// How many blocks its engine needs of a sparse group at the end of a prefix; None where no rule
    /// of it is known.
    pub fn last_blocks(&self, group: u32) -> Option<u32> {
        let rule = self.active_rules().iter().find(|rule| rule.group == group);
        rule.map(|rule| rule.last_blocks)
    }

    /// How many of its entries wait.
    pub fn waiting(&self) -> u64 {
        self.memberships.iter().filter(|part| part.waits).map(|part| part.entries).sum()
    }

    /// How many of its entries say what engines call a block: of nothing that it holds.
    pub fn aliases(&self) -> u64 {
        if !self.has_aliases {
            return 0;
        }
        self.memberships.iter().filter(|part| part.aliases).map(|part| part.entries).sum()
    }

    pub fn live_entries(&self) -> u64 {
        self.memberships.iter().map(|part| part.entries).sum()
    }

    /// Without those that say something of the others.
    pub fn shown_entries(&self) -> u64 {
        let others = self.groups + self.aliases() + self.rule_entries();
        self.live_entries().saturating_sub(others)
    }

    pub fn memory_bytes(&self) -> usize {
        self.entries.memory_bytes()
            + self.counts.0.allocation_size()
            + self.memberships.memory_bytes()
            + size_of::<Self>()
    }
}

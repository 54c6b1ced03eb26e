//! All of a kernel's state: publishers, scopes, and how publishers join and leave scopes.

use hashbrown::HashMap;

use crate::changes::ChangeLists;
use crate::counters::{COUNTER_NAMES, Counter};
use crate::entry_table::{Entry, EntryTable, Keys};
use crate::hashing::Placement;
use crate::leaving::Leaving;
use crate::limits::{CLEARED_SCOPES_AT_ONCE_MAX, ENDED_ENTRIES, HIDDEN_SETS_MAX};
use crate::memberships::{MemberId, Membership, Named};
use crate::names::{
    ContextKey, REPEATED, ScopeKey, Sharing, StreamKey, is_aliases, is_hidden, is_left_out,
    is_waiting,
};
use crate::publisher::Publisher;
use crate::scope::Scope;
use crate::sets::holder_of;

pub struct State {
    pub publishers: HashMap<u64, Publisher>,
    pub ids: HashMap<(StreamKey, u32), u64>,
    next_id: u64,
    pub index: Index,
}

/// What publishers share. Apart from them, so that both can be borrowed at once.
pub struct Index {
    pub placement: Placement,
    pub scopes: Vec<Scope>,
    vacant_scopes: Vec<u32>,
    pub scope_ids: HashMap<ScopeKey, u32>,
    pub changes: ChangeLists,
    pub counters: [u64; COUNTER_NAMES.len()],
    pub leaving: Leaving,
    /// Entries that a clear releases itself.
    pub cleared_at_once: usize,
    /// Whether a publisher ever had sparse groups with a rule.
    pub has_rules: bool,
    /// Memberships that were made since `release_left_beside`.
    pub joined: usize,
    /// Entries of all publishers that wait, and how many one membership may have.
    pub waiting: u64,
    pub waiting_max: u64,
    /// Entries of all publishers that are left out, and how many each may have.
    pub left_out: u64,
    pub left_out_max: u64,
    /// Entries of all publishers that count how often a block was announced again.
    pub repeated: u64,
    /// Scopes to settle before queries see them.
    touched: Vec<u32>,
}

impl State {
    pub fn new(cleared_at_once: usize, waiting_max: u64, left_out_max: u64) -> Self {
        Self {
            publishers: HashMap::new(),
            ids: HashMap::new(),
            next_id: 0,
            index: Index {
                placement: Placement::random(),
                scopes: Vec::new(),
                vacant_scopes: Vec::new(),
                scope_ids: HashMap::new(),
                changes: ChangeLists::default(),
                counters: [0; COUNTER_NAMES.len()],
                leaving: Leaving::default(),
                cleared_at_once,
                has_rules: false,
                joined: 0,
                waiting: 0,
                waiting_max,
                left_out: 0,
                left_out_max,
                repeated: 0,
                touched: Vec::new(),
            },
        }
    }

    pub fn open_publisher(&mut self, stream: StreamKey, dp_rank: u32) -> u64 {
        let key = (stream, dp_rank);
        if let Some(&known) = self.ids.get(&key) {
            return known;
        }
        let id = self.next_id;
        self.next_id += 1;
        self.publishers.insert(id, Publisher::new(id, key.0.clone(), dp_rank));
        self.ids.insert(key, id);
        id
    }

    /// False where the publisher is unknown.
    pub fn register(
        &mut self,
        id: u64,
        lora_name: &str,
        routable: bool,
        is_shard: bool,
        sharing: Sharing,
    ) -> bool {
        let Some(publisher) = self.publishers.get_mut(&id) else {
            return false;
        };
        if publisher.sharing != sharing {
            publisher.sharing = sharing;
            for part in publisher.memberships.iter() {
                self.index.note_sharing(publisher, part);
            }
        }
        let before = publisher.registered_lora.replace(lora_name.into());
        (publisher.routable, publisher.is_shard) = (routable, is_shard);
        let before = before.and_then(|lora| publisher.memberships.number_of(&lora));
        if let Some(number) = before {
            self.index.set_registered(publisher, number, false);
        }
        if routable {
            let number = self.index.join(publisher, lora_name);
            self.index.set_registered(publisher, number, true);
        }
        if let Some(number) = before {
            self.index.leave_if_unused(publisher, number);
        }
        true
    }

    /// The publisher must hold no entry any more.
    pub fn forget(&mut self, id: u64) {
        let Some(mut publisher) = self.publishers.remove(&id) else {
            return;
        };
        for number in publisher.memberships.numbers() {
            self.index.set_registered(&mut publisher, number, false);
            self.index.leave_if_unused(&mut publisher, number);
        }
        self.ids.remove(&(publisher.stream, publisher.dp_rank));
    }
}

impl Index {
    /// Where the keys of a publisher's entries are.
    #[inline]
    pub fn keys<'a>(&'a self, publisher: &'a Publisher) -> Keys<'a> {
        Keys::new(&self.scopes, &publisher.memberships, self.placement)
    }

    /// A publisher's entries to be changed, and where their keys are.
    #[inline]
    pub fn entries_mut<'a>(
        &'a self,
        publisher: &'a mut Publisher,
    ) -> (&'a mut EntryTable, Keys<'a>) {
        let Publisher { entries, memberships, .. } = publisher;
        (entries, Keys::new(&self.scopes, memberships, self.placement))
    }

    /// What a publisher calls by this key.
    #[inline]
    pub fn find(&self, publisher: &Publisher, key: u64) -> Option<Entry> {
        publisher.entries.find(key, self.keys(publisher))
    }

    pub fn count(&mut self, counter: Counter, blocks: usize) {
        self.counters[counter as usize] += blocks as u64;
    }

    /// The publisher's membership in the scope of `lora_name`, made where it is new.
    pub fn join(&mut self, publisher: &mut Publisher, lora_name: &str) -> u32 {
        if let Some(known) = publisher.memberships.number_of(lora_name) {
            return known;
        }
        let key = publisher.stream.scope(lora_name);
        let lora_name = key.lora_name.clone();
        let (waits, aliases) = (is_waiting(&lora_name), is_aliases(&lora_name));
        let named = (waits || aliases).then(Named::new);
        publisher.has_aliases |= aliases;
        let (left_out, repeated) = (is_left_out(&lora_name), *lora_name == *REPEATED);
        let hidden = is_hidden(&lora_name);
        let instance_id = publisher.stream.instance_id.clone();
        let context = ContextKey { scope: key.clone(), instance_id };
        let scope = self.open_scope(key);
        self.joined += 1;
        let number = publisher.memberships.insert(Membership {
            lora_name,
            scope,
            member: self.scopes[scope as usize].join(
                publisher.id,
                &publisher.stream.instance_id,
                publisher.dp_rank,
            ),
            context: self.changes.join(context),
            entries: 0,
            own: 0,
            owned: 0,
            digest: 0,
            registered: false,
            named,
            waits,
            aliases,
            left_out,
            repeated,
            hidden,
            uneven: 0,
        });
        if let Some(made) = publisher.memberships.get(number) {
            self.note_sharing(publisher, made);
        }
        number
    }

    /// Of a part in a scope, so that answers there know whose shared blocks count for whom.
    fn note_sharing(&mut self, publisher: &Publisher, part: &Membership) {
        self.scopes[part.scope as usize].set_sharing(part.member, &publisher.sharing);
        self.touch(part.scope);
    }

    fn open_scope(&mut self, key: ScopeKey) -> u32 {
        if let Some(&known) = self.scope_ids.get(&key) {
            return known;
        }
        let scope = Scope::new(key.clone());
        let number = self.vacant_scopes.pop().unwrap_or(self.scopes.len() as u32);
        if number as usize == self.scopes.len() {
            self.scopes.push(scope);
        } else {
            self.scopes[number as usize] = scope;
        }
        self.scope_ids.insert(key, number);
        number
    }

    pub fn set_registered(&mut self, publisher: &mut Publisher, number: u32, registered: bool) {
        let is_shard = registered && publisher.is_shard;
        if let Some(membership) = publisher.memberships.get_mut(number) {
            membership.registered = registered;
            self.scopes[membership.scope as usize].set_shard(membership.member, is_shard);
            self.note_participation(membership);
        }
    }

    pub fn note_participation(&mut self, membership: &Membership) {
        let participates = membership.registered || membership.own > 0;
        self.scopes[membership.scope as usize].set_participates(membership.member, participates);
        self.touched.push(membership.scope);
    }

    pub fn leave_if_unused(&mut self, publisher: &mut Publisher, number: u32) {
        let Some(gone) = publisher.memberships.remove_unused(number) else {
            return;
        };
        self.changes.leave(gone.context);
        let scope = &mut self.scopes[gone.scope as usize];
        scope.leave(gone.member);
        self.touched.push(gone.scope);
        self.drop_if_vacant(gone.scope);
    }

    fn drop_if_vacant(&mut self, number: u32) {
        let scope = &mut self.scopes[number as usize];
        if scope.is_vacant() {
            self.scope_ids.remove(&scope.key);
            *scope = Scope::new(scope.key.clone());
            self.vacant_scopes.push(number);
        }
    }

    /// Whether to clear these memberships of a publisher is more than may be done at once, and to
    /// hide their entries takes less.
    pub fn clears_later(&self, publisher: &Publisher, numbers: &[u32]) -> bool {
        let is_much = publisher.entries.len() > self.cleared_at_once
            || numbers.len() > CLEARED_SCOPES_AT_ONCE_MAX;
        is_much && self.can_hide(publisher, numbers)
    }

    fn can_hide(&self, publisher: &Publisher, numbers: &[u32]) -> bool {
        let parts = numbers.iter().filter_map(|&number| publisher.memberships.get(number));
        let sets: usize = parts.map(|part| self.scopes[part.scope as usize].sets.len()).sum();
        sets <= HIDDEN_SETS_MAX
    }

    /// Takes all entries from some memberships; `entries` are these and no others. They are to be
    /// hidden, as the members that are returned, and are released by `release_left`.
    pub fn retire(&mut self, publisher: &mut Publisher, numbers: &[u32]) -> Vec<MemberId> {
        let end = numbers.iter().max().map_or(0, |&last| last as usize + 1);
        let mut members = vec![None; end];
        for &number in numbers {
            let Some(membership) = publisher.memberships.get_mut(number) else { continue };
            let gone = membership.member_id();
            membership.member = self.scopes[gone.scope as usize].retire(gone.member);
            members[number as usize] = Some(gone);
            self.touch(gone.scope);
        }
        let retired = members.iter().copied().flatten().collect();
        self.leaving.push(std::mem::take(&mut publisher.entries), members);
        retired
    }

    /// Releases some of what was cleared, at most so many entries, or members for ENDED_ENTRIES of
    /// them each; returns how much it was, 0 where nothing was left.
    pub fn release_left(&mut self, most: usize) -> usize {
        let mut leaving = std::mem::take(&mut self.leaving);
        let (entries, members) = leaving.take(most);
        self.release(&entries, members);
        let ended = leaving.ended((most - entries.len()).div_ceil(ENDED_ENTRIES));
        for gone in &ended {
            self.scopes[gone.scope as usize].bury(gone.member);
            self.touch(gone.scope);
            self.drop_if_vacant(gone.scope);
        }
        self.leaving = leaving;
        entries.len() + ENDED_ENTRIES * ended.len()
    }

    /// Takes entries out that are no longer their publisher's, which has or had these members, by
    /// number of the membership.
    pub fn release(&mut self, entries: &[Entry], members: &[Option<MemberId>]) {
        let place = |entry: &Entry| members.get(entry.membership as usize).copied().flatten();
        for entry in entries {
            let Some(member) = place(entry) else { continue };
            let slots = &self.scopes[member.scope as usize].slots;
            slots.touch_prefix(entry.slot);
            slots.touch_set(entry.slot);
        }
        for entry in entries {
            let Some(member) = place(entry) else { continue };
            let scope = &self.scopes[member.scope as usize];
            scope.touch(scope.slots.prefix(entry.slot), self.placement);
        }
        for entry in entries {
            let Some(MemberId { scope, member }) = place(entry) else { continue };
            self.touch(scope);
            for tier in entry.tiers() {
                let holder = holder_of(member, tier);
                self.scopes[scope as usize].release(entry.slot, holder, self.placement);
            }
        }
    }

    /// Scopes whose holder sets may have grown are to be settled too.
    pub fn touch(&mut self, scope: u32) {
        if self.touched.last() != Some(&scope) {
            self.touched.push(scope);
        }
    }

    /// To be done before the lock is given up.
    pub fn settle(&mut self) {
        while let Some(scope) = self.touched.pop() {
            self.scopes[scope as usize].settle();
        }
    }
}

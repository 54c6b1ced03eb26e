//! What publishers have cleared and the index has yet to release.
//!
//! A clear of many blocks, or in many scopes, hides them at once and gives them back in slices,
//! beside later writes and while there is nothing to write: what others sent meanwhile does not wait
//! for it. Then it ends its members, each in its scope, in slices too.

use std::collections::VecDeque;

use crate::entry_table::{Entry, EntryTable};
use crate::memberships::MemberId;

/// What one clear left: by number of the membership, what its member was called.
struct Left {
    /// Of their keys nothing is needed any more.
    entries: Box<dyn Iterator<Item = Entry> + Send + Sync>,
    /// Of these.
    count: usize,
    /// Without the numbers that none has, once there are no entries.
    members: Vec<Option<MemberId>>,
    bytes: usize,
}

#[derive(Default)]
pub struct Leaving {
    queue: VecDeque<Left>,
    entries: usize,
    members: usize,
}

impl Leaving {
    pub fn push(&mut self, entries: EntryTable, members: Vec<Option<MemberId>>) {
        let (count, bytes) = (entries.len(), entries.memory_bytes());
        self.entries += count;
        self.members += members.iter().flatten().count();
        let entries = Box::new(entries.into_entries());
        self.queue.push_back(Left { entries, count, members, bytes });
    }

    /// Entries that are yet to be released, and members that are yet to end.
    pub fn len(&self) -> usize {
        self.entries + self.members
    }

    /// The next ones of the oldest clear, at most so many, and what their members were called.
    pub fn take(&mut self, most: usize) -> (Vec<Entry>, &[Option<MemberId>]) {
        let Some(left) = self.queue.front_mut() else { return (Vec::new(), &[]) };
        let taken: Vec<Entry> = left.entries.by_ref().take(most).collect();
        left.count -= taken.len();
        self.entries -= taken.len();
        (taken, &left.members)
    }

    /// The next members of the oldest clear, at most so many, once all its entries were taken.
    pub fn ended(&mut self, most: usize) -> Vec<MemberId> {
        let Some(left) = self.queue.front_mut().filter(|left| left.count == 0) else {
            return Vec::new();
        };
        left.members.retain(Option::is_some);
        let kept = left.members.len().saturating_sub(most);
        let ended: Vec<MemberId> = left.members.drain(kept..).flatten().collect();
        self.members -= ended.len();
        if kept == 0 {
            self.queue.pop_front();
        }
        ended
    }

    /// Of a clear all counts until it has ended.
    pub fn memory_bytes(&self) -> usize {
        self.queue.iter().map(|left| left.bytes).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::entry_table::Keys;
    use crate::hashing::Placement;
    use crate::memberships::Memberships;

    /// Entries under the keys 1 to `count`.
    fn entries(count: u64) -> EntryTable {
        let (memberships, mut table) = (Memberships::default(), EntryTable::default());
        let keys = Keys::new(&[], &memberships, Placement::random());
        (1..=count).for_each(|key| table.insert(key, key as u32, 0, 0, keys));
        table
    }

    /// Members 0, 1, ... of scope 5, with a number between them that none has.
    fn members(count: u32) -> Vec<Option<MemberId>> {
        (0..count).flat_map(|member| [Some(MemberId { scope: 5, member }), None]).collect()
    }

    fn numbers(ended: &[MemberId]) -> Vec<u32> {
        ended.iter().map(|id| id.member).collect()
    }

    #[test]
    fn length_is_of_entries_yet_to_be_released_and_members_yet_to_end() {
        let mut leaving = Leaving::default();
        assert_eq!(leaving.len(), 0);
        leaving.push(entries(5), members(3));
        leaving.push(entries(2), members(1));
        assert_eq!(leaving.len(), 5 + 3 + 2 + 1);
        assert_eq!(leaving.take(2).0.len(), 2);
        assert_eq!(leaving.len(), 9);
        leaving.take(3);
        assert_eq!(leaving.ended(2).len(), 2);
        assert_eq!(leaving.len(), 4);
    }

    #[test]
    fn members_end_once_all_entries_of_their_clear_were_taken() {
        let mut leaving = Leaving::default();
        leaving.push(entries(3), members(3));
        assert!(leaving.ended(9).is_empty());
        let (mut keys, named) = leaving.take(2);
        assert_eq!(named.iter().flatten().count(), 3);
        let mut taken: Vec<u64> = keys.drain(..).map(|entry| entry.key).collect();
        assert!(leaving.ended(9).is_empty());
        taken.extend(leaving.take(2).0.iter().map(|entry| entry.key));
        taken.sort_unstable();
        assert_eq!(taken, [1, 2, 3]);
        assert_eq!(numbers(&leaving.ended(2)), [1, 2]);
        assert_eq!(numbers(&leaving.ended(2)), [0]);
        assert_eq!(leaving.len(), 0);
    }

    #[test]
    fn a_clear_ends_before_the_next_one_begins() {
        let mut leaving = Leaving::default();
        leaving.push(entries(1), members(1));
        leaving.push(entries(2), members(2));
        assert_eq!(leaving.take(9).0.len(), 1);
        assert!(leaving.take(9).0.is_empty());
        assert_eq!(numbers(&leaving.ended(1)), [0]);
        assert_eq!(leaving.take(9).0.len(), 2);
        assert_eq!(numbers(&leaving.ended(9)), [0, 1]);
        assert!(leaving.take(9).0.is_empty() && leaving.ended(9).is_empty());
    }

    #[test]
    fn memory_of_a_clear_counts_until_it_has_ended() {
        let (first, second) = (entries(4), entries(4000));
        let (least, most) = (first.memory_bytes(), second.memory_bytes());
        let mut leaving = Leaving::default();
        leaving.push(first, members(1));
        leaving.push(second, members(1));
        leaving.take(9);
        assert_eq!(leaving.memory_bytes(), least + most);
        leaving.ended(9);
        assert_eq!(leaving.memory_bytes(), most);
    }
}

//! What publishers have cleared and the index has yet to release.
//!
//! A clear of many blocks, or in many scopes, hides them at once and gives them back in slices,
//! beside later writes and while there is nothing to write: what others sent meanwhile does not wait
//! for it. Then it ends its members, each in its scope, in slices too.

use std::collections::VecDeque;

use crate::entry_table::{Entry, EntryTable};
use crate::publisher::MemberId;

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

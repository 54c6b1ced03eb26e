//! What a publisher holds and the index cannot use: kept, so that what is known of the publisher says
//! so until it holds that no more.
//!
//! It stands as entries of scopes of their own, one for each reason, under keys of their own, so that
//! rows and digests have it like all others, and a clear drops it.

use crate::counters::Counter;
use crate::entries::Block;
use crate::events::Stored;
use crate::hashing::LEFT_OUT_MASK;
use crate::limits::{HOLD_COUNT_MAX, LEFT_OUT_REASON_BYTES_MAX, LEFT_OUT_REASONS_MAX};
use crate::names::LEFT_OUT;
use crate::publisher::Publisher;
use crate::state::Index;

const OVERFLOW: &str = "overflow";
/// Stands for all that no longer had room.
const OVERFLOW_KEY: u64 = LEFT_OUT_MASK ^ u64::MAX;

/// The reason for a counter of stored events that are left out; None where nothing is kept of them.
pub fn reason_of(counter: Counter, event: &Stored) -> Option<String> {
    let reason = match counter {
        Counter::BlockSizeMismatch => return Some(format!("block_size:{}", event.block_size)),
        Counter::UnknownParent => "unknown_parent",
        Counter::Unusable if event.left_out.len() > LEFT_OUT_REASON_BYTES_MAX => "other",
        Counter::Unusable => event.left_out,
        Counter::TokenCountMismatch => "token_count",
        Counter::ExtraKeysMismatch => "extra_keys",
        Counter::SeedMismatch => "seed",
        _ => return None,
    };
    Some(reason.to_owned())
}

impl Index {
    /// Keeps that the publisher holds a block of this name, and that no answer counts it.
    #[cold]
    pub fn leave_out(&mut self, publisher: &mut Publisher, block: Block, reason: &str) {
        let mut key = block.key ^ LEFT_OUT_MASK;
        let mut tier = block.tier;
        let mut number = self.find(publisher, key).map(|entry| entry.membership);
        if number.is_none() {
            let mut name = format!("{LEFT_OUT}{reason}");
            let mut held = (0, 0);
            let mut is_new = true;
            for part in publisher.left_out().filter(|part| part.entries > 0) {
                held = (held.0 + part.entries, held.1 + 1);
                is_new &= *part.lora_name != *name;
            }
            if held.0 >= self.left_out_max || (is_new && held.1 >= LEFT_OUT_REASONS_MAX) {
                self.count(Counter::LeftOutOverflow, 1);
                name = format!("{LEFT_OUT}{OVERFLOW}");
                (key, tier) = (OVERFLOW_KEY, 0);
            }
            number = Some(self.join(publisher, &name));
        }
        let Some(number) = number else { return };
        if let Some(part) = publisher.memberships.get(number) {
            self.touch(part.scope);
        }
        let Some(entry) = self.find(publisher, key) else {
            let block = Block { key, prefix: key, tier, reported: false };
            if let Some(slot) = self.add(publisher, number, block, None) {
                self.begin(publisher, number, block, slot);
            }
            return;
        };
        let count = publisher.counts.of(&entry, tier);
        let is_again = block.reported || key == OVERFLOW_KEY || count == HOLD_COUNT_MAX;
        if count == 0 || !is_again {
            self.set_known(publisher, entry, tier, count + 1, true);
        }
    }

    /// The index has found a place for a block: it is not left out any more.
    #[inline]
    pub fn take_in(&mut self, publisher: &mut Publisher, block: Block) {
        if self.left_out > 0 {
            self.lower_left_out(publisher, block.key, block.tier, true);
        }
    }

    /// One announcement less of a block that is left out, or all of them; false where there is none.
    #[cold]
    pub fn lower_left_out(
        &mut self,
        publisher: &mut Publisher,
        key: u64,
        tier: u32,
        whole: bool,
    ) -> bool {
        let key = key ^ LEFT_OUT_MASK;
        if whole {
            return self.remove_whole(publisher, key, tier);
        }
        let entry = self.find(publisher, key);
        entry.is_some_and(|entry| entry.has(tier) && self.remove(publisher, &entry, tier))
    }
}

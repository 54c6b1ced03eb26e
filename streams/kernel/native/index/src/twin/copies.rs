//! What is left of a block after a removal.

use super::told::Told;
use super::{COPIES, REPEATED, Twin};
use crate::hashing::{LEFT_OUT_MASK, REPEATED_MASK};

impl Twin {
    /// One copy less of what may be held more often than it surely is: whether it is counted all the
    /// same.
    pub(super) fn keep_copies(
        &mut self,
        id: u64,
        event: &Told,
        key: u64,
        held: u16,
    ) -> Option<bool> {
        let tier = event.tier;
        let key = key ^ (REPEATED_MASK + u64::from(tier));
        let again = self.only_on(id, key, tier)?;
        let times = again.counts[tier as usize];
        if held > 1 {
            return Some(false);
        }
        if again.lora != REPEATED {
            self.set(id, key, &again.lora, again.prefix, (tier, times - 1), true);
            return Some(held > 0 && times > 1);
        }
        if !self.has_room(id, COPIES) {
            self.set(id, key, &again.lora, again.prefix, (tier, 0), true);
            self.overflow(id);
            return Some(false);
        }
        let kept = self.left_out(id, COPIES);
        self.carry_over(id, key, &again, tier, COPIES);
        Some(held > 0 && kept < self.left_out_max / 64)
    }

    /// So many copies are left; whether any were known.
    pub(super) fn set_left(&mut self, id: u64, event: &Told, key: u64) -> bool {
        let (tier, left) = (event.tier, if event.whole { 0 } else { event.left });
        let again = key ^ (REPEATED_MASK + u64::from(tier));
        let mut is_known = false;
        for name in [key, again, key ^ LEFT_OUT_MASK] {
            let known = self.owners[&id].held.get(&name).cloned();
            let known = if name == again { self.only_on(id, name, tier) } else { known };
            let Some(held) = known.filter(|held| held.counts[tier as usize] > 0) else { continue };
            if !is_known || name == again || left == 0 {
                let count = if is_known { 0 } else { left };
                self.set(id, name, &held.lora, held.prefix, (tier, count), true);
            }
            is_known = true;
        }
        is_known
    }
}

//! The kernel's counters, in the order of `COUNTERS` in `streams/kernel/interface.py`, which says
//! what each counts.

macro_rules! counters {
    ($($counter:ident $name:literal,)*) => {
        #[derive(Clone, Copy, Debug, PartialEq)]
        pub enum Counter {
            $($counter,)*
        }

        pub const COUNTER_NAMES: [&str; [$($name),*].len()] = [$($name),*];
    };
}

counters! {
    Stored "stored",
    Removed "removed",
    Cleared "cleared",
    Repeated "repeated",
    UnknownParent "unknown_parent",
    UnknownRemoved "unknown_removed",
    Unresolved "unresolved",
    BlockSizeMismatch "block_size_mismatch",
    TokenCountMismatch "token_count_mismatch",
    ExtraKeysMismatch "extra_keys_mismatch",
    SkippedGroup "skipped_group",
    HashConflict "hash_conflict",
    HoldCountOverflow "hold_count_overflow",
    Waiting "waiting",
    Joined "joined",
    WaitingOverflow "waiting_overflow",
    Reported "reported",
    SeedMismatch "seed_mismatch",
    Unusable "unusable",
    LeftOutOverflow "left_out_overflow",
    LeftOutRemoved "left_out_removed",
}

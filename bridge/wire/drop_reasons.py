"""The names under which dropped input is counted: all labels of the drop counters."""

from enum import StrEnum


class DropReason(StrEnum):
    """Why something an engine sent was not used; the comments say how much of it was lost."""

    # The message, before its place in the stream is known; the next one shows a gap.
    FRAME_COUNT = "frame_count"
    SEQUENCE_LENGTH = "sequence_length"
    SEQUENCE_RANGE = "sequence_range"
    INBOX_FULL = "inbox_full"
    HELD_FULL = "held_full"
    EARLIER_INCARNATION = "earlier_incarnation"  # it waited; its process is gone, and its blocks
    # A replay: nothing more of it is taken, since it is of another publisher.
    REPLAY_DIFFERS = "replay_differs"
    # The batch; a gap stands for it, unless the publisher is degraded by an earlier one.
    MESSAGE_TOO_LARGE = "message_too_large"
    UNDECODABLE = "undecodable"
    UNKNOWN_KIND = "unknown_kind"
    BAD_TIMESTAMP = "bad_timestamp"
    RANK_MISMATCH = "rank_mismatch"
    OTHER_WORKER = "other_worker"  # its events are of a worker that the stream is not of
    TOO_MANY_EVENTS = "too_many_events"
    TOO_MANY_VALUES = "too_many_values"
    BATCH_TOO_LARGE = "batch_too_large"
    # Batches of one window, by an error of ours; replayed, or a gap stands for them.
    INTERNAL_ERROR = "internal_error"
    # The event; its siblings are used, and its publisher is degraded: until it no longer holds the
    # blocks, where it is a store whose hashes can be read, else until it clears.
    EVENTS_MISSING = "events_missing"  # not of this event: of those before it, which never came
    LARGER_WINDOW = "larger_window"  # likewise: they were of a smaller one, and are dropped
    UNKNOWN_WINDOW = "unknown_window"  # likewise: a log of before does not say of which they were
    SHARED_TIER = "shared_tier"  # it is applied, also to what is elsewhere on the tier
    UNKNOWN_EVENT = "unknown_event"
    UNKNOWN_FIELD = "unknown_field"  # of a store: it may change what its blocks are
    LOOKAHEAD = "lookahead"  # its blocks depend on the tokens behind them, too
    MALFORMED_EVENT = "malformed_event"
    UNKNOWN_MEDIUM = "unknown_medium"
    BAD_HASHES = "bad_hashes"
    BAD_PARENT = "bad_parent"
    BAD_TOKENS = "bad_tokens"
    BAD_BLOCK_SIZE = "bad_block_size"
    BAD_GROUP = "bad_group"
    BAD_EXTRA_KEYS = "bad_extra_keys"
    BAD_COPY_COUNTS = "bad_copy_counts"  # of a removal: it is applied, as one of a copy each
    NAME_TOO_LONG = "name_too_long"
    TOO_MANY_LORA_NAMES = "too_many_lora_names"
    TOO_MANY_BLOCKS = "too_many_blocks"
    # The event, which is none of the publisher's blocks: nothing is missing without it.
    OTHER_STREAM = "other_stream"  # of a tenant, model or the like that is not the registered one
    OTHER_RANK = "other_rank"  # of a rank that has a publisher of its own, or should have one
    OTHER_GROUP = "other_group"
    NO_BLOCK = "no_block"  # an object that is none, or does not tell which
